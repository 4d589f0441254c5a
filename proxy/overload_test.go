package proxy_test

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

var clients = flag.Int("clients", 0, "how many TestThousandsOfClientsAtOnce opens, for which the limit of open files must be twice that and 1,000; 0: 10,000 or what the limit allows")

// TestThousandsOfClientsAtOnce: they come at the same time, every one is served, and while they
// are idle each takes no more than 2 KB.
func TestThousandsOfClientsAtOnce(t *testing.T) {
	n := *clients
	if limit := raiseFileLimit(t, 2*max(n, 10_000)+1000); n == 0 {
		n = min(10_000, (limit-1000)/2)
	} else if limit < 2*n+1000 {
		t.Fatalf("the limit of open files (ulimit -Hn), %d, is too low for %d clients", limit, n)
	}
	behind := clustertest.StartRedis(t)
	o := proxytest.Options(t, proxytest.Single(behind.Addr))
	o.Clients.Max = n + 1
	s, addr := proxytest.Start(t, o)
	resident := clustertest.Dial(t, addr)
	resident.Do("SET", "k", "v")
	fds := make([]int, n)
	defer func() {
		for _, fd := range fds {
			syscall.Close(fd)
		}
	}()
	const answer = "$1\r\nv\r\n"
	burst := func(start, end int) {
		t.Helper()
		fds := fds[start:end]
		const dialers = 32
		var all sync.WaitGroup
		for d := range dialers {
			all.Go(func() {
				for i := d; i < len(fds); i += dialers {
					fds[i] = rawDial(t, start+i, addr)
				}
			})
		}
		all.Wait()
		request, reply := []byte(clustertest.Encode("GET", "k")), make([]byte, len(answer))
		for i, fd := range fds {
			if _, err := syscall.Write(fd, request); err != nil {
				t.Fatalf("client %d: %v", i, err)
			}
		}
		for i, fd := range fds {
			if m, err := syscall.Read(fd, reply); err != nil || string(reply[:m]) != answer {
				t.Fatalf("client %d: got %q, %v", i, reply[:max(m, 0)], err)
			}
		}
	}
	burst(0, n/2) // also fills what the loops keep in stock
	before := heapInUse()
	burst(n/2, n)
	each := (heapInUse() - before) / int64(n-n/2)
	t.Logf("%d clients, %d bytes each", n, each)
	if each > 2048 {
		t.Errorf("each of %d idle clients takes %d bytes, want at most 2048", n, each)
	}
	if got := resident.Do("GET", "k"); got != answer {
		t.Errorf("who was there before got %q", got)
	}
	if got := s.Stats(); got.Clients != int64(n)+1 || got.Rejected != 0 {
		t.Errorf("%d clients, %d rejected", got.Clients, got.Rejected)
	}
}

// raiseFileLimit raises the limit of open files to what is wanted or as far as it may, and returns it.
func raiseFileLimit(t *testing.T, wanted int) int {
	t.Helper()
	want := uint64(wanted)
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []syscall.Rlimit{{Cur: want, Max: max(want, old.Max)}, {Cur: old.Max, Max: old.Max}} {
		if old.Cur < limit.Cur && syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) == nil {
			return int(limit.Cur)
		}
	}
	return int(old.Cur)
}

