package proxy_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
)

// keepAll is a rule for every command on keys that begin with r.
func keepAll(o *proxy.Options) {
	o.Cache.Rules = []proxy.Rule{{Match: "r*", Commands: proxy.CacheableCommands(), TTL: time.Minute, MaxValue: 1 << 20}}
}

// ruleReads are reads of every kind, of the keys that ruleSetup makes, of keys that do not
// exist (rn) and of other types.
var ruleReads = []string{
	"GET rs", "GET rn", "GET re", "STRLEN rs", "STRLEN rn", "GETRANGE rs 1 3", "GETRANGE rn 0 -1", "SUBSTR rs 0 1", "GETBIT rs 7", "BITCOUNT rs", "BITCOUNT rs 0 1", "BITCOUNT rn",
	"HGETALL rh", "HGETALL rn", "HGET rh f", "HGET rh none", "HGET rn f", "HMGET rh f none g", "HMGET rn a b", "HKEYS rh", "HVALS rh", "HVALS rn", "HLEN rh", "HEXISTS rh f", "HEXISTS rh x", "HSTRLEN rh g",
	"SMEMBERS rt", "SISMEMBER rt a", "SISMEMBER rt x", "SMISMEMBER rt a x", "SMISMEMBER rn a b", "SCARD rt",
	"LRANGE rl 0 -1", "LRANGE rl 5 9", "LRANGE rn 0 -1", "LINDEX rl 0", "LINDEX rl 9", "LLEN rl",
	"ZRANGE rz 0 -1", "ZRANGE rz 0 -1 WITHSCORES", "ZRANGE rz 0 -1 REV withscores", "ZRANGE rz 2 (9 BYSCORE LIMIT 0 1 WITHSCORES", "ZRANGE rz - + BYLEX", "ZRANGE rn 0 -1 WITHSCORES",
	"ZREVRANGE rz 0 1 WITHSCORES", "ZRANGEBYSCORE rz -inf +inf WITHSCORES", "ZREVRANGEBYSCORE rz +inf 2", "ZRANGEBYLEX rz - +", "ZREVRANGEBYLEX rz + -",
	"ZSCORE rz b", "ZSCORE rz i", "ZSCORE rz x", "ZMSCORE rz a x b", "ZMSCORE rn a", "ZRANK rz b", "ZRANK rz x", "ZREVRANK rz a", "ZCARD rz", "ZCOUNT rz 1 2", "ZLEXCOUNT rz - +",
	"XLEN rx", "XRANGE rx - +", "XREVRANGE rx + - COUNT 1", "XRANGE rn - +", "XRANGE rx - + COUNT 0", "XREVRANGE rx + - COUNT 0",
	"TYPE rs", "TYPE rn", "EXISTS rs", "EXISTS rn", "MGET rs rn re", "MGET rs",
}

var ruleSetup = []string{
	"SET rs hello", "SET re x", "HSET rh f 1 g two", "SADD rt a", "RPUSH rl a b c", "ZADD rz 1 a 2.5 b 1e300 c inf i", "XADD rx 1-1 f v", "XADD rx 1-2 f w",
}

// What is kept of every kind of read is the very reply of Redis, in both protocol versions,
// whichever of them asked first.
func TestEveryReadIsKeptAsItIs(t *testing.T) {
	r := startNear(t, keepAll)
	direct3 := clustertest.Dial(t, r.redis.Addr)
	direct3.Do("HELLO", "3")
	front3 := r.dial()
	front3.Do("HELLO", "3")
	for _, c := range ruleSetup {
		r.direct.Do(words(c)...)
	}
	r.warm("GET", "rs")
	for _, read := range ruleReads {
		first, second, direct1, direct2 := front3, r.front[0], direct3, r.direct
		if len(read)%2 == 0 {
			first, second, direct1, direct2 = second, first, direct2, direct1
		}
		r.direct.Do("SET", "other", "x")
		want1, want2 := direct1.Do(words(read)...), direct2.Do(words(read)...)
		if want1[0] == '-' {
			t.Fatalf("%s: %s", read, want1)
		}
		if got := first.Do(words(read)...); got != want1 {
			t.Errorf("%s, fetched: got %q, want %q", read, got, want1)
		}
		clustertest.Await(t, "a hit for "+read, func() error {
			before := r.server.Stats().Hits
			got1, got2 := first.Do(words(read)...), second.Do(words(read)...)
			if got1 != want1 || got2 != want2 {
				t.Fatalf("%s: got %q and %q, want %q and %q", read, got1, got2, want1, want2)
			}
			if r.server.Stats().Hits != before+2 {
				return fmt.Errorf("not answered from memory")
			}
			return nil
		})
	}
}

