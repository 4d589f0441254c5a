package resp

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"unsafe"
)

// outcome is what became of a request stream: the requests, in order, the error
// that ended it ("" if none), and how many bytes the requests took.
type outcome struct {
	reqs []string // fmt.Sprintf("%q", args)
	err  string
	used int
}

func (o *outcome) add(args [][]byte) { o.reqs = append(o.reqs, fmt.Sprintf("%q", args)) }

// feed parses data as it would arrive in pieces that end at the given cuts.
func feed(t testing.TB, data []byte, lim *Limits, cuts ...int) (o outcome) {
	t.Helper()
	var p Parser
	var req Request
	for _, end := range append(cuts, len(data)) {
		for {
			buf := bytes.Clone(data[o.used:end]) // a new place each time
			n, err := p.Next(buf, lim, &req)
			if err != nil {
				o.err = protocolReason(t, err)
				return o
			}
			if n == 0 {
				break
			}
			if string(req.Raw) != string(buf[:n]) {
				t.Fatalf("Raw is %q, not %q", req.Raw, buf[:n])
			}
			if p != (Parser{}) {
				t.Fatalf("Parser not at the start after a complete request: %+v", p)
			}
			o.add(req.Args)
			o.used += n
		}
	}
	return o
}

func protocolReason(t testing.TB, err error) string {
	t.Helper()
	var pe *ProtocolError
	if !errors.As(err, &pe) {
		t.Fatalf("error %v is a %T, not a *ProtocolError", err, err)
	}
	return pe.Reason
}

func args(s ...string) string {
	b := make([][]byte, len(s))
	for i := range s {
		b[i] = []byte(s[i])
	}
	return fmt.Sprintf("%q", b)
}

func long(n int) string { return strings.Repeat("a", n) }

