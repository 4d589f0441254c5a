package nearcache

import "math/bits"

// A view is an entry whose reply shows many keys: what a script answered that only asks.
//
// # Why a view has stripes of its own
//
// The service registry's scripts show for each instance when it expires, and every
// instance is renewed every few seconds. A renewal is a write of the instance's key, but all
// it does to a view is to replace a few bytes. So what voids a view is counted on other
// stripes than those of the keys, ViewStripe, where whoever writes or reveals a key
// reports that as well, with one exception: a renewal, whose effect the view's owner brings
// in with Replace before the renewal is answered.
//
// # Owner
//
// A view belongs to one loop: the one whose connection has read every key it shows and hears
// of their changes. Only it fills and replaces the view. Invalidations come to it in order with
// what it reads, so it needs no epochs for them: it calls Void, or asks for the changed key
// anew and replaces the view. See package proxy, view.go, for the argument.

// shownCost is what a key that a view shows is charged with, in bytes: its stripe here, and what the view's
// owner keeps about it (proxy: viewPart 32, watch 176, its place in a map 40, texts of 60-byte keys 120).
const shownCost = 400

// viewStripes marks the stripes of views. They have words but no directories, and so many of
// them fit into a cache line that looking at fifty is little against copying the reply.
const viewStripes Stripe = 1 << 31

// ViewStripe returns the stripe on which what concerns views of a key (or members of a
// group) is counted, for Begin, End, Bump and Cover. hash is Hash of its name.
func (c *Cache) ViewStripe(hash uint64) Stripe {
	return viewStripes | Stripe(bits.RotateLeft64(hash, 29)&c.mask)
}

// Cover makes the reply of f depend on a stripe of views. It must be called before
// that is read which the stripe stands for. It returns false when a write is pending on it:
// then nothing can be kept.
func (f *Fetch) Cover(c *Cache, s Stripe) (ok bool) {
	word := Word(c.word(s).Load())
	f.more = append(f.more, dep{word: word, stripe: s &^ viewStripes})
	return word&c.rules.bypass == 0
}

// Reveal voids what depends on a stripe of views but f itself, whose reply shows the present state
// of what the stripe stands for and is about to be delivered.
func (f *Fetch) Reveal(c *Cache, s Stripe) {
	after := Word(c.word(s).Add(uint64(epochOne)))
	for i := range f.more {
		if d := &f.more[i]; d.stripe == s&^viewStripes && d.word == after-epochOne {
			d.word = after
		}
	}
}

// Void makes sure that e is not served any more by any loop.
func (c *Cache) Void(e *Entry) { c.abandon(e) }

// Replace puts e, the present reply to the same question, in the place of old, in one
// step for all loops; if void, old is void already (Void) and e takes the empty place. e depends
// on what old depended on. It returns false, and nothing is served, when old was not valid
// any more or there is no room. Only the view's owner may call it.
//
// Nobody sees the old reply after the new one: the way, which names one of them, changes
// once. Nobody sees the new reply after something voided the old one, for e carries the
// words that old was filled under.
func (c *Cache) Replace(old, e *Entry, void bool) bool {
	was := old.id
	if void {
		was = 0
	}
	e.hash, e.leases, e.deps, e.more, e.home, e.n, e.way = old.hash, old.leases, old.deps, old.more, old.home, old.n, old.way
	e.waste = old.waste
	e.used.Store(old.used.Load())
	e.id = e.hash&^(1<<serialBits-1) | c.serial.Add(1)&(1<<serialBits-1)
	c.outlives(min(e.ends, e.until+c.overtime))
	if !c.lines[e.home].ways[e.way].CompareAndSwap(was, e.id) {
		return false
	}
	if !c.keep(e) {
		c.abandon(e)
		c.drops.Add(1)
		return false
	}
	c.fills.Add(1)
	return true
}

// MarkRead notes that the entry was served.
func (e *Entry) MarkRead() {
	if !e.read.Load() { // so that the line stays shared by all loops
		e.read.Store(true)
	}
}

// TakeRead reports whether the entry was served since the last call.
func (e *Entry) TakeRead() bool { return e.read.Load() && e.read.Swap(false) }
