package proxy_test

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

// memory is what the Go runtime holds of the system at the moment.
func memory() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64() - s[1].Value.Uint64())
}

// watchMemory samples memory until stop is called, which returns the largest
// growth. The test's own buffers count, so tests keep them small.
func watchMemory() (stop func() int64) {
	debug.FreeOSMemory()
	base := memory()
	done, result := make(chan struct{}), make(chan int64)
	go func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		peak := base
		for {
			select {
			case <-tick.C:
				peak = max(peak, memory())
			case <-done:
				result <- max(peak, memory()) - base
				return
			}
		}
	}()
	return func() int64 { close(done); return <-result }
}

// expectGrowth fails the test when memory grew by more than limit bytes.
func expectGrowth(t *testing.T, what string, stop func() int64, limit int64) {
	t.Helper()
	grown := stop()
	t.Logf("%s: memory grew by %.1f MB", what, float64(grown)/(1<<20))
	if grown > limit {
		t.Errorf("%s: memory grew by %d bytes, more than %d", what, grown, limit)
	}
}

// bounded is the growth that the limits of proxytest.Options allow one client,
// doubled by the garbage collector's slack.
const bounded = 48 << 20

// pattern is an endless, position-dependent stream of bytes.
type pattern struct{ at int }

var patternBlock = func() []byte {
	b := make([]byte, 64<<10)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}()

func (p *pattern) Read(b []byte) (int, error) {
	n := copy(b, patternBlock[p.at%len(patternBlock):])
	p.at += n
	return n, nil
}

// writeSet streams a SET with a value of size bytes.
func writeSet(c *clustertest.Conn, key string, size int) error {
	if _, err := fmt.Fprintf(c.Net(), "*3\r\n$3\r\nSET\r\n%s$%d\r\n", bulk(key), size); err != nil {
		return err
	}
	if _, err := io.CopyBuffer(onlyWriter{c.Net()}, io.LimitReader(new(pattern), int64(size)), make([]byte, 64<<10)); err != nil {
		return err
	}
	_, err := io.WriteString(c.Net(), "\r\n")
	return err
}

type onlyWriter struct{ io.Writer }

// expectBody reads exactly the given bytes from the stream.
func expectBody(c net.Conn, size int) error {
	want, got := make([]byte, 64<<10), make([]byte, 64<<10)
	p := new(pattern)
	for size > 0 {
		n := min(size, len(got))
		if _, err := io.ReadFull(c, got[:n]); err != nil {
			return fmt.Errorf("%d bytes before the end: %w", size, err)
		}
		for filled := 0; filled < n; {
			m, _ := p.Read(want[filled:n])
			filled += m
		}
		if !bytes.Equal(got[:n], want[:n]) {
			return fmt.Errorf("wrong bytes, %d before the end", size)
		}
		size -= n
	}
	return nil
}

// expectBulk reads a bulk string of the pattern.
func expectBulk(c net.Conn, size int) error {
	header := fmt.Sprintf("$%d\r\n", size)
	got := make([]byte, len(header))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != header {
		return fmt.Errorf("header is %q (%w)", got, err)
	}
	if err := expectBody(c, size); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, got[:2]); err != nil || string(got[:2]) != "\r\n" {
		return fmt.Errorf("end is %q (%w)", got[:2], err)
	}
	return nil
}

// oneLoop starts a proxy whose clients all share one loop, and so its lanes.
func oneLoop(t *testing.T, transport netloop.Transport) (behind *clustertest.Redis, s *proxy.Server, addr string) {
	behind = clustertest.StartRedis(t)
	o := strict(t, behind, transport)
	o.Loops = 1
	s, addr = proxytest.Start(t, o)
	return behind, s, addr
}

