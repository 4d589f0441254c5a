package vectors

import (
	"bufio"
	"bytes"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

//go:embed testdata/*.jsonl
var testdata embed.FS

// Scenario is one recording. Values whose type is any are as JSON has them, with
// the placeholders that matcher.go explains.
type Scenario struct {
	ID, Title string
	Tags      []string
	Steps     []Step
	State     map[string]Final // every key that exists at the end
}

// Step is a script call, a command or a pause, and what follows from it.
type Step struct {
	Script     string
	Keys, Args []any
	Cmd        []any
	SleepMS    int `json:"sleep_ms"`

	Reply     any
	Published any               // [[channel, payload], …] or {"$set": …}
	Changed   map[string]string // key: created, deleted, value, ttl or value+ttl
}

// Final is a key at the end of a scenario.
type Final struct {
	Type   string
	Value  any
	TTL    string // "none" or "<=n" in seconds
	TTLMin int    `json:"ttl_min"` // seconds
}

// Recorded returns the scenarios recorded from CoSky's own scripts: those of this
// package, or of the file that the environment variable COSKY_VECTORS names.
func Recorded(t testing.TB) []Scenario {
	t.Helper()
	if path := os.Getenv("COSKY_VECTORS"); path != "" {
		s, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	return embedded(t, "testdata/cosky-vectors.jsonl")
}

// Failing returns the scenarios in which script calls fail half-way.
func Failing(t testing.TB) []Scenario {
	t.Helper()
	return embedded(t, "testdata/script-errors.jsonl")
}

func embedded(t testing.TB, name string) []Scenario {
	t.Helper()
	f, err := testdata.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := read(f)
	if err != nil {
		t.Fatalf("cannot read %q: %v", name, err)
	}
	return s
}

// Load reads a file of scenarios, one JSON object per line.
func Load(path string) ([]Scenario, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s, err := read(f)
	if err != nil {
		return nil, fmt.Errorf("cannot read %q: %w", path, err)
	}
	return s, nil
}

func read(r io.Reader) ([]Scenario, error) {
	var all []Scenario
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n++ {
		var s Scenario
		d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		d.UseNumber()
		if err := d.Decode(&s); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		all = append(all, s)
	}
	return all, lines.Err()
}

// Tagged reports whether the keys of every script call (the namespace, mostly) have one
// and the same hash tag. Only then all that a call touches is sure to share a slot of a cluster.
func (s Scenario) Tagged() bool {
	for _, step := range s.Steps {
		for _, key := range step.Keys {
			if tag := hashTag(plain(key)); tag == "" || tag != hashTag(plain(step.Keys[0])) {
				return false
			}
		}
	}
	return true
}

// hashTag returns what is hashed instead of key, "" if that is the whole key.
func hashTag(key string) string {
	_, after, _ := strings.Cut(key, "{")
	tag, _, found := strings.Cut(after, "}")
	if !found {
		return ""
	}
	return tag
}

// plain returns a JSON string, or the bytes that {"$b64": …} stands for.
func plain(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case map[string]any:
		if s, ok := v["$b64"].(string); ok {
			if b, err := base64.StdEncoding.DecodeString(s); err == nil {
				return string(b)
			}
		}
	}
	panic(fmt.Sprintf("BUG: %v in a scenario is no string", v))
}

// arguments are those to send at now.
func arguments(vs []any, now time.Time) []string {
	out := make([]string, len(vs))
	for i, v := range vs {
		if plus, ok := nowPlus(v); ok {
			out[i] = strconv.FormatInt(now.Unix()+plus, 10)
			continue
		}
		out[i] = plain(v)
	}
	return out
}

func nowPlus(v any) (int64, bool) {
	m, _ := v.(map[string]any)
	n, ok := m["$now_plus"].(json.Number)
	if !ok {
		return 0, false
	}
	plus, err := n.Int64()
	return plus, err == nil
}
