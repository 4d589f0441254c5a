package proxy_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
	"cosky-proxy/proxy/stats"
)

// everythingIsSlow that takes a round trip to the backend; what the proxy answers by itself does not take a clock's tick.
func everythingIsSlow(o *proxy.Options) {
	o.SlowLog = proxy.SlowLogOptions{SlowerThan: 1, MaxLen: 1000}
	o.Clients.RequestBuffer = 64 << 10
}

// slowLine is an entry without what differs from run to run.
func slowLine(c *stats.SlowCommand, backend string) string {
	key := "-"
	if c.Keyed {
		key = c.Key
	}
	from := c.From
	if from == backend {
		from = "backend"
	}
	return fmt.Sprintf("%s %s args=%d from=%s error=%s", c.Command, key, c.Args, from, c.Error)
}

// TestSlowLogEntries: what is told of each kind of command, and which are not slow.
func TestSlowLogEntries(t *testing.T) {
	r := startNear(t, everythingIsSlow, patientLeases)
	r.direct.Do("SET", "k", "v")
	r.direct.Do("LPUSH", "l", "a", "b")
	r.direct.Do("HSET", hashKey, "f", "v")
	c := r.front[0]
	c.Do("CLIENT", "SETNAME", "worker")
	big, long := strings.Repeat("x", 200_000), strings.Repeat("k", 300)
	for _, tt := range []struct {
		call []string
		want string
	}{
		{words("SET k secret"), "set k args=3 from=backend error="},
		{words("GET k"), "get k args=2 from=backend error="},
		{words("INCR l"), "incr l args=2 from=backend error=WRONGTYPE"},
		{words("MGET a b c"), "mget a args=4 from=backend error="},
		{words("MSET {a} secret {b} secret"), "mset {a} args=5 from=backend error="},
		{words("ZUNIONSTORE to 2 from also"), "zunionstore to args=5 from=backend error="},
		{words("XREAD COUNT 1 STREAMS s 0-0"), "xread s args=6 from=backend error="},
		{words("CONFIG GET maxclients"), "config|get - args=3 from=backend error="},
		{[]string{"EVAL", "return 'secret'", "1", "k", "secret"}, "eval k args=5 from=backend error="},
		{[]string{"EVAL", "return redis.error_reply('-secret word')", "0", "secret"}, "eval - args=4 from=backend error=ERR"},
		{[]string{"SET", "", "secret"}, "set  args=3 from=backend error="},
		{[]string{"SET", long, "secret"}, "set " + long[:128] + " args=3 from=backend error="},
		{[]string{"SET", "big", big}, "set big args=3 from=backend error="},
		{words("BLPOP l 0"), ""},
		{words("BLPOP none 0.001"), ""},
		{words("WAIT 1 1"), ""},
		{words("COSKY.SYNC"), ""},
		{words("ECHO secret"), ""},
	} {
		before := r.server.Stats().SlowCommands
		c.Do(tt.call...)
		list := r.server.SlowCommands(-1)
		if tt.want == "" {
			if more := r.server.Stats().SlowCommands - before; more != 0 {
				t.Errorf("%.60q is called slow: %s", tt.call, slowLine(&list[0], r.redis.Addr))
			}
			continue
		}
		e := &list[0]
		if got := slowLine(e, r.redis.Addr); got != tt.want {
			t.Errorf("%.60q:\n got %s\nwant %s", tt.call, got, tt.want)
		}
		if e.Addr != c.Net().LocalAddr().String() || e.Name != "worker" || e.User != "default" || e.Size != len(clustertest.Encode(tt.call...)) || e.DB != 0 || e.Retries != 0 || e.Took <= 0 || time.Since(e.At).Abs() > time.Hour {
			t.Errorf("%.60q: %+v", tt.call, e)
		}
	}
	if e := r.server.SlowCommands(-1)[0]; e.Key != "big" || e.KeySize != 3 {
		t.Errorf("the last one: %+v", e)
	}

	c.Send("SET inline 1\r\n")
	c.Expect("+OK\r\n")
	if got := slowLine(&r.server.SlowCommands(1)[0], r.redis.Addr); got != "set inline args=3 from=backend error=" {
		t.Errorf("inline: %s", got)
	}

	// A pipeline: each command for itself. Of a transaction EXEC waits.
	c.Send(oneWrite(words("PING"), words("GET k"), words("MULTI"), words("SET k 1"), words("GET k"), words("EXEC"), words("INCR l")))
	for range 7 {
		c.ReadReply()
	}
	var got []string
	for _, e := range r.server.SlowCommands(3) {
		got = append(got, slowLine(&e, r.redis.Addr))
	}
	if want := "incr l args=2 from=backend error=WRONGTYPE|exec k args=1 from=backend error=|get k args=2 from=backend error="; strings.Join(got, "|") != want {
		t.Errorf("pipeline:\n got %s\nwant %s", strings.Join(got, "|"), want)
	}

	// A miss waits for the near-cache, a hit does not wait.
	r.warm("HGETALL", hashKey)
	before := r.server.Stats().SlowCommands
	c.Do("HGETALL", hashKey)
	if r.server.Stats().SlowCommands != before {
		t.Error("a hit is called slow")
	}
	r.front[0].Do("PROXY", "CACHE", "FLUSH")
	c.Do("HGETALL", hashKey)
	found := false
	for _, e := range r.server.SlowCommands(-1) {
		found = found || slowLine(&e, r.redis.Addr) == "hgetall "+hashKey+" args=2 from=near-cache error="
	}
	if !found {
		t.Error("no miss of the near-cache is in it")
	}
}

