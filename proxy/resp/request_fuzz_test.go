package resp

import (
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// naive is the reference: it looks at a whole stream at once, one byte at a time.
type naive struct {
	data []byte
	lim  Limits
	pos  int
}

// lineEnd returns the offset of delim, or -1 and whether the line is too long.
func (v *naive) lineEnd(delim byte) (end int, tooLong bool) {
	for i := v.pos; i < len(v.data); i++ {
		if i-v.pos > v.lim.MaxInline {
			return -1, true
		}
		if v.data[i] == delim {
			return i, false
		}
		if v.data[i] == 0 {
			return -1, len(v.data)-v.pos > v.lim.MaxInline
		}
	}
	return -1, len(v.data)-v.pos > v.lim.MaxInline
}

// header returns the number of the header line at pos, or its text if that is no number.
func (v *naive) header() (kind byte, n int64, ok, tooLong, more bool) {
	end, tooLong := v.lineEnd('\r')
	if end < 0 || end+1 == len(v.data) {
		return 0, 0, false, tooLong, true
	}
	kind = v.data[v.pos]
	text := string(v.data[min(v.pos+1, end):end])
	v.pos = end + 2
	n, err := strconv.ParseInt(text, 10, 64)
	return kind, n, err == nil && strconv.FormatInt(n, 10) == text, false, false
}

func (v *naive) all() (o outcome) {
	for v.pos < len(v.data) {
		var args [][]byte
		var more bool
		if v.data[v.pos] == '*' {
			args, more, o.err = v.multibulk()
		} else {
			args, more, o.err = v.inline()
		}
		if more || o.err != "" {
			return o
		}
		o.add(args)
		o.used = v.pos
	}
	return o
}

func (v *naive) multibulk() (args [][]byte, more bool, reason string) {
	_, count, ok, tooLong, more := v.header()
	if tooLong {
		return nil, false, "too big mbulk count string"
	}
	if more {
		return nil, true, ""
	}
	if !ok || count > DefaultMaxArgs || count > v.lim.MaxArgs {
		return nil, false, "invalid multibulk length"
	}
	for range count {
		if v.pos == len(v.data) {
			return nil, true, ""
		}
		kind, n, ok, tooLong, more := v.header()
		switch {
		case tooLong:
			return nil, false, "too big bulk count string"
		case more:
			return nil, true, ""
		case kind == '\r' || kind == '\n':
			return nil, false, "expected '$', got ' '"
		case kind != '$':
			return nil, false, "expected '$', got '" + string([]byte{kind}) + "'"
		case !ok || n < 0 || n > v.lim.MaxBulk:
			return nil, false, "invalid bulk length"
		case int64(len(v.data)-v.pos) < n+2:
			return nil, true, ""
		}
		args = append(args, v.data[v.pos:v.pos+int(n)])
		v.pos += int(n) + 2
	}
	return args, false, ""
}

func (v *naive) inline() (args [][]byte, more bool, reason string) {
	end, tooLong := v.lineEnd('\n')
	if tooLong {
		return nil, false, "too big inline request"
	}
	if end < 0 {
		return nil, true, ""
	}
	line := strings.TrimSuffix(string(v.data[v.pos:end]), "\r")
	v.pos = end + 1
	args, ok := naiveSplit(line)
	if !ok {
		return nil, false, "unbalanced quotes in request"
	}
	return args, false, ""
}

// naiveSplit is a state machine over the characters of line.
func naiveSplit(line string) (args [][]byte, ok bool) {
	const blank, word, double, single, closed = 0, 1, 2, 3, 4
	state := blank
	var cur []byte
	for i := 0; i < len(line); i++ {
		c := line[i]
		rest := line[i:]
		switch state {
		case closed, blank:
			if strings.ContainsRune(" \t\n\v\f\r", rune(c)) {
				state = blank
				continue
			}
			if state == closed {
				return nil, false
			}
			cur = []byte{}
			state = word
			i--
		case word:
			switch c {
			case '"':
				state = double
			case '\'':
				state = single
			case ' ', '\t', '\n', '\r':
				args, state = append(args, cur), blank
			default:
				cur = append(cur, c)
			}
		case double:
			if len(rest) >= 4 && rest[:2] == `\x` {
				if x, err := strconv.ParseUint(rest[2:4], 16, 8); err == nil {
					cur = append(cur, byte(x))
					i += 3
					continue
				}
			}
			if c == '\\' && len(rest) > 1 {
				i++
				if at := strings.IndexByte("nrtba", rest[1]); at >= 0 {
					cur = append(cur, "\n\r\t\b\a"[at])
				} else {
					cur = append(cur, rest[1])
				}
				continue
			}
			if c == '"' {
				args, state = append(args, cur), closed
				continue
			}
			cur = append(cur, c)
		case single:
			switch {
			case strings.HasPrefix(rest, `\'`):
				cur = append(cur, '\'')
				i++
			case c == '\'':
				args, state = append(args, cur), closed
			default:
				cur = append(cur, c)
			}
		}
	}
	if state == word {
		args = append(args, cur)
	}
	return args, state != double && state != single
}

// randomCuts returns ascending offsets within n bytes.
func randomCuts(rnd *rand.Rand, from, n int) (cuts []int) {
	for at := from; ; {
		at += 1 + rnd.IntN(1+rnd.IntN(20))
		if at >= n {
			return cuts
		}
		cuts = append(cuts, at)
	}
}

func FuzzParser(f *testing.F) {
	for i, tt := range requestTests {
		f.Add([]byte(tt.in), uint64(i))
	}
	f.Fuzz(func(t *testing.T, data []byte, seed uint64) {
		lim := Limits{MaxInline: 64, MaxBulk: 300, MaxArgs: 100}
		ref := naive{data: data, lim: lim}
		want := ref.all()
		rnd := rand.New(rand.NewPCG(seed, 1))
		cuts := randomCuts(rnd, 0, len(data))
		if got := feed(t, data, &lim, cuts...); !reflect.DeepEqual(got, want) {
			t.Fatalf("%q cut at %v:\n got %+v\nwant %+v", data, cuts, got, want)
		}
		if len(data) == 0 {
			return
		}
		at := rnd.IntN(len(data))
		cuts = randomCuts(rnd, at, len(data))
		if got, ok := skim(t, data, &lim, at, cuts...); ok && !reflect.DeepEqual(got, want) {
			t.Fatalf("%q skimmed from %d, cut at %v:\n got %+v\nwant %+v", data, at, cuts, got, want)
		}
	})
}

func FuzzInlineSplit(f *testing.F) {
	for _, tt := range requestTests {
		f.Add(tt.in)
	}
	f.Fuzz(func(t *testing.T, line string) {
		line, _, _ = strings.Cut(line, "\x00") // a line with a NUL is never split
		var req Request
		ok := req.split([]byte(line))
		want, wantOK := naiveSplit(line)
		if ok != wantOK {
			t.Fatalf("split(%q) is %v, want %v", line, ok, wantOK)
		}
		var got, ref outcome
		got.add(req.args)
		ref.add(want)
		if ok && !reflect.DeepEqual(got, ref) {
			t.Fatalf("split(%q) = %v, want %v", line, got.reqs, ref.reqs)
		}
	})
}
