package router

import (
	"fmt"
	"testing"

	"cosky-proxy/cluster/slot"
)

// BenchmarkSplit divides an MGET of ten keys into its shares and writes their requests.
func BenchmarkSplit(b *testing.B) {
	args := [][]byte{[]byte("MGET")}
	for i := range 10 {
		args = append(args, fmt.Appendf(nil, "key:%012d", i))
	}
	sp, parts, out := new(Splitter), new(Parts), []byte(nil)
	b.ReportAllocs()
	for b.Loop() {
		sp.Split(parts, args, 1, slot.Of)
		out = out[:0]
		for i := range parts.Shares {
			out = parts.AppendShare(out, args, 1, i)
		}
	}
}
