package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"cosky-proxy/nearcache/lease"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/resp"
)

// laneKind is what a backend connection is for.
type laneKind uint8

const (
	laneShared laneKind = iota // multiplexed by all sessions of the loop
	lanePin                    // leased to one session
	laneFetch                  // reads for the near-cache; RESP3 with tracking where the backend can
)

// laneKey is the connection state that a lane has and a session needs.
type laneKey struct {
	db    int32
	resp3 bool
	as    *credential // whom it is logged in as; nil: the proxy's own user
	bulk  bool        // of those who move much, see bulk.go: no state of the connection, but a lane of their own

	replica bool // it may read from a replica of a cluster
}

// plain reports whether the lane is one of those that nearly all clients use.
func (k *laneKey) plain() bool { return k.db == 0 && k.as == nil && !k.bulk && !k.replica }

// laneKey is what the session's commands need of a lane.
func (s *session) laneKey() laneKey {
	return laneKey{db: s.db, resp3: s.resp3, as: s.as, bulk: s.bulky}
}

// laneKey is what r, whose session may be gone, needs of a lane.
func (r *request) laneKey() laneKey {
	return laneKey{db: r.db, resp3: r.resp3, as: r.as, bulk: r.bulk}
}

// takeKey has r, which has no session of its own, travel where others with that key do.
func (r *request) takeKey(k laneKey) { r.db, r.resp3, r.as, r.bulk = k.db, k.resp3, k.as, k.bulk }

// lane is one backend connection of one loop: a pipeline of requests whose
// replies come back in the same order. It has no connection state beyond its
// key, so requests of any session may share it.
//
// Life: dialling (requests collect in pending) → handshake (same) → ready →
// closed. A retired lane takes no new requests and closes when the last reply
// has arrived.
type lane struct {
	// static
	loop *loop
	node *node
	key  laneKey
	kind laneKind

	// loop-owned
	conn      *netloop.Conn // nil while dialling
	pending   []byte        // requests queued before the connection is ready
	inflight  fifo
	scanner   resp.ReplyScanner
	progress  progress
	queued    uint64 // bytes of requests ever queued; position of the next request
	lastRead  int64  // when the backend last sent something (mono): progress, for the timeout
	handshake int    // handshake replies still to come
	greeted   bool   // the backend has said something
	ready     bool
	retired   bool
	closed    bool
	taught    map[string]struct{} // digests of scripts that were loaded through this connection
	taughtIn  uint64              // the generation of script memory that they belong to
	waiting   []*session          // sessions that wait for room in the queue
	owner     *session            // of a pin
	home      *home               // that the pin belongs to; nil: none
	setup     []setting           // of a home's pin: what the login puts in force
	ear       *ear                // that the pin belongs to; nil: none
	monitor   *monitor            // that the pin feeds; nil: none
	serverID  int64               // of a pin: its CLIENT ID, 0 until it is known
	leaving   bool                // a pin that goes back to its node when nothing is in flight
	strayed   bool                // a pin whose connection state is not that of its key any more: of no use to others
	probe     bool                // opened to find out whether the node is back
	hailed    bool                // the last command of the handshake is a PING
	raising   bool                // not read on before a barrier has been passed, see raiseFirst
	heldAt    int64               // when it was last held for a client that does not read (mono)
	streamed  int                 // bytes of the reply that is being passed on, so far
	stalled   int64               // how long it has been held altogether, up to then (ns)

	// fetch lanes only
	lease  *lease.Lease // alive while a round trip on this connection is recent enough
	beatAt int64        // when the heartbeat under way was sent (mono); 0: none is
}

// open starts connecting in the background.
func (n *node) open(key laneKey, kind laneKind) *lane {
	l := n.loop
	ln := &lane{loop: l, node: n, key: key, kind: kind, lastRead: l.now()}
	n.stats.Connections++
	n.opened[ln] = struct{}{}
	l.connect(ln)
	return ln
}

