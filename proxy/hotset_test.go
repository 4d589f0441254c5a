package proxy_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
)

// hotOptions make keys hot that are read at all, soon.
func hotOptions(keys int, pinned ...string) func(*proxy.Options) {
	return func(o *proxy.Options) {
		o.Hot = proxy.HotOptions{Sample: 1, Interval: 50 * time.Millisecond, Keys: keys, MinReads: 1, Pinned: pinned}
	}
}

// cachedAs is what PROXY HOTKEYS says of key.
func (r *nearRig) cachedAs(key string) string {
	for _, k := range r.server.HotKeys(1000) {
		if k.Key == key {
			return k.Cached
		}
	}
	return "not read"
}

// TestHotKeysAreCached: the keys that are read most are served from memory, pinned ones too, and no
// longer when others are read more.
func TestHotKeysAreCached(t *testing.T) {
	r := startNear(t, hotOptions(2, "pinned"))
	r.direct.Do("MSET", "a", "1", "b", "2", "c", "3", "pinned", "4")
	r.direct.Do("HSET", "h", "f", "v")
	r.warm("GET", "pinned") // however seldom it is read
	read := func(key string, times int) {
		for range times {
			r.front[0].Do("GET", key)
		}
	}
	clustertest.Await(t, "a and b to be hot", func() error {
		read("a", 40)
		read("b", 30)
		read("c", 5)
		if a, b, c := r.cachedAs("a"), r.cachedAs("b"), r.cachedAs("c"); a != "hot" || b != "hot" || c != "no" {
			return fmt.Errorf("a %s, b %s, c %s", a, b, c)
		}
		return nil
	})
	r.warm("GET", "a")
	r.agree(true, "GET", "a")
	r.front[1].Do("SET", "a", "5")
	r.agree(true, "GET", "a")
	r.direct.Do("SET", "b", "6")
	r.agree(false, "GET", "b")
	clustertest.Await(t, "h to replace them", func() error {
		for range 50 {
			r.front[0].Do("HGET", "h", "f")
			r.front[1].Do("HGETALL", "h")
		}
		if a, h := r.cachedAs("a"), r.cachedAs("h"); a == "hot" || h != "hot" {
			return fmt.Errorf("a %s, h %s", a, h)
		}
		return nil
	})
	r.warm("HGET", "h", "f")
	r.front[0].Do("HSET", "h", "f", "w")
	r.agree(true, "HGET", "h", "f")
	if got := r.cachedAs("pinned"); got == "no" {
		t.Errorf("pinned: %s", got)
	}
	for _, k := range r.server.Stats().Rules {
		if k.Match == "(hot keys)" && k.Hits > 0 {
			return
		}
	}
	t.Errorf("hits are not counted: %+v", r.server.Stats().Rules)
}

// TestHotKeysNeedTracking: without it nothing but its time would end an entry.
func TestHotKeysNeedTracking(t *testing.T) {
	r := startNear(t, hotOptions(2, "pinned"), func(o *proxy.Options) { o.Cache.Invalidation = proxy.InvalidationPubSub })
	r.warm("HGETALL", hashKey)
	for i := range 20 {
		r.direct.Do("SET", "pinned", fmt.Sprint(i))
		r.agree(true, "GET", "pinned")
		r.agree(true, "GET", "other")
	}
}

