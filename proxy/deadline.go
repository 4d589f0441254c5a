package proxy

import "fmt"

// The deadline. No client waits for a reply longer than upstream.timeout (and one tick), whatever happens to its command:
// its time begins when the command is dispatched first (request.since), and goes on while it waits for a node or for room in a
// queue (session.heldUp), while a connection is made, when it is sent again, redirected, or goes past the near-cache
// after a fetch. Waiting behind others' commands on a shared lane is part of it.
//
// It is the client's session that keeps time, because every command has its place there, wherever its bytes are. The tick looks at
// the oldest command of each session that has something in flight (loop.filled). A command whose time is over is given
// up by itself, and the connection lives on as long as anything comes by it (else lane.timedOut ends it, or lane.clogged):
//
//	to be sent again            it is not
//	on a lane that is dialling  its bytes are taken back, see lane.withdraw
//	on a private lane           the lane is closed: nobody else waits there, and its state is not certain any more
//	anywhere else               its client is answered, and it stays where it is as the request of a client that has gone
//	                            would (session.detach): it keeps its place in the lane's queue, so its late reply reaches nobody,
//	                            and a write stays pending in the near-cache until that reply has come, or the lane has ended
//
// Exempt are commands that block, requests that still arrive, replies that have begun to arrive, clients that do not take
// their replies, and what is to be sent again after a CLIENT PAUSE.

// heldUp is why the next command of a session waits for the backend before it can be sent.
type heldUp struct {
	since  int64 // mono
	reason waitReason
	line   string // the error when that lasts too long
}

// holdUp makes the next command wait, for as long as its time allows; it returns true for the convenience of callers.
func (s *session) holdUp(reason waitReason, line string) bool {
	if s.heldUp == nil {
		s.heldUp = &heldUp{since: s.loop.now()}
		s.fleeting = true
	}
	s.heldUp.reason, s.heldUp.line = reason, line
	return s.pause(reason)
}

// overdue reports whether the next command has been held up for so long that it is not sent any more.
func (s *session) overdue() bool { return s.heldUp != nil && s.heldUp.since <= s.loop.begunInTime() }

// outOfTime refuses the next command if it is overdue. Who waits for the backend's verdict on it has to see to that itself.
func (s *session) outOfTime(args [][]byte) bool {
	if !s.overdue() || s.heldUp.reason == waitVerdict {
		return false
	}
	s.loop.stats.Timeouts++
	s.lastCmd = s.loop.table.Called(args)
	s.reject(args[0], s.heldUp.line)
	return true
}

// begunInTime is the moment after which commands must have begun to have time left.
func (l *loop) begunInTime() int64 { return l.now() - int64(l.srv.opts.Upstream.Timeout) }

// lastTry is when r is sent again for the last time.
func (l *loop) lastTry(r *request) int64 { return r.since + l.hopeTime() }

// timeoutLine is the error of what has waited for too long; addr is empty when it is not one server.
func (l *loop) timeoutLine(addr string) string {
	if addr == "" {
		return fmt.Sprintf("ERR cosky-proxy timed out after %s waiting for the backend", l.srv.opts.Upstream.Timeout)
	}
	return fmt.Sprintf("ERR cosky-proxy timed out after %s waiting for backend %s", l.srv.opts.Upstream.Timeout, addr)
}

// timed reports whether the session waits for something that has to come in time.
func (s *session) timed() bool { return s.head != nil && !s.patient || s.heldUp != nil }

// place is where r's client waits for it: r itself, or the request that r is a part of.
func (r *request) place() *request {
	switch sk := r.sink.(type) {
	case *scatter:
		return sk.parent
	case *sweep:
		return sk.parent
	case *censusPart:
		return sk.c.sw.parent
	}
	return r
}

