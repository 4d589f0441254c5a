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
	case "MGET":
		reply := fmt.Sprintf("*%d\r\n", len(args)-1)
		for _, key := range args[1:] {
			reply += bulkOf(m.data[key])
		}
		return reply
	case "INCR":
		n, _ := strconv.Atoi(m.data[args[1]])
		m.data[args[1]] = strconv.Itoa(n + 1)
		return fmt.Sprintf(":%d\r\n", n+1)
	}
	return "-ERR the fake does not know " + args[0] + "\r\n"
}

// serve executes commands, with MULTI and EXEC for one connection at a time. Like Redis,
// it keeps ASKING over a transaction.
func (m *fakeData) serve(c *proxytest.FakeConn, args []string) string {
	switch {
	case args[0] == "MULTI":
		c.Queue = [][]string{}
		return "+OK\r\n"
	case args[0] == "EXEC":
		reply := fmt.Sprintf("*%d\r\n", len(c.Queue))
		for _, q := range c.Queue {
			reply += m.execute(q)
		}
		c.Queue = nil
		return reply
	case c.Queue != nil:
		c.Queue = append(c.Queue, args)
		return "+QUEUED\r\n"
	case redirectable(args):
		return m.execute(args)
	}
	return ""
}

func (m *fakeData) executed() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.log)
}

// redirectable commands are the ones that a cluster node redirects.
func redirectable(args []string) bool {
	return slices.Contains([]string{"SET", "GET", "INCR", "MSET", "MGET", "EVAL", "EVALSHA", "BLPOP", "WATCH"}, strings.ToUpper(args[0]))
}

