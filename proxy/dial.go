package proxy

import (
	"context"
	"errors"
	"net"
	"syscall"

	"cosky-proxy/cluster/dial"
)

// connecting bounds how many private connections a loop opens at once. Thousands of
// clients may begin to block in the same moment, and a backend's queue of connections
// to accept is short (tcp-backlog, 511). Shared lanes do not wait: everybody needs them.
type connecting struct {
	now     int
	waiting []*lane
}

// connect dials in the background and hands the connection to ln.
func (l *loop) connect(ln *lane) {
	c := &l.connecting
	if ln.kind == lanePin {
		if c.now >= l.srv.opts.Upstream.MaxConnecting {
			c.waiting = append(c.waiting, ln)
			return
		}
		c.now++
	}
	go func(addr string) {
		nc, err := l.srv.dial(addr)
		if !l.nl.Post(func() { l.connected(ln, nc, err) }) && nc != nil {
			nc.Close()
		}
	}(ln.node.addr)
}

func (l *loop) connected(ln *lane, nc net.Conn, err error) {
	c := &l.connecting
	if ln.kind == lanePin {
		c.now--
	}
	for len(c.waiting) > 0 && c.now < l.srv.opts.Upstream.MaxConnecting {
		next := c.waiting[0]
		c.waiting = c.waiting[1:]
		if !next.closed {
			l.connect(next)
		}
	}
	ln.attach(nc, err)
}

// dial connects to a server of the backend, on a goroutine that may block.
func (s *Server) dial(addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.Upstream.ConnectTimeout)
	defer cancel()
	return s.opts.Upstream.Dialer.Dial(ctx, addr)
}

// dialCause is what an operator can act on of a dial error.
func dialCause(err error) error {
	var handshake *dial.HandshakeError
	if errors.As(err, &handshake) {
		return handshake
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Err
	}
	return err
}
