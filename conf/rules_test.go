package conf

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestRulesFromEverySource(t *testing.T) {
	want := []CacheRule{
		{Match: "item:stock:*", Commands: []string{"get", "hgetall"}, TTL: 30 * time.Second, MaxValue: 64 * KB, Coherence: "tracking"},
		{Match: "{x}[ab]: \"c", Commands: []string{"mget"}, TTL: time.Minute, MaxValue: 1 * MB, Coherence: "ttl"},
	}
	first := `{match: "item:stock:*", commands: [GET, hgetall], ttl: 30s, max_value: 64KB}`
	second := `{match: '{x}[ab]: "c', commands: MGET, coherence: ttl}`
	for name, c := range map[string]*Config{
		"flags":        mustLoad(t, []string{"--nearcache.rules", first, "--nearcache.rules=" + second}, nil),
		"variable":     mustLoad(t, nil, []string{"COSKY_PROXY_NEARCACHE_RULES=" + first + "\n" + second + "\n"}),
		"file":         mustLoad(t, []string{"--config", writeFile(t, "nearcache:\n  rules:\n    - "+first+"\n    - "+second+"\n")}, nil),
		"file, blocks": mustLoad(t, []string{"--config", writeFile(t, "nearcache:\n  rules:\n    - match: item:stock:*\n      commands: [GET, hgetall] # two\n      ttl: 30s\n      max_value: 64KB\n    - match: '{x}[ab]: \"c'\n      commands:\n        - MGET\n      coherence: ttl\n")}, nil),
		"as written":   mustLoad(t, []string{"--nearcache.rules", want[0].String(), "--nearcache.rules", want[1].String()}, nil),
	} {
		if !reflect.DeepEqual(c.NearCache.Rules, want) {
			t.Errorf("%s: got  %+v\nwant %+v", name, c.NearCache.Rules, want)
		}
	}
}

func TestRefusedRules(t *testing.T) {
	for rule, want := range map[string]string{
		`x`:                                                 `cannot use "x" for nearcache.rules (flag --nearcache.rules): a rule is a mapping such as {match: "item:*", commands: [GET]}`,
		`{match: a`:                                         `a rule is a mapping such as`,
		`{commands: [GET]}`:                                 `a rule needs match, a pattern of keys`,
		`{match: "", commands: [GET]}`:                      `a rule needs match, a pattern of keys`,
		`{match: a}`:                                        `the rule for "a" needs commands`,
		`{match: a, commands: []}`:                          `the rule for "a" needs commands`,
		`{match: a, commands: [TTL]}`:                       `commands of a rule: replies to "TTL" cannot be kept; those to these can: BITCOUNT EXISTS GET `,
		`{match: a, commands: [GET, get]}`:                  `commands of a rule: "get" is named twice`,
		`{match: [a, b], commands: [GET]}`:                  `match of a rule: not a single value`,
		`{match: a, commands: [GET], ttl: 5}`:               `ttl of a rule: not a duration with a unit`,
		`{match: a, commands: [GET], ttl: 0s}`:              `ttl of a rule: out of range; allowed: a duration such as 500ms or 60s, from 1ms to nearcache.ttl`,
		`{match: a, commands: [GET], ttl: 61s}`:             `ttl 1m1s of the rule for "a" must not be greater than nearcache.ttl 1m (default)`,
		`{match: a, commands: [GET], max_value: 2MB}`:       `max_value 2MB of the rule for "a" must not be greater than nearcache.max_entry 1MB (default)`,
		`{match: a, commands: [GET], max_value: x}`:         `max_value of a rule: not a size`,
		`{match: a, commands: [GET], coherence: maybe}`:     `coherence of a rule: must be tracking or ttl`,
		`{match: a, commands: [GET], stale: 1s}`:            `stale of a rule: unknown key; a rule has match, commands, ttl, max_value and coherence`,
		strings.Repeat("{match: a, commands: [GET]}\n", 65): `65 rules, at most 64 are allowed`,
	} {
		_, _, err := Load(append([]string{"--nearcache.rules"}, strings.Split(strings.TrimSpace(rule), "\n")[0]), nil)
		if strings.Contains(rule, "\n") {
			_, _, err = Load(nil, []string{"COSKY_PROXY_NEARCACHE_RULES=" + rule})
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") && !strings.Contains(rule, "\n") {
			t.Errorf("%.60s:\n got %v\nwant %s", rule, err, want)
		}
	}
	rule := `{match: "a*", commands: [GET]}`
	_, _, err := Load([]string{"--nearcache.invalidation", "pubsub", "--nearcache.rules", rule}, nil)
	if want := `the rule for "a*" asks for coherence: tracking, but nearcache.invalidation pubsub (flag --nearcache.invalidation) offers none; coherence: ttl accepts what is weaker`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, _, err := Load([]string{"--nearcache.invalidation", "off", "--nearcache.rules", rule}, nil); err != nil {
		t.Errorf("rules without a near-cache: %v", err)
	}
}
