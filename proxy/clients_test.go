package proxy_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/slot"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

// script splits each line into a command.
func script(lines ...string) (commands [][]string) {
	for _, line := range lines {
		commands = append(commands, strings.Fields(line))
	}
	return commands
}

// TestClientArguments: CLIENT and its relatives say what Redis says of arguments
// good and bad.
func TestClientArguments(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	for _, proto := range []int{2, 3} {
		p := w.dial(t, proto)
		p.do(script("CLIENT", "CLIENT NOSUCH", "CLIENT ID x", "CLIENT GETNAME", "CLIENT SETNAME a", "CLIENT GETNAME", "CLIENT SETNAME a\x01", "CLIENT SETNAME",
			"CLIENT KILL", "CLIENT KILL x", "CLIENT KILL 127.0.0.1:", "CLIENT KILL ID x", "CLIENT KILL ID 0", "CLIENT KILL ID -1", "CLIENT KILL ID 1 x", "CLIENT KILL ID 123456789",
			"CLIENT KILL TYPE x", "CLIENT KILL TYPE master", "CLIENT KILL TYPE slave", "CLIENT KILL TYPE replica SKIPME no", "CLIENT KILL USER nobody", "CLIENT KILL SKIPME x", "CLIENT KILL SKIPME",
			"CLIENT KILL ADDR 1.2.3.4:5", "CLIENT KILL LADDR 1.2.3.4:5 SKIPME no", "CLIENT KILL MAXAGE 5",
			"CLIENT LIST x", "CLIENT LIST TYPE", "CLIENT LIST TYPE x", "CLIENT LIST TYPE master", "CLIENT LIST TYPE replica", "CLIENT LIST TYPE slave", "CLIENT LIST ID", "CLIENT LIST ID x", "CLIENT LIST ID 99999999", "CLIENT LIST TYPE normal x",
			"CLIENT NO-EVICT x", "CLIENT NO-EVICT on", "CLIENT NO-EVICT off", "CLIENT NO-EVICT",
			"CLIENT PAUSE x", "CLIENT PAUSE -1", "CLIENT PAUSE 0", "CLIENT PAUSE 0 x", "CLIENT PAUSE 0 WRITE", "CLIENT PAUSE 0 all", "CLIENT PAUSE 0 all x", "CLIENT PAUSE", "CLIENT UNPAUSE", "CLIENT UNPAUSE x",
			"CLIENT REPLY", "CLIENT REPLY x", "CLIENT REPLY on x",
			"CLIENT UNBLOCK", "CLIENT UNBLOCK x", "CLIENT UNBLOCK 99999", "CLIENT UNBLOCK 99999 timeout", "CLIENT UNBLOCK 99999 ERROR", "CLIENT UNBLOCK 99999 x", "CLIENT UNBLOCK x x", "CLIENT UNBLOCK 1 timeout x",
			"CLIENT MAINT_NOTIFICATIONS ON", "CLIENT NO-TOUCH on", "CLIENT NO-TOUCH off", "CLIENT HELP", "CLIENT HELP x", "WAIT", "WAIT x 0", "WAIT 0 x", "WAIT 0 -1", "WAIT 0 0", "WAIT 1 1", "WAITAOF 0 0 0",
		)...)
		p.do(script("MULTI", "CLIENT KILL ADDR 1.2.3.4:5", "CLIENT SETNAME b", "CLIENT KILL x", "CLIENT GETNAME", "CLIENT LIST TYPE master", "CLIENT PAUSE 0", "CLIENT UNPAUSE", "CLIENT UNBLOCK 99999", "CLIENT HELP", "SET foo 1", "WAIT 0 0", "WAIT 1 0", "GET foo", "EXEC", "CLIENT GETNAME")...)
	}
}

// TestClientReply: what is not wanted does not come, everything else does, in order.
func TestClientReply(t *testing.T) {
	for _, commands := range []string{
		"CLIENT REPLY OFF|PING|SET a 1|NOSUCH|GET a|HGETALL ns:cfg:x|MULTI|GET a|EXEC|CLIENT REPLY ON|GET a|PING",
		"CLIENT REPLY SKIP|SET a 2|GET a|PING",
		"CLIENT REPLY SKIP|NOSUCH|GET a|CLIENT REPLY SKIP|CLIENT REPLY SKIP|GET a|PING",
		"CLIENT REPLY SKIP|CLIENT REPLY ON|GET a",
		"CLIENT REPLY SKIP|CLIENT REPLY x|GET a|CLIENT REPLY SKIP|HGETALL ns:cfg:x|HGETALL ns:cfg:x",
		"CLIENT REPLY OFF|CLIENT REPLY SKIP|GET a|CLIENT REPLY ON|PING",
		"GET a|CLIENT REPLY SKIP|CLIENT LIST|GET a|CLIENT REPLY OFF|RESET|GET a",
		"CLIENT REPLY OFF|SUBSCRIBE ch|PING|QUIT",
	} {
		w := startTwins(t, netloop.DefaultTransport)
		for _, proto := range []int{2, 3} {
			p := w.dial(t, proto)
			raw := encodeAll(append(script(strings.Split(commands, "|")...), []string{"QUIT"})...)
			p.direct.Send(raw)
			p.behind.Send(raw)
			if got, want := readAll(t, p.behind), readAll(t, p.direct); got != want {
				t.Errorf("%s (RESP%d): got %q, a direct connection gets %q", commands, proto, got, want)
			}
		}
	}
}

