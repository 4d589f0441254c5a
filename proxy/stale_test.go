package proxy_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
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
		if got := conn.Do("SMEMBERS", "{n}:svc_idx"); got != "*0\r\n" {
			t.Errorf("the first answer of another key after a fresh one: %q", got)
		}
	}
	if info := c.Do("INFO", "proxy"); !strings.Contains(info, "nearcache_stale_nodes:0\r\n") {
		t.Errorf("INFO still shows the loss: %q", info)
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
