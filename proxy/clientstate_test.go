package proxy_test

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

// TestStateHoldsForStreamedRequests: what CLIENT and MONITOR say about commands is true of
// those that are passed on while they arrive, too.
func TestStateHoldsForStreamedRequests(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	set := []string{"SET", "k", strings.Repeat("v", 3<<20)}
	// The reply that is skipped is that of SET, nothing else's.
	p := w.dial(t, 2)
	raw := clustertest.Encode("CLIENT", "REPLY", "SKIP") + clustertest.Encode(set...) + encodeAll(script("ECHO a", "ECHO b")...)
	p.direct.Send(raw)
	p.behind.Send(raw)
	p.same(2)
	// The reply to a confirmation is not dropped; that of the SET behind it is.
	raw = encodeAll(script("CLIENT REPLY OFF", "SUBSCRIBE a", "UNSUBSCRIBE a")...) + clustertest.Encode(set...) + clustertest.Encode("CLIENT", "REPLY", "ON")
	p.direct.Send(raw)
	p.behind.Send(raw)
	p.same(3)
	// Nor may one who monitors write.
	p = w.dial(t, 2)
	p.do(script("MONITOR")...)
	p.do(set)
	// A pause holds it.
	control, writer := clustertest.Dial(t, w.proxy), clustertest.Dial(t, w.proxy)
	control.Do("DEL", "k")
	control.Do("CLIENT", "PAUSE", "100000", "WRITE")
	writer.Send(clustertest.Encode(set...))
	awaitClient(t, control, "flags=b")
	if got := control.Do("EXISTS", "k"); got != ":0\r\n" {
		t.Errorf("written during a pause: EXISTS says %q", got)
	}
	control.Do("CLIENT", "UNPAUSE")
	writer.Expect("+OK\r\n")
}

// same compares the next n replies.
func (p *pair) same(n int) {
	p.t.Helper()
	for range n {
		if want, got := p.direct.ReadReply(), p.behind.ReadReply(); got != want {
			p.t.Errorf("got %.200q, a direct connection gets %.200q", got, want)
		}
	}
}

// awaitClient waits until one client has field in CLIENT LIST.
func awaitClient(t *testing.T, c *clustertest.Conn, field string) {
	t.Helper()
	clustertest.Await(t, "a client with "+field, func() error {
		if list := c.Do("CLIENT", "LIST"); !strings.Contains(list, field) {
			return errString(list)
		}
		return nil
	})
}

// TestRepliesAreDroppedWhateverTheyAnswer: also errors of commands that do not exist, and lines
// of MONITOR; and what the pause would hold is refused at once if it is going to be.
func TestRepliesAreDroppedWhateverTheyAnswer(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	for _, proto := range []int{2, 3} {
		p := w.dial(t, proto)
		raw := encodeAll(script("CLIENT REPLY OFF", "SUBSCRIBE a", "NOSUCH", "CLIENT nosuch", "GET", "UNSUBSCRIBE a", "NOSUCH", "CLIENT REPLY ON", "ECHO done")...)
		p.direct.Send(raw)
		p.behind.Send(raw)
		p.same(4)
		p = w.dial(t, proto)
		p.do(script("MONITOR")...)
		p.direct.Cmd("CLIENT", "REPLY", "OFF")
		p.behind.Cmd("CLIENT", "REPLY", "OFF")
		other := w.dial(t, proto)
		other.do(script("CLIENT SETNAME x", "GET unseen", "CLIENT LIST TYPE master")...)
		next := func(c *clustertest.Conn) string {
			line := c.ReadReply()
			if c == p.behind && strings.HasSuffix(line, `"GET" "unseen"`+"\r\n") { // was on its way from the backend
				line = c.ReadReply()
			}
			return line
		}
		for _, c := range []*clustertest.Conn{p.direct, p.behind} {
			c.Cmd("CLIENT", "REPLY", "ON")
			if got := next(c); got != "+OK\r\n" {
				t.Errorf("CLIENT REPLY ON: got %q", got)
			}
		}
		other.do(script("GET seen")...)
		for _, c := range []*clustertest.Conn{p.direct, p.behind} {
			for _, want := range []string{`"CLIENT" "REPLY" "ON"`, `"GET" "seen"`} {
				if line := next(c); !strings.HasSuffix(line, want+"\r\n") {
					t.Errorf("after REPLY OFF and ON, MONITOR shows %q, want %s", line, want)
				}
			}
		}
	}
	p, control := w.dial(t, 2), w.dial(t, 2)
	p.do(script("SUBSCRIBE a")...)
	control.do(script("CLIENT PAUSE 100000 ALL")...)
	p.do(script("GET k")...) // is not held, but refused
}

