package proxy

import (
	"bytes"
	"slices"

	"cosky-proxy/cluster/slot"
	"cosky-proxy/lua"
	"cosky-proxy/nearcache"
	"cosky-proxy/nearcache/coskey"
	"cosky-proxy/proxy/resp"
)

// maxShown bounds the keys of one view: each is read when the view is fetched, and looked
// at when it is served.
const maxShown = 4096

// viewFetch is a view on its way. First every key that the script will read is read by itself, on
// the fetch lane, so that the lane hears of its changes: indexes, which name the next
// keys, then what they name. (From Redis 7.2 on reads inside a script would do, before that
// they are not tracked.) The script follows right behind the last of them.
type viewFetch struct {
	nearcache.Fetch
	loop      *loop
	q         *viewQuestion
	lane      *lane
	startedAt int64 // mono
	until     int64 // the view is not kept longer
	waiters   []viewWaiter

	expiring bool // fields of hashes may expire by themselves, and they are shown
	keys     []shownKey
	listed   map[uint64]struct{} // hashes of keys
	asked    int                 // of them, those that were asked for
	missing  int                 // replies to come before the next step
	calling  bool                // the script is sent
	spoiled  bool                // something happened after which the reply cannot be kept or shared
	failed   bool                // so much that it need not even be asked for
	vain     bool                // what the script reads cannot be watched: asking again soon would be no use
}

// shownGroups are the groups of keys that views may show.
var shownGroups = [...]coskey.Class{coskey.InstanceIndex, coskey.Instance, coskey.Topology}

// shownKey is a key that the script reads, with what its own read said.
type shownKey struct {
	key      []byte
	hash     uint64
	class    coskey.Class
	service  []byte // of an instance or the index of a service
	instance []byte
	heard    bool  // its read is answered: an invalidation is about a later change
	sentAt   int64 // of an instance
	pttl     int64 // of an instance
	lasting  bool  // of an instance: its fields do not expire by themselves, or are not shown
	member   bool  // of the index of a service: it has the instance that was asked for
}

// newViewFetch prepares a fetch; nil if nothing would announce changes. If a write forbids that its reply is
// kept, or it changes more often than it is read, it is delivered only: compared with a call past the cache, which may
// show any instance of the namespace, that leaves other views alone.
func (l *loop) newViewFetch(q *viewQuestion) *viewFetch {
	now := l.now()
	if l.cache.Refused(&q.Question, now) {
		return nil
	}
	q.args = slices.Clone(l.parse(q.raw)) // into bytes of its own, see newViewQuestion
	ns := q.namespace()
	t := l.target(ns)
	if coskey.HasGroup(ns) || l.clusters && len(slot.Tag(ns)) == len(ns) { // its keys would be of several slots
		return nil
	}
	n, cause := l.owner(t.slot)
	if cause != "" || n.info == nil || !n.info.Vouched(now) {
		return nil
	}
	f := &viewFetch{loop: l, q: q, startedAt: now, listed: make(map[uint64]struct{})}
	f.spoiled = l.cache.Refused(l.fickle(q), now)
	f.start()
	if f.failed {
		f.tell(nil)
		return nil
	}
	p := policy{class: f.keys[0].class}
	ln, leases, ready := l.streams(n, q.DB, &p, f.keys[0].key)
	if !ready {
		f.close()
		return nil
	}
	f.lane, f.Leases = ln, leases
	fieldsExpire := l.srv.abilities.Load().fieldsExpire
	f.expiring = fieldsExpire && (q.is(lua.Instances) || q.is(lua.Instance))
	life := l.life(&p)
	if fieldsExpire && q.is(lua.Topology) { // nobody asks when
		life = min(life, int64(l.srv.opts.Cache.MaxStaleness))
	}
	if f.until = now + life; f.until <= now {
		f.close()
		return nil
	}
	return f
}

// start remembers the words of what may be changed without being named, and lists the first keys.
func (f *viewFetch) start() {
	c, q := f.loop.cache, f.q
	ns := q.namespace()
	f.spoiled = !c.StartFetch(&f.Fetch, &q.Question) || f.spoiled
	for _, class := range shownGroups {
		f.cover(c.Hash(coskey.AppendGroup(nil, class, ns, nil)))
	}
	switch q.script.Answer {
	case lua.Instances:
		f.add(coskey.InstanceIndex, q.arg(1), nil)
	case lua.Instance, lua.InstanceExpiry:
		f.add(coskey.InstanceIndex, q.arg(1), nil)
		f.add(coskey.Instance, q.arg(1), q.arg(2))
	case lua.InstanceCount:
		f.add(coskey.ServiceIndex, nil, nil)
	case lua.Topology:
		f.add(coskey.TopologyIndex, nil, nil)
	}
}