// TestSlowLogReply is the form of PROXY SLOWLOG, which begins as Redis' own does, and its order over
// both loops.
func TestSlowLogReply(t *testing.T) {
	r := startNear(t, everythingIsSlow, func(o *proxy.Options) { o.SlowLog.MaxLen = 4 })
	long := strings.Repeat("k", 300)
	r.front[0].Do("SET", long, "secret")
	for i, c := range []*clustertest.Conn{r.front[1], r.front[0], r.front[1]} {
		c.Do("DEL", fmt.Sprint("key", i))
	}
	ids := func() (ids []int64) {
		for _, e := range r.server.SlowCommands(-1) {
			ids = append(ids, e.ID)
		}
		return ids
	}
	if got := fmt.Sprint(ids()); got != "[3 2 1 0]" {
		t.Fatalf("ids %s", got)
	}
	last := r.server.SlowCommands(-1)
	for i, c := range []*clustertest.Conn{r.front[1], r.front[0], r.front[1], r.front[0]} {
		if last[i].Addr != c.Net().LocalAddr().String() {
			t.Errorf("place %d: %+v", i, last[i])
		}
	}
	entry := func(e *stats.SlowCommand, open string, args ...string) string {
		words := fmt.Sprintf("*%d\r\n", len(args))
		for _, a := range args {
			words += bulkOf(a)
		}
		return fmt.Sprintf("*7\r\n:%d\r\n:%d\r\n:%d\r\n%s%s$0\r\n\r\n%s", e.ID, e.At.Unix(), e.Took.Microseconds(), words, bulkOf(e.Addr), open) +
			bulkOf("user") + bulkOf("default") + bulkOf("db") + ":0\r\n" + bulkOf("answered_by") + bulkOf(r.redis.Addr) + bulkOf("retries") + ":0\r\n" +
			bulkOf("error") + bulkOf("") + bulkOf("arguments") + fmt.Sprintf(":%d\r\n", e.Args) + bulkOf("bytes") + fmt.Sprintf(":%d\r\n", e.Size)
	}
	get := func(args ...string) string { return r.front[0].Do(append(words("PROXY SLOWLOG GET"), args...)...) }
	if got, want := get("1"), "*1\r\n"+entry(&last[0], "*14\r\n", "del", "key2"); got != want {
		t.Errorf("RESP2:\n got %q\nwant %q", got, want)
	}
	r.front[0].Do("HELLO", "3")
	all := get()
	if want := entry(&last[3], "%7\r\n", "set", long[:128]+"... (172 more bytes)", "... (1 more arguments)"); !strings.HasPrefix(all, "*4\r\n") || !strings.HasSuffix(all, want) {
		t.Errorf("RESP3:\n got %q\nends %q", all, want)
	}
	if got := get("-1"); got != all {
		t.Errorf("GET -1: %q", got)
	}
	if got := get("0"); got != "*0\r\n" {
		t.Errorf("GET 0: %q", got)
	}

	// The oldest make room, whichever loop has them.
	for i := range 5 {
		r.front[i%2].Do("DEL", "k")
	}
	if got, n := fmt.Sprint(ids()), r.front[0].Do("PROXY", "SLOWLOG", "LEN"); got != "[8 7 6 5]" || n != ":4\r\n" {
		t.Errorf("ids %s, LEN %q", got, n)
	}
	for range 6 {
		r.front[0].Do("DEL", "k")
	}
	if got := fmt.Sprint(ids()); got != "[14 13 12 11]" {
		t.Errorf("ids %s", got)
	}
	if got := r.front[1].Do("PROXY", "SLOWLOG", "RESET"); got != "+OK\r\n" || len(ids()) != 0 {
		t.Errorf("RESET: %q, ids %v", got, ids())
	}
	r.front[1].Do("DEL", "k")
	if got := fmt.Sprint(ids()); got != "[15]" {
		t.Errorf("ids after RESET %s", got)
	}
	if got := r.front[1].Do("INFO", "proxy"); !strings.Contains(got, "\r\nproxy_slow_commands:16\r\n") {
		t.Errorf("INFO: %q", got)
	}
}