// Reads that cannot be kept, and errors, are what Redis says, every time.
func TestWhatIsNotKept(t *testing.T) {
	r := startNear(t, keepAll)
	for _, c := range ruleSetup {
		r.direct.Do(words(c)...)
	}
	r.warm("GET", "rs")
	before := r.server.Stats().Hits
	for _, read := range []string{
		"GET rh", "HGET rs f", "ZRANGE rz a b", "LINDEX rl x", "GETRANGE rs x y", "EXISTS rs re", "EXISTS rs rs", "ZRANK rz a WITHSCORE", "GETBIT rs x", "GET", "MGET", "GET other", "MGET rs other",
	} {
		want := r.direct.Do(words(read)...)
		for range 3 {
			if got := r.front[0].Do(words(read)...); got != want {
				t.Errorf("%s: got %q, want %q", read, got, want)
			}
		}
	}
	if got := r.server.Stats().Hits; got != before {
		t.Errorf("%d of them are answered from memory", got-before)
	}
	r.direct.Do("SET", "rbig", strings.Repeat("x", 2<<20))
	for range 2 {
		if got := r.front[0].Do("GET", "rbig"); len(got) < 2<<20 {
			t.Errorf("%d bytes of a large value", len(got))
		}
	}
	want := r.direct.Do("MGET", "rs", "rh", "rbig")
	for range 3 {
		if got := r.front[0].Do("MGET", "rs", "rh", "rbig"); got != want {
			t.Errorf("MGET: got %.100q, want %.100q", got, want)
		}
	}
}

// The first rule that names key and command applies; what no rule names is not kept.
func TestWhichRuleApplies(t *testing.T) {
	r := startNear(t, func(o *proxy.Options) {
		rule := func(match string, commands ...string) {
			o.Cache.Rules = append(o.Cache.Rules, proxy.Rule{Match: match, Commands: commands, TTL: time.Minute, MaxValue: 100})
		}
		rule("a:*", "get")
		rule("a:[0-9]", "get", "strlen")
		rule("exact", "get")
		rule("*:end", "hget")
		rule("h?t", "get", "mget")
	})
	r.warm("GET", "a:x") // the lanes are up
	hits := func() (counts []uint64) {
		for _, rule := range r.server.Stats().Rules {
			counts = append(counts, rule.Hits)
		}
		return counts
	}
	for read, rule := range map[string]int{
		"GET a:1": 0, "STRLEN a:1": 1, "STRLEN a:x": -1, "GET exact": 2, "GET exactly": -1, "HGET a:end f": 3, "GET b:end": -1, "GET hot": 4, "GET ht": -1, "MGET hot hat": 4, "MGET hot a:1": -1, "GET other": -1,
	} {
		before := hits()
		if rule >= 0 {
			r.warm(words(read)...)
		}
		for range 3 {
			r.front[0].Do(words(read)...)
		}
		after := hits()
		for i := range after {
			if grew := after[i] > before[i]; grew != (i == rule) {
				t.Errorf("%s: hits of rule %d went from %d to %d", read, i, before[i], after[i])
			}
		}
	}
	if info := r.front[0].Do("INFO", "proxy"); !strings.Contains(info, "nearcache_rule_5:hits=") || !strings.Contains(info, ",match=h?t\r\n") {
		t.Errorf("INFO does not have the rules: %s", info)
	}
	r.front[0].Do("SET", "hot", strings.Repeat("x", 200))
	before := hits()
	for range 3 {
		r.front[0].Do("GET", "hot")
	}
	if after := hits(); !slices.Equal(before, after) {
		t.Errorf("a value above max_value is kept")
	}
}