var requestTests = []struct {
	name string
	in   string
	lim  *Limits
	want []string
	err  string
}{
	{name: "set", in: "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\nvv\r\n", want: []string{args("SET", "k", "vv")}},
	{name: "pipeline", in: "*1\r\n$4\r\nPING\r\nPING\r\n*1\r\n$4\r\nPING\r\n", want: []string{args("PING"), args("PING"), args("PING")}},
	{name: "empty argument", in: "*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", want: []string{args("ECHO", "")}},
	{name: "binary argument", in: "*2\r\n$4\r\nECHO\r\n$5\r\n\r\n\x00*$\r\n", want: []string{args("ECHO", "\r\n\x00*$")}},
	{name: "long argument", in: "*2\r\n$4\r\nECHO\r\n$300\r\n" + long(300) + "\r\n", want: []string{args("ECHO", long(300))}},
	{name: "count of two digits", in: "*12\r\n" + strings.Repeat("$1\r\nx\r\n", 12), want: []string{args("x", "x", "x", "x", "x", "x", "x", "x", "x", "x", "x", "x")}},
	{name: "any byte after \\r", in: "*1\rX$4\rYPINGZZ*1\r\x00$4\r\rPING\x00\x00", want: []string{args("PING"), args("PING")}},

	{name: "count 0", in: "*0\r\n*1\r\n$4\r\nPING\r\n", want: []string{args(), args("PING")}},
	{name: "count -1", in: "*-1\r\nPING\r\n", want: []string{args(), args("PING")}},
	{name: "count -5", in: "*-5\r\n", want: []string{args()}},
	{name: "smallest count", in: "*-9223372036854775808\r\n", want: []string{args()}},
	{name: "count below int64", in: "*-9223372036854775809\r\n", err: "invalid multibulk length"},
	{name: "huge count", in: "*9000000000000000000\r\n", err: "invalid multibulk length"},
	{name: "count above int64", in: "*18446744073709551616\r\n", err: "invalid multibulk length"},
	{name: "count above INT_MAX", in: "*2147483648\r\n", err: "invalid multibulk length"},
	{name: "count INT_MAX", in: "*2147483647\r\n$1\r\nx\r\n"},
	{name: "count 2000000000", in: "*2000000000\r\n"},
	{name: "count empty", in: "*\r\n", err: "invalid multibulk length"},
	{name: "count plus", in: "*+1\r\n", err: "invalid multibulk length"},
	{name: "count leading zero", in: "*01\r\n", err: "invalid multibulk length"},
	{name: "count minus zero", in: "*-0\r\n", err: "invalid multibulk length"},
	{name: "count minus", in: "*-\r\n", err: "invalid multibulk length"},
	{name: "count space", in: "*1 \r\n", err: "invalid multibulk length"},
	{name: "count with \\n only", in: "*1\n$4\r\nPING\r\n", err: "invalid multibulk length"},
	{name: "count letters", in: "*blah\r\n", err: "invalid multibulk length"},
	{name: "count over limit", in: "*4\r\n", lim: &Limits{MaxArgs: 3}, err: "invalid multibulk length"},

	{name: "bulk -1", in: "*1\r\n$-1\r\n", err: "invalid bulk length"},
	{name: "bulk -5", in: "*2\r\n$3\r\nGET\r\n$-5\r\n", err: "invalid bulk length"},
	{name: "bulk letters", in: "*2\r\n$3\r\nGET\r\n$blah\r\n", err: "invalid bulk length"},
	{name: "bulk empty", in: "*1\r\n$\r\n", err: "invalid bulk length"},
	{name: "bulk leading zero", in: "*1\r\n$04\r\nPING\r\n", err: "invalid bulk length"},
	{name: "bulk 512 MiB", in: "*1\r\n$536870912\r\nx"},
	{name: "bulk over 512 MiB", in: "*1\r\n$536870913\r\n", err: "invalid bulk length"},
	{name: "bulk 2000000000", in: "*1\r\n$2000000000\r\n", err: "invalid bulk length"},
	{name: "bulk over limit", in: "*1\r\n$5\r\n", lim: &Limits{MaxBulk: 4}, err: "invalid bulk length"},
	{name: "bulk largest limit", in: "*1\r\n$9223372036854775805\r\nx", lim: &Limits{MaxBulk: math.MaxInt64}},
	{name: "no dollar", in: "*3\r\n$3\r\nSET\r\n$1\r\nx\r\nfooz\r\n", err: "expected '$', got 'f'"},
	{name: "no dollar, line not ended", in: "*1\r\nfoo"},
	{name: "empty line for a bulk", in: "*1\r\n\r\n", err: "expected '$', got ' '"},
	{name: "line feed for a bulk", in: "*1\r\n\n\r\n", err: "expected '$', got ' '"},
	{name: "high byte for a bulk", in: "*1\r\n\xff\r\n", err: "expected '$', got '\xff'"},
	{name: "array in array", in: "*1\r\n*1\r\n", err: "expected '$', got '*'"},
	{name: "body longer than announced", in: "*2\r\n$3\r\nGETX\r\n$1\r\nk\r\n", err: "expected '$', got ' '"},

	{name: "unauthenticated ok", in: "*10\r\n$16384\r\nx", lim: &Unauthenticated},
	{name: "unauthenticated count", in: "*11\r\n", lim: &Unauthenticated, err: "unauthenticated multibulk length"},
	{name: "unauthenticated huge count", in: "*2147483648\r\n", lim: &Unauthenticated, err: "invalid multibulk length"},
	{name: "unauthenticated bulk", in: "*1\r\n$16385\r\n", lim: &Unauthenticated, err: "unauthenticated bulk length"},
	{name: "unauthenticated huge bulk", in: "*1\r\n$536870913\r\n", lim: &Unauthenticated, err: "invalid bulk length"},

	{name: "unauthenticated inline has no limit", in: "a b c d e f g h i j k l\n", lim: &Unauthenticated, want: []string{args("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l")}},

	{name: "inline", in: "SET k  v\r\n", want: []string{args("SET", "k", "v")}},
	{name: "inline \\n", in: "PING\nPING\n", want: []string{args("PING"), args("PING")}},
	{name: "empty lines", in: "\r\n\n  \t\r\nPING\r\n", want: []string{args(), args(), args(), args("PING")}},
	{name: "inline spaces", in: " \v\f\tGET\rk\r\r\n", want: []string{args("GET", "k")}},
	{name: "inline \\v within a word", in: "a\vb\fc\n", want: []string{args("a\vb\fc")}},
	{name: "inline incomplete", in: "PING"},
	{name: "inline double quotes", in: `SET k "a b\x41\n\r\t\b\a\"\\\q\x4g"` + "\r\n", want: []string{args("SET", "k", "a bA\n\r\t\b\a\"\\qx4g")}},
	{name: "inline single quotes", in: `SET k 'a b\'c\n"'` + "\r\n", want: []string{args("SET", "k", `a b'c\n"`)}},
	{name: "inline empty quotes", in: `SET "" ''` + "\n", want: []string{args("SET", "", "")}},
	{name: "inline quote within a word", in: `SET ke"y 1" v` + "\n", want: []string{args("SET", "key 1", "v")}},
	{name: "inline quote then \\v", in: "\"a\"\v\"b\"\f'c'\n", want: []string{args("a", "b", "c")}},
	{name: "inline high hex", in: `"\xff\xFF\x0a"` + "\n", want: []string{args("\xff\xff\n")}},
	{name: "inline quotes open", in: "SET k \"v\r\n", err: "unbalanced quotes in request"},
	{name: "inline quotes open after escape", in: `SET k "v\"` + "\n", err: "unbalanced quotes in request"},
	{name: "inline quotes open after backslash", in: `SET k "v\` + "\n", err: "unbalanced quotes in request"},
	{name: "inline single quotes open", in: "SET k 'v\r\n", err: "unbalanced quotes in request"},
	{name: "inline text after quote", in: `SET k "v"w` + "\n", err: "unbalanced quotes in request"},
	{name: "inline quote after quote", in: `SET k "v"'w'` + "\n", err: "unbalanced quotes in request"},
	{name: "inline NUL hides the end", in: "PI\x00NG\r\nPING\r\n"},
	{name: "inline binary", in: "\xde\xad\xbe\xef\x01\x02\x03\x04\x05\x06"},
	{name: "inline longest", in: long(64) + "\n", lim: &Limits{MaxInline: 64}, want: []string{args(long(64))}},
	{name: "inline too long", in: long(65) + "\n", lim: &Limits{MaxInline: 64}, err: "too big inline request"},
	{name: "inline too long, no end", in: long(65), lim: &Limits{MaxInline: 64}, err: "too big inline request"},
	{name: "inline NUL too long", in: "\x00" + long(31) + "\n" + long(32), lim: &Limits{MaxInline: 64}, err: "too big inline request"},

	{name: "count line longest", in: "*" + long(63), lim: &Limits{MaxInline: 64}},
	{name: "count line too long", in: "*" + long(64), lim: &Limits{MaxInline: 64}, err: "too big mbulk count string"},
	{name: "count line long", in: "*" + long(63) + "\r\n", lim: &Limits{MaxInline: 64}, err: "invalid multibulk length"},
	{name: "count line NUL", in: "*\x001\r\n" + long(64), lim: &Limits{MaxInline: 64}, err: "too big mbulk count string"},
	{name: "count line NUL waits", in: "*1\x00\r\n$4\r\nPING\r\n"},
	{name: "bulk line too long", in: "*1\r\n$" + long(64), lim: &Limits{MaxInline: 64}, err: "too big bulk count string"},
	{name: "bulk line long", in: "*1\r\n$" + long(63) + "\r\n", lim: &Limits{MaxInline: 64}, err: "invalid bulk length"},
	{name: "bulk line NUL", in: "*1\r\n$\x001\r\n" + long(64), lim: &Limits{MaxInline: 64}, err: "too big bulk count string"},
	{name: "bulk line NUL before a number", in: "*1\r\n\x000\r\n"},
	{name: "bulk line NUL waits", in: "*1\r\n\x00$4\r\nPING\r\n"},
}

func TestParser(t *testing.T) {
	for _, tt := range requestTests {
		t.Run(tt.name, func(t *testing.T) {
			want := feed(t, []byte(tt.in), tt.lim)
			if !reflect.DeepEqual(want.reqs, tt.want) || want.err != tt.err {
				t.Fatalf("%q\n got %v, error %q\nwant %v, error %q", tt.in, want.reqs, want.err, tt.want, tt.err)
			}
			for cut := range len(tt.in) {
				if got := feed(t, []byte(tt.in), tt.lim, cut); !reflect.DeepEqual(got, want) {
					t.Fatalf("cut at %d: %+v, want %+v", cut, got, want)
				}
			}
			if got := feed(t, []byte(tt.in), tt.lim, everyByte(len(tt.in))...); !reflect.DeepEqual(got, want) {
				t.Fatalf("byte by byte: %+v, want %+v", got, want)
			}
		})
	}
}

func everyByte(n int) []int {
	cuts := make([]int, n)
	for i := range cuts {
		cuts[i] = i
	}
	return cuts
}

// skim parses data with Next up to the first cut, then skims the request that is
// incomplete there in pieces that end at the other cuts. The requests after it are
// parsed again. ok is false when there is nothing to skim at that cut.
func skim(t testing.TB, data []byte, lim *Limits, at int, cuts ...int) (o outcome, ok bool) {
	t.Helper()
	var p Parser
	var req Request
	for {
		n, err := p.Next(data[o.used:at], lim, &req)
		if err != nil || n == 0 && (o.used == at || data[o.used] != '*') {
			return o, false
		}
		if n == 0 {
			break
		}
		o.add(req.Args)
		o.used += n
	}
	p.BeginSkim(bytes.Clone(data[o.used:at]))
	start, pos := o.used, at
	for _, end := range append(cuts, len(data)) {
		for pos < end {
			n, done, err := p.Skim(data[pos:end], lim)
			pos += n
			if err != nil {
				o.err = protocolReason(t, err)
				return o, true
			}
			if !done && pos != end {
				t.Fatalf("Skim left %d bytes of an incomplete request", end-pos)
			}
			if !done {
				continue
			}
			if p != (Parser{}) {
				t.Fatalf("Parser not at the start after Skim: %+v", p)
			}
			o.reqs = append(o.reqs, feed(t, data[start:pos], lim).reqs...)
			rest := feed(t, data[pos:], lim)
			o.reqs = append(o.reqs, rest.reqs...)
			o.err, o.used = rest.err, pos+rest.used
			return o, true
		}
	}
	return o, true
}

func TestSkim(t *testing.T) {
	skimmed := 0
	for _, tt := range requestTests {
		t.Run(tt.name, func(t *testing.T) {
			data := []byte(tt.in)
			want := feed(t, data, tt.lim)
			for at := range data {
				for _, cuts := range [][]int{nil, everyByte(len(data))[at:], {(at + len(data)) / 2}} {
					got, ok := skim(t, data, tt.lim, at, cuts...)
					if !ok {
						continue
					}
					skimmed++
					if !reflect.DeepEqual(got, want) {
						t.Fatalf("skimmed from %d, cuts %v: %+v, want %+v", at, cuts, got, want)
					}
				}
			}
		})
	}
	if skimmed < 1000 {
		t.Fatalf("only %d cases were skimmed", skimmed)
	}
}

func mustPanic(t *testing.T, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	f()
}

func TestBeginSkimRefusesInline(t *testing.T) {
	var p Parser
	mustPanic(t, func() { p.BeginSkim([]byte("PING")) })
	mustPanic(t, func() { p.BeginSkim(nil) })
}

func TestPartial(t *testing.T) {
	const set = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nvalue\r\n"
	tests := []struct {
		in       string
		declared int
		want     string
	}{
		{"SET k", 0, args()},
		{set[:3], 0, args()},
		{set[:4], 3, args()},
		{set[:12], 3, args()},
		{set[:13], 3, args("SET")},
		{set[:20], 3, args("SET", "k")},
		{set[:len(set)-1], 3, args("SET", "k")},
		{"*2000000000\r\n$1\r\nx\r\n", 2000000000, args("x")},
	}
	for _, tt := range tests {
		for _, cut := range []int{0, 1, 5, len(tt.in)} {
			var p Parser
			var req Request
			for _, buf := range []string{tt.in[:min(cut, len(tt.in))], tt.in} {
				if n, err := p.Next([]byte(buf), nil, &req); n != 0 || err != nil {
					t.Fatalf("Next(%q) = %d, %v", buf, n, err)
				}
			}
			declared := p.Partial([]byte(tt.in), &req)
			if got := fmt.Sprintf("%q", req.Args); declared != tt.declared || got != tt.want {
				t.Errorf("Partial(%q) = %d, %s; want %d, %s", tt.in, declared, got, tt.declared, tt.want)
			}
		}
	}
}

// What a request will at least be is known as soon as a header has said so, and never too much.
func TestLeast(t *testing.T) {
	const set = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nvalue\r\n"
	for end := range len(set) {
		var p Parser
		if n, err := p.Next([]byte(set[:end]), nil, new(Request)); n != 0 || err != nil {
			t.Fatalf("Next(%q) = %d, %v", set[:end], n, err)
		}
		least := p.Least()
		if least > int64(len(set)) {
			t.Errorf("after %q: at least %d bytes, but there are %d", set[:end], least, len(set))
		}
		if end >= len(set)-len("value\r\n") && least != int64(len(set)) {
			t.Errorf("after %q: at least %d bytes, want %d", set[:end], least, len(set))
		}
	}
	var inline Parser
	if inline.Next([]byte("GET k"), nil, new(Request)); inline.Least() != 0 {
		t.Errorf("an inline command will have at least %d bytes", inline.Least())
	}
}

func TestProtocolErrorReply(t *testing.T) {
	var p Parser
	var req Request
	_, err := p.Next([]byte("*1\r\nx\r\n"), nil, &req)
	var pe *ProtocolError
	if !errors.As(err, &pe) {
		t.Fatalf("error is %v", err)
	}
	const want = "-ERR Protocol error: expected '$', got 'x'\r\n"
	if got := string(pe.AppendTo(nil)); got != want {
		t.Errorf("reply %q, want %q", got, want)
	}
}

func TestRequestGivesMemoryBack(t *testing.T) {
	var p Parser
	var req Request
	big := AppendCommand(nil, make([]string, maxKeptArgs+1)...)
	if n, err := p.Next(big, nil, &req); n != len(big) || err != nil || len(req.Args) != maxKeptArgs+1 {
		t.Fatalf("Next = %d, %v with %d arguments", n, err, len(req.Args))
	}
	line := []byte(`"` + strings.Repeat(`\x41`, maxKeptScratch+1) + "\"\n")
	if n, err := p.Next(line, &Limits{MaxInline: len(line)}, &req); n != len(line) || err != nil {
		t.Fatalf("Next = %d, %v", n, err)
	}
	if cap(req.args) > maxKeptArgs {
		t.Errorf("still holds %d arguments", cap(req.args))
	}
	if _, err := p.Next([]byte("PING\n"), nil, &req); err != nil {
		t.Fatal(err)
	}
	if cap(req.scratch) > maxKeptScratch {
		t.Errorf("still holds %d bytes of scratch", cap(req.scratch))
	}
}

