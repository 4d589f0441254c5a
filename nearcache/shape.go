package nearcache

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
)

// Shape says how the replies of a command differ between the protocol versions. Each
// form can be told from the other; an entry has both, whichever was fetched.
type Shape uint8

// The shapes.
const (
	Plain  Shape = iota // integers, strings and arrays of them, the same but for nulls: $-1 and _
	Map                 // *2n and %n, then 2n strings
	Set                 // *n and ~n, then n strings
	Scores              // like Plain, but strings are scores, and doubles in RESP3: ZSCORE, ZMSCORE
	Pairs               // WITHSCORES: *2n of members and scores; *n of *2, a member and a double
	Rows                // like Plain, but a null stands for an array: *-1 in RESP2 (XRANGE with COUNT 0)
)

var errShape = errors.New("the reply is not of the shape its command returns")

// encode returns what an Entry stores of reply, which is of either version: the
// first head3 bytes are of RESP3 only, those up to head of RESP2 only, the rest is in
// both. room is what the caller will append.
func (s Shape) encode(reply []byte, room int) (wire []byte, head3, head int, err error) {
	switch s {
	case Map, Set:
		return s.encodeAggregate(reply, room)
	case Plain, Rows:
		if same, ok := sameInBoth(reply); !ok {
			return nil, 0, 0, errShape
		} else if same {
			return append(roomFor(len(reply)+room), reply...), 0, 0, nil
		}
	}
	t := translator{shape: s, from3: !isRESP2(reply, s)}
	both := make([]byte, 0, 3*len(reply)+room)
	var ok3, ok2 bool
	both, ok3 = t.append(both, reply, true)
	head3 = len(both)
	both, ok2 = t.append(both, reply, false)
	if !ok3 || !ok2 {
		return nil, 0, 0, errShape
	}
	return append(roomFor(len(both)+room), both...), head3, len(both), nil
}

// encodeAggregate does so for replies that differ in their first line only.
func (s Shape) encodeAggregate(reply []byte, room int) (wire []byte, head3, head int, err error) {
	count, size := header(reply)
	if size == 0 {
		return nil, 0, 0, errShape
	}
	mark3 := byte('~')
	if s == Map {
		mark3 = '%'
		if reply[0] == mark3 {
			count *= 2
		} else if count%2 != 0 {
			return nil, 0, 0, errShape
		}
	}
	if reply[0] != '*' && reply[0] != mark3 {
		return nil, 0, 0, errShape
	}
	count3 := count
	if s == Map {
		count3 /= 2
	}
	var heads [64]byte
	b := append(strconv.AppendInt(append(heads[:0], mark3), count3, 10), '\r', '\n')
	head3 = len(b)
	b = append(strconv.AppendInt(append(b, '*'), count, 10), '\r', '\n')
	body := reply[size:]
	wire = roomFor(len(b) + len(body) + room)
	return append(append(wire, b...), body...), head3, len(b), nil
}

// header reads the header line of an aggregate; size is 0 if there is none.
func header(b []byte) (count int64, size int) {
	nl := bytes.IndexByte(b[:min(len(b), 24)], '\n')
	if nl < 3 || b[nl-1] != '\r' {
		return 0, 0
	}
	for _, d := range b[1 : nl-1] {
		if d < '0' || d > '9' || count > 1<<40 {
			return 0, 0
		}
		count = count*10 + int64(d-'0')
	}
	return count, nl + 1
}

// token is one line of a reply, of a string with what follows it.
type token struct {
	kind  byte   // the first byte; '_' for every null
	text  []byte // of a string its content, else what follows kind in the line
	count int64  // of an aggregate
	raw   []byte
}

// next reads the token at the start of b. Its raw is empty when there is none.
func next(b []byte) (t token) {
	nl := bytes.IndexByte(b, '\n')
	if nl < 2 || b[nl-1] != '\r' {
		return token{}
	}
	t = token{kind: b[0], text: b[1 : nl-1], raw: b[:nl+1]}
	switch t.kind {
	case '$', '*':
		if string(t.text) == "-1" {
			t.kind = '_'
			return t
		}
		n, size := header(b)
		if size == 0 {
			return token{}
		}
		if t.count = n; t.kind == '*' {
			return t
		}
		end := int64(size) + n
		if int64(len(b)) < end+2 {
			return token{}
		}
		t.text, t.raw = b[size:end], b[:end+2]
	}
	return t
}