// TestWaitingClientsMayLeave: one that is held by a pause, or has sent a lot behind a blocking
// command, is missed when it goes, and takes nothing with it.
func TestWaitingClientsMayLeave(t *testing.T) {
	backend := clustertest.StartRedis(t)
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		_, addr := proxytest.Start(t, strict(t, backend, transport))
		control := clustertest.Dial(t, addr)
		control.Do("CLIENT", "PAUSE", "100000", "WRITE")
		for range 3 {
			c := clustertest.Dial(t, addr)
			c.Send(clustertest.Encode("SET", "k", "v"))
			awaitClient(t, control, "flags=b")
			c.Close()
			awaitAlone(t, control)
		}
		control.Do("CLIENT", "UNPAUSE")
		if got := control.Do("EXISTS", "k"); got != ":0\r\n" {
			t.Errorf("executed for a client that had gone: EXISTS says %q", got)
		}
		c := clustertest.Dial(t, addr)
		c.Send(clustertest.Encode("BLPOP", "q", "0") + strings.Repeat(clustertest.Encode("ECHO", strings.Repeat("x", 1000)), 200))
		awaitClient(t, control, "flags=b")
		c.Close()
		awaitAlone(t, control)
		control.Do("RPUSH", "q", "v")
		if got := control.Do("LLEN", "q"); got != ":1\r\n" {
			t.Errorf("a client that had gone took the element: LLEN says %q", got)
		}
		control.Do("DEL", "q")
	})
}

func awaitAlone(t *testing.T, c *clustertest.Conn) {
	t.Helper()
	clustertest.Await(t, "the other client to be missed", func() error {
		if list := c.Do("CLIENT", "LIST"); strings.Count(list, "id=") > 1 {
			return errString(list)
		}
		return nil
	})
}

// keyOfFirst and keyOfSecond are a key of the first and one of the second of two masters.
const keyOfFirst, keyOfSecond = "b", "a"

func ofMasters(t *testing.T, topology *proxytest.Fixed) proxy.Options {
	t.Helper()
	o := proxytest.Options(t, topology)
	o.Backend.Mode = cluster.Cluster
	return o
}

// TestInvalidationsComeBehindReplies: a client that is told of a change before it gets the
// value from before the change would keep that for ever. Its replies wait for each other,
// for parts of each other and for barriers; what a node says behind them waits, too.
func TestInvalidationsComeBehindReplies(t *testing.T) {
	const old, invalidation = "$3\r\nold\r\n", ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\n" + keyOfSecond + "\r\n"
	for _, tt := range []struct {
		name, first, second string
		want                string
	}{
		{"behind another", clustertest.Encode("GET", keyOfFirst), clustertest.Encode("GET", keyOfSecond), "$4\r\nslow\r\n" + old},
		{"a part", clustertest.Encode("MGET", keyOfFirst, keyOfSecond), "", "*2\r\n$4\r\nslow\r\n" + old},
	} {
		t.Run(tt.name, func(t *testing.T) {
			release := make(chan struct{})
			var once sync.Once
			slow := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
				switch args[0] {
				case "GET":
					<-release
					return "$4\r\nslow\r\n"
				case "MGET":
					<-release
					return "*1\r\n$4\r\nslow\r\n"
				}
				return ""
			})
			t.Cleanup(func() { once.Do(func() { close(release) }) })
			fast := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
				switch {
				case args[0] == "GET" && args[1] == keyOfSecond:
					return old + invalidation
				case args[0] == "MGET":
					return "*1\r\n" + old + invalidation
				case args[0] == "GET":
					return "_\r\n"
				}
				return ""
			})
			o := ofMasters(t, proxytest.FixedTo(proxytest.Shards(1, slow.Addr, fast.Addr)))
			s, addr := proxytest.Start(t, o)
			c := clustertest.Dial(t, addr)
			c.Do("HELLO", "3")
			if got := c.Do("CLIENT", "TRACKING", "ON"); got != "+OK\r\n" {
				t.Fatalf("CLIENT TRACKING answers %q", got)
			}
			calls := callsOf(s, fast.Addr)
			c.Send(tt.first + tt.second)
			clustertest.Await(t, "the fast node to answer", func() error {
				if n := callsOf(s, fast.Addr); n == calls {
					return errString("it has not")
				}
				return nil
			})
			once.Do(func() { close(release) })
			var got string
			for range strings.Count(tt.first+tt.second, "GET") + 1 {
				got += c.ReadReply()
			}
			if want := tt.want + invalidation; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// callsOf is the number of replies of the node at addr.