func TestRequestForgetsBuffers(t *testing.T) {
	var p Parser
	var req Request
	big := AppendCommand(nil, "MSET", "a", "1", "b", "2", "c", "3")
	for _, buf := range [][]byte{big, []byte("PING\n")} {
		if n, err := p.Next(buf, nil, &req); n != len(buf) || err != nil {
			t.Fatalf("Next(%q) = %d, %v", buf, n, err)
		}
	}
	for i, arg := range req.args[:cap(req.args)][1:] {
		if arg != nil {
			t.Errorf("argument %d of an earlier request is still referenced", i+1)
		}
	}
}

func TestParserIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(Parser{}); size > 64 {
		t.Errorf("a Parser takes %d bytes, want at most 64", size)
	}
}

func TestParserDoesNotAllocate(t *testing.T) {
	inputs := map[string][]byte{
		"set":      AppendCommand(nil, "SET", "key", "value"),
		"inline":   []byte("SET key value\r\n"),
		"quoted":   []byte("SET 'key' \"va\\x41lue\"\r\n"),
		"slow":     []byte("*1\r\n$4\r\nPING\r\n*-1\r\n"),
		"mget 200": AppendCommand(nil, append([]string{"MGET"}, strings.Fields(strings.Repeat("key ", 200))...)...),
	}
	for name, in := range inputs {
		t.Run(name, func(t *testing.T) {
			var p Parser
			var req Request
			parse := func() {
				for _, end := range [2]int{len(in) / 2, len(in)} { // the half may hold a request of its own
					for pos := 0; pos < end; {
						n, err := p.Next(in[pos:end], nil, &req)
						if err != nil {
							t.Fatal(err)
						}
						if n == 0 {
							p.Partial(in[pos:end], &req)
							break
						}
						pos += n
					}
				}
			}
			if allocs := testing.AllocsPerRun(100, parse); allocs != 0 {
				t.Errorf("%v allocations per run", allocs)
			}
		})
	}
	t.Run("skim", func(t *testing.T) {
		in := inputs["mget 200"]
		var p Parser
		var req Request
		skim := func() {
			if n, err := p.Next(in[:11], nil, &req); n != 0 || err != nil {
				t.Fatalf("Next = %d, %v", n, err)
			}
			p.BeginSkim(in[:11])
			for pos := 11; pos < len(in); {
				n, _, err := p.Skim(in[pos:min(pos+7, len(in))], nil)
				if err != nil {
					t.Fatal(err)
				}
				pos += n
			}
		}
		if allocs := testing.AllocsPerRun(100, skim); allocs != 0 {
			t.Errorf("%v allocations per run", allocs)
		}
	})
}

// Whatever is announced, memory follows what has arrived.
func TestParserTrustsNoCount(t *testing.T) {
	in := []byte("*2000000000\r\n$1\r\nx\r\n$536870912\r\n")
	var p Parser
	var req Request
	if n, err := p.Next(in, nil, &req); n != 0 || err != nil {
		t.Fatalf("Next = %d, %v", n, err)
	}
	p.Partial(in, &req)
	if cap(req.args) > 64 {
		t.Errorf("room for %d arguments after one", cap(req.args))
	}
}
