package proxy

import (
	"fmt"

	"cosky-proxy/lua"
	"cosky-proxy/router/command"
)

// The fate of requests whose connection has ended without an answer to them:
//
//	not written, not even to its end     was not executed: it is sent again, to whoever serves its slot now
//	written, and only reads              sent again as well: it does no harm to read twice
//	written, and may have had effects    nobody knows, and the client is told so: never sent again
//
// What is sent again keeps its place among the requests of its client (again.go). Nothing is when
// upstream.timeout has passed since its command was dispatched first: deadline.go ends it wherever it is then.

// ending is why a connection ends.
type ending struct {
	line    string // the error of what is in flight
	cause   string // what follows it
	written bool   // requests may have reached the backend: an error says so
	again   bool   // what may be sent again is
}

// doubtful is what the client is told of a request whose fate nobody knows.
func (e *ending) doubtful() string {
	return e.line + ", fate unknown" + e.cause + ": the command may or may not have been executed"
}

func (e *ending) certain() string { return e.line + e.cause }

// broken is the end of a connection that the backend, or the network, has ended.
func (ln *lane) broken(err error) ending {
	return ending{
		line: "ERR cosky-proxy connection lost", cause: fmt.Sprintf(" (backend %s: %v)", ln.node.addr, err),
		written: true, again: true,
	}
}

// overdue is the end of a connection on which nothing comes.
func (ln *lane) overdue() ending {
	return ending{
		line:    ln.loop.timeoutLine(ln.node.addr),
		written: true, again: true,
	}
}

// replaced is the end of a connection to a master that has been replaced and says nothing.
func (ln *lane) replaced() ending {
	return ending{
		line: "ERR cosky-proxy connection lost", cause: fmt.Sprintf(" (backend %s was replaced and does not answer)", ln.node.addr),
		written: true, again: true,
	}
}

// decide says what becomes of r. unsent are the queued bytes that the kernel never took, from position
// from on.
func (l *loop) decide(ln *lane, r *request, e *ending, from uint64, unsent []byte) {
	if r.from != masterOnly && ln.node.replica != nil {
		if !l.readAgain(ln, r) && (r.from == replicaOnly || !l.sendAgain(ln, r, r.raw, e)) {
			l.abort(r, e.certain())
		}
		return
	}
	if e.again && onlyQueued(r) { // EXEC sends the whole transaction again, or learns what was lost with its watch
		l.deliver(r, replyQueued)
		return
	}
	if e.again && r.off >= from && r.uploads() && l.restream(ln, r, unsent[r.off-from:]) {
		return
	}
	written := e.written && r.off+uint64(r.size) <= from && !onlyQueued(r) && !ln.receives(r)
	doubtful := written && !l.onlyReads(r)
	if e.again && !doubtful && !(written && l.overtaken(r)) {
		raw := r.raw
		if len(raw) == 0 && r.off >= from && !r.alone {
			raw = unsent[r.off-from:][:r.size]
		}
		if l.sendAgain(ln, r, raw, e) {
			return
		}
	}
	if s := r.client(); s != nil && s.delayed > 0 && r.off < from && !l.onlyReads(r) { // it may have been executed
		l.forestall(s, r)
	}
	if doubtful {
		l.abort(r, e.doubtful())
		return
	}
	l.abort(r, e.certain())
}

// receives reports whether the end of r, an upload, is still to come from its client.
func (ln *lane) receives(r *request) bool {
	s := ln.owner
	return s != nil && r.sess == s && s.upload != nil && s.upload.pin == ln
}

// sendAgain sends r, which has not been executed or only reads, to the present owner of its keys, now or,
// while there is hope, later. False: it cannot be sent again, or its time is over.
func (l *loop) sendAgain(ln *lane, r *request, raw []byte, e *ending) bool {
	s := r.client()
	switch {
	case r.state != replyWaiting, r.sess == nil && r.sink == nil, len(raw) == 0:
		return false
	case r.block != nil && (s == nil || r.block.tx.watches > 0 || r.block.tx.live != nil || r.private):
		return false
	case r.block == nil && r.alone && !watches(r), ln.kind != laneShared && !r.private && !ln.watchesOnly():
		return false
	case r.spared && l.standInFor(r):
		return true
	case l.expired(r):
		return false
	case s == nil, len(r.raw) == 0 && (l.resends || r.sess == nil): // of the proxy's own, or for this very node
		return l.again(r, ln.node, raw)
	}
	if len(r.raw) == 0 {
		r.raw = append(r.raw, raw...)
	}
	if int(r.retries) >= l.srv.opts.Upstream.MaxRedirects {
		n := ln.node
		if o, cause := l.owner(r.slot); cause == "" {
			n = o
		}
		return n.hopeful(l.now()) && l.later(r, e.certain())
	}
	r.retries++
	l.postpone(r, &resend{why: unsent, line: e.certain()})
	return true
}

// expired reports whether r has been on its way for so long that it must not be sent again. The time of a command
// that blocks begins with the trouble.
func (l *loop) expired(r *request) bool {
	if r.since == 0 {
		r.since = l.now()
	}
	return l.now()-r.since >= int64(l.srv.opts.Upstream.Timeout)
}

// watchesOnly reports whether nothing but watched keys is lost with ln: EXEC finds out, other requests may go any way.
func (ln *lane) watchesOnly() bool {
	s := ln.owner
	return s != nil && s.tx != nil && s.tx.pin == ln && ln.home == nil
}

// watches reports whether r is a WATCH, which needs a connection to itself but no particular one.
func watches(r *request) bool { return r.cmd != nil && r.cmd.Name == "watch" }

// onlyReads reports whether it does no harm to execute r twice.
func (l *loop) onlyReads(r *request) bool {
	if r.block != nil {
		return r.block.tx.onlyReads()
	}
	cmd := r.cmd
	if sc, ok := r.sink.(*scatter); ok {
		cmd = sc.parent.cmd
	}
	return cmd != nil && (cmd.Has(command.ReadOnly) || harmless(cmd) || watches(r) || l.scriptOnlyReads(r, cmd))
}

// harmless commands have no key, so Redis does not call them reads.
func harmless(cmd *command.Command) bool {
	switch cmd.Name {
	case "ping", "echo", "time", "info", "role", "lastsave", "config|get", "command", "unwatch":
		return true
	}
	return false
}

func (tx *transaction) onlyReads() bool {
	for _, cmd := range tx.cmds {
		if !cmd.Has(command.ReadOnly) {
			return false
		}
	}
	return len(tx.own) == 0
}

// scriptOnlyReads: the script says so in its first line (flags=no-writes, which Redis enforces), or is known
// to answer a question. CoSky's questions remove what has expired, which does nothing the second time.
func (l *loop) scriptOnlyReads(r *request, cmd *command.Command) bool {
	if !byText(cmd) && !byDigest(cmd) || len(r.raw) == 0 {
		return false
	}
	args := l.parse(r.raw)
	sha, text := args[1], ""
	if byText(cmd) {
		text = string(args[1])
		sha = []byte(l.scripts.digest(args[1]))
	} else {
		text = l.srv.scripts.text(sha)
	}
	if sc := l.scriptOf(sha); sc != nil {
		return sc.Access == lua.ReadOnly || sc.Access == lua.Noticing
	}
	return writesNothing(text)
}
