package netloop

// The two buffer sizes kept for reuse. Small ones carry nearly all output and
// the partial command at the end of a read; large ones the pipelines of
// sessions that had to stop in the middle.
const (
	smallBuffer = 16 << 10
	largeBuffer = 64 << 10
	// What is kept at most, per loop; what a burst needed beyond that is
	// left to the garbage collector.
	maxFreeSmall = 256
	maxFreeLarge = 64
)

// bufferList is the loop's stock of empty buffers. It is loop-owned.
type bufferList struct {
	small [][]byte
	large [][]byte
}

// get returns an empty buffer with room for at least n bytes.
func (p *bufferList) get(n int) []byte {
	switch {
	case n <= smallBuffer:
		return take(&p.small, smallBuffer)
	case n <= largeBuffer:
		return take(&p.large, largeBuffer)
	}
	return make([]byte, 0, n)
}

func take(list *[][]byte, size int) []byte {
	last := len(*list) - 1
	if last < 0 {
		return make([]byte, 0, size)
	}
	b := (*list)[last]
	(*list)[last] = nil
	*list = (*list)[:last]
	return b
}

// put takes a buffer back. Buffers that append has grown serve on in the class
// they still cover; odd sizes and excess go to the garbage collector.
func (p *bufferList) put(b []byte) {
	switch {
	case cap(b) < smallBuffer || cap(b) > 2*largeBuffer:
	case cap(b) < largeBuffer:
		if len(p.small) < maxFreeSmall {
			p.small = append(p.small, b[:0])
		}
	default:
		if len(p.large) < maxFreeLarge {
			p.large = append(p.large, b[:0])
		}
	}
}