// keepTime gives up commands whose time is over. The loop's tick calls it.
func (l *loop) keepTime(now int64) {
	begun := now - int64(l.srv.opts.Upstream.Timeout)
	var late []*session
	for i := 0; i < len(l.filled); i++ { // others may come
		s := l.filled[i]
		if s.closed {
			continue
		}
		if s.overdue() && s.wait.forBackend() {
			s.resume()
		}
		if s.mark(begun) {
			late = append(late, s)
		}
	}
	if len(late) == 0 {
		return
	}
	l.takeBack()
	for _, s := range late {
		s.giveUp()
		l.pursue(s)
	}
}

// forBackend: a command that waits so is held up by the backend.
func (w waitReason) forBackend() bool {
	switch w {
	case waitInquiry, waitLane, waitVerdict, waitTopics, waitNode:
		return true
	}
	return false
}

// mark finds the requests whose time is over, those that began at begun or before. It reports whether there are any.
func (s *session) mark(begun int64) (found bool) {
	l := s.loop
	if s.conn.Buffered() > l.limits.output/2 { // its replies may be held up for its own sake, see relieve
		s.slowAt = l.now()
	}
	if s.patient || s.slowAt > begun || l.paused.kind != pauseNone && s.delayed > 0 {
		return false
	}
	for r := s.head; r != nil && r.since <= begun; r = r.next { // they are in order of their age
		if r.state == replyWaiting && r.since != 0 {
			r.late, found = true, true
			l.stats.Timeouts++
		}
	}
	return found
}

// takeBack ends what of late requests is on lanes that are not ready or not shared.
func (l *loop) takeBack() {
	var lanes []*lane
	for _, n := range l.nodes {
		for ln := range n.opened {
			if ln.endsLate() {
				lanes = append(lanes, ln)
			}
		}
	}
	for _, ln := range lanes {
		switch {
		case ln.closed: // its end was that of another one
		case ln.ready:
			ln.lost(ln.overdue())
		default:
			for _, q := range ln.withdraw() {
				l.abort(q, l.timeoutLine(ln.node.addr))
			}
		}
	}
}

// endsLate reports whether the lane has late requests that do not stay on it. Of parts that do it notes where they are.
func (ln *lane) endsLate() bool {
	for q := ln.inflight.head; q != nil; q = q.laneNext {
		switch p := q.place(); {
		case !p.givenUp():
		case !ln.ready, ln.kind == lanePin && !ln.survives(q):
			return true
		case p != q:
			p.origin = ln.node.addr
		}
	}
	return false
}

// givenUp reports whether r is late and its client is still to be told.
func (r *request) givenUp() bool { return r.late && r.sess != nil }

// survives reports whether a private lane is of further use when q is given up: a home is, unless its state is what q is about.
func (ln *lane) survives(q *request) bool {
	sc, part := q.sink.(*scatter)
	return ln.home != nil && !q.alone && !q.private && (q.sink == nil || part && sc.after == nil)
}

// clogged reports whether what was given up has not left the lane within the same time again. What is behind it has no better
// prospects, and clients that go on asking would fill the queue for as long as anything comes by the lane.
func (ln *lane) clogged(now int64) bool {
	r := ln.inflight.head
	return r != nil && ln.ready && !ln.scanner.Started() && !ln.conn.ReadPaused() && r.place().late && now-r.sentAt > 2*int64(ln.loop.srv.opts.Upstream.Timeout)
}

// withdraw takes late requests back from a lane that is not ready, so that nothing has been written. In the place of each goes what
// has no effect: what was sent to prepare it is about the next command.
func (ln *lane) withdraw() (taken []*request) {
	queue, pending, end := ln.inflight, ln.pending, ln.queued
	first := end - uint64(len(pending))
	ln.inflight, ln.pending, ln.queued = fifo{}, make([]byte, 0, len(pending)), first
	for queue.head != nil {
		r, until := queue.pop(), end
		if queue.head != nil {
			until = queue.head.off
		}
		raw := pending[r.off-first : until-first] // of a request that was streamed, more than r.size
		if r.place().givenUp() {
			taken = append(taken, r)
			r, raw = ln.standIn(r)
		}
		r.off = ln.queued
		ln.queued += uint64(len(raw))
		ln.pending = append(ln.pending, raw...)
		ln.inflight.push(r)
	}
	return taken
}