// attach takes over the dialled connection and logs in.
func (ln *lane) attach(nc net.Conn, err error) {
	l, n := ln.loop, ln.node
	if ln.closed {
		if nc != nil {
			nc.Close()
		}
		return
	}
	if err == nil {
		n.stats.Connects++
		if ln.conn, err = l.nl.Attach(nc, ln); err == nil {
			l.srv.own.Store(ln.conn.LocalAddr(), ln.kind)
		}
	}
	if err != nil {
		n.stats.ConnectErrors++
		n.suspect(err)
		n.unreachable(err)
		ln.lost(ending{line: n.breaker.cause, again: true})
		return
	}
	ln.lastRead = l.now()
	// Sessions wait while more than these is queued; they have to hear of it even
	// when a single write takes everything.
	ln.conn.SetLowWater(min(l.srv.opts.uploadBacklog(), l.srv.opts.Upstream.QueueLimit) / 2)
	if ln.home != nil {
		if t := ln.home.tracking; t != nil && t.ear != nil && !t.ear.ready(n) { // its setup names the ear
			t.ear.await(func(string) {
				if !ln.closed {
					ln.login()
				}
			})
			return
		}
	}
	ln.login()
}

// login sends the handshake; requests follow when its last reply is there, so
// that no command can ever run before AUTH and SELECT did.
func (ln *lane) login() {
	b := &ln.loop.srv.opts.Backend
	out := ln.conn.Out
	if as := ln.key.as; as != nil {
		out = ln.loginAs(out, as)
	} else if ln.key.resp3 {
		out, ln.handshake = resp.AppendCommand(out, hello(b)...), ln.handshake+1
	} else if b.Password != "" {
		out, ln.handshake = resp.AppendCommand(out, auth(b)...), ln.handshake+1
	}
	if ln.key.db != 0 {
		out, ln.handshake = resp.AppendCommand(out, "SELECT", fmt.Sprint(ln.key.db)), ln.handshake+1
	}
	if ln.key.replica {
		out, ln.handshake = resp.AppendCommand(out, "READONLY"), ln.handshake+1
	}
	if ln.kind == laneFetch && ln.key.resp3 {
		out, ln.handshake = resp.AppendCommand(out, "CLIENT", "TRACKING", "ON"), ln.handshake+1
	}
	for i := range ln.setup {
		out, ln.handshake = ln.setup[i].append(out, ln.home, ln.node), ln.handshake+1
	}
	if ln.kind == lanePin {
		out, ln.handshake = resp.AppendCommand(out, "CLIENT", "ID"), ln.handshake+1
	}
	if ln.probe && (ln.handshake == 0 || ln.node.breaker.trial == ln) { // a login is answered by a server that loads, too
		out, ln.handshake, ln.hailed = resp.AppendCommand(out, "PING"), ln.handshake+1, true
	}
	ln.conn.Out = out
	ln.conn.Dirty()
	if ln.handshake == 0 {
		ln.open()
	}
}

// loginAs begins the handshake of a client's login. AUTH comes first, in the client's own
// form, so that the client can be told the answer.
func (ln *lane) loginAs(out []byte, as *credential) []byte {
	if as.login {
		out, ln.handshake = resp.AppendCommand(out, as.auth()...), ln.handshake+1
	}
	if ln.key.resp3 {
		out, ln.handshake = resp.AppendCommand(out, "HELLO", "3"), ln.handshake+1
	}
	return out
}

func hello(b *Backend) []string {
	if b.Password == "" {
		return []string{"HELLO", "3"}
	}
	user := b.User
	if user == "" {
		user = "default"
	}
	return []string{"HELLO", "3", "AUTH", user, b.Password}
}

func auth(b *Backend) []string {
	if b.User == "" {
		return []string{"AUTH", b.Password}
	}
	return []string{"AUTH", b.User, b.Password}
}

// open lets the queued requests go.
func (ln *lane) open() {
	ln.ready = true
	if ln.node.breaker.trial == ln {
		ln.passed()
	}
	if ln.greeted {
		ln.node.reachable()
	}
	if len(ln.pending) > 0 {
		ln.conn.Out = append(ln.conn.Reserve(len(ln.pending)), ln.pending...)
		ln.conn.Dirty()
		ln.pending = nil
	}
	if ln.kind == laneFetch && ln.loop.srv.tracks() {
		ln.startLease()
	}
	if ln.ear != nil {
		ln.ear.opened()
	}
}

// send queues r, whose bytes are raw, behind everything sent on this lane.
func (ln *lane) send(r *request, raw []byte) {
	if r.caching != "" && !r.alone {
		ln.optFor(r)
	}
	now := ln.loop.now()
	r.lane, r.off, r.size, r.sentAt = ln, ln.queued, len(raw), now
	ln.loop.seq++
	r.seq = ln.loop.seq
	if sc, ok := r.sink.(*scatter); ok {
		sc.parent.seq = r.seq
	}
	if ln.inflight.len == 0 {
		ln.lastRead = now
	}
	ln.inflight.push(r)
	ln.queued += uint64(len(raw))
	if !ln.ready {
		ln.pending = append(ln.pending, raw...)
		return
	}
	ln.append(raw)
}

