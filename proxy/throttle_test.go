package proxy_test

import (
	"fmt"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
	"cosky-proxy/proxy/quota"
)

// throttledProxy is a proxy with limits.rules. Rates in these tests are so low that nothing is granted
// beyond a burst as long as they run.
func throttledProxy(t *testing.T, rules ...quota.Rule) (behind *clustertest.Redis, s *proxy.Server, addr string) {
	behind = clustertest.StartRedis(t)
	o := strict(t, behind, netloop.DefaultTransport)
	o.Limits = proxy.LimitOptions{Rules: rules, MaxNames: 1000}
	s, addr = proxytest.Start(t, o)
	return behind, s, addr
}

const seldom = 0.001

func tooFast(who string) string {
	return "THROTTLED " + who + " exceeds the 0.001 commands per second that limits.rules allow\r\n"
}

// TestRateOfAConnection: a command too many gets an error, in its place, and is not executed. What
// a client needs to help itself is not counted; reads from memory and PING are.
func TestRateOfAConnection(t *testing.T) {
	behind, s, addr := throttledProxy(t, quota.Rule{Per: quota.Connection, Rate: seldom, Burst: 5})
	c, other := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
	refused := "-" + tooFast("connection")
	c.Send(encodeAll([]string{"CLIENT", "SETNAME", "x"}, []string{"INCR", "n"}, []string{"HGETALL", "ns:cfg:a"}, []string{"HGETALL", "ns:cfg:a"}, []string{"NOSUCH"}, []string{"PING"}, []string{"GET", "n"},
		[]string{"INCR", "n"}, []string{"HGETALL", "ns:cfg:a"}, []string{"PING"}, []string{"MULTI"}, []string{"SELECT", "0"}, []string{"CLIENT", "GETNAME"}))
	for i, want := range []string{"+OK\r\n", ":1\r\n", "*0\r\n", "*0\r\n", "", "+PONG\r\n", "$1\r\n1\r\n", refused, refused, refused, refused, "+OK\r\n", "$1\r\nx\r\n"} {
		if got := c.ReadReply(); want != "" && got != want {
			t.Errorf("reply %d is %q, want %q", i, got, want)
		}
	}
	if got := other.Do("INCR", "n"); got != ":2\r\n" {
		t.Errorf("another client got %q", got)
	}
	if got := behind.Text("GET", "n"); got != "2" {
		t.Errorf("n is %s", got)
	}
	st := s.Stats()
	if n := st.Limits[0].TooFast; n != 4 || len(st.Limits) != 1 || st.Limits[0].Per != "connection" {
		t.Errorf("counted %+v, want 4 that were too fast", st.Limits)
	}
	if got := other.Do("INFO", "proxy"); !strings.Contains(got, "\r\nproxy_limit_1:per=connection,match=,names=0,too_fast=4,too_many=0\r\n") {
		t.Errorf("INFO does not tell: %q", got)
	}
}

