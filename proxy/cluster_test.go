package proxy_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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
	"cosky-proxy/cluster/discovery"
	"cosky-proxy/cluster/slot"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
	"cosky-proxy/router/command"
)

// shared is one Redis Cluster of three shards behind one proxy per transport. The
// sub-tests of TestCluster use it one after the other, the destructive ones last.
type shared struct {
	*clustertest.Cluster
	proxies map[netloop.Transport]*proxytest.Discovered
}

func TestCluster(t *testing.T) {
	c := &shared{clustertest.StartCluster(t, 3, 1), make(map[netloop.Transport]*proxytest.Discovered)}
	for _, transport := range transports {
		c.proxies[transport] = proxytest.StartCluster(t, c.Cluster, func(o *proxy.Options) {
			o.Transport = transport
			o.Cache.MaxStaleness = maxStaleness
			o.Upstream.Timeout = 5 * time.Second
		})
	}
	for _, tt := range []struct {
		name string
		run  func(*testing.T, *shared, *proxytest.Discovered)
	}{
		{"whole key space", testWholeKeySpace},
		{"split commands", testSplitCommands},
		{"split commands and the heap", testSplitCommandsDoNotAllocate},
		{"key positions", testKeyPositions},
		{"every command", testEveryCommand},
		{"hash tags and binary keys", testHashTags},
		{"scripts", testClusterScripts},
		{"sessions", testClusterSessions},
		{"info", testClusterInfo},
		{"pubsub", testClusterPubSub},
		{"monitor", testClusterMonitor},
		{"wait", testClusterWait},
		{"pubsub figures", testClusterFigures},
		{"key events", testKeyEvents},
		{"shard channels", testShardChannels},
		{"tracking", testClusterTracking},
		{"slow shard", testSlowShard},
		{"order while slots move", testOrderWhileSlotsMove},
		{"open migration", testOpenMigration},
		{"cache and migration", testCacheAndMigration},
		{"rules", testClusterRules},
		{"views", testClusterViews},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onTransports(t, func(t *testing.T, transport netloop.Transport) { tt.run(t, c, c.proxies[transport]) })
		})
	}
	t.Run("dead seeds", func(t *testing.T) { testDeadSeeds(t, c) })
	p := c.proxies[netloop.DefaultTransport]
	t.Run("resharding under load", func(t *testing.T) { testReshardingUnderLoad(t, c, p) })
	t.Run("scripts after changes", func(t *testing.T) { testScriptsAfterChanges(t, c, p) })
	t.Run("frozen master", func(t *testing.T) { testFrozenMaster(t, c, p) })
	t.Run("failover", func(t *testing.T) { testClusterFailover(t, c, p) })
	t.Run("subscribers and failover", func(t *testing.T) { testSubscribersFailover(t, c, p) })
	t.Run("killed master", func(t *testing.T) { testKilledMaster(t, c, p) })
}

// maxStaleness is the bound of cached reads in these tests.
const maxStaleness = 500 * time.Millisecond

// keyOf returns a key that is stored on master number i, as the cluster was
// started.
func keyOf(prefix string, i int) string { return keyIn(prefix, i, 3, 0) }

func testWholeKeySpace(t *testing.T, c *shared, p *proxytest.Discovered) {
	conn := clustertest.Dial(t, p.Addr)
	expectReply(t, conn, "FLUSHALL", "+OK\r\n")
	expectReply(t, conn, "DBSIZE", ":0\r\n")
	expectReply(t, conn, "RANDOMKEY", "$-1\r\n")
	expectReply(t, conn, "KEYS *", "*0\r\n")
	want := make(map[string]bool)
	for shard := range 3 {
		for i := range 10 {
			key := keyIn("ks", shard, 3, i)
			want[key] = true
			expectReply(t, conn, "SET "+key+" v", "+OK\r\n")
		}
	}
	expectReply(t, conn, "DBSIZE", ":30\r\n")
	keys := conn.Do("KEYS", "ks*")
	if !strings.HasPrefix(keys, "*30\r\n") {
		t.Errorf("KEYS: got %q", keys)
	}
	for key := range want {
		if !strings.Contains(keys, bulkOf(key)) {
			t.Errorf("KEYS does not name %q", key)
		}
	}
	// Each shard is as likely as any other: all three stay away from 100 answers
	// once in 10^17 times.
	named := make(map[*clustertest.Redis]bool)
	for range 100 {
		key := strings.Split(conn.Do("RANDOMKEY"), "\r\n")[1]
		if !want[key] {
			t.Fatalf("RANDOMKEY named %q", key)
		}
		named[c.Nodes[int(slot.Of([]byte(key)))*3/slot.Count]] = true
	}
	if len(named) != 3 {
		t.Errorf("RANDOMKEY sees %d of 3 shards", len(named))
	}
	expectReply(t, conn, "FLUSHALL", "+OK\r\n")
	expectReply(t, conn, "DBSIZE", ":0\r\n")
}

func testSplitCommands(t *testing.T, _ *shared, p *proxytest.Discovered) {
	conn := clustertest.Dial(t, p.Addr)
	a, b, h, none := keyOf("a", 0), keyOf("b", 1), keyOf("h", 2), keyOf("none", 1)
	for _, tt := range [][2]string{
		{"DEL " + h, ""},
		{"MSET " + a + " 1 " + b + " 2", "+OK\r\n"},
		{"HSET " + h + " f v", ":1\r\n"},
		{strings.Join([]string{"MGET", b, b, h, none, a}, " "), "*5\r\n$1\r\n2\r\n$1\r\n2\r\n$-1\r\n$-1\r\n$1\r\n1\r\n"},
		{"MGET " + a, "*1\r\n$1\r\n1\r\n"},
		{strings.Join([]string{"EXISTS", a, a, none, h}, " "), ":3\r\n"},
		{strings.Join([]string{"TOUCH", a, a, b}, " "), ":3\r\n"},
		{strings.Join([]string{"DEL", a, a, b, none}, " "), ":2\r\n"},
		{strings.Join([]string{"MSET", a, "1", b, "2", a, "3"}, " "), "+OK\r\n"},
		{"GET " + a, "$1\r\n3\r\n"},
		{strings.Join([]string{"UNLINK", a, b, h}, " "), ":3\r\n"},
		{strings.Join([]string{"MSET", a, "1", b}, " "), "-ERR wrong number of arguments for 'mset' command\r\n"},
		{strings.Join([]string{"SINTER", a, b}, " "), "-CROSSSLOT Keys in request don't hash to the same slot\r\n"},
		{strings.Join([]string{"RENAME", a, b}, " "), "-CROSSSLOT Keys in request don't hash to the same slot\r\n"},
		{"PING", "+PONG\r\n"},
	} {
		if got := conn.Do(strings.Fields(tt[0])...); tt[1] != "" && got != tt[1] {
			t.Errorf("%s: got %q, want %q", tt[0], got, tt[1])
		}
	}
	mset, mget, same, want, wantSame := []string{"MSET"}, []string{"MGET"}, []string{"MGET"}, "*500\r\n", "*500\r\n"
	for i := range 500 {
		key := fmt.Sprint("many", i)
		mset = append(mset, key, strconv.Itoa(i))
		mget = append(mget, key)
		same = append(same, "many7")
		want += bulkOf(strconv.Itoa(i))
		wantSame += bulkOf("7")
	}
	conn.Send(oneWrite(mset, mget, same))
	for i, want := range []string{"+OK\r\n", want, wantSame} {
		if got := conn.ReadReply(); got != want {
			t.Errorf("reply %d: got %.200q", i, got)
		}
	}
}