// rawDial opens connection i without any memory of the test's. Each 20,000 come from an address
// of their own, because one has less than 30,000 ports.
func rawDial(t *testing.T, i int, addr string) (fd int) {
	to, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		t.Error(err)
		return -1
	}
	fd, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Error(err)
		return -1
	}
	syscall.CloseOnExec(fd)
	sa := &syscall.SockaddrInet4{Port: to.Port}
	copy(sa.Addr[:], to.IP.To4())
	limit := syscall.NsecToTimeval(int64(clustertest.Deadline))
	syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &limit)
	if from := i / 20_000; from > 0 {
		if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, byte(1 + from)}}); err != nil {
			t.Errorf("cannot bind: %v", err)
		}
	}
	if err := syscall.Connect(fd, sa); err != nil {
		t.Errorf("cannot connect: %v", err)
	}
	return fd
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// TestReservedFiles: clients and their private connections do not take the descriptors that lanes need.
func TestReservedFiles(t *testing.T) {
	o := proxytest.Options(t, proxytest.Single(clustertest.StartRedis(t).Addr))
	o.Clients.Files = 4
	_, addr := proxytest.Start(t, o)
	blocked, a, b := clustertest.Dial(t, addr), clustertest.Dial(t, addr), clustertest.Dial(t, addr)
	blocked.Cmd("BLPOP", "q", "0")
	clustertest.Await(t, "the first client to block", func() error {
		if list := a.Do("CLIENT", "LIST"); !strings.Contains(list, "flags=b") {
			return errors.New(list)
		}
		return nil
	})
	b.Cmd("BLPOP", "q", "0")
	b.Expect("-ERR cosky-proxy has no file descriptor left for a private backend connection: too many open files (ulimit -n)\r\n")
	refused := clustertest.Dial(t, addr)
	refused.Expect("-ERR max number of clients reached\r\n")
	refused.ExpectClosed()
	b.Close()
	clustertest.Await(t, "room for another client", func() error {
		c := clustertest.Dial(t, addr)
		defer c.Close()
		c.Cmd("PING")
		if reply, err := c.TryReply(clustertest.Deadline); reply != "+PONG\r\n" {
			return fmt.Errorf("got %q, %v", reply, err)
		}
		return nil
	})
	a.Do("RPUSH", "q", "e")
	blocked.Expect("*2\r\n$1\r\nq\r\n$1\r\ne\r\n")
}

// TestOthersHaveTheirTurn: a client that sends a long pipeline is not served to its end before
// others are, neither with what the proxy answers by itself nor with what it forwards.
func TestOthersHaveTheirTurn(t *testing.T) {
	behind := clustertest.StartRedis(t)
	for _, c := range []struct {
		name, request string
		count         int
	}{
		{"own replies", "PING\r\n", 9_000},
		{"errors", "NOSUCH\r\n", 1_000},
		{"cached", clustertest.Encode("HGETALL", "ns:cfg:a"), 1_500},
		{"forwarded", clustertest.Encode("GET", "x"), 2_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := strict(t, behind, netloop.DefaultTransport)
			o.Loops, o.Clients.MaxInFlight = 1, 64
			s, addr := proxytest.Start(t, o)
			greedy, modest := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
			for range 3 { // it is cached
				greedy.Do("HGETALL", "ns:cfg:a")
			}
			modest.Do("SET", "done", "0")
			release := s.Hold(0)
			greedy.Send(strings.Repeat(c.request, c.count) + clustertest.Encode("SET", "done", "1"))
			modest.Cmd("GET", "done")
			release()
			modest.Expect("$1\r\n0\r\n")
			for range c.count {
				greedy.ReadReply()
			}
			greedy.Expect("+OK\r\n")
		})
	}
}

// TestALongReplyStepsAside: nobody waits for the rest of a long reply that comes slowly, but those
// who were behind it already, and the client that asked for it.
func TestALongReplyStepsAside(t *testing.T) {
	const size = 3 << 20
	goOn := make(chan struct{})
	f := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
		switch {
		case args[0] == "GET" && args[1] == "big":
			c.Send(fmt.Sprintf("$%d\r\n%s", size, strings.Repeat("b", size/2)))
			<-goOn
			return strings.Repeat("b", size/2) + "\r\n"
		case args[0] == "GET":
			return bulk(args[1])
		}
		return ""
	})
	o := proxytest.Options(t, proxytest.Single(f.Addr))
	o.Loops, o.Cache.Cache = 1, nil
	_, addr := proxytest.Start(t, o)
	patient, other := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
	other.Do("GET", "first")
	patient.Send(encodeAll([]string{"GET", "big"}, []string{"GET", "after"}))
	half := make([]byte, size/2)
	if err := readFull(patient, half); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		key := fmt.Sprint("k", i)
		if got := other.Do("GET", key); got != bulk(key) {
			t.Fatalf("got %q", got)
		}
	}
	close(goOn)
	rest := make([]byte, len(fmt.Sprintf("$%d\r\n\r\n", size))+size/2)
	if err := readFull(patient, rest); err != nil {
		t.Fatal(err)
	}
	patient.Expect(bulk("after"))
}

