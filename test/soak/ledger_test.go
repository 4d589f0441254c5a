package soak

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// counter is a key that clients increment, with what they know of it.
type counter struct {
	// static
	key   string
	shard int // where it is when no slot is away from home

	// guarded by the ledger's mu
	acked   int // increments that were acknowledged
	unknown int // increments whose fate nobody knows
	loose   int // of the acknowledged ones, those that Redis may lose
	marks   []mark
}

// mark is the value of a counter that somebody was told of, and when.
type mark struct {
	at    time.Time
	value int
}

// markedFor is for how long marks are of use: no read takes longer, or may be older.
const markedFor = hung + maxLag

// mark notes that the counter has just been seen to have a value.
func (b *ledger) mark(c *counter, value int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if n := len(c.marks); n > 0 && c.marks[n-1].value >= value {
		return
	}
	old := 0
	for old < len(c.marks)-1 && now.Sub(c.marks[old+1].at) > markedFor {
		old++
	}
	c.marks = append(slices.Delete(c.marks, 0, old), mark{now, value})
}

// marked is what the counter was known to have reached at some time.
func (b *ledger) marked(c *counter, at time.Time) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range slices.Backward(c.marks) {
		if !m.at.After(at) {
			return m.value
		}
	}
	return 0
}

// ledger collects what clients have seen.
type ledger struct {
	// static
	counters []*counter // incremented by INCR
	watched  []*counter // incremented by WATCH, GET, MULTI, SET, EXEC
	queues   []*queue

	// guarded by mu
	mu       sync.Mutex
	storm    storm          // what may fail at present
	refusals map[string]int // errors by kind
	replies  int
	faults   []string // of the proxy
}

func newLedger(s stage) *ledger {
	b := &ledger{refusals: map[string]int{}}
	n := s.shards()
	for i := range n * perShard {
		b.counters = append(b.counters, &counter{key: keyOf("count", n, i%n, i/n), shard: i % n})
	}
	for i := range n {
		b.watched = append(b.watched, &counter{key: keyOf("watched", n, i, 0), shard: i})
		b.queues = append(b.queues, newQueue(keyOf("queue", n, i, 0), i))
	}
	return b
}

// storm says for which keys errors are excused, and what else Redis does not keep.
type storm struct {
	shard  int  // of this shard
	on     bool // at all
	all    bool // of every shard
	lossy  bool // what is acknowledged may be lost
	moving bool // replicas may deny keys, which are on their way

	number    int // of the storms up to now
	lastLossy int // number of the last one that was lossy
}

func (s storm) excuses(shard int) bool { return s.on && (s.all || s.shard == shard || shard < 0) }

// loose reports whether Redis may have lost what was acknowledged between before and now.
func loose(before, now storm) bool {
	return before.lossy || now.lossy || now.lastLossy > before.number
}

// maxFaults is how many faults are kept; the first ones tell the story.
const maxFaults = 20

func (b *ledger) fault(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.faults) < maxFaults {
		b.faults = append(b.faults, fmt.Sprintf(format, args...))
	}
}

func (b *ledger) weather() storm {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.storm
}

func (b *ledger) setWeather(s storm) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.number, s.lastLossy = b.storm.number, b.storm.lastLossy
	if s.on {
		s.number++
	}
	if s.lossy {
		s.lastLossy = s.number
	}
	b.storm = s
}

// served counts an answered command. c, unless nil, was incremented by it, loosely or for good.
func (b *ledger) served(c *counter, loose bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.replies++
	if c != nil {
		c.acked++
	}
	if c != nil && loose {
		c.loose++
	}
}

// doubt counts an increment of which nobody knows whether it happened.
func (b *ledger) doubt(c *counter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.unknown++
}

// refused counts an error reply.
func (b *ledger) refused(reply string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.replies++
	b.refusals[kindOf(reply)]++
}

// refusedWith is how many errors of a kind there were.
func (b *ledger) refusedWith(word string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for kind, count := range b.refusals {
		if strings.Contains(kind, word) {
			n += count
		}
	}
	return n
}

func (b *ledger) answered() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.replies
}

// failed reports whether clients have seen what they should not.
func (b *ledger) failed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.faults) > 0
}

func isError(reply string) bool { return reply[0] == '-' }

func fateUnknown(reply string) bool { return isError(reply) && strings.Contains(reply, "fate unknown") }

// kindOf is an error line without what differs from one to the next.
func kindOf(reply string) string {
	words := strings.Fields(reply)
	for i, w := range words {
		if strings.ContainsAny(w, "0123456789") {
			words[i] = "…"
		}
	}
	return strings.Join(words, " ")
}

// audit compares a counter with its value; nobody increments it any more.
func (b *ledger) audit(c *counter, value int) {
	b.mu.Lock()
	acked, unknown, loose := c.acked, c.unknown, c.loose
	b.mu.Unlock()
	if value < acked-loose || value > acked+unknown {
		b.fault("counter %s of shard %d is %d, but %d increments were acknowledged (%d of them while Redis may lose them) and the fate of %d is unknown",
			c.key, c.shard, value, acked, loose, unknown)
	}
}
