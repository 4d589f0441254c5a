package router

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"cosky-proxy/cluster/slot"
)

// A sweep is a SCAN over all masters of a cluster, one after the other. Nothing is
// remembered between its calls: everything is in the cursor. What the steps of a
// sweep are follows from a census, what each master said of itself; the cursor names it
// by its digest.
//
// # Completeness
//
// A key that exists from the first call to the last is returned, although slots move:
//
//  1. The census of a sweep is taken before its first step, and again after every step. As
//     long as the digests agree, no master has gained or lost a slot in between nor begun or
//     ended a migration: a finished hand-over raises the config epoch of the receiver, which
//     the digest covers, so even a slot that went and came back is noticed.
//  2. During such a step a key leaves a master only if its slot is marked as migrating there,
//     and only to the master that imports the slot. A key of any other slot stays where it is,
//     and Redis' own SCAN finds it.
//  3. Importing masters come last, after every master that a slot leaves (one that does both comes
//     twice). A key of a migrating slot is at its source when the source's SCAN passes its place, and is
//     returned, or has arrived by then, and stays, and the importing master's SCAN begins later.
//  4. When a census differs, Resume works out which slots have been swept whatever happened
//     meanwhile, and goes on behind the longest run of steps, in the order of the new census, that
//     hold nothing else. At worst it starts over. Masters are ordered by config epoch, so the one
//     that receives slots is swept after those that give, and a reshard costs no work twice.
//
// A sweep ends because each step does and only a change of the cluster repeats one. Keys may be returned
// again, as by Redis when a table is resized.
//
// Not noticed are an aborted migration whose keys all went there and back within a single
// step, and one change in 65535 whose digest is the same by chance.

// Master is what one master says of itself in CLUSTER NODES.
type Master struct {
	ID, Addr  string
	Epoch     uint64
	Ranges    []slot.Range
	Migrating map[uint16]string // slot to the ID of the node that it is on its way to
	Importing map[uint16]string // slot to the ID of the node that it comes from
}

// ErrNotMaster says that a node that was asked for its part of a census has none.
var ErrNotMaster = errors.New("the node is no master")

// ParseMaster reads the line of a CLUSTER NODES reply in which the node speaks of itself. The
// address is not taken from there: it may say nothing, or not what clients use.
func ParseMaster(nodes string) (Master, error) {
	at := strings.Index(nodes, "myself")
	if at < 0 {
		return Master{}, errors.New("the node is not in its own CLUSTER NODES reply")
	}
	line, _, _ := strings.Cut(nodes[strings.LastIndexByte(nodes[:at], '\n')+1:], "\n")
	f := strings.Fields(line)
	if len(f) < 8 {
		return Master{}, fmt.Errorf("cannot parse CLUSTER NODES line %.200q", line)
	}
	if !slices.Contains(strings.Split(f[2], ","), "master") {
		return Master{}, ErrNotMaster
	}
	m := Master{ID: f[0], Migrating: make(map[uint16]string), Importing: make(map[uint16]string)}
	var err error
	if m.Epoch, err = strconv.ParseUint(f[6], 10, 64); err != nil {
		return Master{}, fmt.Errorf("cannot parse config epoch of CLUSTER NODES line %.200q", line)
	}
	for _, s := range f[8:] {
		if err := m.parseSlots(s); err != nil {
			return Master{}, fmt.Errorf("cannot parse CLUSTER NODES line %.200q: %w", line, err)
		}
	}
	m.Ranges = slot.Normalize(m.Ranges)
	return m, nil
}

// parseSlots reads "7", "0-5460", "[7->-id]" or "[7-<-id]".
func (m *Master) parseSlots(s string) error {
	marker, moving := strings.CutPrefix(s, "[")
	if !moving {
		r, err := slot.ParseRange(s)
		m.Ranges = append(m.Ranges, r)
		return err
	}
	marker = strings.TrimSuffix(marker, "]")
	into, sep := m.Migrating, "->-"
	if !strings.Contains(marker, sep) {
		into, sep = m.Importing, "-<-"
	}
	number, id, ok := strings.Cut(marker, sep)
	sl, err := strconv.ParseUint(number, 10, 16)
	if !ok || err != nil || sl >= slot.Count {
		return fmt.Errorf("bad marker %q", s)
	}
	into[uint16(sl)] = id
	return nil
}

