package nearcache

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

const (
	frontBits = 12
	frontSize = 1 << frontBits

	// frontMaxEntry keeps large values out of front tables: copying them costs far
	// more than the store's lock.
	frontMaxEntry = 16 << 10

	// touchEvery is how many front hits pass between two that the store's admission
	// policy gets to see. All loops that serve one hot key meet there.
	touchEvery = 64

	// recentBits sizes the index for Recall: 8 KiB.
	recentBits = 10
	recentSize = 1 << recentBits

	// sweepParts is the number of ticks in which the whole front table is swept.
	sweepParts = 8
)

// Reader looks entries up for one event loop. It belongs to that loop: no method may
// be called from another goroutine.
//
// Its front table holds pointers to entries lately hit, so that a hot hit takes no
// lock and does not enter the store. The table holds no entry that has
// gone unused, or void, for longer than two sweeps, nor more than its share of the byte budget:
// entries that the store has evicted do not linger.
type Reader struct {
	c      *Cache
	bytes  int64 // cost of the entries in front
	part   int   // next part to sweep
	lapses []Lapse
	front  [frontSize]frontSlot
	recent [recentSize]*frontSlot // into front, by a few bytes of the key: see Recall
}

type frontSlot struct {
	hash  uint64
	entry *Entry
	hits  uint32
	seen  uint32 // hits at the last sweep
}

// NewReader returns a reader for one event loop.
func (c *Cache) NewReader() *Reader { return &Reader{c: c} }

// Get returns the entry that may be served at now (mono nanoseconds) as the reply to
// q, or nil.
func (r *Reader) Get(q *Question, now int64) *Entry {
	s := &r.front[q.id>>(64-frontBits)]
	if e := s.entry; e != nil && s.hash == q.id && e.answers(q) {
		if e.valid(r.c, now) {
			r.count(s)
			return e
		}
		r.dropAt(s, now)
	}
	e := r.c.store.get(q.id)
	if e == nil || !e.answers(q) || !e.valid(r.c, now) || r.c.purged(e) {
		return nil
	}
	if !e.used.Load() { // who serves from front tables has been here first
		e.used.Store(true)
	}
	r.keep(s, e)
	return e
}

// Remember notes where Get has just found the reply to q, which has no Rest, for Recall.
func (r *Reader) Remember(q *Question) {
	r.recent[recentPlace(q.Kind, q.Key)] = &r.front[q.id>>(64-frontBits)]
}

// Recall is Get for the question about the whole of key, if Remember has noted it lately, without
// what finding out a question's identity costs. nil says nothing: ask Get.
//
// Where to look is a guess: several keys may share a place, and the slot may have been given to
// the reply to another question since. So the entry has to be the reply to this very one, and
// may be served on exactly the conditions on which Get serves it; a slot that was emptied has none.
func (r *Reader) Recall(db int32, kind Kind, key []byte, now int64) *Entry {
	s := r.recent[recentPlace(kind, key)]
	if s == nil {
		return nil
	}
	e := s.entry
	if e == nil || e.kind != kind || e.db != db || int(e.tail) != len(e.buf) ||
		string(e.buf[e.size:e.tail]) != string(key) || !e.valid(r.c, now) {
		return nil
	}
	r.count(s)
	return e
}

// recentPlace mixes the end of a key, where keys of one kind differ most.
func recentPlace(kind Kind, key []byte) uint64 {
	x := uint64(kind)<<32 | uint64(len(key))
	if n := len(key); n >= 16 {
		x ^= binary.LittleEndian.Uint64(key[n-8:]) ^ bits.RotateLeft64(binary.LittleEndian.Uint64(key[n-16:]), 29)
	} else if n >= 8 {
		x ^= binary.LittleEndian.Uint64(key[n-8:])
	}
	return x * 0x9e3779b97f4a7c15 >> (64 - recentBits)
}

// count counts a hit of the front table.
func (r *Reader) count(s *frontSlot) {
	s.hits++
	if s.hits%touchEvery == 0 {
		r.touch(s)
	}
}

