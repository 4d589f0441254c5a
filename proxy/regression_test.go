package proxy_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

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
		grown := watchMemory()
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
			if answer := <-ended; strings.HasPrefix(answer, "-ERR cosky-proxy has no memory for this request") {
				explained++
			}
		}
		if explained == 0 {
			t.Error("nobody was told why")
		}
		if cut := s.Stats().Cut; cut < clients-1 {
			t.Errorf("%d clients were cut off, want %d at least", cut, clients-1)
		}
		expectGrowth(t, "8 clients with 30 MB each", grown, 256<<20)
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
		base := memory()
		const clients, size, missing = 150, 900 << 10, 1000
		value := strings.Repeat("v", size)
		var all []*clustertest.Conn
		for i := range clients {
			c := clustertest.Dial(t, addr)
			request := clustertest.Encode("SET", fmt.Sprint("k", i), value)
			c.Send(request[:len(request)-missing])
			all = append(all, c)
		}
		clustertest.Await(t, "what is held to be streamed", func() error {
			if held := s.Stats().BufferBytes; held > o.Clients.BufferMemory {
				return fmt.Errorf("%d bytes are held", held)
			}
			return nil
		})
		if grown := memory() - base; grown > 150<<20 {
			t.Errorf("memory grew by %d MB", grown>>20)
		}
		for i, c := range all {
			request := clustertest.Encode("SET", fmt.Sprint("k", i), value)
			c.Send(request[len(request)-missing:])
			c.Expect("+OK\r\n")
		}
		if n := behind.Do("DBSIZE"); n != int64(clients) {
			t.Errorf("%v keys are stored, want %d", n, clients)
		}
	})
}
