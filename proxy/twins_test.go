package proxy_test

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

// transports are the two ways a loop can drive its sockets; a client must not be
// able to tell them apart.
var transports = []netloop.Transport{netloop.DefaultTransport, netloop.Goroutine}

// onTransports runs f once per transport, as a sub-test.
func onTransports(t *testing.T, f func(t *testing.T, transport netloop.Transport)) {
	for _, transport := range transports {
		t.Run(transport.String(), func(t *testing.T) { f(t, transport) })
	}
}

// twins is a Redis that is talked to directly and a second one behind a proxy.
// Whatever is done to both must be answered with the same bytes.
type twins struct {
	direct, behind *clustertest.Redis
	proxy          string // address
}

func startTwins(t *testing.T, transport netloop.Transport) *twins {
	t.Helper()
	w := &twins{direct: clustertest.StartRedis(t), behind: clustertest.StartRedis(t)}
	_, w.proxy = proxytest.Start(t, strict(t, w.behind, transport))
	return w
}

// strict are the options of a proxy in front of behind that fails the test when
// it logs a panic: a loop survives one, but whoever caused it is stuck or cut off.
func strict(t *testing.T, behind *clustertest.Redis, transport netloop.Transport) proxy.Options {
	t.Helper()
	o := proxytest.Options(t, proxytest.Single(behind.Addr))
	o.Transport = transport
	o.Logger = slog.New(slog.NewTextHandler(panicAlarm{t}, nil))
	return o
}

// panicAlarm is a log that is read by the test alone.
type panicAlarm struct{ t *testing.T }

func (a panicAlarm) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("panic")) {
		a.t.Errorf("the proxy logged %s", line)
	}
	return len(line), nil
}

// pair is one connection to each of the twins, in the same protocol.
type pair struct {
	t              *testing.T
	direct, behind *clustertest.Conn
}

func (w *twins) dial(t *testing.T, proto int) *pair {
	t.Helper()
	p := &pair{t, clustertest.Dial(t, w.direct.Addr), clustertest.Dial(t, w.proxy)}
	if proto == 3 {
		p.direct.Do("HELLO", "3")
		p.behind.Do("HELLO", "3")
	}
	return p
}

// do sends the same commands to both in one write each and compares the replies,
// one per command. It returns the last one.
func (p *pair) do(commands ...[]string) string {
	p.t.Helper()
	var raw strings.Builder
	for _, c := range commands {
		raw.WriteString(clustertest.Encode(c...))
	}
	p.direct.Send(raw.String())
	p.behind.Send(raw.String())
	var got string
	for i, c := range commands {
		want := p.direct.ReadReply()
		got = p.behind.ReadReply()
		if got == want || unordered[strings.ToLower(c[0])] && sortedReply(got) == sortedReply(want) {
			continue
		}
		p.t.Errorf("%.300q: got %.600q, a direct connection gets %.600q (before: %.300q)", c, got, want, commands[max(0, i-4):i])
	}
	return got
}

// unordered commands answer in the order of a hash table, which Redis seeds at
// random.
var unordered = map[string]bool{
	"smembers": true, "sunion": true, "sinter": true, "sdiff": true, "keys": true, "sscan": true,
	"hgetall": true, "hkeys": true, "hvals": true, "hscan": true, "zscan": true, "scan": true, "pubsub": true,
}

// sortedReply is a reply with its lines in order: equal for equal elements in any
// order.
func sortedReply(reply string) string {
	lines := strings.Split(reply, "\r\n")
	slices.Sort(lines)
	return strings.Join(lines, "\r\n")
}
