package nearcache

import "sync/atomic"

// Stripe names one of the cache's stripes: the set of keys (and named groups of
// keys) that are invalidated together because their hashes fall on it.
type Stripe uint32

// All is the stripe every entry depends on. Writes and invalidations whose extent is
// the whole data set or unknown (FLUSHALL, SWAPDB, a lost stream) go there.
const All Stripe = 0

// Word is the state of a stripe at one moment:
//
//	epoch 30 | fills 12 | busy 1 | pending 21
//
// epoch counts changes and wraps at the top: an entry would have to outlive exactly
// 2^30 changes of its stripe to be mistaken. fills counts stored fills and wraps
// within its bits: a fetch would have to be in flight during exactly 4,096 of them,
// all on its stripe. busy is set while one fill edits the directory. pending counts
// the writes in flight.
type Word uint64

const (
	pendingBits = 21
	fillsShift  = pendingBits + 1
	fillsBits   = 12
	epochShift  = fillsShift + fillsBits

	pendingMask Word = 1<<pendingBits - 1
	busyBit     Word = 1 << pendingBits
	fillsMask   Word = (1<<fillsBits - 1) << fillsShift
	epochOne    Word = 1 << epochShift
	epochMask        = ^(epochOne - 1)

	// pendingLimit stays clear of the field's end by more than there can be
	// goroutines between their add and their check, so that pending never carries
	// into its neighbours. At over a hundred bytes per request in flight nobody gets here.
	pendingLimit = pendingMask - 1<<16
)

// ways is how many entries one stripe can vouch for: with the word they fill a
// cache line.
const ways = 7

// line is a stripe in memory. It has a cache line of its own: neighbours that are
// written by different loops do not slow each other down, and a hit finds
// the word and the way together.
type line struct {
	word atomic.Uint64
	ways [ways]atomic.Uint64 // entry identities; set by the fill that holds busy, cleared by anyone who knows the identity
}

// load returns the word without busy, which says nothing about the stripe's keys.
func (l *line) load() Word { return Word(l.word.Load()) &^ busyBit }

// withFill returns w with one more fill and busy set.
func (w Word) withFill() Word {
	return w&^fillsMask | (w+1<<fillsShift)&fillsMask | busyBit
}

// word is where the state of s is.
func (c *Cache) word(s Stripe) *atomic.Uint64 {
	if s&viewStripes != 0 {
		return &c.views[s&^viewStripes]
	}
	return &c.lines[s].word
}

// Begin announces that a write that may touch s is about to be sent. From now on
// reads of s bypass the cache, and no fetch of s can start or be stored.
func (c *Cache) Begin(s Stripe) {
	w := c.word(s)
	if Word(w.Add(1))&pendingMask > pendingLimit {
		w.Add(^uint64(0))
		panic("BUG: nearcache: more writes in flight on one stripe than a proxy can hold")
	}
}

// End reports that the reply of a write announced with Begin arrived, or that its
// fate is unknown. What was remembered before is void, in the same atomic step that takes
// the write off the pending ones: there is no moment at which an old entry
// looks valid. The client may see the reply only after End.
func (c *Cache) End(s Stripe) {
	w := c.word(s)
	if Word(w.Add(uint64(epochOne-1)))&pendingMask == pendingMask {
		w.Add(1)
		panic("BUG: nearcache: End without Begin")
	}
}

// State returns how often s has changed so far, wrapping at 2^30, and how many writes to it are in flight.
func (c *Cache) State(s Stripe) (changes, pending int) {
	w := c.lines[s].load()
	return int(w >> epochShift), int(w & pendingMask)
}

// Bump voids all entries and fetches that depend on s: something in it has changed,
// or a reply that reveals its present state is about to be delivered.
func (c *Cache) Bump(s Stripe) { c.word(s).Add(uint64(epochOne)) }

// Push is Bump for an invalidation push. The words around it are for Fetch.Advance.
func (c *Cache) Push(s Stripe) (before, after Word) {
	after = Word(c.lines[s].word.Add(uint64(epochOne)))
	return (after - epochOne) &^ busyBit, after &^ busyBit
}
