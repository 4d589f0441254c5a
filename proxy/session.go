package proxy

import (
	"bytes"
	"strings"

	"cosky-proxy/nearcache"
	"cosky-proxy/proxy/acl"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// waitReason is why a session does not read on.
type waitReason uint8

const (
	waitNothing  waitReason = iota
	waitInFlight            // too many commands in flight: until half of them are answered
	waitDrain               // the next command must not overtake those in flight: until all are answered
	waitOutput              // the client does not read: until its output is below half of the limit
	waitInquiry             // the backend is asked what the next command is
	waitPause               // CLIENT PAUSE: until it is over; it is read on a little
	waitLane                // the lane's queue is full: until the backend has taken some of it
	waitVerdict             // the backend is asked whether the client may do it: until it answers
	waitTopics              // EXEC subscribes: until the backend has confirmed that
	waitNode                // the node it is for is out of service: until it, or its successor, is not
)

// session is one client: its protocol state, the queue that keeps its replies in
// request order, and the limits that keep it from harming others.
//
// Order on the way to the backend. Commands of one session that go through one
// lane are executed in order. Whenever the next command would take another way
// while earlier ones are still out (a pin, another topology, a fresh lane, a fetch for
// the near-cache on its own connection), it waits until they are answered.
type session struct {
	// static
	loop *loop
	conn *netloop.Conn
	id   int64
	addr string // of the client
	via  string // local address it connected to

	// loop-owned: protocol state
	parser       resp.Parser
	resp3        bool
	db           int32
	name         string
	library      string
	libver       string
	user         string      // whom it is logged in as: a name, as CLIENT LIST shows it
	as           *credential // what its lanes log in with; nil: the proxy's own
	rights       *acl.User   // what it may do; nil: somebody else decides
	stranger     bool        // has to log in before anything else
	questions    questions   // of the guard, about its next command
	vetted       bool        // the backend has been asked what a client without a login may do since it came
	rulesChanged bool        // its last command may have changed what users may do
	since        int64       // connected at (mono)

	// loop-owned: CLIENT
	mute        muting
	fleeting    bool // something of it lasts for one command only
	unevictable bool // CLIENT NO-EVICT

	// loop-owned: replies
	head, tail *request    // FIFO; a request leaves when its reply has been written out
	inflight   int         // its length
	held       int         // reply bytes in it that wait for their turn
	midReply   bool        // the head's reply has been written in part: nothing else may be written
	captured   *completion // takes the reply of a command that EXEC executes
	pushes     []byte      // Pub/Sub messages that wait for the end of that reply
	delayed    int         // requests in it, or parts of them, that wait to be sent again, see again.go
	delays     *delays     // nil: there are none
	chased     bool        // those are looked at at the end of the turn
	alarm      *netloop.Timer
	alarmAt    int64 // when it lets them go on (mono); 0: it is not set

	// loop-owned: flow
	filled    bool // it is in loop.filled
	yielded   bool // it goes on in the next turn
	wait      waitReason
	stalledAt int64   // what has been read up to now waits since then (mono), see slowlog.go; 0: it does not, or by its client's doing
	stalled   int     // bytes of it
	laneEpoch uint64  // the loop's when the first of those in flight was sent
	exclusive bool    // what is in flight must be answered before anything else is sent
	astray    bool    // reads are in flight to replicas: what may write waits for them
	wroteAt   int64   // when its last write was certainly answered (mono), unanswered, or 0; known only where replicas are read from
	patient   bool    // its pin executes a blocking command: another timeout, see patience.go
	blocksFor int64   // how long that says it may block (ns); 0: for ever
	holding   []*lane // lanes that are not read because this client does not take its replies
	slowAt    int64   // when a tick last found it behind with reading (mono)
	closed    bool
	closing   bool    // QUIT or a protocol error: close once everything is written
	inquired  bool    // the backend has said what it knows of the next command
	heldUp    *heldUp // its next command waits for the backend; nil: it does not
	eof       bool    // the client has shut down its sending side
	bulky     bool    // it moves much, see bulk.go
	bulkyTill int64   // mono
	moved     uint64  // bytes to and from it at the last tick
	lastSeen  int64
	kept      int // bytes of its names, and of those of its subscriptions

	// loop-owned: near-cache order
	fetching int          // reads in flight on fetch lanes
	viewing  int          // of them, replies of scripts: they may show any key
	touching *[64]uint32  // commands in flight on shared lanes, by stripe
	touches  int          // sum of touching
	everyKey int          // of them, those that may concern every key
	tx       *transaction // between MULTI and EXEC, or watching
	home     *home        // where all of its commands travel; nil: on shared lanes
	pin      *lane        // leased for a blocking command or an upload
	waiting  []*lane      // leased for WAIT, one per node
	monitor  *monitor
	heardOn  map[*loop]struct{} // loops where others redirect their invalidations to this client
	upload   *upload            // a request that is streamed through it
	lastCmd  *command.Command   // nil: none that is known

	// loop-owned: limits
	meters *meters // nil: nothing of it has been counted yet
	permit *permit // of the command that is being executed; nil: it has none, or its request has it

	// loop-owned: Pub/Sub
	subs      map[topicID]membership
	shardSubs int      // of them, shard channels
	joined    int      // subscriptions so far
	hushed    int      // replies in flight that have to come before any message
	early     []*topic // that an EXEC in flight subscribes to
}

// OnData executes every complete request in b, as far as nothing makes the
// session wait. After as many as may be in flight others have their turn: what the proxy answers
// by itself would otherwise hold them up for as long as there is input.
func (s *session) OnData(b []byte) int {
	l := s.loop
	s.lastSeen = l.now()
	s.fill()
	s.yielded = false
	pos, left := 0, l.srv.opts.Clients.MaxInFlight
	for pos < len(b) && s.wait == waitNothing && !s.closed && !s.closing {
		if left == 0 {
			s.yielded = true
			s.conn.Redeliver()
			break
		}
		n := s.next(b[pos:])
		if n == 0 {
			break
		}
		pos += n
		left--
		if s.stalledAt != 0 {
			s.readOn(n)
		}
	}
	if s.stalledAt != 0 {
		s.leaveUnread(len(b) - pos)
	}
	switch {
	case s.closing:
		return len(b)
	case s.closed:
	case s.wait != waitNothing:
		if len(b)-pos > l.limits.request {
			s.conn.PauseRead()
		}
	case s.eof && s.atRest():
		s.finishAndClose()
	case s.inflight == 0: // no reply will come from elsewhere
		s.conn.Flush()
	}
	return pos
}

// lastActive is when the client last sent something or took some of what it was sent (mono).
func (s *session) lastActive() int64 { return max(s.lastSeen, s.conn.LastSent()) }

// atRest reports whether the session has done all that it was asked for.
func (s *session) atRest() bool { return s.wait == waitNothing && s.inflight == 0 && !s.yielded }

// next handles the request at the start of b and returns its length, or 0 when
// it is incomplete or has to wait.
func (s *session) next(b []byte) int {
	l := s.loop
	if s.upload != nil {
		if l.paused.kind != pauseNone && (s.upload.pin != nil || s.upload.request != nil) && s.suspended(s.lastCmd, nil) { // it is executed when its end is there
			return 0
		}
		if s.upload.request != nil && !s.resumed() {
			return 0
		}
		n := s.feed(b)
		if s.upload == nil && s.fleeting && !s.closing {
			s.fade()
		}
		return n
	}
	req := &l.req
	n, err := s.parser.Next(b, s.protocolLimits(), req)
	if err != nil && s.stranger { // perhaps it need not be one
		s.parser = resp.Parser{}
		refusal, decided := l.guard.recognise(s)
		if !decided {
			return 0
		}
		if n, err = s.parser.Next(b, s.protocolLimits(), req); err != nil && refusal != "" {
			s.refuse(refusal)
			s.finishAndClose()
			return len(b)
		}
	}
	switch {
	case err != nil:
		l.stats.ProtocolErrors++
		s.stalledAt = 0
		s.reply(resp.AppendError(l.out[:0], "ERR "+err.Error()))
		s.finishAndClose()
		return len(b)
	case n == 0 && len(b) >= min(minRequestLimit, l.limits.request):
		if l.budgetAgain(); s.closed || s.closing {
			return len(b)
		}
		if max(int64(len(b)), s.parser.Least()) < int64(l.limits.request) {
			return 0
		}
		return s.beginUpload(b)
	case n == 0:
		return 0
	case len(req.Args) == 0:
		return n
	}
	if l.monitored > 0 {
		if !s.dispatchShown(req) {
			return 0
		}
	} else if !s.dispatch(req) {
		return 0
	}
	if s.fleeting {
		s.fade()
	}
	return n
}

// dispatch executes one request, or returns false when it has to wait; then
// nothing has happened and the same bytes come again.
func (s *session) dispatch(req *resp.Request) bool {
	l := s.loop
	if s.mustWait() {
		return false
	}
	if s.heldUp != nil && s.outOfTime(req.Args) {
		return true
	}
	raw := req.Raw
	if req.Inline {
		l.inline = resp.AppendCommandBytes(l.inline[:0], req.Args)
		raw = l.inline
	}
	cmd, problem := l.table.Resolve(req.Args)
	if problem != "" {
		if webRequest(req.Args[0]) {
			s.close("sent an HTTP request: a web page may be abused to attack Redis")
			return true
		}
		if s.inquire(req.Args[0]) {
			return false
		}
		s.lastCmd = l.table.Called(req.Args)
		s.reject(req.Args[0], problem)
		return true
	}
	s.lastCmd, s.inquired = cmd, false
	if l.guard != nil {
		refusal, decided := l.guard.admit(s, cmd, req.Args)
		if !decided {
			return false
		}
		if refusal != "" {
			s.reject(req.Args[0], refusal)
			return true
		}
	}
	if s.restricted(cmd) {
		s.reject(req.Args[0], "ERR Can't execute '"+cmd.Name+"': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context")
		return true
	}
	if s.monitor != nil && s.outside(cmd) {
		s.reject(req.Args[0], errOutside)
		return true
	}
	if l.paused.kind != pauseNone && s.monitor == nil && s.suspended(cmd, req.Args) {
		return false
	}
	if l.throttle != nil && s.permit == nil {
		if refusal := s.obtain(cmd, req.Args); refusal != "" {
			s.reject(req.Args[0], refusal)
			return true
		}
	}
	if s.tx != nil && s.tx.queueing && !endsTransaction(cmd) {
		return s.queue(cmd, req.Args, raw)
	}
	if l.readSources != nil && s.writesTooEarly(cmd) {
		return false
	}
	if l.homeless(cmd) {
		s.refuse(errNoBackend)
		return true
	}
	if l.heat != nil && cmd.Flags&command.ReadOnly != 0 {
		s.countRead(cmd, req.Args)
	}
	if h := l.handlers[cmd.ID]; h != nil {
		return h(s, cmd, req.Args, raw)
	}
	return s.forward(cmd, req.Args, raw)
}

// reject refuses a command before it is looked at. An EXEC that is refused ends
// its transaction, as in Redis' rejectCommand.
func (s *session) reject(name []byte, line string) {
	if equalFold(name, "EXEC") {
		if s.tx != nil {
			s.exclusive = true
			s.endTransaction()
		}
		line = "EXECABORT Transaction discarded because of: " + strings.TrimPrefix(line, "ERR ")
	}
	s.refuse(line)
}

// webRequest recognises the lines of HTTP with which a browser can be made to
// send Redis commands; Redis closes such connections without a word, too.
func webRequest(name []byte) bool { return equalFold(name, "POST") || equalFold(name, "HOST:") }

// mustWait reports whether the next command has to wait, and arranges that the
// session goes on when it need not any more.
func (s *session) mustWait() bool {
	l := s.loop
	switch {
	case s.inflight == 0:
		s.laneEpoch, s.exclusive, s.patient, s.astray = l.laneEpoch, false, false, false
		if s.backlog() > l.limits.output {
			return s.pause(waitOutput)
		}
		return false
	case s.exclusive, s.laneEpoch != l.laneEpoch:
		return s.pause(waitDrain)
	case s.inflight >= l.srv.opts.Clients.MaxInFlight:
		return s.pause(waitInFlight)
	case s.backlog() > l.limits.output:
		return s.pause(waitOutput)
	}
	return false
}

// pause makes the session wait for reason; it returns true for the convenience
// of callers. A client that waits for a blocking command, or for the end of a pause,
// is read on a little, so that its going away is noticed.
func (s *session) pause(reason waitReason) bool {
	s.wait = reason
	s.beginWait(reason)
	if !s.patient && reason != waitPause {
		s.conn.PauseRead()
	}
	return true
}

// drain makes the next command wait until everything in flight is answered. It
// returns false when nothing is.
func (s *session) drain() bool {
	if s.inflight == 0 {
		return false
	}
	return s.pause(waitDrain)
}

// resume lets the session read on.
func (s *session) resume() {
	if s.closed || s.wait == waitNothing {
		return
	}
	s.wait = waitNothing
	if s.conn.ReadPaused() {
		s.conn.ResumeRead()
		return
	}
	s.conn.Redeliver()
}

// backlog is the number of reply bytes the client has not taken yet.
func (s *session) backlog() int { return s.conn.Buffered() + s.held + len(s.pushes) }

// congests reports whether ln has to stop delivering to this client.
//
// Invariant: a lane that is held only because of replies behind the head of the
// queue carries nothing older than that head. So the oldest request of the loop can
// always be delivered, and clients never wait for each other in a circle.
func (s *session) congests(ln *lane) bool {
	limit := s.loop.limits.output
	return !s.closed && (s.conn.Buffered() > limit || s.backlog() > limit && !s.awaits(ln))
}

// awaits reports whether the head of the queue, or something older, comes by ln.
func (s *session) awaits(ln *lane) bool {
	next := ln.inflight.head
	return s.head != nil && (s.head.seq == 0 || next != nil && next.seq <= s.head.seq)
}

// write appends reply bytes to the output.
func (s *session) write(b []byte) {
	s.fill()
	s.conn.Out = append(s.conn.Reserve(len(b)), b...)
	s.conn.Dirty()
}

// reply answers the present command with b, in its turn.
func (s *session) reply(b []byte) {
	if s.captured != nil {
		s.captured.out = append(s.captured.out, b...)
		return
	}
	if s.stalledAt != 0 {
		s.noteStalled(b, fromProxy)
	}
	if s.muted() {
		return
	}
	if s.head == nil {
		s.write(b)
		return
	}
	r := s.loop.newRequest(s, nil)
	s.enqueue(r)
	r.buf = append(r.buf[:0], b...)
	r.state = replyReady
	s.hold(len(b))
}

// refuse answers the present command with an error line.
func (s *session) refuse(line string) {
	s.loop.refused = true
	if s.tx != nil && s.tx.queueing {
		s.tx.aborted = true
	}
	s.errorNotAborting(line)
}

// enqueue appends r to the reply queue.
func (s *session) enqueue(r *request) {
	r.next = nil
	if s.tail == nil {
		s.head = r
	} else {
		s.tail.next = r
	}
	s.tail = r
	s.inflight++
	if r.cmd != nil {
		s.stamp(r)
	}
}

func (s *session) hold(n int) {
	s.fill()
	s.held += n
}

// advance removes the head, whose reply has been written, writes every further
// reply that is complete, and the beginning of the next one if it is there.
func (s *session) advance() {
	l := s.loop
	s.midReply = false
	for {
		r := s.head
		s.head = r.next
		if s.head == nil {
			s.tail = nil
		}
		s.inflight--
		if r.hushes {
			s.spoken(r)
		}
		if len(r.trail) > 0 {
			s.held -= len(r.trail)
			s.writePush(r.trail)
		}
		l.release(r)
		r = s.head
		if r == nil || r.state == replyWaiting {
			break
		}
		s.write(r.buf)
		s.held -= len(r.buf)
		if r.state == replyPartial {
			r.buf = nil
			s.midReply = true
			break
		}
	}
	s.conn.Expect(s.head != nil)
	s.flushPushes()
	s.progress()
}

// progress re-examines what the session waits for after replies were written.
func (s *session) progress() {
	if s.wait == waitOutput || len(s.holding) > 0 {
		s.relieve()
	}
	switch {
	case s.closing && s.inflight == 0:
		s.conn.CloseAfterFlush()
	case s.wait == waitDrain && s.inflight == 0,
		s.wait == waitInFlight && s.inflight <= s.loop.srv.opts.Clients.MaxInFlight/2:
		s.resume()
	case s.eof && s.atRest():
		s.finishAndClose()
	}
}

// OnFlushed goes on once the client has read enough.
func (s *session) OnFlushed() { s.relieve() }

// relieve ends what the backlog holds up, as far as it has shrunk: by what the
// client has read, or by what has left the reply queue.
func (s *session) relieve() {
	half := s.loop.limits.output / 2
	if s.conn.Buffered() > half {
		return
	}
	low := s.backlog() <= half
	kept := s.holding[:0]
	for _, ln := range s.holding {
		switch {
		case ln.closed:
		case low, s.awaits(ln):
			ln.release()
		default:
			kept = append(kept, ln)
		}
	}
	s.holding = kept
	if low && s.wait == waitOutput {
		s.resume()
	}
}

func (s *session) holds(ln *lane) bool {
	for _, o := range s.holding {
		if o == ln {
			return true
		}
	}
	return false
}

// OnEOF: the client will send nothing more, but gets every reply it asked for.
func (s *session) OnEOF() {
	s.eof = true
	if s.upload != nil || s.subscriptions() > 0 || s.exclusive && s.patient {
		s.close("client went away")
		return
	}
	if s.wait == waitPause || s.atRest() {
		s.finishAndClose()
	}
}

// OnHangup: the client has shut down its sending side behind requests that are not read yet. If
// it is blocked it is taken for gone, as when all of them had been read.
func (s *session) OnHangup() {
	if s.blocked() {
		s.close("client went away")
	}
}

// finishAndClose closes once every reply has been written.
func (s *session) finishAndClose() {
	s.closing = true
	if !s.patient { // see pause
		s.conn.PauseRead()
	}
	if s.inflight == 0 {
		s.conn.CloseAfterFlush()
	}
}

// close drops the client at once.
func (s *session) close(reason string) {
	if s.closed {
		return
	}
	s.loop.srv.log.Debug("client closed", "client", s.addr, "reason", reason)
	s.conn.Close()
	s.detach()
}

// OnClose: the connection is gone.
func (s *session) OnClose(error) { s.detach() }

// detach takes the session out of everything. Requests in flight stay on their
// lanes as orphans, whose replies are dropped.
func (s *session) detach() {
	if s.closed {
		return
	}
	s.closed = true
	l := s.loop
	for r := s.head; r != nil; {
		next := r.next
		s.noteGone(r)
		r.sess, r.next = nil, nil
		l.abandon(r)
		r = next
	}
	s.head, s.tail, s.inflight, s.held, s.delayed, s.delays = nil, nil, 0, 0, 0, nil
	if s.alarm != nil {
		s.alarm.Stop()
	}
	if s.upload != nil && s.upload.request != nil {
		l.drop(s.upload.request)
	}
	for _, ln := range s.holding {
		if !ln.closed {
			ln.release()
		}
	}
	s.holding = nil
	l.paused.held = without(l.paused.held, s)
	s.leaveAll()
	s.unpin()
	s.leaveHome()
	if l.guard != nil {
		l.guard.leave(s)
	}
	s.stopMonitor()
	s.unheard()
	s.unmeter()
	l.kept -= int64(s.kept)
	l.goneIn += s.conn.Received()
	l.goneOut += s.conn.Sent()
	delete(l.sessions, s)
	l.load.Add(-1)
	l.srv.clients.Add(-1)
}

// touched reports whether a command in flight on a shared lane may concern
// stripe: a cached or fetched answer could then overtake it.
func (s *session) touched(stripe nearcache.Stripe) bool {
	return s.everyKey > 0 || s.touching != nil && s.touching[stripe&63] > 0
}

// behind reports whether a command in flight on a shared lane may concern what q asks,
// by the name of its key or by a set that the key belongs to.
func (s *session) behind(q *nearcache.Question) bool {
	if s.touches == 0 && s.everyKey == 0 {
		return false
	}
	if s.touched(s.loop.cache.StripeOf(q.Hash())) {
		return true
	}
	group, in := s.loop.groupStripe(q.Key)
	return in && s.touched(group)
}

// unhurried reports whether nothing of the session is under way that an answer from memory could
// overtake, and nothing in force that keeps it from being served from memory.
func (s *session) unhurried() bool {
	return s.touches == 0 && s.everyKey == 0 && s.fetching == 0 && s.tx == nil && s.home == nil
}

func (s *session) touch(stripe nearcache.Stripe) {
	if stripe == nearcache.All {
		s.everyKey++
		return
	}
	if s.touching == nil {
		s.touching = new([64]uint32)
	}
	s.touching[stripe&63]++
	s.touches++
}

func (s *session) untouch(stripe nearcache.Stripe) {
	if stripe == nearcache.All {
		s.everyKey--
		return
	}
	s.touching[stripe&63]--
	s.touches--
}

// equalFold compares an argument with an upper-case word, ignoring case.
func equalFold(arg []byte, word string) bool {
	return len(arg) == len(word) && bytes.EqualFold(arg, []byte(word))
}
