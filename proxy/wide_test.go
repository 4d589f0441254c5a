package proxy_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
)

// onOneLoop puts all clients on the same connections to the backend.
func onOneLoop(o *proxy.Options) { o.Loops = 1 }

func TestClusterWideCommands(t *testing.T) {
	c := clustertest.StartCluster(t, 3, 1)
	p := proxytest.StartCluster(t, c, onOneLoop)
	conn := clustertest.Dial(t, p.Addr)
	t.Run("settings reach every node", func(t *testing.T) {
		expectReply(t, conn, "CONFIG SET hz 17", "+OK\r\n")
		expectReply(t, conn, "CONFIG GET hz", "*2\r\n$2\r\nhz\r\n$2\r\n17\r\n")
		expectReply(t, conn, "ACL SETUSER wide on nopass +ping", "+OK\r\n")
		expectReply(t, conn, "CONFIG RESETSTAT", "+OK\r\n")
		for _, r := range c.Nodes {
			if got := fmt.Sprint(r.Do("CONFIG", "GET", "hz")); got != "map[hz:17]" {
				t.Errorf("%s: got %s", r.Addr, got)
			}
			if got := fmt.Sprint(r.Do("ACL", "USERS")); got != "[default wide]" {
				t.Errorf("%s: got %s", r.Addr, got)
			}
		}
		expectReply(t, conn, "ACL DELUSER wide", ":1\r\n")
	})
	t.Run("logs of all masters", func(t *testing.T) {
		expectReply(t, conn, "CONFIG SET slowlog-log-slower-than 0", "+OK\r\n")
		for i := range 3 {
			conn.Do("SET", keyOf("slow", i), "v")
		}
		entries := conn.Do("SLOWLOG", "GET", "-1")
		for i := range 3 {
			if !strings.Contains(entries, bulkOf(keyOf("slow", i))) {
				t.Errorf("SLOWLOG GET does not show the SET on master %d", i)
			}
		}
		expectReply(t, conn, "CONFIG SET slowlog-log-slower-than -1", "+OK\r\n")
		expectReply(t, conn, "SLOWLOG RESET", "+OK\r\n")
		expectReply(t, conn, "SLOWLOG LEN", ":0\r\n")
	})
	t.Run("functions", func(t *testing.T) {
		lib := "#!lua name=wide\nredis.register_function('whoami', function(keys) return keys[1] end)"
		if got := conn.Do("FUNCTION", "LOAD", lib); got != "$4\r\nwide\r\n" {
			t.Errorf("FUNCTION LOAD: got %q", got)
		}
		for i := range 3 {
			key := keyOf("f", i)
			expectReply(t, conn, "FCALL whoami 1 "+key, bulkOf(key))
		}
		expectReply(t, conn, "FUNCTION DELETE wide", "+OK\r\n")
		for i := range 3 { // undeclared, as functions written for one server have it
			key := keyOf("undeclared", i)
			conn.Do("FUNCTION", "LOAD", "REPLACE", "#!lua name=wide\nredis.register_function('mine', function(keys, args) return redis.call('incr', '"+key+"') end)")
			expectReply(t, conn, "FCALL mine 0", ":1\r\n")
		}
		expectReply(t, conn, "FUNCTION DELETE wide", "+OK\r\n")
		expectReply(t, conn, "FUNCTION LIST", "*0\r\n")
	})
	t.Run("one answer", func(t *testing.T) {
		for _, tt := range [][2]string{
			{"SCRIPT KILL", "-NOTBUSY No scripts in execution right now.\r\n"},
			{"FUNCTION KILL", "-NOTBUSY No scripts in execution right now.\r\n"},
			{"FUNCTION STATS", "*4\r\n$14\r\nrunning_script\r\n"},
			{"LATENCY LATEST", "*0\r\n"},
			{"LATENCY RESET", ":0\r\n"},
			{"LATENCY HISTOGRAM set", "*2\r\n$3\r\nset\r\n*4\r\n$5\r\ncalls\r\n:3\r\n"},
			{"MEMORY STATS", "*"},
			{"MEMORY PURGE", "+OK\r\n"},
			{"MEMORY DOCTOR", "$"},
			{"LASTSAVE", ":"},
			{"BGSAVE", "+Background saving started\r\n"},
			{"TIME", "*2\r\n"},
			{"MODULE LIST", "*"},
			{"DEBUG SLEEP 0", "+OK\r\n"},
			{"DEBUG DIGEST", "-ERR 'DEBUG DIGEST' concerns a single server"},
			{"CONFIG SET hz 11 port 1", "-ERR CONFIG SET failed (possibly related to argument 'port') - it concerns a single server"},
			{"SHUTDOWN", "-ERR 'shutdown' concerns a single server"},
			{"SELECT 0", "+OK\r\n"},
			{"SELECT 1", "-ERR SELECT is not allowed in cluster mode\r\n"},
			{"SWAPDB 0 1", "-ERR SWAPDB is not allowed in cluster mode\r\n"},
			{"MOVE key 1", "-ERR MOVE is not allowed in cluster mode\r\n"},
			{"COPY a{t} b{t} DB 1", "-ERR "},
			{"PING", "+PONG\r\n"},
		} {
			if got := conn.Do(strings.Fields(tt[0])...); !strings.HasPrefix(got, tt[1]) {
				t.Errorf("%s: got %.200q, want %q", tt[0], got, tt[1])
			}
		}
	})
	t.Run("MIGRATE", func(t *testing.T) {
		elsewhere := clustertest.StartRedis(t)
		one, tagged := keyOf("one", 2), "{"+keyOf("t", 1)+"}"
		conn.Do("MSET", one, "v", tagged+"a", "v", tagged+"b", "v")
		port := strconv.Itoa(elsewhere.Port)
		for _, args := range [][]string{
			{"MIGRATE", "127.0.0.1", port, one, "0", "1000"},
			{"MIGRATE", "127.0.0.1", port, "", "0", "1000", "KEYS", tagged + "a", tagged + "b"},
		} {
			if got := conn.Do(args...); got != "+OK\r\n" {
				t.Errorf("%q: got %q", args, got)
			}
		}
		if got := elsewhere.Text("EXISTS", one, tagged+"a", tagged+"b"); got != "3" {
			t.Errorf("%s of 3 keys have arrived", got)
		}
	})
	t.Run("keys of one slot", func(t *testing.T) {
		conn.Do("MSET", "x{1}", "v", "y{1}", "v", "z", "v")
		expectReply(t, conn, "KEYS x{1}*", "*1\r\n$4\r\nx{1}\r\n")
		expectReply(t, conn, "KEYS z", "*1\r\n$1\r\nz\r\n")
		if got := conn.Do("KEYS", "?{1}"); !strings.HasPrefix(got, "*2\r\n") {
			t.Errorf("KEYS ?{1}: got %q", got)
		}
	})
	t.Run("within a transaction", func(t *testing.T) {
		key := keyOf("tx", 1)
		for _, tt := range [][2]string{
			{"MULTI", "+OK\r\n"}, {"FLUSHALL", "+QUEUED\r\n"}, {"SET " + key + " v", "+QUEUED\r\n"}, {"DBSIZE", "+QUEUED\r\n"},
			{"CONFIG SET hz nonsense", "+QUEUED\r\n"}, {"CONFIG SET hz 12", "+QUEUED\r\n"}, {"GET " + key, "+QUEUED\r\n"}, {"KEYS *", "+QUEUED\r\n"},
		} {
			expectReply(t, conn, tt[0], tt[1])
		}
		conn.Send(oneWrite([]string{"EXEC"}, []string{"DBSIZE"}))
		want := "*7\r\n+OK\r\n+OK\r\n:1\r\n-ERR CONFIG SET failed (possibly related to argument 'hz') - argument couldn't be parsed into an integer\r\n" +
			"+OK\r\n$1\r\nv\r\n*1\r\n" + bulkOf(key)
		if got := conn.ReadReply(); got != want {
			t.Errorf("EXEC: got %q, want %q", got, want)
		}
		conn.Expect(":1\r\n")
		for _, r := range c.Nodes {
			if got := fmt.Sprint(r.Do("CONFIG", "GET", "hz")); got != "map[hz:12]" {
				t.Errorf("%s: got %s", r.Addr, got)
			}
		}
		for _, command := range []string{"SCAN 0", "SCRIPT KILL", "DEBUG SLEEP 0"} {
			expectReply(t, conn, "MULTI", "+OK\r\n")
			if got := conn.Do(strings.Fields(command)...); !strings.Contains(got, "inside MULTI concerns all shards of the Redis Cluster") {
				t.Errorf("%s: got %q", command, got)
			}
			expectReply(t, conn, "EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n")
		}
	})
	t.Run("keys of several slots", func(t *testing.T) {
		node := clustertest.Dial(t, c.Nodes[0].Addr)
		a, b := keyOf("a", 0), keyOf("b", 1)
		for _, words := range []string{
			"RENAME a b", "RENAMENX a b", "COPY a b", "SMOVE a b m", "LMOVE a b LEFT LEFT", "RPOPLPUSH a b", "BRPOPLPUSH a b 1", "BLMOVE a b LEFT LEFT 1",
			"SUNION a b", "SINTER a b", "SDIFF a b", "SUNIONSTORE a b", "SINTERSTORE a b", "SDIFFSTORE a b", "SINTERCARD 2 a b",
			"ZUNION 2 a b", "ZUNIONSTORE a 1 b", "ZINTERSTORE a 2 a b", "ZDIFF 2 a b", "ZINTERCARD 2 a b", "ZRANGESTORE a b 0 -1", "ZMPOP 2 a b MIN", "BZMPOP 1 2 a b MIN",
			"BLPOP a b 1", "BZPOPMIN a b 1", "LMPOP 2 a b LEFT", "BLMPOP 1 2 a b LEFT", "LCS a b", "BITOP AND a b", "PFCOUNT a b", "PFMERGE a b", "MSETNX a 1 b 2",
			"XREAD STREAMS a b 0 0", "XREADGROUP GROUP g c STREAMS a b > >", "XREAD BLOCK 1 STREAMS a b 0 0",
			"GEORADIUS a 1 1 1 km STORE b", "GEORADIUSBYMEMBER a m 1 km STOREDIST b", "GEOSEARCHSTORE a b FROMMEMBER m BYRADIUS 1 km",
			"SORT a STORE b", "SORT a BY w*", "SORT_RO a GET x*", "EVAL return(1) 2 a b", "EVAL_RO return(1) 2 a b", "EVALSHA 0 2 a b", "FCALL f 2 a b", "FCALL_RO f 2 a b",
			"MIGRATE 127.0.0.1 1 \"\" 0 10 KEYS a b", "OBJECT ENCODING a b", "WATCH a b",
			"ZUNIONSTORE a 5 b", "ZUNION 0 a b", "ZUNION x a b", "LMPOP 3 a b LEFT", "SINTERCARD 9 a b", "EVAL return(1) 7 a b", "EVAL return(1) -1 a b", "FCALL f 3 a b", "XREAD STREAMS a b 0",
		} {
			var args []string
			for _, w := range strings.Fields(words) {
				switch w {
				case "a":
					w = a
				case "b":
					w = b
				case `""`:
					w = ""
				}
				args = append(args, w)
			}
			want := node.Do(args...)
			if got := conn.Do(args...); got != want {
				t.Errorf("%q: got %q, a node says %q", args, got, want)
			}
		}
	})
	t.Run("a script is killed", func(t *testing.T) {
		busy := clustertest.Dial(t, p.Addr)
		killScripts(t, conn, busy, keyOf("busy", 1))
	})
	t.Run("SCAN while a replica takes over", func(t *testing.T) {
		var keys []string
		for i := range 1000 {
			keys = append(keys, fmt.Sprint("failover:", i))
		}
		fill(t, conn, keys)
		seen, _ := scanAll(t, []*clustertest.Conn{conn}, func(call int) {
			if call == 5 { // the first master is being scanned
				c.Failover(c.ReplicasOf(c.OwnerOf(keyOf("", 0)))[0])
			}
		}, "COUNT", "10")
		expectAll(t, seen, keys)
	})
	t.Run("a partial failure is an error", func(t *testing.T) {
		master := c.OwnerOf(keyOf("", 2))
		for _, replica := range c.ReplicasOf(master) {
			replica.Stop() // first, that nobody takes over
		}
		master.Stop()
		for _, command := range []string{"DBSIZE", "KEYS *", "SCAN 0", "FLUSHALL", "CONFIG SET hz 10", "SLOWLOG LEN"} {
			if got := conn.Do(strings.Fields(command)...); got[0] != '-' {
				t.Errorf("%s: got %q with a master down", command, got)
			}
		}
	})
}

