package proxy_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/lua"
	"cosky-proxy/proxy/proxytest"
)

// seedNamespace writes a namespace with so many configs, and services with as many instances each.
func seedNamespace(backend *clustertest.Redis, ns string, n int) {
	for i := range n {
		id := strconv.Itoa(i)
		backend.Do("HSET", ns+":cfg:"+id, "data", "v"+id)
		backend.Do("SADD", ns+":cfg_idx", ns+":cfg:"+id)
		backend.Do("SADD", ns+":svc_idx", "s"+id)
		for j := range n {
			iid := fmt.Sprintf("s%d@http#h#%d", i, j)
			backend.Do("SADD", ns+":svc_itc_idx:s"+id, iid)
			backend.Do("HSET", ns+":svc_itc:"+iid, "instanceId", iid)
		}
	}
}

// TestWarmup: once the proxy is ready, every first read of the namespaces is a hit.
func TestWarmup(t *testing.T) {
	backend := clustertest.StartRedis(t)
	const n = 4
	seedNamespace(backend, "{a}", n)
	seedNamespace(backend, "{b}", n)
	script := lua.ByName("discovery_get_instances") // of its wordings the one that is in use
	backend.Do("SCRIPT", "LOAD", script.Text)
	o := proxytest.Options(t, proxytest.Single(backend.Addr))
	o.Cache.Warmup.Namespaces = []string{"{a}", "{b}", "{none}"}
	s, addr := proxytest.Start(t, o)
	clustertest.Await(t, "readiness", s.Ready)
	c := clustertest.Dial(t, addr)
	first := true
	clustertest.Await(t, "a namespace in memory", func() error {
		before := s.Stats()
		reads := 0
		read := func(args ...string) { c.Do(args...); reads++ }
		for _, ns := range []string{"{a}", "{b}"} {
			read("SMEMBERS", ns+":cfg_idx")
			read("SMEMBERS", ns+":svc_idx")
			for i := range n {
				read("HGETALL", ns+":cfg:"+strconv.Itoa(i))
				read("SMEMBERS", ns+":svc_itc_idx:s"+strconv.Itoa(i))
				read("HGETALL", fmt.Sprintf("%s:svc_itc:s%d@http#h#%d", ns, i, i))
				read("EVALSHA", script.SHA1, "1", ns, "s"+strconv.Itoa(i))
			}
		}
		after := s.Stats()
		hits := int(after.Hits - before.Hits)
		if first && hits < reads*3/4 { // a set that the store has queued may show a moment later
			t.Errorf("only %d of the first %d reads were hits", hits, reads)
		}
		first = false
		if hits != reads {
			return fmt.Errorf("%d hits of %d", hits, reads)
		}
		return nil
	})
}

// TestWarmupDoesNotHoldUpForEver: a namespace that cannot be loaded delays readiness by no more than the timeout.
func TestWarmupDoesNotHoldUpForEver(t *testing.T) {
	backend := clustertest.StartRedis(t)
	backend.Do("SET", "{a}:cfg_idx", "not a set")
	o := proxytest.Options(t, proxytest.Single(backend.Addr))
	o.Cache.Warmup.Namespaces = []string{"{a}"}
	o.Cache.Warmup.Timeout = 300 * time.Millisecond
	backend.Freeze()
	s, _ := proxytest.Start(t, o)
	if err := s.Ready(); err == nil {
		t.Error("ready before the namespace was loaded")
	}
	clustertest.Await(t, "readiness", s.Ready)
	backend.Thaw()
}

