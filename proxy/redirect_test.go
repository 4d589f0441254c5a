package proxy_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/slot"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

// keyIn returns the i-th key of the form "prefix…" in one of n equal parts of the
// slot space.
func keyIn(prefix string, part, n, i int) string {
	for j := 0; ; j++ {
		key := prefix + strconv.Itoa(j)
		if int(slot.Of([]byte(key)))*n/slot.Count != part {
			continue
		}
		if i--; i < 0 {
			return key
		}
	}
}

// oneWrite is commands in the form they are sent.
func oneWrite(commands ...[]string) string {
	var raw strings.Builder
	for _, c := range commands {
		raw.WriteString(clustertest.Encode(c...))
	}
	return raw.String()
}

// expectReply sends a command given as words and checks its reply.
func expectReply(t *testing.T, c *clustertest.Conn, command, want string) {
	t.Helper()
	if got := c.Do(strings.Fields(command)...); got != want {
		t.Errorf("%s: got %.300q, want %.300q", command, got, want)
	}
}

func bulkOf(v string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(v), v) }

// fakeData is the data of a fake server.
type fakeData struct {
	mu   sync.Mutex
	data map[string]string
	log  []string // commands that were executed
}

// execute runs the few commands that the tests use.
func (m *fakeData) execute(args []string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.data == nil {
		m.data = make(map[string]string)
	}
	m.log = append(m.log, strings.Join(args, " "))
	switch strings.ToUpper(args[0]) {
	case "SET":
		m.data[args[1]] = args[2]
		return "+OK\r\n"
	case "MSET":
		for i := 1; i < len(args); i += 2 {
			m.data[args[i]] = args[i+1]
		}
		return "+OK\r\n"
	case "GET":
		if v, ok := m.data[args[1]]; ok {
			return bulkOf(v)
		}
		return "$-1\r\n"
	case "INCR":
		n, _ := strconv.Atoi(m.data[args[1]])
		m.data[args[1]] = strconv.Itoa(n + 1)
		return fmt.Sprintf(":%d\r\n", n+1)
	}
	return "-ERR the fake does not know " + args[0] + "\r\n"
}

func (m *fakeData) executed() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.log)
}

// redirectable commands are the ones that a cluster node redirects.
func redirectable(args []string) bool {
	return slices.Contains([]string{"SET", "GET", "INCR", "MSET", "EVAL", "EVALSHA", "BLPOP", "WATCH"}, strings.ToUpper(args[0]))
}

func movedTo(key, addr string) string {
	return fmt.Sprintf("-MOVED %d %s\r\n", slot.Of([]byte(key)), addr)
}

func askAt(key, addr string) string {
	return fmt.Sprintf("-ASK %d %s\r\n", slot.Of([]byte(key)), addr)
}

// startFakeCluster runs a proxy in front of fake masters that share the slots
// evenly.
func startFakeCluster(t *testing.T, change func(*proxy.Options), fakes ...*proxytest.Fake) (*proxy.Server, string, *proxytest.Fixed) {
	t.Helper()
	var addrs []string
	for _, f := range fakes {
		addrs = append(addrs, f.Addr)
	}
	topology := proxytest.FixedTo(proxytest.Shards(1, addrs...))
	o := proxytest.Options(t, topology)
	o.Backend.Mode = cluster.Cluster
	if change != nil {
		change(&o)
	}
	s, addr := proxytest.Start(t, o)
	return s, addr, topology
}

// withTimeout returns an option change that sets the transport and a short backend timeout.
func withTimeout(transport netloop.Transport, timeout time.Duration) func(*proxy.Options) {
	return func(o *proxy.Options) {
		o.Transport = transport
		if timeout > 0 {
			o.Upstream.Timeout = timeout
		}
	}
}

func TestMovedIsFollowed(t *testing.T) {
	for _, form := range []string{"host and port", "port alone"} {
		onTransports(t, func(t *testing.T, transport netloop.Transport) {
			t.Run(form, func(t *testing.T) {
				var m fakeData
				b := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
					if redirectable(args) {
						return m.execute(args)
					}
					return ""
				})
				target := b.Addr
				if form == "port alone" { // cluster-preferred-endpoint-type unknown-endpoint
					target = target[strings.LastIndexByte(target, ':'):]
				}
				a := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
					if redirectable(args) {
						return movedTo(args[1], target)
					}
					return ""
				})
				s, addr, topology := startFakeCluster(t, withTimeout(transport, 0), a, b)
				key := keyIn("k", 0, 2, 0)
				c := clustertest.Dial(t, addr)
				var cs [][]string
				for i := range 200 {
					cs = append(cs, []string{"SET", key, strconv.Itoa(i)}, []string{"GET", key})
				}
				c.Send(oneWrite(cs...))
				for i := range 200 {
					c.Expect("+OK\r\n")
					c.Expect(bulkOf(strconv.Itoa(i)))
				}
				if topology.Refreshes.Load() == 0 {
					t.Error("nobody asked for a new topology")
				}
				topology.Set(proxytest.Shards(2, b.Addr))
				s.Adopt(topology.Current())
				asked := a.Calls("GET")
				clustertest.Await(t, "the new topology to be used", func() error {
					before := a.Calls("GET")
					if c.Do("GET", key); a.Calls("GET") != before {
						return errors.New("the old owner is still asked")
					}
					return nil
				})
				if asked == 0 {
					t.Error("the old owner was never asked, so nothing was redirected")
				}
			})
		})
	}
}