// TestSlowLogShowsNoSecrets: of arguments that are not keys nothing is told, wherever they stand and whatever
// became of the command.
func TestSlowLogShowsNoSecrets(t *testing.T) {
	r := startNear(t, everythingIsSlow)
	secret := []string{
		"SET k secret", "SETEX k 10 secret", "GETSET k secret", "APPEND k secret", "HSET h f secret", "HSET h secret v", "LPUSH list secret", "LPOS list secret", "PUBLISH secret secret",
		"CONFIG SET requirepass secret", "CONFIG SET requirepass ''", "CONFIG SET masterauth secret", "ACL SETUSER u on >secret ~* +@all", "ACL SETUSER secret on >secret",
		"AUTH secret", "AUTH u secret", "HELLO 3 AUTH u secret SETNAME x", "HELLO 2", "ACL DELUSER secret",
		"EVAL return('secret') 0", "EVAL return('secret') 1 k secret", "EVAL error('secret') 0", "EVALSHA secret 0", "SCRIPT LOAD return'secret'", "SCRIPT EXISTS secret",
		"MIGRATE 127.0.0.1 1 k 0 10 AUTH secret", "MIGRATE 127.0.0.1 1  0 10 AUTH2 secret secret KEYS k2", "RESTORE k2 0 secret", "secret k", "CONFIG secret",
		"FUNCTION LOAD secret", "CLIENT KILL ADDR secret", "CLIENT NO-EVICT secret", "DEBUG secret", "OBJECT secret k", "SUBSCRIBE secret", "UNSUBSCRIBE secret", "SORT list BY secret",
	}
	c := r.front[0]
	for _, call := range secret {
		c.Do(strings.Split(strings.ReplaceAll(call, "''", ""), " ")...)
	}
	list := r.server.SlowCommands(-1)
	shown := fmt.Sprintf("%+v", list) + c.Do("PROXY", "SLOWLOG", "GET", "-1")
	if strings.Contains(shown, "secret") {
		t.Errorf("a secret is shown: %.2000q", shown)
	}
	if len(list) < len(secret)/2 {
		t.Errorf("only %d commands are in it", len(list))
	}
}

