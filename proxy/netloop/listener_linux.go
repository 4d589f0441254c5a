package netloop

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// prepareTCP sets what accepted sockets inherit from the listening one, which
// saves these calls per client.
func prepareTCP(raw syscall.RawConn, keepAlive time.Duration) error {
	var err error
	set := func(fd uintptr, level, option, value int) {
		if err == nil {
			err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), level, option, value))
		}
	}
	ctrlErr := raw.Control(func(fd uintptr) {
		set(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		if keepAlive < 0 {
			return
		}
		idle := max(int(keepAlive/time.Second), 1)
		// Three probes within another idle time, as Redis does it.
		set(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
		set(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, idle)
		set(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, max(idle/3, 1))
		set(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3)
	})
	return errors.Join(ctrlErr, err)
}

// acceptor accepts straight into non-blocking descriptors. The Go runtime's poller is not
// involved: for each client it would wake a thread, and that one another.
type acceptor struct {
	path string // of the socket file; empty: none

	// Guarded by mu.
	mu sync.Mutex
	fd int // -1: closed
}

func newAcceptor(nl net.Listener) (*acceptor, error) {
	sc, ok := nl.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("no descriptor behind %T", nl)
	}
	fd, err := duplicate(sc)
	if err != nil {
		return nil, err
	}
	a := &acceptor{fd: fd}
	if ul, ok := nl.(*net.UnixListener); ok {
		ul.SetUnlinkOnClose(false)
		a.path = ul.Addr().String()
	}
	nl.Close()
	return a, nil
}

// with calls f with the descriptor, unless it is closed. It stays open meanwhile.
func (a *acceptor) with(f func(fd int) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fd < 0 {
		return net.ErrClosed
	}
	return f(a.fd)
}

// accept waits for the next connection.
func (a *acceptor) accept() (accepted, error) {
	for {
		client, err := a.tryAccept()
		if err == nil || !errors.Is(err, unix.EAGAIN) && a.pending(0) {
			return client, err
		}
		a.pending(closedCheck)
	}
}

// closedCheck is how often, in milliseconds, an acceptor that waits looks whether it has been closed. Closing
// ends the wait, except at the very moment when it begins.
const closedCheck = 1000

// pending waits for at most so many milliseconds for a client and reports whether accept can tell
// something new. accept4 takes a descriptor before it looks for a client, so when there is none left it
// fails even if nobody waits, and believing it would mean spinning.
func (a *acceptor) pending(millis int) bool {
	var fd int
	if err := a.with(func(listening int) error { fd = listening; return nil }); err != nil {
		return true
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, millis)
	return err != nil || n > 0
}

// tryAccept accepts without waiting.
func (a *acceptor) tryAccept() (client accepted, err error) {
	err = a.with(func(listening int) error {
		fd, peer, err := syscall.Accept4(listening, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		client = accepted{fd, peer}
		return os.NewSyscallError("accept4", err)
	})
	return client, err
}

// close has clients refused at once, and whoever waits for one woken.
func (a *acceptor) close() error {
	err := a.with(func(listening int) error {
		a.fd = -1
		unix.Shutdown(listening, unix.SHUT_RDWR)
		return os.NewSyscallError("close", unix.Close(listening))
	})
	if a.path != "" && a.path[0] != '@' {
		os.Remove(a.path)
	}
	return err
}

// door is a listening socket that a loop watches. It is loop-owned.
type door struct {
	ln   *Listener
	p    *epoll
	fd   int32
	pick func() Place
}

// ServeOn is Serve by a running loop, so that no thread has to be woken for each client. It returns after
// Close, when the loop accepts no more. A loop that does not watch sockets leaves it to the calling goroutine.
func (ln *Listener) ServeOn(l *Loop, pick func() Place) {
	p, ok := l.poll.(*epoll)
	if !ok {
		ln.Serve(pick)
		return
	}
	d := &door{ln: ln, p: p, pick: pick}
	opened := make(chan error, 1)
	if !l.Post(func() { opened <- d.open() }) {
		return
	}
	select {
	case err := <-opened:
		if err != nil && !ln.isClosed() {
			ln.Serve(pick)
			return
		}
	case <-l.quit:
		return
	}
	<-ln.closed
	shut := make(chan struct{})
	if !l.Post(func() { d.shut(); close(shut) }) {
		return
	}
	select {
	case <-shut:
	case <-l.quit:
	}
}

func (d *door) open() error {
	err := d.ln.acc.with(func(fd int) error {
		d.fd = int32(fd)
		return unix.EpollCtl(d.p.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: d.fd})
	})
	if err == nil {
		d.p.doors = append(d.p.doors, d)
	}
	return err
}

func (d *door) shut() {
	d.p.doors = slices.DeleteFunc(d.p.doors, func(o *door) bool { return o == d })
	d.ln.dropSpare()
}

// answer lets clients in, so many that the turn does not belong to them alone.
func (d *door) answer() {
	ln := d.ln
	for range maxArriving {
		a, err := ln.acc.tryAccept()
		switch {
		case err == nil:
			ln.endOutage()
			ln.place(a, d.pick(), d.p.l)
		case errors.Is(err, unix.EAGAIN), errors.Is(err, net.ErrClosed):
			return
		case leftEarly(err):
		case !ln.acc.pending(0): // see there
			return
		case !ln.failed(err):
			d.rest()
			return
		}
	}
}

// rest leaves the door closed for a moment.
func (d *door) rest() {
	d.listen(0)
	d.p.l.AfterFunc(acceptPause, func() {
		d.ln.holdSpare()
		d.listen(unix.EPOLLIN)
	})
}

func (d *door) listen(events uint32) {
	d.ln.acc.with(func(fd int) error {
		return unix.EpollCtl(d.p.fd, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: events, Fd: d.fd})
	})
}

// accepted is a connection on its way to a loop.
type accepted struct {
	fd   int
	peer syscall.Sockaddr
}

func (a accepted) attach(l *Loop, wrap func(net.Conn) net.Conn) (*Conn, error) {
	if wrap == nil {
		return l.attachFD(a.fd, a.peer, ignore{})
	}
	nc, err := fileConn(a.fd)
	if err != nil {
		return nil, err
	}
	return l.Attach(wrap(nc), ignore{})
}

func (a accepted) write(b []byte) { unix.SendmsgN(a.fd, b, nil, nil, unix.MSG_NOSIGNAL) }
func (a accepted) close()         { unix.Close(a.fd) }
