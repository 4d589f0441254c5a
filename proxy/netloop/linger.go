package netloop

import (
	"io"
	"time"
)

// A socket that is closed while its peer still sends answers with a reset. That can destroy
// what the peer has not read yet: the error that says why it was closed. So after the
// last byte only the output is ended; what the peer sends is dropped until it has
// seen the end and closes, too. Its connection is closed meanwhile as far as the handler
// is concerned.
//
// A peer may send on for ever or never close, hence the bounds: LingerTimeout, and these.
const (
	maxLingering = 1024     // sockets per loop; one more is closed at once
	maxDropped   = 64 << 20 // bytes of input per socket
)

// mayLinger takes a place among the sockets that linger; it is given back by lingered.
func (l *Loop) mayLinger() bool {
	if l.lingering.Add(1) <= maxLingering {
		return true
	}
	l.lingered()
	return false
}

// Lingering returns how many sockets outlive their connections. Any goroutine.
func (l *Loop) Lingering() int64 { return l.lingering.Load() }

func (l *Loop) lingered() { l.lingering.Add(-1) }

// linger is transport's. What cannot end its output alone is closed at once: a pipe in
// memory hands over every byte, nothing of it can be lost.
func (s *stream) linger() bool {
	if _, can := s.nc.(interface{ CloseWrite() error }); !can || !s.c.loop.mayLinger() {
		return false
	}
	s.lingers = true
	close(s.done)
	go s.farewell()
	return true
}

// farewell ends the output, which may take time (TLS says goodbye), waits for the reader and
// closes.
func (s *stream) farewell() {
	l := s.c.loop
	s.nc.SetDeadline(time.Now().Add(l.opts.LingerTimeout))
	s.nc.(interface{ CloseWrite() error }).CloseWrite()
	select {
	case <-s.silent:
	case <-l.quit:
	}
	s.nc.Close()
	l.lingered()
}

// dropInput is the reader's, until the peer closes or the deadline is over.
func (s *stream) dropInput() { io.CopyN(io.Discard, s.nc, maxDropped) }
