package differential

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/discovery"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

// rig is a Redis that is talked to directly and the like of it behind a proxy.
type rig struct {
	direct string
	proxy  string
	docs   map[string]*syntax
	slots  bool // a cluster of three masters behind, one node with all slots beside
}

// impatient servers look at the time limits of blocked clients 500 times a second, not 10.
var impatient = []string{"--hz", "500", "--dynamic-hz", "no"}

// startStandalone: two servers, the proxy with its near-cache on.
func startStandalone(t *testing.T, transport netloop.Transport) *rig {
	t.Helper()
	direct, behind := clustertest.StartRedis(t, impatient...), clustertest.StartRedis(t, impatient...)
	p := proxytest.StartDiscovered(t, discovery.Backend{Mode: cluster.Standalone, Seeds: []string{behind.Addr}}, func(o *proxy.Options) {
		o.Transport = transport
		o.Logger = slog.New(slog.NewTextHandler(panicAlarm{t}, nil))
	})
	return &rig{direct: direct.Addr, proxy: p.Addr, docs: parseDocs(direct.Do("COMMAND", "DOCS"))}
}

// startCluster: a cluster of three masters behind the proxy, and a cluster's only node.
func startCluster(t *testing.T) *rig {
	t.Helper()
	direct, behind := clustertest.StartCluster(t, 1, 0, impatient...), clustertest.StartCluster(t, 3, 0, impatient...)
	p := proxytest.StartCluster(t, behind, func(o *proxy.Options) {
		o.Logger = slog.New(slog.NewTextHandler(panicAlarm{t}, nil))
	})
	node := direct.Nodes[0]
	return &rig{direct: node.Addr, proxy: p.Addr, slots: true, docs: parseDocs(node.Do("COMMAND", "DOCS"))}
}

// panicAlarm is a log that is read by the test alone: a loop survives a panic, but
// whoever caused it is stuck or cut off.
type panicAlarm struct{ t *testing.T }

func (a panicAlarm) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("panic")) {
		a.t.Errorf("the proxy logged %s", line)
	}
	return len(line), nil
}

// reset brings both to the same state.
func (w *rig) reset(t *testing.T) {
	t.Helper()
	for _, addr := range []string{w.direct, w.proxy} {
		c := clustertest.Dial(t, addr)
		for _, flush := range [][]string{{"FLUSHALL"}, {"SCRIPT", "FLUSH"}, {"FUNCTION", "FLUSH"}} {
			if got := c.Do(flush...); got != "+OK\r\n" {
				t.Fatalf("%s: %q answers %q", addr, flush, got)
			}
		}
		c.Close()
	}
}

// side is the two connections to one of the two.
type side [2]*clustertest.Conn

func (w *rig) dial(t *testing.T, addr string, protos [2]int) (s side) {
	t.Helper()
	for i := range s {
		s[i] = clustertest.Dial(t, addr)
		if protos[i] == 3 {
			s[i].Do("HELLO", "3")
		}
	}
	return s
}

func (s side) close() {
	for _, c := range s {
		c.Close()
	}
}

// round is one sequence being played.
type round struct {
	direct, behind side
	compare        [2]comparison
	random         *random         // learns payloads; nil when something is played again
	worked         map[string]bool // commands that had a reply without an error
}

func (w *rig) begin(t *testing.T, protos [2]int) *round {
	t.Helper()
	w.reset(t)
	return &round{direct: w.dial(t, w.direct, protos), behind: w.dial(t, w.proxy, protos), worked: make(map[string]bool)}
}

func (p *round) end() {
	p.direct.close()
	p.behind.close()
}

// play sends one batch to both and returns the first difference, "" for none.
func (p *round) play(b batch) string {
	var raw strings.Builder
	for _, c := range b.commands {
		raw.WriteString(clustertest.Encode(c...))
	}
	direct, behind := p.direct[b.conn], p.behind[b.conn]
	direct.Send(raw.String())
	behind.Send(raw.String())
	for _, c := range b.commands {
		want, err := direct.TryReply(clustertest.Deadline)
		if err != nil {
			return fmt.Sprintf("%.300q: Redis does not answer: %v", c, err)
		}
		got, err := behind.TryReply(clustertest.Deadline)
		if err != nil {
			return fmt.Sprintf("%.300q: no answer: %v; Redis says %.600q", c, err, want)
		}
		if !p.compare[b.conn].agree(c, want, got) {
			return fmt.Sprintf("%.300q: got %.900q, Redis says %.900q", c, got, want)
		}
		if name := fullName(c); want[0] != '-' {
			p.worked[name] = true
		}
		if p.random != nil {
			p.random.learn(c, want)
		}
	}
	return ""
}

// replay plays a sequence from the beginning.
func (w *rig) replay(t *testing.T, protos [2]int, history []batch) string {
	p := w.begin(t, protos)
	defer p.end()
	for _, b := range history {
		if difference := p.play(b); difference != "" {
			return difference
		}
	}
	return ""
}

// maxReplayed bounds the search for a short sequence, in commands.
const maxReplayed = 100_000

// shrink removes from history what is not needed for a difference: batches, then
// commands, in halves and smaller parts. It returns what is left and its difference, or
// nothing if the difference does not come again.
func (w *rig) shrink(t *testing.T, protos [2]int, history []batch) ([]batch, string) {
	difference := w.replay(t, protos, history)
	if difference == "" {
		return nil, ""
	}
	budget := maxReplayed
	about, _, _ := strings.Cut(difference, " ") // the command: another difference is another matter
	without := func(items []batch, i, n int) []batch {
		return slices.Delete(slices.Clone(items), i, min(i+n, len(items)))
	}
	reduce := func() {
		for n := (len(history) + 1) / 2; n > 0 && budget > 0; n /= 2 {
			for i := 0; i < len(history) && budget > 0; {
				shorter := without(history, i, n)
				budget -= len(apart(shorter)) + 20 // and what it takes to start over
				if d := w.replay(t, protos, shorter); strings.HasPrefix(d, about) {
					history, difference = shorter, d
					continue
				}
				i += n
			}
		}
	}
	reduce()
	single := apart(history)
	if d := w.replay(t, protos, single); strings.HasPrefix(d, about) { // not a matter of pipelining
		history, difference = single, d
		reduce()
	}
	return history, difference
}

// apart sends every command by itself.
func apart(history []batch) (single []batch) {
	for _, b := range history {
		for _, c := range b.commands {
			single = append(single, batch{b.conn, [][]string{c}})
		}
	}
	return single
}

// report fails the test with the shortest sequence that was found.
func (w *rig) report(t *testing.T, protos [2]int, history []batch, difference string) {
	t.Helper()
	t.Errorf("%s", difference)
	short, again := w.shrink(t, protos, history)
	if short == nil {
		t.Logf("the difference does not come again when the same is played from the beginning")
		return
	}
	var b strings.Builder
	for _, s := range short {
		for _, c := range s.commands {
			fmt.Fprintf(&b, "  %d: %.400q\n", s.conn, c)
		}
	}
	t.Logf("%d batches are enough (connection: command) for\n%s\n%s", len(short), again, b.String())
}
