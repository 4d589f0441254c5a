package resp

import (
	"math/rand/v2"
	"testing"
)

func addReplies(f *testing.F, add func(b []byte, seed uint64)) {
	for i, in := range append(append([]string{}, replies...), malformedReplies...) {
		add([]byte(in), uint64(i))
	}
}

func FuzzReplyScanner(f *testing.F) {
	addReplies(f, func(b []byte, seed uint64) { f.Add(b, seed) })
	f.Fuzz(func(t *testing.T, data []byte, seed uint64) {
		cuts := randomCuts(rand.New(rand.NewPCG(seed, 1)), 0, len(data))
		n, err := scan(t, data, cuts...)
		whole, wholeErr := scan(t, data)
		if n != whole || (err == nil) != (wholeErr == nil) {
			t.Fatalf("%q cut at %v: %d, %v; whole: %d, %v", data, cuts, n, err, whole, wholeErr)
		}
		_, want, wantErr := Parse(data)
		if want > 0 && n != want {
			t.Fatalf("%q: %d, %v; Parse: %d", data, n, err, want)
		}
		// Parse is stricter about the content of lines, so only this way round.
		if n > 0 && want == 0 && wantErr == nil {
			t.Fatalf("%q: %d; Parse wants more", data, n)
		}
	})
}

func FuzzLen(f *testing.F) {
	addReplies(f, func(b []byte, _ uint64) { f.Add(b) })
	f.Fuzz(func(t *testing.T, data []byte) {
		n := Len(data)
		if n == 0 {
			return
		}
		if want, err := scan(t, data); n != want {
			t.Fatalf("Len(%q) = %d; Scan: %d, %v", data, n, want, err)
		}
	})
}
