package proxy_test

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/lua"
	"cosky-proxy/nearcache"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

// nearRig is a Redis with a proxy of two loops in front of it.
type nearRig struct {
	t      *testing.T
	redis  *clustertest.Redis
	server *proxy.Server
	addr   string
	direct *clustertest.Conn
	front  []*clustertest.Conn // one client per loop: a new client goes to the loop that has the fewest
}

func startNear(t *testing.T, change ...func(*proxy.Options)) *nearRig {
	t.Helper()
	r := &nearRig{t: t, redis: clustertest.StartRedis(t)}
	r.direct = clustertest.Dial(t, r.redis.Addr)
	o := proxytest.Options(t, proxytest.Single(r.redis.Addr))
	for _, f := range change {
		f(&o)
	}
	r.server, r.addr = proxytest.Start(t, o)
	for range 2 {
		r.front = append(r.front, r.dial())
	}
	return r
}

func (r *nearRig) dial() *clustertest.Conn {
	c := clustertest.Dial(r.t, r.addr)
	if got := c.Do("PING"); got != "+PONG\r\n" {
		r.t.Fatalf("PING through the proxy: %q", got)
	}
	return c
}

// eachTransport runs a test over epoll loops and over goroutine-driven sockets.
func eachTransport(t *testing.T, test func(t *testing.T, change func(*proxy.Options))) {
	for name, transport := range map[string]netloop.Transport{"loop": netloop.DefaultTransport, "goroutine": netloop.Goroutine} {
		t.Run(name, func(t *testing.T) { test(t, func(o *proxy.Options) { o.Transport = transport }) })
	}
}

// warm reads until both loops answer from memory, and returns the answer.
func (r *nearRig) warm(read ...string) (reply string) {
	r.t.Helper()
	for _, c := range r.front {
		clustertest.Await(r.t, fmt.Sprintf("a hit for %q", read), func() error {
			before := r.server.Stats().Hits
			reply = c.Do(read...)
			if r.server.Stats().Hits == before {
				return fmt.Errorf("not answered from memory: %.100q", reply)
			}
			return nil
		})
	}
	return reply
}

// agree requires every client to be told what Redis itself says: at once, or,
// for a change that went around the proxy, before long and then for good.
func (r *nearRig) agree(atOnce bool, read ...string) {
	r.t.Helper()
	want := r.direct.Do(read...)
	for i, c := range r.front {
		if !atOnce {
			clustertest.Await(r.t, fmt.Sprintf("%q as Redis has it", read), func() error {
				if got := c.Do(read...); got != want {
					return fmt.Errorf("got %.200q, want %.200q", got, want)
				}
				return nil
			})
		}
		for range 3 {
			if got := c.Do(read...); got != want {
				r.t.Errorf("client %d: %q answered %.200q, want %.200q", i, read, got, want)
			}
		}
	}
}

func words(s string) []string { return strings.Fields(s) }

// The keys of these tests: a hash and a set that are cached, and others of theirs.
const (
	hashKey  = "{n}:cfg:a"
	hashKey2 = "{n}:cfg:b"
	setKey   = "{n}:svc_itc_idx:s"
	setKey2  = "{n}:svc_idx"
)

// dumpOfH2 stands for what DUMP answers to H2.
const dumpOfH2 = "DUMP H2"

