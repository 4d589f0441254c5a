package command

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// ParseReply reads the reply of COMMAND or COMMAND INFO: containers come
// before their subcommands, unknown commands (null) are left out.
//
// The reply is a tree of []any, string, int64 and nil. A map may be a map[any]any
// (go-redis) or a []any of keys and values in turn (RESP2). Servers older than
// 7.0 publish no key specs, tips and subcommands; for them one key spec is made
// from the legacy triple.
func ParseReply(reply any) ([]Command, error) {
	entries, ok := reply.([]any)
	if !ok {
		return nil, fmt.Errorf("cannot read COMMAND reply: %T is no array", reply)
	}
	var cmds []Command
	for _, e := range entries {
		if e == nil {
			continue
		}
		var err error
		if cmds, err = appendEntry(cmds, e); err != nil {
			return nil, err
		}
	}
	return cmds, nil
}

// Lengths of an entry: since Redis 1.0, 6.0 (ACL categories) and 7.0.
const (
	entryBase       = 6
	entryCategories = 7
	entryFull       = 10
)

func appendEntry(cmds []Command, entry any) ([]Command, error) {
	f, _ := entry.([]any)
	if len(f) < entryBase {
		return nil, fmt.Errorf("cannot read COMMAND entry %v: too short", entry)
	}
	name, _ := f[0].(string)
	if !validName(name) {
		return nil, fmt.Errorf("cannot read COMMAND entry: bad name %q", name)
	}
	c := Command{
		Name:     strings.ToLower(name),
		Arity:    integer(f[1]),
		Flags:    Flags(bitsOf(f[2], flagNames[:])),
		FirstKey: integer(f[3]),
		LastKey:  integer(f[4]),
		Step:     integer(f[5]),
	}
	if len(f) >= entryCategories {
		c.Categories = Categories(bitsOf(f[6], categoryNames[:]))
	}
	if len(f) < entryFull {
		c.KeySpecs, c.legacy = legacySpecs(&c), true
		return append(cmds, c), nil
	}
	c.Tips = stringsOf(f[7])
	specs, _ := f[8].([]any)
	for _, e := range specs {
		s, err := keySpecOf(e)
		if err != nil {
			return nil, fmt.Errorf("cannot read key specs of %q: %w", c.Name, err)
		}
		c.KeySpecs = append(c.KeySpecs, s)
	}
	cmds = append(cmds, c)
	subs, _ := f[9].([]any)
	for _, e := range subs {
		var err error
		if cmds, err = appendEntry(cmds, e); err != nil {
			return nil, err
		}
	}
	return cmds, nil
}

// validName keeps out what would break rows, errors and logs.
func validName(name string) bool {
	for i := range len(name) {
		if name[i] <= ' ' || name[i] >= 0x7f {
			return false
		}
	}
	return name != ""
}

// legacySpecs makes a key spec from the legacy triple.
func legacySpecs(c *Command) []KeySpec {
	if c.FirstKey <= 0 || c.Step <= 0 || c.Flags&MovableKeys != 0 {
		return nil
	}
	s := KeySpec{Flags: KeyRW, Begin: BeginIndex, Index: c.FirstKey, Find: FindRange, LastKey: c.LastKey, KeyStep: c.Step}
	if c.Flags&ReadOnly != 0 {
		s.Flags = KeyRO
	}
	if s.LastKey >= 0 {
		s.LastKey -= c.FirstKey
	}
	return []KeySpec{s}
}

func keySpecOf(v any) (s KeySpec, err error) {
	m, ok := mapOf(v)
	if !ok {
		return s, errors.New("no map")
	}
	s.Notes, _ = m["notes"].(string)
	s.Flags = KeyFlags(bitsOf(m["flags"], keyFlagNames[:]))
	kind, spec := searchOf(m["begin_search"])
	switch kind {
	case "index":
		s.Begin, s.Index = BeginIndex, integer(spec["index"])
	case "keyword":
		s.Begin, s.StartFrom = BeginKeyword, integer(spec["startfrom"])
		s.Keyword, _ = spec["keyword"].(string)
		s.Keyword = strings.ToUpper(s.Keyword)
	}
	kind, spec = searchOf(m["find_keys"])
	switch kind {
	case "range":
		s.Find, s.LastKey, s.KeyStep, s.Limit = FindRange, integer(spec["lastkey"]), integer(spec["keystep"]), integer(spec["limit"])
	case "keynum":
		s.Find, s.KeyNumIdx, s.FirstKey, s.KeyStep = FindKeyNum, integer(spec["keynumidx"]), integer(spec["firstkey"]), integer(spec["keystep"])
	}
	return s, nil
}

// searchOf reads {type, spec} of begin_search and find_keys.
func searchOf(v any) (kind string, spec map[string]any) {
	m, _ := mapOf(v)
	kind, _ = m["type"].(string)
	spec, _ = mapOf(m["spec"])
	return kind, spec
}

func mapOf(v any) (map[string]any, bool) {
	m := map[string]any{}
	switch v := v.(type) {
	case map[any]any:
		for key, value := range v {
			if s, ok := key.(string); ok {
				m[s] = value
			}
		}
	case []any:
		for i := 0; i+1 < len(v); i += 2 {
			if s, ok := v[i].(string); ok {
				m[s] = v[i+1]
			}
		}
	default:
		return nil, false
	}
	return m, true
}

// integer reads a number that fits into 32 bits, else 0: positions are sums of
// such numbers and must not overflow.
func integer(v any) int {
	n, _ := v.(int64)
	if n < math.MinInt32 || n > math.MaxInt32 {
		return 0
	}
	return int(n)
}

func stringsOf(v any) []string {
	list, _ := v.([]any)
	var out []string
	for _, e := range list {
		if s, ok := e.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// bitsOf reads a set of names; ACL categories have an '@' before theirs.
func bitsOf(v any, names []string) uint64 {
	var set uint64
	for _, s := range stringsOf(v) {
		set |= bitOf(strings.TrimPrefix(s, "@"), names)
	}
	return set
}