// cover remembers the word of a name. While it is being written nothing can be kept.
func (f *viewFetch) cover(hash uint64) {
	c := f.loop.cache
	f.spoiled = !f.Cover(c, c.ViewStripe(hash)) || f.spoiled
}

// fickle is the question by which it is remembered that the reply to q changes more often than it is
// read. The one by which it is remembered that q cannot be kept at all is q itself.
func (l *loop) fickle(q *viewQuestion) *nearcache.Question {
	f := l.cache.Ask(q.DB, fickleKind, q.Key, nil)
	return &f
}

// add lists a key, and remembers the word of its stripe.
func (f *viewFetch) add(class coskey.Class, service, instance []byte) {
	ns := f.q.namespace()
	id := service
	if class == coskey.Instance {
		id = instance
	}
	k := shownKey{key: coskey.AppendKey(nil, class, ns, id), class: class, service: service, instance: instance}
	k.hash = f.loop.cache.Hash(k.key)
	if _, twice := f.listed[k.hash]; twice {
		return
	}
	if is, n := coskey.Classify(k.key); is != class || n != len(ns) || len(f.keys) == maxShown {
		f.failed, f.vain = true, true // what else happens to such a key is not noticed, or there are too many
		return
	}
	f.cover(k.hash)
	if class == coskey.Instance {
		f.loop.srv.shown.add(k.hash, 1)
	}
	f.keys = append(f.keys, k)
	f.listed[k.hash] = struct{}{}
}

// close ends the fetch's interest in the keys.
func (f *viewFetch) close() {
	for i := range f.keys {
		if f.keys[i].class == coskey.Instance {
			f.loop.srv.shown.add(f.keys[i].hash, -1)
		}
	}
	f.keys = nil
}

// proceed asks for the keys that are known by now; if they are the last, for the script's reply.
func (f *viewFetch) proceed() {
	l := f.loop
	leaves := true
	for ; f.asked < len(f.keys); f.asked++ {
		leaves = f.ask(f.asked) && leaves
	}
	if !leaves {
		return
	}
	f.calling = true
	f.lane.teach([]byte(f.q.script.SHA1))
	r := f.request(callScript)
	r.limit = l.srv.opts.Cache.MaxEntry
	f.lane.send(r, f.q.raw)
}

// callScript is the index of the script's reply among those of a fetch; the others are
// those of keys.
const callScript = -1

// askEncoding is added to the index of a key for what asks how it is stored.
const askEncoding = maxShown

func (f *viewFetch) request(index int) *request {
	r := f.loop.newRequest(nil, nil)
	r.sink, r.index, r.alone = f, int32(index), true
	f.missing++
	return r
}

// ask reads the key with the given index, and reports whether it names no further keys.
func (f *viewFetch) ask(i int) (leaf bool) {
	l, k := f.loop, &f.keys[i]
	verb := ""
	switch {
	case k.class == coskey.Instance:
		verb, leaf = "PTTL", true
		k.sentAt, k.lasting = l.now(), !f.expiring
	case k.class == coskey.Topology:
		verb, leaf = "EXISTS", true
	case k.class == coskey.TopologyIndex:
		verb = "HKEYS"
	case k.class == coskey.InstanceIndex && (f.q.is(lua.Instance) || f.q.is(lua.InstanceExpiry)):
		l.enc = resp.AppendBulkString(resp.AppendArray(l.enc[:0], 3), "SISMEMBER")
		l.enc = resp.AppendBulk(resp.AppendBulk(l.enc, k.key), f.q.arg(2))
		f.lane.send(f.request(i), l.enc)
		return true
	default:
		verb = "SMEMBERS"
	}
	l.enc = resp.AppendBulk(resp.AppendBulkString(resp.AppendArray(l.enc[:0], 2), verb), k.key)
	f.lane.send(f.request(i), l.enc)
	if k.class == coskey.Instance && f.expiring {
		l.enc = appendObjectEncoding(l.enc[:0], k.key)
		f.lane.send(f.request(i+askEncoding), l.enc)
	}
	return leaf
}

// changed: an invalidation has arrived. If the key's own read has been answered, the lane
// hears of no further change of it.
func (f *viewFetch) changed(ln *lane, hash uint64) {
	if f.lane != ln {
		return
	}
	for i := range f.keys {
		if k := &f.keys[i]; k.hash == hash && k.heard {
			f.spoiled = true
		}
	}
}