// testKeyPositions: commands whose key is not the first argument, against the
// answer of the owner.
// Dividing a command costs memory only once. What the rest of the process allocates meanwhile
// is far below one piece for each command.
func testSplitCommandsDoNotAllocate(t *testing.T, _ *shared, p *proxytest.Discovered) {
	conn := clustertest.Dial(t, p.Addr)
	mset, mget, want := []string{"MSET"}, []string{"MGET"}, "*10\r\n"
	for i := range 10 {
		key := fmt.Sprint("ten", i)
		mset, mget, want = append(mset, key, "value"), append(mget, key), want+bulkOf("value")
	}
	const depth, rounds = 8, 400
	batch := []byte(strings.Repeat(clustertest.Encode(mset...)+clustertest.Encode(mget...), depth))
	want = strings.Repeat("+OK\r\n"+want, depth)
	in := make([]byte, len(want))
	round := func() {
		if _, err := conn.Net().Write(batch); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn.Net(), in); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		round()
	}
	if got := string(in); got != want {
		t.Fatalf("got %.200q", got)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range rounds {
		round()
	}
	runtime.ReadMemStats(&after)
	if n := after.Mallocs - before.Mallocs; n >= 2*depth*rounds {
		t.Errorf("%d allocations in %d commands", n, 2*depth*rounds)
	}
}

func testKeyPositions(t *testing.T, c *shared, p *proxytest.Discovered) {
	for shard := range 3 {
		owner, conn := clustertest.Dial(t, c.Nodes[shard].Addr), clustertest.Dial(t, p.Addr)
		tag := "{" + keyOf("t", shard) + "}"
		for _, words := range []string{
			"DEL a b d l z1 z2 s x h",
			"SET a v", "SET b w", "RPUSH l 3 1 2 4 5 6 7", "ZADD z1 1 m 2 n", "ZADD z2 1 m", "SADD s x",
			"MEMORY USAGE #a", "OBJECT ENCODING #a", "DEBUG OBJECT #none",
			"XGROUP CREATE #x g $ MKSTREAM", "XGROUP CREATECONSUMER #x g c", "XINFO GROUPS #x", "XREADGROUP GROUP g c COUNT 1 STREAMS #x >",
			"XREAD COUNT 1 STREAMS #x 0",
			"ZINTERCARD 2 #z1 #z2", "ZUNION 2 #z1 #z2 WITHSCORES", "ZUNIONSTORE #d 1 #z1", "ZRANGESTORE #d #z1 0 -1", "ZMPOP 2 #z1 #z2 MIN",
			"LMPOP 2 #none #l LEFT", "LMOVE #l #l LEFT RIGHT", "BITOP AND #d #a #b", "SORT #l STORE #d", "SORT #l ALPHA DESC",
			"SINTERCARD 2 #s #s", "COPY #a #b REPLACE", "RENAME #a #b", "SMOVE #s #x m", "GEOADD #g 1 1 m", "GEOSEARCHSTORE #d #g FROMMEMBER m BYRADIUS 1 km",
			"GEORADIUS #g 1 1 1 km STORE #d", "PFMERGE #p #p", "LCS #none #none", "EVAL return(redis.call('TYPE',KEYS[1])) 1 #d argument",
			"OBJECT FREQ #a", "OBJECT HELP", "BLPOP #l 1", "BLMPOP 1 2 #l #none LEFT", "BZPOPMIN #z1 1", "BRPOPLPUSH #l #l 1",
		} {
			var args []string
			for _, w := range strings.Fields(words) {
				if key, ok := strings.CutPrefix(w, "#"); ok {
					w = tag + key
				}
				args = append(args, w)
			}
			if args[0] == "DEL" || args[0] == "SET" || args[0] == "RPUSH" || args[0] == "ZADD" || args[0] == "SADD" {
				args[1] = tag + args[1] // set up on the owner, once
				if args[0] == "DEL" {
					args = []string{"DEL"}
					for _, k := range strings.Fields("a b d l z1 z2 s x h g p") {
						args = append(args, tag+k)
					}
				}
				owner.Do(args...)
				continue
			}
			snapshot := dumpAll(t, owner, tag)
			want := owner.Do(args...)
			restoreAll(t, owner, tag, snapshot)
			if got := conn.Do(args...); got != want {
				t.Errorf("%q: got %q, the owner says %q", args, got, want)
			}
		}
	}
}

var dumpedKeys = strings.Fields("a b d l z1 z2 s x h g p none")

func dumpAll(t *testing.T, conn *clustertest.Conn, tag string) map[string]string {
	t.Helper()
	dumps := make(map[string]string)
	for _, k := range dumpedKeys {
		if reply := conn.Do("DUMP", tag+k); reply != "$-1\r\n" {
			_, body, _ := strings.Cut(reply, "\r\n")
			dumps[k] = strings.TrimSuffix(body, "\r\n")
		}
	}
	return dumps
}

func restoreAll(t *testing.T, conn *clustertest.Conn, tag string, dumps map[string]string) {
	t.Helper()
	for _, k := range dumpedKeys {
		conn.Do("DEL", tag+k)
		if dump, ok := dumps[k]; ok {
			if got := conn.Do("RESTORE", tag+k, "0", dump); got != "+OK\r\n" {
				t.Fatalf("cannot restore %s: %s", k, got)
			}
		}
	}
}

