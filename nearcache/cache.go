package nearcache

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cespare/xxhash/v2"
)

// Defaults of Options.
const (
	defaultMaxBytes = 64 << 20
	defaultMaxEntry = 1 << 20
	minStripes      = 1 << 10
	maxStripes      = 1 << 24
	typicalCost     = 1 << 10 // bytes; sizes stripes and admission counters
)

// Options configures a Cache. Zero fields mean the defaults.
type Options struct {
	// MaxBytes is the budget in bytes for everything: entries with their keys and bookkeeping,
	// stripes and admission counters (about 8 % together). Default 64 MiB.
	MaxBytes int64

	// MaxEntry is the largest reply plus key, in bytes, that is stored. Default 1 MiB.
	// It is lowered to a quarter of MaxBytes.
	MaxEntry int

	// Overtime is for how long entries may stand in after their end (Reader.StandIn), in nanoseconds.
	Overtime int64

	// Stripes is the number of stripes, a power of two, 64 bytes each. Default: one per
	// KiB of MaxBytes, 65,536 at the default budget. Fewer mean more
	// entries void because of a neighbour.
	Stripes int
}

// Cache is the near-cache shared by all loops. All methods may be called from any
// goroutine, and only Close waits.
type Cache struct {
	// static
	lines      []line          // lines[All], then the stripes of hashes
	views      []atomic.Uint64 // words of the stripes of views, see ViewStripe
	mask       uint64
	maxEntry   int
	maxBytes   int64
	overtime   int64
	frontBytes int64
	store      store
	rules      rules

	// atomic
	serial      atomic.Uint64 // last serial given to an entry
	entries     atomic.Int64
	bytes       atomic.Int64
	fills       atomic.Uint64
	lost        atomic.Uint64
	drops       atomic.Uint64
	exits       atomic.Uint64
	reconciling atomic.Bool
	refused     [refusedSlots]atomic.Uint64
	last        atomic.Int64            // no entry filled so far lives longer (mono)
	purges      atomic.Pointer[[]purge] // immutable; nil: none

	purging sync.Mutex // serialises changes of purges
}

// rules are the parts of a word that each decision looks at. They are data so that
// tests can take one mechanism away and see the simulator find the lie that it prevents.
type rules struct {
	hit    Word // of an entry: must be unchanged to be served
	join   Word // of a fetch: must be unchanged to be joined
	fill   Word // of a fetch's key stripe: must be unchanged to be stored
	busy   Word // must be zero to store
	bypass Word // must be zero to start a fetch
	way    uint64

	halt func()       // tests: let others run here
	seal func(*Entry) // tests: have the last word on an entry
}

func (r *rules) pause() {
	if r.halt != nil {
		r.halt()
	}
}

func defaultRules() rules {
	return rules{
		hit:    epochMask | pendingMask,
		join:   epochMask | fillsMask | pendingMask,
		fill:   epochMask | fillsMask | pendingMask,
		busy:   busyBit,
		bypass: pendingMask,
		way:    ^uint64(0),
	}
}

// New returns an empty cache. Close it after the last loop has ended.
func New(o Options) (*Cache, error) {
	c, err := newCache(o)
	if err != nil {
		return nil, err
	}
	counters := admissionCounters(c.maxBytes)
	// What is not entries may take half at most: a small budget with many stripes still caches.
	c.maxBytes -= min(int64(len(c.lines))*int64(unsafe.Sizeof(line{}))+counters*counterBytes, c.maxBytes/2)
	if c.store, err = newRistrettoStore(c.maxBytes, counters, c.release); err != nil {
		return nil, err
	}
	return c, nil
}

// newCache returns a cache that has no store yet.
func newCache(o Options) (*Cache, error) {
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultMaxBytes
	}
	if o.MaxEntry == 0 {
		o.MaxEntry = defaultMaxEntry
	}
	if o.Stripes == 0 {
		want := uint64(max(o.MaxBytes, typicalCost) / typicalCost)
		o.Stripes = min(max(1<<bits.Len64(want-1), minStripes), maxStripes)
	}
	switch {
	case o.MaxBytes < 0 || o.MaxEntry < 0:
		return nil, fmt.Errorf("cannot create a cache of %d bytes with entries of up to %d bytes", o.MaxBytes, o.MaxEntry)
	case o.Stripes < 1 || o.Stripes > maxStripes || o.Stripes&(o.Stripes-1) != 0:
		return nil, fmt.Errorf("cannot create a cache of %d stripes: not a power of two up to %d", o.Stripes, maxStripes)
	}
	return &Cache{
		lines:      make([]line, 1+o.Stripes),
		views:      make([]atomic.Uint64, o.Stripes),
		mask:       uint64(o.Stripes - 1),
		maxEntry:   int(min(int64(o.MaxEntry), o.MaxBytes/4)),
		maxBytes:   o.MaxBytes,
		overtime:   o.Overtime,
		frontBytes: min(o.MaxBytes/16, 8<<20),
		rules:      defaultRules(),
	}, nil
}

