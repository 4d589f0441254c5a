package command

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// FuzzKeys feeds any arguments to any command; a line end separates arguments.
func FuzzKeys(f *testing.F) {
	for _, line := range strings.Split(strings.TrimSpace(keyLines), "\n") {
		f.Add([]byte(strings.Join(words(line), "\n")))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		args := bytes.Split(input, []byte("\n"))
		c, text := builtin.Resolve(args)
		if c == nil {
			if text == "" || strings.ContainsAny(text, "\r\n") {
				t.Fatalf("bad error line %q", text)
			}
			return
		}
		pos, text := c.Keys(args, []int{-1})
		keys, textRW := c.KeysRW(args, nil)
		if text != textRW || len(pos) != len(keys)+1 || pos[0] != -1 || text != "" && len(keys) > 0 {
			t.Fatalf("Keys %v, %q; KeysRW %v, %q", pos, text, keys, textRW)
		}
		seen := make([]bool, len(args))
		for i, k := range keys {
			if k.Pos != pos[i+1] || k.Pos < 1 || k.Pos >= len(args) || seen[k.Pos] {
				t.Fatalf("Keys %v, KeysRW %v of %d arguments", pos, keys, len(args))
			}
			seen[k.Pos] = true
			if k.Write && !c.MayWrite() {
				t.Fatalf("%s writes argument %d but is no write", c.Name, k.Pos)
			}
		}
		if channels := c.Channels(args, nil); slices.Max(append(channels, 0)) >= len(args) {
			t.Fatalf("channels %v of %d arguments", channels, len(args))
		}
	})
}

// FuzzKeySpec tries key specs that no server publishes, as a broken module
// might.
func FuzzKeySpec(f *testing.F) {
	f.Add("RW index 1 range -1 2 0", "a\nb\nc")
	f.Add("RW keyword X -1 range -1 1 2", "a\nX\nc")
	f.Add("RO index -5 range 0 1 0", "a\nb")
	f.Add("RO,not_key index -5 range -1 1 0", "a\nb")
	f.Add("RO index 2 keynum 0 1 1", "a\nb\n2\nc\nd")
	f.Add("RO index -5 keynum -2147483648 2147483647 -1", "a\nb\n2\nc\nd")
	f.Fuzz(func(t *testing.T, spec, input string) {
		s, err := parseKeySpec(spec)
		if err != nil || max(len(spec), len(input)) > 1<<12 {
			return
		}
		for _, n := range []int{s.Index, s.StartFrom, s.LastKey, s.Limit, s.KeyNumIdx, s.FirstKey, s.KeyStep} {
			if n != integer(int64(n)) {
				return // ParseReply lets no such number in
			}
		}
		args := bytesOf(strings.Split(input, "\n"))
		c := Command{Name: "x", KeySpecs: []KeySpec{s}}
		c.derive()
		keys, _ := c.KeysRW(args, nil)
		for _, k := range keys {
			if k.Pos < 1 || k.Pos >= len(args) {
				t.Fatalf("%+v: key %d of %d arguments", s, k.Pos, len(args))
			}
		}
		pos, _ := c.Keys(args, nil)
		if pos = c.Channels(args, pos); len(pos) > 0 && (slices.Min(pos) < 1 || slices.Max(pos) >= len(args)) {
			t.Fatalf("%+v: positions %v of %d arguments", s, pos, len(args))
		}
	})
}
