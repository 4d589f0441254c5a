package proxy

import (
	"bytes"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
)

// TestSlowCommandsDoNotAllocate: a storm of them is written into memory that is there.
func TestSlowCommandsDoNotAllocate(t *testing.T) {
	for _, c := range tripCases() {
		p := newTrip(t, c)
		l := p.s.loop
		l.slow.after = 0 // the clock of this loop stands still
		trip := func() {
			p.send()
			p.receive()
			p.take()
		}
		for range 2 * l.slow.limit / depth {
			trip()
		}
		before := l.stats.SlowCommands
		if n := testing.AllocsPerRun(100, trip); n != 0 {
			t.Errorf("%s: %v allocations for %d commands", c.name, n, depth)
		}
		if noted := l.stats.SlowCommands > before; noted != (p.ln != nil) {
			t.Errorf("%s: noted %v", c.name, noted)
		}
	}
}

// TestSlowLogFindsKeysOnly: wherever the known beginning of a request ends, the key that is shown is the
// beginning of the first one, or none.
func TestSlowLogFindsKeysOnly(t *testing.T) {
	p := newTrip(t, tripCases()[0])
	g, table := &p.s.loop.slow, p.s.loop.table
	long := strings.Repeat("k", 300)
	for _, tt := range []struct {
		call string
		key  string // empty: none
	}{
		{"SET key secret", "key"},
		{"SET " + long + " secret", long},
		{"MSET key secret other secret", "key"},
		{"RENAME key other", "key"},
		{"ZUNIONSTORE key 2 other another", "key"},
		{"LMPOP 2 key other LEFT", "key"},
		{"EVAL secret 2 key other secret", "key"},
		{"EVAL secret 0 secret", ""},
		{"FCALL secret 1 key secret", "key"},
		{"XREADGROUP GROUP secret secret COUNT 1 STREAMS key other secret secret", "key"},
		{"XADD key MAXLEN 5 * secret secret", "key"},
		{"BITOP AND key other another", "key"},
		{"SORT key BY secret GET secret STORE other", "key"},
		{"OBJECT ENCODING key", "key"},
		{"MIGRATE secret secret key 0 10 AUTH secret", "key"},
		{"MEMORY USAGE key", "key"},
		{"AUTH secret secret", ""},
		{"HELLO 3 AUTH secret secret", ""},
		{"CONFIG SET requirepass secret", ""},
		{"ACL SETUSER secret >secret", ""},
		{"PUBLISH secret secret", ""},
		{"MSET " + strings.TrimSpace(strings.Repeat("key secret ", maxSlowArgs)), "key"},
	} {
		args := bytes.Fields([]byte(tt.call))
		cmd, problem := table.Resolve(args)
		if problem != "" {
			t.Fatalf("%.60s: %s", tt.call, problem)
		}
		raw := []byte(clustertest.Encode(strings.Fields(tt.call)...))
		e := new(slowEntry)
		setClip(&e.key, strings.Repeat("secret", 30), 180) // of whom the memory was before
		for cut := range min(len(raw), 400) + 1 {
			known := raw[:cut]
			if cut == 400 {
				known = raw
			}
			e.keyed = false
			g.describe(e, cmd, known)
			switch {
			case e.keyed && (e.key.size != len(tt.key) || tt.key == ""):
				t.Fatalf("%.60s: key %q, %d bytes, of %q", tt.call, e.key.text(), e.key.size, known)
			case e.keyed && !strings.HasPrefix(tt.key, e.key.text()):
				t.Fatalf("%.60s: key %q of %q", tt.call, e.key.text(), known)
			}
		}
		e.keyed = false
		g.describe(e, cmd, raw)
		if e.args != len(args) || e.keyed != (tt.key != "") || e.keyed && e.key.text() != tt.key[:min(len(tt.key), maxClip)] {
			t.Errorf("%.60s: %d arguments, keyed %v, key %q", tt.call, e.args, e.keyed, e.key.text())
		}
		if n := testing.AllocsPerRun(20, func() { g.describe(e, cmd, raw) }); n != 0 {
			t.Errorf("%.60s: %v allocations", tt.call, n)
		}
	}
}