// Two nodes that each believe in the other must neither keep the proxy busy for
// ever nor make it show a redirect.
func TestRedirectsAreBounded(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		var a, b *proxytest.Fake
		a = proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
			if redirectable(args) {
				return movedTo(args[1], b.Addr)
			}
			return ""
		})
		b = proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
			if redirectable(args) {
				return movedTo(args[1], a.Addr)
			}
			return ""
		})
		_, addr, _ := startFakeCluster(t, withTimeout(transport, 500*time.Millisecond), a, b)
		c := clustertest.Dial(t, addr)
		for i := range 2 {
			got := c.Do("GET", keyIn("k", i, 2, 0))
			if !strings.HasPrefix(got, "-ERR cosky-proxy") || !strings.Contains(got, "MOVED") {
				t.Errorf("got %q, want the proxy's error with the redirect as its cause", got)
			}
		}
		expectReply(t, c, "PING", "+PONG\r\n")
		if hops := a.Calls("GET") + b.Calls("GET"); hops > 100 {
			t.Errorf("two commands made %d hops", hops)
		}
	})
}

func TestAskIsFollowed(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		var m fakeData
		var a, b *proxytest.Fake
		b = proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
			switch {
			case !redirectable(args):
				return ""
			case !c.Asking:
				return movedTo(args[1], a.Addr)
			}
			return m.execute(args)
		})
		a = proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
			if redirectable(args) {
				return askAt(args[1], b.Addr)
			}
			return ""
		})
		_, addr, topology := startFakeCluster(t, withTimeout(transport, 0), a, b)
		key := keyIn("k", 0, 2, 0)
		// Several clients share the lanes: each ASKING must stay with its command.
		var clients []*clustertest.Conn
		for range 4 {
			clients = append(clients, clustertest.Dial(t, addr))
		}
		var cs [][]string
		for i := range 250 {
			cs = append(cs, []string{"SET", key, strconv.Itoa(i)}, []string{"INCR", key})
		}
		for _, c := range clients {
			c.Send(oneWrite(cs...))
		}
		for _, c := range clients {
			for range 250 {
				c.Expect("+OK\r\n")
				if got := c.ReadReply(); got[0] != ':' {
					t.Fatalf("got %q for INCR", got)
				}
			}
		}
		if n := topology.Refreshes.Load(); n != 0 {
			t.Errorf("ASK asked for %d new topologies: the slot has not moved yet", n)
		}
		if n := len(m.executed()); n != 2000 {
			t.Errorf("%d commands were executed, want 2000", n)
		}
	})
}

// A half-migrated slot: the command is repeated until it works, or until its time
// is up; then the client gets the original error.
func TestTryAgain(t *testing.T) {
	for _, reply := range []string{
		"-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
		"-CLUSTERDOWN The cluster is down\r\n",
	} {
		word, _, _ := strings.Cut(reply[1:], " ")
		t.Run(word, func(t *testing.T) {
			onTransports(t, func(t *testing.T, transport netloop.Transport) {
				var m fakeData
				var refusals atomic.Int64
				a := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
					switch {
					case !redirectable(args):
						return ""
					case refusals.Add(-1) >= 0:
						return reply
					}
					return m.execute(args)
				})
				_, addr, topology := startFakeCluster(t, withTimeout(transport, 400*time.Millisecond), a)
				c := clustertest.Dial(t, addr)

				refusals.Store(3)
				expectReply(t, c, "MSET {t}1 a {t}2 b", "+OK\r\n")
				if topology.Refreshes.Load() == 0 {
					t.Error("nobody asked for a new topology")
				}
				expectReply(t, c, "GET {t}2", bulkOf("b"))

				refusals.Store(1 << 40)
				calls := a.Calls("MSET")
				c.Send(oneWrite([]string{"MSET", "{t}1", "c", "{t}2", "c"}, []string{"PING"}))
				c.Expect(reply)
				c.Expect("+PONG\r\n")
				if n := a.Calls("MSET") - calls; n < 2 || n > 40 {
					t.Errorf("the command was sent %d times", n)
				}
				refusals.Store(0)
				expectReply(t, c, "GET {t}1", bulkOf("a"))
			})
		})
	}
}