// TestValuesOfAllSizes: values pass in both directions byte by byte, in memory
// that does not depend on their size.
func TestValuesOfAllSizes(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		_, s, addr := oneLoop(t, transport)
		c, other := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
		stop := watchMemory()
		for _, size := range []int{1, 100, 16 << 10, 32<<10 - 10, 32 << 10, 64 << 10, 300_000, 1<<20 - 40, 1 << 20, 5_000_001, 20 << 20, 100 << 20} {
			c.Net().SetDeadline(time.Now().Add(clustertest.Deadline))
			failed := make(chan error, 1)
			go func() { failed <- writeSet(c, "v", size) }()
			c.Expect("+OK\r\n")
			if err := <-failed; err != nil {
				t.Fatalf("SET of %d bytes: %v", size, err)
			}
			other.Cmd("STRLEN", "v")
			other.Expect(fmt.Sprintf(":%d\r\n", size))
			c.Net().SetDeadline(time.Now().Add(clustertest.Deadline))
			c.Send(encodeAll([]string{"GET", "v"}))
			if err := expectBulk(c.Net(), size); err != nil {
				t.Fatalf("GET of %d bytes: %v", size, err)
			}
		}
		expectGrowth(t, "values up to 100 MB", stop, bounded)
		if n := s.Stats().Pins; n > 8 {
			t.Errorf("%d private connections are left", n)
		}
	})
}

// TestLongReplies: replies of many elements are streamed, cached keys or not.
func TestLongReplies(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind, _, addr := oneLoop(t, transport)
		for part := range 10 { // one script for all of it may take longer than a client waits
			behind.Do("EVAL", `for i = ARGV[1] * 20000, ARGV[1] * 20000 + 19999 do redis.call('HSET', KEYS[1], 'field ' .. i, i); redis.call('HSET', KEYS[2], 'field ' .. i, i) end
				for i = ARGV[1] * 50000, ARGV[1] * 50000 + 49999 do redis.call('RPUSH', KEYS[3], 'element ' .. i) end`, "3", "hash", "ns:cfg:big", "list", part)
		}
		direct, c := clustertest.Dial(t, behind.Addr), clustertest.Dial(t, addr)
		stop := watchMemory()
		for _, command := range [][]string{{"HGETALL", "hash"}, {"HGETALL", "ns:cfg:big"}, {"HGETALL", "ns:cfg:big"}, {"HKEYS", "hash"}, {"LRANGE", "list", "0", "-1"}} {
			n := replyElements[command[0]]
			want, got := digestArray(t, direct, n, command), digestArray(t, c, n, command)
			if got != want {
				t.Errorf("%v differs from a direct connection's", command)
			}
			c.Send("PING\r\n")
			if b := make([]byte, 7); readFull(c, b) != nil || string(b) != "+PONG\r\n" {
				t.Errorf("after %v: got %q", command, b)
			}
		}
		expectGrowth(t, "replies of up to 500,000 elements", stop, bounded)
	})
}

var replyElements = map[string]int{"HGETALL": 400_000, "HKEYS": 200_000, "LRANGE": 500_000}

func readFull(c *clustertest.Conn, b []byte) error { _, err := io.ReadFull(c.Net(), b); return err }

// digestArray sends a command whose reply is a flat array of n bulk strings, and
// digests it as it comes.
func digestArray(t *testing.T, c *clustertest.Conn, n int, command []string) uint64 {
	t.Helper()
	c.Net().SetDeadline(time.Now().Add(clustertest.Deadline))
	c.Send(clustertest.Encode(command...))
	h, buf := fnv.New64a(), make([]byte, 64<<10)
	for ends := 0; ends < 2*n+1; { // a line per length and per element
		m, err := c.Net().Read(buf)
		if err != nil {
			t.Fatalf("%v: %v after %d lines", command, err, ends)
		}
		h.Write(buf[:m])
		ends += bytes.Count(buf[:m], []byte("\n"))
	}
	return h.Sum64()
}

