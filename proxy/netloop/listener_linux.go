package netloop

import (
	"errors"
	"fmt"
	"net"
	"os"
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

// acceptor accepts straight into non-blocking descriptors, while the Go
// runtime's poller does the waiting.
type acceptor struct {
	nl   net.Listener // owns the address and the socket file
	file *os.File     // the same listening socket, for raw access
	raw  syscall.RawConn
}

func newAcceptor(nl net.Listener) (*acceptor, error) {
	f, ok := nl.(interface{ File() (*os.File, error) })
	if !ok {
		return nil, fmt.Errorf("no descriptor behind %T", nl)
	}
	file, err := f.File()
	if err != nil {
		return nil, err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, err
	}
	return &acceptor{nl: nl, file: file, raw: raw}, nil
}

// accept waits for the next connection.
func (a *acceptor) accept() (accepted, error) {
	var client accepted
	var acceptErr error
	err := a.raw.Read(func(listening uintptr) bool {
		client, acceptErr = accept4(int(listening))
		return acceptErr != unix.EAGAIN && (acceptErr == nil || pending(int(listening)))
	})
	if err != nil {
		return accepted{}, err
	}
	return client, os.NewSyscallError("accept4", acceptErr)
}

func accept4(listening int) (accepted, error) {
	fd, peer, err := syscall.Accept4(listening, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	return accepted{fd, peer}, err
}

// pending reports whether a client waits. accept4 takes a descriptor before it looks
// for a client, so when there is none left it fails even if nobody waits,
// and believing it would mean spinning.
func pending(listening int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(listening), Events: unix.POLLIN}}, 0)
	return err != nil || n > 0
}

// tryAccept accepts without waiting.
func (a *acceptor) tryAccept() (accepted, error) {
	var client accepted
	var acceptErr error
	err := a.raw.Control(func(listening uintptr) { client, acceptErr = accept4(int(listening)) })
	if err != nil {
		return accepted{}, err
	}
	return client, os.NewSyscallError("accept4", acceptErr)
}

func (a *acceptor) close() error {
	return errors.Join(a.file.Close(), a.nl.Close())
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
