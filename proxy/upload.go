package proxy

import (
	"fmt"

	"cosky-proxy/nearcache"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// upload is a request that is passed on while it is still arriving: a value of
// 512 MB needs no more memory here than one of 1 MB. It travels on a pin, where a slow
// client holds up nobody else.
type upload struct {
	pin      *lane    // nil: the rest of the request is only skipped, or waits
	size     int      // bytes so far
	progress progress // of what the backend has taken
	held     []byte   // what had come of it when its connection was lost before anything was sent: it waits for another one
	request  *request // that waits so; nil: none
}

// maxUploadBacklog is what the backend may have left untaken of a request when no more of it is read. The
// kernel's buffers hold more than enough to keep the backend busy meanwhile.
const maxUploadBacklog = 128 << 10

func (o *Options) uploadBacklog() int { return min(maxUploadBacklog, o.Clients.RequestBuffer) }

// beginUpload is called with the beginning of an incomplete request that has
// outgrown request_buffer, or is going to. It returns how much of b it has taken: all of it when
// the request is streamed, nothing when the request has to be held (or to wait).
func (s *session) beginUpload(b []byte) int {
	l := s.loop
	declared := s.parser.Partial(b, &l.req)
	args := l.req.Args
	if declared == 0 || len(args) == 0 {
		return s.holdWhole(b)
	}
	cmd := l.table.Lookup(args[0])
	if cmd == nil || cmd.Arity > 0 && declared != cmd.Arity || declared < -cmd.Arity {
		return s.holdWhole(b)
	}
	t, ready := s.uploadTarget(cmd, args)
	if !ready {
		return s.holdWhole(b)
	}
	if l.paused.kind != pauseNone && s.suspended(cmd, args) || s.drain() {
		return 0
	}
	s.lastCmd = cmd
	if l.readSources != nil {
		s.writesTooEarly(cmd) // nothing is in flight, so it need not wait
	}
	var pin *lane
	cause := ""
	if l.throttle != nil && s.permit == nil {
		cause = s.obtain(cmd, args)
	}
	if cause == "" {
		if pin, cause = s.leaseFor(t.slot); cause != "" && !s.overdue() && s.hopes(t.slot, cause) {
			return 0
		}
	}
	s.heldUp = nil
	s.parser.BeginSkim(b)
	s.upload = &upload{pin: pin, size: len(b)}
	s.exclusive = true
	if cause != "" {
		s.refuse(cause)
		return len(b)
	}
	r := l.newRequest(s, cmd)
	r.slot, r.keyed, r.private, r.alone, r.since = t.slot, t.keyed, true, true, 0
	l.begin(r, l.uploadEffect(cmd, args))
	s.enqueue(r)
	r.head = append(r.head[:0], b[:min(len(b), maxHead)]...)
	s.stream(r, pin, b)
	return len(b)
}

// stream sends the beginning of an upload on a pin.
func (s *session) stream(r *request, pin *lane, b []byte) {
	if pin.home == nil {
		s.pin = pin
	}
	s.upload.pin, s.upload.progress, s.patient = pin, progress{}, true
	pin.optFor(r)
	pin.send(r, b)
}

// leaseFor leases a pin to the owner of slot.
func (s *session) leaseFor(slot uint16) (*lane, string) {
	n, cause := s.loop.owner(slot)
	if cause != "" {
		return nil, cause
	}
	return s.lease(n)
}

// uploads reports whether r is a request that is, or was, streamed.
func (r *request) uploads() bool {
	return r.alone && r.private && r.sess != nil && r.sink == nil && r.block == nil && !watches(r)
}

// restream keeps an upload of which nothing was sent when its connection was lost; so far are its bytes up to then. If it has
// come whole it is a request like others from now on (false); else its client is not read on until
// there is another connection (true).
func (l *loop) restream(ln *lane, r *request, soFar []byte) (waits bool) {
	if !l.resends || int(r.retries) >= l.srv.opts.Upstream.MaxRedirects {
		return false
	}
	if !ln.receives(r) {
		r.raw, r.alone = append(r.raw[:0], soFar...), false
		return false
	}
	r.retries++
	u := r.sess.upload
	u.held, u.request = append(u.held[:0], soFar...), r
	return true
}

// resumed sends what is held of the upload. False: it has to wait on.
func (s *session) resumed() bool {
	l, u := s.loop, s.upload
	r := u.request
	pin, cause := s.leaseFor(r.slot)
	if cause != "" && !s.overdue() && s.hopes(r.slot, cause) {
		return false
	}
	s.heldUp = nil
	held := u.held
	u.held, u.request = nil, nil
	if cause != "" {
		l.abort(r, cause)
		return true
	}
	s.stream(r, pin, held)
	return true
}

// uploadTarget finds the shard of a request whose end is not known yet. It is
// not ready while the key has not arrived, or when the proxy has to see the whole
// request for another reason.
func (s *session) uploadTarget(cmd *command.Command, args [][]byte) (t target, ready bool) {
	l := s.loop
	switch {
	case l.guard != nil && !l.guard.admitUpload(s, cmd, args):
		return t, false
	case s.tx != nil, s.monitor != nil, s.subscriptions() > 0, len(cmd.Subs) > 0, cmd.Has(command.Blocking):
		return t, false
	case l.handlers[cmd.ID] != nil && !cmd.Script:
		return t, false
	case !l.clusters:
		return t, true
	case cmd.Split > 0:
		return t, false
	case cmd.SingleKey:
		if cmd.KeyPos >= len(args) {
			return t, false
		}
		return l.target(args[cmd.KeyPos]), true
	case cmd.FirstKey > 0:
		if cmd.FirstKey >= len(args) {
			return t, false
		}
		return l.target(args[cmd.FirstKey]), true
	}
	return t, false
}

// uploadEffect: with one key its effect is exact; otherwise keys may follow that
// nobody has seen yet.
func (l *loop) uploadEffect(cmd *command.Command, args [][]byte) *effectScratch {
	e := l.effect.reset()
	if l.cache == nil {
		return e
	}
	if cmd.SingleKey && cmd.KeyPos < len(args) {
		l.concern(e, args[cmd.KeyPos], cmd.Has(command.Write))
		return e
	}
	e.add(nearcache.All, true)
	return e
}

// holdWhole lets an oversized request go on arriving in memory, up to
// max_request.
func (s *session) holdWhole(b []byte) int {
	limit := s.loop.srv.opts.Clients.MaxRequest
	if len(b) < limit {
		return 0
	}
	s.loop.stats.ProtocolErrors++
	s.reply(fmt.Appendf(nil, "-ERR Protocol error: the request exceeds clients.max_request (%d bytes) and cannot be streamed\r\n", limit))
	s.finishAndClose()
	return len(b)
}

// feed passes on the next piece of the request.
func (s *session) feed(b []byte) int {
	l, u := s.loop, s.upload
	n, done, err := s.parser.Skim(b, &l.srv.opts.Protocol)
	if err != nil {
		l.stats.ProtocolErrors++
		s.unpin()
		s.reply(resp.AppendError(l.out[:0], "ERR "+err.Error()))
		s.finishAndClose()
		return len(b)
	}
	u.size += n
	if u.pin != nil {
		u.pin.extend(b[:n])
		if u.pin.backlog() > l.srv.opts.uploadBacklog() && !done {
			u.pin.waiting = append(u.pin.waiting, s)
			s.wait = waitLane
			s.conn.PauseRead()
		}
	}
	if done {
		s.upload = nil
		s.patient = false
		if u.pin != nil {
			u.pin.giveBack()
			u.pin.lastRead = l.now()
			if s.tail != nil { // else it has been answered already
				s.tail.since = l.now()
			}
		}
		if r := s.head; r != nil {
			r.arrived, r.length = l.now(), u.size
		}
		if l.draining {
			s.finishAndClose()
		}
	}
	return n
}

// extend appends a further piece of the request that was sent last.
func (ln *lane) extend(b []byte) {
	ln.queued += uint64(len(b))
	if !ln.ready {
		ln.pending = append(ln.pending, b...)
		return
	}
	ln.append(b)
}
