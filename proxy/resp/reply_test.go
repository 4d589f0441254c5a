package resp

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
)

// complete replies, each one whole.
var replies = []string{
	"+OK\r\n", "+\r\n", "-ERR unknown command\r\n", ":0\r\n", ":-42\r\n", ":9223372036854775807\r\n",
	"+a\nb\rc\r\r\n", "+\n\r\n",
	"$0\r\n\r\n", "$5\r\nhello\r\n", "$6\r\n\r\n\r\n\r\n\r\n", "$-1\r\n", "$120\r\n" + strings.Repeat("v", 120) + "\r\n",
	"*0\r\n", "*-1\r\n", "*2\r\n$1\r\na\r\n$1\r\nb\r\n", "*3\r\n:1\r\n$-1\r\n*-1\r\n",
	"*2\r\n*2\r\n:1\r\n:2\r\n*1\r\n*0\r\n",
	"*12\r\n" + strings.Repeat("$3\r\nabc\r\n", 12),
	"_\r\n", "#t\r\n", "#f\r\n", ",1.5\r\n", ",inf\r\n", "(3492890328409238509324850943850943825024385\r\n",
	"!5\r\nERR x\r\n", "=7\r\ntxt:abc\r\n",
	"%0\r\n", "%2\r\n+a\r\n:1\r\n+b\r\n%1\r\n+c\r\n#t\r\n", "~2\r\n+a\r\n+b\r\n",
	">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nkey\r\n", ">2\r\n$10\r\ninvalidate\r\n_\r\n", ">0\r\n",
	"|1\r\n+ttl\r\n:3600\r\n$1\r\nv\r\n", "|0\r\n+OK\r\n", "|1\r\n+a\r\n*1\r\n:1\r\n|1\r\n+b\r\n:2\r\n+OK\r\n",
	"*2\r\n|1\r\n+k\r\n+v\r\n:1\r\n:2\r\n", "%1\r\n|1\r\n+k\r\n+v\r\n:1\r\n|1\r\n+k\r\n+v\r\n:2\r\n",
}

var malformedReplies = []string{
	"x", "\r\n", " +OK\r\n", "?\r\n", "HTTP/1.1 400 Bad Request\r\n",
	"$\r\n", "$-2\r\n", "$+1\r\n", "$01\r\n", "$1 \r\n", "$?\r\n", "*?\r\n", "%?\r\n", "~?\r\n", ">?\r\n",
	"*-2\r\n", "%-1\r\n", "~-1\r\n", ">-1\r\n", "|-1\r\n", "!-1\r\n", "=-1\r\n",
	"$3\rxabc\r\n", "*1\rx:1\r\n",
	"$9223372036854775807\r\n", "*9223372036854775807\r\n", "%9223372036854775807\r\n", "%4611686018427387904\r\n", "$99999999999999999999\r\n",
	"*4611686018427387902\r\n*4611686018427387902\r\n*4611686018427387902\r\n",
	"$1\r\nxy\r\n", "$1\r\nx\n\n", "$1\r\nx\r\r", "$0\r\nOK\r\n", "*1\r\n$1\r\nxyz", "*1\r\nx",
	"$" + strings.Repeat("1", 30), "$" + strings.Repeat("0", 21) + "\r", ";4\r\nabcd\r\n",
}

// scan feeds data to a ReplyScanner in pieces that end at the given cuts and
// returns the offset at which the first reply ends; 0 if it does not.
func scan(t testing.TB, data []byte, cuts ...int) (n int, err error) {
	t.Helper()
	var s ReplyScanner
	pos := 0
	for _, end := range append(cuts, len(data)) {
		n, done, err := s.Scan(bytes.Clone(data[pos:end]))
		if err != nil {
			return 0, err
		}
		pos += n
		if done {
			if s != (ReplyScanner{}) {
				t.Fatalf("ReplyScanner not at the start after a reply: %+v", s)
			}
			return pos, nil
		}
		if s.Started() != (pos > 0) {
			t.Fatalf("Started is %v after %d bytes of %q", s.Started(), pos, data)
		}
		if end-pos >= maxHeader {
			t.Fatalf("Scan left %d bytes of %q", end-pos, data[:end])
		}
	}
	return 0, nil
}

func TestReplyScanner(t *testing.T) {
	for _, in := range replies {
		t.Run(strconv.Quote(in), func(t *testing.T) {
			data := []byte(in + "+NEXT\r\n")
			check := func(cuts ...int) {
				t.Helper()
				if n, err := scan(t, data, cuts...); n != len(in) || err != nil {
					t.Fatalf("cut at %v: %d, %v; want %d", cuts, n, err, len(in))
				}
			}
			check()
			check(everyByte(len(data))...)
			for cut := range data {
				check(cut)
				if cut < len(in) {
					if n, err := scan(t, data[:cut]); n != 0 || err != nil {
						t.Fatalf("%q: %d, %v; want incomplete", data[:cut], n, err)
					}
				}
			}
		})
	}
}

