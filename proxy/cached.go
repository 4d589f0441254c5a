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

// fetchKey identifies a fetch in flight on a loop.
type fetchKey struct {
	hash uint64
	db   int32
	kind nearcache.Kind
}

// otherKind identifies the fetch of the same key by the other command.
func (id fetchKey) otherKind() fetchKey {
	id.kind = nearcache.HGetAll + nearcache.SMembers - id.kind
	return id
}

// fetch is one read for the near-cache under way, shared by every client of the
// loop that asks for the same meanwhile. It is sent as [read, PTTL] on a fetch
// lane, whose invalidations arrive in order with the replies.
type fetch struct {
	nearcache.Fetch
	id      fetchKey
	key     []byte
	raw     []byte // the read, for those who have to repeat it
	sentAt  int64
	until   int64 // no entry of it lives longer
	waiters fifo
	lane    *lane
	body    []byte // the read's reply
	failed  bool   // it was an error, or too long
	tooBig  bool
	landed  bool // the read's reply has arrived: later invalidations are about later changes
}

func (s *session) hgetall(cmd *command.Command, args [][]byte, raw []byte) bool {
	return s.cachedRead(cmd, nearcache.HGetAll, args, raw)
}

func (s *session) smembers(cmd *command.Command, args [][]byte, raw []byte) bool {
	return s.cachedRead(cmd, nearcache.SMembers, args, raw)
}

// cachedRead serves a read of a CoSky key from memory if it can, joins or starts
// a fetch if it may, and passes the read on otherwise.
func (s *session) cachedRead(cmd *command.Command, kind nearcache.Kind, args [][]byte, raw []byte) bool {
	l := s.loop
	key := args[1]
	class, _ := coskey.Classify(key)
	if class == coskey.None || l.guard != nil && !l.guard.vouches(s, cmd, args) {
		return s.forward(cmd, args, raw)
	}
	hash := l.cache.Hash(key)
	if s.tx != nil || s.home != nil || s.touched(l.cache.StripeOf(hash)) {
		l.stats.Bypasses++
		return s.forward(cmd, args, raw)
	}
	id := fetchKey{hash, s.db, kind}
	// A read of this client that was sent to Redis must not be overtaken by an entry that
	// was there before, but came to light only now: it may be older.
	sent := s.fetching > 0 && l.fetches[id] != nil
	if s.fetching > 0 && l.fetches[id.otherKind()] != nil {
		return !s.drain()
	}
	if !sent {
		if e := l.reader.Get(hash, int(s.db), kind, key, l.now()); e != nil {
			s.hit(cmd, e)
			return true
		}
	}
	if s.fetching >= maxFetching {
		return !s.drain()
	}
	if s.await(cmd, id, class, key, raw) {
		l.stats.Misses++
		return true
	}
	l.stats.Bypasses++
	return s.forward(cmd, args, raw)
}

// maxFetching bounds the fetches one client waits for. Their replies, up to max_entry
// each, arrive on a connection that does not wait for anybody who reads slowly.
const maxFetching = 8