// Every way to change a key is seen by everything that is kept of it.
func TestEveryWriteIsSeenByAllReads(t *testing.T) {
	r := startNear(t, keepAll)
	reads := []string{"TYPE rk", "GET rk", "MGET rk rother", "HGET rk f", "LRANGE rk 0 -1", "ZRANGE rk 0 -1 WITHSCORES"}
	writer := r.dial()
	for i, write := range []string{
		"SET rk 1", "APPEND rk x", "SETRANGE rk 3 abc", "INCR rother", "DEL rk", "HSET rk f 1", "HINCRBY rk f 1", "HDEL rk f", "RPUSH rk a b", "LSET rk 0 z", "LPOP rk", "RPOPLPUSH rk rother2", "RPUSH rk q", "BLPOP rk 1",
		"ZADD rk 1 a", "ZINCRBY rk 2 a", "ZREM rk a", "SADD rk a", "SMOVE rk rset a", "XADD rk 1-1 f v", "XTRIM rk MAXLEN 0", "RENAME rk rk2", "RENAME rk2 rk", "COPY rset rk REPLACE", "EXPIRE rk 0", "RPUSH rl 3 1 2", "BITOP OR rk rother rother", "GETDEL rk", "SORT rl STORE rk",
		"GEOADD rk 1 1 a", "UNLINK rk", "PFADD rk a", "GETSET rk x", "FLUSHALL", "MSET rk a rother b", "FLUSHDB",
	} {
		c, through := writer, i%3 > 0
		if !through {
			c = r.direct
		}
		for _, read := range reads {
			r.front[i%2].Do(words(read)...)
		}
		c.Do(words(write)...)
		for _, read := range reads {
			r.agree(through, words(read)...)
		}
	}
	for _, script := range []string{"return redis.call('SET','rk',ARGV[1])", "return redis.call('INCR','rother')"} {
		writer.Do("SET", "rk", "w")
		r.warm("GET", "rk")
		r.warm("MGET", "rk", "rother")
		writer.Do("EVAL", script, "0", "v")
		for _, read := range reads {
			r.agree(true, words(read)...)
		}
	}
}

// A key's expiry ends everything that is kept of it.
func TestExpiryEndsWhatRulesKeep(t *testing.T) {
	r := startNear(t, keepAll)
	r.warm("GET", "rw")
	r.direct.Do("SET", "rs", "x", "PX", "300")
	r.direct.Do("RPUSH", "rl", "x")
	r.direct.Do("PEXPIRE", "rl", "300")
	reads := []string{"GET rs", "STRLEN rs", "EXISTS rs", "TYPE rs", "LRANGE rl 0 -1", "LLEN rl", "MGET rs rl"}
	for _, read := range reads {
		for _, c := range r.front {
			c.Do(words(read)...)
		}
	}
	clustertest.Await(t, "the expiry", func() error {
		for _, c := range r.front {
			for _, read := range reads { // none may say that the key is there after one has said that it is not
				if got := c.Do(words(read)...); strings.Contains(got, "x") || got == ":1\r\n" || got == "+string\r\n" {
					return fmt.Errorf("%s: %q", read, got)
				}
			}
		}
		return nil
	})
}

// TestManyFieldsOfOneHash: questions about one key have places of their own.
func TestManyFieldsOfOneHash(t *testing.T) {
	r := startNear(t, keepAll)
	const fields = 200
	for i := range fields {
		r.direct.Do("HSET", "rh", fmt.Sprint(i), fmt.Sprint(i))
	}
	read := func() {
		for i := range fields {
			for _, c := range r.front {
				if got := c.Do("HGET", "rh", fmt.Sprint(i)); got != fmt.Sprintf("$%d\r\n%d\r\n", len(fmt.Sprint(i)), i) {
					t.Fatalf("field %d: %q", i, got)
				}
			}
		}
	}
	r.warm("GET", "rw")
	clustertest.Await(t, "every field from memory", func() error {
		before := r.server.Stats().Hits
		read()
		if got := r.server.Stats().Hits - before; got < 2*fields-20 { // the stripes of some may be shared by eight
			return fmt.Errorf("%d of %d", got, 2*fields)
		}
		return nil
	})
	for _, c := range r.front { // in a pipeline: reads of one key, cold
		r.direct.Do("HSET", "rh", "0", "0")
		for i := range 50 {
			c.Cmd("HGET", "rh", fmt.Sprint(i))
		}
		for i := range 50 {
			c.Expect(fmt.Sprintf("$%d\r\n%d\r\n", len(fmt.Sprint(i)), i))
		}
	}
}

