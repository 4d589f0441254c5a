package proxy

import (
	"bytes"
	"time"

	"cosky-proxy/nearcache"
	"cosky-proxy/nearcache/coskey"
	"cosky-proxy/nearcache/lease"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// fetch is one read for the near-cache under way, shared by every client of the
// loop that asks for the same meanwhile. It is sent as [read, PTTL], and what else there is to ask of
// a hash (fieldexpiry.go), on a fetch lane, whose invalidations arrive in order with the replies. When another loop is the
// curator of its key, that loop sends it, see errand.
type fetch struct {
	nearcache.Fetch
	question  nearcache.Question
	read      *read
	shape     nearcache.Shape
	policy    policy
	next      *fetch          // another one of the same key
	raw       []byte          // the read, for those who have to repeat it
	grounds   [3]*lease.Lease // what its Leases will be
	startedAt int64           // when it was asked for first; of another loop's answer: see outcome
	sentAt    int64           // by the curator, the same if that is its loop
	until     int64           // no entry of it lives longer
	waiters   fifo
	errands   []errand
	onEnd     []func(reply []byte) // told when it is over; nil: there is no reply
	parts     []part
	lane      *lane  // nil: of another loop
	missing   int    // replies to come
	body      []byte // the read's reply
	pttl      int64  // PTTL's
	fields    fieldExpiry
	failed    bool // it was an error, or too long, or it is not known until when it holds
	tooBig    bool
	landed    bool // the read's reply has arrived: later invalidations are about later changes
}

// fetches are the fetches of a loop in flight, by their key, the newest first.
type fetches map[fetchKey]*fetch

type fetchKey struct {
	hash uint64
	db   int32
}

func keyOf(q *nearcache.Question) fetchKey { return fetchKey{q.Hash(), q.DB} }

// of returns the newest fetch of q, and whether there are fetches of the same key for
// another question.
func (fs fetches) of(q *nearcache.Question) (f *fetch, others bool) {
	for o := fs[keyOf(q)]; o != nil; o = o.next {
		switch {
		case !o.question.Same(q):
			others = true
		case f == nil:
			f = o
		}
	}
	return f, others
}

func (fs fetches) add(f *fetch) {
	id := keyOf(&f.question)
	f.next = fs[id]
	fs[id] = f
}

func (fs fetches) remove(f *fetch) {
	id := keyOf(&f.question)
	first := fs[id]
	if first == f {
		if f.next == nil {
			delete(fs, id)
		} else {
			fs[id] = f.next
		}
		return
	}
	for o := first; o != nil; o = o.next {
		if o.next == f {
			o.next = f.next
			return
		}
	}
}

// cachedRead serves a read from memory if it can, joins or starts a fetch if it may, and
// passes the read on otherwise.
func (s *session) cachedRead(cmd *command.Command, args [][]byte, raw []byte) bool {
	l := s.loop
	rd := l.reads[cmd.ID]
	if rd.whole && s.unhurried() && s.recall(cmd, args) {
		return true
	}
	if !rd.keeps(args) {
		return s.forward(cmd, args, raw)
	}
	p := l.policyOf(rd.bit, args[1])
	if !p.keeps {
		return s.forward(cmd, args, raw)
	}
	if l.guard != nil && !l.guard.vouches(s, cmd, args) {
		return s.lastWord(cmd, args, raw)
	}
	q := l.cache.Ask(s.db, nearcache.Kind(cmd.ID), args[1], l.restOf(rd, args))
	if s.tx != nil || s.home != nil || s.behind(&q) {
		l.stats.Bypasses++
		return s.forward(cmd, args, raw)
	}
	// A view that is on its way may show a newer state of the key than memory has now.
	if s.viewing > 0 && s.drain() {
		return false
	}
	// A read of this client that was sent to Redis must not be overtaken by an entry that
	// was there before, but came to light only now: it may be older.
	sent := false
	if s.fetching > 0 {
		f, others := l.fetches.of(&q)
		if others {
			return !s.drain()
		}
		sent = f != nil
	}
	if !sent {
		if e := l.reader.Get(&q, l.now()); e != nil {
			if rd.whole && e.Label() != groundsVary {
				l.reader.Remember(&q)
			}
			l.countRule(&p, 1, 0)
			s.hit(cmd, e)
			return true
		}
		if e := l.standIn(l.target(q.Key).slot, &q); e != nil {
			l.stats.StaleHits++
			s.serve(cmd, e)
			return true
		}
	}
	if s.fetching >= maxFetching {
		return !s.drain()
	}
	if s.await(cmd, &fetch{question: q, read: rd, shape: rd.shapeOf(args), policy: p, raw: raw}) {
		l.stats.Misses++
		l.countRule(&p, 0, 1)
		return true
	}
	l.stats.Bypasses++
	return s.passOn(cmd, args, raw)
}

// recall answers a read of a whole key with an entry that was a hit lately. It is cachedRead without
// what need not be found out again:
//
//   - whether replies to this read are kept, and by which rule: the entry's label says so, as long as that
//     never changes (groundsOf);
//   - where the entry is: Reader.Recall has a guess, and serves it on the conditions of Reader.Get;
//   - what the entry must not overtake: nothing of the session is under way (unhurried). It is not
//     enough to look for the entry's key among that, for it may belong to a group that a script shows.
//
// What may change is looked at as ever: what the client may see, and what voids entries.
func (s *session) recall(cmd *command.Command, args [][]byte) bool {
	l := s.loop
	e := l.reader.Recall(s.db, nearcache.Kind(cmd.ID), args[1], l.now())
	if e == nil || e.Label() == groundsVary || l.guard != nil && !l.guard.vouches(s, cmd, args) {
		return false
	}
	l.countGrounds(e.Label())
	s.hit(cmd, e)
	return true
}

// maxFetching bounds the fetches one client waits for. Their replies, up to max_entry
// each, arrive on a connection that does not wait for anybody who reads slowly.
const maxFetching = 8

// hit answers from memory.
func (s *session) hit(cmd *command.Command, e *nearcache.Entry) {
	s.loop.stats.Hits++
	s.serve(cmd, e)
}

// serve answers with an entry.
func (s *session) serve(cmd *command.Command, e *nearcache.Entry) {
	l := s.loop
	l.stats.Commands[cmd.ID].Calls++
	if s.stalledAt != 0 {
		s.noteStalled(nil, fromCache)
	}
	if s.mute.on {
		return
	}
	if s.head == nil {
		s.conn.Out = e.AppendReply(s.conn.Reserve(e.Size()), s.resp3)
		s.conn.Dirty()
		return
	}
	r := l.newRequest(s, nil)
	s.enqueue(r)
	r.buf = e.AppendReply(r.buf[:0], s.resp3)
	r.state = replyReady
	s.hold(len(r.buf))
}

// await makes the session wait for what like describes: a fetch in flight that is
// still current, or a new one. False: it cannot be cached at the moment.
func (s *session) await(cmd *command.Command, like *fetch) bool {
	l := s.loop
	f := l.fetchOf(like)
	if f == nil {
		return false
	}
	r := l.newRequest(s, cmd)
	r.sentAt = l.now()
	r.slot, r.keyed = l.target(like.question.Key).slot, l.clusters
	s.enqueue(r)
	f.join(r)
	return true
}

// fetchOf is the fetch in flight if it is still current, else a new one; nil if
// there can be none.
func (l *loop) fetchOf(like *fetch) *fetch {
	if f, _ := l.fetches.of(&like.question); f != nil && l.joinable(&f.Fetch, f.startedAt) {
		l.stats.Joined++
		return f
	}
	return l.startFetch(like)
}

// joinable reports whether a fetch in flight may answer somebody who asks now. What happens to the key around the proxy
// is not heard of while its connection is silent, so for how long entries may be served, the fetch may be joined.
func (l *loop) joinable(f *nearcache.Fetch, startedAt int64) bool {
	return f.Current(l.cache) && l.now()-startedAt <= int64(l.srv.opts.Cache.MaxStaleness)
}

func (f *fetch) join(r *request) {
	r.sess.fetching++
	r.awaits = awaitsFetch
	f.waiters.push(r)
}

// startFetch starts a fetch like that one, if a write does not forbid it and a live
// source of invalidations covers the key.
func (l *loop) startFetch(like *fetch) *fetch {
	if l.cache.Refused(&like.question, l.now()) {
		return nil
	}
	f := &fetch{question: like.question, read: like.read, shape: like.shape, policy: like.policy, raw: like.raw, startedAt: l.now()}
	curator := l.curator(&f.policy, f.question.Key)
	if curator == l && !f.prepare(l) || !f.begin(l) {
		return nil
	}
	f.question, f.raw = f.question.Clone(), bytes.Clone(f.raw)
	if curator == l {
		f.ask(l)
	} else {
		f.entrust(l, curator)
	}
	l.fetches.add(f)
	return f
}

// prepare finds the way of a fetch and what will announce changes of its key; false
// when either is not there.
func (f *fetch) prepare(l *loop) bool {
	now, key := l.now(), f.question.Key
	n, cause := l.owner(l.target(key).slot)
	if cause != "" || n.info == nil || !n.info.Vouched(now) {
		return false
	}
	ln, leases, ready := l.streams(n, f.question.DB, &f.policy, key)
	if !ready {
		return false
	}
	f.lane, f.grounds, f.sentAt = ln, leases, now
	f.until = now + l.life(&f.policy)
	return f.until > now
}

// begin remembers the words of the stripes on which the reply will depend.
func (f *fetch) begin(l *loop) (ok bool) {
	if group, in := l.groupStripe(f.question.Key); in {
		ok = l.cache.StartFetch(&f.Fetch, &f.question, group)
	} else {
		ok = l.cache.StartFetch(&f.Fetch, &f.question)
	}
	f.Leases = f.grounds
	return ok
}

// streams finds what will announce changes of key: the fetch lane it is read on and
// the lease of CoSky's events, each only as far as it is a source. What is missing is
// opened, and ready is false until it is there and alive. A policy that asks for no
// source needs the lane and an owner that vouches for the slot; what the lane announces all the same it has to
// announce for ever, because scripts rely on it for keys that they do not name (loop.raise).
func (l *loop) streams(n *node, db int32, p *policy, key []byte) (ln *lane, leases [3]*lease.Lease, ready bool) {
	tracks, listens := l.srv.tracks(), l.srv.listens() && p.class.Covered() != coskey.Uncovered && !p.bare()
	ln = n.fetchLane(db)
	if listens { // before the lane is there, so that both are opened at once
		leases[2] = l.srv.eventLease(n.addr, key)
	}
	if ln == nil {
		return nil, leases, false
	}
	leases[0] = n.info.Vouch
	if tracks {
		leases[1] = ln.lease
	}
	now := l.now()
	switch {
	case p.bare() && !tracks:
		return ln, leases, true
	case !tracks && (!listens || p.rule != nil), tracks && !ln.lease.Alive(now):
		return nil, leases, false
	case listens && (leases[2] == nil || !leases[2].Alive(now)):
		return nil, leases, false
	}
	return ln, leases, true
}

// life is how long an entry may live, in nanoseconds.
func (l *loop) life(p *policy) int64 {
	o := &l.srv.opts.Cache
	life := o.TTL
	if p.rule != nil {
		life = p.rule.TTL
	}
	switch {
	case p.bare(), l.srv.tracks():
	case p.class.Covered() == coskey.Complete:
		life = min(life, o.PubSubTTL)
	default:
		life = min(life, o.PubSubTTL, o.MaxStaleness)
	}
	return int64(life)
}

// fetchLane is the connection for reads of a database, or nil while it is not
// ready; asking for it opens it.
func (n *node) fetchLane(db int32) *lane {
	if ln := n.fetch[db]; ln != nil {
		if ln.ready && !ln.full() {
			return ln
		}
		return nil
	}
	if n.avoided() || n.loop.now() < n.refetchAt {
		return nil
	}
	n.fetch[db] = n.open(laneKey{db: db, resp3: n.loop.srv.tracks()}, laneFetch)
	n.loop.srv.fetchLanes.Add(1)
	return nil
}

// The replies of a fetch, by request.index. The last three are about a hash, see fieldexpiry.go.
const (
	fetchRead = iota
	fetchPTTL
	fetchEncoding
	fetchNames
	fetchExpiry
)

func (f *fetch) ask(l *loop) {
	f.send(l, fetchRead, f.raw, f.limit(l))
	l.enc = resp.AppendArray(l.enc[:0], 2)
	l.enc = resp.AppendBulkString(l.enc, "PTTL")
	l.enc = resp.AppendBulk(l.enc, f.question.Key)
	f.send(l, fetchPTTL, l.enc, 0)
	f.askOfFields(l)
}

// send asks for one of the replies; limit is the most bytes it may have, 0: any number.
func (f *fetch) send(l *loop, index int32, raw []byte, limit int) {
	r := l.newRequest(nil, nil)
	r.sink, r.index, r.limit, r.alone = f, index, limit, true
	f.missing++
	f.lane.send(r, raw)
}

// limit is the size of the largest reply that is kept.
func (f *fetch) limit(l *loop) int {
	most := l.srv.opts.Cache.MaxEntry
	if f.policy.rule != nil {
		most = min(most, f.policy.rule.MaxValue)
	}
	return most
}

// deliver takes the replies of a fetch; with the last one the fetch is over.
func (f *fetch) deliver(l *loop, r *request, reply []byte) {
	f.missing--
	switch r.index {
	case fetchRead:
		f.landed = true
		f.tooBig = r.overrun || len(reply) > f.limit(l)
		f.failed = f.tooBig || reply[0] == '-'
		if !f.tooBig {
			f.body = append(f.body, reply...)
		}
	case fetchPTTL:
		f.failed = f.failed || reply[0] == '-'
		_, f.pttl, _ = resp.ReadHeader(reply)
	default:
		if !f.failed {
			f.learnOfFields(l, r, reply)
		}
	}
	l.release(r)
	if f.missing > 0 {
		return
	}
	l.fetches.remove(f)
	l.revealToViews(f)
	if f.failed {
		f.giveUp(l)
	} else {
		f.land(l)
	}
	f.ended()
}

// revealToViews voids the views that are behind what f has read.
func (l *loop) revealToViews(f *fetch) {
	hash := f.question.Hash()
	if l.srv.tracks() {
		l.views.reveal(f.lane, hash)
	} else if answered(f.question.Key) {
		l.cache.Bump(l.cache.ViewStripe(hash))
	}
}

// land stores the reply if it is still true, and answers everybody.
func (f *fetch) land(l *loop) {
	e, err := f.entry()
	if err != nil {
		f.giveUp(l)
		return
	}
	if f.Volatile() {
		l.cache.Refuse(&f.question, l.now())
		l.stats.Volatile++
	}
	if f.waiters.len+len(f.errands) > 1 {
		e.Use()
	}
	e.SetLabel(l.groundsOf(f))
	filled := l.cache.Fill(&f.Fetch, e)
	f.report(outcome{entry: e, asked: f.startedAt, filled: filled})
	f.hand(l, e, filled)
}

// hand answers those who wait with the entry, or, when it could not be filled, has
// them ask again.
func (f *fetch) hand(l *loop, e *nearcache.Entry, filled bool) {
	waiters := f.leave()
	if !filled {
		f.lose(l, waiters, e)
		f.share(l, nil)
		return
	}
	f.share(l, e)
	for waiters.head != nil {
		if r := waiters.pop(); f.tooLateFor(r, e) {
			l.askLater(r, f)
		} else {
			l.deliverEntry(r, e)
		}
	}
}

// tooLateFor reports whether r has joined when what e shows may have expired already. That is no change that
// anybody reports here, so the fetch was Current. Who was there when it was sent takes what it brings.
func (f *fetch) tooLateFor(r *request, e *nearcache.Entry) bool {
	return r.sess != nil && r.sentAt > f.startedAt && r.sentAt > e.Ends()
}

// askLater has r ask again. Its client may wait for a later fetch of the question as well, which was sent after r came,
// and must not be answered with something older there.
func (l *loop) askLater(r *request, f *fetch) {
	if g, _ := l.fetches.of(&f.question); g != nil {
		r.sess.fetching++
		r.awaits = awaitsFetch
		g.waiters.pushFront(r)
		return
	}
	l.askAgain(r, f)
}

// leave empties the fetch of those who wait for it.
func (f *fetch) leave() fifo {
	waiters := f.waiters
	f.waiters = fifo{}
	for r := waiters.head; r != nil; r = r.laneNext {
		if r.sess != nil {
			r.sess.fetching--
			r.awaits = awaitsNothing
		}
	}
	return waiters
}

func (l *loop) deliverEntry(r *request, e *nearcache.Entry) {
	l.countReply(r.cmd, r.sentAt, false)
	r.origin = fromCache
	l.out = e.AppendReply(l.out[:0], r.resp3)
	l.finish(r, l.out)
}

// lose: something happened to the key while the fetch was under way, so its
// readers ask again, as if they had just come (see nearcache.Cache.Fill). A reader whose
// client waits for a later fetch as well must not end up with a newer answer than
// that one brings; it takes what there is, which reveals the key's state.
func (f *fetch) lose(l *loop, waiters fifo, e *nearcache.Entry) {
	for r := waiters.head; r != nil; r = r.laneNext {
		r.overtaken = r.sess != nil && r.sess.fetching > 0
	}
	bumped := false
	for waiters.head != nil {
		r := waiters.pop()
		switch {
		case r.sess == nil:
			l.release(r)
		case r.overtaken && f.tooLateFor(r, e):
			l.askLater(r, f)
		case r.overtaken:
			if !bumped {
				l.cache.Bump(l.cache.StripeOf(f.question.Hash()))
				bumped = true
			}
			l.deliverEntry(r, e)
		default:
			l.askAgain(r, f)
		}
	}
}

func (l *loop) askAgain(r *request, f *fetch) {
	if r.sess.fetching == 0 {
		if e := l.reader.Get(&f.question, l.now()); e != nil {
			l.deliverEntry(r, e)
			return
		}
	}
	if r.retries++; r.retries < nearcache.Patience {
		if g := l.fetchOf(f); g != nil {
			g.join(r)
			return
		}
	}
	l.bypass(r, f, true)
}

// entry builds the entry; its life ends with the key's, or that of the first field it shows.
func (f *fetch) entry() (*nearcache.Entry, error) {
	ends := f.fields.ends()
	switch {
	case f.pttl >= 0:
		ends = min(ends, endOf(f.sentAt, f.pttl))
	case f.pttl == -2 && !f.read.showsAbsence(f.body):
		ends = 0 // expired between the two commands
	}
	e, err := nearcache.NewEntry(&f.question, f.shape, f.body, min(f.until, ends))
	if err == nil {
		e.Outlive(ends)
	}
	return e, err
}

// endOf is when something ends that had pttl milliseconds left when it was asked for at sentAt or later
// (mono nanoseconds). Redis counts whole milliseconds, so one may have begun before that.
func endOf(sentAt, pttl int64) int64 { return sentAt + (pttl-1)*int64(time.Millisecond) }

// giveUp ends a fetch that brought nothing to keep. A wrong type is the answer for
// everybody who waits; otherwise they ask for themselves, on the ordinary way, which
// knows how to follow redirects and how to pass on errors and long replies.
func (f *fetch) giveUp(l *loop) {
	if f.tooBig || f.fields.unknown {
		l.cache.Refuse(&f.question, l.now())
	}
	f.report(outcome{body: f.body})
	waiters := f.leave()
	f.refuse(l)
	if bytes.HasPrefix(f.body, []byte("-WRONGTYPE ")) {
		l.cache.Bump(l.cache.StripeOf(f.question.Hash())) // it says what the key is now
		for waiters.head != nil {
			r := waiters.pop()
			l.countReply(r.cmd, r.sentAt, true)
			r.origin = fromCache
			l.finish(r, f.body)
		}
		return
	}
	for waiters.head != nil {
		if r := waiters.pop(); r.sess != nil {
			l.bypass(r, f, false)
		} else {
			l.release(r)
		}
	}
}

// bypass sends a read that waited in vain for a fetch to the owner of its key.
// pending keeps all others past the cache until it is answered.
func (l *loop) bypass(r *request, f *fetch, pending bool) {
	if l.srv.opts.Cache.StaleFor > 0 {
		r.raw = append(r.raw[:0], f.raw...)
		r.spared = true
		if l.standInFor(r) {
			return
		}
	}
	n, cause := l.owner(r.slot)
	var ln *lane
	if cause == "" {
		ln, cause = n.lane(r.laneKey())
	}
	e := l.effect.reset()
	e.add(l.cache.StripeOf(f.question.Hash()), pending)
	if answered(f.question.Key) {
		e.add(l.cache.ViewStripe(f.question.Hash()), false)
	}
	l.begin(r, e)
	r.retries = 0
	r.raw = append(r.raw[:0], f.raw...)
	if cause != "" {
		l.detain(r, cause)
		return
	}
	ln.send(r, r.raw)
}

// push handles an out-of-band message on a lane: an invalidation on a fetch
// lane, what a client's own tracking brings, nothing of interest elsewhere.
func (ln *lane) push(b []byte) {
	l := ln.loop
	switch {
	case ln.ear != nil:
		ln.ear.hear(b)
		return
	case ln.home != nil && ln.owner != nil:
		ln.owner.pushed(b)
		return
	}
	_, _, size := resp.ReadHeader(b)
	what, n := resp.ReadBulk(b[size:])
	if ln.kind != laneFetch || string(what) != "invalidate" {
		return
	}
	b = b[size+n:]
	kind, count, size := resp.ReadHeader(b)
	if kind != '*' || count < 0 {
		l.invalidateAll(ln) // FLUSHALL and FLUSHDB send a null instead of keys
		return
	}
	b = b[size:]
	for range count {
		key, n := resp.ReadBulk(b)
		b = b[n:]
		l.invalidate(ln, key)
	}
}

// invalidate voids key. The push names no database, so it voids the key in every
// one. A fetch of the key on the same connection whose reply is still to come was
// executed after the change, and stays good.
func (l *loop) invalidate(ln *lane, key []byte) {
	l.stats.Invalidations++
	hash := l.cache.Hash(key)
	st := l.cache.StripeOf(hash)
	before, after := l.cache.Push(st)
	for f := l.fetches[fetchKey{hash, ln.key.db}]; f != nil; f = f.next {
		if f.lane == ln && !f.landed {
			f.Advance(st, before, after)
		}
	}
	l.views.changed(ln, hash)
}

func (l *loop) invalidateAll(ln *lane) {
	l.stats.Invalidations++
	before, after := l.cache.Push(nearcache.All)
	for _, f := range l.fetches {
		for ; f != nil; f = f.next {
			if f.lane == ln && !f.landed {
				f.Advance(nearcache.All, before, after)
			}
		}
	}
}

// startLease begins proving that a fetch lane is alive.
func (ln *lane) startLease() {
	ln.lease = new(lease.Lease)
	if old := ln.node.fallen[ln.key.db]; old != nil { // what it missed, this one will show
		old.Forget()
		delete(ln.node.fallen, ln.key.db)
	}
	ln.beat()
}

// beat sends a heartbeat, unless the last one is still unanswered, and comes back
// often enough that one lost beat does not end the lease. A lane that stays silent
// long after its lease has died is given up, for the sake of the fetches and
// barriers that wait for it: they can do without.
func (ln *lane) beat() {
	if ln.closed {
		return
	}
	now := ln.loop.now()
	switch {
	case ln.beatAt == 0:
		ln.beatAt = now
		ln.ping(&pong{ln: ln, beat: true})
	case now-max(ln.beatAt, ln.lastRead) > 2*int64(ln.loop.srv.opts.Cache.MaxStaleness):
		ln.fail("ERR cosky-proxy gave up a silent invalidation stream of backend " + ln.node.addr)
		return
	}
	ln.loop.nl.AfterFunc(ln.loop.srv.opts.Cache.MaxStaleness/4, ln.beat)
}

// pong waits for the answer to a PING on a fetch lane. Everything that the
// backend sent before it, invalidations above all, has been handled when it comes.
type pong struct {
	ln      *lane
	sentAt  int64
	beat    bool
	refusal string // the error that came instead, without its mark
	spares  bool   // views that are behind by then are awaited, not voided
	done    func() // may be nil
}

func (ln *lane) ping(p *pong) {
	l := ln.loop
	p.sentAt = l.now()
	r := l.newRequest(nil, nil)
	r.sink, r.alone = p, true
	l.enc = resp.AppendCommand(l.enc[:0], "PING")
	ln.send(r, l.enc)
}

func (p *pong) deliver(l *loop, r *request, reply []byte) {
	l.release(r)
	if reply[0] != '-' && p.ln.lease != nil {
		p.ln.lease.Renew(p.sentAt + int64(l.srv.opts.Cache.MaxStaleness))
	}
	if reply[0] == '-' {
		p.refusal = string(bytes.TrimSuffix(reply[1:], []byte("\r\n")))
	}
	if p.beat {
		p.ln.beatAt = 0
	}
	switch {
	case p.done == nil:
		return
	case p.spares:
		l.views.catchUp(p.done)
		return
	}
	l.views.settle() // what has been heard of is not what they show
	p.done()
}
