package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
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

// client is one connection of a run. All fields belong to its thread's goroutine.
type client struct {
	fd     int       // -1: not connected
	next   int       // index of the pipeline to send next
	unsent []byte    // of the pipeline in flight, what the socket has not taken yet
	unread int       // bytes still to come for the pipeline in flight
	began  time.Time // when that pipeline was sent
	armed  bool      // the socket is asked to tell when it takes more
}

// run is what the threads of one Run call share.
type run struct {
	spec      Spec
	addr      syscall.Sockaddr
	pipelines []pipeline
	left      atomic.Int64 // pipelines not yet sent; negative when more were asked for
}

// thread serves a part of the connections. All fields belong to its goroutine.
type thread struct {
	*run
	epfd     int
	clients  []client
	inFlight int
	buf      []byte
	latency  histogram
	cpu      time.Duration
}

// Run sends spec.Requests commands and returns when the last reply is in, or
// with an error when ctx ends, a connection breaks or a reply has another length
// than the first one had.
func Run(ctx context.Context, spec Spec) (Result, error) {
	if err := spec.validate(); err != nil {
		return Result{}, err
	}
	r := &run{spec: spec}
	if err := r.learn(ctx); err != nil {
		return Result{}, err
	}
	pipelines := (spec.Requests + spec.Depth - 1) / spec.Depth
	r.left.Store(int64(pipelines))
	threads := r.threads()
	for _, t := range threads {
		defer t.close()
		if err := t.open(); err != nil {
			return Result{}, err
		}
	}
	began := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for _, t := range threads {
		all.Go(func() {
			if err := t.serve(ctx); err != nil {
				cancel(err) // the first error ends the others
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return Result{}, err
	}
	result := Result{Requests: pipelines * spec.Depth, Elapsed: time.Since(began)}
	var latency histogram
	for _, t := range threads {
		result.CPU += t.cpu
		latency.merge(&t.latency)
	}
	result.P50, result.P99, result.P999 = latency.quantile(0.50), latency.quantile(0.99), latency.quantile(0.999)
	return result, nil
}

// threads divides the connections.
func (r *run) threads() []*thread {
	threads := make([]*thread, min(max(1, r.spec.Threads), r.spec.Clients))
	for i := range threads {
		threads[i] = &thread{run: r, epfd: -1, buf: make([]byte, 256<<10)}
	}
	for i := range r.spec.Clients {
		t := threads[i%len(threads)]
		t.clients = append(t.clients, client{fd: -1, next: i})
	}
	return threads
}

// serve sends and receives until no pipeline is left.
func (t *thread) serve(ctx context.Context) error {
	// The thread's CPU clock is only ours while nobody else runs on the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := threadCPU()
	if err != nil {
		return err
	}
	if err := t.loop(ctx); err != nil {
		return err
	}
	after, err := threadCPU()
	t.cpu = after - before
	return err
}

// learn finds out the lengths of the replies and encodes the pipelines.
func (r *run) learn(ctx context.Context) error {
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
	return nil
}

// open opens the connections, unless each pipeline opens its own.
func (t *thread) open() (err error) {
	if t.epfd, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("cannot create epoll set: %w", err)
	}
	if t.spec.Reconnect {
		return nil
	}
	for i := range t.clients {
		if err := t.connect(i); err != nil {
			return err
		}
	}
	return nil
}

func (t *thread) connect(i int) error {
	fd, err := connect(t.addr)
	if err != nil {
		return err
	}
	t.clients[i].fd, t.clients[i].armed = fd, false
	if err := syscall.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("cannot make connection non-blocking: %w", err)
	}
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(i)}
	if err := syscall.EpollCtl(t.epfd, syscall.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("cannot watch connection: %w", err)
	}
	return nil
}

func (t *thread) loop(ctx context.Context) error {
	for i := range t.clients {
		if err := t.send(i); err != nil {
			return err
		}
	}
	events := make([]syscall.EpollEvent, min(len(t.clients), 256))
	for t.inFlight > 0 {
		n, err := syscall.EpollWait(t.epfd, events, waitMillis)
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
			if err := t.ready(int(event.Fd), event.Events); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *thread) ready(i int, events uint32) error {
	if events&syscall.EPOLLOUT != 0 {
		if err := t.write(i); err != nil {
			return err
		}
	}
	if events&^syscall.EPOLLOUT == 0 {
		return nil
	}
	return t.receive(i)
}

// send begins the client's next pipeline, if any is left.
func (t *thread) send(i int) error {
	if t.left.Add(-1) < 0 {
		return nil
	}
	t.inFlight++
	c := &t.clients[i]
	p := &t.pipelines[c.next%len(t.pipelines)]
	c.next++
	c.unsent, c.unread = p.request, p.reply
	c.began = time.Now()
	if t.spec.Reconnect {
		if err := t.connect(i); err != nil {
			return err
		}
	}
	return t.write(i)
}

// write sends as much of the pipeline as the socket takes.
func (t *thread) write(i int) error {
	c := &t.clients[i]
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
		if err := syscall.EpollCtl(t.epfd, syscall.EPOLL_CTL_MOD, c.fd, &event); err != nil {
			return fmt.Errorf("cannot watch connection: %w", err)
		}
	}
	return nil
}

// receive reads what has arrived and, when the pipeline is complete, sends the next.
func (t *thread) receive(i int) error {
	c := &t.clients[i]
	n, err := syscall.Read(c.fd, t.buf)
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
		return fmt.Errorf("cannot count replies: %d bytes more than expected, ending in %.80q", -c.unread, t.buf[max(0, n-80):n])
	}
	if c.unread > 0 {
		return nil
	}
	t.inFlight--
	t.latency.add(time.Since(c.began))
	if t.spec.Reconnect {
		c.close()
	}
	return t.send(i)
}

func (c *client) close() {
	if c.fd >= 0 {
		_ = syscall.Close(c.fd) // nothing of value is in flight any more
	}
	c.fd = -1
}

func (t *thread) close() {
	for i := range t.clients {
		t.clients[i].close()
	}
	if t.epfd >= 0 {
		_ = syscall.Close(t.epfd)
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
		if err := errors.Join(ping(fd), ctx.Err()); err != nil {
			release()
			return nil, fmt.Errorf("cannot hold connection %d of %d: %w", len(held), n, err)
		}
	}
	return release, nil
}

// ping returns an error unless the server answers on a blocking socket.
func ping(fd int) error {
	_, err := undisturbed(func() (int, error) { return syscall.Write(fd, []byte("*1\r\n$4\r\nPING\r\n")) })
	if err != nil {
		return err
	}
	reply := make([]byte, 64)
	n, err := undisturbed(func() (int, error) { return syscall.Read(fd, reply) })
	if err == nil && (n == 0 || reply[0] != '+') {
		err = fmt.Errorf("the server answers %q to PING", reply[:n])
	}
	return err
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
