package nearcache

import (
	"testing"

	"cosky-proxy/proxy/resp"
)

// FuzzShape: whatever is accepted has two forms, each one whole reply, and the RESP2
// form is the same reply again.
func FuzzShape(f *testing.F) {
	for _, reply := range []string{
		"*0\r\n", "%1\r\n$1\r\na\r\n$1\r\nb\r\n", "~1\r\n$1\r\na\r\n", "*2\r\n_\r\n,2\r\n", "*1\r\n*2\r\n$1\r\na\r\n,2\r\n", "*2\r\n$1\r\na\r\n$1\r\n2\r\n", "*-1\r\n", "$-1\r\n", ":1\r\n", "+x\r\n", "$3\r\na\nb\r\n",
	} {
		f.Add(reply)
	}
	f.Fuzz(func(t *testing.T, reply string) {
		if !oneReply([]byte(reply)) { // a lane delivers whole replies only
			return
		}
		q := &Question{Key: []byte("k")}
		for shape := Plain; shape <= Rows; shape++ {
			e, err := NewEntry(q, shape, []byte(reply), 1)
			if err != nil {
				continue
			}
			two, three := e.AppendReply(nil, false), e.AppendReply(nil, true)
			if (shape == Map || shape == Set) && reply[0] == '*' { // what is inside is not looked at
				continue
			}
			if !oneReply(two) || !oneReply(three) {
				t.Fatalf("shape %d, %q: not one reply: %q, %q", shape, reply, two, three)
			}
			again, err := NewEntry(q, shape, two, 1)
			if err != nil || string(again.AppendReply(nil, false)) != string(two) || string(again.AppendReply(nil, true)) != string(three) {
				t.Fatalf("shape %d, %q: %q and %q do not come again: %v", shape, reply, two, three, err)
			}
		}
	})
}

func oneReply(b []byte) bool {
	var s resp.ReplyScanner
	n, done, err := s.Scan(b)
	return done && n == len(b) && err == nil
}
