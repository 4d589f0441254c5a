package proxy_test

import (
	"errors"
	"fmt"
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

// What these tests set upstream.timeout to, and how much of it goes by before the second trouble begins: well before the last try
// (loop.hopeTime). If each trouble had its own time, commands would take the sum of both.
const (
	allowed = 2 * time.Second
	spent   = 5 * allowed / 8
	tooLong = spent + allowed - allowed/16
)

// expectTimeout reads the reply to a command that was sent at began.
func expectTimeout(t *testing.T, c *clustertest.Conn, began time.Time, at, fate string) (ok bool) {
	t.Helper()
	got, took := c.ReadReply(), time.Since(began)
	ok = true
	if want := "-ERR cosky-proxy timed out after 2s waiting for backend " + at + fate; !strings.HasPrefix(got, want) || fate == certain && got != want+"\r\n" {
		t.Errorf("got %q, want %q", got, want)
		ok = false
	}
	if took > tooLong {
		t.Errorf("a command that may take %s took %s", allowed, took)
		ok = false
	}
	return ok
}

const (
	certain     = ""
	fateUnknown = ", fate unknown: the command may or may not have been executed\r\n"
)

// awaitHit has conn read a hash until it is served from memory.
func awaitHit(t *testing.T, s *proxy.Server, conn *clustertest.Conn, key string) {
	t.Helper()
	hits := s.Stats().Hits
	clustertest.Await(t, "a read to be kept", func() error {
		if conn.Do("HGETALL", key); s.Stats().Hits == hits {
			return errors.New("not yet")
		}
		return nil
	})
}

// startFrozen is a server that says nothing to these commands before the test ends.
func startFrozen(t *testing.T, commands ...string) *proxytest.Fake {
	t.Helper()
	thaw := make(chan struct{})
	f := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		for _, name := range commands {
			if args[0] == name {
				<-thaw
			}
		}
		return ""
	})
	t.Cleanup(func() { close(thaw) })
	return f
}