// writes change cached keys in every way Redis has. What is read is cached before
// the write and compared after it.
var writes = []struct {
	name  string
	setup []string   // run directly, on an empty database
	reads []string   // made and cached before the write, compared after it
	write [][]string // commands
}{
	{"HSET", []string{"HSET H f 1"}, []string{"HGETALL H"}, [][]string{words("HSET H f 2")}},
	{"HSET of an absent key", nil, []string{"HGETALL H"}, [][]string{words("HSET H f 2")}},
	{"HDEL to empty", []string{"HSET H f 1"}, []string{"HGETALL H"}, [][]string{words("HDEL H f")}},
	{"HINCRBY", []string{"HSET H f 1"}, []string{"HGETALL H"}, [][]string{words("HINCRBY H f 4")}},
	{"HINCRBYFLOAT", []string{"HSET H f 1"}, []string{"HGETALL H"}, [][]string{words("HINCRBYFLOAT H f 0.5")}},
	{"HSETNX", []string{"HSET H f 1"}, []string{"HGETALL H"}, [][]string{words("HSETNX H g 1")}},
	{"HMSET", []string{"HSET H f 1"}, []string{"HGETALL H"}, [][]string{words("HMSET H g 1 h 2")}},
	{"DEL", []string{"HSET H f 1", "SADD S m"}, []string{"HGETALL H", "SMEMBERS S"}, [][]string{words("DEL H S")}},
	{"UNLINK", []string{"HSET H f 1", "SADD S m"}, []string{"HGETALL H", "SMEMBERS S"}, [][]string{words("UNLINK S H")}},
	{"EXPIRE at once", []string{"HSET H f 1"}, []string{"HGETALL H"}, [][]string{words("EXPIRE H 0")}},
	{"PEXPIREAT in the past", []string{"HSET H f 1"}, []string{"HGETALL H"}, [][]string{words("PEXPIREAT H 1")}},
	{"GETDEL is refused", []string{"HSET H f 1"}, []string{"HGETALL H"}, [][]string{words("GETDEL H")}},
	{"RENAME", []string{"HSET H f 1", "HSET H2 f 2"}, []string{"HGETALL H", "HGETALL H2"}, [][]string{words("RENAME H H2")}},
	{"RENAME of an uncached key", []string{"HSET H f 1", "HSET {n}x f 2"}, []string{"HGETALL H"}, [][]string{words("RENAME {n}x H")}},
	{"RENAMENX to an absent key", []string{"HSET H f 1"}, []string{"HGETALL H", "HGETALL H2"}, [][]string{words("RENAMENX H H2")}},
	{"COPY REPLACE", []string{"HSET H f 1", "HSET H2 f 2"}, []string{"HGETALL H", "HGETALL H2"}, [][]string{words("COPY H H2 REPLACE")}},
	{"COPY to an absent key", []string{"HSET H f 1"}, []string{"HGETALL H2"}, [][]string{words("COPY H H2")}},
	{"MOVE", []string{"HSET H f 1"}, []string{"HGETALL H"}, [][]string{words("MOVE H 1")}},
	{"RESTORE REPLACE", []string{"HSET H f 1", "HSET H2 f 2"}, []string{"HGETALL H"}, [][]string{{"RESTORE", "H", "0", dumpOfH2, "REPLACE"}}},
	{"SADD", []string{"SADD S m"}, []string{"SMEMBERS S"}, [][]string{words("SADD S n")}},
	{"SREM", []string{"SADD S m n"}, []string{"SMEMBERS S"}, [][]string{words("SREM S n")}},
	{"SPOP of the last", []string{"SADD S m"}, []string{"SMEMBERS S"}, [][]string{words("SPOP S")}},
	{"SMOVE", []string{"SADD S m n", "SADD S2 o"}, []string{"SMEMBERS S", "SMEMBERS S2"}, [][]string{words("SMOVE S S2 m")}},
	{"SDIFFSTORE", []string{"SADD S m n", "SADD S2 n"}, []string{"SMEMBERS S"}, [][]string{words("SDIFFSTORE S S S2")}},
	{"SINTERSTORE to nothing", []string{"SADD S m", "SADD S2 n"}, []string{"SMEMBERS S2"}, [][]string{words("SINTERSTORE S2 S {n}none")}},
	{"SUNIONSTORE", []string{"SADD S m", "SADD S2 n"}, []string{"SMEMBERS S2"}, [][]string{words("SUNIONSTORE S2 S S2")}},
	{"SORT STORE", []string{"SADD S 3 1 2"}, []string{"SMEMBERS S"}, [][]string{words("SORT S STORE S")}},
	{"SORT STORE elsewhere", []string{"SADD S m", "RPUSH {n}l 2 1"}, []string{"SMEMBERS S"}, [][]string{words("SORT {n}l STORE S")}},
	{"ZUNIONSTORE over a set", []string{"SADD S m n"}, []string{"SMEMBERS S"}, [][]string{words("ZUNIONSTORE S 1 S")}},
	{"SET over a hash", []string{"HSET H f 1"}, []string{"HGETALL H"}, [][]string{words("SET H x")}},
	{"MSET over both", []string{"HSET H f 1", "SADD S m"}, []string{"HGETALL H", "SMEMBERS S"}, [][]string{words("MSET S x H y")}},
	{"LPUSH to an absent key", nil, []string{"HGETALL H", "SMEMBERS H"}, [][]string{words("LPUSH H x")}},
	{"BLMOVE to an absent key", []string{"RPUSH {n}l x"}, []string{"HGETALL H"}, [][]string{words("BLMOVE {n}l H LEFT LEFT 1")}},
	{"PFADD to an absent key", nil, []string{"HGETALL H"}, [][]string{words("PFADD H x")}},
	{"BITOP to an absent key", []string{"SET {n}a x"}, []string{"HGETALL H"}, [][]string{words("BITOP NOT H {n}a")}},
	{"XADD to an absent key", nil, []string{"SMEMBERS S"}, [][]string{words("XADD S * f v")}},
	{"GEOSEARCHSTORE", []string{"SADD S m", "GEOADD {n}g 1 1 p"}, []string{"SMEMBERS S"}, [][]string{words("GEOSEARCHSTORE S {n}g FROMMEMBER p BYRADIUS 1 km")}},
	{"MULTI", []string{"HSET H f 1", "SADD S m"}, []string{"HGETALL H", "SMEMBERS S"}, [][]string{words("MULTI"), words("HSET H f 2"), words("DEL S"), words("EXEC")}},
	{"MULTI with a script", []string{"HSET H f 1"}, []string{"HGETALL H"}, [][]string{words("MULTI"), {"EVAL", "return redis.call('HSET',ARGV[1],'f','2')", "0", "H"}, words("EXEC")}},
	{"WATCH and MULTI", []string{"HSET H f 1"}, []string{"HGETALL H"}, [][]string{words("WATCH H"), words("MULTI"), words("HSET H f 2"), words("EXEC")}},
	{"EVAL with its key", []string{"HSET H f 1"}, []string{"HGETALL H"}, [][]string{{"EVAL", "return redis.call('HSET',KEYS[1],'f','2')", "1", "H"}}},
	{"EVAL of a key it does not declare", []string{"HSET H f 1"}, []string{"HGETALL H"}, [][]string{{"EVAL", "return redis.call('HSET',ARGV[1],'f','2')", "0", "H"}}},
	{"EVAL that fails half-way", []string{"HSET H f 1"}, []string{"HGETALL H"}, [][]string{{"EVAL", "redis.call('HSET',ARGV[1],'f','2') return redis.call('LPUSH',ARGV[1],'x')", "0", "H"}}},
	{"EVAL that flushes", []string{"HSET H f 1"}, []string{"HGETALL H"}, [][]string{{"EVAL", "return redis.call('FLUSHDB')", "0"}}},
	{"FCALL", []string{"HSET H f 1"}, []string{"HGETALL H"}, [][]string{
		{"FUNCTION", "LOAD", "REPLACE", "#!lua name=w\nredis.register_function('w', function(k, a) return redis.call('HSET',a[1],'f','2') end)"},
		words("FCALL w 0 H")}},
	{"config_set archives the version before", []string{"HSET H version 1 hash x"}, []string{"HGETALL H", "HGETALL {n}:cfg_htr:a:1", "SMEMBERS {n}:cfg_idx"},
		[][]string{{"EVAL", lua.ByName("config_set").Text, "1", "{n}", "a", "data", "y"}}},
	{"registry_register", nil, []string{"SMEMBERS S", "SMEMBERS S2", "HGETALL {n}:svc_stat", "HGETALL {n}:svc_itc:s@http#h#1"},
		[][]string{{"EVAL", lua.ByName("registry_register").Text, "1", "{n}", "60", "s", "s@http#h#1", "http", "h", "1", "1"}}},
	{"registry_deregister", []string{"SADD S s@http#h#1", "HSET {n}:svc_itc:s@http#h#1 f v"}, []string{"SMEMBERS S", "HGETALL {n}:svc_itc:s@http#h#1"},
		[][]string{{"EVAL", lua.ByName("registry_deregister").Text, "1", "{n}", "s", "s@http#h#1"}}},
	{"discovery_get_instances notices an expired one", []string{"SADD S s@http#h#1"}, []string{"SMEMBERS S"},
		[][]string{{"EVAL", lua.ByName("discovery_get_instances").Text, "1", "{n}", "s"}}},
	{"service_topology_add", nil, []string{"HGETALL {n}:topology_idx", "HGETALL {n}:topology:c"},
		[][]string{{"EVAL", lua.ByName("service_topology_add").Text, "1", "{n}", "c", "p"}}},
	{"FLUSHDB", []string{"HSET H f 1", "SADD S m"}, []string{"HGETALL H", "SMEMBERS S"}, [][]string{words("FLUSHDB")}},
	{"FLUSHALL ASYNC", []string{"HSET H f 1", "SADD S m"}, []string{"HGETALL H", "SMEMBERS S"}, [][]string{words("FLUSHALL ASYNC")}},
}

