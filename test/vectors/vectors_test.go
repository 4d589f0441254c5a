package vectors

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/nearcache/coskey"
)

func TestRedis(t *testing.T) {
	for name, target := range map[string]Target{
		"RESP2 EVALSHA": {RESP: 2, Mode: EVALSHA},
		"RESP3 EVAL":    {RESP: 3, Mode: EVAL},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target.Addr = clustertest.StartRedis(t).Addr
			playAll(t, Recorded(t), target)
			playAll(t, Failing(t), target)
		})
	}
}

// A node that owns all slots is no different, but refuses keys that do not belong together.
func TestCluster(t *testing.T) {
	t.Parallel()
	node := clustertest.StartCluster(t, 1, 0).Nodes[0]
	target := Target{Addr: node.Addr, Cluster: []string{node.Addr}}
	for _, s := range append(Recorded(t), Failing(t)...) {
		if s.Tagged() {
			t.Run(s.ID, func(t *testing.T) { Play(t, s, target) })
		}
	}
}

// differsOnMiniredis lists what the embedded server cannot play, and why.
var differsOnMiniredis = map[string]string{
	"config-wrong-type":       "every error inside a script has the code ERR",
	"config-index-wrong-type": "every error inside a script has the code ERR",
	"deregister-wrong-type":   "every error inside a script has the code ERR",
	"discovery-wrong-type":    "every error inside a script has the code ERR",
}

func TestMiniredis(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	m.ClockTTL(true)
	for _, s := range append(Recorded(t), Failing(t)...) {
		if differsOnMiniredis[s.ID] == "" {
			t.Run(s.ID, func(t *testing.T) { Play(t, s, Target{Addr: m.Addr(), Embedded: true}) })
		}
	}
}

func playAll(t *testing.T, all []Scenario, target Target) {
	t.Helper()
	if len(all) == 0 {
		t.Fatal("no scenarios")
	}
	for _, s := range all {
		t.Run(s.ID, func(t *testing.T) { Play(t, s, target) })
	}
}

// Whatever a scenario says wrongly is found.
func TestPlayFindsDifferences(t *testing.T) {
	t.Parallel()
	target := Target{Addr: clustertest.StartRedis(t).Addr}
	const config, index = "n:cfg:a", "n:cfg_idx"
	right := func() Scenario {
		return Scenario{
			Steps: []Step{{
				Script: "config_set", Keys: []any{"n"}, Args: []any{"a", "A", "h"}, Reply: json.Number("1"),
				Published: []any{[]any{config, "set"}},
				Changed:   map[string]string{config: "created", index: "created"},
			}},
			State: map[string]Final{
				index: {Type: "set", Value: []any{config}, TTL: "none"},
				config: {Type: "hash", TTL: "none", Value: map[string]any{
					"configId": "a", "data": "A", "hash": "h", "version": "1", "createTime": map[string]any{"$time": true},
				}},
			},
		}
	}
	for _, c := range []struct {
		what string
		edit func(*Scenario)
		want string // in the only difference; empty: none
	}{
		{"nothing", func(*Scenario) {}, ""},
		{"reply", func(s *Scenario) { s.Steps[0].Reply = json.Number("0") }, "reply"},
		{"no message", func(s *Scenario) { s.Steps[0].Published = []any{} }, "published"},
		{"other message", func(s *Scenario) { s.Steps[0].Published = []any{[]any{config, "remove"}} }, "published"},
		{"fewer changes", func(s *Scenario) { delete(s.Steps[0].Changed, index) }, "changed"},
		{"other change", func(s *Scenario) { s.Steps[0].Changed[index] = "value" }, "changed"},
		{"missing key", func(s *Scenario) { s.State["x"] = Final{Type: "set"} }, "missing"},
		{"unexpected key", func(s *Scenario) { delete(s.State, index) }, "unexpected"},
		{"other value", func(s *Scenario) { s.State[index] = Final{Type: "set", Value: []any{"x"}, TTL: "none"} }, "state"},
	} {
		s := right()
		c.edit(&s)
		faults, _, err := play(s, target)
		if err != nil {
			t.Fatal(err)
		}
		if c.want == "" && len(faults) > 0 || c.want != "" && (len(faults) != 1 || !strings.Contains(faults[0], c.want)) {
			t.Errorf("%s: found %q, want one about %q", c.what, faults, c.want)
		}
	}
}