// redirecting answers what is redirectable with a redirect to the server at addr.
func redirecting(to func(key, addr string) string, addr string) func(*proxytest.FakeConn, []string) string {
	return func(_ *proxytest.FakeConn, args []string) string {
		if redirectable(args) {
			return to(args[1], addr)
		}
		return ""
	}
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
				b := proxytest.StartFake(t, m.serve)
				target := b.Addr
				if form == "port alone" { // cluster-preferred-endpoint-type unknown-endpoint
					target = target[strings.LastIndexByte(target, ':'):]
				}
				a := proxytest.StartFake(t, redirecting(movedTo, target))
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
		_, addr, _ := startFakeCluster(t, withTimeout(transport, 800*time.Millisecond), a, b)
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
		a = proxytest.StartFake(t, redirecting(askAt, b.Addr))
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
				_, addr, topology := startFakeCluster(t, withTimeout(transport, 800*time.Millisecond), a)
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
		b := proxytest.StartFake(t, m.serve)
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
			if n := a.Calls("MSET"); n < 24 {
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

// Where slots are known to be on the move, a command of several keys travels alone, also one that several shards execute: what
// is sent behind it might be executed at once.
func TestScatteredRepeatsKeepOrder(t *testing.T) {
	var m fakeData
	var half atomic.Bool
	node := func(_ *proxytest.FakeConn, args []string) string {
		switch {
		case !redirectable(args):
			return ""
		case half.Load() && args[0] == "MSET" && len(args) > 3:
			return "-TRYAGAIN Multiple keys request during rehashing of slot\r\n"
		}
		return m.execute(args)
	}
	a, b := proxytest.StartFake(t, node), proxytest.StartFake(t, node)
	_, addr, _ := startFakeCluster(t, nil, a, b)
	tag := "{" + keyIn("t", 0, 2, 0) + "}"
	c := clustertest.Dial(t, addr)
	mset := []string{"MSET", tag + "1", "x", tag + "2", "x", keyIn("k", 1, 2, 0), "x"}
	for round, behind := range [][]string{{"PING"}, {"SET", tag + "1", "y"}} { // the first is a sign
		half.Store(true)
		calls := a.Calls("MSET")
		c.Send(oneWrite(mset, behind))
		counted(t, a, "MSET", calls+2)
		half.Store(false)
		c.Expect("+OK\r\n")
		if got := c.ReadReply(); !strings.HasPrefix(got, "+") {
			t.Errorf("round %d: got %q", round, got)
		}
	}
	expectReply(t, c, "GET "+tag+"1", bulkOf("y"))
}

// A slot that nobody serves at the moment may be served soon.
func TestUncoveredSlot(t *testing.T) {
	var m fakeData
	a := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		switch {
		case args[0] == "BLPOP":
			return "*-1\r\n"
		case args[0] == "WATCH":
			return "+OK\r\n"
		case args[0] == "DBSIZE":
			return ":0\r\n"
		case redirectable(args):
			return m.execute(args)
		}
		return ""
	})
	lowerHalf := func(version uint64) *cluster.Topology {
		half, err := cluster.New(version, cluster.Cluster, []cluster.Shard{{
			Primary: &cluster.Node{ID: a.Addr, Addr: a.Addr}, Ranges: []slot.Range{{First: 0, Last: slot.Count/2 - 1}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return half
	}
	s, addr, topology := startFakeCluster(t, withTimeout(netloop.DefaultTransport, 500*time.Millisecond), a)
	topology.Set(lowerHalf(2))
	s.Adopt(topology.Current())
	c := clustertest.Dial(t, addr)
	lower, upper := keyIn("k", 0, 2, 0), keyIn("k", 1, 2, 0)
	const unserved = "-CLUSTERDOWN Hash slot not served\r\n"
	c.Send(oneWrite([]string{"SET", upper, "v"}, []string{"MGET", lower, upper}, []string{"BLPOP", upper, "0"}, []string{"WATCH", upper}))
	for range 4 {
		c.Expect(unserved)
	}
	if n := s.Stats().Retries; n > 10 { // one that waits out 500 ms looks six times, or seven; the one behind it twice
		t.Errorf("%d retries: more than the first command has waited", n)
	}
	time.Sleep(1100 * time.Millisecond) // of other refusals, the next would begin another trouble
	waited := s.Stats().Retries
	expectReply(t, c, "SET "+upper+" v", unserved)
	if n := s.Stats().Retries; n != waited {
		t.Errorf("a command has waited for a slot that has not been served for long, and looked %d times", n-waited)
	}
	expectReply(t, c, "SET "+lower+" v", "+OK\r\n")
	if topology.Refreshes.Load() == 0 {
		t.Error("nobody asked for a new topology")
	}
	version := uint64(2)
	adopt := func(make func(version uint64) *cluster.Topology) {
		t.Helper()
		version++
		topology.Set(make(version))
		s.Adopt(topology.Current())
		s.Stats() // every loop has it
	}
	whole := func(v uint64) *cluster.Topology { return proxytest.Shards(v, a.Addr) }
	for _, commands := range []struct {
		sent    [][]string
		answers []string
	}{
		{[][]string{{"SET", upper, "w"}, {"GET", upper}, {"GET", lower}}, []string{"+OK\r\n", bulkOf("w"), bulkOf("v")}},
		{[][]string{{"BLPOP", upper, "0"}, {"GET", lower}}, []string{"*-1\r\n", bulkOf("v")}},
		{[][]string{{"WATCH", upper}, {"GET", upper}}, []string{"+OK\r\n", bulkOf("w")}},
		{[][]string{{"DBSIZE"}, {"GET", lower}}, []string{":0\r\n", bulkOf("v")}},
	} {
		adopt(whole) // ends the trouble
		adopt(lowerHalf)
		asked := topology.Refreshes.Load()
		c.Send(oneWrite(commands.sent...))
		clustertest.Await(t, "the slot to be missed", func() error {
			if topology.Refreshes.Load() == asked {
				return errors.New("not yet")
			}
			return nil
		})
		adopt(whole)
		for _, want := range commands.answers {
			c.Expect(want)
		}
	}
}

// PING is answered for the proxy while a shard is lost, also when another one refuses commands.
func TestPingWhileAShardIsLost(t *testing.T) {
	const full = "-OOM command not allowed when used memory > 'maxmemory'.\r\n"
	a := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		if args[0] == "SET" {
			return full
		}
		return ""
	})
	const nobody = "127.0.0.1:1"
	s, addr, topology := startFakeCluster(t, withTimeout(netloop.DefaultTransport, 300*time.Millisecond), a)
	topology.Set(proxytest.Shards(2, a.Addr, nobody))
	s.Adopt(topology.Current())
	c := clustertest.Dial(t, addr)
	if got := c.Do("SET", keyIn("k", 1, 2, 0), "v"); !strings.HasPrefix(got, "-ERR cosky-proxy ") {
		t.Fatalf("got %q from a shard that is lost", got)
	}
	expectReply(t, c, "SET "+keyIn("k", 0, 2, 0)+" v", full)
	expectReply(t, c, "PING", "+PONG\r\n")
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
		clustertest.Await(t, "the node to be tried and found well", func() error {
			if got := a.Do("GET", "probe"); got[0] == '-' {
				return errors.New(got)
			}
			return nil
		})
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

// A demoted master: a new one is looked for, and writes wait for it. Reads behind
// a write wait with it, though the old master would answer them.
func TestReadOnly(t *testing.T) {
	const readonly = "-READONLY You can't write against a read only replica.\r\n"
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		tests := []struct {
			name     string
			commands [][]string
			want     string
		}{
			{"commands", [][]string{{"SET", "k", "v"}, {"GET", "k"}}, "+OK\r\n" + bulkOf("v")},
			{"a transaction", [][]string{{"MULTI"}, {"SET", "k", "w"}, {"EXEC"}, {"GET", "k"}}, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n" + bulkOf("w")},
			// It may have written before somebody failed: only the client knows whether to repeat it.
			{"a script", [][]string{{"EVAL", "return redis.call('SET', KEYS[1], 1)", "1", "k"}}, readonly},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				var m fakeData
				next := proxytest.StartFake(t, m.serve)
				old := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
					switch args[0] {
					case "MULTI":
						return "+OK\r\n"
					case "EXEC":
						return "-EXECABORT Transaction discarded because of previous errors.\r\n"
					case "SET", "EVAL":
						return readonly
					case "GET":
						return bulkOf("old")
					}
					return ""
				})
				topology := proxytest.FixedTo(cluster.NewSingle(1, cluster.Sentinel, &cluster.Node{ID: "old", Addr: old.Addr}))
				o := proxytest.Options(t, topology)
				o.Backend.Mode = cluster.Sentinel
				o.Transport = transport
				s, addr := proxytest.Start(t, o)
				c := clustertest.Dial(t, addr)
				c.Send(oneWrite(tt.commands...))
				clustertest.Await(t, "a new topology to be asked for", func() error {
					if topology.Refreshes.Load() == 0 {
						return errors.New("not yet")
					}
					return nil
				})
				topology.Set(cluster.NewSingle(2, cluster.Sentinel, &cluster.Node{ID: "next", Addr: next.Addr}))
				s.Adopt(topology.Current())
				var got string
				for range tt.commands {
					got += c.ReadReply()
				}
				if got != tt.want {
					t.Errorf("got %q, want %q", got, tt.want)
				}
			})
		}
	})
}