// failedOver is the topology of a cluster of one master that next leads since old has failed.
func failedOver(t *testing.T, next, old string) *cluster.Topology {
	t.Helper()
	shard := cluster.Shard{Primary: &cluster.Node{ID: "next", Addr: next}, Ranges: []slot.Range{slot.All()}}
	shard.Replicas = []*cluster.Node{{ID: "old", Addr: old, Blocked: true}}
	now, err := cluster.New(2, cluster.Cluster, []cluster.Shard{shard})
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// briefly allows commands little time.
func briefly(o *proxy.Options) { o.Loops, o.Upstream.Timeout = 1, allowed }

// A read that a frozen master does not answer is read again from its successor, in what is left of its time.
func TestFrozenSuccessorOfAFrozenMaster(t *testing.T) {
	t.Parallel()
	old, next := startFrozen(t, "GET"), startFrozen(t, "GET")
	s, addr, topology := startFakeCluster(t, briefly, old)
	conn := clustertest.Dial(t, addr)
	began := time.Now()
	conn.Cmd("GET", "k")
	time.Sleep(spent)
	topology.Set(failedOver(t, next.Addr, old.Addr))
	s.Adopt(topology.Current())
	expectTimeout(t, conn, began, next.Addr, certain)
	if old.Calls("GET") != 1 || next.Calls("GET") != 1 {
		t.Errorf("%d reads of the old master, %d of its successor", old.Calls("GET"), next.Calls("GET"))
	}
}

// What has waited for the successor of a lost master, and is then sent to a frozen one, has its time once.
func TestFrozenSuccessorOfALostMaster(t *testing.T) {
	t.Parallel()
	here, there := keyIn("k", 0, 2, 0), keyIn("k", 1, 2, 0)
	tests := []struct {
		name     string
		commands [][]string
		fate     string
	}{
		{"a write", [][]string{{"SET", there, "v"}}, fateUnknown},
		{"a read", [][]string{{"GET", there}}, certain},
		{"parts of a write", [][]string{{"MSET", here, "1", there, "2"}}, fateUnknown},
		{"parts of a read", [][]string{{"MGET", here, there}}, certain},
		{"a script", [][]string{{"EVAL", "return redis.call('INCR', KEYS[1])", "1", there}}, fateUnknown},
		{"a transaction", [][]string{{"MULTI"}, {"INCR", there}, {"EXEC"}}, fateUnknown},
		{"WATCH", [][]string{{"WATCH", there}}, certain},
	}
	var m fakeData
	well := proxytest.StartFake(t, m.serve)
	next := startFrozen(t, "SET", "GET", "MSET", "MGET", "EVAL", "MULTI", "WATCH")
	topology := proxytest.FixedTo(proxytest.Shards(1, well.Addr, deadAddr(t)))
	o := proxytest.Options(t, topology)
	o.Backend.Mode, o.Cache.Cache, o.Cache.Invalidation = cluster.Cluster, nil, proxy.InvalidationOff
	briefly(&o)
	s, addr := proxytest.Start(t, o)
	began := time.Now()
	var conns []*clustertest.Conn
	for range 2 { // the first ones find the master lost; the others wait for a successor from the beginning
		for _, tt := range tests {
			c := clustertest.Dial(t, addr)
			c.Send(oneWrite(tt.commands...))
			conns = append(conns, c)
		}
		awaitRefresh(t, topology)
	}
	time.Sleep(spent - time.Since(began))
	topology.Set(proxytest.Shards(2, well.Addr, next.Addr))
	s.Adopt(topology.Current())
	for i, c := range conns {
		tt := &tests[i%len(tests)]
		for range len(tt.commands) - 1 {
			c.ReadReply()
		}
		if !expectTimeout(t, c, began, next.Addr, tt.fate) {
			t.Errorf("that was %s", tt.name)
		}
		expectReply(t, c, "GET "+here, m.execute([]string{"GET", here}))
	}
}

// What is still to be written when its time is over is taken back: it is never executed, and what others sent on that connection is.
func TestUnwrittenIsTakenBack(t *testing.T) {
	t.Parallel()
	var m fakeData
	var watched atomic.Bool
	loggedIn := make(chan struct{})
	next := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
		switch args[0] {
		case "AUTH":
			<-loggedIn
		case "DISCARD":
			c.Queue = nil
			return "+OK\r\n"
		case "WATCH":
			watched.Store(true)
			return "+OK\r\n"
		}
		return m.serve(c, args)
	})
	dead := deadAddr(t)
	topology := proxytest.FixedTo(proxytest.Shards(1, dead))
	o := proxytest.Options(t, topology)
	o.Backend.Mode, o.Backend.Password = cluster.Cluster, "secret"
	o.Cache.Cache, o.Cache.Invalidation = nil, proxy.InvalidationOff
	briefly(&o)
	s, addr := proxytest.Start(t, o)
	early := [][][]string{
		{{"SET", "late", "a longer value than that of any other command here"}},
		{{"INCR", "late"}},
		{{"MULTI"}, {"INCR", "late"}, {"EXEC"}},
		{{"WATCH", "late"}},
	}
	var conns []*clustertest.Conn
	began := time.Now()
	for _, commands := range early {
		c := clustertest.Dial(t, addr)
		c.Send(oneWrite(commands...))
		conns = append(conns, c)
	}
	awaitRefresh(t, topology)
	time.Sleep(spent - time.Since(began))
	topology.Set(proxytest.Shards(2, next.Addr))
	s.Adopt(topology.Current())
	counted(t, next, "AUTH", 1)
	young := clustertest.Dial(t, addr)
	young.Send(oneWrite([]string{"INCR", "n"}, []string{"MULTI"}, []string{"INCR", "n"}, []string{"EXEC"}, []string{"GET", "n"}))
	for i, c := range conns {
		for range len(early[i]) - 1 {
			c.ReadReply()
		}
		expectTimeout(t, c, began, next.Addr, certain)
	}
	close(loggedIn)
	for _, want := range []string{":1\r\n", "+OK\r\n", "+QUEUED\r\n", "*1\r\n:2\r\n", bulkOf("2")} {
		young.Expect(want)
	}
	for _, c := range conns {
		expectReply(t, c, "GET late", "$-1\r\n")
	}
	if watched.Load() {
		t.Error("WATCH was written after its end")
	}
}

