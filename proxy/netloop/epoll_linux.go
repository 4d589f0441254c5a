package netloop

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"cosky-proxy/proxy/mono"
)

const (
	maxEvents = 256
	// maxReads bounds what one socket may bring in one turn: so many shared buffers.
	maxReads = 4
	// maxRead and maxWrite bound one system call: it is made raw and so
	// keeps its processor from the garbage collector meanwhile.
	maxRead  = 1 << 20
	maxWrite = 1 << 20
)

// newPoller makes the poller for the transport asked for.
func newPoller(l *Loop) (poller, error) {
	if l.opts.Transport == Goroutine {
		return newBell(l), nil
	}
	return newEpoll(l)
}

// epoll is the poller of a loop with sockets.
type epoll struct {
	// Static.
	l    *Loop
	fd   int
	bell int // eventfd

	// Loop-owned.
	sockets []*socket // by descriptor
	doors   []*door
	gen     int32 // of the socket registered last
	events  [maxEvents]unix.EpollEvent
}

func newEpoll(l *Loop) (*epoll, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	bell, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("eventfd", err)
	}
	// Edge-triggered, so that the bell never has to be read.
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(bell)}
	if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, bell, &ev); err != nil {
		unix.Close(bell)
		unix.Close(fd)
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	return &epoll{l: l, fd: fd, bell: bell}, nil
}

func (p *epoll) wait(timeout int64) {
	l := p.l
	l.stats.Waits++
	n := p.poll()
	if n == 0 && timeout != 0 {
		n = p.sleep(timeout)
	}
	l.now = mono.Now()
	p.dispatch(p.events[:n])
}

func (p *epoll) dispatch(events []unix.EpollEvent) {
	for i := range events {
		ev := &events[i]
		// A socket closed earlier in this batch is gone, and the one
		// that got its number has another generation.
		if int(ev.Fd) < len(p.sockets) {
			if s := p.sockets[ev.Fd]; s != nil && s.gen == ev.Pad {
				s.ready(ev.Events)
				continue
			}
		}
		p.knock(ev.Fd)
	}
}

// knock handles the event of what is no connection: a door or, more often, nothing.
func (p *epoll) knock(fd int32) {
	for _, d := range p.doors {
		if d.fd == fd {
			d.answer()
			return
		}
	}
}

// poll is epoll_wait without blocking and hence without the scheduler.
func (p *epoll) poll() int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd),
		uintptr(unsafe.Pointer(&p.events[0])), maxEvents, 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// sleep is the blocking epoll_wait, unless something was posted.
func (p *epoll) sleep(timeout int64) int {
	l := p.l
	l.asleep.Store(true)
	defer l.asleep.Store(false)
	if l.posted.Load() {
		return 0
	}
	l.stats.Sleeps++
	n, err := unix.EpollWait(p.fd, p.events[:], timeoutMillis(timeout))
	if err != nil {
		return 0
	}
	return n
}

// timeoutMillis rounds up, so that a timer is due when the wait ends.
func timeoutMillis(nanos int64) int {
	if nanos < 0 {
		return -1
	}
	const day = 24 * 60 * 60 * 1000
	return int(min((nanos+tickNanos-1)/tickNanos, day))
}

func (p *epoll) wake() {
	one := [8]byte{1}
	// The only possible error is a counter about to overflow, which has
	// been rung enough.
	unix.Write(p.bell, one[:])
}

func (p *epoll) close() {
	for _, s := range p.sockets {
		if s != nil { // it lingers
			unix.Close(s.fd)
		}
	}
	unix.Close(p.bell)
	unix.Close(p.fd)
}