// Close empties the cache and stops its goroutines. No loop may use the cache any more.
func (c *Cache) Close() { c.store.close() }

// MaxEntry returns the size of reply plus key, in bytes, beyond which Fill stores
// nothing: the caller can Refuse without building the entry. It may be less than
// Options asked for.
func (c *Cache) MaxEntry() int { return c.maxEntry }

// Hash returns the hash of a key, or of a group's name. It does not cover the
// database: invalidations name none, so they void the key in every one.
func (c *Cache) Hash(key []byte) uint64 { return xxhash.Sum64(key) }

// StripeOf returns the stripe of a hash.
func (c *Cache) StripeOf(hash uint64) Stripe { return Stripe(1 + hash&c.mask) }

// keep hands the entry to the store and reports whether the store took it.
func (c *Cache) keep(e *Entry) bool {
	cost := e.cost()
	if len(e.buf) > c.maxEntry || !c.roomFor(cost) {
		return false
	}
	c.entries.Add(1) // before the store can call release
	c.bytes.Add(cost)
	if c.store.set(e.hash, e, cost) {
		return true
	}
	c.entries.Add(-1)
	c.bytes.Add(-cost)
	return false
}

// roomFor reports whether an entry may be added. The store evicts to keep its budget;
// this is the hard stop behind it, in bytes really held.
func (c *Cache) roomFor(cost int64) bool {
	if c.bytes.Load()+cost <= c.maxBytes+c.slack() && !c.reconciling.Load() {
		return true
	}
	if c.reconciling.CompareAndSwap(false, true) {
		go c.reconcile()
	}
	return false
}

// reconcile finds out, while no fill is let in, why more is held than the budget. Sets
// queued in the store pass by waiting. Costs the store has missed do not: it would see room,
// evict nothing and stay full for ever. Then all is dropped.
func (c *Cache) reconcile() {
	defer c.reconciling.Store(false)
	c.store.settle()
	if c.bytes.Load()-c.store.used() > c.slack()/2 {
		c.store.clear()
	}
}

// slack is by how much entries may exceed the budget while sets are queued in the store,
// in bytes: a full queue (32,768) of small entries fits, as far as that is no more than an eighth.
func (c *Cache) slack() int64 { return max(c.maxBytes/32, min(c.maxBytes/8, 16<<20)) }

// release is called once for each entry that the store has let go of. It clears the
// entry's way, which voids it in all front tables.
func (c *Cache) release(e *Entry) {
	c.abandon(e)
	c.entries.Add(-1)
	c.bytes.Add(-e.cost())
	c.exits.Add(1)
}

// Stats is a snapshot of a cache's counters. They are read one by one, so sums need not match.
type Stats struct {
	Entries int64  // entries held by the store, void ones included
	Bytes   int64  // their cost: keys, replies and bookkeeping
	Fills   uint64 // replies stored
	Lost    uint64 // replies not stored because something happened to their stripe during the fetch
	Dropped uint64 // replies not stored: too large, no room, or the store's queue was full
	Exits   uint64 // entries the store let go of: replaced, evicted or not admitted
	Epochs  uint64 // sum of all epochs: writes, invalidations and revealing replies so far
}

// Stats returns the counters. It reads every stripe (4 MiB at the defaults): call it
// for a scrape, not per request.
func (c *Cache) Stats() Stats {
	s := Stats{
		Entries: c.entries.Load(),
		Bytes:   c.bytes.Load(),
		Fills:   c.fills.Load(),
		Lost:    c.lost.Load(),
		Dropped: c.drops.Load(),
		Exits:   c.exits.Load(),
	}
	for i := range c.lines {
		s.Epochs += uint64(c.lines[i].load() >> epochShift)
	}
	for i := range c.views {
		s.Epochs += c.views[i].Load() >> epochShift
	}
	return s
}