// A transaction whose slot has moved, or is on its way, is sent again as a whole.
// What Redis says at queueing and at EXEC are two different things.
func TestTransactionIsRedirected(t *testing.T) {
	const aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n"
	tests := []struct {
		name          string
		queued, exec  func(key, addr string) string
		asking, twice bool
	}{
		{name: "MOVED at queueing", queued: movedTo, exec: func(string, string) string { return aborted }},
		{name: "MOVED at EXEC", exec: movedTo},
		{name: "ASK at queueing", queued: askAt, exec: func(string, string) string { return aborted }, asking: true},
		{name: "ASK at EXEC", exec: askAt, asking: true},
		{name: "TRYAGAIN at EXEC", exec: func(string, string) string { return "-TRYAGAIN Multiple keys request during rehashing of slot\r\n" }, twice: true},
	}
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				var m fakeData
				var a, b *proxytest.Fake
				b = proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
					if args[0] == "MULTI" && c.Asking != tt.asking {
						return "-ERR MULTI without its ASKING, or with one too many\r\n"
					}
					return m.serve(c, args)
				})
				var refusals atomic.Int64
				refusals.Store(3)
				a = proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
					switch {
					case args[0] == "MULTI":
						c.Queue = [][]string{}
						return "+OK\r\n"
					case args[0] == "EXEC" && tt.twice && refusals.Add(-1) < 0:
						return m.serve(c, args)
					case args[0] == "EXEC":
						c.Queue = nil
						return tt.exec("{t}", b.Addr)
					case c.Queue != nil && tt.queued != nil:
						return tt.queued(args[1], b.Addr)
					case c.Queue != nil:
						c.Queue = append(c.Queue, args)
						return "+QUEUED\r\n"
					case redirectable(args) && !tt.twice:
						return askAt(args[1], b.Addr)
					}
					return m.serve(c, args)
				})
				_, addr, _ := startFakeCluster(t, withTimeout(transport, 0), a, b)
				tag := "{" + keyIn("t", 0, 2, 0) + "}"
				c := clustertest.Dial(t, addr)
				for i := range 5 {
					v := strconv.Itoa(i)
					c.Send(oneWrite([]string{"MULTI"}, []string{"SET", tag + "1", v}, []string{"GET", tag + "1"}, []string{"EXEC"}, []string{"GET", tag + "1"}))
					c.Expect("+OK\r\n")
					c.Expect("+QUEUED\r\n")
					c.Expect("+QUEUED\r\n")
					c.Expect("*2\r\n+OK\r\n" + bulkOf(v))
					c.Expect(bulkOf(v))
				}
				sets := 0
				for _, cmd := range m.executed() {
					if strings.HasPrefix(cmd, "SET") {
						sets++
					}
				}
				if sets != 5 {
					t.Errorf("5 transactions were executed %d times", sets)
				}
			})
		}
	})
}