// worthSending is how much output is not kept for the end of the turn: one system call more
// costs less than a buffer for what all clients send at once.
const worthSending = 64 << 10

// append adds to what is sent to the backend.
func (ln *lane) append(b []byte) {
	ln.conn.Out = append(ln.conn.Reserve(len(b)), b...)
	ln.conn.Dirty()
	if ln.conn.Buffered() >= worthSending {
		ln.conn.Flush()
	}
}

// backlog is the number of queued bytes the backend has not taken yet.
func (ln *lane) backlog() int {
	if !ln.ready {
		return len(ln.pending)
	}
	return ln.conn.Buffered()
}

// patience is the size up to which an incomplete reply is left in the input
// buffer to arrive whole; longer ones are streamed.
const patience = 32 << 10

// OnData splits the backend's bytes into replies and hands each to its request.
func (ln *lane) OnData(b []byte) int {
	l := ln.loop
	ln.lastRead = l.now()
	ln.node.heardAt = ln.lastRead
	if ln.node.outage.state.Load() != 0 {
		ln.node.answered()
	}
	if ln.node.breaker.mute {
		ln.node.reachable()
	}
	pos := 0
	for pos < len(b) && !ln.closed {
		n, err := ln.take(b[pos:])
		if err != nil {
			ln.fail(fmt.Sprintf("ERR cosky-proxy got bytes from backend %s that are not RESP: %v", ln.node.addr, err))
			break
		}
		if n == 0 {
			break
		}
		pos += n
	}
	if ln.inflight.len == 0 && !ln.closed {
		switch {
		case ln.retired:
			ln.fail("")
		case ln.leaving:
			ln.settlePin()
		}
	}
	return pos
}

// take consumes one reply, or a piece of a long one, from the start of b. It
// returns 0 when more bytes are needed.
func (ln *lane) take(b []byte) (int, error) {
	if ln.raising { // a client that has caught up resumed it too early
		ln.conn.PauseRead()
		return 0, nil
	}
	if ln.scanner.Started() {
		n, done, err := ln.scanner.Scan(b)
		if err == nil && n > 0 {
			ln.piece(b[:n], done)
		}
		return n, err
	}
	n := resp.Len(b)
	if n == 0 {
		var sc resp.ReplyScanner
		m, done, err := sc.Scan(b)
		switch {
		case err != nil:
			return 0, err
		case done:
			n = m
		case len(b) < patience, (ln.monitor != nil || b[0] == '>') && len(b) < ln.loop.srv.opts.Clients.SubscriberLimit:
			return 0, nil
		case b[0] == '>':
			return 0, errors.New("a push exceeds clients.subscriber_limit")
		case ln.raiseFirst():
			return 0, nil
		default:
			ln.scanner = sc
			ln.piece(b[:m], false)
			return m, nil
		}
	}
	ln.whole(b[:n])
	return n, nil
}

// whole handles a complete reply or push.
func (ln *lane) whole(b []byte) {
	if !ln.greeted {
		if isRefusal(b) {
			ln.turnedAway(string(b[1 : len(b)-2]))
			return
		}
		ln.greeted = true
		ln.node.breaker.stillborn = 0
		ln.node.outage.connected.Add(1)
		if ln.ready { // without a login, the first reply is the first sign of service
			ln.node.reachable()
		}
	}
	switch {
	case b[0] == '>':
		ln.push(b)
	case ln.handshake > 0:
		ln.handshaken(b)
	case ln.inflight.head == nil && ln.monitor != nil && b[0] == '+':
		ln.monitor.line(ln.loop, b)
	case ln.inflight.head == nil:
		ln.unexpected(b)
	default:
		ln.reply(ln.inflight.pop(), b)
	}
}

// reply completes r with a reply that is entirely in memory.
func (ln *lane) reply(r *request, reply []byte) {
	l := ln.loop
	r.lane, r.origin = nil, ln.node.addr
	client, s := r.client(), r.sess
	switch {
	case reply[0] == '-' && l.intercept(ln, r, reply):
	case client != nil && client.delayed > 0 && l.tooEarly(client, r, reply):
	default:
		l.conclude(ln.node, r, reply)
	}
	if s != nil && s.congests(ln) {
		ln.holdFor(s)
	}
	if client != nil && client.delayed > 0 {
		l.chase(client)
	}
}

