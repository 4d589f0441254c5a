//go:build !linux

package netloop

import (
	"net"
	"syscall"
	"time"
)

// prepareTCP has nothing to do: package net sets TCP_NODELAY and keepalive on
// each connection it accepts.
func prepareTCP(syscall.RawConn, time.Duration) error { return nil }

// acceptor accepts through package net.
type acceptor struct{ nl net.Listener }

func newAcceptor(nl net.Listener) (*acceptor, error) { return &acceptor{nl}, nil }

// accept waits for the next connection.
func (a *acceptor) accept() (accepted, error) {
	nc, err := a.nl.Accept()
	return accepted{nc}, err
}

// tryAccept accepts the connection that an earlier accept failed on.
func (a *acceptor) tryAccept() (accepted, error) { return a.accept() }

func (a *acceptor) close() error { return a.nl.Close() }

// ServeOn is Serve: no loop watches sockets here.
func (ln *Listener) ServeOn(_ *Loop, pick func() Place) { ln.Serve(pick) }

// accepted is a connection on its way to a loop.
type accepted struct{ nc net.Conn }

func (a accepted) attach(l *Loop, wrap func(net.Conn) net.Conn) (*Conn, error) {
	if wrap == nil {
		return l.Attach(a.nc, ignore{})
	}
	return l.Attach(wrap(a.nc), ignore{})
}

func (a accepted) write(b []byte) { a.nc.Write(b) }
func (a accepted) close()         { a.nc.Close() }