func TestScriptIsKilled(t *testing.T) {
	r := clustertest.StartRedis(t)
	o := proxytest.Options(t, proxytest.Single(r.Addr))
	onOneLoop(&o)
	_, addr := proxytest.Start(t, o)
	killScripts(t, clustertest.Dial(t, addr), clustertest.Dial(t, addr), "busy")
}

// killScripts has busy run scripts and functions without end, and conn stop them: on the same loop, whose
// lane to the server they block.
func killScripts(t *testing.T, conn, busy *clustertest.Conn, key string) {
	t.Helper()
	lib := "#!lua name=busy\nredis.register_function('spin', function() while true do end end)"
	if got := conn.Do("FUNCTION", "LOAD", "REPLACE", lib); got != "$4\r\nbusy\r\n" {
		t.Fatalf("FUNCTION LOAD: got %q", got)
	}
	expectReply(t, conn, "CONFIG SET busy-reply-threshold 1", "+OK\r\n")
	for _, tt := range []struct{ run, kill []string }{
		{[]string{"EVAL", "while true do end", "1", key}, []string{"SCRIPT", "KILL"}},
		{[]string{"FCALL", "spin", "1", key}, []string{"FUNCTION", "KILL"}},
	} {
		busy.Send(oneWrite(tt.run))
		clustertest.Await(t, "the script to be killed", func() error {
			if got := conn.Do(tt.kill...); got != "+OK\r\n" {
				return fmt.Errorf("%q: got %q", tt.kill, got)
			}
			return nil
		})
		if got := busy.ReadReply(); !strings.HasPrefix(got, "-ERR Error running script") && !strings.HasPrefix(got, "-ERR Script killed by user") && !strings.Contains(got, "killed") {
			t.Errorf("%q: got %q", tt.run, got)
		}
	}
}
