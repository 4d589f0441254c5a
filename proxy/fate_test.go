package proxy_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/slot"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
)

// startSingle runs a proxy of one loop in front of one fake server.
func startSingle(t *testing.T, f *proxytest.Fake, change func(*proxy.Options)) (*proxy.Server, *clustertest.Conn) {
	t.Helper()
	o := proxytest.Options(t, proxytest.Single(f.Addr))
	o.Loops = 1
	if change != nil {
		change(&o)
	}
	s, addr := proxytest.Start(t, o)
	return s, clustertest.Dial(t, addr)
}

// counted waits until a fake has been asked n times for something.
func counted(t *testing.T, f *proxytest.Fake, command string, n int) {
	t.Helper()
	clustertest.Await(t, command+" to arrive", func() error {
		if got := f.Calls(command); got < n {
			return fmt.Errorf("%d of %d", got, n)
		}
		return nil
	})
}

// A connection that ends without a reply: what only reads is read again, and of what may have had effects
// the client is told that nobody knows.
func TestFateOfWhatWasWritten(t *testing.T) {
	const unknown = "-ERR cosky-proxy connection lost, fate unknown (backend "
	noWrites := "#!lua flags=allow-stale,no-writes\nreturn redis.call('GET', KEYS[1])"
	tests := []struct {
		name     string
		commands [][]string
		want     []string // beginnings
	}{
		{"a read", [][]string{{"GET", "cut"}}, []string{"+again"}},
		{"a write", [][]string{{"SET", "cut", "v"}}, []string{unknown}},
		{"a script that must not write", [][]string{{"EVAL_RO", "return 1", "1", "cut"}}, []string{"+again"}},
		{"a script that says so", [][]string{{"EVAL", noWrites, "1", "cut"}}, []string{"+again"}},
		{"a script that may write", [][]string{{"EVAL", "return 1", "1", "cut"}}, []string{unknown}},
		{"a read with a write behind it", [][]string{{"GET", "cut"}, {"SET", "cut", "v"}}, []string{"-ERR cosky-proxy connection lost (backend ", unknown}},
		{"a write with a read behind it", [][]string{{"SET", "cut", "v"}, {"GET", "cut"}}, []string{unknown, "+again"}},
		{"a transaction of reads", [][]string{{"MULTI"}, {"GET", "cut"}, {"EXEC"}}, []string{"+OK", "+QUEUED", "*1\r\n+again"}},
		{"a transaction", [][]string{{"MULTI"}, {"SET", "cut", "v"}, {"EXEC"}}, []string{"+OK", "+QUEUED", unknown}},
		{"a blocking command", [][]string{{"BLPOP", "cut", "0"}}, []string{unknown}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var left atomic.Int64 // commands until the connection is cut
			var cut atomic.Bool
			left.Store(int64(len(tt.commands)))
			f := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
				switch args[0] {
				case "PING", "HELLO", "CLIENT", "SCRIPT", "PTTL":
					return ""
				}
				switch {
				case !cut.Load():
					if left.Add(-1) == 0 {
						cut.Store(true)
						c.Close()
					}
					return ""
				case args[0] == "MULTI":
					return "+OK\r\n"
				case args[0] == "EXEC":
					return "*1\r\n+again\r\n"
				}
				return "+again\r\n"
			})
			_, conn := startSingle(t, f, nil)
			conn.Send(oneWrite(tt.commands...))
			for i, want := range tt.want {
				if got := conn.ReadReply(); !strings.HasPrefix(got, want) {
					t.Errorf("%q: got %q, want %q", tt.commands[i], got, want)
				}
			}
			if n := f.Calls("SET"); n > 1 {
				t.Errorf("a write was sent %d times", n)
			}
			expectReply(t, conn, "GET k", "+again\r\n")
		})
	}
}