// named puts the real keys in place of H, H2, S and S2.
func named(args []string) []string {
	names := map[string]string{"H": hashKey, "H2": hashKey2, "S": setKey, "S2": setKey2}
	out := slices.Clone(args)
	for i, a := range args {
		if k := names[a]; k != "" {
			out[i] = k
		}
	}
	return out
}

// TestEveryKindOfWriteIsSeen: NC-05 and NC-09, and NC-03 across connections and loops.
func TestEveryKindOfWriteIsSeen(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport func(*proxy.Options)) {
		r := startNear(t, transport)
		for _, through := range []bool{true, false} {
			writer := r.direct
			if through {
				writer = r.dial() // a client of its own: it neither reads nor shares a loop with all readers
			}
			for _, w := range writes {
				t.Run(fmt.Sprintf("%s, through the proxy %v", w.name, through), func(t *testing.T) {
					r.t = t
					r.redis.Do("FLUSHALL")
					for _, s := range w.setup {
						if got := r.direct.Do(named(words(s))...); got[0] == '-' {
							t.Fatalf("%s: %s", s, got)
						}
					}
					for _, read := range w.reads {
						r.agree(false, named(words(read))...)
						r.warm(named(words(read))...)
					}
					for _, c := range w.write {
						c = named(c)
						if i := slices.Index(c, dumpOfH2); i >= 0 {
							c[i] = r.redis.Text("DUMP", hashKey2)
						}
						writer.Do(c...)
					}
					for _, read := range w.reads {
						r.agree(through, named(words(read))...)
					}
				})
			}
		}
	})
}