// Commands behind one that has to be repeated do not overtake it.
func TestRepeatsKeepOrder(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		var m fakeData
		var half atomic.Bool
		half.Store(true)
		b := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
			if !redirectable(args) {
				return ""
			}
			return m.execute(args)
		})
		a := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
			switch {
			case !redirectable(args):
				return ""
			case half.Load() && args[0] == "MSET":
				return "-TRYAGAIN Multiple keys request during rehashing of slot\r\n"
			}
			return askAt(args[1], b.Addr)
		})
		_, addr, _ := startFakeCluster(t, withTimeout(transport, 0), a, b)
		tag := "{" + keyIn("t", 0, 2, 0) + "}"
		c := clustertest.Dial(t, addr)
		var cs [][]string
		for i := range 20 {
			v := strconv.Itoa(i)
			cs = append(cs, []string{"MSET", tag + "1", v, tag + "2", v}, []string{"GET", tag + "1"})
		}
		c.Send(oneWrite(cs...))
		clustertest.Await(t, "the first repeats", func() error {
			if n := a.Calls("MSET"); n < 40 {
				return fmt.Errorf("%d so far", n)
			}
			return nil
		})
		half.Store(false)
		for i := range 20 {
			c.Expect("+OK\r\n")
			c.Expect(bulkOf(strconv.Itoa(i)))
		}
	})
}

// A slot that nobody serves at the moment may be served soon.
func TestUncoveredSlot(t *testing.T) {
	var m fakeData
	a := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		if redirectable(args) {
			return m.execute(args)
		}
		return ""
	})
	half, err := cluster.New(2, cluster.Cluster, []cluster.Shard{{
		Primary: &cluster.Node{ID: a.Addr, Addr: a.Addr}, Ranges: []slot.Range{{First: 0, Last: slot.Count/2 - 1}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	s, addr, topology := startFakeCluster(t, withTimeout(netloop.DefaultTransport, 300*time.Millisecond), a)
	topology.Set(half)
	s.Adopt(half)
	c := clustertest.Dial(t, addr)
	lower, upper := keyIn("k", 0, 2, 0), keyIn("k", 1, 2, 0)
	const unserved = "-CLUSTERDOWN Hash slot not served\r\n"
	expectReply(t, c, "SET "+upper+" v", unserved)
	expectReply(t, c, "MGET "+lower+" "+upper, unserved)
	expectReply(t, c, "SET "+lower+" v", "+OK\r\n")
	if topology.Refreshes.Load() == 0 {
		t.Error("nobody asked for a new topology")
	}
	c.Send(oneWrite([]string{"SET", upper, "w"}, []string{"GET", upper}, []string{"GET", lower}))
	topology.Set(proxytest.Shards(3, a.Addr))
	s.Adopt(topology.Current())
	c.Expect("+OK\r\n")
	c.Expect(bulkOf("w"))
	c.Expect(bulkOf("v"))
}

// The reply to a request that was given up must not reach anyone.
func TestLateReplies(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		var late sync.WaitGroup
		t.Cleanup(late.Wait)
		resume := make(chan struct{})
		f := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
			switch args[0] {
			case "EVAL":
				// The server is busy: nothing else on this connection is answered either.
				<-resume
				return bulkOf("late")
			case "GET":
				return bulkOf("value of " + args[1])
			}
			return ""
		})
		o := proxytest.Options(t, proxytest.Single(f.Addr))
		withTimeout(transport, 300*time.Millisecond)(&o)
		o.Loops = 1
		_, addr := proxytest.Start(t, o)
		a, b := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
		b.Do("GET", "warm")
		a.Cmd("EVAL", "return 1", "0")
		clustertest.Await(t, "the script to arrive", func() error {
			if f.Calls("EVAL") == 0 {
				return errors.New("not yet")
			}
			return nil
		})
		b.Cmd("GET", "behind")
		for who, c := range map[string]*clustertest.Conn{"the script": a, "the request behind it": b} {
			if got := c.ReadReply(); !strings.HasPrefix(got, "-ERR cosky-proxy timed out after 300ms") {
				t.Errorf("%s got %q, want one timeout error", who, got)
			}
		}
		close(resume)
		var cs [2][][]string
		for i := range 500 {
			cs[0] = append(cs[0], []string{"GET", fmt.Sprint("a", i)})
			cs[1] = append(cs[1], []string{"GET", fmt.Sprint("b", i)})
		}
		a.Send(oneWrite(cs[0]...))
		b.Send(oneWrite(cs[1]...))
		for i := range 500 {
			a.Expect(bulkOf(fmt.Sprint("value of a", i)))
			b.Expect(bulkOf(fmt.Sprint("value of b", i)))
		}
	})
}

