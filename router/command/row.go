package command

import (
	"fmt"
	"strconv"
	"strings"
)

// A row is the line of one command in commands.tsv, its fields separated by
// tabs:
//
//	name arity flags first last step categories tips since group {keyspec}
//
// Lists are separated by commas, "-" stands for an empty field. The words of a
// key spec are separated by spaces, its notes come last:
//
//	FLAGS unknown|index N|keyword WORD STARTFROM unknown|range LAST STEP LIMIT|keynum IDX FIRST STEP [# notes]
const rowFields = 10

// AppendRow appends the row of c without a line end.
func AppendRow(b []byte, c *Command) []byte {
	b = fmt.Appendf(b, "%s\t%d\t%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s", c.Name, c.Arity, dash(joinBits(uint64(c.Flags), flagNames[:])),
		c.FirstKey, c.LastKey, c.Step, dash(joinBits(uint64(c.Categories), categoryNames[:])),
		dash(strings.Join(c.Tips, ",")), dash(c.Since), dash(c.Group))
	for i := range c.KeySpecs {
		b = append(append(b, '\t'), c.KeySpecs[i].words()...)
	}
	return b
}

// words writes a key spec in the form that parseKeySpec reads.
func (s *KeySpec) words() string {
	w := dash(joinBits(uint64(s.Flags), keyFlagNames[:]))
	switch s.Begin {
	case BeginIndex:
		w += fmt.Sprintf(" index %d", s.Index)
	case BeginKeyword:
		w += fmt.Sprintf(" keyword %s %d", s.Keyword, s.StartFrom)
	default:
		w += " unknown"
	}
	switch s.Find {
	case FindRange:
		w += fmt.Sprintf(" range %d %d %d", s.LastKey, s.KeyStep, s.Limit)
	case FindKeyNum:
		w += fmt.Sprintf(" keynum %d %d %d", s.KeyNumIdx, s.FirstKey, s.KeyStep)
	default:
		w += " unknown"
	}
	if s.Notes != "" {
		w += " # " + s.Notes
	}
	return w
}

// ParseRows reads rows, one per line; empty lines and lines that begin with '#'
// are comments.
func ParseRows(text string) ([]Command, error) {
	var cmds []Command
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		c, err := parseRow(line)
		if err != nil {
			return nil, fmt.Errorf("cannot parse row %q: %w", line, err)
		}
		cmds = append(cmds, c)
	}
	return cmds, nil
}

func parseRow(line string) (c Command, err error) {
	f := strings.Split(line, "\t")
	if len(f) < rowFields {
		return c, fmt.Errorf("%d fields instead of %d", len(f), rowFields)
	}
	c.Name, c.Since, c.Group = f[0], undash(f[8]), undash(f[9])
	if err = parseInts([]string{f[1], f[3], f[4], f[5]}, &c.Arity, &c.FirstKey, &c.LastKey, &c.Step); err != nil {
		return c, err
	}
	c.Flags = Flags(splitBits(f[2], flagNames[:]))
	c.Categories = Categories(splitBits(f[6], categoryNames[:]))
	if tips := undash(f[7]); tips != "" {
		c.Tips = strings.Split(tips, ",")
	}
	for _, words := range f[rowFields:] {
		s, err := parseKeySpec(words)
		if err != nil {
			return c, fmt.Errorf("key spec %q: %w", words, err)
		}
		c.KeySpecs = append(c.KeySpecs, s)
	}
	return c, nil
}

func parseKeySpec(words string) (s KeySpec, err error) {
	words, s.Notes, _ = strings.Cut(words, " # ")
	w := strings.Split(words, " ")
	// take returns the next n words, empty ones if there are fewer: they fail
	// as numbers or as kinds.
	take := func(n int) []string {
		for len(w) < n {
			w = append(w, "")
		}
		taken := w[:n]
		w = w[n:]
		return taken
	}
	s.Flags = KeyFlags(splitBits(take(1)[0], keyFlagNames[:]))
	switch kind := take(1)[0]; kind {
	case "unknown":
	case "index":
		s.Begin = BeginIndex
		err = parseInts(take(1), &s.Index)
	case "keyword":
		s.Begin = BeginKeyword
		s.Keyword = take(1)[0]
		err = parseInts(take(1), &s.StartFrom)
	default:
		return s, fmt.Errorf("unknown begin_search %q", kind)
	}
	if err != nil {
		return s, err
	}
	switch kind := take(1)[0]; kind {
	case "unknown":
	case "range":
		s.Find = FindRange
		err = parseInts(take(3), &s.LastKey, &s.KeyStep, &s.Limit)
	case "keynum":
		s.Find = FindKeyNum
		err = parseInts(take(3), &s.KeyNumIdx, &s.FirstKey, &s.KeyStep)
	default:
		return s, fmt.Errorf("unknown find_keys %q", kind)
	}
	if err == nil && len(w) > 0 {
		err = fmt.Errorf("%d words too many", len(w))
	}
	return s, err
}

func parseInts(words []string, into ...*int) (err error) {
	for i, p := range into {
		if *p, err = strconv.Atoi(words[i]); err != nil {
			return err
		}
	}
	return nil
}

// joinBits lists the names of the set bits, in bit order. Bits without a name
// are left out.
func joinBits(set uint64, names []string) string {
	var b []byte
	for i, name := range names {
		if set>>i&1 == 0 {
			continue
		}
		if b != nil {
			b = append(b, ',')
		}
		b = append(b, name...)
	}
	return string(b)
}

// splitBits is the inverse of joinBits; names it does not know are ignored.
func splitBits(list string, names []string) uint64 {
	var set uint64
	for word := range strings.SplitSeq(list, ",") {
		set |= bitOf(word, names)
	}
	return set
}

func bitOf(word string, names []string) uint64 {
	for i, name := range names {
		if name == word {
			return 1 << i
		}
	}
	return 0
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func undash(s string) string {
	if s == "-" {
		return ""
	}
	return s
}