// TestWritesAroundTheMomentAKeyBecomesHot: a command that was queued or blocked before a key was hot
// voids what is cached of it before its own client hears the answer, although nobody noted
// what it does and the backend's word is late.
func TestWritesAroundTheMomentAKeyBecomesHot(t *testing.T) {
	stragglers := map[string]struct {
		begin  func(r *nearRig, c *clustertest.Conn)
		finish func(r *nearRig, c *clustertest.Conn)
	}{
		"queued": {
			func(r *nearRig, c *clustertest.Conn) {
				c.Do("MULTI")
				c.Do("SET", "k", "new")
			},
			func(r *nearRig, c *clustertest.Conn) {
				if got := c.Do("EXEC"); got != "*1\r\n+OK\r\n" {
					r.t.Errorf("EXEC: %q", got)
				}
			},
		},
		"blocked": {
			func(r *nearRig, c *clustertest.Conn) {
				c.Cmd("BLMOVE", "l", "k", "LEFT", "LEFT", "0")
				clustertest.Await(r.t, "it to block", func() error {
					if n := r.redis.InfoField("clients", "blocked_clients"); n != "1" {
						return fmt.Errorf("%s blocked", n)
					}
					return nil
				})
			},
			func(r *nearRig, c *clustertest.Conn) {
				r.direct.Do("RPUSH", "l", "new")
				c.Expect("$3\r\nnew\r\n")
			},
		},
	}
	for name, straggler := range stragglers {
		t.Run(name, func(t *testing.T) {
			r, wire := startRelayed(t, patientLeases, hotOptions(1))
			writer := r.dial()
			straggler.begin(r, writer)
			clustertest.Await(t, "k to be hot", func() error {
				for range 20 {
					r.front[0].Do("GET", "k")
				}
				if as := r.cachedAs("k"); as != "hot" {
					return fmt.Errorf("k: %s", as)
				}
				return nil
			})
			r.warm("GET", "k")
			wire.Mute(proxytest.Fetch)
			straggler.finish(r, writer)
			before := r.server.Stats()
			r.front[1].Cmd("GET", "k")
			clustertest.Await(t, "the read to be looked at", func() error {
				if now := r.server.Stats(); now.Hits+now.Misses+now.Bypasses == before.Hits+before.Misses+before.Bypasses {
					return errors.New("not yet")
				}
				return nil
			})
			if r.server.Stats().Hits > before.Hits {
				t.Error("answered from memory after the write was acknowledged")
			}
			wire.Unmute(proxytest.Fetch)
			r.front[1].Expect(r.direct.Do("GET", "k"))
			r.agree(true, "GET", "k")
		})
	}
}

// TestHotKeysComeAndGo: registers under constant change stay linearizable while the hot set changes
// all the time.
func TestHotKeysComeAndGo(t *testing.T) {
	r := startNear(t, hotOptions(2), func(o *proxy.Options) { o.Hot.Interval = 20 * time.Millisecond })
	keys := []string{"a", "b", "c", "d", "e", "f"}
	changes := 0
	last := ""
	for round := range 150 {
		key := keys[round/5%len(keys)]
		value := fmt.Sprint(round)
		r.front[round%2].Do("SET", key, value)
		for range 10 {
			for i, c := range r.front {
				if got := c.Do("GET", key); got != fmt.Sprintf("$%d\r\n%s\r\n", len(value), value) {
					t.Fatalf("round %d, client %d: %q", round, i, got)
				}
			}
		}
		if now := r.cachedAs(key); now != last {
			last = now
			changes++
		}
	}
	if changes < 5 {
		t.Errorf("the hot set changed %d times only", changes)
	}
}

// TestHotKeysOnACluster: each is fetched where its slot is served.
func TestHotKeysOnACluster(t *testing.T) {
	c := clustertest.StartCluster(t, 3, 0)
	p := proxytest.StartCluster(t, c, hotOptions(10))
	a, b := clustertest.Dial(t, p.Addr), clustertest.Dial(t, p.Addr)
	keys := []string{"a", "b", "c", "d", "e"}
	for i := range 40 {
		for _, k := range keys {
			a.Do("SET", k, fmt.Sprint(i))
			for range 5 {
				if got, want := b.Do("GET", k), fmt.Sprintf("$%d\r\n%d\r\n", len(fmt.Sprint(i)), i); got != want {
					t.Fatalf("%s: %q, want %q", k, got, want)
				}
			}
		}
	}
	clustertest.Await(t, "hits", func() error {
		before := p.Stats().Hits
		for range 5 {
			for _, k := range keys {
				b.Do("GET", k)
			}
		}
		if p.Stats().Hits == before {
			return fmt.Errorf("none")
		}
		return nil
	})
}
