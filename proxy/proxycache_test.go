package proxy_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

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
	if got := r.front[0].Do("PROXY", "CACHE", "STATS"); !strings.HasPrefix(got, "*34\r\n"+begin) {
		t.Errorf("RESP2: %q", got)
	}
	r.front[0].Do("HELLO", "3")
	if got := r.front[0].Do("PROXY", "CACHE", "STATS"); !strings.HasPrefix(got, "%17\r\n"+begin) {
		t.Errorf("RESP3: %q", got)
	}
}

// TestCacheInspect: what is known about a key, and that looking changes nothing.
func TestCacheInspect(t *testing.T) {
	r := startNear(t, hotOptions(0, "k"), func(o *proxy.Options) {
		o.Cache.Rules = []proxy.Rule{{Match: "k*", Commands: []string{"get"}, TTL: time.Minute, MaxValue: 1 << 10}}
	})
	r.direct.Do("SET", "k", "value")
	r.warm("GET", "k")
	r.warm("STRLEN", "k") // pinned
	r.warm("HGETALL", hashKey)
	number := regexp.MustCompile(`(reads_per_second|changes|ends_in_ms)\r\n:\d+`)
	inspect := func(key string) string {
		return number.ReplaceAllString(r.front[0].Do("PROXY", "CACHE", "INSPECT", key), "$1\r\n:N")
	}
	node := fmt.Sprintf("$4\r\nnode\r\n$%d\r\n%s\r\n", len(r.redis.Addr), r.redis.Addr)
	const counts = "$16\r\nreads_per_second\r\n:N\r\n$16\r\nwrites_in_flight\r\n:0\r\n$7\r\nchanges\r\n:N\r\n$7\r\nentries\r\n"
	entry := func(head, command string, size int) string {
		return fmt.Sprintf("%s$7\r\ncommand\r\n$%d\r\n%s\r\n$5\r\nbytes\r\n:%d\r\n$10\r\nends_in_ms\r\n:N\r\n", head, len(command), command, size)
	}
	k := "$3\r\nkey\r\n$1\r\nk\r\n$2\r\ndb\r\n:0\r\n$5\r\nclass\r\n$4\r\nnone\r\n$5\r\nrules\r\n*2\r\n$2\r\nk*\r\n$10\r\n(hot keys)\r\n" + node + counts + "*2\r\n"
	if got, want := inspect("k"), "*18\r\n"+k+entry("*6\r\n", "get", 11)+entry("*6\r\n", "strlen", 4); got != want {
		t.Errorf("RESP2:\n got %q\nwant %q", got, want)
	}
	r.front[0].Do("HELLO", "3")
	if got, want := inspect("k"), "%9\r\n"+k+entry("%3\r\n", "get", 11)+entry("%3\r\n", "strlen", 4); got != want {
		t.Errorf("RESP3:\n got %q\nwant %q", got, want)
	}
	if got := inspect(hashKey); !strings.Contains(got, "$5\r\nclass\r\n$6\r\nconfig\r\n$5\r\nrules\r\n*0\r\n") || !strings.HasSuffix(got, "entries\r\n*1\r\n"+entry("%3\r\n", "hgetall", 8)) {
		t.Errorf("a hash of CoSky's: %q", got)
	}
	if got := inspect("unknown"); !strings.HasSuffix(got, "entries\r\n*0\r\n") {
		t.Errorf("an unknown key: %q", got)
	}
	r.front[1].Do("PROXY", "CACHE", "FLUSH", "k*")
	if got := inspect("k"); !strings.HasSuffix(got, "entries\r\n*0\r\n") {
		t.Errorf("after a flush: %q", got)
	}
}

func TestCacheCommandsAreRefused(t *testing.T) {
	r := startNear(t, func(o *proxy.Options) { o.Cache.Cache, o.Cache.Invalidation = nil, proxy.InvalidationOff })
	for call, want := range map[string]string{
		"PROXY CACHE FLUSH":     "-ERR the near-cache is off: nearcache.invalidation\r\n",
		"PROXY CACHE STATS":     "-ERR the near-cache is off: nearcache.invalidation\r\n",
		"PROXY CACHE INSPECT k": "-ERR the near-cache is off: nearcache.invalidation\r\n",
		"PROXY CACHE INSPECT":   "-ERR unknown subcommand or wrong number of arguments for 'INSPECT'. Try PROXY HELP.\r\n",
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