// AddrIn finds the address of the node with that ID in a CLUSTER NODES reply, "" when it has none.
func AddrIn(nodes, id string) string {
	for line := range strings.Lines(nodes) {
		f := strings.Fields(line)
		if len(f) < 8 || f[0] != id || strings.Contains(f[2], "noaddr") {
			continue
		}
		addr, _, _ := strings.Cut(f[1], "@")
		colon := strings.LastIndexByte(addr, ':')
		switch {
		case colon <= 0:
			return ""
		case strings.Contains(addr[:colon], ":"): // IPv6, without brackets there
			return "[" + addr[:colon] + "]" + addr[colon:]
		}
		return addr
	}
	return ""
}

// Census is the word of all masters, and the order in which a sweep visits them. It is
// immutable.
type Census struct {
	Digest uint16   // never 0
	Steps  []Master // by visit; a master that both gives and takes slots is there twice

	holds    []slotSet      // by step: the slots of which the master may have keys
	last     map[string]int // by ID: the last step at that master
	owned    map[string]*slotSet
	moving   slotSet // marked as migrating or importing by anybody, or claimed by two
	unowned  int
	sources  map[uint16][]string // of moving slots: who owns them
	arrivals map[uint16][]string // of moving slots: who imports them
}

// NewCensus orders the masters. It takes them over.
func NewCensus(masters []Master) *Census {
	slices.SortFunc(masters, func(a, b Master) int { return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.ID, b.ID)) })
	c := &Census{
		Digest: digestOf(masters), last: make(map[string]int), owned: make(map[string]*slotSet),
		sources: make(map[uint16][]string), arrivals: make(map[uint16][]string),
	}
	c.settleMoves(masters)
	gives, takes := make(map[string]bool), make(map[string]bool)
	for sl := range c.arrivals {
		for _, id := range c.sources[sl] {
			gives[id] = true
		}
		for _, id := range c.arrivals[sl] {
			takes[id] = true
		}
	}
	for _, pass := range []func(id string) bool{
		func(id string) bool { return !takes[id] },
		func(id string) bool { return takes[id] && gives[id] },
		func(id string) bool { return takes[id] },
	} {
		for _, m := range masters {
			if pass(m.ID) {
				c.last[m.ID] = len(c.Steps)
				c.Steps = append(c.Steps, m)
				c.holds = append(c.holds, c.heldBy(&m))
			}
		}
	}
	return c
}

// settleMoves fills what is known of owners and of slots on the move.
func (c *Census) settleMoves(masters []Master) {
	var all slotSet
	for i := range masters {
		m := &masters[i]
		own := new(slotSet)
		for _, r := range m.Ranges {
			for s := int(r.First); s <= int(r.Last); s++ {
				if all.has(uint16(s)) {
					c.moving.add(uint16(s))
				}
				own.add(uint16(s))
				all.add(uint16(s))
			}
		}
		c.owned[m.ID] = own
	}
	arrives := func(sl uint16, id string) {
		c.moving.add(sl)
		if !slices.Contains(c.arrivals[sl], id) {
			c.arrivals[sl] = append(c.arrivals[sl], id)
		}
	}
	for i := range masters {
		for sl, to := range masters[i].Migrating {
			arrives(sl, to)
		}
		for sl := range masters[i].Importing {
			arrives(sl, masters[i].ID)
		}
	}
	for sl := range uint16(slot.Count) {
		if !all.has(sl) {
			c.unowned++
		}
		if !c.moving.has(sl) {
			continue
		}
		for i := range masters {
			if id := masters[i].ID; c.owned[id].has(sl) && !slices.Contains(c.arrivals[sl], id) {
				c.sources[sl] = append(c.sources[sl], id)
			}
		}
	}
}

func (c *Census) heldBy(m *Master) slotSet {
	held := *c.owned[m.ID]
	for sl, ids := range c.arrivals {
		if slices.Contains(ids, m.ID) {
			held.add(sl)
		}
	}
	return held
}

// Complete reports whether every slot has an owner. A sweep by a census that is not complete
// would miss keys.
func (c *Census) Complete() bool { return c.unowned == 0 }

