package resp

import "math"

// Defaults of Limits, from Redis 7.0.
const (
	DefaultMaxInline = 64 << 10      // PROTO_INLINE_MAX_SIZE
	DefaultMaxBulk   = 512 << 20     // proto-max-bulk-len
	DefaultMaxArgs   = math.MaxInt32 // INT_MAX
)

// Limits of one request stream. A zero field, like a nil *Limits, means the default.
type Limits struct {
	// MaxInline is how many bytes an inline command or a header line may have
	// before its end must be in sight.
	MaxInline int
	// MaxBulk is the longest argument in bytes.
	MaxBulk int64
	// MaxArgs is the largest announced argument count; more than DefaultMaxArgs has no effect.
	MaxArgs int64

	// beforeAuth: exceeding MaxArgs or MaxBulk is blamed on the missing
	// authentication, unless it exceeds the default as well.
	beforeAuth bool
}

// Unauthenticated is what Redis allows a client that still has to authenticate:
// 10 arguments of at most 16384 bytes. It is never modified.
var Unauthenticated = Limits{MaxArgs: 10, MaxBulk: 16384, beforeAuth: true}

func (l *Limits) maxInline() int {
	if l == nil || l.MaxInline == 0 {
		return DefaultMaxInline
	}
	return l.MaxInline
}

// checkArgs judges an announced argument count; ok says whether it is a number at all.
func (l *Limits) checkArgs(n int64, ok bool) error {
	if !ok || n > DefaultMaxArgs {
		return errArgs
	}
	if l == nil || l.MaxArgs == 0 || n <= l.MaxArgs {
		return nil
	}
	if l.beforeAuth {
		return errArgsBeforeAuth
	}
	return errArgs
}

// checkBulk judges an announced argument length; ok says whether it is a number at all.
func (l *Limits) checkBulk(n int64, ok bool) error {
	if !ok || n < 0 {
		return errBulk
	}
	if l == nil || l.MaxBulk == 0 || l.beforeAuth {
		if n > DefaultMaxBulk {
			return errBulk
		}
	}
	if l == nil || l.MaxBulk == 0 || n <= min(l.MaxBulk, math.MaxInt64-2) {
		return nil
	}
	if l.beforeAuth {
		return errBulkBeforeAuth
	}
	return errBulk
}

// ProtocolError says why a request stream cannot be followed any further. The
// client is told so, then its connection is closed.
type ProtocolError struct{ Reason string }

// Error returns the text of the reply, without its "-ERR " prefix.
func (e *ProtocolError) Error() string { return "Protocol error: " + e.Reason }

// AppendTo appends the reply the client gets.
func (e *ProtocolError) AppendTo(b []byte) []byte {
	b = append(b, "-ERR Protocol error: "...)
	b = append(b, e.Reason...)
	return append(b, '\r', '\n')
}

// The reasons of Redis 7.0, networking.c.
var (
	errLongInline     = &ProtocolError{"too big inline request"}
	errQuotes         = &ProtocolError{"unbalanced quotes in request"}
	errLongArgs       = &ProtocolError{"too big mbulk count string"}
	errArgs           = &ProtocolError{"invalid multibulk length"}
	errArgsBeforeAuth = &ProtocolError{"unauthenticated multibulk length"}
	errLongBulk       = &ProtocolError{"too big bulk count string"}
	errBulk           = &ProtocolError{"invalid bulk length"}
	errBulkBeforeAuth = &ProtocolError{"unauthenticated bulk length"}
)

// errNoBulk is the answer to a header that starts with c where an argument is due.
func errNoBulk(c byte) *ProtocolError {
	if c == '\r' || c == '\n' {
		c = ' ' // as Redis: an error reply is one line
	}
	return &ProtocolError{"expected '$', got '" + string([]byte{c}) + "'"}
}
