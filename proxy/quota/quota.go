// Package quota counts commands against limits: how many per second, and how many at once,
// by client, address, user or namespace.
//
// A [Book] is shared by all event loops. What is counted together is a [Meter]: two atomic
// numbers, so that loops that share one never wait for each other. Finding a meter by name takes
// a read lock; callers keep those that they need again.
package quota

import (
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"cosky-proxy/proxy/glob"
)

// Kind says what a rule counts by.
type Kind uint8

// The kinds.
const (
	Connection Kind = iota // every client connection for itself
	Address                // all connections from one address
	User                   // all that are logged in as one user
	Namespace              // all commands on keys of one namespace
	Kinds
)

func (k Kind) String() string { return [...]string{"connection", "address", "user", "namespace"}[k] }

// Rule limits what it counts by: each name by itself. Of one kind, the first rule that matches
// a name applies to it.
type Rule struct {
	Per      Kind
	Match    string  // names, as a pattern of Redis'; empty: all
	Rate     float64 // commands per second; 0: any number
	Burst    int     // commands at once after a pause; 0: as many as in a second
	InFlight int     // commands that are not answered yet; 0: any number
}

// Verdict is what a meter says to a command.
type Verdict uint8

// The verdicts.
const (
	Granted Verdict = iota
	TooFast         // the rate is used up
	TooMany         // too many are in flight
)

// Book is the rules and what they have counted.
type Book struct {
	// static
	rules []*rule
	most  int // names per rule

	// atomic
	sweptAt atomic.Int64 // mono
}

type rule struct {
	// static
	Rule
	number   int   // position among the rules
	interval int64 // nanoseconds that a command uses up
	span     int64 // nanoseconds that may be used up in advance
	rest     *Meter

	// guarded by mu
	mu     sync.RWMutex
	meters map[string]*Meter
}

// New makes a book that remembers up to most names for each rule; whoever comes when
// they are used up shares one meter with the like.
func New(rules []Rule, most int) *Book {
	b := &Book{most: most}
	for i, r := range rules {
		if r.Burst == 0 {
			r.Burst = max(int(r.Rate), 1)
		}
		ru := &rule{Rule: r, number: i, meters: make(map[string]*Meter)}
		if r.Rate > 0 {
			ru.interval = max(int64(math.Round(float64(time.Second)/r.Rate)), 1)
			ru.span = maxSpan
			if int64(r.Burst) < maxSpan/ru.interval {
				ru.span = ru.interval * int64(r.Burst)
			}
		}
		ru.rest = &Meter{rule: ru, name: "(others)"}
		b.rules = append(b.rules, ru)
	}
	return b
}

// maxSpan is what a large burst at a low rate is cut to, a century: the sum of it and the clock is still a time.
const maxSpan = int64(100 * 365 * 24 * time.Hour)

// maxName is how many bytes of a name tell it from others. A client may choose it, and it is kept.
const maxName = 256

// Counts reports whether any rule counts by k.
func (b *Book) Counts(k Kind) bool {
	for _, r := range b.rules {
		if r.Per == k {
			return true
		}
	}
	return false
}

// Meter finds or makes what counts for name; nil: nothing does. Names with the same first 256 bytes count
// as one. The caller holds it until Release.
func (b *Book) Meter(k Kind, name []byte) *Meter {
	for _, r := range b.rules {
		if r.Per == k && (r.Match == "" || glob.Match(r.Match, name)) {
			return r.meter(name, b.most)
		}
	}
	return nil
}

func (r *rule) meter(name []byte, most int) *Meter {
	if r.Per == Connection {
		return &Meter{rule: r, name: string(name)}
	}
	name = name[:min(len(name), maxName)]
	r.mu.RLock()
	m := r.meters[string(name)]
	if m != nil {
		m.holders.Add(1)
	}
	r.mu.RUnlock()
	if m != nil {
		return m
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m = r.meters[string(name)]
	switch {
	case m != nil:
	case len(r.meters) >= most:
		m = r.rest
	default:
		m = &Meter{rule: r, name: string(name)}
		r.meters[m.name] = m
	}
	m.holders.Add(1)
	return m
}

// sweepInterval is how often names are forgotten that nobody uses.
const sweepInterval = int64(time.Second)

// Sweep forgets names that nobody uses and that have nothing left to remember. It does so
// now and then only; now is mono.
func (b *Book) Sweep(now int64) {
	last := b.sweptAt.Load()
	if now-last < sweepInterval || !b.sweptAt.CompareAndSwap(last, now) {
		return
	}
	for _, r := range b.rules {
		r.sweep(now)
	}
}

func (r *rule) sweep(now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, m := range r.meters {
		// Under the lock nobody can begin to hold it.
		if m.holders.Load() == 0 && m.inFlight.Load() == 0 && m.due.Load() <= now {
			delete(r.meters, name)
		}
	}
}

// Names is how many names the rule at position i remembers.
func (b *Book) Names(i int) int {
	r := b.rules[i]
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.meters)
}

// Meter is what counts for one name.
type Meter struct {
	// static
	rule *rule
	name string

	// atomic
	due      atomic.Int64 // when all that was granted is paid for at the rule's rate (mono)
	inFlight atomic.Int64
	holders  atomic.Int64
}

// Rule is the position of the meter's rule.
func (m *Meter) Rule() int { return m.rule.number }

// Kind is what the meter counts by.
func (m *Meter) Kind() Kind { return m.rule.Per }

// Release gives back what Book.Meter has returned.
func (m *Meter) Release() { m.holders.Add(-1) }

// LimitsFlight reports whether Enter can refuse, so that Leave has to be called.
func (m *Meter) LimitsFlight() bool { return m.rule.InFlight > 0 }

// Enter counts a command as in flight, until Leave, if there may be one more.
func (m *Meter) Enter() Verdict {
	if m.inFlight.Add(1) > int64(m.rule.InFlight) {
		m.inFlight.Add(-1)
		return TooMany
	}
	return Granted
}

// Leave ends what Enter has granted.
func (m *Meter) Leave() { m.inFlight.Add(-1) }

// Take takes one command's worth from the rate. It is a token bucket, written as the time
// at which it will be full again: so one word says it all, and loops whose clocks differ a little
// cannot fill it twice.
func (m *Meter) Take(now int64) Verdict {
	r := m.rule
	if r.Rate == 0 {
		return Granted
	}
	for {
		due := m.due.Load()
		next := max(due, now) + r.interval
		if next-now > r.span {
			return TooFast
		}
		if m.due.CompareAndSwap(due, next) {
			return Granted
		}
	}
}

// Refusal is the error line for a verdict that is not Granted.
func (m *Meter) Refusal(v Verdict) string {
	who := m.rule.Per.String()
	if m.rule.Per != Connection {
		who += " " + strconv.QuoteToASCII(m.name[:min(len(m.name), maxShown)])
	}
	if v == TooMany {
		return "THROTTLED " + who + " has " + strconv.Itoa(m.rule.InFlight) + " commands in flight already, as many as limits.rules allow"
	}
	return "THROTTLED " + who + " exceeds the " + strconv.FormatFloat(m.rule.Rate, 'f', -1, 64) + " commands per second that limits.rules allow"
}

// maxShown is how many bytes of a name, which a client may have chosen, an error shows.
const maxShown = 64