// conclude answers r with n's reply.
func (l *loop) conclude(n *node, r *request, reply []byte) {
	if reply[0] == '-' {
		l.unwatched(r)
	}
	l.account(n, r, reply[0] == '-')
	switch {
	case r.barrier && l.raise(r, n.witness(r), reply):
	case r.renews && l.renewed(r, reply):
	case r.sink != nil:
		l.deliver(r, reply)
	default:
		l.finish(r, reply)
	}
}

// piece handles a part of a reply that is too long to be collected first.
func (ln *lane) piece(b []byte, done bool) {
	l := ln.loop
	r := ln.inflight.head
	if r == nil || ln.handshake > 0 {
		ln.fail(fmt.Sprintf("ERR cosky-proxy got a reply nobody asked for from backend %s", ln.node.addr))
		return
	}
	client := r.client()
	if client != nil && client.delayed > 0 { // it cannot be kept back
		l.forestall(client, r)
	}
	if done {
		ln.inflight.pop()
		r.lane, r.origin = nil, ln.node.addr
		l.account(ln.node, r, false)
	}
	if s := r.sess; r.sink != nil {
		ln.collect(r, b, done)
	} else {
		ln.stepAside(len(b), done)
		l.stream(r, b, done)
		if s != nil && s.congests(ln) {
			ln.holdFor(s)
		}
	}
	if client != nil && client.delayed > 0 {
		l.chase(client)
	}
}

// stepAside counts the bytes of a long reply. Others need not wait for the rest of it: a shared
// lane takes no new requests any more, they go through a fresh one.
func (ln *lane) stepAside(n int, done bool) {
	if ln.streamed += n; done {
		ln.streamed = 0
	} else if ln.kind == laneShared && ln.streamed > ln.loop.limits.output {
		ln.node.retire(ln)
	}
}

// collect gathers a long reply for its sink.
func (ln *lane) collect(r *request, b []byte, done bool) {
	if r.limit > 0 && len(r.buf)+len(b) > r.limit {
		r.overrun = true
		r.buf = r.buf[:0]
	}
	if !r.overrun {
		r.buf = append(r.buf, b...)
	}
	if !done {
		return
	}
	reply := r.buf
	r.buf = nil
	l := ln.loop
	if !r.barrier || !l.raise(r, ln.node.witness(r), reply) {
		l.deliver(r, reply)
	}
}

// hand gives the reply to whoever waits for it: r's sink, or else its client.
func (l *loop) hand(r *request, reply []byte) {
	if r.sink != nil {
		l.deliver(r, reply)
		return
	}
	l.finish(r, reply)
}

// deliver hands the reply to r's sink.
func (l *loop) deliver(r *request, reply []byte) {
	l.settle(r)
	sk := r.sink
	r.sink = nil
	sk.deliver(l, r, reply)
}

func (ln *lane) handshaken(reply []byte) {
	if ln.kind == lanePin && ln.handshake == 1 { // an id that is refused is not known, that is all
		if kind, id, _ := resp.ReadHeader(reply); kind == ':' {
			ln.serverID = id
		} else if refusesCommands(firstWord(reply[1:])) { // others may be told
			ln.strayed = true
		}
	} else if word := firstWord(reply[1:]); reply[0] == '-' && !(ln.hailed && ln.handshake == 1 && refusesCommands(word) && serving(word)) {
		line := string(reply[1 : len(reply)-2])
		if ln.kind != laneFetch && refusesCommands(word) { // SELECT, for the time being; it is no matter of the login
			ln.loop.doubt()
			if !serving(word) {
				ln.node.trip(line, ln.loop.now())
			}
			ln.lost(ending{line: line, again: true})
			return
		}
		if as := ln.key.as; as != nil {
			ln.notAccepted(as, line)
			return
		}
		ln.fail("ERR cosky-proxy cannot log in to backend " + ln.node.addr + ": " + line)
		switch {
		case ln.kind == laneFetch:
			ln.node.refetchLater(line)
		case len(ln.setup) == 0: // else it may be the setup that is refused, not the login
			ln.node.refused(line)
		}
		return
	}
	ln.handshake--
	if ln.handshake == 0 {
		ln.open()
	}
}

