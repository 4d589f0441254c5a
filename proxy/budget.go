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
	if s.upload != nil {
		n += len(s.upload.held)
		if s.upload.pin != nil {
			n += s.upload.pin.backlog()
		}
	}
	if s.tx != nil {
		n += len(s.tx.block)
	}
	return n
}

// fill notes that the session may hold something from now on. A budget looks at such
// sessions only, and so does keepTime: tens of thousands that are idle cost nothing.
func (s *session) fill() {
	if !s.filled {
		s.enlist()
	}
}

func (s *session) enlist() {
	s.filled = true
	s.loop.filled = append(s.loop.filled, s)
}

// forgetEmpty takes out of l.filled who holds nothing any more, and waits for nothing that has to come in time.
func (l *loop) forgetEmpty() {
	kept := l.filled[:0]
	for _, s := range l.filled {
		s.filled = !s.closed && (s.timed() || s.wait == waitOutput || len(s.holding) > 0 || s.backlog()+s.requestBytes() > 0)
		if s.filled {
			kept = append(kept, s)
		}
	}
	clear(l.filled[len(kept):])
	l.filled = kept
	if cap(kept) > maxIdleFilled && len(kept) < cap(kept)/4 {
		l.filled = slices.Clone(kept)
	}
}

// maxIdleFilled is the capacity of loop.filled that is kept after a burst.
const maxIdleFilled = 1024

// keep notes that the session holds n bytes more (or less) for as long as it likes: names.
func (s *session) keep(n int) {
	s.kept += n
	s.loop.kept += int64(n)
}

// subscriptionCost is what a subscription takes besides its name: its place in the session,
// in the topic, and the topic itself, which the client may have for itself.
const subscriptionCost = 512

// budget keeps the buffers of all clients within clients.buffer_memory. Near it
// every client gets less: its requests are read less far ahead of its replies, and
// large ones are streamed to the backend earlier. Beyond it, the clients with the
// largest unfinished requests are cut off, because nothing else would end their growth.
func (l *loop) budget() {
	o := &l.srv.opts.Clients
	l.budgetAt = l.now()
	held := l.kept
	for _, s := range l.filled {
		if !s.closed {
			held += int64(s.backlog() + s.requestBytes())
		}
	}
	l.held.Store(held)
	total := int64(0)
	for _, other := range l.srv.loops {
		total += other.held.Load()
	}
	before := l.limits
	switch {
	case total > o.BufferMemory/2:
		l.limits.tighten(o)
		l.streamHeld()
	case total < o.BufferMemory/4:
		l.limits.loosen(o)
	}
	if l.limits != before {
		for s := range l.sessions {
			s.conn.SetLowWater(l.limits.output / 2)
		}
	}
	for i := 0; i < len(l.filled); i++ { // what is relieved may fill others
		if s := l.filled[i]; !s.closed && (s.wait == waitOutput || len(s.holding) > 0) {
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
	pause := 2*time.Millisecond + time.Duration(len(l.filled))*2*time.Microsecond
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
	for _, s := range l.filled {
		n := s.conn.Unconsumed()
		if n < l.limits.request || s.closed || s.upload != nil || s.wait != waitNothing {
			continue
		}
		if bytes += n; bytes > streamPerTick {
			return
		}
		s.conn.Redeliver()
	}
}

// shed cuts off the clients with the largest unfinished requests, or the most names, until
// excess bytes are free. What is small enough to be streamed or harmless is left alone.
func (l *loop) shed(excess int64) {
	var large []*session
	for s := range l.sessions {
		if s.claims() > l.srv.opts.Clients.RequestBuffer {
			large = append(large, s)
		}
	}
	slices.SortFunc(large, func(a, b *session) int { return b.claims() - a.claims() })
	for _, s := range large {
		if excess <= 0 {
			return
		}
		excess -= int64(s.claims())
		l.stats.Cut++
		l.srv.log.Warn("client cut off: all clients together hold more than is allowed, and its unfinished request, or its names and subscriptions, take the most",
			"client", s.addr, "request_bytes", s.requestBytes(), "kept_bytes", s.kept, "limit", "clients.buffer_memory")
		s.overdraw()
	}
}

// claims is what only cutting the session off would free.
func (s *session) claims() int { return s.requestBytes() + s.kept }

// overdraw ends a session for which there is no memory.
func (s *session) overdraw() {
	if s.head != nil || s.midReply {
		s.close("no memory for what it holds")
		return
	}
	s.write(fmt.Appendf(nil, "-ERR cosky-proxy has no memory for this client: all clients hold more than clients.buffer_memory (%d bytes) together\r\n",
		s.loop.srv.opts.Clients.BufferMemory))
	s.finishAndClose()
}
