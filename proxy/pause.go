package proxy

import (
	"math"
	"slices"
	"strings"
	"time"

	"cosky-proxy/proxy/netloop"
	"cosky-proxy/router/command"
)

// pauseKind says whose commands CLIENT PAUSE holds; the greater holds more.
type pauseKind uint8

const (
	pauseNone pauseKind = iota
	pauseWrites
	pauseAll
)

// pauseState is a pause as one loop knows it. All loops are told before the client
// that asked for it is answered.
type pauseState struct {
	kind    pauseKind
	until   int64 // mono
	timer   *netloop.Timer
	held    []*session
	delayed []*session // with requests that were to be sent again; see goOn
}

// clientPause holds clients back: here, so that what Redis replicates or does for
// itself goes on. Another pause can only make it longer and stricter (pauseClients).
func (s *session) clientPause(cmd *command.Command, args [][]byte, _ []byte) bool {
	kind := pauseAll
	if len(args) > 4 {
		s.refuse(errClientSubcommand(args))
		return true
	}
	if len(args) == 4 {
		switch {
		case equalFold(args[3], "WRITE"):
			kind = pauseWrites
		case !equalFold(args[3], "ALL"):
			s.refuse("ERR CLIENT PAUSE mode must be WRITE or ALL")
			return true
		}
	}
	ms, ok := integer(args[2])
	switch {
	case !ok:
		s.refuse("ERR timeout is not an integer or out of range")
		return true
	case ms < 0:
		s.refuse("ERR timeout is negative")
		return true
	}
	until := int64(math.MaxInt64)
	if now := s.loop.now(); ms < (math.MaxInt64-now)/int64(time.Millisecond) {
		until = now + ms*int64(time.Millisecond)
	}
	return s.onEveryLoop(cmd, func(o *loop, done func()) {
		o.suspend(kind, until)
		o.outlast(done)
	})
}

func (s *session) clientUnpause(cmd *command.Command, _ [][]byte, _ []byte) bool {
	return s.onEveryLoop(cmd, func(o *loop, done func()) {
		o.unsuspend()
		done()
	})
}

// onEveryLoop runs f on every loop and answers OK when all are done.
func (s *session) onEveryLoop(cmd *command.Command, f func(o *loop, done func())) bool {
	r, ready := s.promise(cmd)
	if !ready {
		return false
	}
	l := s.loop
	missing := len(l.srv.loops)
	arrived := func() {
		if missing--; missing == 0 {
			l.keep(r, replyOK)
		}
	}
	for _, o := range l.srv.loops {
		o.nl.Post(func() { f(o, func() { l.nl.Post(arrived) }) })
	}
	return true
}

// outlast calls done when what was on its way to the backend has been executed: nothing
// is written after a pause has been answered. What blocks there goes on blocking.
func (l *loop) outlast(done func()) {
	missing := 1
	arrived := func() {
		if missing--; missing == 0 {
			done()
		}
	}
	for _, n := range l.nodes {
		for ln := range n.opened {
			if ln.inflight.len > 0 && !ln.keepsToItself() {
				missing++
				ln.ping(&pong{ln: ln, done: arrived})
			}
		}
	}
	arrived()
}

// keepsToItself reports whether a PING on the lane would be answered late, or become a
// part of something else.
func (ln *lane) keepsToItself() bool {
	s := ln.owner
	return ln.kind == laneFetch || ln.monitor != nil ||
		s != nil && (s.patient || s.upload != nil || s.tx != nil && s.tx.live != nil)
}

func (l *loop) suspend(kind pauseKind, until int64) {
	p := &l.paused
	p.kind, p.until = max(p.kind, kind), max(p.until, until)
	if p.timer == nil {
		p.timer = l.nl.AfterFunc(time.Duration(p.until-l.now()), l.unsuspend)
		return
	}
	p.timer.Reset(time.Duration(p.until - l.now()))
}

// unsuspend lets the clients go on with the commands that were held.
func (l *loop) unsuspend() {
	held, delayed := l.paused.held, l.paused.delayed
	if l.paused.timer != nil {
		l.paused.timer.Stop()
	}
	l.paused = pauseState{}
	for _, s := range delayed {
		for r := s.head; r != nil; r = r.next { // a pause is none of their time
			r.begin(l.now())
		}
		l.pursue(s)
	}
	for _, s := range held {
		if s.wait == waitPause {
			s.resume()
		}
	}
}

// suspended reports whether a pause holds the command; then it comes again when the
// pause is over. Redis holds at the same point: whatever it would refuse is refused.
func (s *session) suspended(cmd *command.Command, args [][]byte) bool {
	p := &s.loop.paused
	if p.kind == pauseWrites && !s.loop.mayReplicate(cmd, args) && !(cmd.Name == "exec" && s.tx != nil && s.tx.replicates) {
		return false
	}
	p.held = append(p.held, s)
	s.heldUp = nil // the time of its command begins anew
	return s.pause(waitPause)
}

// suspends reports whether a pause holds back a request that was to be sent again.
func (l *loop) suspends(r *request) bool {
	switch l.paused.kind {
	case pauseNone:
		return false
	case pauseAll:
		return true
	}
	if r.block != nil {
		return r.block.tx.replicates
	}
	cmd := r.cmd
	if sc, ok := r.sink.(*scatter); ok {
		cmd = sc.parent.cmd
	}
	return cmd != nil && l.mayReplicate(cmd, l.parse(r.raw))
}

// mayReplicate reports whether the command may send something to replicas. A script
// that says it does not write is believed, as by Redis; of a function nothing is known here.
func (l *loop) mayReplicate(cmd *command.Command, args [][]byte) bool {
	if !cmd.MayWrite() {
		return false
	}
	if len(args) < 2 { // the rest is still on its way
		return true
	}
	switch cmd.Name {
	case "eval":
		return !writesNothing(string(args[1]))
	case "evalsha":
		return !writesNothing(l.srv.scripts.text(args[1]))
	}
	return true
}

// writesNothing reports whether a script has the flag no-writes in its first line, "#!lua name=… flags=a,b"
// (Redis' evalExtractShebangFlags).
func writesNothing(text string) bool {
	line, _, _ := strings.Cut(text, "\n")
	if !strings.HasPrefix(line, "#!") {
		return false
	}
	for _, word := range strings.Fields(line) {
		if flags, found := strings.CutPrefix(word, "flags="); found && slices.Contains(strings.Split(flags, ","), "no-writes") {
			return true
		}
	}
	return false
}