func TestReplyScannerRefuses(t *testing.T) {
	for _, in := range malformedReplies {
		t.Run(strconv.Quote(in), func(t *testing.T) {
			for _, cuts := range [][]int{nil, everyByte(len(in)), {len(in) / 2}} {
				if n, err := scan(t, []byte(in), cuts...); !errors.Is(err, ErrMalformed) {
					t.Errorf("cut at %v: %d, %v; want ErrMalformed", cuts, n, err)
				}
			}
			if _, n, err := Parse([]byte(in)); n != 0 || err == nil && !strings.HasPrefix(in, "*4611686018427387902") {
				t.Errorf("Parse: %d, %v; want ErrMalformed", n, err)
			}
			if n := Len([]byte(in)); n != 0 {
				t.Errorf("Len is %d", n)
			}
		})
	}
}

func TestReplyScannerDepth(t *testing.T) {
	const depth = 1_000_000
	in := []byte(strings.Repeat("*1\r\n", depth) + ":1\r\n")
	if n, err := scan(t, in); n != len(in) || err != nil {
		t.Errorf("%d, %v; want %d", n, err, len(in))
	}
	if _, n, err := Parse(in); n != 0 || !errors.Is(err, ErrMalformed) {
		t.Errorf("Parse: %d, %v; want ErrMalformed", n, err)
	}
	in = in[(depth-maxDepth)*len("*1\r\n"):]
	if _, n, err := Parse(in); n != len(in) || err != nil {
		t.Errorf("Parse: %d, %v; want %d", n, err, len(in))
	}
}

func TestLen(t *testing.T) {
	slow := map[string]bool{} // replies left to the scanner
	for _, in := range []string{
		"+a\nb\rc\r\r\n", "+\n\r\n",
		"*2\r\n*2\r\n:1\r\n:2\r\n*1\r\n*0\r\n", "%2\r\n+a\r\n:1\r\n+b\r\n%1\r\n+c\r\n#t\r\n",
		">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nkey\r\n",
		"|1\r\n+ttl\r\n:3600\r\n$1\r\nv\r\n", "|0\r\n+OK\r\n", "|1\r\n+a\r\n*1\r\n:1\r\n|1\r\n+b\r\n:2\r\n+OK\r\n",
		"*2\r\n|1\r\n+k\r\n+v\r\n:1\r\n:2\r\n", "%1\r\n|1\r\n+k\r\n+v\r\n:1\r\n|1\r\n+k\r\n+v\r\n:2\r\n",
	} {
		slow[in] = true
	}
	for _, in := range replies {
		want := len(in)
		if slow[in] {
			want = 0
		}
		if n := Len([]byte(in + "+NEXT\r\n")); n != want {
			t.Errorf("Len(%q) = %d, want %d", in, n, want)
		}
		for cut := range len(in) {
			if n := Len([]byte(in[:cut])); n != 0 {
				t.Errorf("Len(%q) = %d, want 0", in[:cut], n)
			}
		}
	}
	if n := Len([]byte("*100000\r\n" + strings.Repeat(":1\r\n", 100000))); n != 0 {
		t.Errorf("Len of a large array is %d, want 0", n)
	}
}

func TestParse(t *testing.T) {
	for _, in := range replies {
		if _, n, err := Parse([]byte(in + "+NEXT\r\n")); n != len(in) || err != nil {
			t.Errorf("Parse(%q): %d, %v; want %d", in, n, err, len(in))
		}
		for cut := range len(in) {
			if _, n, err := Parse([]byte(in[:cut])); n != 0 || err != nil {
				t.Errorf("Parse(%q): %d, %v; want incomplete", in[:cut], n, err)
			}
		}
	}
	for _, in := range []string{":x\r\n", ":\r\n", "#x\r\n", "#\r\n", "_x\r\n", "*1\r\n:1.5\r\n"} {
		if _, n, err := Parse([]byte(in)); n != 0 || !errors.Is(err, ErrMalformed) {
			t.Errorf("Parse(%q): %d, %v; want ErrMalformed", in, n, err)
		}
	}
}

func TestValue(t *testing.T) {
	in := "*9\r\n:-7\r\n#t\r\n$-1\r\n=7\r\ntxt:abc\r\n!3\r\nERR\r\n-ERR x\r\n|1\r\n+k\r\n:1\r\n$2\r\nab\r\n%1\r\n+k\r\n+v\r\n*0\r\n"
	v, n, err := Parse([]byte(in))
	if n != len(in) || err != nil || v.Kind != '*' || len(v.Elems) != 9 {
		t.Fatalf("Parse: %+v, %d, %v", v, n, err)
	}
	e := v.Elems
	facts := map[string]bool{
		"integer":         e[0].Kind == ':' && e[0].Int == -7 && string(e[0].Str) == "-7",
		"true":            e[1].Int == 1,
		"null":            e[2].Null && e[2].Str == nil && e[2].Text() == nil,
		"verbatim":        string(e[3].Str) == "txt:abc" && string(e[3].Text()) == "abc",
		"bulk error":      e[4].IsError() && string(e[4].Text()) == "ERR",
		"simple error":    e[5].IsError() && string(e[5].Text()) == "ERR x",
		"attributes":      len(e[6].Attrs) == 2 && e[6].Attrs[1].Int == 1,
		"with attributes": e[6].Kind == '$' && string(e[6].Text()) == "ab" && !e[6].IsError(),
		"map":             e[7].Kind == '%' && len(e[7].Elems) == 2,
		"empty array":     e[8].Elems != nil && !e[8].Null,
	}
	for fact, ok := range facts {
		if !ok {
			t.Errorf("%s: got %+v", fact, e)
		}
	}
}

