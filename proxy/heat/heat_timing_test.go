package heat

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// BenchmarkRead is what a read costs, sampled and not, hot keys and ever new ones.
func BenchmarkRead(b *testing.B) {
	keys := make([][]byte, 1<<16)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "item:stock:%08d", i)
	}
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 1)), 1.1, 1, uint64(len(keys)-1))
	order := make([]int, 1<<16)
	for i := range order {
		order[i] = int(zipf.Uint64())
	}
	for _, sample := range []int{1, 8, 32} {
		for name, at := range map[string]func(i int) int{
			"one":  func(int) int { return 0 },
			"zipf": func(i int) int { return order[i&(len(order)-1)] },
			"new":  func(i int) int { return i & (len(keys) - 1) },
		} {
			b.Run(fmt.Sprintf("%s/sample=%d", name, sample), func(b *testing.B) {
				s := New(sample, 10*second, 0)
				for i := 0; b.Loop(); i++ {
					if s.Due() {
						s.Count(keys[at(i)], 0, 1)
					}
				}
			})
		}
	}
}