// TestClientKill: every filter, counts, and the client that kills itself.
func TestClientKill(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	idOf := func(c *clustertest.Conn) string { return strings.Trim(c.Do("CLIENT", "ID"), ":\r\n") }
	for _, tt := range []struct {
		name   string
		args   func(victim *clustertest.Conn) []string
		want   string
		myself bool
	}{
		{"address", func(v *clustertest.Conn) []string { return []string{v.Net().LocalAddr().String()} }, "+OK\r\n", false},
		{"ADDR", func(v *clustertest.Conn) []string { return []string{"ADDR", v.Net().LocalAddr().String()} }, ":1\r\n", false},
		{"ID", func(v *clustertest.Conn) []string { return []string{"ID", idOf(v)} }, ":1\r\n", false},
		{"ID and another TYPE", func(v *clustertest.Conn) []string { return []string{"ID", idOf(v), "TYPE", "pubsub"} }, ":0\r\n", false},
		{"everybody else", func(*clustertest.Conn) []string { return []string{"USER", "default"} }, ":1\r\n", false},
		{"everybody", func(v *clustertest.Conn) []string {
			return []string{"LADDR", v.Net().RemoteAddr().String(), "SKIPME", "no"}
		}, ":2\r\n", true},
	} {
		for name, addr := range map[string]string{"direct": w.direct.Addr, "proxy": w.proxy} {
			victim, killer := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
			victim.Do("PING")
			if name == "direct" { // its own helpers are clients, too
				killer.Do("CLIENT", "KILL", "USER", "default")
				victim = clustertest.Dial(t, addr)
				victim.Do("PING")
			}
			args := tt.args(victim)
			killer.Cmd(append([]string{"CLIENT", "KILL"}, args...)...)
			killer.Cmd("PING")
			killer.Expect(tt.want)
			if tt.myself {
				killer.ExpectClosed()
			} else {
				killer.Expect("+PONG\r\n")
			}
			if tt.want == ":0\r\n" {
				victim.Do("PING")
				victim.Close()
			} else {
				victim.ExpectClosed()
			}
			killer.Close()
			awaitListed(t, w.proxy, 1)
		}
	}
}

// awaitListed waits until the proxy has no other clients than the one that looks.
func awaitListed(t *testing.T, addr string, want int) {
	t.Helper()
	c := clustertest.Dial(t, addr)
	defer c.Close()
	clustertest.Await(t, "the number of clients", func() error {
		if n := strings.Count(c.Do("CLIENT", "LIST"), "id="); n != want {
			return fmt.Errorf("%d clients", n)
		}
		return nil
	})
}