// bareRules are for a backend, or a configuration, without tracking.
func bareRules(ttl time.Duration) func(*proxy.Options) {
	return func(o *proxy.Options) {
		o.Cache.Invalidation = proxy.InvalidationPubSub
		o.Cache.Rules = []proxy.Rule{{Match: "r*", Commands: proxy.CacheableCommands(), TTL: ttl, MaxValue: 1 << 20, Bare: true}}
	}
}

// MGET of more keys than are fetched at once is cached as well, up to as many as are worth it.
func TestMGETOfManyKeys(t *testing.T) {
	r := startNear(t, func(o *proxy.Options) {
		o.Cache.Rules = []proxy.Rule{{Match: "m*", Commands: []string{"get", "mget"}, TTL: time.Minute, MaxValue: 1 << 10}}
	})
	mget := []string{"MGET"}
	for i := range 1024 {
		key := fmt.Sprint("m", i)
		mget = append(mget, key)
		if i%3 > 0 {
			r.redis.Do("SET", key, i)
		}
	}
	for _, n := range []int{65, 300, 1024} {
		read := mget[:1+n]
		if got, want := r.warm(read...), r.direct.Do(read...); got != want {
			t.Errorf("%d keys: got %.200q, want %.200q", n, got, want)
		}
		before := r.server.Stats()
		r.front[0].Do("SET", "m64", fmt.Sprint("new", n)) // the others stay
		r.agree(true, read...)
		after := r.server.Stats()
		if fetches := after.Bypasses - before.Bypasses; fetches > 0 {
			t.Errorf("%d keys, of which one has changed: %d bypasses", n, fetches)
		}
	}
	many := []string{"MGET"}
	for i := range 1025 {
		many = append(many, fmt.Sprint("mx", i))
	}
	before := r.server.Stats()
	r.agree(true, many...)
	if after := r.server.Stats(); after.Bypasses == before.Bypasses || after.Misses > before.Misses {
		t.Errorf("%d keys that are not in memory: %d bypasses, %d misses", len(many)-1, after.Bypasses-before.Bypasses, after.Misses-before.Misses)
	}
}

// What a weaker rule keeps for MGET is not what GET is answered.
func TestGETDoesNotGetWhatIsKeptForMGET(t *testing.T) {
	r := startNear(t, func(o *proxy.Options) {
		o.Cache.Rules = []proxy.Rule{
			{Match: "r*", Commands: []string{"mget"}, TTL: time.Minute, MaxValue: 100, Bare: true},
			{Match: "r*", Commands: []string{"get"}, TTL: time.Minute, MaxValue: 100},
		}
	})
	r.direct.Do("SET", "rs", "1")
	r.warm("MGET", "rs")
	before := r.server.Stats().Rules[1].Misses
	r.warm("GET", "rs")
	if r.server.Stats().Rules[1].Misses == before {
		t.Error("GET was answered without a fetch of its own")
	}
}

// Without tracking, what is written through the proxy is seen at once, the rest when the TTL is over.
func TestBareTTL(t *testing.T) {
	r := startNear(t, bareRules(time.Minute))
	r.direct.Do("SET", "rs", "1")
	old := r.warm("GET", "rs")
	r.direct.Do("SET", "rs", "2")
	for _, c := range r.front {
		if got := c.Do("GET", "rs"); got != old {
			t.Errorf("got %q, want %q, kept until its time is over", got, old)
		}
	}
	r.front[0].Do("APPEND", "rs", "3")
	r.agree(true, "GET", "rs")

	front3 := r.dial()
	front3.Do("HELLO", "3")
	direct3 := clustertest.Dial(t, r.redis.Addr)
	direct3.Do("HELLO", "3")
	for _, c := range ruleSetup {
		r.front[0].Do(words(c)...)
	}
	for _, read := range ruleReads { // fetched in RESP2 here
		r.warm(words(read)...)
		r.agree(true, words(read)...)
		if got, want := front3.Do(words(read)...), direct3.Do(words(read)...); got != want {
			t.Errorf("%s in RESP3: got %q, want %q", read, got, want)
		}
	}

	short := startNear(t, bareRules(50*time.Millisecond))
	short.direct.Do("SET", "rs", "1")
	short.warm("GET", "rs")
	short.direct.Do("SET", "rs", "2")
	short.agree(false, "GET", "rs")
}

