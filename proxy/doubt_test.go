package proxy_test

import (
	"fmt"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

const endless = "while true do end"

// startBusy is a proxy before a Redis that says -BUSY soon, and a client of the proxy
// that has it run an endless script.
func startBusy(t *testing.T, transport netloop.Transport) (runner, other *clustertest.Conn) {
	t.Helper()
	r := clustertest.StartRedis(t, "--lua-time-limit", "5")
	o := proxytest.Options(t, proxytest.Single(r.Addr))
	o.Transport, o.Loops = transport, 1
	_, addr := proxytest.Start(t, o)
	runner, other = clustertest.Dial(t, addr), clustertest.Dial(t, addr)
	runner.Do("SET", "xx", "1")
	runner.Cmd("EVAL", endless, "0")
	return runner, other
}

// kill stops the script and waits for its end.
func kill(t *testing.T, runner, other *clustertest.Conn) {
	t.Helper()
	other.Cmd("SCRIPT", "KILL")
	other.Expect("+OK\r\n")
	if got := runner.ReadReply(); !strings.HasPrefix(got, "-ERR Error running script") && !strings.Contains(got, "killed by user") {
		t.Errorf("the killed script answered %q", got)
	}
	awaitPing(t, other, "+PONG")
}

// awaitBusy waits until other is told that the server is busy, as every client of it is.
func awaitBusy(t *testing.T, other *clustertest.Conn) {
	t.Helper()
	awaitPing(t, other, "-BUSY ")
}

func awaitPing(t *testing.T, c *clustertest.Conn, want string) {
	t.Helper()
	clustertest.Await(t, want+" for PING", func() error {
		if got := c.Do("PING"); !strings.HasPrefix(got, want) {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
}

// TestBusyServer: while a script of one client runs for too long, others read -BUSY
// and can stop it, although they shared its connection.
func TestBusyServer(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		runner, other := startBusy(t, transport)
		awaitBusy(t, other)
		if got := other.Do("GET", "xx"); !strings.HasPrefix(got, "-BUSY ") {
			t.Errorf("GET answered %q, want -BUSY", got)
		}
		kill(t, runner, other)
		other.Cmd("GET", "xx")
		other.Expect("$1\r\n1\r\n")
	})
}

// TestBusyServerAndTransactions: a transaction meets the busy server at any point.
func TestBusyServerAndTransactions(t *testing.T) {
	const previous, busy = "-EXECABORT Transaction discarded because of previous errors.\r\n", "-EXECABORT Transaction discarded because of: BUSY "
	runner, other := startBusy(t, netloop.DefaultTransport)

	awaitBusy(t, other)
	other.Cmd("MULTI")
	other.Expect("+OK\r\n")
	if got := other.Do("INCR", "xx"); !strings.HasPrefix(got, "-BUSY ") {
		t.Errorf("queueing answered %q, want -BUSY", got)
	}
	kill(t, runner, clustertest.Dial(t, other.Net().RemoteAddr().String()))
	other.Cmd("INCR", "xx")
	other.Expect("+QUEUED\r\n")
	other.Cmd("EXEC")
	other.Expect(previous)

	other.Do("MULTI")
	other.Do("INCR", "xx")
	runner.Cmd("EVAL", endless, "0")
	third := clustertest.Dial(t, other.Net().RemoteAddr().String())
	awaitBusy(t, third)
	if got := other.Do("EXEC"); !strings.HasPrefix(got, busy) {
		t.Errorf("EXEC answered %q, want %q", got, busy)
	}
	kill(t, runner, third)
	other.Cmd("GET", "xx")
	other.Expect("$1\r\n1\r\n")
}

// TestOwnScriptThenPing: a client's own PING waits for its script, busy or not.
func TestOwnScriptThenPing(t *testing.T) {
	runner, other := startBusy(t, netloop.DefaultTransport)
	awaitBusy(t, other)
	runner.Cmd("PING") // behind the script, while the server is known to be busy
	other.Do("GET", "xx")
	other.Cmd("SCRIPT", "KILL")
	other.Expect("+OK\r\n")
	if got := runner.ReadReply(); !strings.Contains(got, "killed by user") {
		t.Errorf("the script answered %q", got)
	}
	runner.Expect("+PONG\r\n")
}

// TestTransactionsOutOfMemory: what Redis refuses to queue is refused at queueing, and
// the transaction with it, while reads that were queued before are executed.
func TestTransactionsOutOfMemory(t *testing.T) {
	r := clustertest.StartRedis(t)
	_, addr := proxytest.Start(t, proxytest.Options(t, proxytest.Single(r.Addr)))
	c, admin := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
	memory := func(limit string) {
		admin.Cmd("CONFIG", "SET", "maxmemory", limit)
		admin.Expect("+OK\r\n")
	}
	refused := func(args ...string) {
		t.Helper()
		if got := c.Do(args...); !strings.HasPrefix(got, "-OOM ") {
			t.Errorf("%s answered %q, want -OOM", args, got)
		}
	}
	aborted := func() {
		t.Helper()
		c.Cmd("EXEC")
		c.Expect("-EXECABORT Transaction discarded because of previous errors.\r\n")
	}
	c.Do("SET", "foo", "1")

	c.Do("MULTI")
	c.Do("SET", "foo", "2")
	memory("1")
	refused("LPUSH", "list", "x")
	memory("0")
	c.Cmd("SET", "foo", "3")
	c.Expect("+QUEUED\r\n")
	aborted()

	memory("1")
	c.Do("MULTI")
	refused("SET", "foo", "4")
	c.Cmd("DISCARD")
	c.Expect("+OK\r\n")
	c.Do("MULTI")
	c.Do("NOSUCH") // known here only
	aborted()
	memory("0")

	c.Do("MULTI")
	c.Do("GET", "foo")
	memory("1")
	c.Cmd("EXEC")
	c.Expect("*1\r\n$1\r\n1\r\n")
	memory("0")

	c.Do("WATCH", "foo")
	c.Do("MULTI")
	c.Do("SET", "foo", "5")
	c.Do("DISCARD") // ends the watch, too
	r.Do("SET", "foo", "6")
	c.Do("MULTI")
	c.Do("CLIENT", "SETNAME", "me")
	c.Do("CLIENT", "GETNAME")
	c.Do("GET", "foo")
	c.Cmd("EXEC")
	c.Expect("*3\r\n+OK\r\n$2\r\nme\r\n$1\r\n6\r\n")
}

// TestBusyServerRefusesNewConnections: a connection that needs another database cannot be had from
// a busy server. Whoever needs it is told so; nobody else is kept from stopping the script.
func TestBusyServerRefusesNewConnections(t *testing.T) {
	runner, other := startBusy(t, netloop.DefaultTransport)
	awaitBusy(t, other)
	addr := other.Net().RemoteAddr().String()
	blocked := clustertest.Dial(t, addr)
	if got := blocked.Do("BLPOP", "q", "0"); !strings.HasPrefix(got, "-BUSY ") { // on a connection whose id it does not tell
		t.Errorf("BLPOP answered %q, want -BUSY", got)
	}
	if got := clustertest.Dial(t, addr).Do("SELECT", "7"); !strings.HasPrefix(got, "-BUSY ") {
		t.Errorf("SELECT answered %q, want -BUSY", got)
	}
	kill(t, runner, other)
	blocked.Cmd("BLPOP", "q", "0")
	clustertest.Await(t, "the client to be unblocked", func() error {
		if n := other.Do("CLIENT", "UNBLOCK", idOfBlocked(other)); n != ":1\r\n" {
			return errString(n)
		}
		return nil
	})
	blocked.Expect("*-1\r\n")
}

// idOfBlocked is the id of the client that waits in a blocking command.
func idOfBlocked(c *clustertest.Conn) string {
	for _, line := range strings.Split(c.Do("CLIENT", "LIST"), "\n") {
		if strings.Contains(line, " flags=b ") {
			_, id, _ := strings.Cut(line, "id=")
			id, _, _ = strings.Cut(id, " ")
			return id
		}
	}
	return "0"
}