// TestBlockedClientsThatLeave: that a blocked client goes away is noticed, also behind more
// requests than are read meanwhile, and its connection to the backend is free again.
func TestBlockedClientsThatLeave(t *testing.T) {
	behind := clustertest.StartRedis(t)
	o := strict(t, behind, netloop.Epoll)
	o.Clients.RequestBuffer = 16 << 10
	s, addr := proxytest.Start(t, o)
	for _, pending := range []int{0, 1, 64 << 10} {
		c := clustertest.Dial(t, addr)
		c.Send(clustertest.Encode("BLPOP", "q", "0") + strings.Repeat("PING\r\n", pending/6))
		clustertest.Await(t, "the client to be blocked", func() error {
			if n := behind.InfoField("clients", "blocked_clients"); n != "1" {
				return fmt.Errorf("%s are", n)
			}
			return nil
		})
		if err := c.Net().(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		awaitClients(t, s, 0)
		clustertest.Await(t, "nobody to be blocked", func() error {
			if n := behind.InfoField("clients", "blocked_clients"); n != "0" {
				return fmt.Errorf("%s are", n)
			}
			return nil
		})
	}
}

// TestClientsThatMoveMuch: they get a lane of their own, so that nobody waits behind their replies.
func TestClientsThatMoveMuch(t *testing.T) {
	var mu sync.Mutex
	via := map[string]*proxytest.FakeConn{}
	big := strings.Repeat("b", 100<<10)
	f := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
		if args[0] != "GET" {
			return ""
		}
		mu.Lock()
		defer mu.Unlock()
		via[args[1]] = c
		if args[1] == "big" {
			return bulk(big)
		}
		return bulk(args[1])
	})
	o := proxytest.Options(t, proxytest.Single(f.Addr))
	o.Loops, o.Cache.Cache = 1, nil
	_, addr := proxytest.Start(t, o)
	greedy, modest := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
	clustertest.Await(t, "different ways for the two", func() error {
		greedy.Send(strings.Repeat(clustertest.Encode("GET", "big"), 30))
		for range 30 {
			greedy.Expect(bulk(big))
		}
		if got := modest.Do("GET", "k"); got != bulk("k") {
			t.Fatalf("got %q", got)
		}
		mu.Lock()
		defer mu.Unlock()
		if via["big"] == via["k"] {
			return fmt.Errorf("both are %p", via["k"])
		}
		return nil
	})
}

// TestOrderWhileLanesChange: a client that begins to move much, in the middle of its pipeline, is
// executed in order.
func TestOrderWhileLanesChange(t *testing.T) {
	behind := clustertest.StartRedis(t)
	o := strict(t, behind, netloop.DefaultTransport)
	o.Loops = 1
	_, addr := proxytest.Start(t, o)
	c := clustertest.Dial(t, addr)
	const rounds = 200
	value := func(i int) string { return strings.Repeat("v", 32<<10) + fmt.Sprint(i) }
	go func() {
		for i := range rounds {
			if _, err := c.Net().Write([]byte(encodeAll([]string{"SET", "k", value(i)}, []string{"GET", "k"}, []string{"HSET", "ns:cfg:a", "f", fmt.Sprint(i)}, []string{"HGETALL", "ns:cfg:a"}))); err != nil {
				return
			}
		}
	}()
	for i := range rounds {
		c.Expect("+OK\r\n")
		c.Expect(bulk(value(i)))
		c.ReadReply()
		c.Expect("*2\r\n" + bulk("f") + bulk(fmt.Sprint(i)))
	}
}

// TestSilentListenersAreCutOff: who does not read what it asked to be told, MONITOR's lines or
// invalidations, is cut off at the limit, and holds no more than that before.
func TestSilentListenersAreCutOff(t *testing.T) {
	behind := clustertest.StartRedis(t)
	for _, c := range []struct {
		name  string
		setup [][]string
		cause func(i int) []string
	}{
		{"MONITOR", [][]string{{"MONITOR"}}, func(int) []string { return []string{"SET", "k", strings.Repeat("v", 512<<10)} }},
		{"tracking", [][]string{{"HELLO", "3"}, {"CLIENT", "TRACKING", "ON", "BCAST"}}, func(i int) []string {
			return []string{"SET", fmt.Sprint(strings.Repeat("k", 512<<10), i), "v"}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := strict(t, behind, netloop.DefaultTransport)
			o.Loops, o.Clients.SubscriberLimit = 1, 1<<20
			s, addr := proxytest.Start(t, o)
			silent, other := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
			for _, command := range c.setup {
				silent.Do(command...)
			}
			stop := watchMemory()
			i := 0
			clustertest.Await(t, "the cut", func() error {
				i++
				if got := other.Do(c.cause(i)...); got != "+OK\r\n" {
					t.Fatalf("got %q", got)
				}
				if st := s.Stats(); st.Cut != 1 {
					if st.BufferBytes > 2<<20 {
						t.Errorf("%d bytes are held", st.BufferBytes)
					}
					return fmt.Errorf("%d clients were cut off", st.Cut)
				}
				return nil
			})
			expectGrowth(t, "a silent listener", stop, bounded)
			if got := other.Do("PING"); got != "+PONG\r\n" {
				t.Errorf("another client got %q", got)
			}
		})
	}
}

