package glob

import (
	"testing"

	"cosky-proxy/cluster/clustertest"
)

// TestMatchIsThatOfRedis compares with KEYS, which matches its pattern with one name.
func TestMatchIsThatOfRedis(t *testing.T) {
	r := clustertest.StartRedis(t)
	c := clustertest.Dial(t, r.Addr)
	patterns := []string{
		"", "*", "a", "?", "??", "a*", "*a", "a*b*c", "**", "a**c", "*?*", "[abc]", "[^abc]", "[a-c]", "[c-a]", "[]a]", "[^]a]", "[a", "[^a", "[a-", "[a-]", "[-a]", "[\\]]",
		"[", "[^", "\\*", "\\a", "a\\", "\\\\", "[a\\-c]", "a?c", "*ab", "*aab", "a[bc]*[xyz]", "h*llo", "[a-c][d-f]", "*[^x]", "x*x*x",
	}
	for _, name := range []string{"a", "b", "-", "]", "^", "\\", "*", "ab", "abc", "aab", "aaab", "a-c", "acx", "hello", "hllo", "be", "xxx", "xaxbx", "a\\", "ax", "[a"} {
		c.Do("FLUSHALL")
		c.Do("SET", name, "v")
		for _, p := range patterns {
			want := c.Do("KEYS", p) != "*0\r\n"
			if got := Match(p, name); got != want || Match(p, []byte(name)) != want {
				t.Errorf("%q and %q: got %v, Redis says %v", p, name, got, want)
			}
		}
	}
	if Match("*", "") || !Match("", "") { // stringmatchlen never looks at a star then
		t.Error("nothing matches a star")
	}
}
