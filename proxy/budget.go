package proxy

import (
	"fmt"
	"slices"
	"time"
)

// limits is what one client may occupy at the moment: the configured values, less
// while all clients together come near clients.buffer_memory.
type limits struct {
	output  int // bytes of unread replies above which its requests are not read on
	request int // bytes of an incomplete request above which it is streamed instead of held
}

// What every client may occupy however tight memory is.
const (
	minOutputLimit  = 16 << 10
	minRequestLimit = 64 << 10
)

func (o *ClientOptions) limits() limits {
	return limits{output: o.OutputLimit, request: o.RequestBuffer}
}

// tighten halves what clients may occupy.
func (m *limits) tighten(o *ClientOptions) {
	m.output = max(m.output/2, min(minOutputLimit, o.OutputLimit))
	m.request = max(m.request/2, min(minRequestLimit, o.RequestBuffer))
}

func (m *limits) loosen(o *ClientOptions) {
	m.output = min(2*m.output, o.OutputLimit)
	m.request = min(2*m.request, o.RequestBuffer)
}

// requestBytes is what the session holds of requests: an incomplete one, what the
// backend has not taken of one that is streamed, and those between MULTI and EXEC.
func (s *session) requestBytes() int {
	n := s.conn.Unconsumed()
	if s.upload != nil && s.upload.pin != nil {
		n += s.upload.pin.backlog()
	}
	if s.tx != nil {
		n += len(s.tx.block)
	}
	return n
}

// budget keeps the buffers of all clients within clients.buffer_memory. Near it
// every client gets less: its requests are read less far ahead of its replies, and
// large ones are streamed to the backend earlier. Beyond it, the clients with the
// largest unfinished requests are cut off, because nothing else would end their growth.
func (l *loop) budget() {
	o := &l.srv.opts.Clients
	l.budgetAt = l.now()
	held := int64(0)
	for s := range l.sessions {
		held += int64(s.backlog() + s.requestBytes())
	}
	l.held.Store(held)
	total := int64(0)
	for _, other := range l.srv.loops {
		total += other.held.Load()
	}
	switch {
	case total > o.BufferMemory/2:
		l.limits.tighten(o)
		l.streamHeld()
	case total < o.BufferMemory/4:
		l.limits.loosen(o)
	}
	for s := range l.sessions {
		s.conn.SetLowWater(l.limits.output / 2)
		if s.wait == waitOutput || len(s.holding) > 0 {
			s.relieve() // the limit may have changed since the last flush
		}
	}
	if total > o.BufferMemory {
		l.shed(int64(float64(total-o.BufferMemory) * float64(held) / float64(total)))
	}
}

// budgetAgain looks at the budget before the next tick does: a large request is
// arriving, and at the speed of a network hundreds of megabytes may until then. The more
// sessions there are to look at, the less often it does.
func (l *loop) budgetAgain() {
	pause := 2*time.Millisecond + time.Duration(len(l.sessions))*2*time.Microsecond
	if l.now()-l.budgetAt > int64(pause) {
		l.budget()
	}
}

// streamPerTick bounds how many bytes of held requests begin to be streamed at
// once: until their pins are connected they occupy memory there.
const streamPerTick = 8 << 20

// streamHeld lets incomplete requests go that are longer than is held now.
func (l *loop) streamHeld() {
	bytes := 0
	for s := range l.sessions {
		n := s.conn.Unconsumed()
		if n < l.limits.request || s.upload != nil || s.wait != waitNothing {
			continue
		}
		if bytes += n; bytes > streamPerTick {
			return
		}
		s.conn.Redeliver()
	}
}

// shed cuts off the clients with the largest unfinished requests until excess
// bytes are free. What is small enough to be streamed or harmless is left alone.
func (l *loop) shed(excess int64) {
	var large []*session
	for s := range l.sessions {
		if s.requestBytes() > l.srv.opts.Clients.RequestBuffer {
			large = append(large, s)
		}
	}
	slices.SortFunc(large, func(a, b *session) int { return b.requestBytes() - a.requestBytes() })
	for _, s := range large {
		if excess <= 0 {
			return
		}
		excess -= int64(s.requestBytes())
		l.stats.Cut++
		l.srv.log.Warn("client cut off: all clients together hold more than is allowed, and its unfinished request is the largest",
			"client", s.addr, "request_bytes", s.requestBytes(), "limit", "clients.buffer_memory")
		s.overdraw()
	}
}

// overdraw ends a session whose request there is no memory for.
func (s *session) overdraw() {
	if s.head != nil || s.midReply {
		s.close("no memory for its request")
		return
	}
	s.write(fmt.Appendf(nil, "-ERR cosky-proxy has no memory for this request: its clients hold more than clients.buffer_memory (%d bytes) together\r\n",
		s.loop.srv.opts.Clients.BufferMemory))
	s.finishAndClose()
}
