package resp

import (
	"bytes"
	"fmt"
	"strconv"
)

// maxDepth bounds the recursion of Parse. Redis itself nests a handful of levels.
const maxDepth = 1000

// Value is a parsed reply. Its slices alias the parsed bytes.
type Value struct {
	Kind  byte    // the type byte: '+', '-', ':', '$', ...
	Null  bool    // a null of any protocol version: $-1, *-1, _
	Str   []byte  // text of a line, body of a bulk (with the "txt:" of a verbatim string)
	Int   int64   // value of an integer; 1 for true
	Elems []Value // elements of an aggregate; of a map alternating keys and values
	Attrs []Value // the attributes that preceded the reply, alternating keys and values
}

// IsError reports whether the reply is an error, simple or bulk.
func (v *Value) IsError() bool { return v.Kind == '-' || v.Kind == '!' }

// Text returns the text of a line or a bulk, without the format of a verbatim string.
func (v *Value) Text() []byte {
	if v.Kind == '=' && len(v.Str) >= 4 && v.Str[3] == ':' {
		return v.Str[4:]
	}
	return v.Str
}

// Parse reads the reply at the start of b and returns the bytes it takes. n is 0
// with a nil error when b ends too early. err wraps [ErrMalformed]; unlike a
// [ReplyScanner], Parse also refuses lines whose content is not of their type and
// replies nested more than 1,000 deep. For control code and tests: it allocates,
// and starts over each time it is called.
func Parse(b []byte) (v Value, n int, err error) {
	return parse(b, 0)
}

func parse(b []byte, depth int) (v Value, n int, err error) {
	if depth > maxDepth {
		return v, 0, fmt.Errorf("%w: nested too deep", ErrMalformed)
	}
	for len(b) > n && b[n] == '|' {
		elems, size, err := parseElems(b[n:], depth)
		if size == 0 {
			return Value{}, 0, err
		}
		v.Attrs = append(v.Attrs, elems...)
		n += size
	}
	if len(b) == n {
		return Value{}, 0, nil
	}
	size := 0
	v.Kind = b[n]
	switch formOf(v.Kind) {
	case unknown:
		err = errKind(v.Kind)
	case line:
		size, err = v.parseLine(b[n:])
	case bulk:
		size, err = v.parseBulk(b[n:])
	default:
		v.Elems, size, err = parseElems(b[n:], depth)
		v.Null = size > 0 && v.Elems == nil
	}
	if size == 0 {
		return Value{}, 0, err
	}
	return v, n + size, nil
}

func (v *Value) parseLine(b []byte) (size int, err error) {
	end := bytes.Index(b, []byte("\r\n"))
	if end < 0 {
		return 0, nil
	}
	v.Str = b[1:end:end]
	ok := true
	switch v.Kind {
	case ':':
		v.Int, err = strconv.ParseInt(string(v.Str), 10, 64)
		ok = err == nil
	case '_':
		v.Null = true
		ok = len(v.Str) == 0
	case '#':
		ok = len(v.Str) == 1 && (v.Str[0] == 't' || v.Str[0] == 'f')
		if ok && v.Str[0] == 't' {
			v.Int = 1
		}
	}
	if !ok {
		return 0, fmt.Errorf("%w: bad value in %q", ErrMalformed, b[:min(end, 64)])
	}
	return end + 2, nil
}

func (v *Value) parseBulk(b []byte) (size int, err error) {
	n, size, err := readLength(b)
	if size == 0 {
		return 0, err
	}
	if n < 0 {
		v.Null = true
		return size, nil
	}
	if int64(len(b)-size)-2 < n {
		return 0, nil
	}
	end := size + int(n)
	if string(b[end:end+2]) != "\r\n" {
		return 0, errNoCRLF
	}
	v.Str = b[size:end:end]
	return end + 2, nil
}

// parseElems reads an aggregate. elems is nil only for a null; nothing is reserved for
// an announced count.
func parseElems(b []byte, depth int) (elems []Value, n int, err error) {
	count, n, err := readLength(b)
	if n == 0 || count < 0 {
		return nil, n, err
	}
	if formOf(b[0]) == pairs {
		count *= 2
	}
	elems = []Value{}
	for range count {
		v, size, err := parse(b[n:], depth+1)
		if size == 0 {
			return nil, 0, err
		}
		elems = append(elems, v)
		n += size
	}
	return elems, n, nil
}

// ReadHeader reads the header line at the start of b: the length of a bulk or an
// aggregate (-1: null), or an integer. size is the length of the line; 0 when it is
// incomplete or is no such line.
func ReadHeader(b []byte) (kind byte, n int64, size int) {
	if len(b) == 0 {
		return 0, 0, 0
	}
	if b[0] != ':' && formOf(b[0]) < bulk {
		return b[0], 0, 0
	}
	if n, size = shortHeader(b); size > 0 && b[size-1] == '\n' {
		return b[0], n, size
	}
	end := bytes.IndexByte(b[:min(len(b), maxHeader)], '\n')
	if end < 2 || b[end-1] != '\r' {
		return b[0], 0, 0
	}
	n, ok := parseInt(b[1 : end-1])
	if !ok {
		return b[0], 0, 0
	}
	return b[0], n, end + 1
}

// ReadBulk reads the bulk string at the start of b, its CRLF included in size. A
// null of either protocol version has a nil body. size is 0 when the bulk is
// incomplete or is something else.
func ReadBulk(b []byte) (body []byte, size int) {
	if len(b) >= 3 && string(b[:3]) == "_\r\n" {
		return nil, 3
	}
	kind, n, size := ReadHeader(b)
	if kind != '$' || size == 0 {
		return nil, 0
	}
	if n < 0 {
		return nil, size
	}
	if int64(len(b)-size)-2 < n {
		return nil, 0
	}
	end := size + int(n)
	return b[size:end:end], end + 2
}