// A list that Lua cannot unpack (about 8,000 values) fails where it is used, after the
// steps before it.
func TestTooMuchMetadata(t *testing.T) {
	t.Parallel()
	const ns, id = "cosky-{m}", "o@http#h#1"
	pairs := make([]any, 0, 20_000)
	for i := range cap(pairs) / 2 {
		pairs = append(pairs, fmt.Sprintf("_%d", i), "x")
	}
	register := append([]any{"-1", "o", id, "http", "h", "1", "1"}, pairs...)
	refused := map[string]any{"error": "ERR"}
	s := Scenario{
		ID: "too-much-metadata",
		Steps: []Step{
			{
				Script: "registry_register", Keys: []any{ns}, Args: register, Reply: refused,
				Published: []any{[]any{ns + ":svc_idx", "set"}},
				Changed:   map[string]string{ns + ":svc_idx": "created", ns + ":svc_stat": "created", ns + ":svc_itc_idx:o": "created"},
			},
			{
				Cmd: []any{"HSET", ns + ":svc_itc:" + id, "_gone", "1", "stays", "1"}, Reply: json.Number("2"),
				Published: []any{}, Changed: map[string]string{ns + ":svc_itc:" + id: "created"},
			},
			{
				Script: "registry_set_metadata", Keys: []any{ns}, Args: append([]any{id}, pairs...), Reply: refused,
				Published: []any{}, Changed: map[string]string{ns + ":svc_itc:" + id: "value"},
			},
		},
		State: map[string]Final{
			ns + ":svc_idx":       {Type: "set", Value: []any{"o"}, TTL: "none"},
			ns + ":svc_stat":      {Type: "hash", Value: map[string]any{"o": "0"}, TTL: "none"},
			ns + ":svc_itc_idx:o": {Type: "set", Value: []any{id}, TTL: "none"},
			ns + ":svc_itc:" + id: {Type: "hash", Value: map[string]any{"stays": "1"}, TTL: "none"},
		},
	}
	Play(t, s, Target{Addr: clustertest.StartRedis(t).Addr})
}

// As EVALSHA_RO the discovery scripts work until they meet an expired instance.
func TestReadOnlyDiscovery(t *testing.T) {
	t.Parallel()
	c := clustertest.Dial(t, clustertest.StartRedis(t).Addr)
	evalRO := func(script string, args ...string) string {
		return c.Do(append([]string{"EVAL_RO", text(t, script), "1", "n"}, args...)...)
	}
	c.Do("HSET", "n:svc_itc:i", "instanceId", "i")
	c.Do("SADD", "n:svc_itc_idx:s", "i")
	if got, want := evalRO("discovery_get_instances", "s"), "*1\r\n*2\r\n$10\r\ninstanceId\r\n$1\r\ni\r\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := evalRO("discovery_get_instance_ttl", "s", "i"), ":-1\r\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	c.Do("DEL", "n:svc_itc:i")
	if got := evalRO("discovery_get_instance", "s", "i"); !strings.HasPrefix(got, "-ERR Write commands are not allowed from read-only scripts") {
		t.Errorf("got %q, want an error about the write", got)
	}
}

// A namespace full of glob characters subscribes to its own messages and to no others.
func TestSubscriptionOnServers(t *testing.T) {
	t.Parallel()
	const ns = `a*[b]?\{c}`
	m := miniredis.RunT(t)
	for name, addr := range map[string]string{"redis": clustertest.StartRedis(t).Addr, "miniredis": m.Addr()} {
		t.Run(name, func(t *testing.T) {
			sub, c := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
			channels, patterns := coskey.Subscription([]byte(ns))
			for _, ch := range channels {
				sub.Do("SUBSCRIBE", ch)
			}
			for _, p := range patterns {
				sub.Do("PSUBSCRIBE", p)
			}
			for _, other := range []string{`ax[b]?\{c}`, `a*b?\{c}`, `a*[b]x\{c}`, `a*[b]?x{c}`} {
				c.Do("PUBLISH", other+":cfg:x", "set")
				c.Do("PUBLISH", other+":svc_itc:x", "renew")
				c.Do("PUBLISH", other+":svc_idx", "set")
			}
			for _, own := range []string{ns + ":svc_idx", ns + ":cfg:x", ns + ":svc_itc:x"} {
				c.Do("PUBLISH", own, "set")
				if got := sub.ReadReply(); !strings.Contains(got, own+"\r\n") {
					t.Errorf("got %q, want a message on %q", got, own)
				}
			}
		})
	}
}
