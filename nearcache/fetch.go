package nearcache

import (
	"fmt"
	"time"

	"cosky-proxy/nearcache/lease"
)

// maxDeps is how many stripes an entry can depend on: its key's, two more, and All.
const maxDeps = 4

// dep is a stripe and the word an entry or a fetch saw there.
type dep struct {
	word   Word
	stripe Stripe
}

// Fetch is what must hold for a reply that is on its way to be stored: the words of
// its stripes before it was sent. It is a value owned by one loop; StartFetch sets
// it, and it may be reused when its reply was delivered.
type Fetch struct {
	// Leases cover the fetched key; nil means not needed. Set them between StartFetch
	// and sending: a stream that began to cover the key after the fetch was executed
	// may have missed the change in between.
	Leases [3]*lease.Lease

	id   uint64       // of the question
	home dep          // where the entry will have its way
	deps [maxDeps]dep // the key's stripe first, then others, All last
	more []dep        // what Cover added
	n    int

	// waste counts the fetches of the question, this one not included, whose entries served
	// nobody before a change made them void; one that did serve somebody halves it.
	waste uint8
}

// StartFetch prepares a fetch of q, whose entry shall depend on the key's stripe,
// on up to two more and on All. It must be called before the fetch is sent. It returns
// false when a write is pending on one of them: the caller must bypass the cache.
func (c *Cache) StartFetch(f *Fetch, q *Question, stripes ...Stripe) (ok bool) {
	if len(stripes) > maxDeps-2 {
		panic(fmt.Sprintf("BUG: nearcache: an entry cannot depend on %d extra stripes", len(stripes)))
	}
	f.Leases = [3]*lease.Lease{}
	f.id = q.id
	f.n, f.more = 0, nil
	home := c.home(q)
	f.home = dep{word: c.lines[home].load(), stripe: home}
	f.depend(c, c.StripeOf(q.hash))
	for _, s := range stripes {
		f.depend(c, s)
	}
	f.depend(c, All)
	f.waste = c.wasteOf(q)

	var pending Word
	for _, d := range f.deps[:f.n] {
		pending |= d.word
	}
	return pending&c.rules.bypass == 0
}

func (f *Fetch) depend(c *Cache, s Stripe) {
	f.deps[f.n] = dep{word: c.lines[s].load(), stripe: s}
	f.n++
}

// Current reports whether nothing happened to the fetch's stripes since it started. Only
// then may another reader join it; otherwise that reader may be owed
// something newer and must start a fetch of its own. A fill counts as well: its
// reply may have been newer than the one this fetch will bring.
func (f *Fetch) Current(c *Cache) bool {
	for _, d := range f.deps[:f.n] {
		if (c.lines[d.stripe].load()^d.word)&c.rules.join != 0 {
			return false
		}
	}
	for _, d := range f.more {
		if (Word(c.views[d.stripe].Load())^d.word)&c.rules.hit != 0 {
			return false
		}
	}
	return (c.lines[f.home.stripe].load()^f.home.word)&c.rules.join&fillsMask == 0
}

// Advance tells the fetch about an invalidation push that arrived on the fetch's own
// connection before the first byte of the first of its replies. The node executed
// that change before the fetch, so the reply includes it and the push need not void
// it. before and after are what Push returned. If anything else happened to the stripe
// since the fetch started, the words do not match and the fetch stays void.
func (f *Fetch) Advance(s Stripe, before, after Word) {
	for i := range f.deps[:f.n] {
		if d := &f.deps[i]; d.stripe == s && d.word == before {
			d.word = after
		}
	}
}