// hit answers from memory.
func (s *session) hit(cmd *command.Command, e *nearcache.Entry) {
	l := s.loop
	l.stats.Hits++
	l.stats.Commands[cmd.ID].Calls++
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

// await makes the session wait for a fetch of key: one in flight that is still
// current, or a new one. False: the key cannot be cached at the moment.
func (s *session) await(cmd *command.Command, id fetchKey, class coskey.Class, key, raw []byte) bool {
	l := s.loop
	f := l.fetchOf(id, class, key, raw)
	if f == nil {
		return false
	}
	r := l.newRequest(s, cmd)
	r.sentAt = l.now()
	r.slot, r.keyed = l.target(key).slot, l.clusters
	s.enqueue(r)
	f.join(r)
	return true
}

// fetchOf is the fetch in flight if it is still current, else a new one; nil if
// there can be none.
func (l *loop) fetchOf(id fetchKey, class coskey.Class, key, raw []byte) *fetch {
	f := l.fetches[id]
	switch {
	case f == nil:
	case !bytes.Equal(f.key, key):
		return nil
	case f.Current(l.cache):
		l.stats.Joined++
		return f
	}
	return l.startFetch(id, class, key, raw)
}

func (f *fetch) join(r *request) {
	r.sess.fetching++
	f.waiters.push(r)
}

// startFetch sends a fetch if a write does not forbid it and a live source of
// invalidations covers the key.
func (l *loop) startFetch(id fetchKey, class coskey.Class, key, raw []byte) *fetch {
	now := l.now()
	if l.cache.Refused(id.hash, int(id.db), id.kind, now) {
		return nil
	}
	n, cause := l.owner(l.target(key).slot)
	if cause != "" || n.info == nil || !n.info.Vouched(now) {
		return nil
	}
	ln, events, ready := l.streams(n, id.db, class, key)
	if !ready {
		return nil
	}
	f := &fetch{id: id, sentAt: now, until: now + l.life(id.kind, class)}
	if f.until == now {
		return nil
	}
	if group, ok := l.groupStripe(key); ok {
		if !l.cache.StartFetch(&f.Fetch, key, group) {
			return nil
		}
	} else if !l.cache.StartFetch(&f.Fetch, key) {
		return nil
	}
	f.Leases = [...]*lease.Lease{n.info.Vouch, ln.lease, events}
	f.key, f.raw, f.lane = bytes.Clone(key), bytes.Clone(raw), ln
	f.ask(l)
	l.fetches[id] = f
	return f
}

// streams finds what will announce changes of key: the fetch lane it is read on and
// the lease of CoSky's events, each only as far as it is a source. What is missing is
// opened, and ready is false until it is there and alive.
func (l *loop) streams(n *node, db int32, class coskey.Class, key []byte) (ln *lane, events *lease.Lease, ready bool) {
	now := l.now()
	tracks, listens := l.srv.tracks(), l.srv.listens() && class.Covered() != coskey.Uncovered
	ln = n.fetchLane(db)
	if listens {
		events = l.srv.eventLease(n.addr, key)
	}
	switch {
	case ln == nil, !tracks && !listens, tracks && !ln.lease.Alive(now):
		return nil, nil, false
	case listens && (events == nil || !events.Alive(now)):
		return nil, nil, false
	}
	return ln, events, true
}

// life is how long an entry of the class may live, in nanoseconds.
func (l *loop) life(kind nearcache.Kind, class coskey.Class) int64 {
	o := &l.srv.opts.Cache
	life := o.TTL
	switch {
	case l.srv.tracks():
		// From 7.4 on hash fields expire by themselves: PTTL does not tell when, and
		// their expiry is announced only when the server comes round to it.
		if kind == nearcache.HGetAll && l.srv.abilities.Load().fieldsExpire {
			life = min(life, o.MaxStaleness)
		}
	case class.Covered() == coskey.Complete:
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

// The two replies of a fetch, by request.index.
const (
	fetchRead = iota
	fetchPTTL
)

func (f *fetch) ask(l *loop) {
	r := l.newRequest(nil, nil)
	r.sink, r.index, r.limit, r.alone = f, fetchRead, l.srv.opts.Cache.MaxEntry, true
	f.lane.send(r, f.raw)

	r = l.newRequest(nil, nil)
	r.sink, r.index, r.alone = f, fetchPTTL, true
	l.enc = resp.AppendArray(l.enc[:0], 2)
	l.enc = resp.AppendBulkString(l.enc, "PTTL")
	l.enc = resp.AppendBulk(l.enc, f.key)
	f.lane.send(r, l.enc)
}

// deliver takes the replies of a fetch; with the second the fetch is over.
func (f *fetch) deliver(l *loop, r *request, reply []byte) {
	switch r.index {
	case fetchRead:
		f.landed = true
		f.tooBig = r.overrun || len(reply) > l.srv.opts.Cache.MaxEntry
		f.failed = f.tooBig || reply[0] == '-'
		if !f.tooBig {
			f.body = append(f.body, reply...)
		}
	case fetchPTTL:
		if l.fetches[f.id] == f {
			delete(l.fetches, f.id)
		}
		if f.failed || reply[0] == '-' {
			f.giveUp(l)
		} else {
			f.land(l, reply)
		}
	}
	l.release(r)
}

// land stores the reply if it is still true, and answers everybody.
func (f *fetch) land(l *loop, pttl []byte) {
	e, err := f.entry(pttl)
	if err != nil {
		f.giveUp(l)
		return
	}
	waiters := f.leave()
	if !l.cache.Fill(&f.Fetch, e) {
		f.lose(l, waiters, e)
		return
	}
	for waiters.head != nil {
		l.deliverEntry(waiters.pop(), e)
	}
}

// leave empties the fetch of those who wait for it.
func (f *fetch) leave() fifo {
	waiters := f.waiters
	f.waiters = fifo{}
	for r := waiters.head; r != nil; r = r.laneNext {
		if r.sess != nil {
			r.sess.fetching--
		}
	}
	return waiters
}

func (l *loop) deliverEntry(r *request, e *nearcache.Entry) {
	l.countReply(r.cmd, r.sentAt, false)
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
		case r.overtaken:
			if !bumped {
				l.cache.Bump(l.cache.StripeOf(f.id.hash))
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
		if e := l.reader.Get(f.id.hash, int(f.id.db), f.id.kind, f.key, l.now()); e != nil {
			l.deliverEntry(r, e)
			return
		}
	}
	if r.retries++; r.retries < nearcache.Patience {
		class, _ := coskey.Classify(f.key)
		if g := l.fetchOf(f.id, class, f.key, f.raw); g != nil {
			g.join(r)
			return
		}
	}
	l.bypass(r, f, true)
}

// entry builds the entry; its life ends with the key's.
func (f *fetch) entry(pttl []byte) (*nearcache.Entry, error) {
	until := f.until
	switch _, ms, _ := resp.ReadHeader(pttl); {
	case ms >= 0:
		// Redis counts whole milliseconds, so one may have begun before the fetch was sent.
		until = min(until, f.sentAt+(ms-1)*int64(time.Millisecond))
	case ms == -2 && !emptyReply(f.body):
		until = 0 // expired between the two commands
	}
	return nearcache.NewEntry(int(f.id.db), f.id.kind, f.key, f.body, until)
}

func emptyReply(b []byte) bool { return len(b) == 4 && b[1] == '0' }

// giveUp ends a fetch that brought nothing to keep. A wrong type is the answer for
// everybody who waits; otherwise they ask for themselves, on the ordinary way, which
// knows how to follow redirects and how to pass on errors and long replies.
func (f *fetch) giveUp(l *loop) {
	if f.tooBig {
		l.cache.Refuse(f.id.hash, int(f.id.db), f.id.kind, l.now())
	}
	waiters := f.leave()
	if bytes.HasPrefix(f.body, []byte("-WRONGTYPE ")) {
		l.cache.Bump(l.cache.StripeOf(f.id.hash)) // it says what the key is now
		for waiters.head != nil {
			r := waiters.pop()
			l.countReply(r.cmd, r.sentAt, true)
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
	n, cause := l.owner(r.slot)
	var ln *lane
	if cause == "" {
		ln, cause = n.lane(r.laneKey())
	}
	if cause != "" {
		l.abort(r, cause)
		return
	}
	e := l.effect.reset()
	e.add(l.cache.StripeOf(f.id.hash), pending)
	l.begin(r, e)
	r.retries = 0
	if l.resends {
		r.raw = append(r.raw[:0], f.raw...)
	}
	ln.send(r, f.raw)
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
	for _, kind := range [...]nearcache.Kind{nearcache.HGetAll, nearcache.SMembers} {
		if f := l.fetches[fetchKey{hash, ln.key.db, kind}]; f != nil && f.lane == ln && !f.landed {
			f.Advance(st, before, after)
		}
	}
}

func (l *loop) invalidateAll(ln *lane) {
	l.stats.Invalidations++
	before, after := l.cache.Push(nearcache.All)
	for _, f := range l.fetches {
		if f.lane == ln && !f.landed {
			f.Advance(nearcache.All, before, after)
		}
	}
}

// startLease begins proving that a fetch lane is alive.
func (ln *lane) startLease() {
	ln.lease = new(lease.Lease)
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
	ln     *lane
	sentAt int64
	beat   bool
	done   func()
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
	if p.beat {
		p.ln.beatAt = 0
	}
	if p.done != nil {
		p.done()
	}
}

// raise holds r's reply back until every invalidation that the backend sent
// before it has been handled here, on every loop. False: nothing is cached from
// there, so there is nothing to wait for. A nil node means all of them.
func (l *loop) raise(r *request, n *node, reply []byte) bool {
	r.barrier = false
	if l.srv.fetchLanes.Load() == 0 {
		return false
	}
	r.buf = append(r.buf[:0], reply...)
	l.synchronise(n, func() {
		if r.sink != nil {
			l.deliver(r, r.buf)
			return
		}
		l.finish(r, r.buf)
	})
	return true
}

// raiseFirst does the same for a reply too long to be held: the lane stops being
// read before its first byte is passed on. False: there is nothing to wait for.
func (ln *lane) raiseFirst() bool {
	r, l := ln.inflight.head, ln.loop
	if r == nil || ln.handshake > 0 || !r.barrier || r.sink != nil {
		return false
	}
	r.barrier = false
	if l.srv.fetchLanes.Load() == 0 {
		return false
	}
	ln.raising = true
	ln.conn.PauseRead()
	l.synchronise(ln.node, func() {
		ln.raising = false
		if !ln.closed {
			ln.conn.ResumeRead()
		}
	})
	return true
}

// synchronise calls done when all loops have handled everything that n (nil:
// every node) had sent on their fetch lanes.
func (l *loop) synchronise(n *node, done func()) {
	addr := ""
	if n != nil {
		addr = n.addr
	}
	missing := len(l.srv.loops)
	arrived := func() {
		if missing--; missing == 0 {
			done()
		}
	}
	for _, o := range l.srv.loops {
		if o == l {
			o.quiesce(addr, arrived)
			continue
		}
		o.nl.Post(func() { o.quiesce(addr, func() { l.nl.Post(arrived) }) })
	}
}

// quiesce calls done once a round trip on each of the loop's fetch lanes to addr
// (to any node when it is empty) has been completed, or the lane has died, which
// voids what it covered.
func (l *loop) quiesce(addr string, done func()) {
	var lanes []*lane
	for _, n := range l.nodes {
		if addr != "" && n.addr != addr {
			continue
		}
		for _, ln := range n.fetch {
			if ln.ready {
				lanes = append(lanes, ln)
			}
		}
	}
	if len(lanes) == 0 {
		done()
		return
	}
	missing := len(lanes)
	for _, ln := range lanes {
		ln.ping(&pong{ln: ln, done: func() {
			if missing--; missing == 0 {
				done()
			}
		}})
	}
}