// A part of a read that several shards answer is not read again behind a write of the same client either.
func TestFateOfPartsOfReads(t *testing.T) {
	var cut atomic.Bool
	b := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
		switch {
		case !redirectable(args) && args[0] != "DBSIZE":
			return ""
		case cut.Load():
			return ":7\r\n"
		case args[0] == "SET":
			cut.Store(true)
			c.Close()
		}
		return ""
	})
	a := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		switch args[0] {
		case "MGET":
			return "*1\r\n+a\r\n"
		case "DBSIZE":
			return ":1\r\n"
		}
		return ""
	})
	_, addr, _ := startFakeCluster(t, func(o *proxy.Options) { o.Loops = 1 }, a, b)
	here, there := keyIn("k", 0, 2, 0), keyIn("k", 1, 2, 0)
	for _, read := range [][]string{{"MGET", here, there}, {"DBSIZE"}} {
		cut.Store(false)
		c := clustertest.Dial(t, addr)
		c.Send(oneWrite(read, []string{"SET", there, "v"}))
		for _, want := range []string{"-ERR cosky-proxy connection lost (backend ", "-ERR cosky-proxy connection lost, fate unknown (backend "} {
			if got := c.ReadReply(); !strings.HasPrefix(got, want) {
				t.Errorf("%q: got %q, want %q", read, got, want)
			}
		}
	}
}

// What a client watches is not watched any more when the connection breaks: somebody may have changed it.
func TestLostWatch(t *testing.T) {
	f := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		if args[0] == "WATCH" {
			return "+OK\r\n"
		}
		return ""
	})
	s, conn := startSingle(t, f, nil)
	expectReply(t, conn, "WATCH k", "+OK\r\n")
	f.CutAll()
	clustertest.Await(t, "the loss to be noticed", func() error {
		if s.Stats().Pins > 0 {
			return errors.New("not yet")
		}
		return nil
	})
	conn.Send(oneWrite([]string{"MULTI"}, []string{"SET", "k", "v"}, []string{"EXEC"}))
	for _, want := range []string{"+OK\r\n", "+QUEUED\r\n", "*-1\r\n"} {
		conn.Expect(want)
	}
	if n := f.Calls("SET"); n > 0 {
		t.Errorf("SET was sent %d times", n)
	}
}

// With the connection of a client that watches only its watch is lost: what it was reading there is read again.
func TestReadWhileWatchIsLost(t *testing.T) {
	var hold atomic.Bool
	f := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		switch {
		case args[0] == "WATCH":
			return "+OK\r\n"
		case args[0] == "GET" && hold.Load():
			return ""
		case args[0] == "GET":
			return bulkOf("v")
		}
		return ""
	})
	_, conn := startSingle(t, f, nil)
	expectReply(t, conn, "WATCH k", "+OK\r\n")
	hold.Store(true)
	conn.Cmd("GET", "k")
	counted(t, f, "GET", 1)
	hold.Store(false)
	f.CutAll()
	conn.Expect(bulkOf("v"))
	conn.Send(oneWrite([]string{"MULTI"}, []string{"SET", "k", "v"}, []string{"EXEC"}))
	for _, want := range []string{"+OK\r\n", "+QUEUED\r\n", "*-1\r\n"} {
		conn.Expect(want)
	}
	if n := f.Calls("SET"); n > 0 {
		t.Errorf("SET was sent %d times", n)
	}
}

// A WATCH that is answered with an error watches nothing; but what was watched before, and lost, is not forgotten with it.
func TestRefusedWatch(t *testing.T) {
	var m fakeData
	var refuses atomic.Bool
	f := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
		switch {
		case args[0] == "WATCH" && refuses.Load():
			return "-LOADING Redis is loading the dataset in memory\r\n"
		case args[0] == "WATCH", args[0] == "UNWATCH":
			return "+OK\r\n"
		}
		return m.serve(c, args)
	})
	s, conn := startSingle(t, f, func(o *proxy.Options) { o.Upstream.MaxPins = 1 })
	transaction := oneWrite([]string{"MULTI"}, []string{"SET", "k", "v"}, []string{"EXEC"})
	expect := func(exec string) {
		t.Helper()
		conn.Send(transaction)
		for _, want := range []string{"+OK\r\n", "+QUEUED\r\n", exec} {
			conn.Expect(want)
		}
	}
	lose := func() {
		t.Helper()
		f.CutAll()
		clustertest.Await(t, "the loss to be noticed", func() error {
			if s.Stats().Pins > 0 {
				return errors.New("not yet")
			}
			return nil
		})
	}
	refuses.Store(true)
	expectReply(t, conn, "WATCH a", "-LOADING Redis is loading the dataset in memory\r\n")
	lose()
	expect("*1\r\n+OK\r\n")

	refuses.Store(false)
	expectReply(t, conn, "WATCH a", "+OK\r\n")
	lose()
	expectReply(t, clustertest.Dial(t, s.Addrs()[0]), "WATCH other", "+OK\r\n")
	if got := conn.Do("WATCH", "b"); !strings.HasPrefix(got, "-ERR") {
		t.Errorf("a WATCH without a connection: got %q", got)
	}
	expect("*-1\r\n")
}

