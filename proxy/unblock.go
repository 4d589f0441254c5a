package proxy

import (
	"bytes"
	"slices"
	"strconv"
	"time"

	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// clientUnblock ends the blocking command of another client, which waits on a
// private connection: the backend is told to unblock that one.
func (s *session) clientUnblock(cmd *command.Command, args [][]byte, _ []byte) bool {
	reason := "TIMEOUT"
	if len(args) > 4 {
		s.refuse(errClientSubcommand(args))
		return true
	}
	if len(args) == 4 {
		if reason = string(bytes.ToUpper(args[3])); reason != "TIMEOUT" && reason != "ERROR" {
			s.refuse("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")
			return true
		}
	}
	id, ok := integer(args[2])
	if !ok {
		s.refuse("ERR value is not an integer or out of range")
		return true
	}
	r, ready := s.promise(cmd)
	if !ready {
		return false
	}
	l := s.loop
	answer := func(n int64) { l.keep(r, resp.AppendInt(nil, n)) }
	gather(l, func(o *loop) bool {
		t := o.client(id)
		return t != nil && t.unblock(reason, func(n int64) { l.nl.Post(func() { answer(n) }) })
	}, func(parts []bool) {
		if !slices.Contains(parts, true) {
			answer(0)
		}
	})
	return true
}

// client is the client of this loop with the given id; nil: there is none.
func (l *loop) client(id int64) *session {
	for c := range l.sessions {
		if c.id == id {
			return c
		}
	}
	return nil
}

// unblocking is one CLIENT UNBLOCK on its way to the backend.
type unblocking struct {
	lanes  []*lane  // where the client waits and has not been unblocked
	r      *request // for this
	seq    uint64
	target *session
	reason string
	until  int64 // asking again ends (mono)
	done   func(n int64)
	asked  int  // answers still to come
	hit    bool // it was unblocked somewhere
}

// unblockPatience is how long a command that is on its way to the backend may take to
// block there.
const (
	unblockPatience = time.Second
	unblockPause    = 2 * time.Millisecond
)

// unblock tells the backend to end the blocking command in flight. False: none is,
// and done will not be called.
func (s *session) unblock(reason string, done func(n int64)) bool {
	r := s.head
	if r == nil || !s.exclusive || !s.patient || s.upload != nil {
		return false
	}
	u := &unblocking{r: r, seq: r.seq, target: s, reason: reason, done: done, until: s.loop.now() + int64(unblockPatience)}
	u.lanes = append(u.lanes, s.waiting...)
	if len(u.lanes) == 0 && r.lane != nil {
		u.lanes = append(u.lanes, r.lane)
	}
	if len(u.lanes) == 0 {
		return false
	}
	for _, ln := range u.lanes {
		// Another client that leased it could be hit by what is late.
		ln.strayed = true
	}
	u.ask(s.loop)
	return true
}

// over reports whether the command has been answered.
func (u *unblocking) over() bool {
	return u.target.closed || u.target.head != u.r || u.r.seq != u.seq
}

func (u *unblocking) ask(l *loop) {
	if u.over() {
		u.finish()
		return
	}
	for i, ln := range u.lanes {
		if ln == nil || ln.closed || !ln.ready || ln.serverID == 0 {
			continue
		}
		via, cause := ln.node.lane(laneKey{}) // whether the client may do this has been decided
		if cause != "" {
			continue
		}
		q := l.newRequest(nil, nil)
		q.sink, q.alone, q.index = u, true, int32(i)
		l.enc = resp.AppendCommand(l.enc[:0], "CLIENT", "UNBLOCK", strconv.FormatInt(ln.serverID, 10), u.reason)
		u.asked++
		via.send(q, l.enc)
	}
	if u.asked == 0 {
		u.again(l)
	}
}

// deliver takes one node's answer. If it was not blocked there, the command may still be on its
// way there, on another connection than the question.
func (u *unblocking) deliver(l *loop, q *request, reply []byte) {
	if string(reply) == ":1\r\n" {
		u.hit, u.lanes[q.index] = true, nil
	}
	l.release(q)
	if u.asked--; u.asked == 0 {
		u.again(l)
	}
}

// finish answers who asked.
func (u *unblocking) finish() {
	if u.hit {
		u.done(1)
	} else {
		u.done(0)
	}
}

func (u *unblocking) again(l *loop) {
	waits := slices.ContainsFunc(u.lanes, func(ln *lane) bool { return ln != nil })
	if !waits || u.over() || l.now() > u.until {
		u.finish()
		return
	}
	l.nl.AfterFunc(unblockPause, func() { u.ask(l) })
}
