package proxy

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"cosky-proxy/router/command"
)

// Sending again, in order. What a node has refused, or what was lost unsent with a connection, is sent again: now,
// elsewhere, or after a pause. What its client has sent behind it is on its way already, so this alone would
// change the order in which commands are executed. Three rules keep it:
//
//   - A request waits in its place in the reply queue (request.again), and its session sends nothing new. It goes when
//     nothing is in flight any more that the client has sent behind it and that may concern the same
//     keys (clash), and in the order of the queue.
//   - When such a one was executed after all, or may have been, it is too late for the request: it is answered with the
//     refusal itself. It was not executed and the later one was, which is what Redis would have shown.
//   - A read does no harm. When it was executed too early, before the request that it is to see, its reply is kept back and it
//     is sent again behind that; unless it was too late for the request, or for the read: then the reply stands.
//
// A server that still may refuse one of several (node by node, key by key) gets no more than one of those that clash at a time, so that
// a second refusal costs nobody anything.

// resend is how a request waits to be sent again.
type resend struct {
	why    resendCause
	target string // address that a redirect names; empty: whoever serves the slot then
	asking bool   // ASKING goes before it
	due    int64  // not earlier (mono)
	line   string // the error that it is answered with if it is too late
	reply  []byte // premature: what it was answered
	reads  bool   // it only reads, as far as was known when it began to wait
}

// resendCause is why a request waits to be sent again.
type resendCause uint8

const (
	redirected resendCause = iota // the node has named another one
	refused                       // the node, or the slot, was in no state to execute it
	unsent                        // its connection was lost, and it was not executed or only reads
	premature                     // it only reads, and was executed before what it has to see
)

// Back-off between repeats of a command that was refused.
const (
	repeatFirst = 10 * time.Millisecond
	repeatMax   = 500 * time.Millisecond
)

// later sends r again after a while, as long as its time allows. line is the error that it is answered with when that is
// too late.
func (l *loop) later(r *request, line string) bool {
	if len(r.raw) == 0 || l.expired(r) || l.now() >= l.lastTry(r) {
		return false
	}
	wait := min(repeatFirst<<min(r.pauses, 8), repeatMax, time.Duration(l.lastTry(r)-l.now()))
	r.pauses = min(r.pauses+1, 200)
	l.stats.Retries++
	l.postpone(r, &resend{why: refused, due: l.now() + int64(wait), line: line})
	return true
}

// postpone has r wait in its place. Whoever calls it calls pursue when nothing else is to be done for the session.
func (l *loop) postpone(r *request, w *resend) {
	s := r.client()
	if s == nil {
		l.drop(r)
		return
	}
	r.again, w.reads = w, l.onlyReads(r)
	s.delayed++
	if s.delays == nil {
		s.delays = &delays{slots: make(map[uint16]int)}
	}
	s.delays.count(r, 1)
	s.exclusive = true
	s.fill()
	s.hold(len(w.reply))
	if w.due > 0 {
		l.wakeUp(s, w.due)
	}
}

// waitsNoMore is the end of postpone.
func (s *session) waitsNoMore(r *request) {
	s.held -= len(r.again.reply)
	s.delays.count(r, -1)
	if s.delayed--; s.delayed == 0 {
		s.delays = nil
	}
	r.again = nil
}

// drop ends a request that nobody waits for any more.
func (l *loop) drop(r *request) {
	if r.sink != nil && r.block == nil {
		l.abort(r, "ERR the client has gone")
		return
	}
	l.settle(r)
	l.release(r)
}

// abandon ends what waits of a request in the reply queue of a client that has gone, and the request
// if it is not on its way.
func (l *loop) abandon(r *request) {
	if sc := r.parts; sc != nil {
		for c := range sc.unanswered {
			if c.again == nil {
				continue
			}
			c.again = nil
			last := sc.missing == 1
			if l.drop(c); last { // sc may serve another command by now
				return
			}
		}
		return
	}
	if r.again != nil || r.state == replyReady {
		r.again = nil
		l.settle(r)
		l.release(r)
	}
}

// wakeUp calls pursue at the given time.
func (l *loop) wakeUp(s *session, at int64) {
	if s.alarmAt != 0 && s.alarmAt <= at {
		return
	}
	s.alarmAt = at
	wait := time.Duration(at - l.now())
	if s.alarm != nil {
		s.alarm.Reset(wait)
		return
	}
	s.alarm = l.nl.AfterFunc(wait, func() {
		s.alarmAt = 0
		l.pursue(s)
	})
}

// hurry lets all go that wait for their time only: the world has changed.
func (l *loop) hurry(s *session) {
	for _, o := range s.flights {
		if o.again != nil {
			o.again.due = 0
		}
	}
	l.pursue(s)
}

