package nearcache

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"unsafe"

	"cosky-proxy/nearcache/lease"
)

// Kind is the command whose reply an entry holds; it is part of the entry's identity.
type Kind uint8

// The commands the cache can hold replies of.
const (
	HGetAll  Kind = 1 + iota // a map: *2n or %n, then 2n bulk strings
	SMembers                 // a set: *n or ~n, then n bulk strings
)

// Entry is one cached reply, encoded for either protocol version: the body is the
// same, only the header line differs. It is immutable once filled and may be held
// and read by any number of loops.
type Entry struct {
	// static
	key   []byte // aliases the same allocation as wire
	wire  []byte // RESP3 header, RESP2 header, body: a RESP2 reply is one copy
	head3 uint8  // bytes of the RESP3 header
	head  uint8  // bytes of both headers
	kind  Kind
	db    int32
	until int64 // mono nanoseconds

	// set by Fill before the entry is published
	id     uint64 // what its way in the directory must say
	hash   uint64 // of key, db and kind: its place in the store
	leases [3]*lease.Lease
	deps   [maxDeps]dep
	n      uint8
	way    uint8
}

// serialBits is the lower part of an identity, unique to the fill; above it are bits
// of the hash, which lead a fill to the way of its predecessor.
const serialBits = 40

// storeOverhead is what the store keeps per entry besides the entry itself
// (measured at 1 M entries).
const storeOverhead = 172

var errShape = errors.New("the reply is not of the shape its command returns")

// NewEntry copies reply, a complete reply to the command kind in RESP2 or RESP3, into an
// entry for key in database db that is not served at or after until (mono
// nanoseconds). For a key with a time to live, until must be counted from the moment the
// question was sent. It returns an error if the reply is anything else, an error reply for instance.
func NewEntry(db int, kind Kind, key, reply []byte, until int64) (*Entry, error) {
	count, size := header(reply)
	if size == 0 {
		return nil, errShape
	}
	var mark3 byte
	switch kind {
	case HGetAll:
		mark3 = '%'
		if reply[0] == mark3 {
			count *= 2
		} else if count%2 != 0 {
			return nil, errShape
		}
	case SMembers:
		mark3 = '~'
	default:
		return nil, fmt.Errorf("cannot cache replies of kind %d", kind)
	}
	if reply[0] != '*' && reply[0] != mark3 {
		return nil, errShape
	}
	count3 := count
	if kind == HGetAll {
		count3 /= 2
	}

	var heads [64]byte
	b := append(strconv.AppendInt(append(heads[:0], mark3), count3, 10), '\r', '\n')
	head3 := len(b)
	b = append(strconv.AppendInt(append(b, '*'), count, 10), '\r', '\n')
	body := reply[size:]

	buf := make([]byte, 0, len(b)+len(body)+len(key))
	buf = append(append(append(buf, b...), body...), key...)
	end := len(buf) - len(key)
	return &Entry{
		key:   buf[end:],
		wire:  buf[:end:end],
		head3: uint8(head3),
		head:  uint8(len(b)),
		kind:  kind,
		db:    int32(db),
		until: until,
	}, nil
}

// header reads the header line of an aggregate; size is 0 if there is none.
func header(b []byte) (count int64, size int) {
	nl := bytes.IndexByte(b[:min(len(b), 24)], '\n')
	if nl < 3 || b[nl-1] != '\r' {
		return 0, 0
	}
	for _, d := range b[1 : nl-1] {
		if d < '0' || d > '9' || count > 1<<40 {
			return 0, 0
		}
		count = count*10 + int64(d-'0')
	}
	return count, nl + 1
}

// Size returns the most bytes that AppendReply appends.
func (e *Entry) Size() int { return len(e.wire) }

// AppendReply appends the whole reply, encoded for RESP3 or RESP2, to dst.
func (e *Entry) AppendReply(dst []byte, resp3 bool) []byte {
	if resp3 {
		dst = append(dst, e.wire[:e.head3]...)
		return append(dst, e.wire[e.head:]...)
	}
	return append(dst, e.wire[e.head3:]...)
}

// cost returns the bytes the entry is charged with: what it occupies, with its key
// and the store's bookkeeping.
func (e *Entry) cost() int64 {
	return int64(cap(e.wire)+cap(e.key)) + int64(unsafe.Sizeof(*e)) + storeOverhead
}

// valid reports whether the entry may be served at now: nothing happened to its
// stripes, it is still the one its stripe vouches for, its leases are alive and its
// time is not over.
//
// The conditions are read one after the other, which is enough: whatever made the entry
// too old for this read was complete before the read began, and none of the
// conditions, once broken, mends.
func (e *Entry) valid(c *Cache, now int64) bool {
	if now >= e.until {
		return false
	}
	key := &e.deps[0]
	l := &c.lines[key.stripe]
	if (l.ways[e.way].Load()^e.id)&c.rules.way != 0 || (Word(l.word.Load())^key.word)&c.rules.hit != 0 {
		return false
	}
	for i := 1; i < int(e.n); i++ {
		d := &e.deps[i&(maxDeps-1)]
		if (Word(c.lines[d.stripe].word.Load())^d.word)&c.rules.hit != 0 {
			return false
		}
	}
	for _, p := range e.leases {
		if p != nil && !p.Alive(now) {
			return false
		}
	}
	return true
}

// seal gives the entry its identity and what it depends on.
func (e *Entry) seal(c *Cache, f *Fetch) {
	e.hash = identify(f.hash, int(e.db), e.kind)
	e.id = e.hash&^(1<<serialBits-1) | c.serial.Add(1)&(1<<serialBits-1)
	e.leases = f.Leases
	e.deps = f.deps
	e.n = uint8(f.n)
	if c.rules.seal != nil {
		c.rules.seal(e)
	}
}

// is reports whether the entry is the reply to this very question: a hash only says
// where to look.
func (e *Entry) is(db int, kind Kind, key []byte) bool {
	return e.kind == kind && e.db == int32(db) && string(e.key) == string(key)
}

// identify extends a key's hash to database and command.
func identify(hash uint64, db int, kind Kind) uint64 {
	return hash ^ (uint64(db)<<8|uint64(kind))*0x9e3779b97f4a7c15
}