// When a backend connection dies, each request in flight on it is answered once,
// and none is executed twice.
func TestDeadLane(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		var mu sync.Mutex
		seen := make(map[string]int)
		f := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
			if args[0] != "INCR" {
				return ""
			}
			mu.Lock()
			defer mu.Unlock()
			seen[args[1]]++
			if len(seen)%97 == 0 { // executed, but nobody will ever know
				c.Close()
				return ""
			}
			return ":1\r\n"
		})
		o := proxytest.Options(t, proxytest.Single(f.Addr))
		o.Transport = transport
		_, addr := proxytest.Start(t, o)
		const clients, each = 8, 200
		results := make([]string, clients)
		var wg sync.WaitGroup
		conns := make([]*clustertest.Conn, clients)
		for i := range conns {
			conns[i] = clustertest.Dial(t, addr)
		}
		for i, c := range conns {
			wg.Go(func() {
				var cs [][]string
				for j := range each {
					cs = append(cs, []string{"INCR", fmt.Sprintf("%d:%d", i, j)})
					if len(cs) < 10 {
						continue
					}
					c.Send(oneWrite(cs...))
					for k := range cs {
						reply, err := c.TryReply(clustertest.Deadline)
						mu.Lock()
						executed := seen[cs[k][1]]
						mu.Unlock()
						switch {
						case err != nil:
							results[i] = err.Error()
							return
						case reply == ":1\r\n" && executed != 1:
							results[i] = fmt.Sprintf("%v was answered, but executed %d times", cs[k], executed)
						case reply[0] != ':' && !strings.Contains(reply, "may or may not have been executed") && !strings.Contains(reply, "cannot reach"):
							results[i] = fmt.Sprintf("%v was answered %q", cs[k], reply)
						}
					}
					cs = cs[:0]
				}
			})
		}
		wg.Wait()
		for i, r := range results {
			if r != "" {
				t.Errorf("client %d: %s", i, r)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		for key, n := range seen {
			if n > 1 {
				t.Errorf("INCR %s was executed %d times", key, n)
			}
		}
		if len(seen) < 97 {
			t.Errorf("only %d requests arrived: no connection was cut", len(seen))
		}
		for i, c := range conns {
			if _, err := c.TryReply(time.Millisecond); err == nil {
				t.Errorf("client %d got a reply too many", i)
			}
		}
	})
}

// A reply that breaks off must not be taken for a whole one.
func TestCutReplies(t *testing.T) {
	big := strings.Repeat("x", 200<<10)
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		f := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
			if args[0] != "GET" {
				return ""
			}
			switch args[1] {
			case "small":
				c.Send("$5\r\nhel")
			case "nested":
				c.Send("*3\r\n$1\r\na\r\n*2\r\n:1\r\n")
			case "big":
				c.Send(bulkOf(big)[:150<<10])
			case "garbage":
				c.Send("hello\r\n")
				return ""
			default:
				return bulkOf("value of " + args[1])
			}
			c.Close()
			return ""
		})
		o := proxytest.Options(t, proxytest.Single(f.Addr))
		o.Transport = transport
		_, addr := proxytest.Start(t, o)
		for _, key := range []string{"small", "nested", "garbage"} {
			c := clustertest.Dial(t, addr)
			c.Send(oneWrite([]string{"GET", "before"}, []string{"GET", key}, []string{"PING"}))
			c.Expect(bulkOf("value of before"))
			if got := c.ReadReply(); !strings.HasPrefix(got, "-ERR cosky-proxy") {
				t.Errorf("%s: got %q, want an error", key, got)
			}
			c.Expect("+PONG\r\n")
			expectReply(t, c, "GET after", bulkOf("value of after"))
		}
		// Part of it has been passed on already: only closing is honest.
		c := clustertest.Dial(t, addr)
		c.Cmd("GET", "big")
		if got, err := c.TryReply(clustertest.Deadline); err == nil {
			t.Errorf("a reply that broke off was completed to %d bytes", len(got))
		}
	})
}

