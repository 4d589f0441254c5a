package soak

import (
	"fmt"
	"strings"
	"sync"
)

// counter is a key that clients increment, with what they know of it.
type counter struct {
	// static
	key   string
	shard int // where it is when no slot is away from home

	// guarded by the ledger's mu
	acked   int // increments that were acknowledged
	unknown int // increments whose fate nobody knows
}

// ledger collects what clients have seen.
type ledger struct {
	counters []*counter // static

	// guarded by mu
	mu       sync.Mutex
	storm    storm          // what may fail at present
	refusals map[string]int // errors by kind
	replies  int
	faults   []string // of the proxy
}

// storm says for which keys errors are excused.
type storm struct {
	shard int  // of this shard
	on    bool // at all
	all   bool // of every shard
}

func (s storm) excuses(shard int) bool { return s.on && (s.all || s.shard == shard) }

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
	b.storm = s
}

// served counts an acknowledged command; c is nil if it did not count.
func (b *ledger) served(c *counter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.replies++
	if c != nil {
		c.acked++
	}
}

// doubt counts an increment of which nobody knows whether it happened.
func (b *ledger) doubt(c *counter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.unknown++
}

// refused counts an error reply.
func (b *ledger) refused(reply string, c *counter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.replies++
	b.refusals[kindOf(reply)]++
	if c != nil && fateUnknown(reply) {
		c.unknown++
	}
}

func fateUnknown(reply string) bool { return strings.Contains(reply, "fate unknown") }

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
	acked, unknown := c.acked, c.unknown
	b.mu.Unlock()
	if value < acked || value > acked+unknown {
		b.fault("counter %s of shard %d is %d, but %d increments were acknowledged and the fate of %d is unknown", c.key, c.shard, value, acked, unknown)
	}
}
