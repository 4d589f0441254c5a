package conf

import (
	"reflect"
	"strings"
	"testing"
)

func TestLimitRulesFromEverySource(t *testing.T) {
	want := []LimitRule{
		{Per: "user", Match: "batch:*", Rate: 500, Burst: 50, InFlight: 8},
		{Per: "address", InFlight: 1000},
		{Per: "namespace", Match: "cosky-{default}", Rate: 0.5},
	}
	first, second, third := `{per: user, match: "batch:*", rate: 500, burst: 50, in_flight: 8}`, `{per: address, in_flight: 1000}`, `{per: namespace, match: 'cosky-{default}', rate: 0.5}`
	for name, c := range map[string]*Config{
		"flags":    mustLoad(t, []string{"--limits.rules", first, "--limits.rules", second, "--limits.rules", third}, nil),
		"variable": mustLoad(t, nil, []string{"COSKY_PROXY_LIMITS_RULES=" + first + "\n" + second + "\n" + third}),
		"file":     mustLoad(t, []string{"--config", writeFile(t, "limits:\n  rules:\n    - "+first+"\n    - per: address\n      in_flight: 1000\n    - "+third+"\n")}, nil),
		"written":  mustLoad(t, []string{"--limits.rules", want[0].String(), "--limits.rules", want[1].String(), "--limits.rules", want[2].String()}, nil),
	} {
		if !reflect.DeepEqual(c.Limits.Rules, want) {
			t.Errorf("%s: got  %+v\nwant %+v", name, c.Limits.Rules, want)
		}
	}
	for _, one := range []string{"limits:\n  rules: " + first + "\n", "limits:\n  rules:\n    per: user\n    match: batch:*\n    rate: 500\n    burst: 50\n    in_flight: 8\nloops: 1\n"} {
		if c := mustLoad(t, []string{"--config", writeFile(t, one)}, nil); !reflect.DeepEqual(c.Limits.Rules, want[:1]) {
			t.Errorf("one rule without a list: got %+v of\n%s", c.Limits.Rules, one)
		}
	}
}

func TestRefusedLimitRules(t *testing.T) {
	for rule, want := range map[string]string{
		`x`:                                          "a rule is a mapping such as {per: user, rate: 1000}",
		`{rate: 5}`:                                  "a rule needs per: connection, address, user or namespace",
		`{per: key, rate: 5}`:                        "per of a rule: must be connection, address, user or namespace",
		`{per: user}`:                                "the rule per user needs rate or in_flight",
		`{per: user, burst: 5, in_flight: 5}`:        "the rule per user has a burst, which needs a rate",
		`{per: connection, match: a, rate: 5}`:       "connections have no names that match could compare",
		`{per: user, rate: 0}`:                       "rate of a rule: out of range; allowed: commands per second, from 0.001 to",
		`{per: user, rate: NaN}`:                     "rate of a rule: out of range",
		`{per: user, rate: many}`:                    "rate of a rule: not a number",
		`{per: user, rate: 1, burst: 0}`:             "burst of a rule: out of range; allowed: a whole number from 1 to",
		`{per: user, in_flight: 1.5}`:                "in_flight of a rule: not a whole number",
		`{per: [user, address], rate: 1}`:            "per of a rule: not a single value",
		`{per: user, limit: 1}`:                      "limit of a rule: unknown key; a rule has per, match, rate, burst and in_flight",
		strings.Repeat("{per: user, rate: 1}\n", 65): "65 rules, at most 64 are allowed",
	} {
		_, _, err := Load(nil, []string{"COSKY_PROXY_LIMITS_RULES=" + rule})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s:\n got %v\nwant %s", rule, err, want)
		}
	}
}