// testEveryCommand sends each command of the table that has one key to every
// shard, with as few arguments as it takes and with one more.
func testEveryCommand(t *testing.T, c *shared, p *proxytest.Discovered) {
	redirects := p.Stats().Redirects
	tested := 0
	for _, cmd := range command.All() {
		if !cmd.SingleKey || cmd.Has(command.Blocking) || slices.Contains([]string{"migrate", "move", "pfdebug", "restore-asking"}, cmd.Name) {
			continue
		}
		tested++
		shard := tested % 3
		key := keyOf("every", shard)
		owner, conn := clustertest.Dial(t, c.Nodes[shard].Addr), clustertest.Dial(t, p.Addr)
		for extra := range 2 {
			args := strings.Split(cmd.Name, "|")
			for len(args) < max(cmd.Arity, -cmd.Arity)+extra || len(args) <= cmd.KeyPos {
				args = append(args, "1")
			}
			args[cmd.KeyPos] = key
			owner.Do("DEL", key)
			want := owner.Do(args...)
			owner.Do("DEL", key)
			got := conn.Do(args...)
			if got != want {
				t.Errorf("%q: got %q, the owner says %q", args, got, want)
			}
			if strings.HasPrefix(got, "-MOVED") || strings.HasPrefix(got, "-CROSSSLOT") {
				t.Errorf("%q: got %q", args, got)
			}
		}
		owner.Do("DEL", key)
		owner.Close()
		conn.Close()
	}
	if tested < 140 {
		t.Errorf("only %d commands were tested", tested)
	}
	if n := p.Stats().Redirects - redirects; n != 0 {
		t.Errorf("%d commands went to a wrong shard first", n)
	}
}

func testHashTags(t *testing.T, c *shared, p *proxytest.Discovered) {
	random := rand.New(rand.NewPCG(1, 2))
	keys := []string{
		"{}", "key:{}:{1}", "foo{}{bar}", "foo{{bar}}zap", "foo{bar}{zap}", "a{b", "a}b{c}", "{", "",
		"\r\n", "a\x00b", "$3\r\nfoo\r\n", "\xac\xed\x00\x05t\x00\x03", "{\x00\r\n}x", strings.Repeat("long", 25<<10),
	}
	for range 1000 {
		b := make([]byte, 1+random.IntN(10))
		for i := range b {
			b[i] = "ab{}"[random.IntN(4)]
		}
		keys = append(keys, string(b))
	}
	redirects := p.Stats().Redirects
	conn := clustertest.Dial(t, p.Addr)
	last := make(map[string]string)
	var sets, gets [][]string
	for i, key := range keys {
		last[key] = fmt.Sprintf("%d\r\n\x00", i)
		sets, gets = append(sets, []string{"SET", key, last[key]}), append(gets, []string{"GET", key})
	}
	conn.Send(oneWrite(sets...))
	for range keys {
		conn.Expect("+OK\r\n")
	}
	conn.Send(oneWrite(gets...))
	for _, key := range keys {
		if got := conn.ReadReply(); got != bulkOf(last[key]) {
			t.Fatalf("GET %.50q: got %.100q, want %q", key, got, last[key])
		}
	}
	mget := append([]string{"MGET"}, keys[:20]...)
	want := "*20\r\n"
	for _, key := range keys[:20] {
		want += bulkOf(last[key])
	}
	if got := conn.Do(mget...); got != want {
		t.Errorf("MGET: got %.300q", got)
	}
	if got := conn.Do(append([]string{"DEL"}, keys...)...); got != fmt.Sprintf(":%d\r\n", len(last)) {
		t.Errorf("DEL of %d keys: got %q", len(last), got)
	}
	if n := p.Stats().Redirects - redirects; n != 0 {
		t.Errorf("%d keys were sent to a wrong shard first", n)
	}
}

func testClusterScripts(t *testing.T, c *shared, p *proxytest.Discovered) {
	conn := clustertest.Dial(t, p.Addr)
	a, b := keyOf("a", 0), keyOf("b", 1)
	script := "return {KEYS[1], ARGV[1]}"
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"EVAL", script, "1", a, b}, "*2\r\n" + bulkOf(a) + bulkOf(b)},
		{[]string{"EVAL", script, "2", a, b}, "-CROSSSLOT Keys in request don't hash to the same slot\r\n"},
		{[]string{"EVAL", "return ARGV[1]", "0", a}, bulkOf(a)},
		{[]string{"EVAL_RO", "return redis.call('GET', KEYS[1])", "1", keyOf("none", 2)}, "$-1\r\n"},
		{[]string{"EVAL", "return 'a'", "0"}, "$1\r\na\r\n"},
		{[]string{"EVAL", "return 'a'", "-1"}, "-ERR Number of keys can't be negative\r\n"},
		{[]string{"EVAL", "return 'a'", "abc"}, "-ERR value is not an integer or out of range\r\n"},
		{[]string{"EVAL", "return 'a'", "5", a}, "-ERR Number of keys can't be greater than number of args\r\n"},
		{[]string{"EVAL", "return 'a'", "4294967297"}, "-ERR Number of keys can't be greater than number of args\r\n"},
		{[]string{"EVAL", "s"}, "-ERR wrong number of arguments for 'eval' command\r\n"},
		{[]string{"FCALL", "f", "0"}, "-ERR Function not found\r\n"},
		{[]string{"PING"}, "+PONG\r\n"},
	} {
		if got := conn.Do(tt.args...); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.args, got, tt.want)
		}
	}
	for i := range 3 { // undeclared, as scripts written for one server have it
		key := keyOf("undeclared", i)
		script := "redis.call('set', '" + key + "', 'v') return redis.call('get', '" + key + "')"
		if got := conn.Do("EVAL", script, "0"); got != "$1\r\nv\r\n" {
			t.Errorf("EVAL with a literal key on shard %d: got %q", i, got)
		}
		sha := strings.Split(conn.Do("SCRIPT", "LOAD", "return redis.call('get', ARGV[1])"), "\r\n")[1]
		if got := conn.Do("EVALSHA", sha, "0", key); got != "$1\r\nv\r\n" {
			t.Errorf("EVALSHA with its key as an argument on shard %d: got %q", i, got)
		}
	}
	many := []string{"EVAL", "return #KEYS", "200"}
	for i := range 200 {
		many = append(many, fmt.Sprintf("{%s}%d", a, i))
	}
	if got := conn.Do(many...); got != ":200\r\n" {
		t.Errorf("EVAL with 200 keys: got %q", got)
	}

	sha := bulkText(conn.Do("SCRIPT", "LOAD", fmt.Sprintf("return {KEYS[1], '%s'}", p.Addr)))
	other := strings.Repeat("0", 40)
	if got := conn.Do("SCRIPT", "EXISTS", sha, other); got != "*2\r\n:1\r\n:0\r\n" {
		t.Errorf("SCRIPT EXISTS: got %q", got)
	}
	for i, r := range c.Nodes[:3] {
		if r.Do("SCRIPT", "EXISTS", sha).([]any)[0] != int64(1) {
			t.Errorf("%s does not know the script", r.Addr)
		}
		key := keyOf("k", i)
		if got := conn.Do("EVALSHA", sha, "1", key); got != "*2\r\n"+bulkOf(key)+bulkOf(p.Addr) {
			t.Errorf("EVALSHA on %s: got %q", r.Addr, got)
		}
		if got := conn.Do("EVALSHA", other, "1", key); got != "-NOSCRIPT No matching script. Please use EVAL.\r\n" {
			t.Errorf("EVALSHA of an unknown script: got %q", got)
		}
	}
	if got := conn.Do("EVALSHA", sha, "0"); !strings.HasPrefix(got, "*") {
		t.Errorf("EVALSHA without keys: got %q", got)
	}
	expectReply(t, conn, "SCRIPT FLUSH", "+OK\r\n")
	for i := range 3 {
		if got := conn.Do("EVALSHA", sha, "1", keyOf("k", i)); got != "-NOSCRIPT No matching script. Please use EVAL.\r\n" {
			t.Errorf("EVALSHA after SCRIPT FLUSH: got %q", got)
		}
	}
}

