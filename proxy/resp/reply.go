package resp

import (
	"bytes"
	"errors"
	"fmt"
	"math"
)

// ErrMalformed is wrapped by every error about replies: the peer does not speak
// RESP, or the stream is out of step. Its connection must be closed.
var ErrMalformed = errors.New("malformed reply")

func errKind(c byte) error { return fmt.Errorf("%w: unknown type %q", ErrMalformed, c) }
func errHeader(b []byte) error {
	return fmt.Errorf("%w: bad length in %q", ErrMalformed, b[:min(len(b), maxHeader)])
}

var errNoCRLF = fmt.Errorf("%w: no CRLF after a bulk body", ErrMalformed)

// maxHeader is the longest header line: type, number, CRLF.
const maxHeader = 1 + maxNumber + 2

// form is how the bytes after a type byte are framed.
type form uint8

const (
	unknown   form = iota
	line           // up to CRLF
	bulk           // a length, CRLF, that many bytes, CRLF
	aggregate      // a count, CRLF, that many replies
	pairs          // a count, CRLF, twice that many replies
)

func formOf(kind byte) form {
	switch kind {
	case '+', '-', ':', '_', '#', ',', '(':
		return line
	case '$', '!', '=':
		return bulk
	case '*', '~', '>':
		return aggregate
	case '%', '|':
		return pairs
	}
	return unknown
}

// readLength reads the length line of a bulk, an aggregate or pairs at the start
// of b. size is 0 while the line is incomplete. n is -1 for a null, otherwise from
// 0 to the largest number that can be doubled, or have 2 added, without overflow.
func readLength(b []byte) (n int64, size int, err error) {
	n, size = shortHeader(b)
	if size == 0 {
		end := bytes.IndexByte(b[:min(len(b), maxHeader-1)], '\r')
		if end < 0 && len(b) < maxHeader-1 || end == len(b)-1 {
			return 0, 0, nil
		}
		var ok bool
		if end > 0 {
			n, ok = parseInt(b[1:end])
		}
		null := n == -1 && (b[0] == '$' || b[0] == '*')
		if !ok || n < 0 && !null || n > math.MaxInt64/2-1 {
			return 0, 0, errHeader(b)
		}
		size = end + 2
	}
	if b[size-1] != '\n' {
		return 0, 0, errHeader(b)
	}
	return n, size, nil
}

// ReplyScanner finds where replies end in a byte stream and keeps none of it. It
// needs no stack for nested replies, a count of the replies still to come is
// enough, so depth costs nothing. The zero value is at the start of a reply.
type ReplyScanner struct {
	left   int64 // replies to come until the outermost one ends, the current one included; 0 between replies
	body   int64 // bytes of the current bulk to come, CRLF included
	inLine bool  // within a simple line
	cr     bool  // inLine, and the last byte was \r
}

// Started reports whether some bytes of the current reply have been consumed.
func (s *ReplyScanner) Started() bool { return s.left > 0 }

// Scan returns how many leading bytes of b belong to the current reply and
// whether it ends there. Bodies and simple lines are consumed as they come; n is
// less than len(b) without done only when b ends within a length line: give those
// bytes again, with more. err wraps [ErrMalformed].
func (s *ReplyScanner) Scan(b []byte) (n int, done bool, err error) {
	for n < len(b) {
		rest := b[n:]
		var size int
		switch {
		case s.body > 0:
			size, err = s.scanBody(rest)
		case s.inLine:
			size = s.scanLine(rest)
		default:
			size, err = s.scanStart(rest)
		}
		if err != nil {
			return n, false, err
		}
		if size == 0 {
			return n, false, nil
		}
		n += size
		if s.left == 0 {
			return n, true, nil
		}
	}
	return n, false, nil
}

// scanStart consumes what precedes the content of a reply: its type or its length line.
func (s *ReplyScanner) scanStart(b []byte) (size int, err error) {
	kind := b[0]
	f := formOf(kind)
	switch f {
	case unknown:
		return 0, errKind(kind)
	case line:
		s.left = max(s.left, 1)
		s.inLine = true
		return 1, nil
	}
	n, size, err := readLength(b)
	if size == 0 {
		return 0, err
	}
	s.left = max(s.left, 1)
	switch {
	case n < 0:
		s.left--
		return size, nil
	case f == bulk:
		s.body = n + 2
		return size, nil
	case f == pairs:
		n *= 2
	}
	if kind != '|' { // attributes are not the reply, they precede it
		s.left--
	}
	if n > math.MaxInt64-s.left {
		return 0, errHeader(b)
	}
	s.left += n
	return size, nil
}

// scanBody consumes bytes of a bulk. The CRLF is verified: it is what shows that
// the stream is still in step.
func (s *ReplyScanner) scanBody(b []byte) (size int, err error) {
	size = int(min(s.body, int64(len(b))))
	s.body -= int64(size)
	switch s.body {
	case 0:
		s.left--
		if b[size-1] != '\n' || size > 1 && b[size-2] != '\r' {
			return 0, errNoCRLF
		}
	case 1:
		if b[size-1] != '\r' {
			return 0, errNoCRLF
		}
	}
	return size, nil
}

// scanLine consumes bytes of a simple line. Only CRLF ends it; a lone \r or \n is
// content.
func (s *ReplyScanner) scanLine(b []byte) (size int) {
	for size < len(b) {
		i := bytes.IndexByte(b[size:], '\n')
		if i < 0 {
			break
		}
		ended := i > 0 && b[size+i-1] == '\r' || i == 0 && s.cr
		size += i + 1
		s.cr = false
		if ended {
			s.inLine = false
			s.left--
			return size
		}
	}
	s.cr = b[len(b)-1] == '\r'
	return len(b)
}

// maxFlat is the largest aggregate that Len looks into: beyond it the scan it
// would waste on an incomplete reply is no longer small.
const maxFlat = 1024

// Len returns the length of the complete reply at the start of b. It is 0 for a
// reply that is incomplete, malformed, nested, or too large for one glance; a
// [ReplyScanner] then tells which.
func Len(b []byte) int {
	if size := flatLen(b); size > 0 {
		return size
	}
	count, size := shortHeader(b)
	if size == 0 || b[size-1] != '\n' {
		return 0
	}
	switch b[0] {
	case '*', '~', '>':
	case '%':
		count *= 2
	default:
		return 0
	}
	if count > maxFlat {
		return 0
	}
	for range count {
		n := flatLen(b[size:])
		if n == 0 {
			return 0
		}
		size += n
	}
	return size
}

// flatLen is Len for replies that contain no replies.
func flatLen(b []byte) int {
	if len(b) < 3 {
		return 0
	}
	switch b[0] {
	case '$', '!', '=':
		n, size := shortHeader(b)
		if size == 0 {
			return nullLen(b)
		}
		end := int64(size) + n + 2
		if b[size-1] != '\n' || end > int64(len(b)) || b[end-2] != '\r' || b[end-1] != '\n' {
			return 0
		}
		return int(end)
	case '*':
		return nullLen(b)
	case '+', '-', ':', '_', '#', ',', '(':
		if i := bytes.IndexByte(b, '\n'); i > 0 && b[i-1] == '\r' {
			return i + 1
		}
	}
	return 0
}

// nullLen is the length of a RESP2 null or null array at the start of b, else 0.
func nullLen(b []byte) int {
	if len(b) >= 5 && string(b[1:5]) == "-1\r\n" && (b[0] == '$' || b[0] == '*') {
		return 5
	}
	return 0
}