// TestReadOfWrongTypeIsNotCached: NC-10.
func TestReadOfWrongTypeIsNotCached(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport func(*proxy.Options)) {
		r := startNear(t, transport)
		r.direct.Do("SADD", hashKey, "m")
		r.warm("HGETALL", hashKey2) // the lanes are up
		wrong := r.direct.Do("HGETALL", hashKey)
		clients := make([]*clustertest.Conn, 10)
		for i := range clients {
			clients[i] = r.dial()
		}
		for range 3 {
			for _, c := range clients {
				c.Cmd("HGETALL", hashKey)
			}
			for _, c := range clients {
				c.Expect(wrong)
			}
		}
		r.front[0].Do("DEL", hashKey)
		r.front[1].Do("HSET", hashKey, "f", "v")
		for _, c := range clients {
			c.Cmd("HGETALL", hashKey)
		}
		for _, c := range clients {
			c.Expect("*2\r\n$1\r\nf\r\n$1\r\nv\r\n")
		}
		r.agree(true, "HGETALL", hashKey)
		r.warm("HGETALL", hashKey)
	})
}

// TestBusyServerIsNotCached: NC-10 with -BUSY, which the fetch lane's heartbeats
// and log-in are answered with as well.
func TestBusyServerIsNotCached(t *testing.T) {
	r := startNear(t)
	r.direct.Do("HSET", hashKey, "f", "v")
	want := r.warm("HGETALL", hashKey)
	r.direct.Do("CONFIG", "SET", "busy-reply-threshold", "1")
	r.direct.Cmd("EVAL", "while true do end", "0")
	clustertest.Await(t, "-BUSY through the proxy", func() error {
		got := r.front[0].Do("HGETALL", hashKey2)
		if !strings.HasPrefix(got, "-BUSY") {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	r.redis.Do("SCRIPT", "KILL")
	r.direct.ReadReply()
	r.agree(true, "HGETALL", hashKey2)
	if got := r.warm("HGETALL", hashKey); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestFlushEmptiesTheCache: NC-06.
func TestFlushEmptiesTheCache(t *testing.T) {
	r := startNear(t)
	const keys = 1000
	key := func(i int) string { return fmt.Sprintf("{n}:cfg:%d", i) }
	fill := func() {
		for i := range keys {
			r.direct.Cmd("HSET", key(i), "f", "v")
		}
		for range keys {
			r.direct.ReadReply()
		}
		for i := range keys {
			r.agree(false, "HGETALL", key(i))
		}
		r.warm("HGETALL", key(0))
	}
	empty := func(atOnce bool) {
		t.Helper()
		r.agree(atOnce, "HGETALL", key(0))
		for i := range keys { // the message that emptied one key emptied all
			for _, c := range r.front {
				if got := c.Do("HGETALL", key(i)); got != "*0\r\n" {
					t.Fatalf("%s still there: %q", key(i), got)
				}
			}
		}
	}
	fill()
	r.direct.Do("FLUSHALL")
	empty(false)
	r.direct.Do("FLUSHALL")
	empty(false)

	fill()
	other := clustertest.Dial(t, r.redis.Addr)
	other.Do("SELECT", "1")
	other.Do("FLUSHDB")
	for i := range keys {
		r.agree(true, "HGETALL", key(i))
	}
	if got := r.front[0].Do("FLUSHALL", "ASYNC"); got != "+OK\r\n" {
		t.Fatalf("FLUSHALL ASYNC: %q", got)
	}
	empty(true)
	r.front[1].Do("FLUSHALL", "ASYNC")
	empty(true)
}

// TestOwnWritesAreSeen: NC-03, by the same client, by the others, and in one pipeline,
// with a write, a transaction and scripts that name the key, hide it, or are CoSky's.
func TestOwnWritesAreSeen(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport func(*proxy.Options)) {
		r := startNear(t, transport)
		hidden := "redis.call('HSET', ARGV[1], 'f', ARGV[2]) return 1"
		ways := []struct {
			name  string
			write func(v string) []string // commands, separated by newlines, that leave f = v
			skip  int                     // replies before the last
		}{
			{"HSET", func(v string) []string { return []string{"HSET", hashKey, "f", v} }, 0},
			{"EVAL", func(v string) []string { return []string{"EVAL", hidden, "0", hashKey, v} }, 0},
			{"EVAL_RO and EVAL", func(v string) []string {
				return []string{"EVAL_RO", "return 1", "0", "\n", "EVAL", hidden, "0", hashKey, v}
			}, 1},
			{"MULTI", func(v string) []string {
				return []string{"MULTI", "\n", "EVAL", hidden, "0", hashKey, v, "\n", "EXEC"}
			}, 2},
			{"RENAME", func(v string) []string {
				return []string{"HSET", "{n}tmp", "f", v, "\n", "RENAME", "{n}tmp", hashKey}
			}, 1},
		}
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				for i := range 50 {
					v := fmt.Sprint(i)
					want := fmt.Sprintf("*2\r\n$1\r\nf\r\n$%d\r\n%s\r\n", len(v), v)
					c, other := r.front[i%2], r.front[(i+1)%2]
					r.warm("HGETALL", hashKey)
					c.Send(pipeline(way.write(v)) + clustertest.Encode("HGETALL", hashKey) + clustertest.Encode("HGETALL", hashKey))
					for range way.skip + 1 {
						if got := c.ReadReply(); got[0] == '-' {
							t.Fatal(got)
						}
					}
					c.Expect(want)
					c.Expect(want)
					if got := other.Do("HGETALL", hashKey); got != want {
						t.Fatalf("the other client got %q, want %q", got, want)
					}
				}
			})
		}
	})
}