// Missing returns the nodes that slots are on their way to and that have not been asked, as
// far as the masters know: an empty master is no part of the slot table yet.
func Missing(masters []Master) (ids []string) {
	known := make(map[string]bool)
	for i := range masters {
		known[masters[i].ID] = true
	}
	for i := range masters {
		for _, id := range masters[i].Migrating {
			if !known[id] {
				known[id] = true
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// digestOf fingerprints the masters, which are in order.
func digestOf(masters []Master) uint16 {
	h := fnv.New64a()
	for i := range masters {
		m := &masters[i]
		fmt.Fprintln(h, m.ID, m.Epoch, m.Ranges, m.Migrating, m.Importing) // maps are printed in order of their keys
	}
	sum := h.Sum64()
	return uint16(sum%65535) + 1
}

// Resume returns the step at which a sweep by c goes on by the census now, after its step number at has
// ended (or, when it has not, been broken off). The steps before it were made while c was true.
func (c *Census) Resume(at int, ended bool, now *Census) int {
	swept := c.swept(at)
	if ended {
		c.addPresent(&swept, at, now)
	}
	for i := range now.Steps {
		if !now.holds[i].within(&swept) {
			return i
		}
	}
	return len(now.Steps)
}

// swept are the slots of which all keys have been returned by the steps before at.
func (c *Census) swept(at int) slotSet {
	var set slotSet
	for i := range at {
		set.union(c.owned[c.Steps[i].ID])
	}
	set.subtract(&c.moving)
	for sl, ids := range c.arrivals {
		if c.passed(c.sources[sl], at) && c.passed(ids, at) {
			set.add(sl)
		}
	}
	return set
}

// passed reports whether the last visits to the masters with these IDs precede step at. The sources of a
// slot are always visited before the last visit to its receiver.
func (c *Census) passed(ids []string, at int) bool {
	for _, id := range ids {
		if last, known := c.last[id]; known && last >= at {
			return false
		}
	}
	return true
}

// addPresent adds the slots whose keys were all at the master of step at for as long as the step took,
// although the census has changed meanwhile: those it owns then and now, and those that others, already swept,
// had begun to send and that have not gone on to somewhere else. A slot that left and came back would have
// raised the master's epoch.
func (c *Census) addPresent(swept *slotSet, at int, now *Census) {
	id := c.Steps[at].ID
	step, asked := now.last[id]
	if !asked || now.Steps[step].Epoch != c.Steps[at].Epoch {
		return
	}
	own := now.owned[id]
	stay := *c.owned[id]
	stay.subtract(&c.moving)
	stay.intersect(own)
	stay.subtract(&now.moving)
	swept.union(&stay)
	for sl, ids := range c.arrivals {
		settled := own.has(sl) && !now.moving.has(sl)
		arriving := slices.Equal(now.arrivals[sl], []string{id})
		if slices.Equal(ids, []string{id}) && c.last[id] == at && c.passed(c.sources[sl], at) && (settled || arriving) {
			swept.add(sl)
		}
	}
}

// slotSet is a set of hash slots.
type slotSet [slot.Count / 64]uint64

func (s *slotSet) add(sl uint16)      { s[sl/64] |= 1 << (sl % 64) }
func (s *slotSet) has(sl uint16) bool { return s[sl/64]&(1<<(sl%64)) != 0 }

func (s *slotSet) union(o *slotSet) {
	for i := range s {
		s[i] |= o[i]
	}
}

func (s *slotSet) subtract(o *slotSet) {
	for i := range s {
		s[i] &^= o[i]
	}
}

func (s *slotSet) intersect(o *slotSet) {
	for i := range s {
		s[i] &= o[i]
	}
}

func (s *slotSet) within(o *slotSet) bool {
	for i := range s {
		if s[i]&^o[i] != 0 {
			return false
		}
	}
	return true
}

// Cursor is the state of a sweep: what a client is given instead of a node's own cursor.
type Cursor struct {
	Digest uint16 // of the census that the sweep goes by; 0: it has not begun
	Step   int
	Node   uint64 // the node's own cursor
}

// Layout of a cursor, from the lowest bit: the digest, the width of the step (an index into stepBits),
// the step, the node's cursor. With up to 16 masters that leaves a node 31 bits below 2^53, where
// JavaScript's numbers end, and 41 below 2^63.
const (
	digestBits = 16
	widthBits  = 2
	cursorBits = 63
)

var stepBits = [1 << widthBits]int{4, 7, 11, 15}

// Number is the cursor as clients see it. ok is false if the node's own is too large for that.
func (c Cursor) Number() (n uint64, ok bool) {
	width := 0
	for c.Step >= 1<<stepBits[width] {
		width++
	}
	room := cursorBits - digestBits - widthBits - stepBits[width]
	if c.Node >= 1<<room {
		return 0, false
	}
	n = c.Node<<stepBits[width] | uint64(c.Step)
	n = n<<widthBits | uint64(width)
	return n<<digestBits | uint64(c.Digest), true
}

// ParseCursor is the inverse of Number. Any number is some cursor.
func ParseCursor(n uint64) Cursor {
	c := Cursor{Digest: uint16(n)}
	n >>= digestBits
	width := stepBits[n&(1<<widthBits-1)]
	n >>= widthBits
	c.Step, c.Node = int(n&(1<<width-1)), n>>width
	return c
}
