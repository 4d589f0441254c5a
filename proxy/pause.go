package proxy

import (
	"math"
	"slices"
	"strings"
	"time"

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
	kind  pauseKind
	until int64 // mono
	held  []*session
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
	return s.onEveryLoop(cmd, func(o *loop) { o.suspend(kind, until) })
}

func (s *session) clientUnpause(cmd *command.Command, _ [][]byte, _ []byte) bool {
	return s.onEveryLoop(cmd, (*loop).unsuspend)
}

// onEveryLoop answers OK when f has run on every loop.
func (s *session) onEveryLoop(cmd *command.Command, f func(*loop)) bool {
	r, ready := s.promise(cmd)
	if !ready {
		return false
	}
	l := s.loop
	gather(l, func(o *loop) struct{} { f(o); return struct{}{} }, func([]struct{}) { l.keep(r, replyOK) })
	return true
}

func (l *loop) suspend(kind pauseKind, until int64) {
	p := &l.paused
	p.kind, p.until = max(p.kind, kind), max(p.until, until)
	l.nl.AfterFunc(time.Duration(p.until-l.now()), func() {
		if l.now() >= p.until {
			l.unsuspend()
		}
	})
}

// unsuspend lets the clients go on with the commands that were held.
func (l *loop) unsuspend() {
	held := l.paused.held
	l.paused = pauseState{}
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
	return s.pause(waitPause)
}

// mayReplicate reports whether the command may send something to replicas. A script
// that says it does not write is believed, as by Redis; of a function nothing is known here.
func (l *loop) mayReplicate(cmd *command.Command, args [][]byte) bool {
	if !cmd.MayWrite() {
		return false
	}
	switch cmd.Name {
	case "eval":
		return !writesNothing(string(args[1]))
	case "evalsha":
		return !writesNothing(l.srv.scripts.text(args[1]))
	}
	return true
}

// writesNothing reports whether a script has the flag no-writes in its first line.
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