// What was watched cannot be guarded across a move, so the client is told that it
// changed.
func TestWatchIsRedirected(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		var m fakeData
		var gone atomic.Bool
		watch := func(c *proxytest.FakeConn, args []string) string {
			if args[0] == "WATCH" || args[0] == "UNWATCH" {
				return "+OK\r\n"
			}
			return m.serve(c, args)
		}
		b := proxytest.StartFake(t, watch)
		a := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
			switch {
			case gone.Load() && redirectable(args):
				return movedTo(args[1], b.Addr)
			case gone.Load() && args[0] == "EXEC":
				return "-EXECABORT Transaction discarded because of previous errors.\r\n"
			}
			return watch(c, args)
		})
		_, addr, _ := startFakeCluster(t, withTimeout(transport, 0), a, b)
		key := keyIn("k", 0, 2, 0)
		transaction := oneWrite([]string{"MULTI"}, []string{"SET", key, "v"}, []string{"EXEC"}, []string{"PING"})
		c := clustertest.Dial(t, addr)

		expectReply(t, c, "WATCH "+key, "+OK\r\n")
		gone.Store(true)
		c.Send(transaction)
		for _, want := range []string{"+OK\r\n", "+QUEUED\r\n", "*-1\r\n", "+PONG\r\n"} {
			c.Expect(want)
		}
		if n := len(m.executed()); n != 0 {
			t.Errorf("the transaction was executed without its WATCH: %q", m.executed())
		}

		expectReply(t, c, "WATCH "+key, "+OK\r\n")
		if b.Calls("WATCH") != 1 {
			t.Errorf("the new owner got %d WATCHes", b.Calls("WATCH"))
		}
		c.Send(transaction)
		for _, want := range []string{"+OK\r\n", "+QUEUED\r\n", "*1\r\n+OK\r\n", "+PONG\r\n"} {
			c.Expect(want)
		}
	})
}

