package resp

import (
	"math"
	"strconv"

	"github.com/tidwall/redcon"
)

// Frequent replies, ready to be appended.
const (
	OK         = "+OK\r\n"
	Pong       = "+PONG\r\n"
	Queued     = "+QUEUED\r\n"
	Reset      = "+RESET\r\n"
	Zero       = ":0\r\n"
	One        = ":1\r\n"
	EmptyBulk  = "$0\r\n\r\n"
	EmptyArray = "*0\r\n"
	NullBulk   = "$-1\r\n" // RESP2
	NullArray  = "*-1\r\n" // RESP2
	Null       = "_\r\n"   // RESP3
)

// AppendOK appends +OK.
func AppendOK(b []byte) []byte { return redcon.AppendOK(b) }

// AppendNull appends the RESP2 null bulk string.
func AppendNull(b []byte) []byte { return redcon.AppendNull(b) }

// AppendNull3 appends the RESP3 null.
func AppendNull3(b []byte) []byte { return append(b, Null...) }

// AppendString appends a simple string; line breaks in s become spaces.
func AppendString(b []byte, s string) []byte { return redcon.AppendString(b, s) }

// AppendError appends an error whose text starts with its code ("ERR ...", "MOVED ...");
// line breaks in s become spaces.
func AppendError(b []byte, s string) []byte { return redcon.AppendError(b, s) }

// AppendInt appends an integer.
func AppendInt(b []byte, n int64) []byte { return redcon.AppendInt(b, n) }

// AppendBulk appends a bulk string.
func AppendBulk(b, body []byte) []byte {
	b = append(appendHeader(b, '$', len(body)), body...)
	return append(b, '\r', '\n')
}

// AppendBulkString appends a bulk string.
func AppendBulkString(b []byte, body string) []byte {
	b = append(appendHeader(b, '$', len(body)), body...)
	return append(b, '\r', '\n')
}

// AppendArray appends the header of an array; n elements must follow.
func AppendArray(b []byte, n int) []byte { return appendHeader(b, '*', n) }

// AppendMap appends the header of a RESP3 map; n pairs must follow.
func AppendMap(b []byte, n int) []byte { return appendHeader(b, '%', n) }

// AppendSet appends the header of a RESP3 set; n elements must follow.
func AppendSet(b []byte, n int) []byte { return appendHeader(b, '~', n) }

// AppendPush appends the header of a RESP3 push; n elements must follow.
func AppendPush(b []byte, n int) []byte { return appendHeader(b, '>', n) }

// AppendBool appends a RESP3 boolean.
func AppendBool(b []byte, v bool) []byte {
	if v {
		return append(b, "#t\r\n"...)
	}
	return append(b, "#f\r\n"...)
}

// AppendDouble appends a RESP3 double: the shortest text that reads back as f, with
// the spellings inf, -inf and nan.
func AppendDouble(b []byte, f float64) []byte {
	switch {
	case math.IsInf(f, 1):
		return append(b, ",inf\r\n"...)
	case math.IsInf(f, -1):
		return append(b, ",-inf\r\n"...)
	case math.IsNaN(f):
		return append(b, ",nan\r\n"...)
	}
	b = append(b, ',')
	b = strconv.AppendFloat(b, f, 'g', -1, 64)
	return append(b, '\r', '\n')
}

// AppendVerbatim appends a RESP3 verbatim string. format has three letters ("txt", "mkd").
func AppendVerbatim(b []byte, format string, body []byte) []byte {
	if len(format) != 3 {
		panic("BUG: verbatim format " + strconv.Quote(format))
	}
	b = appendHeader(b, '=', len(body)+4)
	b = append(b, format...)
	b = append(b, ':')
	b = append(b, body...)
	return append(b, '\r', '\n')
}

// AppendCommand appends a command in multibulk form.
func AppendCommand(b []byte, args ...string) []byte {
	b = AppendArray(b, len(args))
	for _, arg := range args {
		b = AppendBulkString(b, arg)
	}
	return b
}

// AppendCommandBytes appends a command in multibulk form.
func AppendCommandBytes(b []byte, args [][]byte) []byte {
	b = AppendArray(b, len(args))
	for _, arg := range args {
		b = AppendBulk(b, arg)
	}
	return b
}

// appendHeader writes most lengths, which have one or two digits, in one step.
func appendHeader(b []byte, kind byte, n int) []byte {
	switch {
	case 0 <= n && n < 10:
		return append(b, kind, '0'+byte(n), '\r', '\n')
	case 10 <= n && n < 100:
		return append(b, kind, '0'+byte(n/10), '0'+byte(n%10), '\r', '\n')
	}
	b = append(b, kind)
	b = strconv.AppendInt(b, int64(n), 10)
	return append(b, '\r', '\n')
}