// pipeline encodes commands separated by "\n".
func pipeline(args []string) string {
	var b strings.Builder
	for len(args) > 0 {
		n := slices.Index(args, "\n")
		if n < 0 {
			n = len(args)
		}
		b.WriteString(clustertest.Encode(args[:n]...))
		args = args[min(n+1, len(args)):]
	}
	return b.String()
}

// TestEntryDoesNotOutliveItsKey: NC-04. The server never gets round to expiring keys
// by itself, so no message can help.
func TestEntryDoesNotOutliveItsKey(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport func(*proxy.Options)) {
		r := startNear(t, transport)
		r.direct.Do("DEBUG", "SET-ACTIVE-EXPIRE", "0")
		r.warm("HGETALL", hashKey2) // the lanes are up
		const life = 400 * time.Millisecond
		for _, writer := range []*clustertest.Conn{r.direct, r.front[0]} {
			writer.Do("HSET", hashKey, "f", "v")
			writer.Do("SADD", setKey, "m")
			writer.Do("PEXPIRE", hashKey, fmt.Sprint(life.Milliseconds()))
			writer.Do("PEXPIRE", setKey, fmt.Sprint(life.Milliseconds()))
			over := time.Now().Add(life + 2*time.Millisecond) // the server's clock has whole milliseconds
			hits := r.server.Stats().Hits
			for time.Now().Before(over) {
				for _, c := range r.front {
					c.Do("HGETALL", hashKey)
					c.Do("SMEMBERS", setKey)
				}
			}
			if r.server.Stats().Hits == hits {
				t.Error("nothing was cached: the test proves nothing")
			}
			for _, c := range r.front {
				for _, read := range [][]string{{"HGETALL", hashKey}, {"SMEMBERS", setKey}} {
					if got := c.Do(read...); got != "*0\r\n" {
						t.Errorf("%q after its time: %q", read, got)
					}
				}
			}
		}
	})
}

