package load

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/redcon"
)

// serve starts a RESP server that answers PING itself and every other command
// with answer, which gets the number of commands before this one and is never called twice
// at a time.
func serve(t *testing.T, answer func(conn redcon.Conn, args [][]byte, before int64)) (addr string, served *atomic.Int64) {
	t.Helper()
	served = new(atomic.Int64)
	var mu sync.Mutex
	handler := func(conn redcon.Conn, cmd redcon.Command) {
		if strings.EqualFold(string(cmd.Args[0]), "PING") {
			conn.WriteString("PONG")
			return
		}
		mu.Lock()
		defer mu.Unlock()
		answer(conn, cmd.Args, served.Add(1)-1)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := redcon.NewServer(l.Addr().String(), handler, nil, nil)
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() {
		_ = l.Close()
		_ = server.Close()
		wg.Wait()
	})
	return l.Addr().String(), served
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestRunSendsExactlyWhatItReports(t *testing.T) {
	large := strings.Repeat("x", 3<<20) // more than a socket takes at once
	for _, c := range []struct {
		name                     string
		clients, depth, requests int
		threads                  int
		want                     int
		commands                 [][]string
		reconnect                bool
	}{
		{name: "one", clients: 1, depth: 1, requests: 1, want: 1},
		{name: "fewer pipelines than clients", clients: 8, depth: 4, requests: 8, want: 8},
		{name: "rounded up to a full pipeline", clients: 3, depth: 4, requests: 41, want: 44},
		{name: "many rounds", clients: 10, depth: 16, requests: 16_000, want: 16_000},
		{name: "replies of two lengths", clients: 3, depth: 3, requests: 999, want: 999, commands: [][]string{{"GET", Placeholder}, {"SET", "k", "v"}}},
		{name: "three threads", clients: 10, threads: 3, depth: 16, requests: 16_000, want: 16_000},
		{name: "more threads than clients", clients: 2, threads: 8, depth: 1, requests: 100, want: 100},
		{name: "large requests", clients: 2, depth: 2, requests: 8, want: 8, commands: [][]string{{"SET", "k", large}}},
		{name: "a connection for each", clients: 4, depth: 1, requests: 100, want: 100, reconnect: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			connections := map[string]bool{}
			addr, served := serve(t, func(conn redcon.Conn, args [][]byte, _ int64) {
				connections[conn.RemoteAddr()] = true
				if len(args) == 3 {
					conn.WriteString("OK")
					return
				}
				conn.WriteBulkString("0123456789")
			})
			if c.commands == nil {
				c.commands = [][]string{{"GET", Placeholder}}
			}
			got, err := Run(testContext(t), Spec{
				Addr: addr, Clients: c.clients, Threads: c.threads, Depth: c.depth, Requests: c.requests,
				Commands: c.commands, Keys: 100, Reconnect: c.reconnect,
			})
			if err != nil {
				t.Fatal(err)
			}
			if got.Requests != c.want {
				t.Errorf("reported %d requests, want %d", got.Requests, c.want)
			}
			// Each command was asked once more to learn the length of its reply.
			if n := served.Load(); n != int64(c.want+len(c.commands)) {
				t.Errorf("server saw %d commands, want %d", n, c.want+len(c.commands))
			}
			want := 1 + min(c.clients, c.want/c.depth)
			if c.reconnect {
				want = 1 + c.want
			}
			if n := len(connections); n != want {
				t.Errorf("server saw commands on %d connections, want %d", n, want)
			}
			if got.Elapsed <= 0 || got.P50 <= 0 || got.P99 < got.P50 || got.P999 < got.P99 {
				t.Errorf("implausible result %+v", got)
			}
		})
	}
}

func TestRunReportsTrouble(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(redcon.Conn, [][]byte, int64)
		want   string
	}{
		{"error reply", func(conn redcon.Conn, _ [][]byte, _ int64) { conn.WriteError("ERR no") }, "the server answers"},
		{"replies that grow", func(conn redcon.Conn, _ [][]byte, before int64) {
			conn.WriteBulkString(strings.Repeat("x", int(before+1)))
		}, "more than expected"},
		{"connection lost", func(conn redcon.Conn, _ [][]byte, before int64) {
			if before < 20 {
				conn.WriteString("OK")
				return
			}
			_ = conn.Close()
		}, "cannot read replies"},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr, _ := serve(t, c.answer)
			_, err := Run(testContext(t), Spec{
				Addr: addr, Clients: 2, Depth: 2, Requests: 100, Commands: [][]string{{"GET", "k"}}, Keys: 1,
			})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one that says %q", err, c.want)
			}
		})
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	addr, _ := serve(t, func(conn redcon.Conn, _ [][]byte, before int64) {
		if before == 0 {
			conn.WriteString("OK")
			return
		}
		cancel() // and say nothing: the run now waits for a reply that never comes
	})
	_, err := Run(ctx, Spec{Addr: addr, Clients: 1, Depth: 1, Requests: 10, Commands: [][]string{{"GET", "k"}}, Keys: 1})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
}

func TestRunNeedsAServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = Run(testContext(t), Spec{Addr: addr, Clients: 1, Depth: 1, Requests: 1, Commands: [][]string{{"GET", "k"}}, Keys: 1})
	if err == nil || !strings.Contains(err.Error(), "cannot connect") {
		t.Errorf("got error %v, want one that says it cannot connect", err)
	}
}

// Where the ports of one address are used up, the next one has its own.
func TestConnectFromOtherAddresses(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	from := nextLoopback(nil)
	for _, want := range []string{"127.0.0.2", "127.0.0.3"} {
		fd, err := connectFrom(from, sockaddr(l.Addr().(*net.TCPAddr)))
		if err != nil {
			t.Fatal(err)
		}
		defer syscall.Close(fd)
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if got := conn.RemoteAddr().(*net.TCPAddr).IP.String(); got != want {
			t.Errorf("connected from %s, want %s", got, want)
		}
		from = nextLoopback(from)
	}
}

func TestHold(t *testing.T) {
	var open atomic.Int64
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := redcon.NewServer(l.Addr().String(), func(conn redcon.Conn, _ redcon.Command) { conn.WriteString("PONG") },
		func(redcon.Conn) bool { open.Add(1); return true }, func(redcon.Conn, error) { open.Add(-1) })
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(l) })
	defer wg.Wait()
	defer server.Close()

	release, err := Hold(testContext(t), l.Addr().String(), 20)
	if err != nil {
		t.Fatal(err)
	}
	if n := open.Load(); n != 20 {
		t.Errorf("server has %d connections, want 20", n)
	}
	release()
	for deadline := time.Now().Add(10 * time.Second); open.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections stay", open.Load())
		}
	}
}