// TestNeverReading: a client that sends without end and never reads is stopped by
// back-pressure: memory stays bounded and others are served.
func TestNeverReading(t *testing.T) {
	for _, tt := range []struct{ name, request string }{
		{"small replies", clustertest.Encode("SET", "k", strings.Repeat("v", 1000))},
		{"large replies", clustertest.Encode("GET", "kb")},
		{"cached replies", clustertest.Encode("HGETALL", "ns:cfg:kb")},
		{"own replies", clustertest.Encode("PING", strings.Repeat("p", 1000))},
		{"errors", clustertest.Encode("NOSUCH")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onTransports(t, func(t *testing.T, transport netloop.Transport) {
				behind, s, addr := oneLoop(t, transport)
				behind.Do("SET", "kb", strings.Repeat("x", 1000))
				behind.Do("HSET", "ns:cfg:kb", "f", strings.Repeat("x", 1000))
				silent, other := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
				stop := watchMemory()
				batch := []byte(strings.Repeat(tt.request, 1+(64<<10)/len(tt.request)))
				ended := make(chan struct{})
				go func() { // until it has sent 64 MB or the test closes the connection
					defer close(ended)
					for sent := 0; sent < 64<<20; sent += len(batch) {
						if _, err := silent.Net().Write(batch); err != nil {
							return
						}
					}
				}()
				for i := range 400 {
					other.Send(encodeAll([]string{"SET", "n", fmt.Sprint(i)}, []string{"GET", "n"}))
					other.Expect("+OK\r\n")
					other.Expect(bulk(fmt.Sprint(i)))
				}
				expectGrowth(t, tt.name, stop, bounded)
				setLinger0(silent)
				silent.Close()
				<-ended
				awaitClients(t, s, 1)
				other.Cmd("PING")
				other.Expect("+PONG\r\n")
			})
		})
	}
}

// TestDyingUpload: a client that dies in the middle of a large value stores
// nothing and harms nobody.
func TestDyingUpload(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind, s, addr := oneLoop(t, transport)
		other := clustertest.Dial(t, addr)
		for _, reset := range []bool{false, true} {
			stop := watchMemory()
			c := clustertest.Dial(t, addr)
			fmt.Fprintf(c.Net(), "*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$%d\r\n", 40<<20)
			if _, err := io.CopyBuffer(onlyWriter{c.Net()}, io.LimitReader(new(pattern), 20<<20), make([]byte, 64<<10)); err != nil {
				t.Fatal(err)
			}
			other.Send(encodeAll([]string{"SET", "n", "1"}, []string{"EXISTS", "half"}))
			other.Expect("+OK\r\n")
			other.Expect(":0\r\n")
			if reset {
				setLinger0(c)
			}
			c.Close()
			awaitClients(t, s, 1)
			clustertest.Await(t, "the end of the private connection", func() error {
				if n := s.Stats().Pins; n != 0 {
					return fmt.Errorf("%d are left", n)
				}
				return nil
			})
			expectGrowth(t, "half an upload", stop, bounded)
			other.Cmd("EXISTS", "half")
			other.Expect(":0\r\n")
			if got := behind.Text("EXISTS", "half"); got != "0" {
				t.Errorf("half a value was stored")
			}
		}
	})
}

// TestUploadRefused: an upload that the backend refuses is answered once, and the
// connection stays in step.
func TestUploadRefused(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind, _, addr := oneLoop(t, transport)
		behind.Do("RPUSH", "list", "x")
		c := clustertest.Dial(t, addr)
		value := strings.Repeat("v", 3<<20)
		c.Send(encodeAll([]string{"APPEND", "list", value}, []string{"PING"}, []string{"SET", "k", value, "NOSUCH"}, []string{"PING"}, []string{"SET", "k", value, "x", "y", "z"}, []string{"NOSUCH", value}, []string{"PING"}, []string{"GET", value}, []string{"MGET", value, "list", value}, []string{"ECHO", value}, []string{"PING"}))
		c.Expect("-WRONGTYPE Operation against a key holding the wrong kind of value\r\n")
		c.Expect("+PONG\r\n")
		c.Expect("-ERR syntax error\r\n")
		c.Expect("+PONG\r\n")
		c.Expect("-ERR syntax error\r\n")
		if got := c.ReadReply(); !strings.HasPrefix(got, "-ERR unknown command 'NOSUCH', with args beginning with: 'vvv") {
			t.Errorf("got %.100q", got)
		}
		c.Expect("+PONG\r\n")
		c.Expect("$-1\r\n")
		c.Expect("*3\r\n$-1\r\n$-1\r\n$-1\r\n")
		c.Expect(bulk(value))
		c.Expect("+PONG\r\n")
		c.Send(fmt.Sprintf("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%sxx\r\nPING\r\n", len(value), value))
		c.Expect("+OK\r\n") // Redis looks at the length alone
		c.Expect("+PONG\r\n")
		c.Cmd("STRLEN", "k")
		c.Expect(fmt.Sprintf(":%d\r\n", len(value)))
	})
}