// TestPersistAndExpireMoveTheEnd: a cached entry's end follows the key's.
func TestPersistAndExpireMoveTheEnd(t *testing.T) {
	r := startNear(t)
	r.direct.Do("HSET", hashKey, "f", "v")
	r.direct.Do("PEXPIRE", hashKey, "300")
	over := time.Now().Add(302 * time.Millisecond)
	r.front[0].Do("HGETALL", hashKey)
	r.front[0].Do("PERSIST", hashKey)
	want := r.warm("HGETALL", hashKey)
	time.Sleep(time.Until(over))
	if got := r.front[1].Do("HGETALL", hashKey); got != want || got == "*0\r\n" {
		t.Errorf("after PERSIST: %q, want %q", got, want)
	}
	r.warm("HGETALL", hashKey)
	r.direct.Do("DEBUG", "SET-ACTIVE-EXPIRE", "0")
	r.front[1].Do("PEXPIRE", hashKey, "100")
	over = time.Now().Add(102 * time.Millisecond)
	for time.Now().Before(over) {
		r.front[0].Do("HGETALL", hashKey)
	}
	if got := r.front[0].Do("HGETALL", hashKey); got != "*0\r\n" {
		t.Errorf("after PEXPIRE: %q, want nothing", got)
	}
}

// TestCacheStaysWithinItsBudget: NC-12, scaled down. Full hashes, absent keys of long names and
// a value too big to be kept.
func TestCacheStaysWithinItsBudget(t *testing.T) {
	const budget = 1 << 20
	cache, err := nearcache.New(nearcache.Options{MaxBytes: budget})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	r := startNear(t, func(o *proxy.Options) { o.Cache.Cache, o.Cache.MaxEntry = cache, cache.MaxEntry() })
	r.warm("HGETALL", hashKey)

	value := strings.Repeat("v", 1000)
	const batch, batches = 100, 60
	for b := range batches {
		for i := range batch {
			r.direct.Cmd("HSET", fmt.Sprintf("{n}:cfg:%d-%d", b, i), "f", value)
		}
		for range batch {
			r.direct.ReadReply()
		}
		for i := range batch {
			r.front[b%2].Cmd("HGETALL", fmt.Sprintf("{n}:cfg:%d-%d", b, i))
			r.front[b%2].Cmd("HGETALL", fmt.Sprintf("{n}:cfg:%0200d-%d", b, i))
		}
		for range batch {
			r.front[b%2].Expect("*2\r\n$1\r\nf\r\n$1000\r\n" + value + "\r\n")
			r.front[b%2].Expect("*0\r\n")
		}
		if held := r.server.CacheStats().Bytes; held > budget+budget/8 {
			t.Fatalf("%d bytes held after %d reads, the budget is %d", held, (b+1)*2*batch, budget)
		}
	}
	if s := r.server.CacheStats(); s.Fills < batch*batches/2 || s.Exits == 0 {
		t.Errorf("%d fills and %d exits: the budget was never strained", s.Fills, s.Exits)
	}

	big := strings.Repeat("b", 2*budget)
	r.direct.Do("HSET", hashKey2, "f", big)
	fills := r.server.CacheStats().Fills
	for range 3 {
		r.agree(true, "HGETALL", hashKey2)
	}
	if got := r.server.CacheStats().Fills; got != fills {
		t.Errorf("a value of twice the budget was filled %d times", got-fills)
	}
	r.front[0].Do("HSET", hashKey2, "f", "small")
	r.agree(true, "HGETALL", hashKey2)
}

// TestFillIsNoChange: NC-13. Two proxies that only read send each other nothing.
func TestFillIsNoChange(t *testing.T) {
	r := startNear(t)
	second, addr := proxytest.Start(t, proxytest.Options(t, proxytest.Single(r.redis.Addr)))
	c := clustertest.Dial(t, addr)
	for i := range 500 {
		r.direct.Do("HSET", fmt.Sprintf("{n}:cfg:%d", i), "f", "v")
	}
	r.warm("HGETALL", "{n}:cfg:0")
	for round := range 3 {
		for i := range 1000 { // half of them absent
			key := fmt.Sprintf("{n}:cfg:%d", i)
			want := r.front[(i+round)%2].Do("HGETALL", key)
			if got := c.Do("HGETALL", key); got != want {
				t.Fatalf("the two proxies disagree on %s: %q and %q", key, got, want)
			}
		}
	}
	if second.Stats().Hits == 0 {
		t.Error("the second proxy cached nothing: the test proves nothing")
	}
	for i, s := range []*proxy.Server{r.server, second} {
		if n := s.Stats().Invalidations; n != 0 {
			t.Errorf("proxy %d counted %d invalidations, but nothing was written", i, n)
		}
	}
	if calls := r.redis.InfoField("commandstats", "cmdstat_publish"); calls != "" {
		t.Errorf("messages were published: %s", calls)
	}
}