// TestBareTTLAndScripts: what a script writes without naming it is seen at once by rules without coherence, too, also when the
// connection on which the key was read is gone.
func TestBareTTLAndScripts(t *testing.T) {
	r := startNear(t, func(o *proxy.Options) {
		keepAll(o)
		o.Cache.Rules[0].Bare = true
	})
	r.direct.Do("SET", "rs", "1")
	r.warm("GET", "rs")
	r.direct.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	clustertest.Await(t, "further fetch connections", func() error {
		for _, c := range r.front {
			c.Do("GET", "rother")
		}
		if list := r.direct.Do("CLIENT", "LIST", "TYPE", "normal"); !strings.Contains(list, "flags=t") {
			return fmt.Errorf("none: %s", list)
		}
		return nil
	})
	r.front[0].Do("EVAL", "return redis.call('SET', ARGV[1], '2')", "0", "rs")
	r.agree(true, "GET", "rs")
}

// TestOneKeyNamedOverAndOver: a command is one write of a key, however often it names it; the count of writes in flight is
// bounded.
func TestOneKeyNamedOverAndOver(t *testing.T) {
	r := startNear(t, keepAll)
	r.warm("GET", "rs")
	r.direct.Do("CLIENT", "PAUSE", "60000", "WRITE")
	del := append([]string{"DEL"}, slices.Repeat([]string{"rs", "rl"}, 1000)...)
	r.front[0].Cmd(del...)
	clustertest.Await(t, "the write", func() error {
		got := r.front[1].Do("PROXY", "CACHE", "INSPECT", "rs")
		switch {
		case strings.Contains(got, "writes_in_flight\r\n:1\r\n"):
			return nil
		case strings.Contains(got, "writes_in_flight\r\n:0\r\n"):
			return fmt.Errorf("it is not in flight")
		}
		t.Fatalf("one command is several writes: %q", got)
		return nil
	})
	r.direct.Do("CLIENT", "UNPAUSE")
	r.front[0].Expect(":0\r\n")
	r.warm("GET", "rs")
}

func TestRulesThatCannotBeKept(t *testing.T) {
	o := proxytest.Options(t, proxytest.Single("127.0.0.1:1"))
	o.Cache.Rules = []proxy.Rule{{Match: "item:*", Commands: []string{"get"}}}
	o.Backend.Tracking = false
	want := `nearcache.rules: "item:*" asks for coherence by tracking, but there is none (nearcache.invalidation, or the backend, offers no client tracking): say coherence: ttl to accept what is weaker`
	if _, err := proxy.New(o); err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
	o.Backend.Tracking = true
	o.Cache.Rules[0].Commands = []string{"ttl"}
	want = `cannot keep replies to "ttl" (nearcache.rules, "item:*"): they depend on more than one key's content`
	if _, err := proxy.New(o); err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

// Whatever is written, and on which way, every read is answered as Redis would.
func TestRulesAgreeWithRedisAtRandom(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport func(*proxy.Options)) {
		r := startNear(t, keepAll, transport)
		writer := r.dial()
		r.warm("GET", "rw")
		rng := rand.New(rand.NewPCG(1, 2))
		pick := func(texts ...string) string { return texts[rng.IntN(len(texts))] }
		key := func() string { return pick("r1", "r2", "r3") }
		for step := range 300 {
			k := key()
			write := words(strings.ReplaceAll(pick(
				"SET K V", "APPEND K V", "SETRANGE K 2 V", "INCR K", "GETSET K V", "DEL K", "HSET K f V", "HSET K g V f V", "HDEL K f", "HINCRBY K n 1", "RPUSH K V", "LPOP K", "LTRIM K 0 1",
				"LSET K 0 V", "SADD K V a", "SREM K a", "SPOP K", "ZADD K 1 a 2 V", "ZINCRBY K 1.5 a", "ZREM K a", "ZPOPMIN K", "XADD K * f V", "XTRIM K MAXLEN 1", "RENAME K r1", "COPY K r2 REPLACE",
				"PEXPIRE K 100000", "PERSIST K", "SETBIT K 9 1", "MSET r1 V r2 V", "EXPIRE K 0", "SUNIONSTORE r3 K", "ZUNIONSTORE r2 1 K",
			), "K", k))
			for i, w := range write {
				if w == "V" {
					write[i] = fmt.Sprint(rng.IntN(1000))
				}
			}
			through := rng.IntN(3) > 0
			switch {
			case !through:
				r.direct.Do(write...)
			case rng.IntN(4) == 0:
				writer.Do("MULTI")
				writer.Do(write...)
				writer.Do("EXEC")
			case rng.IntN(6) == 0:
				writer.Do(append([]string{"EVAL", "return redis.pcall(unpack(ARGV))", "0"}, write...)...)
			default:
				writer.Do(write...)
			}
			for range 4 {
				read := words(strings.ReplaceAll(pick(
					"GET K", "STRLEN K", "GETRANGE K 0 1", "TYPE K", "EXISTS K", "MGET K r1 r2", "MGET r1 r2 r3", "HGETALL K", "HGET K f", "HMGET K f g", "HLEN K", "HEXISTS K g", "HVALS K", "LRANGE K 0 -1", "LINDEX K 0",
					"LLEN K", "SISMEMBER K a", "SCARD K", "ZRANGE K 0 -1 WITHSCORES", "ZSCORE K a", "ZCARD K", "ZRANK K a", "XLEN K", "BITCOUNT K", "GETBIT K 9",
				), "K", pick(k, key())))
				want := r.direct.Do(read...)
				if !through {
					clustertest.Await(t, fmt.Sprintf("%q as Redis has it", read), func() error {
						if got := r.front[rng.IntN(2)].Do(read...); got != want {
							return fmt.Errorf("got %.100q, want %.100q", got, want)
						}
						return nil
					})
				}
				for i := range 3 {
					if got := r.front[i%2].Do(read...); got != want {
						t.Fatalf("step %d, after %q (through the proxy: %v), %q: got %.100q, want %.100q", step, write, through, read, got, want)
					}
				}
			}
		}
		if hits := r.server.Stats().Hits; hits < 200 {
			t.Errorf("%d hits only: nothing is tested", hits)
		}
	})
}