// TestRatesAndTransactions: a refused command aborts the transaction, a refused EXEC ends it, as in
// Redis whatever it refuses. DISCARD is always allowed.
func TestRatesAndTransactions(t *testing.T) {
	behind, _, addr := throttledProxy(t, quota.Rule{Per: quota.Connection, Rate: seldom, Burst: 3})
	run := func(commands ...string) (replies []string) {
		c := clustertest.Dial(t, addr)
		defer c.Close()
		for _, line := range commands {
			replies = append(replies, c.Do(strings.Fields(line)...))
		}
		return replies
	}
	refused := tooFast("connection")
	for _, c := range []struct{ commands, want []string }{
		{[]string{"MULTI", "INCR n", "EXEC", "INCR n"}, []string{"+OK\r\n", "+QUEUED\r\n", "*1\r\n:1\r\n", "-" + refused}},
		{[]string{"MULTI", "INCR n", "INCR n", "EXEC", "CLIENT GETNAME"}, []string{"+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "-EXECABORT Transaction discarded because of: " + refused, "$-1\r\n"}},
		{[]string{"MULTI", "INCR n", "INCR n", "INCR n", "DISCARD"}, []string{"+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "-" + refused, "+OK\r\n"}},
		{[]string{"WATCH k", "UNWATCH", "WATCH k", "INCR n", "UNWATCH", "GET k"}, []string{"+OK\r\n", "+OK\r\n", "+OK\r\n", ":2\r\n", "+OK\r\n", "-" + refused}},
		{[]string{"SUBSCRIBE a", "SUBSCRIBE b", "PING", "PING", "UNSUBSCRIBE a"}, []string{"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n", "*3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n", "*2\r\n$4\r\npong\r\n$0\r\n\r\n", "-" + refused, "*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:1\r\n"}},
	} {
		if got := run(c.commands...); fmt.Sprintf("%q", got) != fmt.Sprintf("%q", c.want) {
			t.Errorf("%q:\ngot  %q\nwant %q", c.commands, got, c.want)
		}
	}
	if got := behind.Text("GET", "n"); got != "2" {
		t.Errorf("n is %s, want 2", got)
	}
}

// TestRatesByName: users, addresses and namespaces are counted apart, over all connections and loops.
func TestRatesByName(t *testing.T) {
	_, _, addr := throttledProxy(t,
		quota.Rule{Per: quota.Namespace, Match: "a", Rate: seldom, Burst: 3},
		quota.Rule{Per: quota.Namespace, Match: "b*", Rate: seldom, Burst: 1},
		quota.Rule{Per: quota.User, Rate: seldom, Burst: 9})
	x, y := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
	for i, c := range []struct {
		conn    *clustertest.Conn
		command string
		want    string
	}{
		{x, "SET a:1 v", "+OK\r\n"},
		{y, "MSET a:1 v c:2 v a:3 v a v", "+OK\r\n"}, // one of a
		{x, "SET b1:x v", "+OK\r\n"},
		{y, "SET b2:x v", "+OK\r\n"},
		{y, "SET b1:x v", "-" + tooFast(`namespace "b1"`)},
		{x, "EVAL redis.call('set',KEYS[1],'w') 1 a:1", "$-1\r\n"},
		{y, "GET a:1", "-" + tooFast(`namespace "a"`)},
		{x, "MGET c:2 a:1", "-" + tooFast(`namespace "a"`)},
		{y, "GET c:2", "$1\r\nv\r\n"}, // the user's ninth
		{x, "GET c:2", "-" + tooFast(`user "default"`)},
		{y, "PING", "-" + tooFast(`user "default"`)},
	} {
		if got := c.conn.Do(strings.Fields(c.command)...); got != c.want {
			t.Errorf("%d, %s: got %q, want %q", i, c.command, got, c.want)
		}
	}
}

// TestRateOfUploads: a request too large to hold is refused like any other, and skipped.
func TestRateOfUploads(t *testing.T) {
	behind, _, addr := throttledProxy(t, quota.Rule{Per: quota.Address, Rate: seldom, Burst: 2, InFlight: 1})
	c := clustertest.Dial(t, addr)
	value := strings.Repeat("v", 3<<20)
	c.Send(encodeAll([]string{"SET", "k", value}, []string{"GET", "nosuch"}, []string{"SET", "k", value + "w"}, []string{"CLIENT", "GETNAME"}))
	c.Expect("+OK\r\n")
	c.Expect("$-1\r\n")
	c.Expect("-" + tooFast(`address "127.0.0.1"`))
	c.Expect("$-1\r\n")
	if n := behind.Text("STRLEN", "k"); n != fmt.Sprint(len(value)) {
		t.Errorf("k has %s bytes", n)
	}
}

// TestCommandsInFlight: blocked commands count as long as they block, also of a client that goes away.
func TestCommandsInFlight(t *testing.T) {
	behind, s, addr := throttledProxy(t, quota.Rule{Per: quota.User, InFlight: 2})
	first, second, third := clustertest.Dial(t, addr), clustertest.Dial(t, addr), clustertest.Dial(t, addr)
	blocked := func(n string) {
		t.Helper()
		clustertest.Await(t, n+" clients to be blocked", func() error {
			if got := behind.InfoField("clients", "blocked_clients"); got != n {
				return fmt.Errorf("%s are", got)
			}
			return nil
		})
	}
	const refused = "-THROTTLED user \"default\" has 2 commands in flight already, as many as limits.rules allow\r\n"
	first.Cmd("BLPOP", "q", "0")
	second.Cmd("BLPOP", "r", "0")
	blocked("2")
	if got := third.Do("GET", "k"); got != refused {
		t.Errorf("got %q", got)
	}
	behind.Do("RPUSH", "q", "e")
	first.Expect("*2\r\n$1\r\nq\r\n$1\r\ne\r\n")
	if got := third.Do("GET", "k"); got != "$-1\r\n" {
		t.Errorf("got %q, want room for one", got)
	}
	first.Cmd("BLPOP", "q", "0")
	blocked("2")
	if got := third.Do("GET", "k"); got != refused {
		t.Errorf("got %q", got)
	}
	first.Close()
	blocked("1")
	clustertest.Await(t, "room for a command", func() error {
		if got := third.Do("GET", "k"); got != "$-1\r\n" {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	if n := s.Stats().Limits[0].TooMany; n < 2 {
		t.Errorf("%d were counted", n)
	}
	second.Close()
	awaitClients(t, s, 1)
}

// TestEveryCommandIsGivenBack: with one command allowed at a time, one after the other is let in,
// whichever way they take.
func TestEveryCommandIsGivenBack(t *testing.T) {
	behind, s, addr := throttledProxy(t, quota.Rule{Per: quota.User, InFlight: 1}, quota.Rule{Per: quota.Namespace, InFlight: 1}, quota.Rule{Per: quota.Connection, InFlight: 1})
	behind.Do("SET", "big", strings.Repeat("b", 2<<20))
	var c *clustertest.Conn
	try := func(words ...string) {
		t.Helper()
		if got := c.Do(words...); strings.Contains(got, "THROTTLED") {
			t.Errorf("%.60q: got %.200q", words, got)
		}
	}
	for _, proto := range []string{"2", "3"} {
		c = clustertest.Dial(t, addr)
		try("HELLO", proto)
		for _, line := range []string{
			"PING", "ECHO x", "SET k v", "GET k", "GET", "NOSUCH", "MSET a:1 v b:2 v a:3 v", "MGET a:1 b:2 a:3", "DEL a:1 b:2", "HSET ns:cfg:a f v", "HGETALL ns:cfg:a", "HGETALL ns:cfg:a", "HSET ns:cfg:a f w", "HGETALL ns:cfg:a",
			"LPUSH k x", "GET big", "EVAL return(1) 0", "EVALSHA 0000000000000000000000000000000000000000 0", "SCRIPT LOAD return(2)", "SCRIPT EXISTS x", "SCAN 0", "KEYS a*", "DBSIZE", "INFO", "INFO proxy", "ROLE", "CONFIG GET maxmemory",
			"BLPOP none 0.01", "RPUSH q e", "BLPOP q 0", "WAIT 0 0", "XREAD BLOCK 10 STREAMS s $", "CLIENT LIST", "OBJECT ENCODING k", "COMMAND COUNT", "PUBLISH ch m", "PUBSUB NUMSUB ch", "PROXY HOTKEYS", "PROXY CACHE STATS", "COSKY.SYNC",
			"WATCH k", "GET k", "MULTI", "GET k", "INFO", "EXEC", "MULTI", "PUBLISH ch m", "NOSUCH", "EXEC", "MULTI", "SET k w", "DISCARD", "EXEC", "SELECT 1", "SET k v", "MOVE k 0", "SELECT 0",
			"CLIENT TRACKING ON", "GET k", "CLIENT CACHING YES", "CLIENT TRACKING OFF", "CLIENT NO-TOUCH ON", "GET k", "RESET", "GET k",
		} {
			try(strings.Fields(line)...)
		}
		try("SET", "k", strings.Repeat("v", 2<<20))
		try("LPUSH", "k", strings.Repeat("v", 2<<20))
		c.Cmd("CLIENT", "REPLY", "SKIP")
		c.Cmd("ECHO", "x")
		try("SET", "k", "v")
		if proto == "3" {
			c.Do("HELLO", "3")
			try("SUBSCRIBE", "ch")
			try("UNSUBSCRIBE", "ch")
			try("GET", "k")
		}
	}
	// Replies that a client has asked for and does not wait for.
	for range 5 {
		leaving := clustertest.Dial(t, addr)
		leaving.Cmd("BLPOP", "none", "0")
		leaving.Close()
		awaitClients(t, s, 2)
		clustertest.Await(t, "room for a command", func() error {
			if got := c.Do("GET", "k"); got != "$1\r\nv\r\n" {
				return fmt.Errorf("got %q", got)
			}
			return nil
		})
	}
	// A pipeline is refused in part only.
	c.Send(strings.Repeat(clustertest.Encode("INCR", "n"), 50))
	for i := range 50 {
		if got := c.ReadReply(); got[0] != ':' && !strings.Contains(got, "in flight already") {
			t.Errorf("reply %d is %q", i, got)
		}
	}
	try("GET", "k")
}
