package proxy_test

import (
	"regexp"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

// TestMonitor: what clients send is shown, what the proxy does of its own accord is
// not, and a client that monitors can do as little as with Redis.
func TestMonitor(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	for _, proto := range []int{2, 3} {
		p, other := w.dial(t, proto), w.dial(t, 2)
		other.do(script("SET foo 1", "HGETALL ns:cfg:x")...)
		p.do(script("MONITOR")...)
		other.do(script("SET foo bar", "GET foo", "LPUSH l 1", "BLPOP l 0")...)
		for _, c := range []*clustertest.Conn{p.direct, p.behind} {
			for _, want := range []string{`"SET" "foo" "bar"`, `"GET" "foo"`, `"LPUSH" "l" "1"`, `"BLPOP" "l" "0"`} {
				if line := c.ReadReply(); line[0] != '+' || !strings.HasSuffix(line, want+"\r\n") {
					t.Errorf("MONITOR shows %q, want %s", line, want)
				}
			}
		}
		long := strings.Repeat("x", 1<<20)
		other.do([]string{"SET", "foo", long})
		for _, c := range []*clustertest.Conn{p.direct, p.behind} {
			if line := c.ReadReply(); !strings.HasSuffix(line, `"`+long+"\"\r\n") {
				t.Errorf("MONITOR shows %d bytes of a long line", len(line))
			}
		}
		// A second MONITOR says nothing; keys are out of bounds; RESET ends it.
		p.direct.Send(encodeAll(script("MONITOR", "GET foo", "SET foo 2")...))
		p.behind.Send(encodeAll(script("MONITOR", "GET foo", "SET foo 2")...))
		for range 2 {
			if got, want := p.behind.ReadReply(), p.direct.ReadReply(); got != want {
				t.Errorf("while monitoring: got %q, a direct connection gets %q", got, want)
			}
		}
		p.do(script("RESET", "GET nothing", "MULTI", "MONITOR", "EXEC")...)
		other.do(script("SET foo 3")...)
		p.do(script("ECHO quiet")...)
	}
}

// testClusterMonitor: the lines of all masters come together.
func testClusterMonitor(t *testing.T, _ *shared, p *proxytest.Discovered) {
	monitor, client := clustertest.Dial(t, p.Addr), clustertest.Dial(t, p.Addr)
	if got := monitor.Do("MONITOR"); got != "+OK\r\n" {
		t.Fatalf("MONITOR answers %q", got)
	}
	missing := map[string]bool{}
	for i := range 3 {
		key := keyOf("m", i)
		client.Do("SET", key, "v")
		missing[key] = true
	}
	for len(missing) > 0 {
		line := monitor.ReadReply()
		for key := range missing {
			if strings.HasSuffix(line, `"SET" "`+key+"\" \"v\"\r\n") {
				delete(missing, key)
			}
		}
	}
}

// TestMonitorShowsWhatTheProxyAnswers: a client cannot tell from MONITOR what reached
// the backend.
func TestMonitorShowsWhatTheProxyAnswers(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	p, other := w.dial(t, 2), w.dial(t, 2)
	other.do(script("HGETALL ns:cfg:x", "HGETALL ns:cfg:x", "HGETALL ns:cfg:x")...)
	p.do(script("MONITOR")...)
	for _, tt := range []struct {
		commands string
		want     []string
	}{
		{"ping", []string{`"ping"`}},
		{"PING x", []string{`"PING" "x"`}},
		{"hgetall ns:cfg:x", []string{`"hgetall" "ns:cfg:x"`}},
		{"multi|get a|ping|exec", []string{`"multi"`, `"get" "a"`, `"ping"`, `"exec"`}},
		{"multi|get|exec", []string{`"multi"`, `"exec"`}},
		{"nosuch|get|config get maxmemory|echo end", []string{`"echo" "end"`}},
	} {
		other.do(script(strings.Split(tt.commands, "|")...)...)
		for name, c := range map[string]*clustertest.Conn{"direct": p.direct, "proxy": p.behind} {
			for _, want := range tt.want {
				if line := c.ReadReply(); !strings.HasSuffix(line, "] "+want+"\r\n") {
					t.Errorf("%s: MONITOR (%s) shows %q, want %s", tt.commands, name, line, want)
				}
			}
		}
	}
	binary := []string{"ECHO", "a\"b\\c\r\n\t\a\b\x00\xff é"}
	other.do(binary)
	quoted := func(line string) string { _, rest, _ := strings.Cut(line, "] "); return rest }
	if got, want := quoted(p.behind.ReadReply()), quoted(p.direct.ReadReply()); got != want {
		t.Errorf("MONITOR quotes %s, Redis %s", got, want)
	}
}

// TestHelloInsideMulti: the answers behind it are in the new protocol.
func TestHelloInsideMulti(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	withoutID := regexp.MustCompile(`id\r\n:\d+`)
	for _, proto := range []int{2, 3} {
		for _, hello := range []string{"HELLO 3", "HELLO 2", "HELLO", "HELLO 4", "HELLO 3 SETNAME n", "HELLO 3 NOSUCH", "HELLO x"} {
			p := w.dial(t, proto)
			commands := script("MULTI", "HSET h f v", "HGETALL h", hello, "HGETALL h", "GET none", "EXEC", "HGETALL h", "GET none", "CLIENT GETNAME")
			p.direct.Send(encodeAll(commands...))
			p.behind.Send(encodeAll(commands...))
			for _, c := range commands {
				got, want := withoutID.ReplaceAllString(p.behind.ReadReply(), "id"), withoutID.ReplaceAllString(p.direct.ReadReply(), "id")
				if got != want {
					t.Errorf("RESP%d, %s, %q: got %q, want %q", proto, hello, c, got, want)
				}
			}
		}
	}
}
