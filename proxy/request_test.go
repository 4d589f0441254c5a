package proxy

import "testing"

// TestPoolKeepsWhatIsUsed: buffers of requests that are used give way to no others, and all together stay below their limit.
func TestPoolKeepsWhatIsUsed(t *testing.T) {
	l := new(loop)
	inFlight := func(n, size int) (without int) {
		requests := make([]*request, n)
		for i := range requests {
			r := l.newRequest(nil, nil)
			if requests[i] = r; cap(r.raw) < size {
				without++
				r.raw = make([]byte, size)
			}
		}
		for _, r := range requests {
			l.release(r)
		}
		sum := 0
		for i, r := range l.free {
			if sum += r.holds(); i < l.bare && r.holds() > 0 {
				t.Fatalf("number %d of %d bare ones has %d bytes", i, l.bare, r.holds())
			}
		}
		if sum != l.freeBytes || sum > maxFreeBytes {
			t.Fatalf("the buffers have %d bytes, %d are counted, the limit is %d", sum, l.freeBytes, maxFreeBytes)
		}
		return without
	}
	const size = maxKept / 2
	most := maxFreeBytes / size
	inFlight(8*most, size) // a burst
	inFlight(most, size)
	if n := inFlight(most, size); n > 0 {
		t.Errorf("%d of %d had lost their buffers", n, most)
	}
	if inFlight(2*most, size) == 0 {
		t.Error("all are kept")
	}
}
