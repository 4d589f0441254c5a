package load

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/redcon"
)

// serve starts a RESP server that answers PING itself and every other command
// with answer, which gets the number of commands before this one.
func serve(t *testing.T, answer func(conn redcon.Conn, before int64)) (addr string, served *atomic.Int64) {
	t.Helper()
	served = new(atomic.Int64)
	handler := func(conn redcon.Conn, cmd redcon.Command) {
		if strings.EqualFold(string(cmd.Args[0]), "PING") {
			conn.WriteString("PONG")
			return
		}
		answer(conn, served.Add(1)-1)
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
	for _, c := range []struct {
		name                     string
		clients, depth, requests int
		want                     int
	}{
		{"one", 1, 1, 1, 1},
		{"fewer pipelines than clients", 8, 4, 8, 8},
		{"rounded up to a full pipeline", 3, 4, 41, 44},
		{"many rounds", 10, 16, 16_000, 16_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr, served := serve(t, func(conn redcon.Conn, _ int64) { conn.WriteBulkString("0123456789") })
			got, err := Run(testContext(t), Spec{
				Addr: addr, Clients: c.clients, Depth: c.depth, Requests: c.requests,
				Command: []string{"GET", Placeholder}, Keys: 100,
			})
			if err != nil {
				t.Fatal(err)
			}
			if got.Requests != c.want {
				t.Errorf("reported %d requests, want %d", got.Requests, c.want)
			}
			// One more was asked to learn the reply's length.
			if n := served.Load(); n != int64(c.want)+1 {
				t.Errorf("server saw %d commands, want %d", n, c.want+1)
			}
			if got.Elapsed <= 0 || got.P50 <= 0 || got.P99 < got.P50 {
				t.Errorf("implausible result %+v", got)
			}
		})
	}
}

func TestRunReportsTrouble(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(redcon.Conn, int64)
		want   string
	}{
		{"error reply", func(conn redcon.Conn, _ int64) { conn.WriteError("ERR no") }, "the server answers"},
		{"replies that grow", func(conn redcon.Conn, before int64) {
			conn.WriteBulkString(strings.Repeat("x", int(before+1)))
		}, "more than expected"},
		{"connection lost", func(conn redcon.Conn, before int64) {
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
				Addr: addr, Clients: 2, Depth: 2, Requests: 100, Command: []string{"GET", "k"}, Keys: 1,
			})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one that says %q", err, c.want)
			}
		})
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	addr, _ := serve(t, func(conn redcon.Conn, before int64) {
		if before == 0 {
			conn.WriteString("OK")
			return
		}
		cancel() // and say nothing: the run now waits for a reply that never comes
	})
	_, err := Run(ctx, Spec{Addr: addr, Clients: 1, Depth: 1, Requests: 10, Command: []string{"GET", "k"}, Keys: 1})
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
	_, err = Run(testContext(t), Spec{Addr: addr, Clients: 1, Depth: 1, Requests: 1, Command: []string{"GET", "k"}, Keys: 1})
	if err == nil || !strings.Contains(err.Error(), "cannot connect") {
		t.Errorf("got error %v, want one that says it cannot connect", err)
	}
}