// A read that has waited for a connection of the near-cache that is silent goes past it in what is left of its time.
func TestFetchAndReadHaveOneTime(t *testing.T) {
	t.Parallel()
	thaw := make(chan struct{})
	var frozen atomic.Bool
	f := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		if frozen.Load() {
			<-thaw
		}
		if args[0] == "HGETALL" {
			return "*0\r\n"
		}
		return ""
	})
	t.Cleanup(func() { close(thaw) })
	s, conn := startSingle(t, f, func(o *proxy.Options) {
		briefly(o)
		o.Cache.MaxStaleness = allowed * 3 / 10
	})
	awaitHit(t, s, conn, "ns:svc_itc:a")
	frozen.Store(true)
	misses, began := s.Stats().Misses, time.Now()
	conn.Cmd("HGETALL", "ns:svc_itc:b")
	expectTimeout(t, conn, began, f.Addr, certain)
	if n := s.Stats().Misses - misses; n != 1 {
		t.Errorf("%d misses, want one: the read was not fetched", n)
	}
}

// Commands are given up one by one on a connection that is slow, but makes progress. Their late replies reach nobody, and everybody
// else's come in order.
func TestLateRepliesOnALiveConnection(t *testing.T) {
	t.Parallel()
	var m fakeData
	release := map[string]chan struct{}{}
	for _, key := range []string{"slow1", "slow2", "home1", "home2"} {
		release[key] = make(chan struct{})
	}
	f := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
		if len(args) > 1 && release[args[1]] != nil {
			<-release[args[1]]
			return bulkOf("late")
		}
		if args[0] == "COMMAND" {
			return "*1\r\n*-1\r\n"
		}
		return m.serve(c, args)
	})
	s, patient := startSingle(t, f, func(o *proxy.Options) {
		briefly(o)
		o.Cache.Cache, o.Cache.Invalidation = nil, proxy.InvalidationOff
	})
	dial := func() *clustertest.Conn { return clustertest.Dial(t, s.Addrs()[0]) }
	expectReply(t, patient, "SET k v", "+OK\r\n")
	home := dial() // has a connection to itself
	expectReply(t, home, "CLIENT NO-TOUCH ON", "+OK\r\n")
	connections := f.Accepted()

	began := time.Now()
	slow, reader, writer, both, stranger := dial(), dial(), dial(), dial(), dial()
	home.Send(oneWrite([]string{"GET", "home1"}, []string{"GET", "home2"}, []string{"INCR", "h"}))
	slow.Cmd("GET", "slow1")
	counted(t, f, "GET", 2)
	reader.Send(oneWrite([]string{"GET", "slow2"}, []string{"GET", "k"}))
	writer.Send(oneWrite([]string{"INCR", "n"}, []string{"INCR", "n"}))
	both.Send(oneWrite([]string{"MULTI"}, []string{"INCR", "n"}, []string{"EXEC"}, []string{"GET", "k"}))
	both.Expect("+OK\r\n")
	both.Expect("+QUEUED\r\n")
	stranger.Cmd("NOSUCHCOMMAND", "x") // Redis is asked what it is
	time.Sleep(spent - time.Since(began))
	close(release["slow1"]) // progress
	close(release["home1"])
	slow.Expect(bulkOf("late"))
	home.Expect(bulkOf("late"))
	patient.Send(oneWrite([]string{"GET", "k"}, []string{"GET", "n"}))

	expectTimeout(t, reader, began, f.Addr, certain)
	expectTimeout(t, reader, began, f.Addr, certain)
	expectTimeout(t, writer, began, f.Addr, fateUnknown)
	expectTimeout(t, writer, began, f.Addr, fateUnknown)
	expectTimeout(t, both, began, f.Addr, fateUnknown)
	expectTimeout(t, both, began, f.Addr, certain)
	expectTimeout(t, stranger, began, f.Addr, certain)
	expectTimeout(t, home, began, f.Addr, certain)
	expectTimeout(t, home, began, f.Addr, fateUnknown)
	others := []*clustertest.Conn{reader, writer, both, stranger, home}
	for i, c := range others {
		c.Cmd("SET", fmt.Sprint("own", i), "1")
		c.Cmd("GET", fmt.Sprint("own", i))
	}
	close(release["slow2"])
	close(release["home2"])
	patient.Expect(bulkOf("v"))
	patient.Expect(bulkOf("3"))
	for _, c := range others {
		c.Expect("+OK\r\n")
		c.Expect(bulkOf("1"))
	}
	if n := f.Accepted(); n != connections {
		t.Errorf("%d connections, want %d: it was given up", n, connections)
	}
	if n := s.Stats().Timeouts; n != 9 {
		t.Errorf("%d timeouts were counted, want 9", n)
	}
}

