package resp

import (
	"math"
	"testing"
)

func TestAppend(t *testing.T) {
	tests := []struct {
		got  []byte
		want string
	}{
		{AppendOK(nil), OK},
		{AppendNull(nil), NullBulk},
		{AppendNull3(nil), Null},
		{AppendString(nil, "a\r\nb"), "+a  b\r\n"},
		{AppendError(nil, "ERR a\nb"), "-ERR a b\r\n"},
		{AppendInt(nil, 0), Zero},
		{AppendInt(nil, 1), One},
		{AppendInt(nil, math.MinInt64), ":-9223372036854775808\r\n"},
		{AppendBulk(nil, nil), EmptyBulk},
		{AppendBulk(nil, []byte("a\r\n")), "$3\r\na\r\n\r\n"},
		{AppendBulkString(nil, "abc"), "$3\r\nabc\r\n"},
		{AppendArray(nil, 0), EmptyArray},
		{AppendArray(nil, -1), NullArray},
		{AppendArray(nil, 12), "*12\r\n"},
		{AppendMap(nil, 2), "%2\r\n"},
		{AppendSet(nil, 3), "~3\r\n"},
		{AppendPush(nil, 2), ">2\r\n"},
		{AppendBool(nil, true), "#t\r\n"},
		{AppendBool(nil, false), "#f\r\n"},
		{AppendDouble(nil, 1.5), ",1.5\r\n"},
		{AppendDouble(nil, 10), ",10\r\n"},
		{AppendDouble(nil, math.Inf(1)), ",inf\r\n"},
		{AppendDouble(nil, math.Inf(-1)), ",-inf\r\n"},
		{AppendDouble(nil, math.NaN()), ",nan\r\n"},
		{AppendVerbatim(nil, "txt", []byte("abc")), "=7\r\ntxt:abc\r\n"},
		{AppendCommand(nil, "GET", "k"), "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"},
		{AppendCommandBytes([]byte("x"), [][]byte{[]byte("PING")}), "x*1\r\n$4\r\nPING\r\n"},
	}
	for _, tt := range tests {
		if string(tt.got) != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
}

func TestVerbatimFormatHasThreeLetters(t *testing.T) {
	mustPanic(t, func() { AppendVerbatim(nil, "text", nil) })
}

func TestConstantsAreReplies(t *testing.T) {
	for _, s := range []string{OK, Pong, Queued, Reset, Zero, One, EmptyBulk, EmptyArray, NullBulk, NullArray, Null} {
		if n := Len([]byte(s)); n != len(s) {
			t.Errorf("Len(%q) = %d", s, n)
		}
	}
}

func TestAppendDoesNotAllocate(t *testing.T) {
	b := make([]byte, 0, 1024)
	body := []byte("value")
	args := [][]byte{[]byte("SET"), []byte("k"), body}
	write := func() {
		b := AppendCommandBytes(b, args)
		b = AppendCommand(b, "GET", "key")
		b = AppendBulk(AppendMap(b, 1), body)
		b = AppendVerbatim(AppendDouble(b, 1.25), "txt", body)
		AppendError(AppendInt(b, 1<<40), "ERR no")
	}
	if allocs := testing.AllocsPerRun(100, write); allocs != 0 {
		t.Errorf("%v allocations per run", allocs)
	}
}
