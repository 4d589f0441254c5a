package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"syscall"
	"time"
)

const (
	connectTimeout = 5 * time.Second
	// waitMillis bounds one wait, so that a cancelled context is noticed although
	// the server says nothing.
	waitMillis = 100
	// What package syscall does not name.
	rusageThread      = 1  // RUSAGE_THREAD
	bindAddressNoPort = 24 // IP_BIND_ADDRESS_NO_PORT
)

// client is one connection of a run. All fields belong to the run's goroutine.
type client struct {
	fd     int       // -1: not connected
	next   int       // index of the pipeline to send next
	unsent []byte    // of the pipeline in flight, what the socket has not taken yet
	unread int       // bytes still to come for the pipeline in flight
	began  time.Time // when that pipeline was sent
	armed  bool      // the socket is asked to tell when it takes more
}

// run is the state of one Run call, owned by its goroutine.
type run struct {
	spec      Spec
	addr      syscall.Sockaddr
	pipelines []pipeline
	epfd      int
	clients   []client
	left      int // pipelines not yet sent
	inFlight  int
	buf       []byte
	latency   histogram
}

// Run sends spec.Requests commands and returns when the last reply is in, or
// with an error when ctx ends, a connection breaks or a reply has another length
// than the first one had.
func Run(ctx context.Context, spec Spec) (Result, error) {
	if err := spec.validate(); err != nil {
		return Result{}, err
	}
	r := &run{
		spec: spec, epfd: -1, left: (spec.Requests + spec.Depth - 1) / spec.Depth,
		clients: make([]client, spec.Clients), buf: make([]byte, 256<<10),
	}
	for i := range r.clients {
		r.clients[i] = client{fd: -1, next: i}
	}
	defer r.close()
	if err := r.prepare(ctx); err != nil {
		return Result{}, err
	}
	total := r.left * spec.Depth

	// The thread's CPU clock is only ours while nobody else runs on the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cpuBefore, err := threadCPU()
	if err != nil {
		return Result{}, err
	}
	began := time.Now()
	if err := r.loop(ctx); err != nil {
		return Result{}, err
	}
	elapsed := time.Since(began)
	cpuAfter, err := threadCPU()
	if err != nil {
		return Result{}, err
	}
	return Result{
		Requests: total, Elapsed: elapsed, CPU: cpuAfter - cpuBefore,
		P50: r.latency.quantile(0.50), P99: r.latency.quantile(0.99), P999: r.latency.quantile(0.999),
	}, nil
}

// prepare learns the lengths of the replies, encodes the pipelines and opens the connections,
// unless each pipeline opens its own.
func (r *run) prepare(ctx context.Context) error {
	dialer := net.Dialer{Timeout: connectTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", r.spec.Addr)
	if err != nil {
		return fmt.Errorf("cannot connect: %w", err)
	}
	replies, err := r.spec.replyBytes(conn, connectTimeout)
	r.addr = sockaddr(conn.RemoteAddr().(*net.TCPAddr))
	if err := errors.Join(err, conn.Close()); err != nil {
		return err
	}
	r.pipelines = r.spec.pipelines(replies)
	if r.epfd, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("cannot create epoll set: %w", err)
	}
	if r.spec.Reconnect {
		return nil
	}
	for i := range r.clients {
		if err := r.connect(i); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) connect(i int) error {
	fd, err := connect(r.addr)
	if err != nil {
		return err
	}
	r.clients[i].fd, r.clients[i].armed = fd, false
	if err := syscall.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("cannot make connection non-blocking: %w", err)
	}
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(i)}
	if err := syscall.EpollCtl(r.epfd, syscall.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("cannot watch connection: %w", err)
	}
	return nil
}