// A write that was given up may still come to be executed, so nothing is served from memory until it is known what has become of it.
func TestGivenUpWriteStaysPending(t *testing.T) {
	t.Parallel()
	const key = "ns:svc_itc:a"
	release := map[string]chan struct{}{"slow1": make(chan struct{}), "slow2": make(chan struct{})}
	var value atomic.Int64
	hash := func(v int64) string { return fmt.Sprintf("*2\r\n$1\r\nf\r\n:%d\r\n", v) }
	f := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		switch args[0] {
		case "GET":
			<-release[args[1]]
			return "$-1\r\n"
		case "HSET":
			value.Add(1)
			return ":0\r\n"
		case "HGETALL":
			return hash(value.Load())
		}
		return ""
	})
	s, writer := startSingle(t, f, briefly)
	dial := func() *clustertest.Conn { return clustertest.Dial(t, s.Addrs()[0]) }
	awaitHit(t, s, writer, key)
	slow, reader := dial(), dial()
	began := time.Now()
	slow.Send(oneWrite([]string{"GET", "slow1"}, []string{"GET", "slow2"}))
	counted(t, f, "GET", 1)
	writer.Cmd("HSET", key, "f", "1")
	time.Sleep(spent - time.Since(began))
	close(release["slow1"]) // progress
	expectTimeout(t, writer, began, f.Addr, fateUnknown)

	before := s.Stats().Bypasses
	reader.Cmd("HGETALL", key)
	clustertest.Await(t, "a read past the cache", func() error {
		if s.Stats().Bypasses == before {
			return errors.New("none")
		}
		return nil
	})
	close(release["slow2"])
	reader.Expect(hash(1))
	awaitHit(t, s, writer, key)
	expectReply(t, reader, "HGETALL "+key, hash(1))
}

// What has been streamed to a connection that is not ready is taken back to its end: no part of a value is ever written as if it were a
// command.
func TestUploadIsTakenBackWhole(t *testing.T) {
	t.Parallel()
	pinned, readiness := make(chan struct{}), make(chan struct{})
	var value strings.Builder
	for value.Len() < 100<<10 {
		value.WriteString(clustertest.Encode("DEL", "k"))
	}
	f := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		if args[0] == "AUTH" {
			<-pinned
		}
		if args[0] == "CLIENT" && args[1] == "ID" {
			<-readiness
			return ":7\r\n"
		}
		return ""
	})
	s, boss := startSingle(t, f, func(o *proxy.Options) {
		briefly(o)
		o.Backend.Password = "secret"
		o.Cache.Cache, o.Cache.Invalidation = nil, proxy.InvalidationOff
		o.Clients.RequestBuffer = 96 << 10
	})
	c := clustertest.Dial(t, s.Addrs()[0])
	request := clustertest.Encode("SET", "k", value.String())
	began := time.Now()
	c.Send(request[:80<<10])
	counted(t, f, "AUTH", 1)
	c.Send(request[80<<10:]) // no more than is read before the backend has taken some
	time.Sleep(spent - time.Since(began))
	close(pinned) // progress
	expectTimeout(t, c, began, f.Addr, certain)
	close(readiness)
	expectReply(t, boss, "PING", "+PONG\r\n")
	expectReply(t, c, "PING", "+PONG\r\n")
	if n := f.Calls("DEL"); n != 0 {
		t.Errorf("%d commands out of a value were executed", n)
	}
}

// pusher sends pushes that mean nothing on connections, so that they are not silent.
type pusher struct {
	done chan struct{}
	wg   sync.WaitGroup
}

func startPusher(t *testing.T) *pusher {
	p := &pusher{done: make(chan struct{})}
	t.Cleanup(func() {
		close(p.done)
		p.wg.Wait()
	})
	return p
}