// TestRepliesShareARoundTrip: those to unknown scripts that arrive together wait for one PING on the
// invalidation stream, not for one each.
func TestRepliesShareARoundTrip(t *testing.T) {
	r := startNear(t)
	r.direct.Do("HSET", hashKey, "f", "0")
	r.warm("HGETALL", hashKey)
	pings := func() int {
		var calls int
		if line := r.redis.InfoField("commandstats", "cmdstat_ping"); line != "" {
			if _, err := fmt.Sscanf(line, "calls=%d,", &calls); err != nil {
				t.Fatal(err)
			}
		}
		return calls
	}
	const scripts = 64
	call := clustertest.Encode("EVAL", "return redis.call('HINCRBY', '"+hashKey+"', 'f', 1)", "0")
	before := pings()
	r.front[0].Send(strings.Repeat(call, scripts))
	for i := range scripts {
		r.front[0].Expect(fmt.Sprintf(":%d\r\n", i+1))
	}
	if n := pings() - before; n == 0 || n >= scripts {
		t.Errorf("%d PINGs for %d replies", n, scripts)
	}
	if got := r.front[0].Do("HGETALL", hashKey); got != "*2\r\n$1\r\nf\r\n$2\r\n64\r\n" {
		t.Errorf("after the scripts: %q", got)
	}
}

// TestHitPathDoesNotAllocate drives the running proxy over the wire and counts
// what the whole process allocates.
func TestHitPathDoesNotAllocate(t *testing.T) {
	r := startNear(t, keepAll)
	r.direct.Do("HSET", hashKey, "f", "v", "g", strings.Repeat("w", 200))
	r.direct.Do("HSET", "rh", "f", "v")
	r.direct.Do("MSET", "r1", "1", "r2", "2")
	field, several := r.warm("HGET", "rh", "f"), r.warm("MGET", "r1", "r2")
	r.direct.Do("SADD", setKey, "m")
	hash, set := r.warm("HGETALL", hashKey), r.warm("SMEMBERS", setKey)
	r.load()
	for i := range 50 {
		r.direct.Do(registration(fmt.Sprint("s@", i), -1, "service")...)
	}
	call := scriptCall("discovery_get_instances", "service")
	instances := r.warm(call...)
	cases := []struct {
		name    string
		request string
		reply   string
	}{
		{"cached HGETALL", clustertest.Encode("HGETALL", hashKey), hash},
		{"cached SMEMBERS", clustertest.Encode("SMEMBERS", setKey), set},
		{"cached discovery_get_instances", clustertest.Encode(call...), instances},
		{"HGET by a rule", clustertest.Encode("HGET", "rh", "f"), field},
		{"MGET by a rule", clustertest.Encode("MGET", "r1", "r2"), several},
		{"SET of a key that a rule names", clustertest.Encode("SET", "r3", "value"), "+OK\r\n"},
		{"GET", clustertest.Encode("GET", "plain"), "$5\r\nvalue\r\n"},
		{"SET", clustertest.Encode("SET", "plain", "value"), "+OK\r\n"},
		{"SET and HGET of a cached key", clustertest.Encode("HSET", hashKey, "f", "v") + clustertest.Encode("HGET", hashKey, "f"), ":0\r\n$1\r\nv\r\n"},
	}
	r.direct.Do("SET", "plain", "value")
	limit := 0.01
	if forgetful() {
		limit = 0.1
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			const depth, rounds, ops = 32, 3200, 32 * 3200
			batch := []byte(strings.Repeat(tc.request, depth))
			in := make([]byte, depth*len(tc.reply))
			conn := r.front[0].Net()
			round := func() {
				if _, err := conn.Write(batch); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(conn, in); err != nil {
					t.Fatal(err)
				}
			}
			for range 100 {
				round()
			}
			if got := string(in); got != strings.Repeat(tc.reply, depth) {
				t.Fatalf("got %.200q", got)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range rounds {
				round()
			}
			runtime.ReadMemStats(&after)
			if n := after.Mallocs - before.Mallocs; float64(n) >= limit*ops {
				t.Errorf("%d allocations in %d commands", n, ops)
			}
		})
	}
}

// forgetful reports whether pools drop what they are given, as the race detector makes them do:
// ristretto notes hits in a pool.
func forgetful() bool {
	p := sync.Pool{New: func() any { return new(int) }}
	return testing.AllocsPerRun(10, func() {
		for range 100 {
			p.Put(p.Get())
		}
	}) > 0
}

