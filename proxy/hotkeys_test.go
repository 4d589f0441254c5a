package proxy_test

import (
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/stats"
)

// countEvery makes every single read count.
func countEvery(o *proxy.Options) { o.Hot = proxy.HotOptions{Sample: 1, Interval: time.Hour} }

// TestHotKeys: reads on all loops add up, whether they are answered from memory or not, and writes
// do not count.
func TestHotKeys(t *testing.T) {
	r := startNear(t, countEvery)
	r.direct.Do("HSET", hashKey, "f", "v")
	r.warm("HGETALL", hashKey)
	for range 100 {
		for _, c := range r.front {
			c.Do("HGETALL", hashKey)
			c.Do("SET", "w", "1")
		}
	}
	for range 50 {
		r.front[0].Do("MGET", "a", "b")
		r.front[1].Do("GET", "a")
	}
	r.front[1].Do("SELECT", "1")
	r.front[1].Do("GET", "only\n")
	r.front[1].Do("SELECT", "0")

	type key struct {
		key, command string
		db           int
	}
	want := []key{{hashKey, "hgetall", 0}, {"a", "get", 0}, {"b", "mget", 0}, {"only\n", "get", 1}}
	got := r.server.HotKeys(10)
	for i, k := range got {
		if i < len(want) && (want[i].key != k.Key || want[i].db != k.DB || want[i].command != k.Command && k.Key != "a") {
			t.Errorf("place %d: %+v", i, k)
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	if two := r.server.HotKeys(2); len(two) != 2 || two[1].Key != "a" {
		t.Errorf("the first two: %+v", two)
	}
	ratio := func(a, b stats.HotKey) float64 { return a.Reads / b.Reads }
	if x := ratio(got[1], got[2]); x < 1.9 || x > 2.1 {
		t.Errorf("a was read twice as often as b, %.2f times they say", x)
	}

	reply := r.front[0].Do("PROXY", "HOTKEYS", "1")
	if !strings.HasPrefix(reply, "*1\r\n*10\r\n$3\r\nkey\r\n$9\r\n{n}:cfg:a\r\n$2\r\ndb\r\n:0\r\n$7\r\ncommand\r\n$7\r\nhgetall\r\n$16\r\nreads_per_second\r\n:") {
		t.Errorf("RESP2: %q", reply)
	}
	r.front[0].Do("HELLO", "3")
	reply = r.front[0].Do("PROXY", "HOTKEYS")
	if !strings.HasPrefix(reply, "*4\r\n%5\r\n$3\r\nkey\r\n$9\r\n{n}:cfg:a\r\n") || !strings.Contains(reply, "\r\n$5\r\nonly\n\r\n$2\r\ndb\r\n:1\r\n") {
		t.Errorf("RESP3: %q", reply)
	}
}

// TestProxyCommands: what is refused, in which words.
func TestProxyCommands(t *testing.T) {
	r := startNear(t, func(o *proxy.Options) { o.SlowLog.SlowerThan = 0 })
	for call, want := range map[string]string{
		"PROXY":              "-ERR wrong number of arguments for 'proxy' command\r\n",
		"PROXY NOSUCH":       "-ERR unknown subcommand 'NOSUCH'. Try PROXY HELP.\r\n",
		"PROXY HELP x":       "-ERR wrong number of arguments for 'proxy|help' command\r\n",
		"PROXY HOTKEYS":      "-ERR reads are not counted: nearcache.hot.sample is 0\r\n",
		"PROXY HOTKEYS x":    "-ERR count must be a number from 1 to 1000\r\n",
		"PROXY HOTKEYS 0":    "-ERR count must be a number from 1 to 1000\r\n",
		"PROXY HOTKEYS 1001": "-ERR count must be a number from 1 to 1000\r\n",
		"PROXY HOTKEYS 1 2":  "-ERR unknown subcommand or wrong number of arguments for 'HOTKEYS'. Try PROXY HELP.\r\n",
		"PROXY CACHE":        "-ERR wrong number of arguments for 'proxy|cache' command\r\n",

		"PROXY SLOWLOG":         "-ERR wrong number of arguments for 'proxy|slowlog' command\r\n",
		"PROXY SLOWLOG GET":     "*0\r\n",
		"PROXY SLOWLOG GET -1":  "*0\r\n",
		"PROXY SLOWLOG GET -2":  "-ERR count should be greater than or equal to -1\r\n",
		"PROXY SLOWLOG GET x":   "-ERR count should be greater than or equal to -1\r\n",
		"PROXY SLOWLOG GET 1 2": "-ERR unknown subcommand or wrong number of arguments for 'GET'. Try PROXY HELP.\r\n",
		"PROXY SLOWLOG LEN":     ":0\r\n",
		"PROXY SLOWLOG LEN x":   "-ERR unknown subcommand or wrong number of arguments for 'LEN'. Try PROXY HELP.\r\n",
		"PROXY SLOWLOG RESET":   "+OK\r\n",
		"PROXY SLOWLOG NOSUCH":  "-ERR unknown subcommand or wrong number of arguments for 'NOSUCH'. Try PROXY HELP.\r\n",
	} {
		if got := r.front[0].Do(words(call)...); got != want {
			t.Errorf("%s: %q, want %q", call, got, want)
		}
	}
	if got := r.front[0].Do("proxy", "help"); !strings.HasPrefix(got, "*17\r\n+PROXY <subcommand>") {
		t.Errorf("PROXY HELP: %q", got)
	}
}

// TestProxyCommandsAreForAdministrators: with users of the proxy's own by category, with those of the
// backend by whether it lets them read its configuration. COSKY.SYNC is for everybody.
func TestProxyCommandsAreForAdministrators(t *testing.T) {
	for _, mode := range []proxy.AuthMode{proxy.AuthProxy, proxy.AuthPassthrough} {
		t.Run(string(mode), func(t *testing.T) {
			w := startAuthTwins(t, mode, people)
			for _, c := range []struct{ user, password, call, want string }{
				{"default", "pw", "PROXY CACHE FLUSH", "+OK\r\n"},
				{"default", "pw", "COSKY.SYNC", "+OK\r\n"},
				{"app", "secret", "PROXY CACHE FLUSH", "-NOPERM this user has no permissions to run the 'proxy|cache' command\r\n"},
				{"app", "secret", "PROXY HOTKEYS", "-NOPERM this user has no permissions to run the 'proxy|hotkeys' command\r\n"},
				{"default", "pw", "PROXY SLOWLOG RESET", "+OK\r\n"},
				{"app", "secret", "PROXY SLOWLOG GET", "-NOPERM this user has no permissions to run the 'proxy|slowlog' command\r\n"},
				{"app", "secret", "COSKY.SYNC", "+OK\r\n"},
			} {
				conn := clustertest.Dial(t, w.proxy)
				if got := conn.Do(words(c.call)...); got != "-NOAUTH Authentication required.\r\n" {
					t.Errorf("%s without a login: %q", c.call, got)
				}
				conn.Do("AUTH", c.user, c.password)
				if got := conn.Do(words(c.call)...); got != c.want {
					t.Errorf("%s, %s: %q", c.user, c.call, got)
				}
			}
		})
	}
}
