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
