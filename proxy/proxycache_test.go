package proxy_test

import (
	"errors"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
)

// TestCacheFlush: what matches is fetched anew by every loop, what does not stays.
func TestCacheFlush(t *testing.T) {
	r := startNear(t)
	reads := [][]string{{"HGETALL", hashKey}, {"HGETALL", hashKey2}, {"SMEMBERS", setKey}}
	r.direct.Do("HSET", hashKey, "f", "v")
	for _, c := range []struct {
		call  string
		stays [3]bool
	}{
		{"PROXY CACHE FLUSH", [3]bool{false, false, false}},
		{"proxy cache flush *", [3]bool{false, false, false}},
		{"PROXY CACHE FLUSH " + hashKey, [3]bool{false, true, true}},
		{"PROXY CACHE FLUSH {n}:cfg:*", [3]bool{false, false, true}},
		{"PROXY CACHE FLUSH {n}:cfg:[b-z]", [3]bool{true, false, true}},
		{"PROXY CACHE FLUSH {n}:svc_itc_idx:?", [3]bool{true, true, false}},
		{"PROXY CACHE FLUSH nothing*", [3]bool{true, true, true}},
	} {
		for _, read := range reads {
			r.warm(read...)
		}
		if got := r.front[0].Do(words(c.call)...); got != "+OK\r\n" {
			t.Fatalf("%s: %q", c.call, got)
		}
		for i, read := range reads {
			misses := r.server.Stats().Misses
			for _, f := range r.front {
				f.Do(read...)
			}
			if stayed := r.server.Stats().Misses == misses; stayed != c.stays[i] {
				t.Errorf("%s: %q stayed %v", c.call, read, stayed)
			}
		}
	}
}

// TestCacheFlushVoidsFetchesUnderWay: what was read before a flush is not kept after it.
func TestCacheFlushVoidsFetchesUnderWay(t *testing.T) {
	r, wire := startRelayed(t, patientLeases)
	for _, call := range []string{"PROXY CACHE FLUSH", "PROXY CACHE FLUSH " + hashKey, "PROXY CACHE FLUSH {n}:*"} {
		r.warm("HGETALL", hashKey2)
		r.warm("SMEMBERS", setKey)
		r.front[0].Do("PROXY", "CACHE", "FLUSH", hashKey)
		wire.Mute(proxytest.Fetch)
		reads := func() string { return r.redis.InfoField("commandstats", "cmdstat_hgetall") }
		before := reads()
		r.front[0].Cmd("HGETALL", hashKey)
		clustertest.Await(t, "the fetch to reach Redis", func() error {
			if reads() == before {
				return errors.New("not yet")
			}
			return nil
		})
		underWay := reads()
		if got := r.front[1].Do(words(call)...); got != "+OK\r\n" {
			t.Fatalf("%s: %q", call, got)
		}
		wire.Unmute(proxytest.Fetch)
		r.front[0].Expect("*0\r\n")
		r.front[0].Do("HGETALL", hashKey)
		if reads() == underWay {
			t.Errorf("%s: the reply that was under way has been kept", call)
		}
	}
}

func TestCacheStats(t *testing.T) {
	r := startNear(t)
	r.warm("HGETALL", hashKey)
	const begin = "$7\r\nsources\r\n$8\r\ntracking\r\n$4\r\nhits\r\n:2\r\n$6\r\nmisses\r\n:"
	if got := r.front[0].Do("PROXY", "CACHE", "STATS"); !strings.HasPrefix(got, "*26\r\n"+begin) {
		t.Errorf("RESP2: %q", got)
	}
	r.front[0].Do("HELLO", "3")
	if got := r.front[0].Do("PROXY", "CACHE", "STATS"); !strings.HasPrefix(got, "%13\r\n"+begin) {
		t.Errorf("RESP3: %q", got)
	}
}

func TestCacheCommandsAreRefused(t *testing.T) {
	r := startNear(t, func(o *proxy.Options) { o.Cache.Cache, o.Cache.Invalidation = nil, proxy.InvalidationOff })
	for call, want := range map[string]string{
		"PROXY CACHE FLUSH":     "-ERR the near-cache is off: nearcache.invalidation\r\n",
		"PROXY CACHE STATS":     "-ERR the near-cache is off: nearcache.invalidation\r\n",
		"PROXY CACHE FLUSH a b": "-ERR unknown subcommand or wrong number of arguments for 'FLUSH'. Try PROXY HELP.\r\n",
		"PROXY CACHE STATS x":   "-ERR unknown subcommand or wrong number of arguments for 'STATS'. Try PROXY HELP.\r\n",
		"PROXY CACHE NOSUCH":    "-ERR unknown subcommand or wrong number of arguments for 'NOSUCH'. Try PROXY HELP.\r\n",
		"COSKY.SYNC":            "+OK\r\n",
	} {
		if got := r.front[0].Do(words(call)...); got != want {
			t.Errorf("%s: %q, want %q", call, got, want)
		}
	}
}