// TestSlowLogTellsWhatClientsWaitedFor: the time includes what happens before the backend executes a command.
func TestSlowLogTellsWhatClientsWaitedFor(t *testing.T) {
	const long = 40 * time.Millisecond
	slow := func(o *proxy.Options) { o.SlowLog.SlowerThan = long }
	find := func(t *testing.T, s *proxy.Server, name string) stats.SlowCommand {
		t.Helper()
		for _, e := range s.SlowCommands(-1) {
			if e.Command == name {
				return e
			}
		}
		t.Fatalf("%s is not in %+v", name, s.SlowCommands(-1))
		return stats.SlowCommand{}
	}

	t.Run("the backend", func(t *testing.T) {
		r := startNear(t, slow)
		r.direct.Do("CLIENT", "PAUSE", "60", "ALL")
		r.front[0].Do("SET", "k", "v")
		if e := find(t, r.server, "set"); e.Took < long || e.From != r.redis.Addr || e.Key != "k" {
			t.Errorf("%+v", e)
		}
	})

	t.Run("a pause that was asked for", func(t *testing.T) {
		r := startNear(t, everythingIsSlow)
		r.front[1].Do("CLIENT", "PAUSE", "1000000", "WRITE")
		began := time.Now()
		r.front[0].Cmd("INCR", "n")
		var held time.Time
		clustertest.Await(t, "it to be held for long", func() error {
			if held.IsZero() && r.server.Stats().Paused == 1 {
				held = time.Now()
			}
			if held.IsZero() || time.Since(held) < long {
				return errors.New("not yet")
			}
			return nil
		})
		paused := time.Since(held)
		r.front[1].Do("CLIENT", "UNPAUSE")
		r.front[0].Expect(":1\r\n")
		if e := find(t, r.server, "incr"); e.Took > time.Since(began)-paused {
			t.Errorf("the pause of %v is in it: %+v", paused, e)
		}
	})

	t.Run("a client that goes", func(t *testing.T) {
		r := startNear(t, slow)
		r.direct.Do("CLIENT", "PAUSE", "1000000", "WRITE")
		before, request := r.server.Stats().BytesIn, clustertest.Encode("SET", "k", "v")
		r.front[0].Send(request)
		var since time.Time
		clustertest.Await(t, "it to have waited for long", func() error {
			if since.IsZero() && r.server.Stats().BytesIn == before+uint64(len(request)) {
				since = time.Now()
			}
			if since.IsZero() || time.Since(since) < long {
				return errors.New("not yet")
			}
			return nil
		})
		setLinger0(r.front[0])
		r.front[0].Close()
		clustertest.Await(t, "its entry", func() error {
			if len(r.server.SlowCommands(-1)) == 0 {
				return errors.New("not yet")
			}
			return nil
		})
		if e := find(t, r.server, "set"); e.Took < long || e.From != "nobody" || e.Key != "k" || e.Error != "" {
			t.Errorf("%+v", e)
		}
		r.direct.Do("CLIENT", "UNPAUSE")
	})

	t.Run("a redirect", func(t *testing.T) {
		var m fakeData
		b := proxytest.StartFake(t, m.serve)
		a := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
			if redirectable(args) {
				time.Sleep(long)
				return movedTo(args[1], b.Addr)
			}
			return ""
		})
		s, addr, _ := startFakeCluster(t, slow, a, b)
		key := keyIn("k", 0, 2, 0)
		clustertest.Dial(t, addr).Do("SET", key, "v")
		if e := find(t, s, "set"); e.Took < long || e.From != b.Addr || e.Retries != 1 || e.Key != key {
			t.Errorf("%+v", e)
		}
	})

	t.Run("a slow shard", func(t *testing.T) {
		var fast, slower fakeData
		a := proxytest.StartFake(t, fast.serve)
		b := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
			if redirectable(args) {
				time.Sleep(long)
				return slower.execute(args)
			}
			return ""
		})
		s, addr, _ := startFakeCluster(t, slow, a, b)
		here, there := keyIn("k", 0, 2, 0), keyIn("k", 1, 2, 0)
		if got := clustertest.Dial(t, addr).Do("MSET", here, "v", there, "v"); got != "+OK\r\n" {
			t.Fatalf("MSET: %q", got)
		}
		if e := find(t, s, "mset"); e.Took < long || e.From != b.Addr || e.Args != 5 || e.Key != here {
			t.Errorf("%+v", e)
		}
	})

	t.Run("a lost master", func(t *testing.T) {
		var m fakeData
		next := proxytest.StartFake(t, m.serve)
		topology := proxytest.FixedTo(master(1, cluster.Sentinel, deadAddr(t)))
		o := proxytest.Options(t, topology)
		o.Backend.Mode, o.Loops = cluster.Sentinel, 1
		slow(&o)
		s, addr := proxytest.Start(t, o)
		first, second := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
		first.Cmd("SET", "k", "v") // finds out, and is kept
		awaitTrip(t, s)
		before, pipeline := s.Stats().BytesIn, oneWrite(words("INCR n"), words("GET n"), words("MSET a 1"))
		second.Send(pipeline) // its session waits with all of it
		var since time.Time
		clustertest.Await(t, "the pipeline to have waited for long", func() error {
			if since.IsZero() && s.Stats().BytesIn == before+uint64(len(pipeline)) {
				since = time.Now()
			}
			if since.IsZero() || time.Since(since) < 2*long {
				return errors.New("not yet")
			}
			return nil
		})
		topology.Set(master(2, cluster.Sentinel, next.Addr))
		s.Adopt(topology.Current())
		first.Expect("+OK\r\n")
		for range 3 {
			second.ReadReply()
		}
		for _, name := range []string{"set", "incr", "get", "mset"} {
			if e := find(t, s, name); e.Took < long || e.From != next.Addr || e.Error != "" {
				t.Errorf("%s: %+v", name, e)
			}
		}
	})

	t.Run("a master without a successor", func(t *testing.T) {
		o := proxytest.Options(t, proxytest.FixedTo(master(1, cluster.Sentinel, deadAddr(t))))
		o.Backend.Mode, o.Loops, o.Upstream.Timeout = cluster.Sentinel, 1, 3*long
		slow(&o)
		s, addr := proxytest.Start(t, o)
		first, second := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
		first.Cmd("SET", "k", "v")
		awaitTrip(t, s)
		second.Send(oneWrite(words("INCR n"), words("GET n")))
		for range 2 {
			if got := second.ReadReply(); !strings.HasPrefix(got, "-ERR cosky-proxy cannot reach backend") {
				t.Fatalf("got %q", got)
			}
		}
		first.ReadReply()
		if e := find(t, s, "set"); e.Took < long || e.Error != "ERR" || e.Key != "k" {
			t.Errorf("%+v", e)
		}
		for _, name := range []string{"incr", "get"} {
			if e := find(t, s, name); e.Took <= 0 || e.From != "proxy" || e.Error != "ERR" || e.Key != "n" {
				t.Errorf("%s: %+v", name, e)
			}
		}
	})

	t.Run("in vain", func(t *testing.T) {
		frozen := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
			if redirectable(args) {
				time.Sleep(6 * long)
			}
			return ""
		})
		o := proxytest.Options(t, proxytest.Single(frozen.Addr))
		o.Upstream.Timeout = 2 * long
		slow(&o)
		s, addr := proxytest.Start(t, o)
		c := clustertest.Dial(t, addr)
		c.Do("CLIENT", "SETNAME", "patient")
		if got := c.Do("SET", "k", "v"); !strings.HasPrefix(got, "-ERR cosky-proxy timed out") {
			t.Fatalf("got %q", got)
		}
		if e := find(t, s, "set"); e.Took < long || e.From != frozen.Addr || e.Error != "ERR" || e.Name != "patient" {
			t.Errorf("%+v", e)
		}
	})
}
