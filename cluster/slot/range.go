package slot

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Range is the slots First to Last, both included.
type Range struct{ First, Last uint16 }

// All returns the range of all slots.
func All() Range { return Range{First: 0, Last: Count - 1} }

// Len is the number of slots in r.
func (r Range) Len() int { return int(r.Last) - int(r.First) + 1 }

// String writes r as CLUSTER NODES does: "7" or "0-5460".
func (r Range) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// ParseRange is the inverse of String.
func ParseRange(s string) (Range, error) {
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	if errA != nil || errB != nil || a > b || b >= Count {
		return Range{}, fmt.Errorf("cannot parse slot range %q", s)
	}
	return Range{First: uint16(a), Last: uint16(b)}, nil
}

// Normalize sorts ranges and joins what touches or overlaps, in place, so that
// equal sets of slots are equal slices.
func Normalize(ranges []Range) []Range {
	slices.SortFunc(ranges, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	joined := ranges[:0]
	for _, r := range ranges {
		if n := len(joined); n > 0 && int(r.First) <= int(joined[n-1].Last)+1 {
			joined[n-1].Last = max(joined[n-1].Last, r.Last)
			continue
		}
		joined = append(joined, r)
	}
	return joined
}
