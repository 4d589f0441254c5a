package proxy

import (
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/lua"
	"cosky-proxy/nearcache"
)

const recalledKey = "n-{x}:svc_itc:order@http#10.0.0.1#8080"

// recalled is a trip whose entry is found by Reader.Recall, and a lane that does not answer.
func recalled(t *testing.T) *trip {
	t.Helper()
	p := newTrip(t, tripCase{command: []string{"HGETALL", recalledKey}, reply: "*2\r\n$1\r\nf\r\n$1\r\nv\r\n", cached: true})
	p.check(t)
	l := p.s.loop
	if l.reader.Recall(0, nearcache.Kind(l.table.Named("hgetall").ID), []byte(recalledKey), l.now()) == nil {
		t.Fatal("it is not recalled")
	}
	p.ln = p.openLane(closedConn(t, l.nl), recalledKey)
	return p
}

// TestNothingIsOvertakenByARecalledHit: behind a command of the same client that may concern the key, in
// whichever way, an entry is not served, although it is valid.
func TestNothingIsOvertakenByARecalledHit(t *testing.T) {
	for name, before := range map[string][]string{
		"a read of the key":   {"HGET", recalledKey, "f"},
		"a read of its group": append([]string{"EVALSHA", lua.ByName("instance_count_stat").SHA1, "2"}, "n-{x}", "n-{x}"),
		"a script":            {"EVAL_RO", "return 1", "0"},
		"WATCH":               {"WATCH", recalledKey},
	} {
		t.Run(name, func(t *testing.T) {
			p := recalled(t)
			hits := p.s.loop.stats.Hits
			p.s.OnData([]byte(clustertest.Encode(before...) + clustertest.Encode("HGETALL", recalledKey)))
			if got := p.s.loop.stats.Hits - hits; got != 0 {
				t.Errorf("%d hits behind %q", got, before)
			}
		})
	}
	p := recalled(t)
	hits := p.s.loop.stats.Hits
	p.s.OnData([]byte(clustertest.Encode("GET", "another") + clustertest.Encode("HGETALL", recalledKey)))
	if got := p.s.loop.stats.Hits - hits; got != 1 {
		t.Errorf("%d hits behind a command that does not concern the key", got)
	}
}

// TestGrounds: only what is kept for ever and for the very command that is asked is served without
// looking for the policy again.
func TestGrounds(t *testing.T) {
	p := newTrip(t, tripCase{name: "PING", command: []string{"PING"}})
	l := p.s.loop
	rules, err := newRuleSet([]Rule{{Match: "m*", Commands: []string{"mget"}}, {Match: "h*", Commands: []string{"hgetall", "get"}}, {Match: "*{x}*", Commands: []string{"get"}}})
	if err != nil {
		t.Fatal(err)
	}
	l.rules = rules
	l.srv.hotRule = &keyRule{number: rules.count(), commands: anyCommand}
	l.hot = newHotSet(l.cache, map[string]bool{"hot": true, "n-{x}:cfg:hot": true})
	for _, c := range []struct {
		name, command, key, policyOf string
		want                         uint16
	}{
		{"CoSky's own", "hgetall", "n-{x}:cfg:a", "hgetall", groundsOwn},
		{"CoSky's own, hot as well", "hgetall", "n-{x}:cfg:hot", "hgetall", groundsOwn},
		{"another command on CoSky's own", "get", "n-{x}:cfg:a", "get", groundsRules + 2},
		{"by a rule", "hgetall", "h", "hgetall", groundsRules + 1},
		{"hot", "get", "hot", "get", groundsRules + 1}, // the rule of h*
		{"hot, and nothing else", "strlen", "hot", "strlen", groundsVary},
		{"GET asked for the sake of MGET, but not kept itself", "get", "m", "mget", groundsVary},
	} {
		bit := uint64(mgetBit)
		if c.policyOf != "mget" {
			bit = l.reads[l.table.Named(c.policyOf).ID].bit
		}
		cmd := l.table.Named(c.command)
		f := &fetch{
			question: l.cache.Ask(0, nearcache.Kind(cmd.ID), []byte(c.key), nil),
			read:     l.reads[cmd.ID], policy: l.policyOf(bit, []byte(c.key)),
		}
		if !f.policy.keeps {
			t.Errorf("%s: not kept at all", c.name)
		}
		if got := l.groundsOf(f); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
