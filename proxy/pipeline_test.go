package proxy_test

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

// setLinger0 makes Close send a reset.
func setLinger0(c *clustertest.Conn) { c.Net().(*net.TCPConn).SetLinger(0) }

func bulk(v string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(v), v) }

// TestOwnAnswersKeepTheirPlace: what the proxy answers itself does not overtake
// what it forwards, however slow the backend is.
func TestOwnAnswersKeepTheirPlace(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		p := w.dial(t, 2)
		p.do([]string{"MSET", "a", "1", "b", "2"}, []string{"HSET", "ns:cfg:app", "f", "v"}, []string{"HGETALL", "ns:cfg:app"}, []string{"HGETALL", "ns:cfg:app"})
		commands := [][]string{{"GET", "a"}, {"PING"}, {"HGETALL", "ns:cfg:app"}, {"CLUSTER", "MYID"}, {"GET", "b"}, {"ECHO", "x"}, {"NOSUCH"}, {"CLIENT", "GETNAME"}, {"SELECT", "0"}, {"MULTI"}, {"EXEC"}, {"GET"}, {"UNWATCH"}, {"UNSUBSCRIBE"}, {"INCR", "a"}, {"AUTH", "x"}, {"SELECT", "1"}, {"GET", "a"}}
		w.direct.Freeze()
		w.behind.Freeze()
		p.behind.Send(encodeAll(commands...))
		p.direct.Send(encodeAll(commands...))
		w.behind.Thaw()
		w.direct.Thaw()
		for _, c := range commands {
			if got, want := p.behind.ReadReply(), p.direct.ReadReply(); got != want {
				t.Errorf("%v: got %q, want %q", c, got, want)
			}
		}
	})
}

// TestLateReply: the answer to a command that has timed out reaches nobody.
func TestLateReply(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind := clustertest.StartRedis(t)
		o := strict(t, behind, transport)
		o.Upstream.Timeout, o.Loops = 300*time.Millisecond, 1
		_, addr := proxytest.Start(t, o)
		a, b := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
		for range 2 {
			behind.Freeze()
			a.Cmd("ECHO", "own") // answered by the proxy: the backend plays no part
			a.Expect(bulk("own"))
			a.Cmd("EVAL", "return 'late'", "0")
			if got := a.ReadReply(); !strings.HasPrefix(got, "-ERR cosky-proxy timed out") {
				t.Fatalf("got %q, want a timeout", got)
			}
			behind.Thaw()
			clustertest.Await(t, "the backend to be in service again", func() error {
				if got := b.Do("SET", "k", "v"); got != "+OK\r\n" {
					return errors.New(got)
				}
				return nil
			})
			for i := range 300 {
				for _, c := range []*clustertest.Conn{a, b} {
					v := fmt.Sprintf("%p-%d", c, i)
					c.Send(encodeAll([]string{"SET", v, v}, []string{"GET", v}))
				}
				for _, c := range []*clustertest.Conn{a, b} {
					c.Expect("+OK\r\n")
					c.Expect(bulk(fmt.Sprintf("%p-%d", c, i)))
				}
			}
		}
	})
}

// TestLeavingClients: clients that go away with requests in flight leave nothing
// behind for those who share the backend connection.
func TestLeavingClients(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind := clustertest.StartRedis(t)
		o := strict(t, behind, transport)
		s, addr := proxytest.Start(t, o)
		behind.Do("SET", "big", strings.Repeat("b", 200<<10))
		behind.Do("SET", "small", "s")
		survivors := make([]*clustertest.Conn, 5)
		for i := range survivors {
			survivors[i] = clustertest.Dial(t, addr)
		}
		for round := range 60 {
			for i := range 4 {
				c := clustertest.Dial(t, addr)
				c.Send(strings.Repeat(encodeAll([]string{"GET", []string{"big", "small"}[i%2]}), 1+round%3))
				if i >= 2 {
					setLinger0(c)
				}
				c.Close()
			}
			for i, c := range survivors {
				v := fmt.Sprintf("own-%d-%d", i, round)
				c.Send(encodeAll([]string{"SET", v, v}, []string{"GET", v}))
			}
			for i, c := range survivors {
				c.Expect("+OK\r\n")
				c.Expect(bulk(fmt.Sprintf("own-%d-%d", i, round)))
			}
		}
		awaitClients(t, s, int64(len(survivors)))
		if n, _ := strconv.Atoi(behind.InfoField("clients", "connected_clients")); n > 10 {
			t.Errorf("the backend has %d connections", n)
		}
	})
}

