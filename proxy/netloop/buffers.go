package netloop

import "math/bits"

// Buffers come in powers of two. The smallest carry the replies to clients that send one
// command at a time: a turn may answer a thousand of them. Small ones carry most of the other output and the partial
// command at the end of a read, larger ones the pipelines of sessions that had to
// stop in the middle and long replies.
const (
	leastBuffer = 1 << 10
	smallBuffer = 16 << 10
	largeBuffer = 64 << 10
	classes     = 11 // up to 1 MiB

	// maxFree is how many bytes of each class are kept at most, per loop; what a
	// burst needed beyond that is left to the garbage collector.
	maxFree = 2 << 20
)

// bufferList is the loop's stock of empty buffers. It is loop-owned.
type bufferList struct {
	free [classes][][]byte
}

// class is the smallest class whose buffers have room for n bytes; classes or
// more if there is none.
func class(n int) int { return max(bits.Len(uint(n-1))-bits.Len(leastBuffer-1), 0) }

// get returns an empty buffer with room for at least n bytes.
func (p *bufferList) get(n int) []byte {
	k := class(n)
	if k >= classes {
		return make([]byte, 0, n)
	}
	list := &p.free[k]
	last := len(*list) - 1
	if last < 0 {
		return make([]byte, 0, leastBuffer<<k)
	}
	b := (*list)[last]
	(*list)[last] = nil
	*list = (*list)[:last]
	return b
}

// put takes a buffer back. One that append has grown to an odd size serves on in
// the class that it still covers; excess goes to the garbage collector.
func (p *bufferList) put(b []byte) {
	if cap(b) < leastBuffer {
		return
	}
	k := class(cap(b)+1) - 1
	if k >= classes {
		return
	}
	if list := &p.free[k]; len(*list) < maxFree/leastBuffer>>k {
		*list = append(*list, b[:0])
	}
}
