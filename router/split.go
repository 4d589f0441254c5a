package router

import (
	"cosky-proxy/cluster/slot"
	"cosky-proxy/proxy/resp"
)

// Share is the part of a multi-key command that concerns one slot.
type Share struct {
	Slot        uint16
	first, last int32 // of its keys, counted from 0
}

// Several reports whether the share has more than one key.
func (s *Share) Several() bool { return s.first != s.last }

// Parts are the shares of one command, in order of first appearance. Parts that are used again
// allocate nothing.
type Parts struct {
	Shares []Share
	of     []int32 // the share of each key
	next   []int32 // the next key of the same share; -1: none
}

// Keys returns the number of keys that were divided.
func (p *Parts) Keys() int { return len(p.of) }

// Splitter divides commands into shares. It is not safe for concurrent use.
type Splitter struct {
	bySlot [slot.Count]uint16 // share of a slot, from 1; 0: none. All 0 between two calls
}

// Split groups the keys of args by slot. Keys are at 1, 1+step, …; the step-1 arguments
// after a key belong to it. The order of keys within a share is that of the
// request, so that the last of two values for one key still wins.
func (sp *Splitter) Split(p *Parts, args [][]byte, step int, slotOf func([]byte) uint16) {
	p.Shares, p.of, p.next = p.Shares[:0], p.of[:0], p.next[:0]
	for k := 1; k < len(args); k += step {
		key := int32(len(p.of))
		sl := slotOf(args[k])
		i := int32(sp.bySlot[sl]) - 1
		if i < 0 {
			i = int32(len(p.Shares))
			sp.bySlot[sl] = uint16(i + 1)
			p.Shares = append(p.Shares, Share{Slot: sl, first: key})
		} else {
			p.next[p.Shares[i].last] = key
		}
		p.Shares[i].last = key
		p.of, p.next = append(p.of, i), append(p.next, -1)
	}
	for i := range p.Shares {
		sp.bySlot[p.Shares[i].Slot] = 0
	}
}

// AppendShare appends the request that carries share i of args.
func (p *Parts) AppendShare(b []byte, args [][]byte, step, i int) []byte {
	keys := 0
	for key := p.Shares[i].first; key >= 0; key = p.next[key] {
		keys++
	}
	b = resp.AppendArray(b, 1+step*keys)
	b = resp.AppendBulk(b, args[0])
	for key := p.Shares[i].first; key >= 0; key = p.next[key] {
		at := 1 + step*int(key)
		for _, a := range args[at : at+step] {
			b = resp.AppendBulk(b, a)
		}
	}
	return b
}
