package proxy_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
)

// TestSentinel replaces the master twice, once politely and once with kill -9.
// Cached reads stay within their bound, and writes succeed again by themselves.
func TestSentinel(t *testing.T) {
	s := clustertest.StartSentinel(t)
	p := proxytest.StartSentinel(t, s, func(o *proxy.Options) { o.Cache.MaxStaleness = maxStaleness })
	const key = "ns:svc_itc:a"
	conn := clustertest.Dial(t, p.Addr)
	sha := bulkText(conn.Do("SCRIPT", "LOAD", "return redis.call('INCR', KEYS[1])"))
	var master atomic.Pointer[clustertest.Redis]
	master.Store(s.Master())
	var replicas atomic.Int64
	replicas.Store(2)
	b := startProber(t, key, clustertest.Dial(t, p.Addr), func(version int) error {
		r := master.Load()
		if _, err := r.DoErr("HSET", key, "v", version); err != nil {
			return err
		}
		// What the next master does not have is lost.
		if n, err := r.DoErr("WAIT", replicas.Load(), 500); err != nil || n != replicas.Load() {
			return fmt.Errorf("%v replicas have it: %v", n, err)
		}
		return nil
	})

	listener := clustertest.Dial(t, p.Addr)
	listener.Do("SUBSCRIBE", "ch")

	awaitWrites := func(t *testing.T, next *clustertest.Redis) {
		t.Helper()
		clustertest.Await(t, "writes to reach the new master", func() error {
			for _, cmd := range [][]string{{"SET", "k", "v"}, {"EVALSHA", sha, "1", "n"}} {
				if got := conn.Do(cmd...); got[0] == '-' {
					return errors.New(got)
				}
			}
			conn.Send(oneWrite([]string{"MULTI"}, []string{"SET", "k", next.Addr}, []string{"EXEC"}))
			for range 2 {
				conn.ReadReply()
			}
			if got := conn.ReadReply(); got != "*1\r\n+OK\r\n" {
				return errors.New(got)
			}
			if got := next.Text("GET", "k"); got != next.Addr {
				return fmt.Errorf("the new master has %q", got)
			}
			return nil
		})
	}

	t.Run("failover with the old master alive", func(t *testing.T) {
		b.more(t, 20)
		old := master.Load()
		s.Failover()
		master.Store(s.Master())
		awaitWrites(t, master.Load())
		outlives(t, "ch", func(message string) { conn.Do("PUBLISH", "ch", message) }, listener)
		b.more(t, 30)
		// What the demoted master is asked about now is no business of clients.
		if got := old.InfoField("replication", "role"); got != "slave" {
			t.Errorf("the old master is a %s", got)
		}
	})
	t.Run("killed master", func(t *testing.T) {
		old := master.Load()
		stale := startStale(t, old, key, func(change func(*proxy.Options)) *proxytest.Discovered { return proxytest.StartSentinel(t, s, change) })
		old.Stop()
		stale.standIn(t)
		next := s.AwaitFailover(old)
		clustertest.Await(t, "the promotion", func() error {
			if next.InfoField("replication", "role") != "master" {
				return errors.New("not yet")
			}
			return nil
		})
		stale.end(t, next)
		replicas.Store(1)
		master.Store(next)
		awaitWrites(t, next)
		outlives(t, "ch", func(message string) { conn.Do("PUBLISH", "ch", message) }, listener)
		b.more(t, 30)
	})
	b.finish(t, p)
	t.Run("frozen master", func(t *testing.T) {
		writer, blocked := clustertest.Dial(t, p.Addr), clustertest.Dial(t, p.Addr)
		writer.Do("DEL", "counter")
		blocked.Cmd("BLPOP", "queue", "0")
		old := master.Load()
		clustertest.Await(t, "a client to block", func() error {
			if n := old.InfoField("clients", "blocked_clients"); n != "1" {
				return errors.New(n)
			}
			return nil
		})
		old.Freeze()
		writer.Cmd("INCR", "counter")
		next := s.AwaitFailover(old)
		for _, c := range []*clustertest.Conn{writer, blocked} {
			if got := c.ReadReply(); !strings.HasPrefix(got, "-ERR cosky-proxy connection lost, fate unknown") {
				t.Errorf("got %q", got)
			}
		}
		awaitWrites(t, next)
		outlives(t, "ch", func(message string) { conn.Do("PUBLISH", "ch", message) }, listener)
	})
}

