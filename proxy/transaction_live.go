package proxy

import (
	"bytes"

	"cosky-proxy/router/command"
)

// A live transaction is queued in Redis as well as here: its pin has seen MULTI and
// every command since, and the client gets Redis' own answers to them. That is how the
// transaction goes on while the backend may refuse to queue (see doubt.go).

// goLive sends what has been queued so far, except for the command that is being
// queued. False: there is no connection for it; EXEC will tell what the backend thinks.
func (s *session) goLive(tx *transaction) bool {
	l := s.loop
	if l.clusters && !tx.routed {
		return false
	}
	if tx.pin == nil {
		n, cause := l.owner(tx.target.slot)
		if cause != "" {
			return false
		}
		if tx.pin, cause = s.lease(n); cause != "" {
			return false
		}
	}
	tx.live = &execution{tx: tx}
	if choice := s.tracking().choice(); choice != "" {
		tx.pin.opt(choice)
	}
	tx.live.queue(l, tx.pin, len(tx.cmds)-1)
	return true
}

// queueLive sends the command that was queued last, whose bytes are raw.
func (s *session) queueLive(cmd *command.Command, raw []byte) {
	l, tx := s.loop, s.tx
	r := l.newRequest(s, cmd)
	r.sink, r.alone, r.private = queued{tx.live}, true, true
	s.enqueue(r)
	tx.pin.send(r, raw)
}

// queued takes Redis' answer to a command of a live transaction.
type queued struct{ x *execution }

// onlyQueued: the backend has been asked to queue r, not to execute it.
func onlyQueued(r *request) bool {
	_, is := r.sink.(queued)
	return is
}

func (q queued) deliver(l *loop, r *request, reply []byte) {
	switch {
	case reply[0] != '-':
	case l.resends && elsewhere(reply[1:]): // EXEC follows it
		q.x.note(reply)
		reply = replyQueued
	default:
		q.x.tx.aborted = true // also if the connection breaks and EXEC takes another
	}
	l.finish(r, reply)
}

// execLive lets Redis execute what it has queued.
func (x *execution) execLive(l *loop, ln *lane) {
	if x.tx.aborted { // perhaps for a reason that Redis does not know of: a command without arguments is one
		ln.note("GET")
	}
	x.finish(l, ln)
}

// note keeps the first reason why the transaction has to be executed elsewhere.
func (x *execution) note(reply []byte) {
	if line := reply[1 : len(reply)-2]; x.refusal == "" && elsewhere(line) {
		x.refusal = string(bytes.Clone(line))
	}
}

// finish sends EXEC, which makes the proxy do its part when it is answered.
func (x *execution) finish(l *loop, ln *lane) {
	if len(x.tx.own)+len(x.tx.infos) > 0 {
		x.exec.sink, x.exec.limit = x, l.srv.opts.Clients.MaxRequest
	}
	ln.send(x.exec, x.exec.raw)
}

// queue sends MULTI and the first n commands of the transaction.
func (x *execution) queue(l *loop, ln *lane, n int) {
	x.step(l, ln, x.tx.begin)
	block := x.tx.block
	for _, size := range x.tx.lengths[:n] {
		x.step(l, ln, block[:size])
		block = block[size:]
	}
}
