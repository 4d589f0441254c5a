package proxy_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/lua"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
)

// hold reads a key through the proxy until it comes from memory.
func hold(t *testing.T, c *clustertest.Conn, hits func() uint64, want string, read ...string) {
	t.Helper()
	clustertest.Await(t, "a hit", func() error {
		before := hits()
		if got := c.Do(read...); got != want {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		if hits() == before {
			return errors.New("not from memory")
		}
		return nil
	})
}

// nothingBut waits for the answer that is true since another loop has had a fresh one. Until this loop, too,
// has found the backend, it may answer an error, but nothing older.
func nothingBut(t *testing.T, c *clustertest.Conn, want string, cmd ...string) {
	t.Helper()
	clustertest.Await(t, want, func() error {
		got := c.Do(cmd...)
		if got != want && got[0] != '-' {
			t.Fatalf("%v, after a fresh answer: %q", cmd, got)
		}
		if got != want {
			return errors.New(got)
		}
		return nil
	})
}

// TestEntriesStandInForALostBackend: while the backend is gone, what was cached is
// served, writes fail, and so do reads of what is not cached. When it is back, with other data, every
// read is fresh, although entries of other keys have not been read again.
func TestEntriesStandInForALostBackend(t *testing.T) {
	backend := clustertest.StartRedis(t)
	o := proxytest.Options(t, proxytest.Single(backend.Addr))
	o.Cache.StaleFor = time.Minute
	s, addr := proxytest.Start(t, o)
	stale := func() uint64 { return s.Stats().StaleHits }
	hits := func() uint64 { return s.Stats().Hits }

	backend.Do("HSET", "{n}:cfg:a", "data", "old")
	backend.Do("SADD", "{n}:svc_idx", "old")
	backend.Do("HSET", "{n}:cfg:short", "data", "old")
	backend.Do("PEXPIRE", "{n}:cfg:short", "3000")
	c := clustertest.Dial(t, addr)
	const oldHash, oldSet = "*2\r\n$4\r\ndata\r\n$3\r\nold\r\n", "*1\r\n$3\r\nold\r\n"
	hold(t, c, hits, oldHash, "HGETALL", "{n}:cfg:a")
	hold(t, c, hits, oldSet, "SMEMBERS", "{n}:svc_idx")
	hold(t, c, hits, oldHash, "HGETALL", "{n}:cfg:short")

	backend.Stop()
	for _, conn := range []*clustertest.Conn{c, clustertest.Dial(t, addr), clustertest.Dial(t, addr)} {
		clustertest.Await(t, "a value in place of the lost one", func() error {
			if got := conn.Do("HGETALL", "{n}:cfg:a"); got != oldHash {
				return fmt.Errorf("got %q", got)
			}
			return nil
		})
		if got := conn.Do("SMEMBERS", "{n}:svc_idx"); got != oldSet {
			t.Errorf("SMEMBERS: got %q", got)
		}
	}
	if stale() == 0 { // the first reads may have come before the loss was known
		t.Errorf("%d stale hits counted", stale())
	}
	if info := c.Do("INFO", "proxy"); !strings.Contains(info, "nearcache_stale_nodes:1\r\n") {
		t.Errorf("INFO does not show the loss: %q", info)
	}
	for _, cmd := range [][]string{{"HSET", "{n}:cfg:a", "data", "new"}, {"HGETALL", "{n}:cfg:never-read"}, {"HGET", "{n}:cfg:a", "data"}} {
		if got := c.Do(cmd...); !strings.HasPrefix(got, "-ERR cosky-proxy cannot reach backend") {
			t.Errorf("%v: got %q", cmd, got)
		}
	}
	if got := c.Do("HGETALL", "{n}:cfg:a"); got != oldHash {
		t.Errorf("after a write that failed: got %q", got)
	}
	clustertest.Await(t, "the end of a key that expires", func() error {
		if got := c.Do("HGETALL", "{n}:cfg:short"); !strings.HasPrefix(got, "-ERR") {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})

	backend.Restart() // without its data
	backend.Do("HSET", "{n}:cfg:a", "data", "new")
	const newHash = "*2\r\n$4\r\ndata\r\n$3\r\nnew\r\n"
	fresh := false
	clustertest.Await(t, "a fresh answer", func() error {
		switch got := c.Do("HGETALL", "{n}:cfg:a"); {
		case got == newHash:
			fresh = true
		case fresh, got != oldHash && !strings.HasPrefix(got, "-"):
			t.Errorf("got %q after the backend was back", got)
		default:
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	for _, conn := range []*clustertest.Conn{clustertest.Dial(t, addr), clustertest.Dial(t, addr)} { // on both loops
		nothingBut(t, conn, "*0\r\n", "SMEMBERS", "{n}:svc_idx")
	}
	if info := c.Do("INFO", "proxy"); !strings.Contains(info, "nearcache_stale_nodes:0\r\n") {
		t.Errorf("INFO still shows the loss: %q", info)
	}
}

// TestEntriesStandInBesideRulesWithoutCoherence: such rules take nothing from the others, and stand in as well.
func TestEntriesStandInBesideRulesWithoutCoherence(t *testing.T) {
	backend := clustertest.StartRedis(t)
	o := proxytest.Options(t, proxytest.Single(backend.Addr))
	o.Cache.StaleFor = time.Minute
	o.Cache.Rules = []proxy.Rule{{Match: "bare:*", Commands: []string{"get"}, TTL: time.Minute, MaxValue: 1 << 10, Bare: true}}
	s, addr := proxytest.Start(t, o)
	c := clustertest.Dial(t, addr)
	reads := map[string][]string{"$1\r\nv\r\n": {"GET", "bare:a"}, "*1\r\n$1\r\nv\r\n": {"SMEMBERS", "{n}:svc_idx"}}
	backend.Do("SET", "bare:a", "v")
	backend.Do("SADD", "{n}:svc_idx", "v")
	for want, read := range reads {
		hold(t, c, func() uint64 { return s.Stats().Hits }, want, read...)
	}
	backend.Stop()
	for want, read := range reads {
		clustertest.Await(t, "a value in place of the lost one", func() error {
			if got := c.Do(read...); got != want {
				return fmt.Errorf("%v: got %q", read, got)
			}
			return nil
		})
	}
}

// TestStandingInIsLimited: nothing stands in for longer than configured, nor by default.
func TestStandingInIsLimited(t *testing.T) {
	for _, limit := range []time.Duration{0, 1200 * time.Millisecond} {
		backend := clustertest.StartRedis(t)
		o := proxytest.Options(t, proxytest.Single(backend.Addr))
		o.Cache.MaxStaleness = 100 * time.Millisecond
		o.Cache.StaleFor = limit
		s, addr := proxytest.Start(t, o)
		backend.Do("HSET", "{n}:cfg:a", "data", "v")
		c := clustertest.Dial(t, addr)
		hold(t, c, func() uint64 { return s.Stats().Hits }, "*2\r\n$4\r\ndata\r\n$1\r\nv\r\n", "HGETALL", "{n}:cfg:a")
		backend.Stop()
		if limit > 0 {
			clustertest.Await(t, "a stale hit", func() error {
				c.Do("HGETALL", "{n}:cfg:a")
				if s.Stats().StaleHits == 0 {
					return errors.New("none")
				}
				return nil
			})
		}
		clustertest.Await(t, "the end of standing in", func() error {
			if got := c.Do("HGETALL", "{n}:cfg:a"); !strings.HasPrefix(got, "-ERR cosky-proxy") {
				return fmt.Errorf("got %q", got)
			}
			return nil
		})
		if n := s.Stats().StaleHits; limit == 0 && n > 0 {
			t.Errorf("%d stale hits with on_backend_loss bypass", n)
		}
	}
}

// TestALateHeartbeatIsNoLoss: a backend that is slow, but there, is waited for.
func TestALateHeartbeatIsNoLoss(t *testing.T) {
	backend := clustertest.StartRedis(t)
	o := proxytest.Options(t, proxytest.Single(backend.Addr))
	o.Cache.MaxStaleness = 100 * time.Millisecond
	o.Cache.StaleFor = time.Minute
	o.Upstream.ConnectTimeout = time.Minute // nor does a login without an answer count until then
	s, addr := proxytest.Start(t, o)
	backend.Do("HSET", "{n}:cfg:a", "data", "v1")
	c := clustertest.Dial(t, addr)
	hold(t, c, func() uint64 { return s.Stats().Hits }, "*2\r\n$4\r\ndata\r\n$2\r\nv1\r\n", "HGETALL", "{n}:cfg:a")

	backend.Freeze()
	c.Cmd("HGETALL", "{n}:cfg:b") // not in memory; the wait for it outlasts max_staleness
	other := clustertest.Dial(t, addr)
	if got, err := c.TryReply(400 * time.Millisecond); err == nil {
		t.Errorf("got %q of a frozen backend", got)
	}
	other.Cmd("HGETALL", "{n}:cfg:a")
	if got, err := other.TryReply(400 * time.Millisecond); err == nil {
		t.Errorf("got %q, for which nobody vouches any more", got)
	}
	backend.Thaw()
	if n := s.Stats().StaleHits; n != 0 {
		t.Errorf("%d stale hits", n)
	}
}

// TestEntriesStandInForAFrozenBackend: a process that accepts connections and says
// nothing is lost, too, once logins have had no answer.
func TestEntriesStandInForAFrozenBackend(t *testing.T) {
	backend := clustertest.StartRedis(t)
	o := proxytest.Options(t, proxytest.Single(backend.Addr))
	o.Cache.MaxStaleness = 100 * time.Millisecond
	o.Cache.StaleFor = time.Minute
	o.Upstream.ConnectTimeout = 200 * time.Millisecond
	o.Upstream.Timeout = time.Second
	s, addr := proxytest.Start(t, o)
	backend.Do("HSET", "{n}:cfg:a", "data", "v1")
	const v1 = "*2\r\n$4\r\ndata\r\n$2\r\nv1\r\n"
	c := clustertest.Dial(t, addr)
	hold(t, c, func() uint64 { return s.Stats().Hits }, v1, "HGETALL", "{n}:cfg:a")
	backend.Freeze()
	clustertest.Await(t, "a stale hit", func() error {
		c.Do("HGETALL", "{n}:cfg:a")
		if s.Stats().StaleHits == 0 {
			return errors.New("none")
		}
		return nil
	})
	backend.Thaw()
	backend.Do("HSET", "{n}:cfg:a", "data", "v2")
	clustertest.Await(t, "a fresh answer", func() error {
		if got := c.Do("HGETALL", "{n}:cfg:a"); got != "*2\r\n$4\r\ndata\r\n$2\r\nv2\r\n" {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
}

// item is a rule that keeps what GET and MGET answer.
var itemRule = []proxy.Rule{{Match: "item:*", Commands: []string{"get", "mget"}, TTL: time.Minute, MaxValue: 1 << 20}}

// TestMGETStandsIn: MGET is answered from what stands in for its keys, if there is something for each.
func TestMGETStandsIn(t *testing.T) {
	t.Parallel()
	r := startNear(t, func(o *proxy.Options) { o.Cache.StaleFor, o.Cache.Rules = time.Minute, itemRule })
	c := r.front[0]
	c.Do("MSET", "item:a", "1", "item:b", "2")
	const both = "*2\r\n$1\r\n1\r\n$1\r\n2\r\n"
	mget := []string{"MGET", "item:a", "item:b"}
	r.warm(mget...)
	r.redis.Stop()
	for _, c := range r.front {
		clustertest.Await(t, "values in place of the lost ones", func() error {
			if got := c.Do(mget...); got != both {
				return fmt.Errorf("got %q", got)
			}
			return nil
		})
		if got := c.Do("MGET", "item:b", "item:a", "item:b"); got != "*3\r\n$1\r\n2\r\n$1\r\n1\r\n$1\r\n2\r\n" {
			t.Errorf("got %q", got)
		}
		for _, not := range []string{"item:never-read", "other"} {
			if got := c.Do("MGET", "item:a", not); !strings.HasPrefix(got, "-ERR cosky-proxy cannot reach backend") {
				t.Errorf("with %s: got %q", not, got)
			}
		}
	}
	if got := c.Do("MSET", "item:a", "3", "item:b", "4"); got[0] != '-' {
		t.Errorf("MSET: got %q", got)
	}
	if got := c.Do(mget...); got != both {
		t.Errorf("after a write that failed: got %q", got)
	}
	stats := c.Do("PROXY", "CACHE", "STATS")
	if !strings.Contains(stats, bulkOf("stale_nodes")+":1\r\n") || strings.Contains(stats, bulkOf("stale_hits")+":0\r\n") {
		t.Errorf("PROXY CACHE STATS does not show the loss: %q", stats)
	}
	r.redis.Restart()
	r.redis.Do("MSET", "item:a", "5", "item:b", "6")
	clustertest.Await(t, "a fresh answer", func() error {
		switch got := c.Do("GET", "item:a"); {
		case got != "$1\r\n5\r\n" && got != "$1\r\n1\r\n" && got[0] != '-':
			t.Fatalf("got %q", got)
		case got != "$1\r\n5\r\n":
			return errors.New(got)
		}
		return nil
	})
	for _, c := range r.front {
		nothingBut(t, c, "*2\r\n$1\r\n5\r\n$1\r\n6\r\n", mget...)
	}
}

// TestViewsStandIn: so are scripts that only ask, as long as no instance that they show has expired.
func TestViewsStandIn(t *testing.T) {
	t.Parallel()
	r := startViews(t, func(o *proxy.Options) { o.Cache.StaleFor = time.Minute })
	r.must(r.direct, ":1\r\n", registration("short@1", 2, "short")...)
	all, short := viewReads[0], scriptCall("discovery_get_instances", "short")
	want := r.warm(all...)
	r.warm(short...)
	r.redis.Stop()
	for _, c := range r.front {
		clustertest.Await(t, "instances in place of the lost ones", func() error {
			if got := c.Do(all...); got != want {
				return fmt.Errorf("got %q", got)
			}
			return nil
		})
		for _, fails := range [][]string{scriptCall("registry_renew", "s@1", "60"), scriptCall("discovery_get_instances", "never-read")} {
			if got := c.Do(fails...); got[0] != '-' {
				t.Errorf("%q: got %q", fails, got)
			}
		}
		clustertest.Await(t, "the end of an instance that expires", func() error {
			if got := c.Do(short...); got[0] != '-' {
				return fmt.Errorf("got %q", got)
			}
			return nil
		})
		if got := c.Do(all...); got != want {
			t.Errorf("later: got %q", got)
		}
	}
	if r.server.Stats().StaleHits == 0 {
		t.Error("no stale hits counted")
	}
	r.redis.Restart() // empty
	clustertest.Await(t, "a fresh answer", func() error {
		switch got := r.front[0].Do("SMEMBERS", "{n}:svc_idx"); got {
		case "*0\r\n":
			return nil
		default:
			return errors.New(got)
		}
	})
	for _, c := range r.front {
		if got := c.Do(all...); got == want {
			t.Errorf("after a fresh answer: got %q", got)
		}
	}
}

// TestOneShardIsLost: its keys stand in while those of others are as fresh as ever; when another node
// has taken over, nothing does.
func TestOneShardIsLost(t *testing.T) {
	lost, other, heir := clustertest.StartRedis(t), clustertest.StartRedis(t), clustertest.StartRedis(t)
	topology := proxytest.FixedTo(proxytest.Shards(1, lost.Addr, other.Addr))
	o := proxytest.Options(t, topology)
	o.Backend.Mode, o.Cache.StaleFor, o.Cache.Rules = cluster.Cluster, time.Minute, itemRule
	o.Upstream.Timeout = 500 * time.Millisecond // a write waits for an heir for that long
	s, addr := proxytest.Start(t, o)
	front := []*clustertest.Conn{clustertest.Dial(t, addr), clustertest.Dial(t, addr)}
	c := front[0]
	a, b := keyIn("item:", 0, 2, 0), keyIn("item:", 1, 2, 0)
	a2 := keyIn("item:", 0, 2, 1)
	hits := func() uint64 { return s.Stats().Hits }
	for _, key := range []string{a, a2, b} {
		c.Do("SET", key, "old")
		hold(t, c, hits, bulkOf("old"), "GET", key)
	}
	await := func(want string, cmd ...string) {
		t.Helper()
		for _, c := range front {
			clustertest.Await(t, fmt.Sprintf("%q", cmd), func() error {
				if got := c.Do(cmd...); got != want {
					return fmt.Errorf("got %q", got)
				}
				return nil
			})
		}
	}
	must := func(want string, cmd ...string) {
		t.Helper()
		for _, c := range front {
			if got := c.Do(cmd...); got != want {
				t.Errorf("%q: got %q, want %q", cmd, got, want)
			}
		}
	}
	lost.Stop()
	await(bulkOf("old"), "GET", a)
	for _, v := range []string{"1", "2", "3"} { // in the midst of it, and at once
		if got := c.Do("SET", b, v); got != "+OK\r\n" {
			t.Errorf("a write to another shard: %q", got)
		}
		must(bulkOf(v), "GET", b)
		must("*3\r\n"+bulkOf("old")+bulkOf(v)+bulkOf("old"), "MGET", a, b, a2)
	}
	if got := c.Do("SET", a, "x"); got[0] != '-' {
		t.Errorf("a write to the lost shard: %q", got)
	}
	heir.Do("MSET", a, "new", a2, "new")
	topology.Set(proxytest.Shards(2, heir.Addr, other.Addr))
	s.Adopt(topology.Current())
	await(bulkOf("new"), "GET", a)
	must(bulkOf("new"), "GET", a2)
	must("*3\r\n"+bulkOf("new")+bulkOf("3")+bulkOf("new"), "MGET", a, b, a2)
	lost.Restart() // nobody asks it any more
	must(bulkOf("new"), "GET", a)
}

// TestStandingInForWhoMayRead: under passthrough an entry stands in for those who were allowed to read it when
// the backend last said so, for longer than that is believed otherwise.
func TestStandingInForWhoMayRead(t *testing.T) {
	t.Parallel()
	g := startGuarded(t, ownUser, func(o *proxy.Options) {
		o.Cache.MaxStaleness, o.Cache.StaleFor, o.Cache.Rules = 100*time.Millisecond, time.Minute, itemRule
	})
	g.admin.Do("HSET", "x:cfg:a", "f", "v")
	g.admin.Do("SET", "item:a", "v")
	for _, script := range []string{"discovery_get_instances", "registry_register"} {
		g.admin.Do("SCRIPT", "LOAD", lua.ByName(script).Text)
	}
	g.admin.Do(registration("s@0", 60, "s")...)
	may, mayNot := g.login("default", "pw"), g.login("app", "secret")
	hits := func() uint64 { return g.proxy.Stats().Hits }
	reads := [][]string{{"HGETALL", "x:cfg:a"}, {"MGET", "item:a"}, viewReads[0]}
	want := make([]string, len(reads))
	for i, read := range reads {
		want[i] = g.admin.Do(read...)
		hold(t, may, hits, want[i], read...)
		if got := mayNot.Do(read...); !strings.HasPrefix(got, "-NOPERM ") {
			t.Fatalf("%q: got %q", read, got)
		}
	}
	for i, read := range reads { // a read that was passed on has voided the entry
		hold(t, may, hits, want[i], read...)
	}
	g.redis.Stop()
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
		for _, read := range reads {
			if got := mayNot.Do(read...); got[0] != '-' {
				t.Fatalf("%q: got %q", read, got)
			}
		}
	}
	for i, read := range reads {
		clustertest.Await(t, fmt.Sprintf("%q", read), func() error {
			if got := may.Do(read...); got != want[i] {
				return fmt.Errorf("got %q", got)
			}
			return nil
		})
	}
	for _, fails := range [][]string{{"HGETALL", "x:cfg:never-read"}, {"SET", "item:a", "x"}} {
		if got := may.Do(fails...); got[0] != '-' {
			t.Errorf("%q: got %q", fails, got)
		}
	}
	if got := clustertest.Dial(t, g.addr).Do("AUTH", "pw"); got[0] != '-' {
		t.Errorf("a login that nobody can verify: %q", got)
	}
}

// staleProxy is a proxy whose entries stand in, in front of a master that another test takes away.
type staleProxy struct {
	front  []*clustertest.Conn
	server *proxy.Server
	a, b   string // keys in memory
}

// startStale has two keys on the master read into memory. like is a key whose hash tag they get.
func startStale(t *testing.T, master *clustertest.Redis, like string, start func(change func(*proxy.Options)) *proxytest.Discovered) *staleProxy {
	t.Helper()
	p := start(func(o *proxy.Options) { o.Cache.MaxStaleness, o.Cache.StaleFor = maxStaleness, time.Minute })
	tag, _, _ := strings.Cut(like, ":")
	s := &staleProxy{server: p.Server, a: tag + ":cfg:stale-a", b: tag + ":cfg:stale-b"}
	for range 2 {
		s.front = append(s.front, clustertest.Dial(t, p.Addr))
	}
	for _, key := range []string{s.a, s.b} {
		master.Do("HSET", key, "f", "old")
		for _, c := range s.front {
			hold(t, c, func() uint64 { return s.server.Stats().Hits }, staleOld, "HGETALL", key)
		}
	}
	return s
}

const staleOld, staleNew = "*2\r\n$1\r\nf\r\n$3\r\nold\r\n", "*2\r\n$1\r\nf\r\n$3\r\nnew\r\n"

// standIn waits until what is in memory stands in for the master that is gone.
func (s *staleProxy) standIn(t *testing.T) {
	t.Helper()
	for _, c := range s.front {
		clustertest.Await(t, "a value in place of the lost one", func() error {
			if got := c.Do("HGETALL", s.a); got != staleOld {
				return errors.New(got)
			}
			return nil
		})
	}
	if s.server.Stats().StaleHits == 0 {
		t.Error("no stale hits counted")
	}
}

// end changes the keys on the new master: once one of them is seen to have changed, so is the other.
func (s *staleProxy) end(t *testing.T, heir *clustertest.Redis) {
	t.Helper()
	for _, key := range []string{s.a, s.b} {
		heir.Do("HSET", key, "f", "new")
	}
	clustertest.Await(t, "a fresh answer", func() error {
		switch got := s.front[0].Do("HGETALL", s.a); {
		case got == staleNew:
			return nil
		case got != staleOld && got[0] != '-':
			t.Fatalf("got %q", got)
			return nil
		default:
			return errors.New(got)
		}
	})
	for _, c := range s.front {
		for _, key := range []string{s.b, s.a} {
			nothingBut(t, c, staleNew, "HGETALL", key)
		}
	}
}
