package proxy_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

// awaitReceived waits until the proxy has read n bytes from its clients.
func awaitReceived(t *testing.T, received func() uint64, n int) {
	t.Helper()
	clustertest.Await(t, "the proxy to read the requests", func() error {
		if got := received(); got < uint64(n) {
			return fmt.Errorf("it has read %d bytes of %d", got, n)
		}
		return nil
	})
}

// TestBehindSlowReaders: those whose commands are in flight behind clients that read
// drop by drop, or one after another not at all, wait for stall_timeout
// altogether, not for each of them.
func TestBehindSlowReaders(t *testing.T) {
	for _, tt := range []struct {
		name     string
		readers  int
		requests int // each, for 1 MB
		drops    bool
	}{{"one that reads drop by drop", 1, 100, true}, {"many that do not read", 40, 8, false}} {
		t.Run(tt.name, func(t *testing.T) {
			onTransports(t, func(t *testing.T, transport netloop.Transport) {
				behind := clustertest.StartRedis(t)
				o := strict(t, behind, transport)
				o.Loops, o.Clients.OutputLimit, o.Clients.StallTimeout = 1, 64<<10, time.Second
				s, addr := proxytest.Start(t, o)
				behind.Do("SET", "big", strings.Repeat("b", 1<<20))
				other := clustertest.Dial(t, addr)
				other.Cmd("GET", "none")
				other.Expect("$-1\r\n")

				// The backend answers only when everything is queued behind the slow ones.
				behind.Freeze()
				sent := int(s.Stats().BytesIn)
				ended := make(chan struct{})
				defer close(ended)
				for range tt.readers {
					slow := clustertest.Dial(t, addr)
					requests := strings.Repeat(clustertest.Encode("GET", "big"), tt.requests)
					slow.Send(requests)
					sent += len(requests)
					if tt.drops {
						go drip(slow, ended)
					} else {
						slow.Net().(*net.TCPConn).SetReadBuffer(4 << 10)
					}
				}
				received := func() uint64 { return s.Stats().BytesIn }
				awaitReceived(t, received, sent)
				other.Cmd("GET", "none")
				awaitReceived(t, received, sent+1)
				behind.Thaw()
				other.Expect("$-1\r\n")
			})
		})
	}
}

// drip reads about 2.5 MB/s: enough to show progress, but 100 MB take longer than
// clustertest.Deadline.
func drip(c *clustertest.Conn, ended <-chan struct{}) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	b := make([]byte, 128<<10)
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
			if _, err := io.ReadFull(c.Net(), b); err != nil {
				return
			}
		}
	}
}

// TestAmplifiedReplies: short requests whose long replies the proxy composes itself
// cost no more memory than forwarded ones when nobody reads them.
func TestAmplifiedReplies(t *testing.T) {
	for _, tt := range []struct {
		name    string
		command []string
		clients int
	}{
		{"reads that wait for one fetch", []string{"HGETALL", "ns:cfg:big"}, 0},
		{"client lists", []string{"CLIENT", "LIST"}, 800},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onTransports(t, func(t *testing.T, transport netloop.Transport) {
				behind, s, addr := oneLoop(t, transport)
				for range tt.clients {
					clustertest.Dial(t, addr)
				}
				silent, other := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
				other.Do("HGETALL", "ns:cfg:other") // opens the fetch lane
				clustertest.Await(t, "a fetch", func() error {
					if other.Do("HGETALL", "ns:cfg:other"); s.Stats().Misses == 0 {
						return fmt.Errorf("there was none")
					}
					return nil
				})
				behind.Do("HSET", "ns:cfg:big", "f", strings.Repeat("x", 900_000))
				stop := watchMemory()
				silent.Send(strings.Repeat(clustertest.Encode(tt.command...), 500))
				clustertest.Await(t, "replies", func() error {
					if n := s.Stats().BufferBytes; n == 0 {
						return fmt.Errorf("nothing waits for the silent client")
					}
					return nil
				})
				for i := range 300 {
					other.Send(encodeAll([]string{"SET", "n", fmt.Sprint(i)}, []string{"GET", "n"}))
					other.Expect("+OK\r\n")
					other.Expect(bulk(fmt.Sprint(i)))
				}
				expectGrowth(t, tt.name, stop, bounded)
			})
		})
	}
}