// TestSlowFetchDoesNotBecomeFresh: NC-02, with the reply of a fetch held back on the wire
// while the key is changed.
func TestSlowFetchDoesNotBecomeFresh(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport func(*proxy.Options)) {
		r, wire := startRelayed(t, transport)
		for i, through := range []bool{true, false, true, false} {
			key := fmt.Sprintf("{n}:cfg:slow%d", i)
			r.direct.Do("HSET", key, "f", "old")
			old := r.direct.Do("HGETALL", key)
			r.warm("HGETALL", hashKey) // the fetch lanes are up and their leases alive
			wire.Mute(proxytest.Fetch)
			calls := r.redis.InfoField("commandstats", "cmdstat_pttl")
			r.front[0].Cmd("HGETALL", key)
			clustertest.Await(t, "the fetch to reach Redis", func() error {
				if r.redis.InfoField("commandstats", "cmdstat_pttl") == calls {
					return fmt.Errorf("not yet")
				}
				return nil
			})
			writer := r.direct
			if through {
				writer = r.front[1]
			}
			writer.Do("HSET", key, "f", "new")
			wire.Unmute(proxytest.Fetch)
			if got := r.front[0].ReadReply(); got != old && got != r.direct.Do("HGETALL", key) {
				t.Errorf("the slow read answered %q", got)
			}
			r.agree(through, "HGETALL", key)
		}
	})
}

// TestNothingOutlivesItsStream: NC-01. The connection that carries invalidations is cut or
// killed, and kept from coming back until the keys have been changed.
func TestNothingOutlivesItsStream(t *testing.T) {
	cuts := map[string]func(r *nearRig, wire *proxytest.Relay){
		"cut":    func(_ *nearRig, wire *proxytest.Relay) { wire.Cut(proxytest.Fetch) },
		"killed": func(r *nearRig, wire *proxytest.Relay) { wire.Kill(r.redis, proxytest.Fetch) },
	}
	for name, cut := range cuts {
		t.Run(name, func(t *testing.T) {
			r, wire := startRelayed(t, func(o *proxy.Options) {
				o.Cache.MaxStaleness = 2 * clustertest.Deadline // time does not help
			})
			for i := range 5 {
				r.direct.Do("HSET", hashKey, "f", fmt.Sprint(i))
				r.direct.Do("SADD", setKey, fmt.Sprint(i))
				r.agree(false, "HGETALL", hashKey)
				r.agree(false, "SMEMBERS", setKey)
				r.warm("HGETALL", hashKey)
				r.warm("SMEMBERS", setKey)
				wire.Refuse(proxytest.Fetch, true)
				cut(r, wire)
				r.direct.Do("HSET", hashKey, "f", "new")
				r.direct.Do("SREM", setKey, fmt.Sprint(i))
				r.agree(false, "HGETALL", hashKey)
				r.agree(false, "SMEMBERS", setKey)
				wire.Refuse(proxytest.Fetch, false)
				r.agree(true, "HGETALL", hashKey)
				r.agree(true, "SMEMBERS", setKey)
			}
			r.warm("HGETALL", hashKey)
		})
	}
}

// TestScriptDoesNotWaitForADeadStream: while a fetch lane is half-open, everything that
// needs it goes on without it after a few times max_staleness.
func TestScriptDoesNotWaitForADeadStream(t *testing.T) {
	r, wire := startRelayed(t, func(o *proxy.Options) {
		o.Cache.MaxStaleness = 200 * time.Millisecond
		o.Upstream.Timeout = time.Hour // of no help
	})
	r.direct.Do("HSET", hashKey, "f", "v")
	r.warm("HGETALL", hashKey)
	wire.Mute(proxytest.Fetch)
	r.front[0].Cmd("HGETALL", hashKey2) // waits for a fetch whose reply will not come
	var all sync.WaitGroup
	all.Go(func() { r.front[0].Expect("*0\r\n") })
	if got := r.front[1].Do("EVAL", "return redis.call('HSET',ARGV[1],'f','w')", "0", hashKey); got != ":0\r\n" {
		t.Errorf("EVAL: %q", got)
	}
	all.Wait()
	r.agree(true, "HGETALL", hashKey)
	r.agree(true, "HGETALL", hashKey2)
	wire.Unmute(proxytest.Fetch)
	r.warm("HGETALL", hashKey)
}

// startRelayed puts a relay between the proxy and Redis.
func startRelayed(t *testing.T, change ...func(*proxy.Options)) (*nearRig, *proxytest.Relay) {
	t.Helper()
	var wire *proxytest.Relay
	r := startNear(t, append(change, func(o *proxy.Options) {
		wire = proxytest.StartRelay(t, o.Topology.Current().Shards[0].Primary.Addr)
		o.Topology = proxytest.Single(wire.Addr)
	})...)
	return r, wire
}
