package vectors

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// content is what a key holds.
type content struct {
	kind     string // as TYPE says
	value    value
	expireAt int64 // Unix milliseconds; -1: never
}

// same reports whether both hold the same data; hashes and sets have no order.
func (c content) same(d content) bool {
	return c.kind == d.kind && slices.Equal(c.items(), d.items())
}

// items lists the value in an order of its own.
func (c content) items() []string {
	items := make([]string, 0, len(c.value.elems))
	switch c.kind {
	case "string":
		return []string{c.value.text}
	case "hash":
		for pair := range slices.Chunk(c.value.elems, 2) {
			items = append(items, fmt.Sprint(pair))
		}
	default:
		for _, e := range c.value.elems {
			items = append(items, e.String())
		}
	}
	if c.kind != "list" && c.kind != "zset" {
		slices.Sort(items)
	}
	return items
}

// readers are the commands that return all of a key, by type.
var readers = map[string][]string{
	"string": {"GET", ""},
	"hash":   {"HGETALL", ""},
	"set":    {"SMEMBERS", ""},
	"list":   {"LRANGE", "", "0", "-1"},
	"zset":   {"ZRANGE", "", "0", "-1", "WITHSCORES"},
}

// snapshot reads all keys of the servers.
func snapshot(servers []*conn) (map[string]content, error) {
	all := make(map[string]content)
	for _, c := range servers {
		keys, err := c.do("KEYS", "*")
		if err != nil {
			return nil, err
		}
		part, err := readKeys(c, keys.elems)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, part)
	}
	return all, nil
}

func readKeys(c *conn, keys []value) (map[string]content, error) {
	var questions [][]string
	for _, k := range keys {
		questions = append(questions, []string{"TYPE", k.text}, []string{"PEXPIRETIME", k.text})
	}
	meta, err := c.pipeline(questions)
	if err != nil {
		return nil, err
	}
	questions = questions[:0]
	for i, k := range keys {
		read, ok := readers[meta[2*i].text]
		if !ok { // it expired meanwhile; what GET says does not matter
			read = readers["string"]
		}
		read = slices.Clone(read)
		read[1] = k.text
		questions = append(questions, read)
	}
	values, err := c.pipeline(questions)
	if err != nil {
		return nil, err
	}
	out := make(map[string]content)
	for i, k := range keys {
		kind, at := meta[2*i].text, meta[2*i+1].num
		if kind == "none" || at == -2 || values[i].kind == null || values[i].kind == list && len(values[i].elems) == 0 {
			continue
		}
		out[k.text] = content{kind, values[i], at}
	}
	return out, nil
}

// changes compares two snapshots, in the words of Step.Changed.
func changes(before, after map[string]content) map[string]string {
	out := make(map[string]string)
	for k, b := range before {
		a, ok := after[k]
		switch value, ttl := !a.same(b), a.expireAt != b.expireAt; {
		case !ok:
			out[k] = "deleted"
		case value && ttl:
			out[k] = "value+ttl"
		case value:
			out[k] = "value"
		case ttl:
			out[k] = "ttl"
		}
	}
	for k := range after {
		if _, ok := before[k]; !ok {
			out[k] = "created"
		}
	}
	return out
}

// matchFinal compares a key with what the scenario says of its end.
func (m matcher) matchFinal(want Final, got content) error {
	if got.kind != want.Type {
		return fmt.Errorf("type %s, want %s", got.kind, want.Type)
	}
	if err := m.matchContent(want, got.value); err != nil {
		return err
	}
	return m.matchTTL(want, got.expireAt)
}

func (m matcher) matchContent(want Final, got value) error {
	switch want.Type {
	case "hash":
		hash, _ := want.Value.(map[string]any)
		return m.matchHash(hash, nil, got)
	case "set":
		set, _ := want.Value.([]any)
		return m.matchSet(set, got)
	case "zset":
		return m.matchScored(want, got)
	}
	return m.match(want.Value, got)
}

// matchScored: members and scores alternate in the reply and are pairs in the scenario.
func (m matcher) matchScored(want Final, got value) error {
	pairs, _ := want.Value.([]any)
	if len(got.elems) != 2*len(pairs) {
		return mismatch(want.Value, got)
	}
	for i, p := range pairs {
		pair, ok := p.([]any)
		if !ok || len(pair) != 2 || plain(pair[0]) != got.elems[2*i].text || fmt.Sprint(pair[1]) != got.elems[2*i+1].text {
			return mismatch(want.Value, got)
		}
	}
	return nil
}

func (m matcher) matchTTL(want Final, expireAt int64) error {
	if want.TTL == "none" {
		if expireAt != -1 {
			return fmt.Errorf("it expires at %d ms, want never", expireAt)
		}
		return nil
	}
	var most int64
	if _, err := fmt.Sscanf(want.TTL, "<=%d", &most); err != nil {
		return fmt.Errorf("cannot read the TTL %q: %w", want.TTL, err)
	}
	left := expireAt - m.now.UnixMilli()
	if expireAt < 0 || left > (most+slack)*1000 || left < int64(want.TTLMin-slack)*1000 {
		return fmt.Errorf("it has %s ms left, want %d to %d s", strconv.FormatInt(left, 10), want.TTLMin, most)
	}
	return nil
}