// TestClientList: one line per client of every loop, oldest first, fields as in Redis.
func TestClientList(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	clients := make([]*pair, 4)
	for i := range clients {
		clients[i] = w.dial(t, 2+i%2)
	}
	clients[0].do(script("MULTI", "GET a")...)
	clients[1].do(script("SUBSCRIBE ch")...)
	clients[2].do(script("CLIENT SETNAME me", "SELECT 3", "CLIENT NO-EVICT on")...)
	blockedOn := func(c *clustertest.Conn) { c.Cmd("BLPOP", "nothing", "0") }
	blockedOn(clients[3].direct)
	blockedOn(clients[3].behind)
	awaitBlocked(t, w.direct, "1")
	awaitBlocked(t, w.behind, "1")
	asker := w.dial(t, 2)
	fields := func(list string) string {
		var out []string
		for _, line := range strings.Split(list, "\n") {
			for _, f := range strings.Fields(line) {
				switch name, _, _ := strings.Cut(f, "="); name {
				case "flags", "db", "sub", "psub", "multi", "cmd", "user", "redir", "resp", "name", "ssub":
					out = append(out, f)
				}
			}
		}
		return strings.Join(out, " ")
	}
	mine, theirs := asker.behind.Do("CLIENT", "LIST"), asker.direct.Do("CLIENT", "LIST")
	if i := strings.Index(theirs, fmt.Sprint("addr=", clients[0].direct.Net().LocalAddr())); i >= 0 {
		theirs = theirs[strings.LastIndex(theirs[:i], "id="):] // without the test's own connection
	}
	if got, want := fields(mine), fields(theirs); got != want {
		t.Errorf("CLIENT LIST has\n%s\na direct connection gets\n%s", got, want)
	}
	if got, want := fields(asker.behind.Do("CLIENT", "INFO")), fields(asker.direct.Do("CLIENT", "INFO")); got != want {
		t.Errorf("CLIENT INFO has %s, a direct connection gets %s", got, want)
	}
	got := asker.behind.Do("CLIENT", "LIST", "TYPE", "pubsub")
	if strings.Count(got, "id=") != 1 || !strings.Contains(got, " sub=1 ") {
		t.Errorf("CLIENT LIST TYPE pubsub is %q", got)
	}
	id := strings.Trim(asker.behind.Do("CLIENT", "ID"), ":\r\n")
	if got := asker.behind.Do("CLIENT", "LIST", "ID", id, "999999", id); strings.Count(got, "id="+id+" ") != 2 {
		t.Errorf("CLIENT LIST ID names one client twice, got %q", got)
	}
}

// TestClientPause: held commands are executed when the pause ends, in order; with
// WRITE, reads go on.
func TestClientPause(t *testing.T) {
	backend := clustertest.StartRedis(t)
	_, addr := proxytest.Start(t, strict(t, backend, netloop.DefaultTransport))
	control := clustertest.Dial(t, addr)
	var clients []*clustertest.Conn
	for range 4 { // on every loop
		clients = append(clients, clustertest.Dial(t, addr))
	}
	control.Do("CLIENT", "PAUSE", "100000", "WRITE")
	for _, c := range clients {
		c.Send(encodeAll(script("GET n", "MULTI", "GET n", "EXEC", "INCR n", "GET done")...))
		c.Expect("$-1\r\n")
		c.Expect("+OK\r\n")
		c.Expect("+QUEUED\r\n")
		c.Expect("*1\r\n$-1\r\n")
	}
	clustertest.Await(t, "the clients to be held", func() error {
		if list := control.Do("CLIENT", "LIST"); strings.Count(list, "flags=b ") != len(clients) {
			return errors.New(list)
		}
		return nil
	})
	if got := control.Do("INFO", "clients"); !strings.Contains(got, "connected_clients:5\r\n") || !strings.Contains(got, "blocked_clients:4\r\n") {
		t.Errorf("5 clients, 4 of them held: INFO says %q", got)
	}
	if got := clustertest.Dial(t, backend.Addr).Do("EXISTS", "n"); got != ":0\r\n" {
		t.Errorf("a write was executed during the pause: EXISTS says %q", got)
	}
	control.Do("CLIENT", "UNPAUSE")
	for _, c := range clients {
		c.ReadReply()
		c.Expect("$-1\r\n")
	}
	if got := control.Do("GET", "n"); got != "$1\r\n4\r\n" {
		t.Errorf("4 increments were held, then the counter is %q", got)
	}
	control.Do("CLIENT", "PAUSE", "50") // ends by itself
	clients[0].Send(encodeAll(script("PING", "SET x 1", "GET x")...))
	clients[0].Expect("+PONG\r\n")
	clients[0].Expect("+OK\r\n")
	clients[0].Expect("$1\r\n1\r\n")
}