// adopt takes a plain TCP or Unix socket away from the Go runtime's own poller.
func (p *epoll) adopt(c *Conn, nc net.Conn) (transport, error) {
	var sc syscall.Conn
	switch nc := nc.(type) {
	case *net.TCPConn:
		sc = nc
	case *net.UnixConn:
		sc = nc
	default:
		return nil, nil
	}
	fd, err := duplicate(sc)
	if err != nil {
		return nil, err
	}
	s, err := p.add(c, fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	nc.Close()
	return s, nil
}

func duplicate(sc syscall.Conn) (int, error) {
	raw, err := sc.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, dupErr := -1, error(nil)
	err = raw.Control(func(orig uintptr) {
		fd, dupErr = unix.FcntlInt(orig, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err != nil {
		return -1, err
	}
	return fd, os.NewSyscallError("fcntl", dupErr)
}

// add starts watching fd for input.
func (p *epoll) add(c *Conn, fd int) (*socket, error) {
	p.gen++
	s := &socket{c: c, p: p, fd: fd, gen: p.gen, armed: unix.EPOLLIN}
	ev := unix.EpollEvent{Events: s.armed, Fd: int32(fd), Pad: s.gen}
	if err := unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	for len(p.sockets) <= fd {
		p.sockets = append(p.sockets, nil)
	}
	p.sockets[fd] = s
	return s, nil
}

// AttachFD puts a connected, non-blocking stream socket on the loop and takes
// it over; when it fails fd is closed. Otherwise it is like Attach. Linux only.
func (l *Loop) AttachFD(fd int, h Handler) (*Conn, error) {
	peer, _ := syscall.Getpeername(fd)
	return l.attachFD(fd, peer, h)
}

func (l *Loop) attachFD(fd int, peer syscall.Sockaddr, h Handler) (*Conn, error) {
	p, ok := l.poll.(*epoll)
	if !ok {
		nc, err := fileConn(fd)
		if err != nil {
			return nil, fmt.Errorf("cannot attach descriptor %d: %w", fd, err)
		}
		return l.Attach(nc, h)
	}
	if l.stopping {
		unix.Close(fd)
		return nil, fmt.Errorf("cannot attach descriptor %d: %w", fd, ErrStopped)
	}
	own, _ := syscall.Getsockname(fd)
	c := &Conn{loop: l, h: h, remote: sockaddrText(peer), local: sockaddrText(own)}
	s, err := p.add(c, fd)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("cannot attach descriptor %d: %w", fd, err)
	}
	l.register(c, s)
	return c, nil
}

// fileConn turns a socket into a net.Conn and consumes it.
func fileConn(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	return net.FileConn(f)
}

// sockaddrText takes package syscall's addresses: to find them, golang.org/x/sys/unix asks for each socket's protocol, too.
func sockaddrText(sa syscall.Sockaddr) string {
	switch sa := sa.(type) {
	case *syscall.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)).String()
	case *syscall.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port)).String()
	case *syscall.SockaddrUnix:
		return sa.Name
	}
	return ""
}

// socket is the epoll transport. It is loop-owned.
type socket struct {
	c       *Conn
	p       *epoll
	fd      int
	gen     int32  // distinguishes this socket from others with its number
	armed   uint32 // events the kernel reports, besides EPOLLERR and EPOLLHUP
	blocked bool   // the kernel's send buffer is full; EPOLLOUT tells when not
	bye     *farewell
}

// ready handles the events of one wait.
func (s *socket) ready(events uint32) {
	if events&unix.EPOLLOUT != 0 {
		s.blocked = false
		s.c.Dirty()
	}
	if events&^unix.EPOLLOUT == 0 {
		return
	}
	if s.c.acceptsInput() {
		if !s.c.redelivering { // else there is input enough; this event comes again
			s.read()
		}
		return
	}
	if s.bye != nil {
		s.dropInput()
		return
	}
	// The kernel cannot be told to keep quiet about these two, and no read
	// is going to find them.
	if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		s.c.fail(s.hangupError())
		return
	}
	if events&unix.EPOLLRDHUP != 0 {
		s.arm(s.armed &^ (unix.EPOLLIN | unix.EPOLLRDHUP))
		s.c.callOnHangup()
		return
	}
	// Input is disarmed only now that some came, not when the pause began:
	// most pauses end before that and cost no system call.
	s.arm(s.armed&^unix.EPOLLIN | unix.EPOLLRDHUP)
}

func (s *socket) hangupError() error {
	if s.c.broken != nil {
		return s.c.broken
	}
	code, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil || code == 0 {
		return ErrHungUp
	}
	return os.NewSyscallError("socket", syscall.Errno(code))
}

