package proxy

import "fmt"

// Requests that a node has not taken yet are bounded by upstream.queue_limit for each connection. Above it
// clients wait: their requests are not read on, and TCP tells them. That is how a fast client and a slow node get along,
// so it is no error, unless nothing moves: then waiting is of no use, and clients are told.

// progress is what is known of how fast a lane's queue moves.
type progress struct {
	sent  uint64 // bytes that the kernel had taken when it was last looked at
	since int64  // that it has taken no more (mono)
}

func (ln *lane) full() bool { return ln.backlog() > ln.loop.srv.opts.Upstream.QueueLimit }

// noRoom ends the present command, for which there is no room in ln's queue: it waits (false), or is
// refused because the queue does not move.
func (s *session) noRoom(ln *lane) (done bool) {
	l := s.loop
	if !ln.jammed(l.now()) {
		ln.waiting = append(ln.waiting, s)
		return !s.holdUp(waitLane, l.timeoutLine(ln.node.addr))
	}
	l.stats.QueueFull++
	s.refuse(fmt.Sprintf("BUSY cosky-proxy: the queue to backend %s is full (upstream.queue_limit), and it has taken nothing for %s", ln.node.addr, l.srv.opts.Upstream.QueueTimeout))
	return true
}

// jammed reports whether a full queue does not move.
func (ln *lane) jammed(now int64) bool {
	return ln.full() && ln.progress.since != 0 && now-max(ln.progress.since, ln.lastRead) > int64(ln.loop.srv.opts.Upstream.QueueTimeout)
}

// watchQueue looks whether the queue moves while clients wait for it. The loop's tick calls it.
func (ln *lane) watchQueue(now int64) {
	if !ln.full() {
		ln.progress.since = 0
		return
	}
	sent := uint64(0)
	if ln.conn != nil {
		sent = ln.conn.Sent()
	}
	if p := &ln.progress; p.since == 0 || sent != p.sent {
		p.sent, p.since = sent, now
		return
	}
	if ln.jammed(now) {
		ln.releaseWaiting()
	}
}