// TestWhatWasHotIsReadAgain: when the connection that announces changes is lost, what was in use comes back
// into memory although nobody asks for it.
func TestWhatWasHotIsReadAgain(t *testing.T) {
	backend := clustertest.StartRedis(t)
	o := proxytest.Options(t, proxytest.Single(backend.Addr))
	s, addr := proxytest.Start(t, o)
	const keys = 20
	key := func(i int) string { return fmt.Sprintf("{n}:cfg:%d", i) }
	value := func(v string) string { return fmt.Sprintf("*2\r\n$4\r\ndata\r\n$%d\r\n%s\r\n", len(v), v) }
	c := clustertest.Dial(t, addr)
	for i := range keys {
		backend.Do("HSET", key(i), "data", "v1")
		hold(t, c, func() uint64 { return s.Stats().Hits }, value("v1"), "HGETALL", key(i))
	}
	for i := range keys { // in use
		c.Do("HGETALL", key(i))
	}
	fills := s.CacheStats().Fills
	backend.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	clustertest.Await(t, "fills that nobody has asked for", func() error {
		if n := s.CacheStats().Fills - fills; n < keys/2 { // a sweep may have found some out of use
			return fmt.Errorf("%d of %d", n, keys)
		}
		return nil
	})
	clustertest.Await(t, "hits on a new connection", func() error {
		before := s.Stats()
		for i := range keys {
			if got := clustertest.Dial(t, addr).Do("HGETALL", key(i)); got != value("v1") {
				t.Fatalf("got %q", got)
			}
		}
		if after := s.Stats(); after.Hits-before.Hits != keys {
			return errors.New("not all from memory")
		}
		return nil
	})
}

// TestViewsInUseAreReadAgain is the same for what scripts answer.
func TestViewsInUseAreReadAgain(t *testing.T) {
	r := startViews(t)
	r.warm(viewReads[0]...)
	calls := func() string { return r.redis.InfoField("commandstats", "cmdstat_evalsha") }
	before := calls()
	r.redis.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	clustertest.Await(t, "a call that nobody has asked for", func() error {
		if calls() == before {
			return errors.New("none")
		}
		return nil
	})
	clustertest.Await(t, "hits on a new connection", func() error {
		hits := r.hits(func() {
			for _, c := range r.front {
				c.Do(viewReads[0]...)
			}
		})
		if hits != uint64(len(r.front)) {
			return fmt.Errorf("%d", hits)
		}
		return nil
	})
}

// TestVolatileKeysAreNotCached: a key that changes before every read is read uncached for a while.
func TestVolatileKeysAreNotCached(t *testing.T) {
	backend := clustertest.StartRedis(t)
	s, addr := proxytest.Start(t, proxytest.Options(t, proxytest.Single(backend.Addr)))
	c := clustertest.Dial(t, addr)
	c.Do("HSET", "{n}:cfg:calm", "data", "v")
	hold(t, c, func() uint64 { return s.Stats().Hits }, "*2\r\n$4\r\ndata\r\n$1\r\nv\r\n", "HGETALL", "{n}:cfg:calm")
	version := 0
	clustertest.Await(t, "the end of caching", func() error {
		for range 10 {
			version++
			v := strconv.Itoa(version)
			c.Do("HSET", "{n}:cfg:wild", "data", v)
			if got, want := c.Do("HGETALL", "{n}:cfg:wild"), fmt.Sprintf("*2\r\n$4\r\ndata\r\n$%d\r\n%s\r\n", len(v), v); got != want {
				t.Fatalf("got %q, want %q", got, want)
			}
		}
		if s.Stats().Volatile == 0 {
			return errors.New("still cached")
		}
		return nil
	})
	before := s.Stats()
	for range 10 {
		c.Do("HSET", "{n}:cfg:wild", "data", "x")
		c.Do("HGETALL", "{n}:cfg:wild")
		c.Do("HGETALL", "{n}:cfg:calm")
	}
	after := s.Stats()
	if misses, bypasses, hits := after.Misses-before.Misses, after.Bypasses-before.Bypasses, after.Hits-before.Hits; misses != 0 || bypasses != 10 || hits != 10 {
		t.Errorf("%d misses, %d bypasses and %d hits; want none, 10 of the volatile key and 10 of the other", misses, bypasses, hits)
	}
}
