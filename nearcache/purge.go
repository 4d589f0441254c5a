package nearcache

import (
	"slices"

	"cosky-proxy/proxy/glob"
)

// A purge voids the entries that were there when it was made and whose keys match a pattern.
//
// Nobody can list the entries: the store has no order, and stripes know hashes only. So
// nothing is searched. A purge is remembered until the last entry that was there has reached its end,
// and looked at where an entry comes out of the store, which is rare: once an entry is
// in a front table only Reader.Sweep asks again. Serials say what was there.
type purge struct {
	pattern string // as KEYS takes it
	serial  uint64 // the last one given when it was made
	until   int64  // no entry that was there lives longer (mono)
}

// maxPurges bounds those that are remembered: each is compared with every entry that comes out of
// the store.
const maxPurges = 64

const serialMask = 1<<serialBits - 1

// Purge voids the entries of all keys that match pattern, in every database. Entries filled later
// are not concerned; the caller voids fetches under way first (Bump) and has every Reader Sweep
// afterwards. When too many purges are remembered already it voids everything.
func (c *Cache) Purge(pattern string, now int64) {
	c.purging.Lock()
	defer c.purging.Unlock()
	p := purge{pattern: pattern, serial: c.serial.Load() & serialMask, until: c.last.Load()}
	var next []purge
	if old := c.purges.Load(); old != nil {
		next = slices.DeleteFunc(slices.Clone(*old), func(o purge) bool { return o.until <= now || o.pattern == pattern })
	}
	if len(next) >= maxPurges {
		next = nil
		c.Bump(All)
	} else if p.until > now {
		next = append(next, p)
	}
	if len(next) == 0 {
		c.purges.Store(nil)
		return
	}
	c.purges.Store(&next)
}

// purged reports whether a purge concerns e, and voids it for good then.
func (c *Cache) purged(e *Entry) bool {
	ps := c.purges.Load()
	if ps == nil {
		return false
	}
	for i := range *ps {
		if p := &(*ps)[i]; p.concerns(e) {
			c.abandon(e)
			return true
		}
	}
	return false
}

// concerns reports whether e was there when p was made and matches. Serials wrap: the nearer half
// of them counts as older.
func (p *purge) concerns(e *Entry) bool {
	return (p.serial-e.id)&serialMask < 1<<(serialBits-1) && glob.Match(p.pattern, e.buf[e.size:e.tail])
}

// abandon empties the way of e, which voids it wherever it is.
func (c *Cache) abandon(e *Entry) {
	c.lines[e.home].ways[e.way].CompareAndSwap(e.id, 0)
}

// outlives notes that an entry may live until then.
func (c *Cache) outlives(until int64) {
	for {
		last := c.last.Load()
		if last >= until || c.last.CompareAndSwap(last, until) {
			return
		}
	}
}

// Sweep lets go of entries that a purge concerns.
func (r *Reader) Sweep() {
	for i := range r.front {
		if s := &r.front[i]; s.entry != nil && r.c.purged(s.entry) {
			r.drop(s)
		}
	}
}