// chase has pursue look after s, for which requests wait, at the end of the turn: once for all that has arrived, or was lost, in it.
func (l *loop) chase(s *session) {
	if s.chased {
		return
	}
	s.chased = true
	l.nl.Post(func() {
		s.chased = false
		l.pursue(s)
	})
}

// pursue sends again what may go, in order.
func (l *loop) pursue(s *session) {
	if s.delayed == 0 || !l.mayGo(s, s.firstDelayed()) {
		return
	}
	t := s.survey()
	for s.delayed > 0 && l.goOn(s, t) {
	}
}

// firstDelayed is the first request that waits.
func (s *session) firstDelayed() *request {
	for _, o := range s.flights {
		if o.again != nil {
			return o
		}
	}
	panic("BUG: a request that waits to be sent again is in no queue")
}

// mayGo reports whether neither time nor a pause keeps r from being sent again.
func (l *loop) mayGo(s *session, r *request) bool {
	switch {
	case r.again.due > l.now():
		l.wakeUp(s, r.again.due)
		return false
	case l.suspends(r):
		if !slices.Contains(l.paused.delayed, s) {
			l.paused.delayed = append(l.paused.delayed, s)
		}
		return false
	}
	return true
}

// goOn sends the first that waits again. False: it has to wait on.
func (l *loop) goOn(s *session, t *traffic) bool {
	f := t.waiting[0]
	r := f.r
	if !l.mayGo(s, r) {
		return false
	}
	w := r.again
	n, cause := l.owner(r.slot)
	if w.target != "" {
		n, cause = l.node(w.target), ""
	}
	var ln *lane
	if cause == "" {
		ln, cause = l.laneFor(r, n)
	}
	before := s.delayed
	if cause == "" {
		switch o, behind := l.inTheWay(t, f, ln); {
		case o == nil:
		case behind && s.holds(o.lane): // until it has taken more replies, of which r's is the next
			l.tooLate(s, r)
			return t.without(s, before)
		default:
			return false
		}
	}
	s.waitsNoMore(r)
	switch {
	case cause == "":
		ln.sendKept(r, w.asking)
		t.add(f)
	case w.why == redirected:
		l.abort(r, cause)
	case w.why == unsent:
		l.detain(r, w.line)
	default:
		l.detain(r, cause)
	}
	return t.without(s, before)
}

// mayBeRefused reports whether a request that was sent again may be refused while one behind it is executed: it has been
// refused before, or it has several keys, which may be on their way to another node one by one.
func (r *request) mayBeRefused() bool {
	return r.pauses > 0 || r.block != nil || !r.command().SingleKey
}

// tooEarly deals with the reply of r, which was executed while requests wait that it may have to follow. True: r is
// a read, and waits behind them.
func (l *loop) tooEarly(s *session, r *request, reply []byte) bool {
	switch {
	case notExecuted(r, reply), l.waitsAhead(s, r) == nil:
		return false
	case l.repeatable(r):
		l.postpone(r, &resend{why: premature, reply: bytes.Clone(reply)})
		return true
	case l.clusters && !r.keyed && l.onlyReads(r): // it asks all of a cluster at the same time, more or less
		return false
	}
	l.forestall(s, r)
	return false
}

// notExecuted reports whether a reply says that r was not executed at all. A script may say so of its own accord.
func notExecuted(r *request, reply []byte) bool {
	if reply[0] != '-' || script(r) {
		return false
	}
	return elsewhere(reply[1:]) || bytes.HasPrefix(reply, []byte("-EXECABORT "))
}

// repeatable reports whether r is a read that can be sent again by itself.
func (l *loop) repeatable(r *request) bool {
	switch {
	case len(r.raw) == 0, r.private, r.state != replyWaiting:
		return false
	case r.block != nil:
		return r.block.tx.watches == 0 && r.block.tx.live == nil && l.onlyReads(r)
	}
	return !r.alone && l.onlyReads(r)
}

// forestall gives up those that wait and that r was to follow: r was executed, or may have been.
func (l *loop) forestall(s *session, r *request) {
	for {
		o := l.waitsAhead(s, r)
		if o == nil {
			return
		}
		l.tooLate(s, o)
	}
}

// waitsAhead is the first request that waits to be sent again and that r clashes with, nil if there is none. What the
// backend only queues comes behind nothing: EXEC, which waits for all that is before it, executes it.
func (l *loop) waitsAhead(s *session, r *request) *request {
	if onlyQueued(r) || s.delayed == 0 || s.delays.none(l, r) {
		return nil
	}
	place := r.place()
	for at, o := range s.flights {
		if at == place {
			return nil
		}
		if o.again != nil && l.clash(o, r) {
			return o
		}
	}
	return nil
}

