package proxy

import (
	"slices"

	"cosky-proxy/nearcache"
	"cosky-proxy/nearcache/coskey"
	"cosky-proxy/proxy/heat"
)

// Replies to reads of the hottest keys are kept as a rule would have it (nearcache.hot). Which keys
// those are changes while commands are in flight that know nothing of it, so a key comes and
// goes in steps, each of which all loops have taken before the next one begins:
//
//  1. The key concerns the near-cache: commands sent from now on say what they do to it.
//  2. Its stripe is bumped: nothing is left from a time when it was hot before.
//  3. Replies are kept and served.
//
// and
//
//  1. Nothing is kept or served any more.
//  2. Its stripe is bumped: what there was is void.
//  3. It concerns the near-cache no longer.
//
// What a command sent before step 1 does to the key nobody has noted. Such stragglers are known by
// their age (request.hotEpoch). When one is answered, the stripes of all hot keys are bumped
// before its client sees the reply (loop.settle): a write is then seen by every later read, and a
// read that shows a new state voids the older one. Its own client sends nothing further until then
// (laneEpoch), so it is not overtaken by a hit either.

// hotSet is the hot keys as a loop knows them. It is immutable.
type hotSet struct {
	keys    map[string]bool // true: replies are kept; false: it only concerns the near-cache
	stripes []nearcache.Stripe
	filter  [4]uint64 // of hotBit: most other keys are told apart by a bit
}

// hotBit spreads keys over the filter by what is cheap to look at.
func hotBit[T string | []byte](key T) uint8 {
	n := len(key)
	if n == 0 {
		return 0
	}
	return key[n-1] ^ key[n/2]<<3 ^ uint8(n)*29
}

// newHotSet returns nil for no keys.
func newHotSet(c *nearcache.Cache, keys map[string]bool) *hotSet {
	if len(keys) == 0 {
		return nil
	}
	h := &hotSet{keys: keys}
	for k := range keys {
		h.stripes = append(h.stripes, c.StripeOf(c.Hash([]byte(k))))
		bit := hotBit(k)
		h.filter[bit>>6] |= 1 << (bit & 63)
	}
	return h
}

// concerns reports whether what happens to key has to be noted.
func (h *hotSet) concerns(key []byte) bool {
	if h == nil || !h.mayHave(key) {
		return false
	}
	_, has := h.keys[string(key)]
	return has
}

// keeps reports whether replies to reads of key are kept.
func (h *hotSet) keeps(key []byte) bool { return h != nil && h.mayHave(key) && h.keys[string(key)] }

func (h *hotSet) mayHave(key []byte) bool {
	bit := hotBit(key)
	return h.filter[bit>>6]>>(bit&63)&1 != 0
}

// adoptHot makes h the loop's hot set. grown: it has keys that concerned nobody before.
func (l *loop) adoptHot(h *hotSet, grown bool) {
	l.hot = h
	if grown {
		l.hotEpoch++
		l.laneEpoch++
	}
}

// settleStraggler: r was sent when other keys were hot.
func (l *loop) settleStraggler(r *request) {
	r.hotEpoch = l.hotEpoch
	if l.hot == nil {
		return
	}
	for _, st := range l.hot.stripes {
		l.cache.Bump(st)
	}
}

// newHotRule is what holds for all hot keys, nil when there are none. It is the last
// of the rules, of which there are so many before it.
func newHotRule(o *Options, before *ruleSet) (*keyRule, error) {
	if !o.hot() {
		return nil, nil
	}
	rs, err := newRuleSet([]Rule{{Match: hotKeysRule, Commands: o.hotCommands(), TTL: o.Cache.TTL, MaxValue: o.Cache.MaxEntry}})
	if err != nil {
		return nil, err
	}
	r := rs.rules[0]
	r.number = before.count()
	return r, nil
}

// hotKeysRule is the name of that rule among the counters.
const hotKeysRule = "(hot keys)"

// hot reports whether keys may become hot.
func (o *Options) hot() bool {
	return o.Cache.Cache != nil && (o.Hot.Keys > 0 && o.Hot.Sample > 0 || len(o.Hot.Pinned) > 0)
}