// notAccepted: the backend refuses a client's login, or a database to it. That is between the two of
// them, in the backend's own words, and says nothing about the node.
func (ln *lane) notAccepted(as *credential, line string) {
	if as.accepted && strings.HasPrefix(line, "WRONGPASS ") {
		ln.loop.revoked(as)
	}
	ln.fail(line)
}

// unexpected handles bytes that no request waits for.
func (ln *lane) unexpected(reply []byte) {
	if reply[0] == '-' {
		ln.turnedAway(string(reply[1 : len(reply)-2]))
		return
	}
	ln.fail("ERR cosky-proxy got a reply nobody asked for from backend " + ln.node.addr)
}

// isRefusal reports whether the first bytes of a connection are the reason why
// Redis is about to close it, unread (acceptCommonHandler), rather than a reply.
func isRefusal(b []byte) bool {
	return bytes.HasPrefix(b, []byte("-ERR max number of clients ")) || bytes.HasPrefix(b, []byte("-DENIED "))
}

// turnedAway ends a connection that the backend does not want. Nothing on it was
// executed, but asking again at once would only make things worse.
func (ln *lane) turnedAway(reason string) {
	ln.node.stats.ConnectErrors++
	ln.node.unreachable(errors.New(reason))
	ln.lost(ending{line: "ERR cosky-proxy was turned away by backend " + ln.node.addr + ": " + reason, again: true})
}

// OnFlushed wakes the sessions that waited for room.
func (ln *lane) OnFlushed() {
	if len(ln.waiting) > 0 && !ln.full() {
		ln.releaseWaiting()
	}
}

func (ln *lane) releaseWaiting() {
	waiting := ln.waiting
	ln.waiting = nil
	for _, s := range waiting {
		s.resume()
	}
}

// OnEOF closes: a backend never half-closes a healthy connection.
func (ln *lane) OnEOF() { ln.conn.Close() }

// OnClose decides the fate of everything in flight.
func (ln *lane) OnClose(err error) {
	if ln.closed {
		return
	}
	if err == nil {
		err = errors.New("closed by the backend")
	}
	ln.node.stats.ConnectionsLost++
	ln.loop.srv.opts.Topology.Refresh("connection lost to " + ln.node.addr) // it may come back as another version
	if ln.conn.Received() == 0 {
		ln.node.stillborn(err)
	}
	defer ln.node.check()
	ln.lost(ln.broken(err))
}

// fail closes the lane on purpose; line answers what is in flight.
func (ln *lane) fail(line string) {
	if ln.closed {
		return
	}
	ln.lost(ending{line: line})
}

// lost ends the lane and decides the fate of what is in flight, see fate.go.
func (ln *lane) lost(e ending) {
	l, n := ln.loop, ln.node
	ln.closed = true
	if ln.greeted {
		n.outage.connected.Add(-1)
	}
	n.forget(ln)
	if ln.lease != nil {
		ln.lease.Revoke()
		n.fallen[ln.key.db] = ln.lease
	}
	unsentFrom, unsent := ln.unsent()
	if ln.conn != nil {
		n.goneIn += ln.conn.Received()
		n.goneOut += ln.conn.Sent()
		l.srv.own.Delete(ln.conn.LocalAddr())
		ln.conn.Close()
	}
	queue := ln.inflight
	ln.inflight = fifo{}
	if queue.len > 0 {
		l.laneEpoch++
	}
	for queue.head != nil {
		r := queue.pop()
		r.lane, r.origin = nil, n.addr
		s := r.client()
		l.decide(ln, r, &e, unsentFrom, unsent)
		if s != nil && s.delayed > 0 {
			l.chase(s) // when nothing is in its way any more that was lost, too
		}
	}
	ln.abandon()
}

// abandon releases what waited for the lane itself.
func (ln *lane) abandon() {
	ln.releaseWaiting()
	if ln.owner != nil {
		ln.owner.unpinned(ln)
	}
	if ln.ear != nil {
		ln.ear.lost(ln)
	}
}

// unsent returns the queued bytes that the kernel never took, and the position
// of the first of them.
func (ln *lane) unsent() (from uint64, b []byte) {
	if !ln.ready {
		return ln.queued - uint64(len(ln.pending)), append([]byte(nil), ln.pending...)
	}
	b = append([]byte(nil), ln.conn.Unsent()...)
	return ln.queued - uint64(len(b)), b
}

