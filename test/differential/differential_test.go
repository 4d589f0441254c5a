package differential

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"cosky-proxy/proxy/netloop"
)

var (
	seeds = flag.Uint64("seeds", 3, "number of random sequences per mode")
	first = flag.Uint64("first", 1, "first seed")
	long  = flag.Int("batches", 60, "batches per sequence")
)

// run plays one sequence per seed.
func (w *rig) run(t *testing.T) {
	for seed := *first; seed < *first+*seeds; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			protos := [2]int{2 + int(seed)%2, 2 + int(seed/2)%2}
			p := w.begin(t, protos)
			defer p.end()
			p.random = newRandom(w.docs, seed, w.slots)
			var history []batch
			for range *long {
				b := p.random.batch()
				history = append(history, b)
				if difference := p.play(b); difference != "" {
					w.report(t, protos, history, difference)
					return
				}
			}
		})
	}
}

func TestStandalone(t *testing.T) {
	for _, transport := range []netloop.Transport{netloop.DefaultTransport, netloop.Goroutine} {
		t.Run(transport.String(), func(t *testing.T) { startStandalone(t, transport).run(t) })
	}
}

// TestCluster compares three masters behind the proxy with one node that owns all
// slots. Keys of several slots in one command are refused alike, unless the proxy
// splits it.
func TestCluster(t *testing.T) { startCluster(t).run(t) }

// neverWorks are exercised commands that a plain server always refuses.
var neverWorks = strings.Fields(`acl client config function latency memory module object pubsub script slowlog xgroup xinfo`)

// TestEveryCommand calls every command of the table in many forms, so that none is
// left to chance, and makes sure that each has worked.
func TestEveryCommand(t *testing.T) {
	w := startStandalone(t, netloop.DefaultTransport)
	for _, proto := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", proto), func(t *testing.T) {
			protos := [2]int{proto, proto}
			p := w.begin(t, protos)
			defer p.end()
			r := newRandom(w.docs, uint64(proto), false)
			p.random = r
			var history []batch
			for range 3 {
				for _, s := range r.syntaxes {
					var b batch
					for range 10 {
						b.commands = append(b.commands, r.variant(s), r.command())
					}
					b.commands = append(b.commands, r.transaction()...)
					history = append(history, b)
					if difference := p.play(b); difference != "" {
						w.report(t, protos, history, difference)
						return
					}
				}
			}
			for _, s := range r.syntaxes {
				if p.worked[s.name] == slices.Contains(neverWorks, s.name) {
					t.Errorf("%q has worked: %v", s.name, p.worked[s.name])
				}
			}
		})
	}
}

// TestArity calls every command with every small number of arguments: none may be
// answered otherwise than by Redis, or not at all.
func TestArity(t *testing.T) {
	w := startStandalone(t, netloop.DefaultTransport)
	r := newRandom(w.docs, 1, false)
	for _, proto := range []int{2, 3} {
		p := w.begin(t, [2]int{proto, proto})
		for _, s := range r.syntaxes {
			var b batch
			for n := range 5 {
				c := append(strings.Split(s.name, "|"), []string{"none", "0", "1", "a"}[:n]...)
				if r.tame(c); r.playable(c) && !slices.Contains(c, "*") {
					b.commands = append(b.commands, c)
				}
			}
			if container, sub, isSub := strings.Cut(s.name, "|"); isSub {
				b.commands = append(b.commands, []string{container, sub + "x"}, []string{strings.ToUpper(container), strings.Repeat("long", 100)})
			}
			if difference := p.play(b); difference != "" {
				t.Errorf("RESP%d: %s", proto, difference)
			}
		}
		p.end()
	}
}

// TestCommandTable: what COMMAND says is what Redis says, whatever the order of its
// hash tables.
func TestCommandTable(t *testing.T) {
	w := startStandalone(t, netloop.DefaultTransport)
	for _, proto := range []int{2, 3} {
		p := w.begin(t, [2]int{proto, proto})
		calls := [][]string{{"COMMAND"}, {"COMMAND", "INFO"}, {"COMMAND", "DOCS"}, {"COMMAND", "INFO", "get", "nosuch", "config|get"}}
		for name := range w.docs {
			calls = append(calls, []string{"COMMAND", "INFO", name}, []string{"COMMAND", "DOCS", name})
		}
		for _, c := range calls {
			want, got := p.direct[0].Do(c...), p.behind[0].Do(c...)
			if a, b := parsed(want), parsed(got); want != got && (a == nil || b == nil || deepAnyOrder(a) != deepAnyOrder(b)) {
				t.Errorf("RESP%d %v: got %.300q, Redis says %.300q", proto, c, got, want)
			}
		}
		p.end()
	}
}
