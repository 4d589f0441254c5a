package proxy_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/dial"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

// TestDesktopTools (HS-07): what graphical clients ask when they connect and when they
// list keys, has replies of Redis' form, and the connection stays usable.
func TestDesktopTools(t *testing.T) {
	tests := []struct {
		command string
		want    string // the beginning of the reply
	}{
		{"MODULE LIST", "*0\r\n"},
		{"CLUSTER INFO", "-ERR This instance has cluster support disabled\r\n"},
		{"CLIENT LIST", "$"},
		{"DBSIZE", ":2\r\n"},
		{"MEMORY USAGE k", ":"},
		{"MEMORY USAGE none", "$-1\r\n"},
		{"SLOWLOG GET 10", "*"},
		{"COMMAND COUNT", ":"},
		{"COMMAND INFO nosuch", "*1\r\n$-1\r\n"},
		{"CONFIG GET databases", "*2\r\n$9\r\ndatabases\r\n$2\r\n16\r\n"},
		{"CONFIG GET nosuch", "*0\r\n"},
		{"INFO keyspace", "$"},
		{"SCAN 0 COUNT 100", "*2\r\n$1\r\n0\r\n*2\r\n"},
		{"TYPE k", "+string\r\n"},
		{"TYPE ns:cfg:app", "+hash\r\n"},
		{"TTL k", ":-1\r\n"},
		{"OBJECT ENCODING k", "$6\r\nembstr\r\n"},
	}
	w := startTwins(t, netloop.DefaultTransport)
	c := clustertest.Dial(t, w.proxy)
	c.Do("SET", "k", "v")
	c.Do("HSET", "ns:cfg:app", "f", "v")
	for _, tt := range tests {
		if got := c.Do(strings.Fields(tt.command)...); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: got %.200q, want %q", tt.command, got, tt.want)
		}
		if got := c.Do("PING"); got != "+PONG\r\n" {
			t.Fatalf("PING after %s: got %q", tt.command, got)
		}
	}
}

// TestSplitCommandsLeaveNothing (BG-02): commands over several shards, one of which fails
// at times, give all their memory back.
func TestSplitCommandsLeaveNothing(t *testing.T) {
	var addrs []string
	var shards []*clustertest.Redis
	for range 3 {
		r := clustertest.StartRedis(t)
		addrs, shards = append(addrs, r.Addr), append(shards, r)
	}
	o := proxytest.Options(t, proxytest.FixedTo(proxytest.Shards(1, addrs...)))
	o.Backend.Mode = cluster.Cluster
	_, addr := proxytest.Start(t, o)
	c := clustertest.Dial(t, addr)
	var mset, keys []string
	for i := range 100 {
		keys = append(keys, fmt.Sprint("key", i))
		mset = append(mset, keys[i], strings.Repeat("v", 100))
	}
	round := func(n int) {
		raw := encodeAll(slices.Concat([]string{"MSET"}, mset), slices.Concat([]string{"MGET"}, keys), slices.Concat([]string{"DEL"}, keys))
		for range n {
			c.Send(raw)
			for range 3 {
				c.ReadReply()
			}
		}
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	round(300)
	before := heap()
	round(500)
	shards[1].Stop()
	round(500)
	// 1,500 commands of 100 keys and 10 kB each: the least leak would be megabytes.
	if after := heap(); after > before+2<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
}

// TestVanishedClients (CN-02): clients that say nothing any more are closed, also with
// half a command sent, but not those that wait for a reply or a message, nor as soon as they have got it.
func TestVanishedClients(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind := clustertest.StartRedis(t)
		o := strict(t, behind, transport)
		o.Clients.IdleTimeout = 300 * time.Millisecond
		s, addr := proxytest.Start(t, o)
		listener, blocked := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
		listener.Do("SUBSCRIBE", "ch")
		blocked.Cmd("BLPOP", "q", "0")
		var silent []*clustertest.Conn
		for i := range 40 {
			c := clustertest.Dial(t, addr)
			c.Send([]string{"PING\r\n", "PING\r\n*2\r\n$3\r\nGET\r\n$1"}[i%2])
			c.Expect("+PONG\r\n")
			silent = append(silent, c)
		}
		for _, c := range silent {
			c.ExpectClosed()
		}
		clustertest.Await(t, "the gauge to show the two that wait", func() error {
			if got := s.Stats(); got.Clients != 2 || got.IdleClosed != 40 {
				return fmt.Errorf("%d clients, %d closed", got.Clients, got.IdleClosed)
			}
			return nil
		})
		behind.Do("PUBLISH", "ch", "m")
		listener.Expect("*3\r\n$7\r\nmessage\r\n$2\r\nch\r\n$1\r\nm\r\n")
		answered := time.Now()
		behind.Do("RPUSH", "q", "e")
		blocked.Expect("*2\r\n$1\r\nq\r\n$1\r\ne\r\n")
		if reply, err := blocked.TryReply(o.Clients.IdleTimeout / 2); !errors.Is(err, os.ErrDeadlineExceeded) && time.Since(answered) < o.Clients.IdleTimeout {
			t.Errorf("got %q, %v right after the answer to a command that had blocked for longer than idle_timeout", reply, err)
		}
	})
}