// TestEndlessTransaction: many short commands inside MULTI count for what they take,
// not for the few bytes they have.
func TestEndlessTransaction(t *testing.T) {
	behind := clustertest.StartRedis(t)
	o := strict(t, behind, netloop.Goroutine)
	o.Loops, o.Clients.MaxRequest = 1, 4<<20
	_, addr := proxytest.Start(t, o)
	c := clustertest.Dial(t, addr)
	stop := watchMemory()
	c.Do("MULTI")
	const batch = 1000
	refused := false
	for range 100 {
		c.Send(strings.Repeat(clustertest.Encode("PING"), batch))
		for range batch {
			switch got := c.ReadReply(); {
			case got == "+QUEUED\r\n" && !refused:
			case strings.HasPrefix(got, "-ERR the transaction exceeds clients.max_request "):
				refused = true
			default:
				t.Fatalf("got %q", got)
			}
		}
	}
	if !refused {
		t.Errorf("%d commands were queued, whatever clients.max_request says", 100*batch)
	}
	c.Cmd("EXEC")
	c.Expect("-EXECABORT Transaction discarded because of previous errors.\r\n")
	expectGrowth(t, "an endless transaction", stop, bounded)
}

// TestUnfinishedRequestsShareTheBudget: requests that cannot be streamed are held,
// but not more of them than clients.buffer_memory allows; who must go reads why.
func TestUnfinishedRequestsShareTheBudget(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind := clustertest.StartRedis(t)
		o := strict(t, behind, transport)
		o.Clients.BufferMemory = 48 << 20
		s, addr := proxytest.Start(t, o)
		const clients, size = 8, 30 << 20
		piece := make([]byte, 1<<20)
		ended := make(chan string, clients)
		for range clients {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			go func() {
				// The key never ends, and the cache has to see it whole.
				fmt.Fprintf(c, "*2\r\n$7\r\nHGETALL\r\n$%d\r\n", 60<<20)
				for range size / len(piece) {
					c.Write(piece) // fails for those that are cut off
				}
			}()
			go func() {
				answer, _ := io.ReadAll(c)
				ended <- string(answer)
			}()
		}
		// At most one fits.
		explained := 0
		for range clients - 1 {
			if answer := <-ended; strings.HasPrefix(answer, "-ERR cosky-proxy has no memory for this client") {
				explained++
			}
		}
		if explained == 0 {
			t.Error("nobody was told why")
		}
		if cut := s.Stats().Cut; cut < clients-1 {
			t.Errorf("%d clients were cut off, want %d at least", cut, clients-1)
		}
		clustertest.Await(t, "what is held to fit the budget", func() error {
			if held := s.Stats().BufferBytes; held > o.Clients.BufferMemory {
				return fmt.Errorf("%d bytes are held", held)
			}
			return nil
		})
		other := clustertest.Dial(t, addr)
		if got := other.Do("PING"); got != "+PONG\r\n" {
			t.Errorf("another client gets %q", got)
		}
	})
}

// TestManySlowUploads: requests that are each below request_buffer are streamed when
// together they would be too much, and all of them succeed.
func TestManySlowUploads(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind := clustertest.StartRedis(t)
		o := strict(t, behind, transport)
		o.Clients.BufferMemory = 16 << 20
		s, addr := proxytest.Start(t, o)
		const clients, size, missing = 150, 900 << 10, 1000
		value := strings.Repeat("v", size) + "\r\n" // shared, so that the test itself needs little memory
		var all []*clustertest.Conn
		for i := range clients {
			c := clustertest.Dial(t, addr)
			key := fmt.Sprint("k", i)
			c.Send(fmt.Sprintf("*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n", len(key), key, size))
			io.WriteString(c.Net(), value[:size-missing])
			all = append(all, c)
		}
		clustertest.Await(t, "what is held to be streamed", func() error {
			if held := s.Stats().BufferBytes; held > o.Clients.BufferMemory {
				return fmt.Errorf("%d bytes are held", held)
			}
			return nil
		})
		for _, c := range all {
			c.Send(value[size-missing:])
			c.Expect("+OK\r\n")
		}
		if n := behind.Do("DBSIZE"); n != int64(clients) {
			t.Errorf("%v keys are stored, want %d", n, clients)
		}
	})
}

// TestHugeRequestsAreStreamedAtOnce: what will outgrow request_buffer is not collected up to it first.
func TestHugeRequestsAreStreamedAtOnce(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind := clustertest.StartRedis(t)
		o := strict(t, behind, transport)
		o.Clients.RequestBuffer = 1 << 20
		s, addr := proxytest.Start(t, o)
		const size, first = 2 << 20, 512 << 10
		value := strings.Repeat("v", size)
		c := clustertest.Dial(t, addr)
		c.Send(fmt.Sprintf("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%s", size, value[:first]))
		clustertest.Await(t, "half of what may be collected to be passed on", func() error {
			if st := s.Stats(); st.BytesIn < first || st.BufferBytes > first/4 {
				return fmt.Errorf("%d bytes of %d are held", st.BufferBytes, st.BytesIn)
			}
			return nil
		})
		c.Send(value[first:] + "\r\n")
		c.Expect("+OK\r\n")
		if n := behind.Do("STRLEN", "k"); n != int64(size) {
			t.Errorf("the value has %v bytes, want %d", n, size)
		}
	})
}