// Fill takes e, the reply of f, and reports whether it may be delivered. If nothing
// happened to the key's stripe since f started, it may: whatever older state of the key
// was cached is void when Fill returns, and e is served from now on unless the store
// has no room for it. Otherwise the fetch is lost: e is not stored and nobody may see it.
// The readers that wait for it ask the cache again (Get, join, StartFetch), as if they
// had just come.
//
// A caller that must deliver a lost reply all the same, because what comes later would be
// too new for its reader, calls Bump first: the reply reveals a state that entries and
// fetches of other loops may be behind. It is a correct answer, for a reader that joins a
// fetch does so while it is Current.
//
// Why losers ask again, and do not always take what there is, behind a Bump: on a hot key
// that goes round in circles. After one write, each of N loops has a void fetch in flight and a
// current one behind it. The void reply bumps as it is delivered, which voids the
// current fetches of all other loops, whose readers start further ones, which the void
// replies bump again. A loser that reveals nothing disturbs nobody: the first current
// reply is stored, and whoever comes second is answered from the cache. See Patience for
// readers that lose again and again.
//
// Why each step is there, as interleavings of what loops A and B and the node do:
//
// The fetch races with a change.
//  1. A starts a fetch (epoch 5); the node reads v1.
//  2. A write is executed (v2); its reply or invalidation arrives: epoch 6.
//  3. A's reply arrives: the word is not the one remembered, so v1 is neither stored
//     nor delivered. A's readers fetch again and see v2.
//
// A change arrives after the look at the word: check first, store later leaves a gap.
//  1. A's reply v1 arrives, the word is unchanged.
//  2. The invalidation arrives: epoch 6.
//  3. A stores v1 and delivers it to readers that came before step 2. The entry
//     carries epoch 5, so it was void before it was stored.
//
// Two loops fetch at once; a change came around the proxy, its invalidation is delayed.
//  1. A starts (fills 0), the node reads v1. The change: v2. B starts (fills 0), the
//     node reads v2.
//  2. B fills: fills 1, B's entry is stored, v2 is delivered.
//  3. A fills: fills is not 0, so v1 does not overwrite v2, and A's readers are answered by
//     B's entry. Were A's reply the newer one, B's entry would be too old to be served
//     after it. Nobody knows which, so nobody sees A's reply before a Bump.
//
// One fetch after the other, no epoch in between, the first entry out of sight.
//  1. A fills v1; a third loop has the entry in its front table; the store evicts it.
//  2. The key changes around the proxy; the invalidation is delayed. B misses, fetches
//     and fills v2.
//  3. B's identity takes the key's way in the directory: v1 is void in front tables, in
//     the store and in its queue, before v2 is delivered.
//
// Two fills edit one directory.
//  1. A has v1. It wins the word (fills 1, busy) and halts before it writes its way.
//  2. The key changes around the proxy. B starts a fetch (fills 1), gets v2 and would
//     write its way before A does, whose entry would be valid after v2 was delivered.
//  3. The word is busy, so B has lost: nobody has seen v2 when A's entry becomes valid.
//
// Two questions about one key, whose entries have different homes.
//  1. A fills HGET k f (home h1). The key changes around the proxy.
//  2. HGETALL k is fetched. One connection reads k for all loops: the push about the
//     change was read there first, and voided the entry of h1. Fills of different
//     homes need no order between them; each looks at the key's word after its claim.
//
// A key changes between the claim of a home and the look at the key's word.
//  1. A wins the word of h1 (fills 1, busy). The invalidation arrives: the key's epoch is 6.
//  2. A looks at the key's word, loses, and gives the home back without an entry. Had the
//     invalidation come after the look, A's entry would carry epoch 5, void from the start.
//
// An uncached reply reveals a newer state.
//  1. A bypassing read returns v2 of a change around the proxy; the invalidation is
//     delayed.
//  2. Its loop bumps, then delivers v2. Entries of v1 are void, fetches that read v1
//     cannot be stored or joined; those started later are executed later.
func (c *Cache) Fill(f *Fetch, e *Entry) (deliver bool) {
	l := &c.lines[f.home.stripe]
	if !c.claim(l, f) {
		c.lost.Add(1)
		return false
	}
	c.rules.pause()
	c.outlives(min(e.ends, e.until+c.overtime))
	e.seal(c, f)
	e.way = l.enter(e.id)
	l.word.And(^uint64(busyBit))
	c.rules.pause()

	if c.keep(e) {
		c.fills.Add(1)
	} else {
		c.abandon(e)
		c.drops.Add(1)
	}
	return true
}