func (r *run) loop(ctx context.Context) error {
	for i := range r.clients {
		if err := r.send(i); err != nil {
			return err
		}
	}
	events := make([]syscall.EpollEvent, min(len(r.clients), 256))
	for r.inFlight > 0 {
		n, err := syscall.EpollWait(r.epfd, events, waitMillis)
		if err != nil && err != syscall.EINTR {
			return fmt.Errorf("cannot wait for replies: %w", err)
		}
		if n <= 0 {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		}
		for _, event := range events[:n] {
			if err := r.ready(int(event.Fd), event.Events); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *run) ready(i int, events uint32) error {
	if events&syscall.EPOLLOUT != 0 {
		if err := r.write(i); err != nil {
			return err
		}
	}
	if events&^syscall.EPOLLOUT == 0 {
		return nil
	}
	return r.receive(i)
}

// send begins the client's next pipeline, if any is left.
func (r *run) send(i int) error {
	if r.left == 0 {
		return nil
	}
	r.left--
	r.inFlight++
	c := &r.clients[i]
	p := &r.pipelines[c.next%len(r.pipelines)]
	c.next++
	c.unsent, c.unread = p.request, p.reply
	c.began = time.Now()
	if r.spec.Reconnect {
		if err := r.connect(i); err != nil {
			return err
		}
	}
	return r.write(i)
}

// write sends as much of the pipeline as the socket takes.
func (r *run) write(i int) error {
	c := &r.clients[i]
	n, err := syscall.Write(c.fd, c.unsent)
	if err == syscall.EAGAIN {
		n, err = 0, nil
	}
	if err != nil {
		return fmt.Errorf("cannot send a pipeline: %w", err)
	}
	c.unsent = c.unsent[n:]
	if wants := len(c.unsent) > 0; wants != c.armed {
		c.armed = wants
		event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(i)}
		if wants {
			event.Events |= syscall.EPOLLOUT
		}
		if err := syscall.EpollCtl(r.epfd, syscall.EPOLL_CTL_MOD, c.fd, &event); err != nil {
			return fmt.Errorf("cannot watch connection: %w", err)
		}
	}
	return nil
}

// receive reads what has arrived and, when the pipeline is complete, sends the next.
func (r *run) receive(i int) error {
	c := &r.clients[i]
	n, err := syscall.Read(c.fd, r.buf)
	if err == syscall.EAGAIN {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read replies: %w", err)
	}
	if n == 0 {
		return errors.New("cannot read replies: the server closed the connection")
	}
	c.unread -= n
	if c.unread < 0 {
		return fmt.Errorf("cannot count replies: %d bytes more than expected, ending in %.80q", -c.unread, r.buf[max(0, n-80):n])
	}
	if c.unread > 0 {
		return nil
	}
	r.inFlight--
	r.latency.add(time.Since(c.began))
	if r.spec.Reconnect {
		c.close()
	}
	return r.send(i)
}

func (c *client) close() {
	if c.fd >= 0 {
		_ = syscall.Close(c.fd) // nothing of value is in flight any more
	}
	c.fd = -1
}

func (r *run) close() {
	for i := range r.clients {
		r.clients[i].close()
	}
	if r.epfd >= 0 {
		_ = syscall.Close(r.epfd)
	}
}

// Hold opens n connections, on each of which the server has answered a PING, and returns
// what closes them again. When there are no more ports to connect from, it goes on from
// other loopback addresses.
func Hold(ctx context.Context, addr string, n int) (release func(), err error) {
	resolved, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("cannot connect: %w", err)
	}
	to := sockaddr(resolved)
	var from syscall.Sockaddr // nil: the system's choice
	var held []int
	release = func() {
		for _, fd := range held {
			_ = syscall.Close(fd)
		}
	}
	reply := make([]byte, 64)
	for range n {
		fd, err := connectFrom(from, to)
		if errors.Is(err, syscall.EADDRNOTAVAIL) && resolved.IP.To4() != nil && resolved.IP.IsLoopback() {
			from = nextLoopback(from)
			fd, err = connectFrom(from, to)
		}
		if err != nil {
			release()
			return nil, err
		}
		held = append(held, fd)
		_, err = undisturbed(func() (int, error) { return syscall.Write(fd, []byte("*1\r\n$4\r\nPING\r\n")) })
		if err == nil {
			var got int
			got, err = undisturbed(func() (int, error) { return syscall.Read(fd, reply) })
			if err == nil && (got == 0 || reply[0] != '+') {
				err = fmt.Errorf("the server answers %q to PING", reply[:got])
			}
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			release()
			return nil, fmt.Errorf("cannot hold connection %d of %d: %w", len(held), n, err)
		}
	}
	return release, nil
}

// nextLoopback counts 127.0.0.2, 127.0.0.3 and so on; nil stands for the one before.
func nextLoopback(from syscall.Sockaddr) syscall.Sockaddr {
	last := byte(1)
	if before, ok := from.(*syscall.SockaddrInet4); ok {
		last = before.Addr[3]
	}
	return &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, last + 1}}
}

func connect(addr syscall.Sockaddr) (int, error) { return connectFrom(nil, addr) }

// connectFrom returns a blocking socket. Its descriptor is never known to Go's own poller,
// which would be woken by every reply.
func connectFrom(from, addr syscall.Sockaddr) (int, error) {
	family := syscall.AF_INET
	if _, six := addr.(*syscall.SockaddrInet6); six {
		family = syscall.AF_INET6
	}
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("cannot create a socket: %w", err)
	}
	timeout := syscall.NsecToTimeval(connectTimeout.Nanoseconds())
	err = errors.Join(
		syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &timeout), // of connect, too
		syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &timeout),
		syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1),
	)
	if err == nil && from != nil {
		// The port is chosen by connect: bind would take one from all destinations.
		err = errors.Join(syscall.SetsockoptInt(fd, syscall.IPPROTO_IP, bindAddressNoPort, 1), syscall.Bind(fd, from))
	}
	if err == nil {
		_, err = undisturbed(func() (int, error) { return 0, syscall.Connect(fd, addr) })
	}
	if err != nil && err != syscall.EISCONN { // a signal came while it was connecting
		_ = syscall.Close(fd)
		return -1, fmt.Errorf("cannot connect: %w", err)
	}
	return fd, nil
}

// undisturbed repeats a blocking call that one of the Go runtime's signals has interrupted.
func undisturbed(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != syscall.EINTR {
			return n, err
		}
	}
}

func sockaddr(a *net.TCPAddr) syscall.Sockaddr {
	if four := a.IP.To4(); four != nil {
		return &syscall.SockaddrInet4{Port: a.Port, Addr: [4]byte(four)}
	}
	return &syscall.SockaddrInet6{Port: a.Port, Addr: [16]byte(a.IP.To16())}
}

// threadCPU returns the CPU time of the calling thread.
func threadCPU() (time.Duration, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(rusageThread, &usage); err != nil {
		return 0, fmt.Errorf("cannot read the thread's CPU time: %w", err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}