// TestPauseHoldsWhatIsOnItsWay: neither the end of a streamed value nor a write that is to be sent again reaches
// the backend during a pause.
func TestPauseHoldsWhatIsOnItsWay(t *testing.T) {
	t.Run("a streamed value", func(t *testing.T) {
		backend := clustertest.StartRedis(t)
		s, addr := proxytest.Start(t, strict(t, backend, netloop.DefaultTransport))
		control, c := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
		half := strings.Repeat("x", 1<<20)
		c.Send(fmt.Sprintf("*3\r\n$3\r\nSET\r\n$5\r\nlarge\r\n$%d\r\n%s", 2*len(half), half))
		clustertest.Await(t, "the value to be streamed", func() error {
			if s.Stats().Pins == 0 {
				return errors.New("it is not")
			}
			return nil
		})
		control.Do("CLIENT", "PAUSE", "100000", "WRITE")
		c.Send(half + "\r\n" + clustertest.Encode("STRLEN", "large"))
		clustertest.Await(t, "the client to be held", func() error {
			if list := control.Do("CLIENT", "LIST"); !strings.Contains(list, "flags=b ") {
				return errors.New(list)
			}
			return nil
		})
		if got := clustertest.Dial(t, backend.Addr).Do("EXISTS", "large"); got != ":0\r\n" {
			t.Errorf("written during the pause: EXISTS says %q", got)
		}
		control.Do("CLIENT", "UNPAUSE")
		c.Expect("+OK\r\n")
		c.Expect(fmt.Sprintf(":%d\r\n", 2*len(half)))
	})

	t.Run("a write that is sent again", func(t *testing.T) {
		const tryAgain = "-TRYAGAIN Multiple keys request during rehashing of slot\r\n"
		var refused, refusedRead, paused, written atomic.Bool
		asked := make(chan struct{})
		f := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
			switch {
			case args[0] == "GET" && refusedRead.CompareAndSwap(false, true):
				return tryAgain
			case args[0] == "GET":
				return bulkOf("v")
			case args[0] != "SET":
				return ""
			case refused.CompareAndSwap(false, true):
				<-asked
				return tryAgain
			}
			written.Store(paused.Load())
			return "+OK\r\n"
		})
		_, addr, _ := startFakeCluster(t, func(o *proxy.Options) { o.Loops = 1 }, f)
		control, c := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
		c.Cmd("SET", "k", "v")
		clustertest.Await(t, "the write to arrive", func() error {
			if !refused.Load() {
				return errors.New("not yet")
			}
			return nil
		})
		control.Cmd("CLIENT", "PAUSE", "100000", "WRITE")
		close(asked)
		control.Expect("+OK\r\n")
		paused.Store(true)
		// A read that is refused later is sent again later, and not held.
		expectReply(t, clustertest.Dial(t, addr), "GET k", bulkOf("v"))
		paused.Store(false)
		control.Do("CLIENT", "UNPAUSE")
		c.Expect("+OK\r\n")
		if written.Load() {
			t.Error("a write was executed during the pause")
		}
	})
	t.Run("a write that is redirected", func(t *testing.T) {
		for _, commands := range []string{"SET k v", "MULTI|SET k v|EXEC"} {
			var paused, written atomic.Bool
			arrived, release := make(chan struct{}, 10), make(chan struct{})
			answer := func(refusal func() string, exec string) proxytest.Script {
				return func(_ *proxytest.FakeConn, args []string) string {
					switch args[0] {
					case "MULTI":
						return "+OK\r\n"
					case "SET":
						if args[1] != "k" {
							return "+OK\r\n"
						}
						if r := refusal(); r != "" {
							return r
						}
						written.Store(written.Load() || paused.Load())
						return "+OK\r\n"
					case "EXEC":
						return exec
					case "GET":
						return bulkOf("v")
					}
					return ""
				}
			}
			b := proxytest.StartFake(t, answer(func() string { return "" }, "*1\r\n+OK\r\n"))
			a := proxytest.StartFake(t, answer(func() string {
				arrived <- struct{}{}
				<-release
				return movedTo("k", b.Addr)
			}, "-EXECABORT Transaction discarded because of previous errors.\r\n"))
			// The first fake owns the slot of k as far as the proxy knows.
			fakes := []*proxytest.Fake{a, b}
			if slot.Of([]byte("k")) >= slot.Count/2 {
				fakes = []*proxytest.Fake{b, a}
			}
			_, addr, _ := startFakeCluster(t, func(o *proxy.Options) { o.Loops, o.Cache.Cache = 1, nil }, fakes...)
			control, c, other := clustertest.Dial(t, addr), clustertest.Dial(t, addr), clustertest.Dial(t, addr)
			c.Send(encodeAll(script(strings.Split(commands, "|")...)...))
			<-arrived
			paused.Store(true)
			control.Cmd("CLIENT", "PAUSE", "100000", "WRITE")
			clustertest.Await(t, "the pause", func() error {
				if other.Cmd("SET", "x", "v"); strings.Contains(clustertest.Dial(t, addr).Do("CLIENT", "LIST"), "flags=b ") {
					return nil
				}
				return errors.New("not yet")
			})
			close(release)
			control.Expect("+OK\r\n")
			for part := range 2 { // behind whatever was redirected
				expectReply(t, clustertest.Dial(t, addr), "GET "+keyIn("g", part, 2, 0), bulkOf("v"))
			}
			if written.Load() {
				t.Errorf("%s: executed during the pause", commands)
			}
			paused.Store(false)
			other.Close()
			control.Do("CLIENT", "UNPAUSE")
			for range strings.Count(commands, "|") {
				c.ReadReply()
			}
			if got := c.ReadReply(); !strings.HasSuffix(got, "+OK\r\n") {
				t.Errorf("%s: %q", commands, got)
			}
		}
	})
}
