package stats

import (
	"math/bits"
	"time"
)

// HistogramBuckets is the number of latency buckets. Bucket i counts durations of
// at most 1 µs << i (and more than the bucket before it); the last one counts all
// that are longer than the second to last, 4.19 s.
const HistogramBuckets = 24

// Histogram counts durations in buckets that double in width, so that one
// observation is a bit scan and two additions.
type Histogram struct {
	Buckets [HistogramBuckets]uint64 // observations per bucket, not cumulative
	Sum     uint64                   // nanoseconds, all observations together
}

// Observe counts one duration of ns nanoseconds. A negative one counts as zero.
func (h *Histogram) Observe(ns int64) {
	if ns <= 0 {
		h.Buckets[0]++
		return
	}
	i := bits.Len64(uint64(ns-1) / 1000)
	h.Buckets[min(i, HistogramBuckets-1)]++
	h.Sum += uint64(ns)
}

// Count is the number of observations.
func (h *Histogram) Count() uint64 {
	var n uint64
	for _, b := range h.Buckets {
		n += b
	}
	return n
}

// UpperBound is the longest duration that bucket i counts; the last bucket has
// none and reports ok == false.
func UpperBound(i int) (d time.Duration, ok bool) {
	if i >= HistogramBuckets-1 {
		return 0, false
	}
	return time.Microsecond << i, true
}

func (h *Histogram) add(o *Histogram) {
	for i, b := range o.Buckets {
		h.Buckets[i] += b
	}
	h.Sum += o.Sum
}
