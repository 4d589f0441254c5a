package proxy

import (
	"fmt"
	"testing"

	"cosky-proxy/cluster/clustertest"
)

// TestGlob compares the matching of patterns with Redis' own.
func TestGlob(t *testing.T) {
	r := clustertest.StartRedis(t)
	names := []string{"a", "b", "ab", "abc", "aXbXc", "*", "a*", `\`, `a\b`, "[", "[a]", "]", "^", "-", "a-c", "foo.bar", "__keyevent@0__:set", "\x00\xff\r\n"}
	for _, name := range names {
		r.Do("SET", name, "v")
	}
	for _, pattern := range []string{
		"", "*", "**", "?", "??", "a", "a*", "*c", "a*c", "*b*", "a?c", "a**c", "*a*b*c*", "a*b*x", "[ab]", "[^ab]", "[a-c]", "[c-a]*", "[^a-c]*", "[a", "[^a", "[", "[]", "[^]", "[]a]", "[a-]", "[-a]",
		`\*`, `a\*`, `\`, `\\`, `a\\b`, `[\]]`, `[\]`, `[a\-c]*`, "[[]a]", "[[]*", "foo.*", "foo?bar", "__key*@0__:*", "*\xff*", "[^", "a[", "*[", "?[",
	} {
		matched := make(map[string]bool)
		for _, name := range r.Do("KEYS", pattern).([]any) {
			matched[fmt.Sprint(name)] = true
		}
		for _, name := range names {
			if got := globMatch(pattern, name); got != matched[name] {
				t.Errorf("%q matches %q: %v, Redis says %v", pattern, name, got, matched[name])
			}
		}
	}
}

func TestGlobCanStart(t *testing.T) {
	for pattern, want := range map[string]bool{
		"*": true, "": false, "__key*": true, "__keyspace@0__:foo": true, "__keyspace@": true, "__keyspac": false, "?_keys[p-q]ace@*": true,
		"__keyspace?": true, `\_\_keyspace@*`: true, "news.*": false, "_*": true, "[^_]*": false, "[^a]*": true, "_________________": false,
	} {
		if got := globCanStart(pattern, keyspacePrefix); got != want {
			t.Errorf("%q can match what starts with %q: %v, want %v", pattern, keyspacePrefix, got, want)
		}
	}
}