// TestSlowReader: a client that does not take a large reply costs bounded memory,
// others on the same loop are served, those queued behind it on the backend
// connection too, and the slow one gets the whole reply or loses its connection.
func TestSlowReader(t *testing.T) {
	const size = 50 << 20
	for _, waiting := range []bool{false, true} {
		t.Run(fmt.Sprintf("others wait behind it: %v", waiting), func(t *testing.T) {
			onTransports(t, func(t *testing.T, transport netloop.Transport) {
				_, s, addr := oneLoop(t, transport)
				slow, other := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
				go writeSet(other, "big", size)
				other.Expect("+OK\r\n")
				stop := watchMemory()
				if waiting {
					// Frozen clients aside, the loop reads both requests before any reply.
					slow.Send(encodeAll([]string{"GET", "big"}))
					other.Send(encodeAll([]string{"GET", "none"}))
					other.Expect("$-1\r\n")
				} else {
					slow.Send(encodeAll([]string{"GET", "big"}))
					clustertest.Await(t, "the reply to be held up", func() error {
						if n := s.Stats().BufferBytes; n < 1<<20 {
							return fmt.Errorf("%d bytes are buffered", n)
						}
						return nil
					})
				}
				slow.Net().SetDeadline(time.Now().Add(clustertest.Deadline))
				if err := readFull(slow, make([]byte, len("$52428800\r\n"))); err != nil {
					t.Fatal(err)
				}
				for i := range 300 {
					other.Send(encodeAll([]string{"SET", "n", fmt.Sprint(i)}, []string{"GET", "n"}))
					other.Expect("+OK\r\n")
					other.Expect(bulk(fmt.Sprint(i)))
				}
				expectGrowth(t, "an unread reply of 50 MB", stop, bounded)
				slow.Net().SetDeadline(time.Now().Add(clustertest.Deadline))
				err := expectBody(slow.Net(), size)
				if cut := s.Stats().Cut; (err != nil) != (cut > 0) || err != nil && !waiting {
					t.Errorf("the slow client's reply ended with %v, %d clients were cut off", err, cut)
				}
			})
		})
	}
}

// TestBurstIsGivenBack: what a burst of pipelines needed is free again when it is
// over.
func TestBurstIsGivenBack(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind, s, addr := oneLoop(t, transport)
		behind.Do("SET", "k", strings.Repeat("x", 10<<10))
		debug.FreeOSMemory()
		base := memory()
		stop := watchMemory()
		var all sync.WaitGroup
		for range 30 {
			c := clustertest.Dial(t, addr)
			all.Go(func() {
				c.Net().SetDeadline(time.Now().Add(clustertest.Deadline))
				go c.Net().Write([]byte(strings.Repeat(clustertest.Encode("GET", "k"), 400)))
				io.CopyN(io.Discard, c.Net(), 400*(10<<10+10))
				c.Close()
			})
		}
		all.Wait()
		expectGrowth(t, "30 pipelines", stop, 160<<20) // buffer_memory and the garbage collector's slack
		awaitClients(t, s, 0)
		clustertest.Await(t, "the memory of the burst to be free", func() error {
			debug.FreeOSMemory()
			if left := memory() - base; left > 16<<20 {
				return fmt.Errorf("%d bytes are still held", left)
			}
			return nil
		})
	})
}