func callsOf(s *proxy.Server, addr string) uint64 {
	for _, n := range s.Stats().Nodes {
		if n.Addr == addr {
			return n.Calls
		}
	}
	return 0
}

// TestCachingGoesWithItsCommand: CLIENT CACHING is said before every part of the command, also
// before one that is sent to another node after a redirect.
func TestCachingGoesWithItsCommand(t *testing.T) {
	var mu sync.Mutex
	heard := map[string][]string{}
	var second *proxytest.Fake
	node := func(name string) proxytest.Script {
		return func(c *proxytest.FakeConn, args []string) string {
			line := strings.Join(args, " ")
			mu.Lock()
			defer mu.Unlock()
			switch {
			case strings.HasPrefix(line, "CLIENT CACHING"), args[0] == "GET", args[0] == "MGET", args[0] == "MULTI", args[0] == "EXEC":
				heard[name] = append(heard[name], line)
			}
			switch {
			case line == "GET "+keyOfFirst && name == "first":
				return "-MOVED 3300 " + second.Addr + "\r\n"
			case args[0] == "GET":
				return "_\r\n"
			case args[0] == "MGET":
				return "*1\r\n_\r\n"
			}
			return ""
		}
	}
	first := proxytest.StartFake(t, node("first"))
	second = proxytest.StartFake(t, node("second"))
	o := ofMasters(t, proxytest.FixedTo(proxytest.Shards(1, first.Addr, second.Addr)))
	_, addr := proxytest.Start(t, o)
	c := clustertest.Dial(t, addr)
	c.Do("HELLO", "3")
	c.Do("CLIENT", "TRACKING", "ON", "OPTIN")
	c.Do("CLIENT", "CACHING", "YES")
	c.Do("MGET", keyOfSecond, "foo") // two slots of the second node
	c.Do("CLIENT", "CACHING", "YES")
	c.Do("GET", keyOfFirst)
	c.Do("GET", keyOfSecond)
	mu.Lock()
	defer mu.Unlock()
	const yes = "CLIENT CACHING YES"
	want := map[string][]string{
		"first":  {yes, "GET " + keyOfFirst},
		"second": {yes, "MGET " + keyOfSecond, yes, "MGET foo", yes, "GET " + keyOfFirst, "GET " + keyOfSecond},
	}
	for name := range want {
		if !slices.Equal(heard[name], want[name]) {
			t.Errorf("the %s node heard %q, want %q", name, heard[name], want[name])
		}
	}
}

// TestRefusedWaitKeepsWatch: a WAIT that finds no connection does not undo what is watched.
func TestRefusedWaitKeepsWatch(t *testing.T) {
	watching := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		switch args[0] {
		case "EXEC":
			return "*-1\r\n"
		case "GET":
			return "+QUEUED\r\n"
		}
		return "+OK\r\n"
	})
	other := proxytest.StartFake(t, func(*proxytest.FakeConn, []string) string { return "" })
	o := ofMasters(t, proxytest.FixedTo(proxytest.Shards(1, watching.Addr, other.Addr)))
	o.Upstream.MaxPins = 1
	_, addr := proxytest.Start(t, o)
	c := clustertest.Dial(t, addr)
	c.Do("WATCH", keyOfFirst)
	if got := c.Do("WAIT", "0", "0"); !strings.Contains(got, "max_pins") {
		t.Fatalf("WAIT answers %q", got)
	}
	c.Do("MULTI")
	c.Do("GET", keyOfFirst)
	if got := c.Do("EXEC"); got != "*-1\r\n" || watching.Calls("WATCH") != 1 || watching.Calls("UNWATCH") != 0 {
		t.Errorf("EXEC answers %q: the key is not watched any more", got)
	}
}