func TestReadHeader(t *testing.T) {
	tests := []struct {
		in   string
		kind byte
		n    int64
		size int
	}{
		{"", 0, 0, 0},
		{"*2\r\n$1", '*', 2, 4},
		{"$123\r\nx", '$', 123, 6},
		{"$-1\r\n", '$', -1, 5},
		{":-9223372036854775808\r\n", ':', math.MinInt64, 23},
		{">2\r\n", '>', 2, 4},
		{"%10\r\n", '%', 10, 5},
		{"*2\r", '*', 0, 0},
		{"*2", '*', 0, 0},
		{"*2\rx", '*', 0, 0},
		{"*x\r\n", '*', 0, 0},
		{"+OK\r\n", '+', 0, 0},
		{"x1\r\n", 'x', 0, 0},
	}
	for _, tt := range tests {
		kind, n, size := ReadHeader([]byte(tt.in))
		if kind != tt.kind || n != tt.n || size != tt.size {
			t.Errorf("ReadHeader(%q) = %q, %d, %d; want %q, %d, %d", tt.in, kind, n, size, tt.kind, tt.n, tt.size)
		}
	}
}

func TestReadBulk(t *testing.T) {
	tests := []struct {
		in   string
		body string
		null bool
		size int
	}{
		{in: "$3\r\nkey\r\n$1", body: "key", size: 9},
		{in: "$0\r\n\r\n", size: 6},
		{in: "$-1\r\n", null: true, size: 5},
		{in: "_\r\n", null: true, size: 3},
		{in: "$3\r\nkey\r", null: true},
		{in: "$3\r\n", null: true},
		{in: "*1\r\n$1\r\na\r\n", null: true},
		{in: "+OK\r\n", null: true},
		{in: "", null: true},
	}
	for _, tt := range tests {
		body, size := ReadBulk([]byte(tt.in))
		if string(body) != tt.body || (body == nil) != tt.null || size != tt.size {
			t.Errorf("ReadBulk(%q) = %q, %d; want %q (null %v), %d", tt.in, body, size, tt.body, tt.null, tt.size)
		}
	}
}

// An invalidation push is read without building a tree.
func TestReadInvalidation(t *testing.T) {
	b := []byte(">2\r\n$10\r\ninvalidate\r\n*2\r\n$1\r\na\r\n$3\r\nkey\r\n")
	var keys []string
	read := func() {
		keys = keys[:0]
		rest := b
		kind, n, size := ReadHeader(rest)
		if kind != '>' || n != 2 {
			t.Fatalf("header %q %d", kind, n)
		}
		rest = rest[size:]
		name, size := ReadBulk(rest)
		if string(name) != "invalidate" {
			t.Fatalf("name %q", name)
		}
		rest = rest[size:]
		_, n, size = ReadHeader(rest)
		rest = rest[size:]
		for range n {
			key, size := ReadBulk(rest)
			rest = rest[size:]
			if len(key) == 0 {
				t.Fatal("no key")
			}
			if string(key) == "key" {
				keys = append(keys, "key")
			} else {
				keys = append(keys, "a")
			}
		}
		if len(rest) != 0 {
			t.Fatalf("%q is left", rest)
		}
	}
	read()
	if strings.Join(keys, " ") != "a key" {
		t.Errorf("keys %q", keys)
	}
	if allocs := testing.AllocsPerRun(100, read); allocs != 0 {
		t.Errorf("%v allocations per run", allocs)
	}
}

func TestRepliesDoNotAllocate(t *testing.T) {
	stream := []byte(strings.Join(replies, ""))
	scanAll := func() {
		var s ReplyScanner
		for pos, end := 0, 0; pos < len(stream); {
			if end <= pos {
				end = pos
			}
			end = min(end+7, len(stream))
			n, _, err := s.Scan(stream[pos:end])
			if err != nil {
				t.Fatal(err)
			}
			pos += n
		}
	}
	if allocs := testing.AllocsPerRun(100, scanAll); allocs != 0 {
		t.Errorf("Scan: %v allocations per run", allocs)
	}
	lengths := func() {
		for pos := 0; pos < len(stream); pos++ {
			Len(stream[pos:])
		}
	}
	if allocs := testing.AllocsPerRun(100, lengths); allocs != 0 {
		t.Errorf("Len: %v allocations per run", allocs)
	}
}