func (p *pusher) to(c *proxytest.FakeConn) {
	p.wg.Go(func() {
		tick := time.NewTicker(allowed / 100)
		defer tick.Stop()
		for {
			select {
			case <-p.done:
				return
			case <-tick.C:
				c.Send(">2\r\n$10\r\ninvalidate\r\n*0\r\n")
			}
		}
	})
}

// A connection that brings something, but no replies, is given up in the end: what was given up would gather there.
func TestCloggedConnectionIsGivenUp(t *testing.T) {
	t.Parallel()
	var asked atomic.Bool
	var pushes *pusher
	f := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
		if args[0] != "INCR" {
			return ""
		}
		if !asked.Swap(true) {
			pushes.to(c)
			<-pushes.done
		}
		return ":1\r\n"
	})
	pushes = startPusher(t)
	s, conn := startSingle(t, f, func(o *proxy.Options) {
		o.Upstream.Timeout, o.Cache.Cache, o.Cache.Invalidation = allowed/4, nil, proxy.InvalidationOff
	})
	if got := conn.Do("HELLO", "3"); got[0] != '%' {
		t.Fatalf("got %q", got)
	}
	if got := conn.Do("INCR", "n"); !strings.HasPrefix(got, "-ERR cosky-proxy timed out after 500ms") || !strings.HasSuffix(got, fateUnknown) {
		t.Errorf("got %q", got)
	}
	clustertest.Await(t, "the connection to be given up", func() error {
		if n := s.Stats().Lanes; n > 0 {
			return fmt.Errorf("%d lanes", n)
		}
		return nil
	})
	expectReply(t, conn, "INCR n", ":1\r\n")
}

// Who has not waited for a fetch until its end goes on as if there had been none.
func TestGivenUpFetch(t *testing.T) {
	t.Parallel()
	const key, slow = "ns:svc_itc:a", "ns:svc_itc:slow"
	held := make(chan struct{})
	var pushes *pusher
	f := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
		switch {
		case args[0] != "HGETALL":
			return map[string]string{"HSET": ":1\r\n"}[args[0]]
		case args[1] == slow:
			pushes.to(c)
			<-held
		}
		return "*0\r\n"
	})
	pushes = startPusher(t)
	s, conn := startSingle(t, f, func(o *proxy.Options) { o.Upstream.Timeout, o.Cache.MaxStaleness = allowed/4, time.Minute })
	awaitHit(t, s, conn, key)
	misses, reads := s.Stats().Misses, f.Calls("HGETALL")
	if got := conn.Do("HGETALL", slow); got != "-ERR cosky-proxy timed out after 500ms waiting for backend "+f.Addr+"\r\n" {
		t.Errorf("got %q", got)
	}
	if m, r := s.Stats().Misses-misses, f.Calls("HGETALL")-reads; m != 1 || r != 1 {
		t.Errorf("%d misses, %d reads: it did not wait for a fetch", m, r)
	}
	awaitHit(t, s, conn, key)
	expectReply(t, conn, "HSET "+key+" f v", ":1\r\n")
	close(held)
	awaitHit(t, s, conn, key)
	awaitHit(t, s, conn, slow)
}

// A client that does not take its replies is not told that the server does not answer.
func TestSlowReadersAreNotTimedOut(t *testing.T) {
	t.Parallel()
	const timeout, reads = 2 * allowed, 200 // all are read well within it, also on a busy machine
	value := bulkOf(strings.Repeat("x", 50<<10))
	f := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		if args[0] == "GET" {
			return value
		}
		return ""
	})
	s, conn := startSingle(t, f, func(o *proxy.Options) {
		o.Upstream.Timeout, o.Cache.Cache, o.Cache.Invalidation = timeout, nil, proxy.InvalidationOff
	})
	if err := conn.Net().(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	conn.Send(strings.Repeat(clustertest.Encode("GET", "k"), reads))
	time.Sleep(2 * timeout)
	for range reads {
		conn.Expect(value)
	}
	if n := s.Stats().Timeouts; n > 0 {
		t.Errorf("%d timeouts were counted", n)
	}
}