// isScore: of either version, on one line.
func (t *token) isScore() bool {
	return (t.kind == '$' || t.kind == ',') && bytes.IndexByte(t.text, '\n') < 0
}

// sameInBoth reports whether a plain reply is the same in both versions. ok is false
// when it is none.
func sameInBoth(reply []byte) (same, ok bool) {
	same = true
	for len(reply) > 0 {
		t := next(reply)
		switch t.kind {
		case '_':
			same = false
		case '$', '*', ':', '+':
		default:
			return false, false
		}
		ok = true
		reply = reply[len(t.raw):]
	}
	return same, ok
}

// isRESP2 reports whether a reply to a command with scores is in the form of RESP2. One
// that does not show it is the same in both.
func isRESP2(reply []byte, s Shape) bool {
	if s == Pairs {
		t := next(reply)
		return next(reply[len(t.raw):]).kind == '$'
	}
	for len(reply) > 0 {
		t := next(reply)
		switch t.kind {
		case '$':
			return true
		case ',', 0:
			return false
		}
		reply = reply[len(t.raw):]
	}
	return false
}

// translator rewrites a reply.
type translator struct {
	shape Shape
	from3 bool // it is in the form of RESP3
}

// append appends reply in the wanted version; false if it is not of its shape.
func (x translator) append(dst, reply []byte, to3 bool) ([]byte, bool) {
	if x.shape == Pairs {
		return x.appendPairs(dst, reply, to3)
	}
	for len(reply) > 0 {
		t := next(reply)
		reply = reply[len(t.raw):]
		switch {
		case t.kind == '_' && to3:
			dst = append(dst, "_\r\n"...)
		case t.kind == '_' && (t.raw[0] == '*' || x.shape == Rows):
			dst = append(dst, "*-1\r\n"...)
		case t.kind == '_':
			dst = append(dst, "$-1\r\n"...)
		case x.shape == Scores && t.isScore():
			dst = appendScore(dst, t.text, to3)
		case t.kind == '*', x.shape != Scores && (t.kind == '$' || t.kind == ':' || t.kind == '+'):
			dst = append(dst, t.raw...)
		default:
			return dst, false
		}
	}
	return dst, true
}

func (x translator) appendPairs(dst, reply []byte, to3 bool) ([]byte, bool) {
	head := next(reply)
	reply = reply[len(head.raw):]
	pairs := head.count
	if !x.from3 {
		pairs /= 2
	}
	if head.kind != '*' || !x.from3 && head.count%2 != 0 {
		return dst, false
	}
	dst = appendCount(dst, pairs, to3)
	for ; pairs > 0; pairs-- {
		if x.from3 {
			pair := next(reply)
			if pair.kind != '*' || pair.count != 2 {
				return dst, false
			}
			reply = reply[len(pair.raw):]
		}
		member := next(reply)
		score := next(reply[len(member.raw):])
		if member.kind != '$' || !score.isScore() {
			return dst, false
		}
		reply = reply[len(member.raw)+len(score.raw):]
		if to3 {
			dst = append(dst, "*2\r\n"...)
		}
		dst = appendScore(append(dst, member.raw...), score.text, to3)
	}
	return dst, len(reply) == 0
}

func appendCount(dst []byte, pairs int64, to3 bool) []byte {
	if !to3 {
		pairs *= 2
	}
	return append(strconv.AppendInt(append(dst, '*'), pairs, 10), '\r', '\n')
}

// appendScore: Redis formats a double in the same way for both versions.
func appendScore(dst, text []byte, to3 bool) []byte {
	if to3 {
		dst = append(dst, ',')
	} else {
		dst = append(strconv.AppendInt(append(dst, '$'), int64(len(text)), 10), '\r', '\n')
	}
	return append(append(dst, text...), '\r', '\n')
}

// roomFor returns an empty buffer for n bytes whose capacity is all that the allocator
// hands out for them, so that it can be charged for.
func roomFor(n int) []byte { return slices.Grow([]byte(nil), n) }
