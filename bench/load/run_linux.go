package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"
)

const (
	connectTimeout = 5 * time.Second
	// waitMillis bounds one wait, so that a cancelled context is noticed although
	// the server says nothing.
	waitMillis   = 100
	rusageThread = 1 // RUSAGE_THREAD, which package syscall does not name
)

// client is one connection of a run. All fields belong to the run's goroutine.
type client struct {
	file   *os.File
	fd     int
	next   int       // index of the pipeline to send next
	unread int       // bytes still to come for the pipeline in flight
	sent   time.Time // when that pipeline was sent
}

// run is the state of one Run call, owned by its goroutine.
type run struct {
	spec      Spec
	pipelines [][]byte
	expect    int // reply bytes of a whole pipeline
	epfd      int
	clients   []client
	unsent    int // pipelines not yet sent
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
	perPipeline := spec.Depth
	r := &run{
		spec: spec, pipelines: spec.pipelines(), epfd: -1,
		unsent: (spec.Requests + perPipeline - 1) / perPipeline,
		buf:    make([]byte, 256<<10),
	}
	defer r.close()
	if err := r.connect(ctx); err != nil {
		return Result{}, err
	}
	total := r.unsent * perPipeline

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
		P50: r.latency.quantile(0.50), P99: r.latency.quantile(0.99),
	}, nil
}

// connect opens all connections and learns the length of a reply.
func (r *run) connect(ctx context.Context) error {
	epfd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("cannot create epoll set: %w", err)
	}
	r.epfd = epfd
	dialer := net.Dialer{Timeout: connectTimeout}
	for i := range r.spec.Clients {
		conn, err := dialer.DialContext(ctx, "tcp", r.spec.Addr)
		if err != nil {
			return fmt.Errorf("cannot connect: %w", err)
		}
		if i == 0 {
			reply, err := r.spec.replyBytes(conn, connectTimeout)
			if err != nil {
				return errors.Join(err, conn.Close())
			}
			r.expect = reply * r.spec.Depth
		}
		if err := r.adopt(conn, i); err != nil {
			return err
		}
	}
	return nil
}

// adopt takes the socket away from Go's own poller.
func (r *run) adopt(conn net.Conn, index int) error {
	// File duplicates the descriptor; the original is not needed any more.
	file, err := conn.(*net.TCPConn).File()
	if err := errors.Join(err, conn.Close()); err != nil {
		return fmt.Errorf("cannot take over connection: %w", err)
	}
	fd := int(file.Fd())
	r.clients = append(r.clients, client{file: file, fd: fd, next: index})
	if err := syscall.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("cannot make connection non-blocking: %w", err)
	}
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(index)}
	if err := syscall.EpollCtl(r.epfd, syscall.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("cannot watch connection: %w", err)
	}
	return nil
}

func (r *run) loop(ctx context.Context) error {
	for i := range r.clients {
		if err := r.send(&r.clients[i]); err != nil {
			return err
		}
	}
	events := make([]syscall.EpollEvent, len(r.clients))
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
			if err := r.receive(&r.clients[event.Fd]); err != nil {
				return err
			}
		}
	}
	return nil
}

// send writes the client's next pipeline, if any is left.
func (r *run) send(c *client) error {
	if r.unsent == 0 {
		return nil
	}
	r.unsent--
	pipeline := r.pipelines[c.next%len(r.pipelines)]
	c.next++
	c.unread = r.expect
	c.sent = time.Now()
	r.inFlight++
	n, err := syscall.Write(c.fd, pipeline)
	if err != nil {
		return fmt.Errorf("cannot send a pipeline: %w", err)
	}
	// The socket's buffer was empty, so it takes a whole pipeline of sane size.
	if n != len(pipeline) {
		return fmt.Errorf("cannot send a pipeline: only %d of %d bytes fit the socket", n, len(pipeline))
	}
	return nil
}

// receive reads what has arrived and, when the pipeline is complete, sends the next.
func (r *run) receive(c *client) error {
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
	r.latency.add(time.Since(c.sent))
	return r.send(c)
}

func (r *run) close() {
	for _, c := range r.clients {
		_ = c.file.Close() // nothing of value is in flight any more
	}
	if r.epfd >= 0 {
		_ = syscall.Close(r.epfd)
	}
}

// threadCPU returns the CPU time of the calling thread.
func threadCPU() (time.Duration, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(rusageThread, &usage); err != nil {
		return 0, fmt.Errorf("cannot read the thread's CPU time: %w", err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}
