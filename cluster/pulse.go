package cluster

import (
	"sync/atomic"
	"time"

	"cosky-proxy/nearcache/lease"
	"cosky-proxy/proxy/mono"
)

// Pulse is what discovery knows of a server's fitness for reads; readers never lock. Of a
// replica the lease is alive while it is proven to have everything that its primary had a bounded time ago, of a
// primary while it answers.
type Pulse struct {
	lease.Lease
	born int64 // mono nanoseconds

	rtt atomic.Int64 // smoothed, nanoseconds; 0: it has not answered yet
	has atomic.Int64 // mono nanoseconds, see Has
}

// NewPulse is the pulse of a server that nothing is known of yet.
func NewPulse() *Pulse { return &Pulse{born: mono.Now()} }

// Young reports whether the server has not been heard yet, and came to be known less than patience (nanoseconds) ago.
func (p *Pulse) Young(now, patience int64) bool { return p.Until() == 0 && now-p.born < patience }

// Beat notes how long an answer took.
func (p *Pulse) Beat(took time.Duration) {
	old := p.rtt.Load()
	if old == 0 {
		p.rtt.Store(int64(took))
		return
	}
	p.rtt.Store(old + (int64(took)-old)/8)
}

// RTT is how long the server's answers take at present, 0 if it has given none.
func (p *Pulse) RTT() time.Duration { return time.Duration(p.rtt.Load()) }

// Prove notes that a replica has everything that its primary had at (mono nanoseconds). Only one goroutine may call it.
func (p *Pulse) Prove(at int64) { p.has.Store(max(at, p.has.Load())) }

// Has is the moment (mono nanoseconds) up to which a replica has everything, by the words of its primary and its own;
// 0: nothing is known. While the primary is silent that moment stays, although the lease goes on.
func (p *Pulse) Has() int64 { return p.has.Load() }