// TestLimitsFollowTheBudget: a client that connected before memory became tight, and
// reads as fast as it can, is neither slowed down to the timer nor cut off.
func TestLimitsFollowTheBudget(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind := clustertest.StartRedis(t)
		o := strict(t, behind, transport)
		o.Loops, o.Clients.BufferMemory, o.Clients.StallTimeout = 1, 4<<20, 2*time.Second
		s, addr := proxytest.Start(t, o)
		const size, gets = 30000, 200
		behind.Do("SET", "medium", strings.Repeat("m", size))
		reader, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		if _, err := io.WriteString(reader, clustertest.Encode("PING")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, reader, int64(len("+PONG\r\n"))); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			c := clustertest.Dial(t, addr)
			c.Cmd("MULTI")
			c.Expect("+OK\r\n")
			c.Cmd("SET", "k", strings.Repeat("v", 900<<10))
			c.Expect("+QUEUED\r\n")
		}
		clustertest.Await(t, "the limits to shrink", func() error {
			if held := s.Stats().BufferBytes; held < o.Clients.BufferMemory/2 {
				return fmt.Errorf("only %d bytes are held", held)
			}
			return nil
		})
		neighbour := clustertest.Dial(t, addr)
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				default:
					neighbour.Do("GET", "none")
				}
			}
		}()
		// The limits shrink from tick to tick; the rounds outlast them.
		want := int64(gets * len(fmt.Sprintf("$%d\r\n%s\r\n", size, strings.Repeat("m", size))))
		for range 300 {
			go io.WriteString(reader, strings.Repeat(clustertest.Encode("GET", "medium"), gets))
			if n, err := io.CopyN(io.Discard, reader, want); err != nil {
				t.Fatalf("the reader got %d bytes of %d: %v", n, want, err)
			}
		}
		close(stop)
		<-stopped
		if cut := s.Stats().Cut; cut != 0 {
			t.Errorf("%d clients were cut off", cut)
		}
	})
}

// TestReadersDoNotWaitInACircle: two clients, whose replies come from three shards in
// another order than they asked in, each hold up a shard that the other one waits for.
func TestReadersDoNotWaitInACircle(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		const x, y, z = 0, 1, 2
		var shards [3]*proxytest.Fake
		asked := make(chan *proxytest.FakeConn, 16)
		for i := range shards {
			shards[i] = proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
				if args[0] == "GET" {
					asked <- c
				}
				return ""
			})
		}
		topology := proxytest.FixedTo(proxytest.Shards(1, shards[x].Addr, shards[y].Addr, shards[z].Addr))
		o := proxytest.Options(t, topology)
		o.Transport, o.Backend.Mode, o.Loops = transport, cluster.Cluster, 1
		o.Clients.OutputLimit, o.Clients.StallTimeout = 64<<10, time.Second
		s, addr := proxytest.Start(t, o)

		var conns [3]*proxytest.FakeConn // by shard
		get := func(c *clustertest.Conn, shard int) {
			c.Cmd("GET", keyOf("k", shard))
			conns[shard] = <-asked // in the proxy's hands, and sent
		}
		// answer returns when the proxy has read enough of the reply to hold the shard.
		answer := func(shard int, reply string) {
			conns[shard].Send(reply)
			clustertest.Await(t, "the proxy to read the reply", func() error {
				for _, n := range s.Stats().Nodes {
					if n.Addr == shards[shard].Addr && n.BytesIn > uint64(o.Clients.OutputLimit) {
						return nil
					}
				}
				return fmt.Errorf("it has not")
			})
		}
		a, b := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
		get(a, z)
		get(a, y)
		get(b, y)
		get(b, x)
		get(a, x)
		get(a, z)
		small, large := bulkOf("small"), bulkOf(strings.Repeat("l", 100<<10))
		answer(y, large)             // to a, whose head waits for z: y is held
		answer(x, large)             // to b, whose head waits for y: x is held
		conns[z].Send(small + large) // to a, whose head waits for x now, with more behind it
		conns[x].Send(small)
		conns[y].Send(small)
		for _, want := range []string{small, large, small, large} {
			a.Expect(want)
		}
		b.Expect(small)
		b.Expect(large)
		if cut := s.Stats().Cut; cut != 0 {
			t.Errorf("%d clients were cut off", cut)
		}
	})
}