// standIn takes q off the lane and makes what goes in its place.
func (ln *lane) standIn(q *request) (o *request, raw []byte) {
	raw = []byte("*1\r\n$4\r\nPING\r\n")
	if q.block != nil { // the commands before it are queued
		raw = []byte("*1\r\n$7\r\nDISCARD\r\n")
	}
	o = ln.loop.newRequest(nil, nil)
	o.sink, o.alone, o.lane, o.size, o.seq, o.sentAt = ignore{}, true, ln, len(raw), q.seq, q.sentAt
	q.lane = nil
	return o, raw
}

// giveUp answers the session's late requests.
func (s *session) giveUp() {
	var before *request
	for r := s.head; r != nil && !s.closed; {
		if !r.late || r.state != replyWaiting {
			before, r = r, r.next
			continue
		}
		stays := s.end(r, before)
		if before == nil { // it has been written, perhaps with others behind it
			r = s.head
			continue
		}
		before, r = stays, stays.next
	}
}

// end answers r, which is late and follows before in the reply queue, and returns what has its place there.
func (s *session) end(r, before *request) *request {
	l := s.loop
	if s.undelay(r) {
		return r
	}
	line := l.timeoutLine(l.waitsFor(r))
	if !l.onlyReads(r) {
		line = (&ending{line: line}).doubtful()
	}
	p := s.supersede(r, before)
	l.abort(p, line)
	return p
}

// waitsFor is the address of the server that r waits for, empty if there are several or none.
func (l *loop) waitsFor(r *request) string {
	switch {
	case r.lane != nil:
		return r.lane.node.addr
	case l.clusters && !r.keyed:
		return r.origin
	}
	if n, none := l.owner(r.slot); none == "" {
		return n.addr
	}
	return ""
}

// undelay ends r, or those of its parts, that were to be sent again. It reports whether that is the end of r.
func (s *session) undelay(r *request) (ended bool) {
	l := s.loop
	for at, q := range s.flights {
		switch {
		case at != r || q.again == nil:
			continue
		case q.again.why != premature:
			q.again.line = l.timeoutLine(l.waitsFor(q))
		}
		l.tooLate(s, q)
		if !r.late || r.state != replyWaiting { // FIFO and parts may be others by now
			return true
		}
	}
	return false
}

// begin has the time of r, and of its parts, begin anew.
func (r *request) begin(now int64) {
	if r.since != 0 {
		r.since = now
	}
	if r.parts != nil {
		for c := range r.parts.unanswered {
			c.since = now
		}
	}
}

// supersede leaves r, whose client is about to be told that it is given up, to its lane or whoever else holds it. It returns what
// takes r's place in the reply queue, behind before.
func (s *session) supersede(r, before *request) *request {
	p := s.loop.newRequest(nil, r.cmd)
	p.raw = append(p.raw[:0], r.raw...)
	p.db, p.resp3, p.as, p.mute, p.slot, p.keyed = r.db, r.resp3, r.as, r.mute, r.slot, r.keyed
	p.sentAt, p.since, p.spared, p.block = r.sentAt, r.since, r.spared, r.block
	p.arrived, p.length, p.head, p.origin, p.retries, p.pauses = r.arrived, r.length, append(p.head[:0], r.head...), r.origin, r.retries, r.pauses
	p.hushes, r.hushes = r.hushes, false
	p.trail, r.trail = r.trail, nil
	p.sess, p.next = s, r.next
	if before == nil {
		s.head = p
	} else {
		before.next = p
	}
	if s.tail == r {
		s.tail = p
	}
	s.discount(r)
	r.sess, r.next = nil, nil
	return p
}

// discount takes r out of what the session counts of its requests in flight.
func (s *session) discount(r *request) {
	for _, t := range r.touches {
		s.untouch(t.stripe)
	}
	if r.ordered {
		r.ordered = false
		s.everyKey--
	}
	switch r.awaits {
	case awaitsView:
		s.viewing--
		s.fetching--
	case awaitsFetch:
		s.fetching--
	}
	r.awaits = awaitsNothing
}