// bulkText is what a bulk reply contains.
func bulkText(reply string) string {
	_, rest, _ := strings.Cut(reply, "\r\n")
	return strings.TrimSuffix(rest, "\r\n")
}

func testClusterSessions(t *testing.T, _ *shared, p *proxytest.Discovered) {
	conn := clustertest.Dial(t, p.Addr)
	a, b := keyOf("a", 0), keyOf("b", 1)
	conn.Do("DEL", a, b)
	for _, tt := range []struct {
		name     string
		commands []string
		want     string
	}{
		{"a transaction in one packet", []string{"MULTI", "GET " + a, "SET " + a + " 1", "EXEC", "PING"},
			"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$-1\r\n+OK\r\n+PONG\r\n"},
		{"an empty one", []string{"MULTI", "EXEC", "MULTI", "DISCARD"}, "+OK\r\n*0\r\n+OK\r\n+OK\r\n"},
		{"two slots", []string{"MULTI", "SET " + a + " 2", "SET " + b + " 2", "EXEC", "GET " + a},
			"+OK\r\n+QUEUED\r\n-CROSSSLOT Keys in request don't hash to the same slot\r\n-EXECABORT Transaction discarded because of previous errors.\r\n$1\r\n1\r\n"},
		{"watched elsewhere", []string{"WATCH " + b, "MULTI", "SET " + a + " 2", "EXEC", "GET " + a},
			"+OK\r\n+OK\r\n+QUEUED\r\n-ERR the watched keys and those of the transaction are on different nodes of the Redis Cluster\r\n$1\r\n1\r\n"},
		{"watched", []string{"WATCH " + b, "MULTI", "SET " + b + " 3", "EXEC", "GET " + b}, "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n$1\r\n3\r\n"},
		{"watched and changed", []string{"WATCH " + b, "SET " + b + " 4", "MULTI", "SET " + b + " 5", "EXEC", "GET " + b},
			"+OK\r\n+OK\r\n+OK\r\n+QUEUED\r\n*-1\r\n$1\r\n4\r\n"},
		{"watched apart", []string{"WATCH " + a, "WATCH " + b, "UNWATCH", "WATCH " + a + " " + b},
			"+OK\r\n-ERR keys of different nodes cannot be watched together through cosky-proxy\r\n+OK\r\n-CROSSSLOT Keys in request don't hash to the same slot\r\n"},
		{"databases", []string{"SELECT 0", "SELECT 1", "SELECT x", "PING"},
			"+OK\r\n-ERR SELECT is not allowed in cluster mode\r\n-ERR value is not an integer or out of range\r\n+PONG\r\n"},
		{"blocked over slots", []string{"BLPOP none" + a + " none" + keyOf("x", 2) + " 0", "MGET " + a + " " + b, "PING", "BLPOP {t}a {t}b 0.05"},
			"-CROSSSLOT Keys in request don't hash to the same slot\r\n*2\r\n$1\r\n1\r\n$1\r\n4\r\n+PONG\r\n*-1\r\n"},
	} {
		var cs [][]string
		for _, c := range tt.commands {
			cs = append(cs, strings.Fields(c))
		}
		conn.Send(oneWrite(cs...))
		var got string
		for range cs {
			got += conn.ReadReply()
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
	pusher := clustertest.Dial(t, p.Addr)
	for i := range 3 {
		list := keyOf("list", i)
		conn.Cmd("BLPOP", list, "0")
		clustertest.Await(t, "a pushed element to be popped", func() error {
			pusher.Do("RPUSH", list, "e")
			if got := pusher.Do("DEL", list); got != ":0\r\n" {
				return errors.New(got)
			}
			return nil
		})
		conn.Expect("*2\r\n" + bulkOf(list) + bulkOf("e"))
	}
}

func testClusterPubSub(t *testing.T, c *shared, p *proxytest.Discovered) {
	subscriber, publisher := clustertest.Dial(t, p.Addr), clustertest.Dial(t, p.Addr)
	for i := range 3 {
		channel := keyOf("channel", i)
		subscriber.Do("SUBSCRIBE", channel)
		want := "*3\r\n" + bulkOf("message") + bulkOf(channel) + bulkOf("m")
		publisher.Do("PUBLISH", channel, "m")
		subscriber.Expect(want)
		// On a cluster a message reaches the subscribers of every node.
		for _, r := range c.Nodes {
			r.Do("PUBLISH", channel, "m")
			subscriber.Expect(want)
		}
	}
	// What is published on one after the other is heard in that order.
	var messages [][]string
	for i := range 300 {
		messages = append(messages, []string{"PUBLISH", keyOf("channel", i%3), strconv.Itoa(i)})
	}
	publisher.Send(oneWrite(messages...))
	for i := range messages {
		subscriber.Expect("*3\r\n" + bulkOf("message") + bulkOf(keyOf("channel", i%3)) + bulkOf(strconv.Itoa(i)))
		publisher.Expect(":1\r\n")
	}
	subscriber.Do("PSUBSCRIBE", "pattern*")
	publisher.Do("PUBLISH", "pattern-x", "m")
	subscriber.Expect("*4\r\n" + bulkOf("pmessage") + bulkOf("pattern*") + bulkOf("pattern-x") + bulkOf("m"))
}

// testSlowShard: the replies of a pipeline keep their order, however slow one of
// the shards is.
func testSlowShard(t *testing.T, c *shared, p *proxytest.Discovered) {
	conn := clustertest.Dial(t, p.Addr)
	var sets, gets [][]string
	for i := range 1000 {
		key := fmt.Sprint("slow", i)
		sets, gets = append(sets, []string{"SET", key, strconv.Itoa(i)}), append(gets, []string{"GET", key})
	}
	conn.Send(oneWrite(sets...))
	for range sets {
		conn.Expect("+OK\r\n")
	}
	c.Nodes[1].Freeze()
	thaw := time.AfterFunc(300*time.Millisecond, c.Nodes[1].Thaw)
	defer thaw.Stop()
	conn.Send(oneWrite(gets...))
	for i := range gets {
		if got := conn.ReadReply(); got != bulkOf(strconv.Itoa(i)) {
			c.Nodes[1].Thaw()
			t.Fatalf("reply %d: got %q", i, got)
		}
	}
	c.AwaitOK()
}

// moveTo gives key's slot to master number i.
func (c *shared) moveTo(key string, i int) {
	if owner := c.OwnerOf(key); owner != c.Nodes[i] {
		c.MoveSlot(c.SlotOf(key), c.Nodes[i])
	}
}

// testOrderWhileSlotsMove: every GET of a pipeline sees the SET before it, and
// replies keep their order, wherever the slot is at the moment.
func testOrderWhileSlotsMove(t *testing.T, c *shared, p *proxytest.Discovered) {
	key := keyOf("order", 0)
	defer c.moveTo(key, 0)
	var stop atomic.Bool
	failures := make(chan string, 4)
	var wg sync.WaitGroup
	for w := range 4 {
		conn := clustertest.Dial(t, p.Addr)
		own := fmt.Sprintf("{%s}%d", key, w)
		wg.Go(func() {
			for i := 0; !stop.Load(); i += 50 {
				var cs [][]string
				for j := range 50 {
					v := strconv.Itoa(i + j)
					cs = append(cs, []string{"SET", own, v}, []string{"GET", own}, []string{"MSET", own + "a", v, own + "b", v})
					if j == 25 {
						cs = append(cs, []string{"DEL", own}) // absent: now ASK, now MOVED
					}
				}
				conn.Send(oneWrite(cs...))
				for _, cmd := range cs {
					reply := conn.ReadReply()
					want := "+OK\r\n"
					switch cmd[0] {
					case "DEL":
						want = ":1\r\n"
					case "GET":
						want = bulkOf(cs[slices.IndexFunc(cs, func(o []string) bool { return &o[0] == &cmd[0] })-1][2])
					}
					if reply != want {
						failures <- fmt.Sprintf("%q: got %q, want %q", cmd, reply, want)
						return
					}
				}
			}
		})
	}
	for i := range 6 {
		c.moveTo(key, (i+1)%3)
	}
	stop.Store(true)
	wg.Wait()
	close(failures)
	for f := range failures {
		t.Error(f)
	}
}

// testOpenMigration leaves a slot between two nodes: absent keys belong to the
// target, present ones to the source, and the slot has not moved.
func testOpenMigration(t *testing.T, c *shared, p *proxytest.Discovered) {
	key := keyOf("open", 0)
	present, absent, other := "{"+key+"}present", "{"+key+"}absent", "{"+key+"}other"
	conn := clustertest.Dial(t, p.Addr)
	conn.Do("DEL", present, absent, other, "{"+key+"}new1", "{"+key+"}new2", "{"+key+"}set2")
	expectReply(t, conn, "SET "+present+" here", "+OK\r\n")
	awaitOwner(t, p, key, c.Nodes[0])
	expectReply(t, conn, "SADD "+other+" m", ":1\r\n")
	version := p.Discovery.Current().Version
	sl := c.SlotOf(key)
	c.BeginMigrate(sl, c.Nodes[1])
	var cs [][]string
	for i := range 500 {
		cs = append(cs, []string{"SET", absent, strconv.Itoa(i)}, []string{"GET", absent}, []string{"GET", present})
	}
	conn.Send(oneWrite(cs...))
	for i := range 500 {
		conn.Expect("+OK\r\n")
		conn.Expect(bulkOf(strconv.Itoa(i)))
		conn.Expect(bulkOf("here"))
	}
	if got := p.Discovery.Current().Primary(uint16(sl)).Addr; got != c.Nodes[0].Addr {
		t.Errorf("the slot map changed: %s", got)
	}
	if got := p.Discovery.Current().Version; got > version+2 {
		t.Errorf("%d new topologies for a slot that does not move", got-version)
	}
	// A proxy that does not know yet that the slot is on its way: what was sent behind the refused command, and executed, comes last.
	fresh := clustertest.Dial(t, proxytest.StartCluster(t, c.Cluster, nil).Addr)
	fresh.Send(oneWrite([]string{"MSET", present, "first", absent, "first"}, []string{"SET", present, "here"}, []string{"GET", present}))
	fresh.Expect(tryAgain)
	fresh.Expect("+OK\r\n")
	fresh.Expect(bulkOf("here"))
	// Transactions and scripts on absent keys go to the target as a whole.
	for _, k := range []string{"new1", "new2"} {
		k = "{" + key + "}" + k
		conn.Send(oneWrite([]string{"MULTI"}, []string{"INCR", k}, []string{"INCR", k}, []string{"EXEC"}, []string{"EVAL", "return redis.call('INCR', KEYS[1])", "1", k}))
		for _, want := range []string{"+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*2\r\n:1\r\n:2\r\n", ":3\r\n"} {
			conn.Expect(want)
		}
	}
	// Keys on both sides: repeated until they are together.
	done := make(chan struct{})
	conn.Send(oneWrite([]string{"SADD", "{" + key + "}set2", "m"}, []string{"SINTER", other, "{" + key + "}set2"}, []string{"EVAL", "return redis.call('EXISTS', KEYS[1], KEYS[2])", "2", present, absent}, []string{"PING"}))
	retries := p.Stats().Retries
	go func() {
		defer close(done)
		clustertest.Await(t, "repeats", func() error {
			if p.Stats().Retries-retries < 4 {
				return errors.New("too few")
			}
			return nil
		})
	}()
	<-done
	c.MigrateKeys(sl, c.Nodes[1], 0)
	c.FinishMigrate(sl, c.Nodes[1])
	for _, want := range []string{":1\r\n", "*1\r\n" + bulkOf("m"), ":2\r\n", "+PONG\r\n"} {
		conn.Expect(want)
	}
	awaitOwner(t, p, key, c.Nodes[1])
	// One hop per command again.
	clustertest.Await(t, "no more redirects", func() error {
		n := p.Stats().Redirects
		expectReply(t, conn, "GET "+present, bulkOf("here"))
		if p.Stats().Redirects != n {
			return errors.New("redirected")
		}
		return nil
	})
	c.moveTo(key, 0)
}

// awaitOwner waits until the proxy's topology names owner for key's slot.
func awaitOwner(t *testing.T, p *proxytest.Discovered, key string, owner *clustertest.Redis) {
	t.Helper()
	clustertest.Await(t, "the owner to be known", func() error {
		p.Discovery.Refresh("test")
		if got := p.Discovery.Current().Primary(slot.Of([]byte(key))).Addr; got != owner.Addr {
			return errors.New(got)
		}
		return nil
	})
}

// awaitCached reads a hash until it comes out of memory.
func awaitCached(t *testing.T, p *proxytest.Discovered, conn *clustertest.Conn, key, want string) {
	t.Helper()
	clustertest.Await(t, key+" to be cached", func() error {
		hits := p.Stats().Hits
		if got := conn.Do("HGETALL", key); got != want {
			t.Fatalf("HGETALL %s: got %q, want %q", key, got, want)
		}
		if p.Stats().Hits == hits {
			return errors.New("not yet")
		}
		return nil
	})
}

// awaitSeen waits until a cached read shows a change that was made around the
// proxy. before is when the change had been acknowledged.
func awaitSeen(t *testing.T, conn *clustertest.Conn, key, want string, before time.Time) {
	t.Helper()
	for {
		start := time.Now()
		got := conn.Do("HGETALL", key)
		if got == want {
			return
		}
		if age := start.Sub(before); age > maxStaleness {
			t.Fatalf("HGETALL %s still says %q %v after it became %q", key, got, age, want)
		}
	}
}

func testCacheAndMigration(t *testing.T, c *shared, p *proxytest.Discovered) {
	tag := "{" + keyOf("ns", 0) + "}"
	present, absent, late := tag+":svc_itc:present", tag+":svc_itc:absent", tag+":svc_itc:late"
	defer c.moveTo(tag, 0)
	conn := clustertest.Dial(t, p.Addr)
	conn.Do("DEL", present, absent, late)
	hash := func(v string) string { return "*2\r\n" + bulkOf("v") + bulkOf(v) }
	conn.Do("HSET", present, "v", "1")
	awaitCached(t, p, conn, present, hash("1"))
	awaitCached(t, p, conn, absent, "*0\r\n")
	awaitCached(t, p, conn, late, "*0\r\n")

	// The marker is left open; a direct client creates an absent key on the target.
	sl := c.SlotOf(tag)
	c.BeginMigrate(sl, c.Nodes[1])
	target := clustertest.Dial(t, c.Nodes[1].Addr)
	target.Send(oneWrite([]string{"ASKING"}, []string{"HSET", absent, "v", "2"}))
	target.Expect("+OK\r\n")
	target.Expect(":1\r\n")
	awaitSeen(t, conn, absent, hash("2"), time.Now())
	// A write through the proxy is seen at once, on both sides.
	conn.Send(oneWrite([]string{"HSET", present, "v", "3"}, []string{"HGETALL", present}, []string{"HSET", absent, "v", "4"}, []string{"HGETALL", absent}))
	for _, want := range []string{":0\r\n", hash("3"), ":0\r\n", hash("4")} {
		conn.Expect(want)
	}

	c.MigrateKeys(sl, c.Nodes[1], 0)
	c.FinishMigrate(sl, c.Nodes[1])
	c.Nodes[1].Do("HSET", present, "v", "5")
	c.Nodes[1].Do("HSET", late, "v", "6")
	written := time.Now()
	awaitSeen(t, conn, present, hash("5"), written)
	awaitSeen(t, conn, late, hash("6"), written)
	awaitCached(t, p, conn, present, hash("5"))
	awaitCached(t, p, conn, late, hash("6"))
	c.Nodes[1].Do("HSET", present, "v", "7")
	awaitSeen(t, conn, present, hash("7"), time.Now())
}

// testReshardingUnderLoad moves slots, and all slots of a node's keys, under every
// kind of command: nobody sees an error, and nothing is executed twice or not at all.
func testReshardingUnderLoad(t *testing.T, c *shared, p *proxytest.Discovered) {
	const workers = 6
	keys := []string{keyOf("load", 0), keyOf("load", 1), keyOf("load", 2)}
	direct := clustertest.Dial(t, p.Addr)
	for _, key := range keys {
		direct.Do("DEL", key)
		for w := range workers {
			direct.Do("DEL", fmt.Sprintf("{%s}own%d", key, w))
		}
	}
	sums := make([][]int, workers)
	failures := make(chan string, workers)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for w := range workers {
		sums[w] = make([]int, len(keys))
		conn := clustertest.Dial(t, p.Addr)
		wg.Go(func() {
			for round := 0; !stop.Load(); round++ {
				k := round % len(keys)
				key, own := keys[k], fmt.Sprintf("{%s}own%d", keys[k], w)
				cs := [][]string{{"INCR", key}, {"SET", own, strconv.Itoa(round)}, {"GET", own}}
				want := []string{":", "+OK", bulkOf(strconv.Itoa(round))}
				switch w % 3 {
				case 0:
					cs = append(cs, []string{"MULTI"}, []string{"INCR", key}, []string{"EXEC"})
					want = append(want, "+OK", "+QUEUED", "*1\r\n:")
				case 1:
					cs = append(cs, []string{"EVAL", "return redis.call('INCR', KEYS[1])", "1", key})
					want = append(want, ":")
				case 2:
					cs = append(cs, []string{"INCR", key}, []string{"MGET", keys[0], keys[1], keys[2]})
					want = append(want, ":", "*3\r\n$")
				}
				sums[w][k] += 2
				conn.Send(oneWrite(cs...))
				for i := range cs {
					if reply := conn.ReadReply(); !strings.HasPrefix(reply, want[i]) {
						failures <- fmt.Sprintf("%q: got %q, want %q", cs[i], reply, want[i])
						return
					}
				}
			}
		})
	}
	for i := range 4 {
		for k, key := range keys {
			c.moveTo(key, (i+k)%3)
		}
	}
	stop.Store(true)
	wg.Wait()
	close(failures)
	for f := range failures {
		t.Error(f)
	}
	for k, key := range keys {
		sum := 0
		for w := range workers {
			sum += sums[w][k]
		}
		expectReply(t, direct, "GET "+key, bulkOf(strconv.Itoa(sum)))
		c.moveTo(key, k)
	}
}

func testScriptsAfterChanges(t *testing.T, c *shared, p *proxytest.Discovered) {
	conn := clustertest.Dial(t, p.Addr)
	sha := bulkText(conn.Do("SCRIPT", "LOAD", "return redis.call('SET', KEYS[1], ARGV[1])"))
	// The GET behind must not overtake a script that has to be loaded first.
	check := func(t *testing.T, key, v string) {
		t.Helper()
		conn.Send(oneWrite([]string{"EVALSHA", sha, "1", key, v}, []string{"GET", key}))
		conn.Expect("+OK\r\n")
		conn.Expect(bulkOf(v))
	}
	for i := range 3 {
		check(t, keyOf("k", i), "start")
	}
	t.Run("flushed on one node", func(t *testing.T) {
		c.Nodes[0].Do("SCRIPT", "FLUSH")
		conn.Cmd("EVALSHA", sha, "1", keyOf("k", 0), "flushed")
		conn.Expect("+OK\r\n")
	})
	t.Run("restarted master", func(t *testing.T) {
		// Stopped and back before anybody takes its place.
		c.Nodes[0].Restart()
		c.AwaitOK()
		clustertest.Await(t, "the restarted master", func() error {
			if got := conn.Do("PING"); got != "+PONG\r\n" {
				t.Fatal(got)
			}
			if got := conn.Do("EXISTS", keyOf("k", 0)); got[0] == '-' {
				return errors.New(got)
			}
			return nil
		})
		check(t, keyOf("k", 0), "restarted")
	})
	t.Run("added master", func(t *testing.T) {
		added := c.AddNode()
		key := keyOf("moved", 2)
		conn.Do("SET", key, "before")
		c.MoveSlot(c.SlotOf(key), added)
		check(t, key, "added")
		c.MoveSlot(c.SlotOf(key), c.Nodes[2])
		check(t, key, "back")
	})
}

// testFrozenMaster: the requests for one shard fail within the timeout, others run
// on, and nothing is shifted when the node comes back.
func testFrozenMaster(t *testing.T, c *shared, _ *proxytest.Discovered) {
	p := proxytest.StartCluster(t, c.Cluster, func(o *proxy.Options) { o.Upstream.Timeout = 300 * time.Millisecond })
	frozen, healthy := keyOf("k", 0), keyOf("k", 1)
	conn, other := clustertest.Dial(t, p.Addr), clustertest.Dial(t, p.Addr)
	expectReply(t, conn, "SET "+frozen+" f", "+OK\r\n")
	expectReply(t, other, "SET "+healthy+" h", "+OK\r\n")
	c.Nodes[0].Freeze()
	thaw := time.AfterFunc(1000*time.Millisecond, c.Nodes[0].Thaw) // before the others vote on it
	defer c.Nodes[0].Thaw()
	defer thaw.Stop()
	for range 2 {
		conn.Send(oneWrite([]string{"GET", frozen}, []string{"GET", healthy}))
		for range 50 {
			expectReply(t, other, "GET "+healthy, bulkOf("h"))
		}
		got := conn.ReadReply()
		if !strings.HasPrefix(got, "-ERR cosky-proxy timed out after 300ms") && !strings.HasSuffix(got, "it has not answered for 300ms\r\n") && got != bulkOf("f") {
			t.Errorf("the frozen shard: got %q", got)
		}
		conn.Expect(bulkOf("h"))
	}
	thaw.Stop()
	c.Nodes[0].Thaw()
	clustertest.Await(t, "service", func() error {
		if got := conn.Do("GET", frozen); got != bulkOf("f") {
			if got[0] != '-' {
				t.Fatalf("got %q", got)
			}
			return errors.New(got)
		}
		return nil
	})
	for i := range 200 {
		v := strconv.Itoa(i)
		conn.Send(oneWrite([]string{"SET", frozen, v}, []string{"GET", frozen}, []string{"GET", healthy}))
		conn.Expect("+OK\r\n")
		conn.Expect(bulkOf(v))
		conn.Expect(bulkOf("h"))
	}
	c.AwaitOK()
}

// prober writes versions of one hash around the proxy and reads them through it. A
// read must not be older than what had been written maxStaleness before it began.
type prober struct {
	key   string
	write func(version int) error // returns when the write has been acknowledged for good
	conn  *clustertest.Conn

	mu    sync.Mutex
	acked []time.Time // by version

	stop   atomic.Bool
	done   sync.WaitGroup
	report string
	reads  int
}

func startProber(t *testing.T, key string, conn *clustertest.Conn, write func(version int) error) *prober {
	b := &prober{key: key, conn: conn, write: write, acked: []time.Time{time.Now()}}
	t.Cleanup(b.end)
	b.done.Go(b.writer)
	b.done.Go(b.reader)
	return b
}

func (b *prober) writer() {
	for !b.stop.Load() {
		b.mu.Lock()
		next := len(b.acked)
		b.mu.Unlock()
		if b.write(next) == nil {
			b.mu.Lock()
			b.acked = append(b.acked, time.Now())
			b.mu.Unlock()
		}
		time.Sleep(3 * time.Millisecond)
	}
}

func (b *prober) reader() {
	for !b.stop.Load() {
		start := time.Now()
		reply := b.conn.Do("HGETALL", b.key)
		if reply[0] == '-' {
			continue
		}
		version := 0
		if reply != "*0\r\n" {
			version, _ = strconv.Atoi(strings.Split(reply, "\r\n")[4])
		}
		b.mu.Lock()
		due := 0
		for v, at := range b.acked {
			if start.Sub(at) > maxStaleness {
				due = v
			}
		}
		if version < due && b.report == "" {
			b.report = fmt.Sprintf("read version %d, but %d had been written %v before", version, due, start.Sub(b.acked[due]))
		}
		b.reads++
		b.mu.Unlock()
	}
}

// versions is how many writes have been acknowledged.
func (b *prober) versions() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.acked) - 1
}

