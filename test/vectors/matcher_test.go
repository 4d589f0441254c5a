package vectors

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cosky-proxy/lua"
)

func text(t *testing.T, script string) string {
	t.Helper()
	s := lua.ByName(script)
	if s == nil {
		t.Fatalf("no script %q", script)
	}
	return s.Text
}

func words(texts ...string) value {
	v := value{kind: list}
	for _, s := range texts {
		v.elems = append(v.elems, value{kind: textual, text: s})
	}
	return v
}

// A player that accepts everything would make every other test here worthless.
func TestMatch(t *testing.T) {
	m := matcher{start: time.Unix(1000, 0), now: time.Unix(1010, 0)}
	str := func(s string) value { return value{kind: textual, text: s} }
	num := func(n int64) value { return value{kind: integer, num: n} }
	for _, c := range []struct {
		want string // JSON
		got  value
		ok   bool
	}{
		{`null`, value{}, true},
		{`null`, str(""), false},
		{`"a"`, str("a"), true},
		{`"a"`, str("b"), false},
		{`"1"`, num(1), false},
		{`1`, num(1), true},
		{`1`, num(2), false},
		{`1`, str("1"), false},
		{`[]`, value{kind: list}, true},
		{`[]`, value{}, false},
		{`["a","b"]`, words("a", "b"), true},
		{`["a","b"]`, words("b", "a"), false},
		{`["a"]`, words("a", "a"), false},
		{`{"$set":["a","b"]}`, words("b", "a"), true},
		{`{"$set":["a","b"]}`, words("b", "b"), false},
		{`{"$set":["a"]}`, words("a", "b"), false},
		{`{"$hash":{"a":"1","b":"2"}}`, words("b", "2", "a", "1"), true},
		{`{"$hash":{"a":"1","b":"2"}}`, words("b", "1", "a", "2"), false},
		{`{"$hash":{"a":"1"}}`, words("b", "1"), false},
		{`{"$hash":{"a":"1"}}`, words("a", "1", "b", "2"), false},
		{`{"$hash":{"a":"1","b":"2"},"$fields":["a","b"]}`, words("a", "1", "b", "2"), true},
		{`{"$hash":{"a":"1","b":"2"},"$fields":["a","b"]}`, words("b", "2", "a", "1"), false},
		{`{"$hash":{"a":"1"}}`, words("a", "1", "a"), false},
		{`{"$time":true}`, str("1005"), true},
		{`{"$time":true}`, str("997"), false},
		{`{"$time":true}`, str("1013"), false},
		{`{"$time":true}`, str("soon"), false},
		{`{"$now_plus":60}`, str("1072"), true},
		{`{"$now_plus":60}`, str("1073"), false},
		{`{"$now_plus":60}`, str("1067"), false},
		{`{"$now_plus":60,"$int":true}`, num(1070), true},
		{`{"$now_plus":60,"$int":true}`, str("1070"), false},
		{`{"$b64":"/w=="}`, str("\xff"), true},
		{`{"$b64":"/w=="}`, str("/w=="), false},
		{`{"error":"ERR"}`, value{kind: failure, text: "ERR no"}, true},
		{`{"error":"ERR"}`, value{kind: failure, text: "ERROR no"}, false},
		{`{"error":"ERR"}`, str("ERR no"), false},
	} {
		d := json.NewDecoder(strings.NewReader(c.want))
		d.UseNumber()
		var want any
		if err := d.Decode(&want); err != nil {
			t.Fatal(err)
		}
		if err := m.match(want, c.got); (err == nil) != c.ok {
			t.Errorf("match(%s, %v) = %v, want ok = %v", c.want, c.got, err, c.ok)
		}
	}
}

func TestMatchFinal(t *testing.T) {
	m := matcher{now: time.UnixMilli(1_000_000)}
	hash := Final{Type: "hash", Value: map[string]any{"a": "1"}, TTL: "none"}
	brief := hash
	brief.TTL, brief.TTLMin = "<=60", 57
	zset := Final{Type: "zset", Value: []any{[]any{"a", json.Number("1")}, []any{"b", json.Number("2")}}, TTL: "none"}
	for _, c := range []struct {
		what string
		want Final
		got  content
		ok   bool
	}{
		{"equal", hash, content{"hash", words("a", "1"), -1}, true},
		{"other value", hash, content{"hash", words("a", "2"), -1}, false},
		{"other type", hash, content{"list", words("a", "1"), -1}, false},
		{"it expires", hash, content{"hash", words("a", "1"), 1_060_000}, false},
		{"in time", brief, content{"hash", words("a", "1"), 1_060_000}, true},
		{"too late", brief, content{"hash", words("a", "1"), 1_062_001}, false},
		{"too early", brief, content{"hash", words("a", "1"), 1_054_999}, false},
		{"never", brief, content{"hash", words("a", "1"), -1}, false},
		{"scores", zset, content{"zset", words("a", "1", "b", "2"), -1}, true},
		{"other scores", zset, content{"zset", words("a", "1", "b", "3"), -1}, false},
		{"other member", zset, content{"zset", words("a", "1", "c", "2"), -1}, false},
		{"a member too few", zset, content{"zset", words("a", "1"), -1}, false},
	} {
		if err := m.matchFinal(c.want, c.got); (err == nil) != c.ok {
			t.Errorf("%s: %v, want ok = %v", c.what, err, c.ok)
		}
	}
}

func TestChanges(t *testing.T) {
	before := map[string]content{
		"same":  {"hash", words("a", "1", "b", "2"), -1},
		"list":  {"list", words("a", "b"), -1},
		"ttl":   {"set", words("a"), 5000},
		"both":  {"set", words("a"), 5000},
		"gone":  {"string", value{kind: textual, text: "x"}, -1},
		"other": {"string", value{kind: textual, text: "x"}, -1},
	}
	after := map[string]content{
		"same":  {"hash", words("b", "2", "a", "1"), -1},
		"list":  {"list", words("b", "a"), -1},
		"ttl":   {"set", words("a"), 6000},
		"both":  {"set", words("b"), -1},
		"new":   {"set", words("a"), -1},
		"other": {"string", value{kind: textual, text: "y"}, -1},
	}
	got := changes(before, after)
	want := map[string]string{"list": "value", "ttl": "ttl", "both": "value+ttl", "gone": "deleted", "new": "created", "other": "value"}
	if len(got) != len(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for k, w := range want {
		if got[k] != w {
			t.Errorf("%s: got %q, want %q", k, got[k], w)
		}
	}
}

func TestLoad(t *testing.T) {
	all, err := Load("testdata/cosky-vectors.jsonl")
	if err != nil || len(all) != 111 {
		t.Errorf("%d scenarios, error %v; want 111", len(all), err)
	}
	ids := make(map[string]bool)
	for _, s := range append(all, Failing(t)...) {
		if ids[s.ID] || len(s.Steps) == 0 {
			t.Errorf("%q is there twice or has no steps", s.ID)
		}
		ids[s.ID] = true
	}
	if _, err := Load("testdata/missing.jsonl"); err == nil {
		t.Error("no error for a file that is not there")
	}
	broken := filepath.Join(t.TempDir(), "broken.jsonl")
	if err := os.WriteFile(broken, []byte("{}\n{\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(broken); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("got error %v, want one about line 2", err)
	}
}