// TestTwoProxies (NC-14): what is written through one proxy is read through another, soon
// and never backwards.
func TestTwoProxies(t *testing.T) {
	for _, mode := range []proxy.Invalidation{proxy.InvalidationTracking, proxy.InvalidationPubSub, proxy.InvalidationBoth} {
		t.Run(string(mode), func(t *testing.T) {
			behind := clustertest.StartRedis(t)
			start := func() *clustertest.Conn {
				o := proxytest.Options(t, proxytest.Single(behind.Addr))
				o.Cache.Invalidation = mode
				o.Cache.PubSubTTL = 50 * time.Millisecond
				_, addr := proxytest.Start(t, o)
				return clustertest.Dial(t, addr)
			}
			a, b := start(), start()
			seen := 0
			for version := 1; version <= 60; version++ {
				a.Do("HSET", "ns:cfg:app", "v", strconv.Itoa(version))
				clustertest.Await(t, fmt.Sprint("version ", version), func() error {
					lines := strings.Split(b.Do("HGETALL", "ns:cfg:app"), "\r\n")
					got, err := strconv.Atoi(lines[len(lines)-2])
					if err != nil || got < seen {
						t.Fatalf("got %q after version %d", lines, seen)
					}
					if seen = got; got != version {
						return fmt.Errorf("it is %d", got)
					}
					return nil
				})
			}
		})
	}
}

// TestHostNameIsLookedUpAgain (FO-08): when the server behind a name has moved, the next
// connection goes to its new address; a name that cannot be resolved is an error, and heals.
func TestHostNameIsLookedUpAgain(t *testing.T) {
	first, second := clustertest.StartRedis(t), clustertest.StartRedis(t)
	first.Do("SET", "k", "first")
	second.Do("SET", "k", "second")
	dns := startDNS(t)
	front := passOn(t, "127.0.0.1:0", first.Addr)
	_, port, _ := net.SplitHostPort(front)
	passOn(t, net.JoinHostPort("127.0.0.2", port), second.Addr)

	dns.answer.Store(&[4]byte{127, 0, 0, 1})
	o := proxytest.Options(t, proxytest.Single("redis.test:"+port))
	dns.asked(&o)
	o.Upstream.Timeout = time.Second
	_, addr := proxytest.Start(t, o)
	c := clustertest.Dial(t, addr)
	await := func(want string) {
		t.Helper()
		clustertest.Await(t, want, func() error {
			if got := c.Do("GET", "k"); got != want {
				return fmt.Errorf("got %q", got)
			}
			return nil
		})
	}
	await("$5\r\nfirst\r\n")
	dns.answer.Store(nil)
	first.Stop()
	clustertest.Await(t, "an error", func() error {
		if got := c.Do("GET", "k"); got[0] != '-' {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	dns.answer.Store(&[4]byte{127, 0, 0, 2})
	await("$6\r\nsecond\r\n")
}

// passOn passes connections at listen on to addr, as long as that accepts them.
func passOn(t *testing.T, listen, addr string) string {
	t.Helper()
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		t.Fatalf("cannot listen: %v", err)
	}
	var conns sync.WaitGroup
	t.Cleanup(func() { ln.Close(); conns.Wait() })
	go func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", addr)
			if err != nil {
				in.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				conns.Go(func() {
					io.Copy(way[0], way[1])
					way[0].Close()
				})
			}
		}
	}()
	return ln.Addr().String()
}

// nameServer answers every question with one address, or that there is none.
type nameServer struct {
	addr   string
	answer atomic.Pointer[[4]byte]
}

// asked is an option change that has names looked up here.
func (s *nameServer) asked(o *proxy.Options) {
	o.Upstream.Dialer = &dial.Dialer{Resolver: &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", s.addr)
	}}}
}

func startDNS(t *testing.T) *nameServer {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("cannot listen: %v", err)
	}
	s := &nameServer{addr: pc.LocalAddr().String()}
	go func() {
		b := make([]byte, 512)
		for {
			n, from, err := pc.ReadFrom(b)
			if err != nil {
				return
			}
			pc.WriteTo(s.reply(b[:n]), from)
		}
	}()
	t.Cleanup(func() { pc.Close() })
	return s
}

// reply answers a query (RFC 1035, 4.1) for an A record; other types have no record.
func (s *nameServer) reply(query []byte) []byte {
	end := 12
	for query[end] != 0 {
		end += 1 + int(query[end])
	}
	end += 5 // the root label, type and class
	b := slices.Clone(query[:end])
	b[2], b[3] = 0x81, 0x80 // a response, recursion available
	clear(b[6:12])
	addr := s.answer.Load()
	switch {
	case addr == nil:
		b[3] |= 3 // no such name
	case binary.BigEndian.Uint16(query[end-4:]) == 1:
		b[7] = 1
		b = append(b, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
		b = append(b, addr[:]...)
	}
	return b
}
