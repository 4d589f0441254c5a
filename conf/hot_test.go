package conf

import (
	"slices"
	"strings"
	"testing"
)

func TestHotFromEverySource(t *testing.T) {
	for name, c := range map[string]*Config{
		"flags":    mustLoad(t, []string{"--nearcache.hot.pinned", "a b", "--nearcache.hot.pinned=x,y", "--nearcache.hot.commands", "GET", "--nearcache.hot.commands", "hgetall"}, nil),
		"variable": mustLoad(t, nil, []string{"COSKY_PROXY_NEARCACHE_HOT_PINNED=a b\nx,y\n", "COSKY_PROXY_NEARCACHE_HOT_COMMANDS=get,HGETALL"}),
		"file":     mustLoad(t, []string{"--config", writeFile(t, "nearcache:\n  hot:\n    pinned: [a b, 'x,y']\n    commands:\n    - GET\n    - hgetall\n")}, nil),
	} {
		h := &c.NearCache.Hot
		if !slices.Equal(h.Pinned, []string{"a b", "x,y"}) || !slices.Equal(h.Commands, []string{"get", "hgetall"}) {
			t.Errorf("%s: %+v", name, h)
		}
	}
}

func TestRefusedHot(t *testing.T) {
	for args, want := range map[string]string{
		"--nearcache.hot.keys=101":                                    `cannot use "101" for nearcache.hot.keys (flag --nearcache.hot.keys): out of range; allowed: a whole number from 0 to 100`,
		"--nearcache.hot.min-reads=0":                                 `cannot use "0" for nearcache.hot.min_reads (flag --nearcache.hot.min-reads): out of range; allowed: a whole number from 1 to 1000000000`,
		"--nearcache.hot.commands=TTL":                                `cannot use "TTL" for nearcache.hot.commands (flag --nearcache.hot.commands): replies to "TTL" cannot be kept; those to these can: BITCOUNT`,
		"--nearcache.hot.pinned=a --nearcache.hot.pinned=a":           `cannot use "a,a" for nearcache.hot.pinned (flag --nearcache.hot.pinned): "a" is named twice; allowed: up to 100 different keys`,
		"--nearcache.hot.keys=5 --nearcache.hot.sample=0":             `nearcache.hot.keys needs counts: nearcache.hot.sample is 0`,
		"--nearcache.hot.keys=5 --nearcache.invalidation=pubsub":      `nearcache.hot.keys 5 (flag --nearcache.hot.keys) needs client tracking, nearcache.invalidation pubsub (flag --nearcache.invalidation) has none`,
		"--nearcache.hot.pinned=a --nearcache.invalidation=off":       `nearcache.hot.pinned needs client tracking, nearcache.invalidation off (flag --nearcache.invalidation) has none`,
		"--nearcache.hot.keys=0 --nearcache.invalidation=pubsub":      ``,
		"--nearcache.hot.sample=0 --nearcache.hot.pinned=a --loops=1": ``,
		"--nearcache.invalidation=pubsub":                             ``,
		"--nearcache.invalidation=off --nearcache.hot.sample=0":       ``,
	} {
		_, _, err := Load(strings.Split(args, " "), nil)
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s:\n got %v\nwant %s", args, err, want)
		}
	}
}