// hotCommands are those whose replies are kept for hot keys.
func (o *Options) hotCommands() []string {
	switch {
	case !o.hot():
		return nil
	case len(o.Hot.Commands) > 0:
		return o.Hot.Commands
	}
	return CacheableCommands()
}

// keepHot begins to choose hot keys.
func (s *Server) keepHot(first *loop) {
	if s.hotRule != nil {
		k := &hotKeeper{loop: first}
		k.review()
	}
}

// hotKeeper chooses the hot keys. It belongs to the first loop.
type hotKeeper struct {
	loop    *loop
	present []string // sorted
}

// review looks at what is read most, and comes back.
func (k *hotKeeper) review() {
	l := k.loop
	again := func() { l.nl.AfterFunc(l.srv.opts.Hot.Interval, k.review) }
	gather(l, (*loop).heatKeys, func(parts [][]heat.Key) {
		var next []string
		if l.srv.tracks() {
			next = k.choose(heat.Merge(parts, maxHotKeys))
		}
		k.change(next, again)
	})
}

// incumbent is the advantage of a key that is hot already: two that are read equally often do
// not take turns.
const incumbent = 2

// choose returns the pinned keys and of the others those that are read most, as far as they are
// read often enough by commands whose replies can be kept. Keys that are cached
// anyhow are not among them. keys are sorted, the hottest first.
func (k *hotKeeper) choose(keys []heat.Key) []string {
	l, o := k.loop, &k.loop.srv.opts.Hot
	var free []heat.Key
	for _, h := range keys {
		if _, was := slices.BinarySearch(k.present, h.Name); was {
			h.Rate *= incumbent
		}
		if h.Rate >= float64(o.MinReads) && len(h.Name) > 0 && l.couldKeep(h) && !slices.Contains(o.Pinned, h.Name) {
			free = append(free, h)
		}
	}
	next := slices.Clone(o.Pinned)
	for _, h := range heat.Merge([][]heat.Key{free}, len(free)) {
		if len(next) == len(o.Pinned)+o.Keys {
			break
		}
		if !slices.Contains(next, h.Name) { // the same in another database
			next = append(next, h.Name)
		}
	}
	slices.Sort(next)
	return slices.Compact(next)
}

// change makes next the hot keys, and calls done.
func (k *hotKeeper) change(next []string, done func()) {
	if slices.Equal(next, k.present) {
		done()
		return
	}
	l := k.loop
	between, final := make(map[string]bool), make(map[string]bool)
	var moved []string // that come or go
	grown := false
	for _, key := range k.present {
		_, stays := slices.BinarySearch(next, key)
		between[key] = stays
		if !stays {
			moved = append(moved, key)
		}
	}
	for _, key := range next {
		if _, was := between[key]; !was {
			between[key], grown = false, true
			moved = append(moved, key)
		}
		final[key] = true
	}
	k.present = next
	k.tell(newHotSet(l.cache, between), grown, func() {
		for _, key := range moved {
			l.cache.Bump(l.cache.StripeOf(l.cache.Hash([]byte(key))))
		}
		h := newHotSet(l.cache, final)
		l.srv.hot.Store(h)
		k.tell(h, false, done)
	})
}

// tell has every loop adopt h, and calls done when all have.
func (k *hotKeeper) tell(h *hotSet, grown bool, done func()) {
	gather(k.loop, func(o *loop) struct{} {
		o.adoptHot(h, grown)
		return struct{}{}
	}, func([]struct{}) { done() })
}

// couldKeep reports whether the near-cache would keep replies to the reads of a key, and
// does not do so for another reason.
func (l *loop) couldKeep(h heat.Key) bool {
	key := []byte(h.Name)
	class, _ := coskey.Classify(key)
	return class == coskey.None && l.rules.find(key, anyCommand) == nil && l.srv.commands.Load().bitOf(h.Kind)&l.srv.hotRule.commands != 0
}

// anyCommand are the bits of all commands whose replies can be kept.
const anyCommand = ^uint64(0)

// bitOf stands for the command in a rule; 0: no rule can name it.
func (v *vocabulary) bitOf(kind uint16) uint64 {
	switch rd := v.reads[kind]; {
	case rd != nil:
		return rd.bit
	case v.table.All()[kind].Name == "mget":
		return mgetBit
	}
	return 0
}