// tooLate answers a request that waits, and is not sent again.
func (l *loop) tooLate(s *session, r *request) {
	w := r.again
	if w.why == premature { // its reply stands, and comes before those that it was to follow
		l.forestall(s, r)
		s.waitsNoMore(r)
		l.conclude(l.node(r.origin), r, w.reply)
		return
	}
	s.waitsNoMore(r)
	l.abort(r, w.line)
}

// overtaken reports whether something that the client has sent behind r, and that clashes with it, has been answered.
func (l *loop) overtaken(r *request) bool {
	if r.client() == nil {
		return false
	}
	for o := r.place().next; o != nil; o = o.next { // those that are divided have parts that are not answered
		if o.state != replyWaiting && o.cmd != nil && o.parts == nil && !onlyQueued(o) && l.clash(r, o) {
			return true
		}
	}
	return false
}

// flights are the requests of the session that are or were meant for lanes, with their places in the reply queue and in its
// order; of a command that is divided, its parts.
func (s *session) flights(yield func(place, r *request) bool) {
	for p := s.head; p != nil; p = p.next {
		switch {
		case p.parts != nil:
			for c := range p.parts.unanswered {
				if !yield(p, c) {
					return
				}
			}
		case p.cmd != nil && !onlyQueued(p):
			if !yield(p, p) {
				return
			}
		}
	}
}

// unanswered are the parts that are or were meant for lanes and have no answer yet.
func (sc *scatter) unanswered(yield func(*request) bool) {
	for i := range sc.children {
		if c := &sc.children[i]; c.sink == sink(sc) && !yield(c) {
			return
		}
	}
	for _, c := range sc.alone {
		if c.sink == sink(sc) && !yield(c) {
			return
		}
	}
}

// command is the client's command that r is, or is a part of.
func (r *request) command() *command.Command { return r.place().cmd }

// client is the session that waits for r, directly or through its scatter.
func (r *request) client() *session { return r.place().sess }

// reach is what a request may read or write.
type reach struct {
	keys [][]byte // empty: nothing
	all  bool     // every key; in front of a cluster, every key of its slot
}

// clash reports whether it shows in which order r and o are executed: both may concern the same key, and one of
// them may write.
//
// A script may touch keys that it does not declare. In front of a cluster these are of the same slot; a
// redirect is about the declared ones alone, and whoever declares others is not held up by it.
func (l *loop) clash(r, o *request) bool {
	if r.keyed && o.keyed && r.slot != o.slot || l.onlyReads(r) && l.onlyReads(o) {
		return false
	}
	declared := r.again != nil && r.again.why == redirected
	a := l.reachOf(r, declared, l.reached[0][:0])
	l.reached[0] = a.keys
	if !a.all && len(a.keys) == 0 {
		return false
	}
	b := l.reachOf(o, declared, l.reached[1][:0])
	l.reached[1] = b.keys
	switch {
	case !b.all && len(b.keys) == 0:
		return false
	case a.all, b.all, len(a.keys)*len(b.keys) > maxCompared:
		return true
	}
	for _, key := range a.keys {
		for _, other := range b.keys {
			if bytes.Equal(key, other) {
				return true
			}
		}
	}
	return false
}

// maxCompared bounds the pairs of keys that clash compares.
const maxCompared = 1 << 12

// reachOf appends to keys.
func (l *loop) reachOf(r *request, declared bool, keys [][]byte) reach {
	if r.block == nil {
		if len(r.raw) == 0 {
			return reach{keys, true}
		}
		return l.reachOfCommand(r.command(), l.parse(r.raw), r.keyed, declared, keys)
	}
	tx := r.block.tx
	if len(tx.own)+len(tx.infos) > 0 {
		return reach{keys, true}
	}
	all, block := false, tx.block
	for i, size := range tx.lengths {
		part := l.reachOfCommand(tx.cmds[i], l.parse(block[:size]), r.keyed, declared, keys)
		keys, all, block = part.keys, all || part.all, block[size:]
	}
	return reach{keys, all}
}

func (l *loop) reachOfCommand(cmd *command.Command, args [][]byte, keyed, declared bool, keys [][]byte) reach {
	l.positions, _ = cmd.Keys(args, l.positions[:0])
	for _, k := range l.positions {
		keys = append(keys, args[k])
	}
	switch {
	case cmd.Script:
		return reach{keys, !declared && (keyed || !l.clusters)}
	case cmd.Has(command.Module), hidesKeys(cmd, args):
		return reach{keys, true}
	case len(l.positions) > 0:
		return reach{keys, false}
	}
	return reach{keys, cmd.Flags&(command.Write|command.ReadOnly) != 0 || changesEverything(cmd)}
}

// errOvertaken is the answer to a request that was redirected in vain: redirects are no matter of clients'.
func errOvertaken(line string) string {
	return fmt.Sprintf("ERR cosky-proxy did not execute this command: a backend said %s, and then executed what was sent behind it", line)
}