// A transaction that Redis queues itself, because the backend is in doubt, follows its keys like any other.
func TestLiveTransactionIsRedirected(t *testing.T) {
	var m fakeData
	next := proxytest.StartFake(t, m.serve)
	old := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		switch args[0] {
		case "GET":
			return "-BUSY Redis is busy running a script.\r\n"
		case "MULTI":
			return "+OK\r\n"
		case "INCR":
			return movedTo(args[1], next.Addr)
		case "EXEC":
			return "-EXECABORT Transaction discarded because of previous errors.\r\n"
		}
		return ""
	})
	_, addr, _ := startFakeCluster(t, nil, old)
	conn := clustertest.Dial(t, addr)
	expectReply(t, conn, "GET k", "-BUSY Redis is busy running a script.\r\n")
	conn.Send(oneWrite([]string{"MULTI"}, []string{"INCR", "k"}, []string{"INCR", "k"}, []string{"EXEC"}))
	for _, want := range []string{"+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*2\r\n:1\r\n:2\r\n"} {
		conn.Expect(want)
	}
	if n := old.Calls("INCR"); n < 2 {
		t.Errorf("the transaction was not queued there: %d INCR", n)
	}
}

// What a live transaction has queued in Redis is lost with the connection, but kept here.
func TestLiveTransactionOutlivesItsConnection(t *testing.T) {
	var m fakeData
	var cut atomic.Bool
	f := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
		switch {
		case args[0] == "GET":
			return "-BUSY Redis is busy running a script.\r\n"
		case args[0] == "INCR" && cut.CompareAndSwap(false, true):
			c.Close()
			return ""
		}
		return m.serve(c, args)
	})
	_, conn := startSingle(t, f, nil)
	expectReply(t, conn, "GET k", "-BUSY Redis is busy running a script.\r\n")
	conn.Send(oneWrite([]string{"MULTI"}, []string{"INCR", "k"}, []string{"INCR", "k"}, []string{"EXEC"}))
	for _, want := range []string{"+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*2\r\n:1\r\n:2\r\n"} {
		conn.Expect(want)
	}
}

// awaitTrip waits until the proxy knows of a server that is lost.
func awaitTrip(t *testing.T, s *proxy.Server) {
	t.Helper()
	clustertest.Await(t, "the loss to be noticed", func() error {
		for _, n := range s.Stats().Nodes {
			if n.Trips > 0 {
				return nil
			}
		}
		return errors.New("not yet")
	})
}

// deadAddr is an address where nobody listens.
func deadAddr(t *testing.T) string { return fmt.Sprintf("127.0.0.1:%d", clustertest.FreePort(t)) }

// master is the topology of one master for all slots.
func master(version uint64, mode cluster.Mode, addr string) *cluster.Topology {
	if mode == cluster.Cluster {
		return proxytest.Shards(version, addr)
	}
	return cluster.NewSingle(version, mode, &cluster.Node{ID: addr, Addr: addr})
}

// awaitRefresh waits until somebody has asked for a new topology.
func awaitRefresh(t *testing.T, f *proxytest.Fixed) {
	t.Helper()
	clustertest.Await(t, "a new topology to be asked for", func() error {
		if f.Refreshes.Load() == 0 {
			return errors.New("not yet")
		}
		return nil
	})
}

