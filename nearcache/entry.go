package nearcache

import (
	"sync/atomic"
	"unsafe"

	"cosky-proxy/nearcache/lease"
)

// Entry is one cached reply, encoded for either protocol version. It is immutable
// once filled and may be held and read by any number of loops.
type Entry struct {
	// static
	buf   []byte // beginning in RESP3, beginning in RESP2, what they share (a RESP2 reply is one copy); key; rest
	head3 uint32 // bytes of the beginning in RESP3
	head  uint32 // bytes of both beginnings
	size  uint32 // bytes of the three, which are what goes over the wire
	tail  uint32 // bytes of them and of the key
	kind  Kind
	label uint16 // its user's
	db    int32
	until int64 // mono nanoseconds
	ends  int64 // when the key itself does (mono nanoseconds): not even standing in goes on after it

	// set by Fill before the entry is published
	id     uint64 // what its way in the directory must say
	hash   uint64 // of what was asked: its place in the store
	leases [3]*lease.Lease
	deps   [maxDeps]dep
	more   *[]dep // of a view: the stripes of what it shows
	home   Stripe // whose directory has its way
	n      uint8
	way    uint8
	waste  uint8 // see Fetch

	// atomic
	used atomic.Bool // somebody has been served from it
	read atomic.Bool // of a view: somebody has since TakeRead
}

// serialBits is the lower part of an identity, unique to the fill; above it are bits
// of the hash, which lead a fill to the way of its predecessor.
const serialBits = 40

// storeOverhead is what the store keeps per entry besides the entry itself
// (measured at 1 M entries).
const storeOverhead = 172

// NewEntry copies reply, the complete reply to q in RESP2 or RESP3, into an entry
// that is not served at or after until (mono nanoseconds). For a key with a
// time to live, until must be counted from the moment the question was sent. It returns an
// error if the reply is not of the shape, an error reply for instance.
func NewEntry(q *Question, shape Shape, reply []byte, until int64) (*Entry, error) {
	buf, head3, head, err := shape.encode(reply, len(q.Key)+len(q.Rest))
	if err != nil {
		return nil, err
	}
	size := len(buf)
	buf = append(append(buf, q.Key...), q.Rest...)
	return &Entry{
		buf:   buf,
		head3: uint32(head3),
		head:  uint32(head),
		size:  uint32(size),
		tail:  uint32(size + len(q.Key)),
		kind:  q.Kind,
		db:    q.DB,
		until: until,
		ends:  until,
	}, nil
}

// Outlive says that the key itself lives until ends (mono nanoseconds), later than the entry
// is served for current. It must be called before Fill.
func (e *Entry) Outlive(ends int64) { e.ends = max(e.ends, ends) }

// Use notes that the entry is worth having: several readers have been waiting for it.
func (e *Entry) Use() { e.used.Store(true) }

// SetLabel has the entry carry a number of its user's choice. It must be called before Fill.
func (e *Entry) SetLabel(n uint16) { e.label = n }

// Label returns what SetLabel set, else 0.
func (e *Entry) Label() uint16 { return e.label }

// Size returns the most bytes that AppendReply appends.
func (e *Entry) Size() int { return int(e.size) }

// Ends returns when what the entry shows ends by itself (mono nanoseconds): see Outlive.
func (e *Entry) Ends() int64 { return e.ends }

// Until returns when the entry ends at the latest (mono nanoseconds).
func (e *Entry) Until() int64 { return e.until }

// AppendReply appends the whole reply, encoded for RESP3 or RESP2, to dst.
func (e *Entry) AppendReply(dst []byte, resp3 bool) []byte {
	if resp3 {
		dst = append(dst, e.buf[:e.head3]...)
		return append(dst, e.buf[e.head:e.size]...)
	}
	return append(dst, e.buf[e.head3:e.size]...)
}

// cost returns the bytes the entry is charged with: what it occupies, with its key
// and the store's bookkeeping.
func (e *Entry) cost() int64 {
	cost := int64(cap(e.buf)) + int64(unsafe.Sizeof(*e)) + storeOverhead
	if e.more != nil {
		cost += int64(len(*e.more)) * shownCost
	}
	return cost
}

// valid reports whether the entry may be served at now: nothing happened to its
// stripes, it is still the one its stripe vouches for, its leases are alive and its
// time is not over.
//
// The conditions are read one after the other, which is enough: whatever made the entry
// too old for this read was complete before the read began, and none of the
// conditions, once broken, mends.
func (e *Entry) valid(c *Cache, now int64) bool {
	return now < e.until && e.unchanged(c) && e.alive(now)
}

// standsIn reports whether the entry may be served at now although nobody vouches for it
// any more: nothing that has happened here since has made it void, its key has not
// expired, and all that vouched for it did so at since or later.
func (e *Entry) standsIn(c *Cache, now, since int64) bool {
	if now >= e.ends || since >= e.until || !e.unchanged(c) {
		return false
	}
	for _, p := range e.leases {
		if p != nil && !p.Reached(since) {
			return false
		}
	}
	return true
}

// unchanged reports whether the words and the way are still those of the entry's fill.
func (e *Entry) unchanged(c *Cache) bool {
	key := &e.deps[0]
	l := &c.lines[key.stripe]
	home := l
	if e.home != key.stripe {
		home = &c.lines[e.home]
	}
	if (home.ways[e.way].Load()^e.id)&c.rules.way != 0 || (Word(l.word.Load())^key.word)&c.rules.hit != 0 {
		return false
	}
	for i := 1; i < int(e.n); i++ {
		d := &e.deps[i&(maxDeps-1)]
		if (Word(c.lines[d.stripe].word.Load())^d.word)&c.rules.hit != 0 {
			return false
		}
	}
	if e.more != nil {
		for _, d := range *e.more {
			if (Word(c.views[d.stripe].Load())^d.word)&c.rules.hit != 0 {
				return false
			}
		}
	}
	return true
}

// alive reports whether all that vouches for the entry does so at now.
func (e *Entry) alive(now int64) bool {
	for _, p := range e.leases {
		if p != nil && !p.Alive(now) {
			return false
		}
	}
	return true
}

// Valid reports whether the entry may be served at now. Entries that are all valid after
// the last of them was got were so at one moment.
func (c *Cache) Valid(e *Entry, now int64) bool { return e.valid(c, now) }

// Unchanged reports whether nothing but a lease keeps the entry from being served at now.
func (c *Cache) Unchanged(e *Entry, now int64) bool { return now < e.until && e.unchanged(c) }

// seal gives the entry its identity and what it depends on.
func (e *Entry) seal(c *Cache, f *Fetch) {
	e.hash = f.id
	e.id = e.hash&^(1<<serialBits-1) | c.serial.Add(1)&(1<<serialBits-1)
	e.leases = f.Leases
	e.deps = f.deps
	if more := f.more; len(more) > 0 {
		e.more = &more
	}
	e.home = f.home.stripe
	e.n = uint8(f.n)
	e.waste = f.waste
	if c.rules.seal != nil {
		c.rules.seal(e)
	}
}

// answers reports whether the entry is the reply to this very question: a hash only
// says where to look.
func (e *Entry) answers(q *Question) bool {
	return e.kind == q.Kind && e.db == q.DB && string(e.buf[e.size:e.tail]) == string(q.Key) &&
		len(e.buf)-int(e.tail) == len(q.Rest) && (len(q.Rest) == 0 || string(e.buf[e.tail:]) == string(q.Rest))
}
