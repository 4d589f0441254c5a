package netloop

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A paused connection whose Unix peer is gone closes and does not spin: epoll
// reports the hang-up again and again.
func TestHangupWhilePaused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	e := newEnvOn(t, Options{}, "unix:"+path)
	closed := make(chan error, 1)
	nc, _ := e.serve(func(c *Conn) Handler {
		c.PauseRead()
		return &script{close: func(err error) { closed <- err }}
	})
	nc.Close()
	if err := recvFrom(t, closed); err != ErrHungUp {
		t.Errorf("OnClose(%v)", err)
	}
}

func TestResetNamesItsCause(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		for _, paused := range []bool{false, true} {
			closed := make(chan error, 1)
			nc, _ := e.serve(func(c *Conn) Handler {
				if paused {
					c.PauseRead()
				}
				return &script{close: func(err error) { closed <- err }}
			})
			reset(t, nc)
			if err := recvFrom(t, closed); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("OnClose(%v) while paused=%v", err, paused)
			}
		}
	})
}

func TestAttachFD(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		peer, err := fileConn(fds[1])
		if err != nil {
			t.Fatal(err)
		}
		defer peer.Close()
		peer.SetDeadline(time.Now().Add(patience))
		h := &script{}
		e.do(func() {
			c, err := e.loop.AttachFD(fds[0], h)
			if err != nil {
				t.Error(err)
				return
			}
			h.data = func(b []byte) int { reply(c, b); return len(b) }
			if _, err := e.loop.AttachFD(-1, h); err == nil {
				t.Error("AttachFD took an invalid descriptor")
			}
		})
		mustWrite(t, peer, pattern(100))
		mustRead(t, peer, pattern(100))
	})
}

// Options set on the listening socket must arrive on accepted ones.
func TestAcceptedSocketsInheritOptions(t *testing.T) {
	e := newEnv(t, Options{})
	_, c := e.serve(echo)
	fd := c.t.(*socket).fd
	for _, o := range []struct {
		name                string
		level, option, want int
	}{
		{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 300},
		{"TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 100},
		{"SO_PROTOCOL", unix.SOL_SOCKET, unix.SO_PROTOCOL, unix.IPPROTO_TCP},
	} {
		if got, err := unix.GetsockoptInt(fd, o.level, o.option); err != nil || got != o.want {
			t.Errorf("%s is %d, %v; want %d", o.name, got, err, o.want)
		}
	}
}

// An event that was queued for a closed socket must not reach the next owner
// of its number.
func TestLateEventMissesTheNextOwner(t *testing.T) {
	e := newEnv(t, Options{})
	got := 0
	_, c := e.serve(func(c *Conn) Handler {
		return &script{data: func(b []byte) int { got++; return len(b) }, eof: func() { got++ }}
	})
	e.do(func() {
		p, s := e.loop.poll.(*epoll), c.t.(*socket)
		p.dispatch([]unix.EpollEvent{
			{Events: unix.EPOLLIN | unix.EPOLLHUP, Fd: int32(s.fd), Pad: s.gen - 1},
			{Events: unix.EPOLLIN, Fd: int32(len(p.sockets)), Pad: 1},
		})
		if got != 0 || c.Closed() {
			t.Error("a stale event was delivered")
		}
	})
}

// TestAttachFails: whoever has chosen the place hears that it is not taken.
func TestAttachFails(t *testing.T) {
	e := newEnv(t, Options{})
	lost := make(chan struct{})
	e.ln.place(accepted{fd: -1}, Place{
		Loop:    e.loop,
		Welcome: func(*Conn) Handler { t.Error("a descriptor that is none was welcomed"); return nil },
		Lost:    func() { close(lost) },
	}, nil)
	recvFrom(t, lost)
}

const childEnv = "NETLOOP_TEST_EMFILE_CHILD"

// TestOutOfDescriptors runs a server with few descriptors in a child process
// and connects more clients than it can hold.
func TestOutOfDescriptors(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		serveWithFewDescriptors(t)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestOutOfDescriptors$")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer stdin.Close()
	out := bufio.NewReader(stdout)
	addr, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}

	const clients = 60
	var served []net.Conn
	rejected := 0
	connect := func() (net.Conn, bool) {
		nc, err := net.Dial("tcp", strings.TrimSpace(addr))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		nc.SetDeadline(time.Now().Add(patience))
		mustWrite(t, nc, []byte("hello"))
		answer := make([]byte, 5)
		n, _ := io.ReadFull(nc, answer)
		switch string(answer[:n]) {
		case "hello":
			return nc, true
		case "-ERR ", "":
			// Its greeting was not read, so a reset may overtake the answer.
			return nc, false
		}
		t.Fatalf("answered %q", answer[:n])
		return nil, false
	}
	for range clients {
		if nc, ok := connect(); ok {
			served = append(served, nc)
		} else {
			rejected++
		}
	}
	if len(served) < 10 || rejected < 10 {
		t.Fatalf("%d served, %d rejected", len(served), rejected)
	}
	for _, nc := range served {
		mustWrite(t, nc, []byte("still here"))
		mustRead(t, nc, []byte("still here"))
	}
	for _, nc := range served {
		nc.Close()
	}
	eventually(t, "clients are served again", func() bool { _, ok := connect(); return ok })

	stdin.Close()
	report, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var stats ListenerStats
	if _, err := fmt.Sscanf(report, "%d %d %d %d", &stats.Accepted, &stats.Rejected, &stats.Failures, &stats.Outages); err != nil {
		t.Fatalf("%q: %v", report, err)
	}
	// One failed accept per client turned away is the proof that it did not
	// spin, and one log line (the outage) that it did not flood.
	if stats.Outages < 1 || stats.Outages > 3 || stats.Failures > stats.Rejected+3 || int(stats.Rejected) < rejected {
		t.Errorf("stats %+v for %d rejected clients", stats, rejected)
	}
}

func serveWithFewDescriptors(t *testing.T) {
	e := newEnv(t, Options{})
	e.accept(echo)
	e.ln.opts.Reject = func(error) []byte { return []byte("-ERR full\r\n") }
	limit := uint64(openDescriptors(t) + 25)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		t.Fatal(err)
	}
	fmt.Println(e.ln.Addr())
	io.Copy(io.Discard, os.Stdin)
	s := e.ln.Stats()
	fmt.Println(s.Accepted, s.Rejected, s.Failures, s.Outages)
}