func awaitClients(t *testing.T, s *proxy.Server, want int64) {
	t.Helper()
	clustertest.Await(t, fmt.Sprint(want, " clients"), func() error {
		if got := s.Stats().Clients; got != want {
			return fmt.Errorf("there are %d", got)
		}
		return nil
	})
}

// TestBackendDies: every request in flight is answered when the backend dies, and
// the session lives on.
func TestBackendDies(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		for _, proto := range []int{2, 3} {
			c := clustertest.Dial(t, w.proxy)
			if proto == 3 {
				c.Do("HELLO", "3")
			}
			c.Cmd("SET", "k", "v")
			c.Expect("+OK\r\n")
			for range 10 {
				c.Cmd("GET", "k")
				c.Expect(bulk("v"))
			}
			w.behind.Freeze()
			c.Send(strings.Repeat(encodeAll([]string{"GET", "k"}), 45) + strings.Repeat(encodeAll([]string{"MULTI"}, []string{"GET", "k"}, []string{"EXEC"}), 5) + strings.Repeat(encodeAll([]string{"HGETALL", "ns:cfg:app"}), 40))
			c.Send(encodeAll([]string{"PING"})) // in its place: behind all of them
			clustertest.Await(t, "the commands to be with the backend", func() error {
				other := clustertest.Dial(t, w.proxy)
				defer other.Close()
				if got := other.Do("CLIENT", "LIST"); !strings.Contains(got, "cmd=hgetall") && !strings.Contains(got, "cmd=ping") && !strings.Contains(got, "cmd=exec") {
					return fmt.Errorf("%s", got)
				}
				return nil
			})
			w.behind.Stop()
			errors := 0
			for i := range 45 + 15 + 40 {
				got := c.ReadReply()
				switch {
				case strings.HasPrefix(got, "-ERR cosky-proxy"):
					errors++
				case got == "+OK\r\n", got == "+QUEUED\r\n", strings.HasPrefix(got, "-EXECABORT"):
				default:
					t.Errorf("reply %d is %q, want an error of the proxy's", i, got)
				}
			}
			if errors < 45+5+40-5 {
				t.Errorf("only %d errors", errors)
			}
			c.Expect("+PONG\r\n")
			w.behind.Restart()
			clustertest.Await(t, "the backend's return", func() error {
				if got := c.Do("SET", "k", "w"); got != "+OK\r\n" {
					return fmt.Errorf("got %q", got)
				}
				return nil
			})
		}
	})
}

// TestWriteFirstReadLater: a client may write a whole pipeline before it reads,
// even one whose replies do not fit anywhere.
func TestWriteFirstReadLater(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		other := w.dial(t, 2)
		other.do([]string{"SET", "kb", strings.Repeat("x", 1024)})
		for _, tt := range []struct {
			n          int
			key, reply string
		}{{10000, "none", "$-1\r\n"}, {60000, "kb", bulk(strings.Repeat("x", 1024))}} {
			c := clustertest.Dial(t, w.proxy)
			written := make(chan struct{})
			go func() {
				defer close(written)
				request := clustertest.Encode("GET", tt.key)
				for range tt.n / 100 {
					c.Net().Write([]byte(strings.Repeat(request, 100)))
				}
			}()
			select { // the small one is taken at once, the big one is held up by nobody reading
			case <-written:
			case <-time.After(100 * time.Millisecond):
			}
			other.do([]string{"INCR", "n"})
			for i := range tt.n {
				if got := c.ReadReply(); got != tt.reply {
					t.Fatalf("reply %d is %.100q", i, got)
				}
			}
			<-written
		}
	})
}

// TestShortConnections: connections of one command leave nothing behind.
func TestShortConnections(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind := clustertest.StartRedis(t)
		o := strict(t, behind, transport)
		s, addr := proxytest.Start(t, o)
		steady := clustertest.Dial(t, addr)
		steady.Cmd("SET", "k", "v")
		steady.Expect("+OK\r\n")
		var all sync.WaitGroup
		failures := make(chan string, 4)
		for worker := range 4 {
			all.Go(func() {
				for i := range 375 {
					if got, want := short(addr, i%4), shortWant[i%4]; got != want {
						failures <- fmt.Sprintf("worker %d, connection %d: got %q, want %q", worker, i, got, want)
						return
					}
				}
			})
		}
		for range 500 {
			steady.Cmd("GET", "k")
			steady.Expect(bulk("v"))
		}
		all.Wait()
		close(failures)
		for f := range failures {
			t.Error(f)
		}
		awaitClients(t, s, 1)
		if n, _ := strconv.Atoi(behind.InfoField("clients", "connected_clients")); n > 10 {
			t.Errorf("the backend has %d connections", n)
		}
	})
}