// Patience is how many fetches in a row a reader loses before it goes uncached, with Begin and
// End around it like a write's. A plain uncached read would bump and, with enough of them,
// keep the circle going that Fill describes, while a pending one sends everybody past the
// cache for one round trip.
const Patience = 3

// claim makes the caller the only one to edit the directory of l, f's home, if nothing
// was filled there since f started, nor happened to f's key. Where the key's stripe is
// another one, a change of it after the look at it is a change after the claim.
func (c *Cache) claim(l *line, f *Fetch) bool {
	key := &f.deps[0]
	want, same := f.home.word, c.rules.fill&fillsMask
	if f.home.stripe == key.stripe {
		want, same = key.word, c.rules.fill
	}
	for {
		now := Word(l.word.Load())
		if now&c.rules.busy != 0 || (now^want)&same != 0 {
			return false
		}
		if l.word.CompareAndSwap(uint64(now), uint64(now.withFill())) {
			break
		}
	}
	if f.home.stripe != key.stripe && (c.lines[key.stripe].load()^key.word)&c.rules.fill&^fillsMask != 0 {
		l.word.And(^uint64(busyBit))
		return false
	}
	return true
}

// enter gives id a way: the one of the same tag, which is the same key's older
// entry, else an empty one, else the one whose turn it is. The caller holds busy.
func (l *line) enter(id uint64) (way uint8) {
	victim := int(Word(l.word.Load())&fillsMask>>fillsShift) % ways
	for i := range l.ways {
		switch old := l.ways[i].Load(); {
		case old == 0:
			victim = i
		case old>>serialBits == id>>serialBits:
			l.ways[i].Store(id)
			return uint8(i)
		}
	}
	l.ways[victim].Store(id)
	return uint8(victim)
}

// wasteOf judges by the entry that a fetch of q will replace. The directory does not
// matter: an entry that the store has lost says nothing.
func (c *Cache) wasteOf(q *Question) uint8 {
	e := c.store.get(q.id)
	switch {
	case e == nil || !e.answers(q):
		return 0
	case e.used.Load():
		return e.waste / 2
	case e.unchanged(c): // its time was over, or a lease ended: no change has made it void
		return e.waste
	}
	return e.waste + 1
}

// Volatile reports whether what f fetches changes more often than it is read, so that keeping it costs more
// than it brings: the caller should Refuse it for a while. Then it gets half of its chances again.
func (f *Fetch) Volatile() bool {
	if f.waste < mostWaste {
		return false
	}
	f.waste = mostWaste / 2
	return true
}

// mostWaste is how many entries in a row a question may waste.
const mostWaste = 8

// Refuse remembers for ten seconds that the reply to q is not worth fetching for
// the cache because it is larger than MaxEntry, or too volatile. A reply that is too large
// needs a Bump if it is delivered.
func (c *Cache) Refuse(q *Question, now int64) {
	id := q.id
	c.refused[id%refusedSlots].Store(id&^refusedUntil | refusedMillis(now+int64(refuseFor)))
}

// Refused reports whether the reply was lately found too large or too volatile: the caller should
// bypass. It is a hint, kept in a small table that forgets and may, rarely, confuse
// two keys.
func (c *Cache) Refused(q *Question, now int64) bool {
	id := q.id
	v := c.refused[id%refusedSlots].Load()
	left := uint32(v) - uint32(refusedMillis(now)) // milliseconds; wraps to something huge when over
	return v != 0 && (v^id)&^refusedUntil == 0 && left-1 < uint32(refuseFor/time.Millisecond)
}

// refuseFor is how long Refuse is remembered.
const refuseFor = 10 * time.Second

const (
	refusedSlots        = 4096
	refusedUntil uint64 = 1<<32 - 1 // low half of a slot: a deadline in milliseconds, wrapping; high half: of the identity
)

func refusedMillis(now int64) uint64 { return uint64(now/int64(time.Millisecond)) & refusedUntil }