// renewed: a renewal of the key has been answered. The script may have been executed before.
func (f *viewFetch) renewed(hash uint64) {
	if !f.calling {
		return
	}
	for i := range f.keys {
		if f.keys[i].hash == hash {
			f.spoiled = true
		}
	}
}

// deliver takes the reply of a key's read, or the script's.
func (f *viewFetch) deliver(l *loop, r *request, reply []byte) {
	index, overrun := int(r.index), r.overrun
	l.release(r)
	f.missing--
	if index == callScript {
		l.views.remove(f)
		if overrun {
			f.failed, f.vain = true, true
		}
		f.land(reply)
		return
	}
	f.learn(index, reply)
	if f.missing > 0 || f.calling {
		return
	}
	if f.failed || f.lane.closed {
		l.views.remove(f)
		f.giveUp()
		return
	}
	f.proceed()
}

// learn notes what the read of a key said.
func (f *viewFetch) learn(i int, reply []byte) {
	if i >= askEncoding {
		f.keys[i-askEncoding].lasting = lasts(reply)
		return
	}
	k := &f.keys[i]
	kind, n, size := resp.ReadHeader(reply)
	if reply[0] == '-' || size == 0 {
		f.failed = true
		return
	}
	k.heard = true
	switch k.class {
	case coskey.Instance:
		k.pttl = n
		return
	case coskey.Topology:
		return
	}
	if kind == ':' { // SISMEMBER
		k.member = n == 1
		return
	}
	class, rest := k.class, reply[size:]
	service := k.service
	own := bytes.Clone(rest) // the reply dies
	for ; n > 0 && !f.failed; n-- {
		name, size := resp.ReadBulk(own)
		if size == 0 {
			f.failed = true
			return
		}
		own = own[size:]
		switch class {
		case coskey.InstanceIndex:
			f.add(coskey.Instance, service, name)
		case coskey.ServiceIndex:
			f.add(coskey.InstanceIndex, name, nil)
		case coskey.TopologyIndex:
			f.add(coskey.Topology, name, nil)
		}
	}
}

// land keeps the reply if it can, and answers everybody.
func (f *viewFetch) land(reply []byte) {
	l := f.loop
	if f.failed || reply[0] == '-' {
		f.giveUp()
		return
	}
	v := &view{q: f.q, lane: f.lane, until: f.until, usedAt: l.now()}
	as := v.show(f, reply)
	f.reveal(as)
	keep := as && !f.spoiled && f.Current(l.cache)
	e := v.newEntry(reply)
	if e == nil {
		f.giveUp()
		return
	}
	if !f.spoiled && f.Volatile() {
		l.cache.Refuse(l.fickle(f.q), l.now())
		l.stats.Volatile++
	}
	if len(f.waiters) > 1 {
		e.Use()
	}
	if f.removed(reply) {
		f.revealRemoval()
	} else if keep && l.views.sameKeys(f) && l.cache.Fill(&f.Fetch, e) {
		v.entry = e
		l.views.keep(v, f)
	}
	f.tell(e)
}

// reveal voids what is behind the reply, before anybody gets it. If it is not what the keys'
// own reads said, it may show others, too.
func (f *viewFetch) reveal(asRead bool) {
	l, c, ns := f.loop, f.loop.cache, f.q.namespace()
	if l.srv.tracks() { // the lane has brought the invalidations of all that it shows
		if !asRead || f.spoiled {
			l.views.settle()
			return
		}
		for i := range f.keys {
			l.views.reveal(f.lane, f.keys[i].hash)
		}
		return
	}
	for i := range f.keys {
		c.Bump(c.StripeOf(f.keys[i].hash))
		f.Reveal(c, c.ViewStripe(f.keys[i].hash))
	}
	if asRead {
		return
	}
	for _, class := range shownGroups {
		group := c.Hash(coskey.AppendGroup(nil, class, ns, nil))
		c.Bump(c.StripeOf(group))
		c.Bump(c.ViewStripe(group))
	}
}

// giveUp lets everybody call the script himself: that knows how to follow redirects and how to
// pass on errors and long replies.
func (f *viewFetch) giveUp() { f.tell(nil) }

func (f *viewFetch) tell(e *nearcache.Entry) {
	f.close()
	if f.vain {
		f.loop.cache.Refuse(&f.q.Question, f.loop.now())
	}
	waiters := f.waiters
	f.waiters = nil
	for _, w := range waiters {
		if e != nil && w.joinedAt > f.startedAt && w.joinedAt > e.Ends() { // see fetch.tooLateFor
			f.loop.view(f.q, w.done)
			continue
		}
		w.done(e)
	}
}