var shortWant = []string{"+PONG\r\n", "$1\r\nv\r\n", "", "$1\r\nv\r\n+OK\r\n"}

// short is one connection of the given kind.
func short(addr string, kind int) string {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return err.Error()
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(clustertest.Deadline))
	switch kind {
	case 0:
		nc.Write([]byte("PING\r\n"))
	case 1:
		nc.Write([]byte("GET k\r\n"))
	case 2:
		nc.Write([]byte("GET k\r\n")) // and does not wait for the reply
		return ""
	case 3:
		nc.Write([]byte("GET k\r\nQUIT\r\n"))
	}
	buf, n := make([]byte, 64), 0
	for n < len(shortWant[kind]) {
		m, err := nc.Read(buf[n:])
		n += m
		if err != nil {
			return string(buf[:n]) + err.Error()
		}
	}
	return string(buf[:n])
}

// TestIdleBackendConnection: the backend closes idle connections; no client
// notices.
func TestIdleBackendConnection(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind := clustertest.StartRedis(t)
		o := strict(t, behind, transport)
		s, addr := proxytest.Start(t, o)
		c := clustertest.Dial(t, addr)
		lost := func() (n uint64) {
			for _, node := range s.Stats().Nodes {
				n += node.ConnectionsLost
			}
			return n
		}
		for range 20 {
			before := lost()
			killed := behind.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").(int64)
			clustertest.Await(t, "the proxy to see the end of its connections", func() error {
				if n := lost() - before; n < uint64(killed) {
					return fmt.Errorf("it saw %d of %d", n, killed)
				}
				return nil
			})
			for _, tt := range []struct{ command, want string }{
				{encodeAll([]string{"SET", "k", "v"}), "+OK\r\n"},
				{encodeAll([]string{"GET", "k"}), "$1\r\nv\r\n"},
				{encodeAll([]string{"EVAL", "return 1", "0"}), ":1\r\n"},
			} {
				c.Send(tt.command)
				c.Expect(tt.want)
			}
		}
	})
}

// TestCachedReads: commands and arguments that look alike have their own answers,
// every client gets its own encoding, errors do not stick, and pipelines and
// transactions see what was written before them.
func TestCachedReads(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		two, three := w.dial(t, 2), w.dial(t, 3)
		const h, s, none = "ns:cfg:app", "ns:cfg_idx", "ns:svc_itc:none"
		two.do([]string{"HSET", h, "f1", "a", "f2", "b"}, []string{"SADD", s, "m"})
		for range 3 { // the first fills, the later ones are served from memory
			for _, p := range []*pair{two, three} {
				p.do([]string{"HGETALL", h}, []string{"SMEMBERS", s}, []string{"HGETALL", none}, []string{"SMEMBERS", "ns:svc_idx"})
				p.do([]string{"HGET", h, "f1"}, []string{"HGET", h, "f2"}, []string{"HKEYS", h}, []string{"HVALS", h}, []string{"HLEN", h}, []string{"hgetall", h}, []string{"HGETALL", strings.ToUpper(h)}, []string{"HSCAN", h, "0"}, []string{"HGETALL", h, "x"}, []string{"HGETALL", s}, []string{"SMEMBERS", h}, []string{"SCARD", s})
			}
		}
		p := w.dial(t, 2) // one connection that switches
		for _, proto := range []string{"3", "2", "3"} {
			p.direct.Do("HELLO", proto)
			p.behind.Do("HELLO", proto)
			p.do([]string{"HGETALL", h}, []string{"SMEMBERS", s}, []string{"HGETALL", none})
		}
		two.do([]string{"SET", "a", "1"}, []string{"HGETALL", h}, []string{"HSET", h, "f1", "2"}, []string{"HGETALL", h}, []string{"MULTI"}, []string{"HGETALL", h}, []string{"EXEC"})
		two.do([]string{"DEL", h}, []string{"HGETALL", h}, []string{"SADD", h, "m"}, []string{"HGETALL", h}, []string{"SMEMBERS", h})

		wrong := make([]*clustertest.Conn, 10)
		for i := range wrong {
			wrong[i] = clustertest.Dial(t, w.proxy)
			wrong[i].Cmd("HGETALL", h)
		}
		for _, c := range wrong {
			c.Expect("-WRONGTYPE Operation against a key holding the wrong kind of value\r\n")
		}
		two.do([]string{"DEL", h}, []string{"HSET", h, "f", "v"}, []string{"HGETALL", h})
		three.do([]string{"HGETALL", h})
	})
}