// What a dead master has not been sent goes to its successor, in order and once.
func TestUnwrittenGoesToTheNewMaster(t *testing.T) {
	tests := []struct {
		name     string
		commands [][]string
		want     string
	}{
		{"commands", [][]string{{"SET", "k", "v"}, {"INCR", "n"}, {"GET", "k"}}, "+OK\r\n:1\r\n" + bulkOf("v")},
		{"several keys", [][]string{{"MSET", "a", "1", "b", "2"}, {"INCR", "a"}}, "+OK\r\n:2\r\n"},
		{"a transaction", [][]string{{"MULTI"}, {"INCR", "n"}, {"EXEC"}, {"GET", "n"}}, "+OK\r\n+QUEUED\r\n*1\r\n:1\r\n" + bulkOf("1")},
		{"a blocking command", [][]string{{"BLPOP", "q", "0"}, {"GET", "k"}}, "*2\r\n$1\r\nq\r\n$1\r\nx\r\n$-1\r\n"},
		{"WATCH", [][]string{{"WATCH", "k"}, {"MULTI"}, {"INCR", "n"}, {"EXEC"}}, "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n:1\r\n"},
		{"a cached read", [][]string{{"HGETALL", "ns:svc_itc:a"}, {"INCR", "n"}}, "*0\r\n:1\r\n"},
	}
	for _, mode := range []cluster.Mode{cluster.Sentinel, cluster.Cluster} {
		for _, tt := range tests {
			t.Run(mode.String()+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				var m fakeData
				next := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
					switch {
					case c.Queue != nil || args[0] == "MULTI":
						return m.serve(c, args)
					case args[0] == "BLPOP":
						return "*2\r\n$1\r\nq\r\n$1\r\nx\r\n"
					case args[0] == "WATCH":
						return "+OK\r\n"
					case args[0] == "HGETALL":
						return "*0\r\n"
					case redirectable(args):
						return m.execute(args)
					}
					return ""
				})
				topology := proxytest.FixedTo(master(1, mode, deadAddr(t)))
				o := proxytest.Options(t, topology)
				o.Backend.Mode = mode
				s, addr := proxytest.Start(t, o)
				conn := clustertest.Dial(t, addr)
				conn.Send(oneWrite(tt.commands...))
				awaitRefresh(t, topology)
				topology.Set(master(2, mode, next.Addr))
				s.Adopt(topology.Current())
				var got strings.Builder
				for range tt.commands {
					got.WriteString(conn.ReadReply())
				}
				if got.String() != tt.want {
					t.Errorf("got %q, want %q", got.String(), tt.want)
				}
				if n := next.Calls("INCR"); n > 1 {
					t.Errorf("INCR was sent %d times", n)
				}
			})
		}
	}
}

// Everybody waits for a lost node once, and for no longer than the timeout; then commands fail at
// once: if each waited, this test would not end in time. Other shards know nothing of it.
func TestHopeEnds(t *testing.T) {
	var m fakeData
	well := proxytest.StartFake(t, m.serve)
	dead := deadAddr(t)
	topology := proxytest.FixedTo(proxytest.Shards(1, well.Addr, dead))
	o := proxytest.Options(t, topology)
	o.Backend.Mode, o.Upstream.Timeout = cluster.Cluster, 400*time.Millisecond
	s, addr := proxytest.Start(t, o)
	lost, other := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
	here, there := keyIn("k", 0, 2, 0), keyIn("k", 1, 2, 0)
	lost.Cmd("SET", there, "v")
	for range 200 {
		expectReply(t, other, "SET "+here+" v", "+OK\r\n")
	}
	for range 200 {
		if got := lost.ReadReply(); !strings.HasPrefix(got, "-ERR cosky-proxy cannot reach backend "+dead) {
			t.Fatalf("got %q", got)
		}
		lost.Cmd("SET", there, "v")
	}
	lost.ReadReply()
	for _, n := range s.Stats().Nodes {
		if open := n.Addr == dead; (n.Trips > 0) != open || (n.Open > 0) != open {
			t.Errorf("the breaker of %s: %d trips, %d open", n.Addr, n.Trips, n.Open)
		}
	}
}