// more waits until n further writes have been acknowledged.
func (b *prober) more(t *testing.T, n int) {
	t.Helper()
	from := b.versions()
	clustertest.Await(t, "further writes", func() error {
		if b.versions() < from+n {
			return fmt.Errorf("%d of %d", b.versions()-from, n)
		}
		return nil
	})
}

func (b *prober) end() {
	b.stop.Store(true)
	b.done.Wait()
}

func (b *prober) finish(t *testing.T, p *proxytest.Discovered) {
	t.Helper()
	b.end()
	if b.report != "" {
		t.Error(b.report)
	}
	if b.reads < 10 || p.Stats().Hits == 0 {
		t.Errorf("%d reads with %d hits prove nothing", b.reads, p.Stats().Hits)
	}
}

// writeDirect is the write of a prober for a cluster. It counts only what a
// replica has, if there is one: the rest may be lost in a failover.
func (c *shared) writeDirect(key string) func(version int) error {
	return func(version int) error {
		var failed error
		for _, r := range c.Nodes {
			if !r.Running() {
				continue
			}
			if _, err := r.DoErr("HSET", key, "v", version); err != nil {
				failed = errors.Join(failed, err)
				continue
			}
			if r.InfoField("replication", "connected_slaves") == "0" {
				return nil
			}
			n, err := r.DoErr("WAIT", 1, 500)
			if err == nil && n == int64(0) {
				err = errors.New("not replicated")
			}
			return err
		}
		return failed
	}
}

