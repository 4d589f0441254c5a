package resp

import "math"

// maxNumber is the length of the longest int64 in decimal, its sign included.
const maxNumber = len("-9223372036854775808")

// shortHeader reads the header line every real peer sends: a type byte other than NUL,
// a canonical non-negative number of at most 18 digits, \r, and one more byte. The
// type byte and the last byte are for the caller to judge. size is 0 for any other
// line, complete or not.
func shortHeader(b []byte) (n int64, size int) {
	if len(b) < 4 || b[0] == 0 {
		return 0, 0
	}
	d := b[1] - '0'
	if d > 9 {
		return 0, 0
	}
	if b[2] == '\r' {
		return int64(d), 4
	}
	if d == 0 {
		return 0, 0
	}
	n = int64(d)
	// 18 digits cannot overflow; a 19th may, but then no end is found within b[:20].
	b = b[:min(len(b)-1, 20)]
	for i := 2; i < len(b); i++ {
		d := b[i] - '0'
		if d > 9 {
			if b[i] == '\r' {
				return n, i + 2
			}
			return 0, 0
		}
		n = n*10 + int64(d)
	}
	return 0, 0
}

// parseInt reads a canonical decimal int64 by the rules of Redis' string2ll.
func parseInt(b []byte) (n int64, ok bool) {
	if len(b) == 0 || len(b) > maxNumber {
		return 0, false
	}
	if len(b) == 1 && b[0] == '0' {
		return 0, true
	}
	negative := b[0] == '-'
	if negative {
		b = b[1:]
	}
	if len(b) == 0 || b[0] == '0' {
		return 0, false
	}
	var u uint64 // at most 20 digits: checked below before it can wrap
	for _, c := range b {
		d := uint64(c - '0')
		if d > 9 || u > (math.MaxUint64-d)/10 {
			return 0, false
		}
		u = u*10 + d
	}
	if negative {
		return -int64(u), u <= 1<<63
	}
	return int64(u), u <= math.MaxInt64
}