// What the reads of several clients show of one key never goes back, whichever commands
// they use and whichever loop they are on, while it is changed around the proxy and
// invalidations take their time, on each connection another one.
func TestReadsOfOneKeyNeverGoBack(t *testing.T) {
	var wire *proxytest.Relay
	r := startNear(t, keepAll, func(o *proxy.Options) {
		wire = proxytest.StartRelay(t, o.Topology.Current().Shards[0].Primary.Addr)
		o.Topology, o.Cache.MaxStaleness = proxytest.Single(wire.Addr), 10*time.Second
	})
	r.direct.Do("HSET", "rh", "a", "100000", "b", "100000")
	r.warm("GET", "rw")
	wire.Lag(proxytest.Fetch, 10*time.Millisecond)
	var floor atomic.Int64 // the newest state that a finished read has shown
	floor.Store(100000)
	until := time.Now().Add(time.Second)
	var wg sync.WaitGroup
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(1, 2))
		for n := 100001; time.Now().Before(until); n++ {
			r.direct.Do("HSET", "rh", "a", fmt.Sprint(n), "b", fmt.Sprint(n))
			time.Sleep(time.Duration(rng.IntN(30)) * time.Millisecond)
		}
	})
	reads := [][]string{words("HGET rh a"), words("HGET rh b"), words("HMGET rh b a"), words("HGETALL rh"), words("HVALS rh")}
	for i := range 6 {
		c := r.dial()
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 3))
			for time.Now().Before(until) {
				read := reads[rng.IntN(len(reads))]
				least := floor.Load()
				reply := c.Do(read...)
				fields := strings.Split(strings.TrimSuffix(reply, "\r\n"), "\r\n")
				got, err := strconv.ParseInt(fields[len(fields)-1], 10, 64)
				if err != nil || got < least {
					t.Errorf("%q shows %q, but %d had been seen", read, reply, least)
					return
				}
				for {
					old := floor.Load()
					if old >= got || floor.CompareAndSwap(old, got) {
						break
					}
				}
			}
		})
	}
	wg.Wait()
	if s := r.server.Stats(); s.Hits < s.Misses {
		t.Errorf("%d hits and %d misses", s.Hits, s.Misses)
	}
}