// swap makes the replica of key's shard its master. Redis gives a manual failover
// up when the replica does not catch up in time, so it is asked for again.
func (c *shared) swap(t *testing.T, key string) {
	t.Helper()
	old := c.OwnerOf(key)
	replica := c.ReplicasOf(old)[0]
	var asked time.Time
	clustertest.Await(t, "the replica to take over", func() error {
		if time.Since(asked) > 6*time.Second {
			asked = time.Now()
			replica.DoErr("CLUSTER", "FAILOVER")
		}
		if replica.InfoField("replication", "role") != "master" {
			return errors.New("not yet")
		}
		return nil
	})
	c.AwaitOK()
}

// testClusterFailover swaps a master with its replica while both are well.
func testClusterFailover(t *testing.T, c *shared, p *proxytest.Discovered) {
	key := "{" + keyOf("ns", 1) + "}:svc_itc:a"
	conn := clustertest.Dial(t, p.Addr)
	sha := bulkText(conn.Do("SCRIPT", "LOAD", "return redis.call('INCR', KEYS[1])"))
	b := startProber(t, key, clustertest.Dial(t, p.Addr), c.writeDirect(key))
	b.more(t, 20)
	c.swap(t, key)
	b.more(t, 50)
	counter := "{" + keyOf("ns", 1) + "}counter"
	conn.Do("DEL", counter)
	conn.Send(oneWrite([]string{"EVALSHA", sha, "1", counter}, []string{"GET", counter}))
	conn.Expect(":1\r\n")
	conn.Expect(bulkOf("1"))
	c.swap(t, key)
	b.more(t, 50)
	b.finish(t, p)
}