// abort answers r with an error of the proxy's own.
func (l *loop) abort(r *request, line string) {
	if line == "" {
		line = "ERR cosky-proxy closed a backend connection"
	}
	if r.state == replyPartial {
		l.cut(r)
		return
	}
	if r.sink == nil && l.standInFor(r) {
		return
	}
	reply := append(append([]byte{'-'}, line...), '\r', '\n')
	if r.sink != nil {
		l.deliver(r, reply)
		return
	}
	r.barrier = false
	l.disclaim(r)
	l.unwatched(r)
	l.finish(r, reply)
}

// cut ends a session whose reply broke off in the middle: no error can be put
// inside a bulk string, so closing is the only honest answer.
func (l *loop) cut(r *request) {
	s := r.sess
	if s == nil {
		l.settle(r)
		l.release(r)
		return
	}
	r.state = replyReady
	s.close("reply broke off: backend connection lost")
}

// timedOut reports whether the backend owes a reply and has sent nothing for
// the configured time.
func (ln *lane) timedOut(now int64) bool {
	if ln.conn != nil && ln.conn.ReadPaused() {
		return false
	}
	if ln.kind == lanePin && ln.owner != nil && ln.owner.patient {
		return ln.impatient(now)
	}
	if ln.inflight.len == 0 && ln.ready {
		return false
	}
	limit := ln.loop.srv.opts.Upstream.Timeout
	if ln.node.breaker.trial == ln {
		limit = ln.loop.srv.opts.Upstream.ConnectTimeout
	}
	return now-ln.lastRead > int64(limit)
}

// expire ends a lane that has timed out.
func (ln *lane) expire() {
	l, n := ln.loop, ln.node
	l.srv.opts.Topology.Refresh("timeout on " + n.addr)
	if n.breaker.trial == ln {
		n.unanswered()
		ln.fail("")
		return
	}
	l.stats.Timeouts++
	n.silent(ln.lastRead)
	ln.lost(ln.overdue())
}

// holdFor stops reading a lane whose head client does not take its replies. A
// shared lane is retired, so that later requests are not held up; those that wait
// behind the client are held up for stall_timeout at most, see watch. On a pin
// only the client itself waits.
func (ln *lane) holdFor(s *session) {
	if ln.closed || ln.conn.ReadPaused() {
		return
	}
	ln.conn.PauseRead()
	s.holding = append(s.holding, ln)
	if ln.kind == lanePin {
		return
	}
	ln.node.retire(ln)
	ln.heldAt = ln.loop.now()
	ln.watch(s)
}

// release reads the lane again, or closes it if it was only waiting for that.
func (ln *lane) release() {
	ln.stalled += ln.loop.now() - ln.heldAt
	if ln.retired && ln.inflight.len == 0 {
		ln.fail("") // nothing more comes that would close it
		return
	}
	ln.conn.ResumeRead()
}

// watch cuts s off when it holds others up and stall_timeout has been used up, by s
// or by whoever held the lane before it: those behind must not wait for one slow
// reader after another, nor for one that takes its replies drop by drop. The last
// ones get just enough time to show that they do read.
func (ln *lane) watch(s *session) {
	l, heldAt := ln.loop, ln.heldAt
	timeout := l.srv.opts.Clients.StallTimeout
	l.nl.AfterFunc(max(timeout-time.Duration(ln.stalled), timeout/64), func() {
		if s.closed || ln.closed || !s.holds(ln) || ln.heldAt != heldAt {
			return
		}
		if ln.serves(s) {
			ln.watch(s)
			return
		}
		l.stats.Cut++
		l.srv.log.Warn("client cut off: it does not read its replies and holds up others", "client", s.addr, "unread_bytes", s.conn.Buffered(), "limit", "clients.stall_timeout")
		s.close("does not read its replies and holds up other clients")
	})
}

// serves reports whether every request in flight belongs to s or to nobody.
func (ln *lane) serves(s *session) bool {
	for r := ln.inflight.head; r != nil; r = r.laneNext {
		if c, others := r.onBehalf(); others || c != nil && c != s {
			return false
		}
	}
	return true
}

// onBehalf is the client for whom r is in flight, nil if there is none any more; others: the proxy itself
// waits for it, for whoever.
func (r *request) onBehalf() (c *session, others bool) {
	if r.sess != nil {
		return r.sess, false
	}
	switch sk := r.sink.(type) {
	case nil, ignore:
		return nil, false
	case *scatter:
		return sk.parent.sess, false
	case *sweep:
		return sk.parent.sess, false
	case *execution:
		if sk.exec != nil {
			return sk.exec.sess, false
		}
	}
	return nil, true
}