// Two commands on one key are read on one connection, for the clients of all loops: there an
// invalidation comes before any reply that shows the change, wherever else it is late.
func TestOneConnectionReadsAKey(t *testing.T) {
	var mu sync.Mutex
	value := "1"
	late := make(map[*proxytest.FakeConn]bool) // which have read the key and not been told of its change
	f := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
		mu.Lock()
		defer mu.Unlock()
		reply, told := "", ""
		switch args[0] {
		case "HGET":
			reply = "$1\r\n" + value + "\r\n"
		case "HGETALL":
			reply = "%1\r\n$1\r\na\r\n$1\r\n" + value + "\r\n"
		default:
			return ""
		}
		if late[c] && value == "2" {
			told = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$2\r\nrh\r\n"
		}
		if args[1] == "rh" {
			late[c] = value == "1"
		}
		return told + reply
	})
	o := proxytest.Options(t, proxytest.Single(f.Addr))
	keepAll(&o)
	o.Cache.MaxStaleness = 10 * time.Second
	r := &nearRig{t: t}
	r.server, r.addr = proxytest.Start(t, o)
	for range 2 {
		r.front = append(r.front, r.dial())
	}
	for i, c := range r.front { // every loop that reads for itself has its connection
		clustertest.Await(t, "a fetch", func() error {
			before := r.server.Stats().Hits
			if c.Do("HGET", fmt.Sprint("r", i), "a"); r.server.Stats().Hits == before {
				return fmt.Errorf("none yet")
			}
			return nil
		})
	}
	r.warm("HGET", "rh", "a")
	mu.Lock()
	value = "2"
	mu.Unlock()
	if got, want := r.front[1].Do("HGETALL", "rh"), "*2\r\n$1\r\na\r\n$1\r\n2\r\n"; got != want {
		t.Fatalf("HGETALL: got %q, want %q", got, want)
	}
	for i, c := range r.front {
		if got := c.Do("HGET", "rh", "a"); got != "$1\r\n2\r\n" {
			t.Errorf("client %d: HGET shows %q after HGETALL has shown 2", i, got)
		}
	}
}

// testClusterRules: keys of all shards, one of which moves; MGET is split where it has to be.
func testClusterRules(t *testing.T, c *shared, old *proxytest.Discovered) {
	p := proxytest.StartCluster(t, c.Cluster, func(o *proxy.Options) {
		keepAll(o)
		o.Cache.MaxStaleness = maxStaleness
	})
	keys := []string{keyOf("r", 0), keyOf("r", 1), keyOf("r", 2)}
	defer c.moveTo(keys[0], 0)
	writer := clustertest.Dial(t, old.Addr) // beside the proxy
	front := []*clustertest.Conn{clustertest.Dial(t, p.Addr), clustertest.Dial(t, p.Addr)}
	reads := [][]string{{"MGET", keys[0], keys[1], keys[2]}, {"MGET", keys[1]}, {"GET", keys[0]}, {"STRLEN", keys[0]}, {"EXISTS", keys[2]}}
	agree := func(want string) {
		t.Helper()
		bulk := bulkOf(want)
		replies := []string{"*3\r\n" + bulk + bulk + bulk, "*1\r\n" + bulk, bulk, fmt.Sprintf(":%d\r\n", len(want)), ":1\r\n"}
		for i, read := range reads {
			for _, conn := range front {
				clustertest.Await(t, fmt.Sprintf("a hit for %q", read), func() error {
					before := p.Stats().Hits
					if got := conn.Do(read...); got != replies[i] {
						return fmt.Errorf("got %q, want %q", got, replies[i])
					}
					if p.Stats().Hits == before {
						return fmt.Errorf("not from memory")
					}
					return nil
				})
			}
		}
	}
	write := func(conn *clustertest.Conn, value string) {
		conn.Do("MSET", keys[0], value, keys[1], value, keys[2], value)
	}
	write(writer, "1")
	agree("1")
	write(writer, "22")
	agree("22")
	write(front[0], "333")
	for _, conn := range front {
		if got := conn.Do("MGET", keys[0], keys[2]); got != "*2\r\n$3\r\n333\r\n$3\r\n333\r\n" {
			t.Errorf("after MSET through the proxy: %q", got)
		}
	}
	c.moveTo(keys[0], 1)
	agree("333")
	write(writer, "4444")
	agree("4444")
}