// testKilledMaster: errors only for its shard and only until a replica has taken
// over; unaffected shards never fail.
func testKilledMaster(t *testing.T, c *shared, p *proxytest.Discovered) {
	key, healthy := "{"+keyOf("ns", 0)+"}:svc_itc:b", keyOf("k", 1)
	conn, other := clustertest.Dial(t, p.Addr), clustertest.Dial(t, p.Addr)
	b := startProber(t, key, clustertest.Dial(t, p.Addr), c.writeDirect(key))
	b.more(t, 20)
	listener, tagged := clustertest.Dial(t, p.Addr), "{"+keyOf("ns", 0)+"}ch"
	listener.Do("SUBSCRIBE", tagged)
	old := c.OwnerOf(key)
	stale := startStale(t, old, key, func(change func(*proxy.Options)) *proxytest.Discovered {
		return proxytest.StartCluster(t, c.Cluster, change)
	})
	old.Stop() // also the seed that the proxy was started with
	upload, big := clustertest.Dial(t, p.Addr), strings.Repeat("b", 3<<20)
	uploaded := make(chan string, 1)
	go func() { uploaded <- upload.Do("SET", key+"big", big) }()
	stale.standIn(t)
	outlives(t, tagged, func(message string) { other.Do("PUBLISH", tagged, message) }, listener)
	expectReply(t, other, "SET "+healthy+" h", "+OK\r\n")
	clustertest.Await(t, "writes to succeed again", func() error {
		if got := other.Do("GET", healthy); got != bulkOf("h") {
			t.Fatalf("an unaffected shard failed: %q", got)
		}
		got := conn.Do("SET", key+"x", "v")
		if got == "+OK\r\n" {
			return nil
		}
		if strings.HasPrefix(got, "-MOVED") || strings.HasPrefix(got, "-ASK") {
			t.Fatalf("got %q", got)
		}
		return errors.New(got)
	})
	if got := <-uploaded; got != "+OK\r\n" {
		t.Errorf("a large request that came while the master was away: got %q", got)
	}
	if got := conn.Do("GET", key+"big"); got != bulkOf(big) {
		t.Errorf("it was written with %d bytes", len(got))
	}
	stale.end(t, c.OwnerOf(key))
	b.more(t, 50)
	old.Restart()
	c.AwaitOK()
	b.more(t, 50)
	b.finish(t, p)
	expectReply(t, conn, "GET "+key+"x", bulkOf("v"))
}