// TestNamesAreAccountedFor: what clients are called, and what they listen to, counts in buffer_memory;
// who keeps the most of it is cut off, and others are not.
func TestNamesAreAccountedFor(t *testing.T) {
	behind := clustertest.StartRedis(t)
	o := strict(t, behind, netloop.DefaultTransport)
	o.Loops, o.Clients.BufferMemory = 1, 8<<20
	s, addr := proxytest.Start(t, o)
	other := clustertest.Dial(t, addr)
	other.Do("CLIENT", "SETNAME", "other")
	held := func() int64 { return s.Stats().BufferBytes }
	base := held()
	name := strings.Repeat("n", 3<<20)
	first := clustertest.Dial(t, addr)
	first.Do("CLIENT", "SETINFO", "LIB-NAME", "x")
	first.Do("HELLO", "3", "SETNAME", name)
	if got := held() - base; got < int64(len(name)) {
		t.Errorf("a name of %d bytes counts for %d", len(name), got)
	}
	first.Do("RESET")
	if got := held() - base; got > 100 {
		t.Errorf("%d bytes are held after RESET", got)
	}
	first.Do("SUBSCRIBE", name)
	if got := held() - base; got < int64(len(name)) {
		t.Errorf("a channel's name of %d bytes counts for %d", len(name), got)
	}
	first.Do("UNSUBSCRIBE", name)
	first.Do("CLIENT", "SETNAME", name)
	second := clustertest.Dial(t, addr)
	second.Cmd("CLIENT", "SETNAME", name+name)
	clustertest.Await(t, "one to be cut off", func() error {
		if st := s.Stats(); st.Cut != 1 {
			return fmt.Errorf("%d are", st.Cut)
		}
		return nil
	})
	// It may not even have been executed.
	if got := strings.TrimPrefix(readAll(t, second), "+OK\r\n"); !strings.HasPrefix(got, "-ERR cosky-proxy has no memory for this client: ") {
		t.Errorf("it was told %q", got)
	}
	if got := other.Do("CLIENT", "GETNAME"); got != bulk("other") {
		t.Errorf("another client got %q", got)
	}
	if got := first.Do("PING"); got != "+PONG\r\n" {
		t.Errorf("the one with less got %q", got)
	}
}

// TestWhoHoldsUpNobodyIsNotCutOff: a client that pauses reading while its own transactions, or the parts of its own
// commands, are all that is behind the reply on its lane may take its time.
func TestWhoHoldsUpNobodyIsNotCutOff(t *testing.T) {
	const stall = 200 * time.Millisecond
	big := strings.Repeat("b", 16<<20)
	f := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		switch args[0] {
		case "GET":
			return bulk(big)
		case "MGET":
			return "*1\r\n$1\r\nv\r\n"
		case "MULTI":
			return "+OK\r\n"
		case "INCR":
			return "+QUEUED\r\n"
		case "EXEC":
			return "*1\r\n:1\r\n"
		}
		return ""
	})
	s, addr, _ := startFakeCluster(t, func(o *proxy.Options) {
		o.Loops, o.Cache.Cache, o.Clients.StallTimeout = 1, nil, stall
	}, f)
	c := clustertest.Dial(t, addr)
	c.Send(oneWrite([]string{"GET", "big"}, []string{"MULTI"}, []string{"INCR", "n"}, []string{"EXEC"}, []string{"MGET", "a", "b"}))
	begun := time.Now()
	clustertest.Await(t, "several times as long as a client may hold others up", func() error {
		if d := time.Since(begun); d < 4*stall {
			return fmt.Errorf("only %s have passed", d)
		}
		return nil
	})
	if n := s.Stats().Cut; n != 0 {
		t.Fatalf("%d clients were cut off", n)
	}
	c.Expect(bulk(big))
	for _, want := range []string{"+OK\r\n", "+QUEUED\r\n", "*1\r\n:1\r\n", "*2\r\n$1\r\nv\r\n$1\r\nv\r\n"} {
		c.Expect(want)
	}
}