// What a backend says before anybody has asked belongs to nobody.
func TestRefusedAtConnect(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		f := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
			if args[0] == "GET" {
				return bulkOf("value of " + args[1])
			}
			return ""
		})
		f.Greet("-ERR max number of clients reached\r\n")
		o := proxytest.Options(t, proxytest.Single(f.Addr))
		o.Transport = transport
		_, addr := proxytest.Start(t, o)
		c := clustertest.Dial(t, addr)
		if got := c.Do("GET", "a"); !strings.HasPrefix(got, "-ERR cosky-proxy") {
			t.Errorf("got %q, want an error of the proxy's", got)
		}
		f.Greet("")
		clustertest.Await(t, "service", func() error {
			if got := c.Do("GET", "b"); got != bulkOf("value of b") {
				if got[0] != '-' {
					t.Fatalf("got %q", got)
				}
				return errors.New(got)
			}
			return nil
		})
	})
}

// A demoted master: a new one is looked for, and writes wait for it.
func TestReadOnly(t *testing.T) {
	const readonly = "-READONLY You can't write against a read only replica.\r\n"
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		var m fakeData
		next := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
			switch args[0] {
			case "MULTI":
				return "+OK\r\n"
			case "EXEC":
				return "*1\r\n+OK\r\n"
			case "EVAL":
				return ":7\r\n"
			}
			if redirectable(args) {
				return m.execute(args)
			}
			return ""
		})
		old := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
			switch args[0] {
			case "MULTI":
				return "+OK\r\n"
			case "EXEC":
				return "-EXECABORT Transaction discarded because of previous errors.\r\n"
			case "EVAL":
				return "-READONLY You can't write against a read only replica. script: abc, on @user_script:1.\r\n"
			}
			if redirectable(args) {
				return readonly
			}
			return ""
		})
		topology := proxytest.FixedTo(cluster.NewSingle(1, cluster.Sentinel, &cluster.Node{ID: "old", Addr: old.Addr}))
		o := proxytest.Options(t, topology)
		o.Backend.Mode = cluster.Sentinel
		o.Transport = transport
		s, addr := proxytest.Start(t, o)

		for i, send := range []struct{ raw, want string }{
			{oneWrite([]string{"SET", "k", "v"}, []string{"GET", "k"}), "+OK\r\n" + bulkOf("v")},
			{oneWrite([]string{"MULTI"}, []string{"SET", "k", "w"}, []string{"EXEC"}), "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n"},
			{oneWrite([]string{"EVAL", "redis.call('SET', KEYS[1], 1) return 7", "1", "k"}), ":7\r\n"},
		} {
			version := uint64(2*i + 2)
			before := topology.Refreshes.Load()
			c := clustertest.Dial(t, addr)
			c.Send(send.raw)
			clustertest.Await(t, "a new topology to be asked for", func() error {
				if topology.Refreshes.Load() == before {
					return errors.New("not yet")
				}
				return nil
			})
			topology.Set(cluster.NewSingle(version, cluster.Sentinel, &cluster.Node{ID: "next", Addr: next.Addr}))
			s.Adopt(topology.Current())
			var got string
			for len(got) < len(send.want) {
				got += c.ReadReply()
				if strings.Contains(got, "READONLY") {
					break
				}
			}
			if got != send.want && !(i == 2 && strings.Contains(got, "READONLY")) {
				t.Errorf("%q: got %q, want %q", send.raw, got, send.want)
			}
			topology.Set(cluster.NewSingle(version+1, cluster.Sentinel, &cluster.Node{ID: "old", Addr: old.Addr}))
			s.Adopt(topology.Current())
			clustertest.Await(t, "the old topology", func() error {
				n := old.Calls("GET")
				if clustertest.Dial(t, addr).Do("GET", "x"); old.Calls("GET") == n {
					return errors.New("not yet")
				}
				return nil
			})
		}
	})
}

// A server that loads its data says so, and clients know what to make of it.
func TestLoadingIsPassedOn(t *testing.T) {
	const loading = "-LOADING Redis is loading the dataset in fakeData\r\n"
	var loads atomic.Bool
	loads.Store(true)
	f := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		switch {
		case args[0] != "GET" && args[0] != "HGETALL":
			return ""
		case loads.Load():
			return loading
		}
		return "*0\r\n"
	})
	_, addr := proxytest.Start(t, proxytest.Options(t, proxytest.Single(f.Addr)))
	c := clustertest.Dial(t, addr)
	for range 2 {
		expectReply(t, c, "GET k", loading)
		expectReply(t, c, "HGETALL ns:svc_itc:a", loading)
	}
	loads.Store(false)
	expectReply(t, c, "HGETALL ns:svc_itc:a", "*0\r\n")
}