// read makes one recv and delivers, or a few as long as each fills the shared buffer: then more has
// arrived, and what belongs together is dealt with together.
func (s *socket) read() {
	for range maxReads {
		if len(s.c.in) > smallBuffer {
			s.readLarge()
			return
		}
		if !s.readShared() || !s.c.acceptsInput() {
			return
		}
	}
}

// readShared makes one recv and delivers. A small rest of earlier input is put in
// front of it in the shared buffer, so that it costs no smaller reads; a large
// one is a big request, which gathers in its own buffer. It reports whether the buffer was filled.
func (s *socket) readShared() (filled bool) {
	c := s.c
	buf := c.loop.shared
	rest := copy(buf, c.in)
	n, errno := recv(s.fd, buf[rest:])
	if n <= 0 {
		s.readNothing(n, errno)
		return false
	}
	c.receive(n, mono.Now())
	c.deliverForeign(buf[:rest+n])
	return rest+n == len(buf)
}

func (s *socket) readLarge() {
	c := s.c
	room := c.room(min(len(c.in), maxRead))
	n, errno := recv(s.fd, room[:min(len(room), maxRead)])
	if n <= 0 {
		s.readNothing(n, errno)
		return
	}
	c.receive(n, mono.Now())
	c.in = c.in[:len(c.in)+n]
	c.deliverOwn()
}

func (s *socket) readNothing(n int, errno syscall.Errno) {
	switch {
	case n == 0:
		s.c.gotEOF()
		s.arm(s.armed &^ unix.EPOLLIN)
	case errno == unix.EAGAIN || errno == unix.EINTR:
	case s.c.broken != nil:
		s.c.fail(s.c.broken)
	default:
		s.c.fail(os.NewSyscallError("recv", errno))
	}
}

func (s *socket) flush() {
	if s.blocked {
		return
	}
	c := s.c
	b := c.Unsent()
	b = b[:min(len(b), maxWrite)]
	n, errno := send(s.fd, b)
	c.loop.stats.Writes++
	switch {
	case n >= 0:
	case errno == unix.EAGAIN:
		n = 0
	case errno == unix.EINTR:
		c.Dirty()
		return
	case errno == unix.EPIPE || errno == unix.ECONNRESET:
		// Both come with EPOLLHUP, so a read will follow.
		c.writeFailed(os.NewSyscallError("send", errno))
		return
	default:
		c.fail(os.NewSyscallError("send", errno))
		return
	}
	if n < len(b) {
		s.blocked = true
		s.arm(s.armed | unix.EPOLLOUT)
	} else if s.armed&unix.EPOLLOUT != 0 {
		s.arm(s.armed &^ unix.EPOLLOUT)
	}
	c.took(n)
	c.flushed(n)
	if !s.blocked && c.Buffered() > 0 {
		c.Dirty()
	}
}

func (s *socket) resume() { s.arm(s.armed&^unix.EPOLLRDHUP | unix.EPOLLIN) }

// arm asks for events, if that is a change.
func (s *socket) arm(events uint32) {
	if s.armed == events || s.c.closed {
		return
	}
	s.armed = events
	ev := unix.EpollEvent{Events: events, Fd: int32(s.fd), Pad: s.gen}
	if err := unix.EpollCtl(s.p.fd, unix.EPOLL_CTL_MOD, s.fd, &ev); err != nil {
		s.c.fail(os.NewSyscallError("epoll_ctl", err))
	}
}

// close deregisters before closing: a child process being forked right now
// holds the socket open for a moment, and epoll would go on reporting it.
func (s *socket) close() {
	s.p.sockets[s.fd] = nil
	var none unix.EpollEvent
	unix.EpollCtl(s.p.fd, unix.EPOLL_CTL_DEL, s.fd, &none)
	unix.Close(s.fd)
}

// recv and send are the socket forms of read and write: send can be told not
// to raise SIGPIPE. The descriptors never block, so the scheduler is not
// involved. b is not empty. n is -1 on error.

func recv(fd int, b []byte) (n int, errno syscall.Errno) {
	r, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), 0, 0, 0)
	return int(r), errno
}

func send(fd int, b []byte) (n int, errno syscall.Errno) {
	r, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
	return int(r), errno
}