// A server that accepts connections and says nothing: after one timeout commands fail at once, and none
// is sent to it before it has answered a PING.
func TestBreakerOfASilentServer(t *testing.T) {
	var silent atomic.Bool
	var mu sync.Mutex
	var asleep []func()
	f := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
		if silent.Load() {
			wait := make(chan struct{})
			mu.Lock()
			asleep = append(asleep, func() { close(wait) })
			mu.Unlock()
			<-wait
		}
		if args[0] == "GET" || args[0] == "INCR" {
			return bulkOf(args[1])
		}
		return ""
	})
	wakeUp := func() {
		silent.Store(false)
		mu.Lock()
		defer mu.Unlock()
		for _, wake := range asleep {
			wake()
		}
		asleep = nil
	}
	t.Cleanup(wakeUp)
	s, conn := startSingle(t, f, func(o *proxy.Options) {
		o.Upstream.Timeout, o.Upstream.ConnectTimeout = 200*time.Millisecond, 200*time.Millisecond
		o.Upstream.BackoffMax = 50 * time.Millisecond
		o.Cache.Cache, o.Cache.Invalidation = nil, proxy.InvalidationOff
	})
	expectReply(t, conn, "GET a", bulkOf("a"))
	silent.Store(true)
	if got := conn.Do("INCR", "n"); !strings.HasPrefix(got, "-ERR cosky-proxy timed out after 200ms") || !strings.Contains(got, "fate unknown") {
		t.Errorf("the first: got %q", got)
	}
	incremented := f.Calls("INCR")
	for range 300 {
		if got := conn.Do("INCR", "n"); !strings.HasPrefix(got, "-ERR cosky-proxy cannot reach backend "+f.Addr) {
			t.Fatalf("while the breaker is open: got %q", got)
		}
	}
	connections := f.Accepted()
	clustertest.Await(t, "trials", func() error {
		if n := f.Accepted(); n < connections+2 {
			return fmt.Errorf("%d connections", n)
		}
		return nil
	})
	if n := f.Calls("INCR"); n != incremented {
		t.Errorf("%d commands were sent to a server that does not answer", n-incremented)
	}
	wakeUp()
	clustertest.Await(t, "service", func() error {
		if got := conn.Do("GET", "b"); got != bulkOf("b") {
			return errors.New(got)
		}
		return nil
	})
	if n := s.Stats().Nodes[0]; n.Trips == 0 || n.Refused < 300 || n.Open != 0 {
		t.Errorf("%d trips, %d refused, %d open", n.Trips, n.Refused, n.Open)
	}
}

// Something in front of a dead server accepts connections and closes them: no circle of them, no command that
// hangs.
func TestBreakerOfConnectionsThatEndAtOnce(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var accepted atomic.Int64
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			c.Close()
		}
	}()
	o := proxytest.Options(t, proxytest.Single(ln.Addr().String()))
	o.Upstream.BackoffMin, o.Upstream.BackoffMax = time.Hour, time.Hour
	_, addr := proxytest.Start(t, o)
	conn := clustertest.Dial(t, addr)
	for range 200 {
		if got := conn.Do("GET", "k"); !strings.HasPrefix(got, "-ERR cosky-proxy c") {
			t.Fatalf("got %q", got)
		}
	}
	if n := accepted.Load(); n > 8 { // two loops, each with a connection of its own for every purpose
		t.Errorf("%d connections", n)
	}
}

// A queue that is full and does not move: clients are told, and nobody waits for the timeout.
func TestFullQueueIsAnError(t *testing.T) {
	blocked, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		if args[0] == "SET" {
			once.Do(func() { close(blocked) })
			<-release
			return "+OK\r\n"
		}
		return ""
	})
	defer close(release)
	s, conn := startSingle(t, f, func(o *proxy.Options) {
		o.Upstream.QueueLimit, o.Upstream.QueueTimeout, o.Upstream.Timeout = 256<<10, 200*time.Millisecond, time.Hour
		o.Clients.MaxInFlight = 100_000
	})
	conn.Cmd("SET", "k", "v")
	<-blocked
	// More than the kernel holds, from many clients: one that sends so much would get a lane of its own.
	some := strings.Repeat(clustertest.Encode("SET", "k", strings.Repeat("x", 64<<10)), 10)
	for range 40 {
		c := clustertest.Dial(t, s.Addrs()[0])
		go io.WriteString(c.Net(), some)
	}
	clustertest.Await(t, "commands to be refused", func() error {
		if n := s.Stats().QueueFull; n == 0 {
			return errors.New("none")
		}
		return nil
	})
	other := clustertest.Dial(t, s.Addrs()[0])
	if got := other.Do("SET", "k", "v"); !strings.HasPrefix(got, "-BUSY cosky-proxy: the queue to backend "+f.Addr+" is full") {
		t.Errorf("got %q", got)
	}
	expectReply(t, other, "PING", "+PONG\r\n")
}