// viewWaiter is who waits for a view.
type viewWaiter struct {
	done     func(*nearcache.Entry) // nil: the script has to be called
	joinedAt int64                  // mono
}

// removed reports whether the script has met an expired instance and removed it.
func (f *viewFetch) removed(reply []byte) bool {
	_, n, _ := resp.ReadHeader(reply)
	switch f.q.script.Answer {
	case lua.Instances, lua.InstanceCount:
		instances := int64(0)
		for i := range f.keys {
			if f.keys[i].class == coskey.Instance {
				instances++
			}
		}
		return n != instances
	case lua.Instance:
		return f.keys[0].member && n == 0
	case lua.InstanceExpiry:
		return f.keys[0].member && n == -2
	}
	return false
}

// revealRemoval voids what is cached of indexes that the script has changed.
func (f *viewFetch) revealRemoval() {
	c := f.loop.cache
	for i := range f.keys {
		if k := &f.keys[i]; k.class == coskey.InstanceIndex {
			c.Bump(c.StripeOf(k.hash))
			c.Bump(c.ViewStripe(k.hash))
		}
	}
}

// show lists what the reply shows, and reports whether the view can be kept.
func (v *view) show(f *viewFetch, reply []byte) (ok bool) {
	v.parts = make([]viewPart, len(f.keys))
	byID := make(map[string]int)
	for i := range f.keys {
		k := &f.keys[i]
		v.parts[i].until = never
		if k.class != coskey.Instance {
			continue
		}
		v.parts[i].until = deadline(k.sentAt, k.pttl)
		if !k.lasting {
			v.parts[i].until = min(v.parts[i].until, k.sentAt+int64(f.loop.srv.opts.Cache.MaxStaleness))
		}
		byID[string(k.instance)] = i
	}
	switch v.q.script.Answer {
	case lua.Instances:
		return v.showInstances(f, reply, byID)
	case lua.Instance:
		in, ok := readInstance(reply)
		last := &f.keys[len(f.keys)-1]
		return ok && in.size == len(reply) && (in.size == len("*0\r\n") || in.shows(last.instance, last.pttl))
	case lua.InstanceExpiry:
		last := &f.keys[len(f.keys)-1]
		return reply[0] == ':' && (last.pttl < 0 || last.pttl >= 500)
	}
	return true
}

// showInstances finds each instance of the index in the reply. Instances say themselves who they are;
// one that does not, or says something else, cannot be kept.
func (v *view) showInstances(f *viewFetch, reply []byte, byID map[string]int) bool {
	kind, n, pos := resp.ReadHeader(reply)
	if kind != '*' || pos == 0 || int(n) != len(byID) {
		return false
	}
	for ; n > 0; n-- {
		in, ok := readInstance(reply[pos:])
		i, known := byID[string(in.id)]
		if !ok || !known {
			f.vain = true
			return false
		}
		if !in.shows(f.keys[i].instance, f.keys[i].pttl) {
			return false
		}
		delete(byID, string(in.id))
		v.parts[i].start, v.parts[i].end = pos, pos+in.size
		pos += in.size
	}
	return pos == len(reply)
}

// remove takes a fetch off those in flight.
func (vs *views) remove(f *viewFetch) {
	if i := slices.Index(vs.fetches, f); i >= 0 {
		vs.fetches = slices.Delete(vs.fetches, i, i+1)
	}
}

// sameKeys reports whether what is watched under the hashes of f's keys are these keys.
func (vs *views) sameKeys(f *viewFetch) bool {
	for i := range f.keys {
		if w := vs.watched[watchID{f.keys[i].hash, f.lane}]; w != nil && !bytes.Equal(w.key, f.keys[i].key) {
			return false
		}
	}
	return true
}

// keep makes v, which f has brought, the view of its question, and has its keys watched.
func (vs *views) keep(v *view, f *viewFetch) {
	for i := range f.keys {
		k := &f.keys[i]
		id := watchID{k.hash, f.lane}
		w := vs.watched[id]
		if w == nil {
			w = &watch{id: id, key: k.key, class: k.class, service: k.service, instance: k.instance}
			vs.watched[id] = w
		}
		if k.class == coskey.Instance {
			vs.loop.srv.shown.add(k.hash, 1)
		}
		w.views = append(w.views, v)
		v.parts[i].watch = w
	}
	vs.add(v)
}
