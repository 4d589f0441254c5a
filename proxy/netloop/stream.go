package netloop

import (
	"errors"
	"io"
	"net"
	"time"

	"cosky-proxy/proxy/mono"
)

const (
	chunkSize    = smallBuffer // also the largest TLS record
	chunkCredits = 2           // chunks a reader may have unconsumed
	writeWindow  = 256 << 10   // output a writer holds at most
	// lastWordsTimeout bounds how long a connection that cannot send any
	// more is read for what the peer said last.
	lastWordsTimeout = time.Second
)

// stream is the goroutine transport: a reader and a writer goroutine around any
// net.Conn.
//
// The reader takes an empty chunk from free, fills it, queues it on filled and
// posts. The loop returns the chunk when OnData has seen it. While
// reading is paused the loop takes nothing from filled, so the reader runs out
// of chunks and stops: that is the backpressure.
//
// The writer gets a window of Conn.Out, which it reads while the loop
// appends behind it; the loop neither moves nor reuses that memory before the
// writer has posted back.
type stream struct {
	// Static.
	c      *Conn
	nc     net.Conn
	free   chan []byte // credits; a nil chunk is still to be allocated
	filled chan []byte
	work   chan []byte // the writer's next window
	done   chan struct{}
	silent chan struct{} // closed when the reader has ended
	// The methods as values, so that posting one allocates nothing.
	pumpFunc, eofFunc, readFailedFunc, wroteFunc func()

	// Loop-owned.
	ended bool // the reader has met EOF; chunks may still be queued

	// Handed from the loop to the goroutines by closing done.
	lingers bool

	// Handed from the goroutine to the loop by Post.
	readErr  error
	wrote    int
	writeErr error
}

func newStream(c *Conn, nc net.Conn) *stream {
	s := &stream{
		c: c, nc: nc,
		free:   make(chan []byte, chunkCredits),
		filled: make(chan []byte, chunkCredits),
		work:   make(chan []byte, 1),
		done:   make(chan struct{}),
		silent: make(chan struct{}),
	}
	s.pumpFunc, s.eofFunc, s.readFailedFunc, s.wroteFunc = s.pump, s.sawEOF, s.readFailed, s.wroteWindow
	for range chunkCredits {
		s.free <- nil
	}
	go s.read()
	go s.write()
	return s
}

// read is the reader goroutine.
func (s *stream) read() {
	defer close(s.silent)
	for {
		var b []byte
		select {
		case b = <-s.free:
		case <-s.done:
			if s.lingers {
				s.dropInput()
			}
			return
		}
		if b == nil {
			b = make([]byte, chunkSize)
		}
		n, err := s.nc.Read(b)
		if n > 0 {
			s.filled <- b[:n]
			s.c.loop.Post(s.pumpFunc)
		} else {
			s.free <- b
		}
		if err == nil {
			continue
		}
		s.readErr = err
		if errors.Is(err, io.EOF) {
			s.c.loop.Post(s.eofFunc)
		} else {
			s.c.loop.Post(s.readFailedFunc)
		}
		return
	}
}

// write is the writer goroutine.
func (s *stream) write() {
	for {
		select {
		case b := <-s.work:
			s.wrote, s.writeErr = s.nc.Write(b)
			s.c.loop.Post(s.wroteFunc)
		case <-s.done:
			return
		}
	}
}

// pump delivers queued chunks as long as the connection accepts input, then EOF.
func (s *stream) pump() {
	for s.c.acceptsInput() && !s.c.redelivering {
		select {
		case b := <-s.filled:
			s.deliver(b)
			s.free <- b[:cap(b)]
		default:
			if s.ended {
				s.c.gotEOF()
			}
			return
		}
	}
}

func (s *stream) deliver(b []byte) {
	s.c.receive(len(b), mono.Now())
	if len(s.c.in) == 0 {
		s.c.deliverForeign(b)
		return
	}
	n := copy(s.c.room(len(b)), b)
	s.c.in = s.c.in[:len(s.c.in)+n]
	s.c.deliverOwn()
}

func (s *stream) sawEOF() {
	s.ended = true
	s.pump()
}

// readFailed closes the connection, also when it is paused: a reset peer will not
// come back for the input it had sent.
func (s *stream) readFailed() {
	s.pump()
	if s.c.broken != nil {
		s.c.fail(s.c.broken)
	}
	s.c.fail(s.readErr)
}

func (s *stream) flush() {
	if s.c.handed > 0 {
		return
	}
	b := s.c.Unsent()
	b = b[:min(len(b), writeWindow)]
	s.c.handed = len(b)
	s.c.took(len(b))
	s.work <- b
}

// wroteWindow takes a window back from the writer.
func (s *stream) wroteWindow() {
	if s.c.closed {
		return
	}
	s.c.loop.stats.Writes++
	if s.writeErr != nil {
		s.c.writeFailed(s.writeErr)
		s.nc.SetReadDeadline(time.Now().Add(lastWordsTimeout))
		return
	}
	s.c.handed = 0
	s.c.flushed(s.wrote)
	if s.c.Buffered() > 0 {
		s.c.Dirty()
	}
}

func (s *stream) resume() { s.pump() }

// close ends both goroutines. Closing may block (TLS says goodbye first), so
// it happens off the loop.
func (s *stream) close() {
	close(s.done)
	go s.nc.Close()
}
