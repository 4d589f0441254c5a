package netloop

import (
	"container/heap"
	"time"
)

// tickNanos is the resolution of the loop's timers. epoll_wait counts in
// milliseconds, and nothing in a proxy needs finer deadlines.
const tickNanos = int64(time.Millisecond)

// Timer is one pending [Loop.AfterFunc]. It belongs to the loop's goroutine.
type Timer struct {
	loop *Loop
	f    func()
	when int64 // mono nanoseconds
	pos  int   // place in the heap, -1 when not pending
}

// AfterFunc runs f on the loop d from now. Timers are coarse: one never fires
// early and is at best as exact as 1 ms, which is also the shortest delay.
// Loop goroutine only.
func (l *Loop) AfterFunc(d time.Duration, f func()) *Timer {
	t := &Timer{loop: l, f: f, pos: -1}
	t.Reset(d)
	return t
}

// Stop cancels the timer and reports whether it was still pending.
func (t *Timer) Stop() bool {
	if t.pos < 0 {
		return false
	}
	heap.Remove(&t.loop.timers, t.pos)
	return true
}

// Reset makes the timer fire d from now, whether it is pending, stopped or has
// fired. It allocates nothing, so a session can keep one timer for life.
func (t *Timer) Reset(d time.Duration) {
	t.when = t.loop.now + max(int64(d), tickNanos)
	if t.pos >= 0 {
		heap.Fix(&t.loop.timers, t.pos)
		return
	}
	heap.Push(&t.loop.timers, t)
}

// runTimers fires what is due. It ends even if every timer re-arms itself: a new
// deadline is always later than now, and now stands still meanwhile.
func (l *Loop) runTimers() {
	for len(l.timers) > 0 && l.timers[0].when <= l.now {
		t := heap.Pop(&l.timers).(*Timer)
		l.call("timer", t.f)
	}
}

// timerHeap is a min-heap by deadline.
type timerHeap []*Timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].when < h[j].when }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

func (h *timerHeap) Push(x any) {
	t := x.(*Timer)
	t.pos = len(*h)
	*h = append(*h, t)
}

func (h *timerHeap) Pop() any {
	old := *h
	last := len(old) - 1
	t := old[last]
	old[last] = nil
	t.pos = -1
	*h = old[:last]
	return t
}