// One shard that is down makes a figure about all of them an error, not a smaller
// figure.
func TestOneShardDown(t *testing.T) {
	answer := func(_ *proxytest.FakeConn, args []string) string {
		switch args[0] {
		case "DBSIZE":
			return ":5\r\n"
		case "KEYS":
			return "*0\r\n"
		case "MGET":
			return "*1\r\n$-1\r\n"
		}
		return ""
	}
	a := proxytest.StartFake(t, answer)
	dead := fmt.Sprintf("127.0.0.1:%d", clustertest.FreePort(t))
	topology := proxytest.FixedTo(proxytest.Shards(1, a.Addr, dead))
	o := proxytest.Options(t, topology)
	o.Backend.Mode = cluster.Cluster
	_, addr := proxytest.Start(t, o)
	conn := clustertest.Dial(t, addr)
	for range 3 {
		for _, cmd := range []string{"DBSIZE", "KEYS *", "MGET " + keyIn("k", 0, 2, 0) + " " + keyIn("k", 1, 2, 0)} {
			if got := conn.Do(strings.Fields(cmd)...); !strings.HasPrefix(got, "-ERR cosky-proxy cannot reach backend "+dead) {
				t.Errorf("%s: got %q", cmd, got)
			}
		}
	}
	expectReply(t, conn, "PING", "+PONG\r\n")
}

// testDeadSeeds: one live seed is enough, and the dead ones are not waited for.
func testDeadSeeds(t *testing.T, c *shared) {
	deaf := proxytest.StartFake(t, func(*proxytest.FakeConn, []string) string { select {} })
	p := proxytest.StartDiscovered(t, discovery.Backend{Mode: cluster.Cluster, Seeds: []string{
		fmt.Sprintf("127.0.0.1:%d", clustertest.FreePort(t)), deaf.Addr, "no-such-host.invalid:6379", c.Nodes[2].Addr,
	}}, func(o *proxy.Options) { o.Upstream.ConnectTimeout = time.Hour })
	conn := clustertest.Dial(t, p.Addr)
	for i := range 3 {
		expectReply(t, conn, "SET "+keyOf("k", i)+" v", "+OK\r\n")
	}
}