// TestLargeRequests sends requests larger than request_buffer, of every kind, to
// both twins, in the middle of pipelines.
func TestLargeRequests(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		v := strings.Repeat("large value ", 150_000)
		half := v[:len(v)/2+100]
		script := "--" + strings.Repeat("c", 1<<20) + "\nreturn {KEYS[1], #ARGV[1]}"
		many := []string{"MSET"}
		for i := range 60_000 {
			many = append(many, fmt.Sprint("key", i), fmt.Sprint("value ", i))
		}
		for _, proto := range []int{2, 3} {
			p := w.dial(t, proto)
			p.do([]string{"FLUSHALL"}, []string{"INCR", "n"}, []string{"SET", "k", v}, []string{"STRLEN", "k"}, []string{"INCR", "n"})
			p.do([]string{"HSET", "ns:cfg:app", "f", half, "g", half}, []string{"HGETALL", "ns:cfg:app"}, []string{"HGET", "ns:cfg:app", "g"}, []string{"HSET", "ns:cfg:app", "f", "small", "g", "small"}, []string{"HGETALL", "ns:cfg:app"})
			p.do([]string{"SELECT", "3"}, []string{"SETRANGE", "k", "3", v}, []string{"GETRANGE", "k", "0", "20"}, []string{"SELECT", "0"}, []string{"GETRANGE", "k", "0", "20"})
			p.do(many, []string{"DBSIZE"}, []string{"MGET", "key0", "key59999"}, []string{"GETSET", "k", half}, []string{"GETDEL", "k"})
			p.do([]string{"EVAL", script, "1", "k", v}, []string{"EVAL", "return #ARGV[1]", "0", v}, []string{"EVALSHA", strings.Repeat("e", 40), "0", v}, []string{"SCRIPT", "LOAD", script})
			p.do([]string{"MULTI"}, []string{"SET", "k", v}, []string{"STRLEN", "k"}, []string{"EXEC"}, []string{"WATCH", "k"}, []string{"SET", "k", v}, []string{"MULTI"}, []string{"GET", "n"}, []string{"EXEC"})
			p.do([]string{"SET", "n", "x", v}, []string{"GET", "k", v}, []string{v}, []string{"CONFIG", "SET", "nosuch", v}, []string{"RPUSH", "l", v, v}, []string{"LINDEX", "l", "1"}, []string{"PUBLISH", "ch", v}, []string{"PING", v}, []string{"BLPOP", "none", v, "0.01"}, []string{"PING"})
		}
	})
}

// TestBackendDiesDuringUpload: the client is told, the rest of its request is
// skipped, and the connection stays in step.
func TestBackendDiesDuringUpload(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind, s, addr := oneLoop(t, transport)
		c := clustertest.Dial(t, addr)
		for range 2 {
			const size = 40 << 20
			half, dead := make(chan struct{}), make(chan struct{})
			failed := make(chan error, 1)
			go func() {
				fmt.Fprintf(c.Net(), "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n", size)
				p, buf := new(pattern), make([]byte, 64<<10)
				_, err := io.CopyBuffer(onlyWriter{c.Net()}, io.LimitReader(p, size/2), buf)
				close(half)
				<-dead
				if err == nil {
					_, err = io.CopyBuffer(onlyWriter{c.Net()}, io.LimitReader(p, size/2), buf)
				}
				io.WriteString(c.Net(), "\r\nPING\r\n")
				failed <- err
			}()
			<-half
			behind.Stop()
			close(dead)
			if got := c.ReadReply(); !strings.HasPrefix(got, "-ERR cosky-proxy") {
				t.Errorf("got %.200q, want an error of the proxy's", got)
			}
			c.Expect("+PONG\r\n")
			if err := <-failed; err != nil {
				t.Fatal(err)
			}
			if n := s.Stats().Pins; n != 0 {
				t.Errorf("%d private connections are left", n)
			}
			behind.Restart()
			clustertest.Await(t, "the backend's return", func() error {
				if got := c.Do("SET", "k", "w"); got != "+OK\r\n" {
					return fmt.Errorf("got %q", got)
				}
				return nil
			})
		}
	})
}