// A master that was replaced and says nothing more is not waited for. One that was demoted politely is.
func TestReplacedMasterIsNotWaitedFor(t *testing.T) {
	for name, test := range map[string]struct {
		mode   cluster.Mode
		polite bool // it is asked no more, but answers
		failed bool // others say so
	}{
		"it has failed":                   {cluster.Cluster, false, true},
		"it is a replica now":             {cluster.Cluster, true, false},
		"Sentinels do not say what it is": {cluster.Sentinel, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			polite := test.polite
			t.Parallel()
			resume := make(chan struct{})
			old := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
				switch args[0] {
				case "GET", "INCR", "BLPOP":
					<-resume
					return "+old\r\n"
				}
				return ""
			})
			t.Cleanup(sync.OnceFunc(func() {
				if !polite {
					close(resume)
				}
			}))
			next := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
				if args[0] == "GET" || args[0] == "INCR" {
					return "+new\r\n"
				}
				return ""
			})
			s, addr, topology := startFakeCluster(t, func(o *proxy.Options) {
				o.Upstream.Timeout, o.Backend.Mode = time.Hour, test.mode
				if test.mode == cluster.Sentinel {
					readFrom(proxy.FromReplicaPreferred)(o) // else it is told of no replicas
				}
			}, old)
			reader, writer, blocked := clustertest.Dial(t, addr), clustertest.Dial(t, addr), clustertest.Dial(t, addr)
			reader.Cmd("GET", "k")
			writer.Cmd("INCR", "n")
			blocked.Cmd("BLPOP", "q", "0")
			counted(t, old, "BLPOP", 1)
			clustertest.Await(t, "the commands to arrive", func() error {
				if old.Calls("GET")+old.Calls("INCR") < 1 { // the second may be behind the first
					return errors.New("not yet")
				}
				return nil
			})
			shard := cluster.Shard{Primary: &cluster.Node{ID: "next", Addr: next.Addr}, Ranges: []slot.Range{slot.All()}}
			shard.Replicas = []*cluster.Node{{ID: "old", Addr: old.Addr, Blocked: test.failed}}
			now, err := cluster.New(2, test.mode, []cluster.Shard{shard})
			if err != nil {
				t.Fatal(err)
			}
			topology.Set(now)
			s.Adopt(now)
			if polite {
				expectReply(t, clustertest.Dial(t, addr), "GET k", "+new\r\n")
				close(resume)
				for _, c := range []*clustertest.Conn{reader, writer, blocked} {
					c.Expect("+old\r\n")
				}
				return
			}
			reader.Expect("+new\r\n")
			for _, c := range []*clustertest.Conn{writer, blocked} {
				if got := c.ReadReply(); !strings.HasPrefix(got, "-ERR cosky-proxy connection lost, fate unknown") {
					t.Errorf("got %q", got)
				}
			}
		})
	}
}

// Refusals that are about the state of a server in a cluster are sat out, as long as the timeout allows; one Redis
// alone speaks for itself.
func TestRefusalsAreSatOut(t *testing.T) {
	for _, refusal := range []string{
		"-LOADING Redis is loading the dataset in memory\r\n",
		"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
		"-CLUSTERDOWN The cluster is down\r\n",
		"-READONLY You can't write against a read only replica. script: beef354d82996a708aa0deac229a63225ff0dd9c, on @user_script:1.\r\n",
		"-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)\r\n",
	} {
		word, _, _ := strings.Cut(refusal[1:], " ")
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			commands := [][]string{{"SET", "k", "v"}, {"GET", "k"}}
			switch word {
			case "READONLY":
				commands[0] = []string{"EVAL", "return redis.call('SET', KEYS[1], 1)", "1", "k"}
			case "UNBLOCKED":
				commands[0] = []string{"BLPOP", "k", "0"}
			}
			var refusals atomic.Int64
			f := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
				switch {
				case !redirectable(args):
					return ""
				case args[0] == commands[0][0] && refusals.Add(-1) >= 0:
					return refusal
				}
				return "+done\r\n"
			})
			_, addr, _ := startFakeCluster(t, func(o *proxy.Options) { o.Upstream.Timeout = time.Second }, f)
			conn := clustertest.Dial(t, addr)
			refusals.Store(3)
			conn.Send(oneWrite(commands...))
			conn.Expect("+done\r\n")
			conn.Expect("+done\r\n")
			refusals.Store(1 << 40)
			for range 20 { // only the first ones wait
				conn.Send(oneWrite(commands...))
				conn.Expect(refusal)
				conn.Expect("+done\r\n")
				if word == "UNBLOCKED" {
					break
				}
			}
		})
	}
}