// TestBlockedTrackerIsDisconnected: one that waits on one master does not stay connected when
// the connection on which it hears of another's changes is lost.
func TestBlockedTrackerIsDisconnected(t *testing.T) {
	var mu sync.Mutex
	var home *proxytest.FakeConn
	first := proxytest.StartFake(t, func(*proxytest.FakeConn, []string) string { return "" }) // BLPOP is not answered
	second := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
		if args[0] == "CLIENT" && args[1] == "TRACKING" && len(args) > 3 {
			mu.Lock()
			defer mu.Unlock()
			home = c
		}
		return ""
	})
	o := ofMasters(t, proxytest.FixedTo(proxytest.Shards(1, first.Addr, second.Addr)))
	_, addr := proxytest.Start(t, o)
	c := clustertest.Dial(t, addr)
	c.Do("HELLO", "3")
	c.Do("CLIENT", "TRACKING", "ON", "NOLOOP")
	c.Cmd("BLPOP", keyOfFirst, "0")
	clustertest.Await(t, "the client to block", func() error {
		if first.Calls("BLPOP") == 0 {
			return errString("not yet")
		}
		return nil
	})
	mu.Lock()
	home.Close()
	mu.Unlock()
	c.ExpectClosed()
}

// TestHomeOfDismissedNode: a client that tracks is disconnected when a node leaves on which it
// still has something in flight: nothing would tell it of changes there. One that only has
// other state there goes on, when the node comes back, too.
func TestHomeOfDismissedNode(t *testing.T) {
	for _, tracks := range []bool{true, false} {
		t.Run(strconv.FormatBool(tracks), func(t *testing.T) {
			release := make(chan struct{})
			var once sync.Once
			t.Cleanup(func() { once.Do(func() { close(release) }) })
			node := func(_ *proxytest.FakeConn, args []string) string {
				if args[0] == "GET" && args[1] == keyOfSecond {
					<-release
				}
				if args[0] == "GET" {
					return "_\r\n"
				}
				return ""
			}
			first, second := proxytest.StartFake(t, node), proxytest.StartFake(t, node)
			topology := proxytest.FixedTo(proxytest.Shards(1, first.Addr, second.Addr))
			s, addr := proxytest.Start(t, ofMasters(t, topology))
			c := clustertest.Dial(t, addr)
			c.Do("HELLO", "3")
			if tracks {
				c.Do("CLIENT", "TRACKING", "ON")
			} else {
				c.Do("CLIENT", "NO-TOUCH", "ON")
			}
			c.Cmd("GET", keyOfSecond)
			clustertest.Await(t, "GET to arrive", func() error {
				if second.Calls("GET") == 0 {
					return errString("not yet")
				}
				return nil
			})
			topology.Set(proxytest.Shards(2, first.Addr))
			s.Adopt(topology.Current())
			s.Stats() // runs on every loop, behind the new topology
			once.Do(func() { close(release) })
			c.Expect("_\r\n")
			if tracks {
				c.ExpectClosed()
				return
			}
			topology.Set(proxytest.Shards(3, first.Addr, second.Addr))
			s.Adopt(topology.Current())
			if got := c.Do("GET", keyOfSecond); got != "_\r\n" {
				t.Errorf("after the node came back: got %q", got)
			}
		})
	}
}

// TestSwappedDatabases: whoever swaps databases through the proxy makes cached values void,
// although Redis announces nothing then.
func TestSwappedDatabases(t *testing.T) {
	backend := clustertest.StartRedis(t)
	s, addr := proxytest.Start(t, strict(t, backend, netloop.DefaultTransport))
	c := clustertest.Dial(t, addr)
	const key = "ns:cfg:swapped"
	c.Do("SELECT", "1")
	c.Do("HSET", key, "in", "one")
	c.Do("SELECT", "0")
	c.Do("HSET", key, "in", "zero")
	sha := strings.Trim(c.Do("SCRIPT", "LOAD", "redis.call('SwapDB', 1, 0)"), "$40\r\n")
	for _, swap := range [][]string{
		{"SWAPDB", "0", "1"}, {"EVAL", "redis.call('swapdb', 0, 1)", "0"}, {"EVAL", "redis.call('swapdb', 0, 1)", "1", "k"}, {"EVALSHA", sha, "0"},
	} {
		for _, transaction := range []bool{false, true} {
			awaitHit(t, s, c, key)
			if transaction {
				c.Send(encodeAll([]string{"MULTI"}, swap, []string{"EXEC"}))
				for range 3 {
					c.ReadReply()
				}
			} else {
				c.Do(swap...)
			}
			got, want := c.Do("HGETALL", key), "*2\r\n"+bulkOf("in")+c.Do("HGET", key, "in")
			if got != want {
				t.Errorf("after %s (MULTI %t): got %q, want %q", swap, transaction, got, want)
			}
		}
	}
}
