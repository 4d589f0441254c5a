package proxy_test

import (
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

// TestHome: everything a client with a home does travels there: one connection of the
// backend sees all of it, whatever kind of command it is.
func TestHome(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	for _, proto := range []int{2, 3} {
		p, other := w.dial(t, proto), w.dial(t, 2)
		p.do(script("SET k 1", "GET k", "CLIENT TRACKING on NOLOOP", "GET k", "MSET a 1 b 2", "MGET a b k", "HSET ns:cfg:x f v", "HGETALL ns:cfg:x", "HGETALL ns:cfg:x", "SELECT 3", "GET k", "SET k 3", "SELECT 0", "GET k",
			"EVAL return(redis.call('incr',KEYS[1])) 1 n", "SCRIPT EXISTS x", "RPUSH l x", "BLPOP l 1", "BLPOP l 0.01", "WATCH k", "SET k 2", "MULTI", "GET k", "EXEC", "WATCH k", "MULTI", "SELECT 3", "GET k", "SELECT 0", "EXEC", "GET k", "UNWATCH", "WAIT 0 0", "PING", "PING x", "INFO nosuch", "DBSIZE", "OBJECT ENCODING k")...)
		p.do([]string{"SET", "big", strings.Repeat("v", 3<<20)}, []string{"STRLEN", "big"}, []string{"DEL", "big"})
		p.do(script("PUBLISH ch m", "CLIENT SETNAME me", "GET k", "RESET", "GET k", "CLIENT GETNAME", "FLUSHALL")...)
		other.do(script("SET k 9")...)
		p.do(script("GET k", "PING")...)
	}
	c := clustertest.Dial(t, w.proxy)
	c.Do("CLIENT", "TRACKING", "ON")
	for _, args := range script("SET a 1", "MGET a b", "EVAL return(1) 0", "BLPOP q 0.01", "DBSIZE") {
		c.Do(args...)
	}
	home := fieldsOf(clustertest.Dial(t, w.behind.Addr).Do("CLIENT", "LIST"), "flags=t")
	if home["cmd"] != "dbsize" {
		t.Errorf("the connection that tracks has executed %q last", home["cmd"])
	}
	c.Close()
	direct := clustertest.Dial(t, w.behind.Addr)
	clustertest.Await(t, "the home to be given up", func() error {
		if list := direct.Do("CLIENT", "LIST"); strings.Contains(list, "flags=t") {
			return errString(list)
		}
		return nil
	})
}

// TestCacheStaysCoherentWithHomes: what a client writes through its home is seen by
// those whose reads are served from memory.
func TestCacheStaysCoherentWithHomes(t *testing.T) {
	backend := clustertest.StartRedis(t)
	s, addr := proxytest.Start(t, strict(t, backend, netloop.DefaultTransport))
	writer, reader := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
	writer.Do("CLIENT", "TRACKING", "ON")
	const key = "ns:cfg:home"
	for i := range 200 {
		v := strings.Repeat("v", i+1)
		writer.Do("HSET", key, "f", v)
		want := "*2\r\n" + bulkOf("f") + bulkOf(v)
		for range 3 {
			if got := reader.Do("HGETALL", key); got != want {
				t.Fatalf("write %d is not seen: got %.40q", i, got)
			}
		}
		if got := writer.Do("HGETALL", key); got != want {
			t.Fatalf("write %d is not seen by its writer: got %.40q", i, got)
		}
	}
	if s.Stats().Hits == 0 {
		t.Error("nothing was served from memory")
	}
}