// A blocked client whose slot moves away waits on at the new owner, and holds up
// nobody there.
func TestBlockedClientIsRedirected(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		var m fakeData
		push, unblock := make(chan struct{}), make(chan struct{})
		b := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
			switch {
			case args[0] == "BLPOP":
				<-push
				return "*2\r\n" + bulkOf(args[1]) + bulkOf("e")
			case redirectable(args):
				return m.execute(args)
			}
			return ""
		})
		a := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
			if args[0] == "BLPOP" {
				<-unblock
			}
			if redirectable(args) {
				return movedTo(args[1], b.Addr)
			}
			return ""
		})
		_, addr, _ := startFakeCluster(t, func(o *proxy.Options) { o.Transport, o.Loops = transport, 1 }, a, b)
		key, other := keyIn("k", 0, 2, 0), keyIn("k", 1, 2, 0)
		blocked, c := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
		blocked.Send(oneWrite([]string{"BLPOP", key, "0"}, []string{"SET", key, "after"}))
		expectReply(t, c, "SET "+other+" v", "+OK\r\n")
		close(unblock)
		clustertest.Await(t, "the blocking command to arrive at the new owner", func() error {
			if b.Calls("BLPOP") != 1 {
				return errors.New("not yet")
			}
			return nil
		})
		expectReply(t, c, "GET "+other, bulkOf("v"))
		expectReply(t, c, "GET "+key, "$-1\r\n")
		close(push)
		blocked.Expect("*2\r\n" + bulkOf(key) + bulkOf("e"))
		blocked.Expect("+OK\r\n")
		expectReply(t, c, "GET "+key, bulkOf("after"))
	})
}

// A request that was passed on while it arrived cannot be sent again.
func TestRedirectedUpload(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		a := proxytest.StartFake(t, redirecting(movedTo, "127.0.0.1:1"))
		_, addr, topology := startFakeCluster(t, withTimeout(transport, 0), a)
		c := clustertest.Dial(t, addr)
		got := c.Do("SET", "k", strings.Repeat("x", 3<<20))
		if !strings.HasPrefix(got, "-ERR cosky-proxy") || !strings.Contains(got, "try again") {
			t.Errorf("got %q", got)
		}
		if topology.Refreshes.Load() == 0 {
			t.Error("nobody asked for a new topology")
		}
		expectReply(t, c, "PING", "+PONG\r\n")
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

// TestPartsFollowTheirClient: the parts of a command of a client that moves much are redirected to the connection
// that its other commands take, so that these stay behind them.
func TestPartsFollowTheirClient(t *testing.T) {
	var mu sync.Mutex
	via := map[string]*proxytest.FakeConn{}
	big := strings.Repeat("b", 100<<10)
	moving, staying := keyIn("m", 0, 2, 0), keyIn("s", 1, 2, 0)
	note := func(c *proxytest.FakeConn, args []string) {
		mu.Lock()
		defer mu.Unlock()
		via[args[0]+" "+args[1]] = c
	}
	b := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
		note(c, args)
		switch {
		case args[0] == "GET" && args[1] == staying:
			return bulkOf(big)
		case args[0] == "GET":
			return bulkOf("v")
		case args[0] == "MSET":
			return "+OK\r\n"
		}
		return ""
	})
	a := proxytest.StartFake(t, redirecting(movedTo, b.Addr))
	_, addr, _ := startFakeCluster(t, func(o *proxy.Options) { o.Loops, o.Cache.Cache = 1, nil }, a, b)
	greedy, modest := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
	clustertest.Await(t, "different ways for the two", func() error {
		greedy.Send(strings.Repeat(clustertest.Encode("GET", staying), 30))
		for range 30 {
			greedy.Expect(bulkOf(big))
		}
		expectReply(t, modest, "MSET "+staying+" v", "+OK\r\n")
		mu.Lock()
		defer mu.Unlock()
		if via["GET "+staying] == via["MSET "+staying] {
			return errors.New("they share a connection")
		}
		return nil
	})
	greedy.Send(oneWrite([]string{"MSET", moving, "v", staying, "v"}, []string{"GET", moving}))
	greedy.Expect("+OK\r\n")
	greedy.Expect(bulkOf("v"))
	mu.Lock()
	defer mu.Unlock()
	if via["MSET "+moving] == nil || via["MSET "+moving] != via["GET "+moving] {
		t.Error("a write and the read behind it were redirected to different connections")
	}
}