// TestBackpressureNeverStalls mixes replies of all sizes that are forwarded,
// fetched, cached, and made by the proxy itself, under limits that each of them
// meets: every pipeline comes to its end, with every reply in its place.
func TestBackpressureNeverStalls(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind := clustertest.StartRedis(t)
		o := strict(t, behind, transport)
		o.Loops, o.Clients.OutputLimit, o.Clients.MaxInFlight, o.Clients.RequestBuffer = 1, 64<<10, 16, 64<<10
		_, addr := proxytest.Start(t, o)
		values := map[string]string{}
		for _, size := range []int{1, 20 << 10, 33 << 10, 40 << 10, 70 << 10, 300 << 10} {
			v := strings.Repeat("v", size)
			values[fmt.Sprint(size)] = v
			behind.Do("SET", fmt.Sprint(size), v)
			behind.Do("HSET", fmt.Sprint("ns:cfg:", size), "f", v)
		}
		r := rand.New(rand.NewPCG(5, 6))
		for round := range 60 {
			c := clustertest.Dial(t, addr)
			var raw strings.Builder
			var want []string
			for range 1 + r.IntN(40) {
				size := []string{"1", "20480", "33792", "40960", "71680", "307200"}[r.IntN(6)]
				v := values[size]
				switch r.IntN(7) {
				case 0, 1:
					raw.WriteString(clustertest.Encode("GET", size))
					want = append(want, bulk(v))
				case 2:
					raw.WriteString(clustertest.Encode("PING", v))
					want = append(want, bulk(v))
				case 3:
					raw.WriteString(clustertest.Encode("HGETALL", "ns:cfg:"+size))
					want = append(want, "*2\r\n$1\r\nf\r\n"+bulk(v))
				case 4:
					raw.WriteString(encodeAll([]string{"MULTI"}, []string{"GET", size}, []string{"EXEC"}))
					want = append(want, "+OK\r\n", "+QUEUED\r\n", "*1\r\n"+bulk(v))
				case 5:
					raw.WriteString(clustertest.Encode("SET", "w", v))
					want = append(want, "+OK\r\n")
				case 6:
					raw.WriteString(encodeAll([]string{"RPUSH", "l", "e"}, []string{"BLPOP", "l", "0"}))
					want = append(want, ":1\r\n", "*2\r\n$1\r\nl\r\n$1\r\ne\r\n")
				}
			}
			go c.Net().Write([]byte(raw.String()))
			for i, w := range want {
				if got := c.ReadReply(); got != w {
					t.Fatalf("round %d, reply %d of %d: got %d bytes %.60q, want %d bytes %.60q", round, i, len(want), len(got), got, len(w), w)
				}
			}
			c.Close()
		}
	})
}

// TestMessagesBehindALongReply: RESP3 messages that wait for the end of a reply,
// more than output_limit of them, do not keep the reply from going on.
func TestMessagesBehindALongReply(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind, _, addr := oneLoop(t, transport)
		const size, messages = 24 << 20, 12
		behind.Do("SET", "big", strings.Repeat("b", size))
		c := clustertest.Dial(t, addr)
		c.Do("HELLO", "3")
		c.Do("SUBSCRIBE", "ch")
		c.Cmd("GET", "big")
		m := strings.Repeat("m", 256<<10)
		for range messages {
			behind.Do("PUBLISH", "ch", m)
		}
		replies := 0
		for range messages + 1 {
			switch got := c.ReadReply(); {
			case got == ">3\r\n$7\r\nmessage\r\n$2\r\nch\r\n"+bulk(m):
			case len(got) == len(bulk(strings.Repeat("b", size))):
				replies++
			default:
				t.Fatalf("got %d bytes %.100q", len(got), got)
			}
		}
		if replies != 1 {
			t.Errorf("got the reply %d times", replies)
		}
	})
}