// A backend that wants a password: the proxy logs in on every connection before
// it carries anything, and says so when it cannot.
func TestBackendPassword(t *testing.T) {
	server := clustertest.StartRedis(t, "--requirepass", "secret")
	start := func(t *testing.T, password string) string {
		o := proxytest.Options(t, proxytest.Single(server.Addr))
		o.Backend.Password = password
		_, addr := proxytest.Start(t, o)
		return addr
	}
	for name, password := range map[string]string{"none": "", "a wrong one": "wrong"} {
		t.Run(name, func(t *testing.T) {
			for _, proto := range []string{"2", "3"} {
				conn := clustertest.Dial(t, start(t, password))
				conn.Do("HELLO", proto)
				for _, cmd := range []string{"GET k", "HGETALL ns:svc_itc:a", "EVAL return(1) 0", "SUBSCRIBE c", "BLPOP l 1"} {
					got := conn.Do(strings.Fields(cmd)...)
					if !strings.HasPrefix(got, "-ERR cosky-proxy") || strings.Contains(got, "secret") || strings.Contains(got, "wrong ") {
						t.Errorf("RESP%s %s: got %q, want an error about the proxy's own credentials", proto, cmd, got)
					}
				}
				conn.Send(oneWrite([]string{"MULTI"}, []string{"GET", "k"}, []string{"EXEC"}))
				conn.Expect("+OK\r\n")
				conn.Expect("+QUEUED\r\n")
				if got := conn.ReadReply(); !strings.Contains(got, "cosky-proxy") {
					t.Errorf("RESP%s EXEC: got %q", proto, got)
				}
			}
		})
	}
	t.Run("connections killed under load", func(t *testing.T) {
		addr := start(t, "secret")
		var stop atomic.Bool
		var wg sync.WaitGroup
		failures := make(chan string, 8)
		var served atomic.Int64
		for w := range 8 {
			conn := clustertest.Dial(t, addr)
			if w%2 == 1 {
				conn.Do("HELLO", "3")
			}
			wg.Go(func() {
				for i := 0; !stop.Load(); i++ {
					key := fmt.Sprint("k", w)
					cs := [][]string{{"SET", key, strconv.Itoa(i)}, {"GET", key}, {"HGETALL", "ns:svc_itc:a"}, {"SELECT", strconv.Itoa(i % 3)}}
					conn.Send(oneWrite(cs...))
					for range cs {
						reply := conn.ReadReply()
						switch {
						case reply[0] != '-':
							served.Add(1)
						case !strings.HasPrefix(reply, "-ERR cosky-proxy"):
							failures <- reply
							return
						}
					}
				}
			})
		}
		for range 5 {
			n := served.Load()
			clustertest.Await(t, "service", func() error {
				if served.Load() < n+500 {
					return errors.New("not yet")
				}
				return nil
			})
			server.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		}
		stop.Store(true)
		wg.Wait()
		close(failures)
		for f := range failures {
			t.Errorf("a client saw %q", f)
		}
	})
}

// While a backend is away, requests fail at once and it is dialled with back-off;
// when it is back, it gets as many connections as before, not one per client.
func TestNoReconnectStorm(t *testing.T) {
	server := clustertest.StartRedis(t)
	o := proxytest.Options(t, proxytest.Single(server.Addr))
	o.Upstream.BackoffMin, o.Upstream.BackoffMax = 50*time.Millisecond, 200*time.Millisecond
	p, addr := proxytest.Start(t, o)
	const clients = 100
	var stop atomic.Bool
	var served, refused atomic.Int64
	var wg sync.WaitGroup
	strange := make(chan string, clients)
	for w := range clients {
		conn := clustertest.Dial(t, addr)
		wg.Go(func() {
			for !stop.Load() {
				reply := conn.Do("GET", strconv.Itoa(w))
				switch {
				case reply == "$-1\r\n":
					served.Add(1)
				case strings.HasPrefix(reply, "-ERR cosky-proxy"):
					refused.Add(1)
					time.Sleep(time.Millisecond)
				default:
					strange <- reply
					return
				}
			}
		})
	}
	more := func(what string, n *atomic.Int64) {
		from := n.Load()
		clustertest.Await(t, what, func() error {
			if n.Load() < from+10*clients {
				return errors.New("not yet")
			}
			return nil
		})
	}
	more("service", &served)
	server.Stop()
	attempts := connectErrors(p)
	down := time.Now()
	more("refusals", &refused)
	for time.Since(down) < 500*time.Millisecond { // a time in which a dialler without back-off fails often
		time.Sleep(10 * time.Millisecond)
	}
	attempts = connectErrors(p) - attempts
	lasted := time.Since(down)
	// A pause is at least half of BackoffMin, and two loops dial two kinds of connections.
	if limit := uint64(2*2*(lasted/(25*time.Millisecond)) + 4); attempts == 0 || attempts > limit {
		t.Errorf("the dead backend was dialled %d times in %v, want at most %d", attempts, lasted, limit)
	}
	server.Restart()
	more("service", &served)
	stop.Store(true)
	wg.Wait()
	close(strange)
	for s := range strange {
		t.Errorf("a client got %q", s)
	}
	connected, _ := strconv.Atoi(server.InfoField("stats", "total_connections_received"))
	if connected > 20 { // the test's own included
		t.Errorf("the backend got %d connections after its restart for %d clients", connected, clients)
	}
}

// connectErrors is how often dialling a backend has failed.
func connectErrors(p *proxy.Server) uint64 {
	var n uint64
	for _, node := range p.Stats().Nodes {
		n += node.ConnectErrors
	}
	return n
}