// Peek returns what Get would, and changes nothing.
func (r *Reader) Peek(q *Question, now int64) *Entry {
	e := r.front[q.id>>(64-frontBits)].entry
	if e == nil || !e.answers(q) {
		e = r.c.store.get(q.id)
	}
	if e == nil || !e.answers(q) || !e.valid(r.c, now) || r.c.purged(e) {
		return nil
	}
	return e
}

// StandIn returns an entry that may be served at now in place of an answer that nobody can
// give because its source is out of reach, or nil. since bounds how long ago: whatever vouched for
// the entry did so then or later (mono nanoseconds). What the caller owes on top: none of this once the source has
// answered again, which takes a Bump of All before its first answer is delivered.
//
// Per key, reads stay in order without that: an answer that was delivered, and a write that may have
// been executed, have voided all older entries of the key here as ever.
func (r *Reader) StandIn(q *Question, now, since int64) *Entry {
	e := r.c.store.get(q.id)
	if e == nil || !e.answers(q) || !e.standsIn(r.c, now, since) || r.c.purged(e) {
		return nil
	}
	return e
}

// StandsIn reports whether e, which StandIn has returned, may still stand in.
func (c *Cache) StandsIn(e *Entry, now, since int64) bool { return e.standsIn(c, now, since) }

// touch shows the store a hit of the front table, and lets go of an entry it no longer holds.
func (r *Reader) touch(s *frontSlot) {
	if r.c.store.get(s.hash) != s.entry {
		r.drop(s)
	}
}

func (r *Reader) keep(s *frontSlot, e *Entry) {
	if e.size > frontMaxEntry {
		return
	}
	r.drop(s)
	if cost := e.cost(); r.bytes+cost <= r.c.frontBytes {
		r.bytes += cost
		*s = frontSlot{hash: e.hash, entry: e}
	}
}

func (r *Reader) drop(s *frontSlot) {
	if s.entry != nil {
		r.bytes -= s.entry.cost()
		*s = frontSlot{}
	}
}

// dropAt drops what is void at now. If only its leases are the reason, it has lapsed.
func (r *Reader) dropAt(s *frontSlot, now int64) {
	if e := s.entry; r.c.Lapsed(e, now) {
		r.Lapse(e.lapse(now))
	}
	r.drop(s)
}

// Lapsed reports whether nothing has made e void at now but the loss of what vouched for it.
func (c *Cache) Lapsed(e *Entry, now int64) bool {
	return now < e.until && !e.alive(now) && e.unchanged(c)
}

// Lapse is what was asked for an entry that was in use until its source of invalidations was lost.
type Lapse struct {
	Args [][]byte // the key and what else was asked
	At   int64    // when it was noticed (mono nanoseconds)
	DB   int32
	Kind Kind
}

func (e *Entry) lapse(now int64) Lapse {
	key, rest := e.buf[e.size:e.tail], e.buf[e.tail:]
	return Lapse{append([][]byte{bytes.Clone(key)}, restArgs(rest)...), now, e.db, e.kind}
}

// maxLapses bounds what is remembered to be read again.
const maxLapses = frontSize

// Lapse remembers l, as far as there is room.
func (r *Reader) Lapse(l Lapse) {
	if len(r.lapses) < maxLapses {
		r.lapses = append(r.lapses, l)
	}
}

// Lapsed returns the next one to be read again, if any; it is forgotten here.
func (r *Reader) Lapsed() (l Lapse, ok bool) {
	if len(r.lapses) == 0 {
		r.lapses = nil
		return l, false
	}
	l = r.lapses[0]
	r.lapses = r.lapses[1:]
	return l, true
}

// Tick sweeps a part of the front table: entries that are void at now or were not hit since
// the last sweep are let go. The loop calls it about ten times a second.
func (r *Reader) Tick(now int64) {
	const size = frontSize / sweepParts
	part := r.front[r.part*size:][:size]
	for i := range part {
		s := &part[i]
		if s.entry == nil {
			continue
		}
		if s.hits == s.seen {
			r.drop(s)
			continue
		}
		if !s.entry.valid(r.c, now) {
			r.dropAt(s, now)
			continue
		}
		s.seen = s.hits
	}
	r.part = (r.part + 1) % sweepParts
}
