package router

import "cosky-proxy/proxy/resp"

// Share is the part of a multi-key command that concerns one slot.
type Share struct {
	Slot uint16
	Keys []int // positions of its keys in the arguments, ascending
}

// Split groups the keys of args by slot, in order of first appearance. Keys are
// at 1, 1+step, …; the step-1 arguments after a key belong to it. The order of
// keys within a share is that of the request, so that the last of two values
// for one key still wins.
func Split(args [][]byte, step int, slotOf func([]byte) uint16) []Share {
	var shares []Share
	bySlot := make(map[uint16]int, 8)
	for k := 1; k < len(args); k += step {
		sl := slotOf(args[k])
		i, known := bySlot[sl]
		if !known {
			i = len(shares)
			bySlot[sl] = i
			shares = append(shares, Share{Slot: sl})
		}
		shares[i].Keys = append(shares[i].Keys, k)
	}
	return shares
}

// AppendShare appends the request that carries one share of args.
func AppendShare(b []byte, args [][]byte, step int, s *Share) []byte {
	b = resp.AppendArray(b, 1+step*len(s.Keys))
	b = resp.AppendBulk(b, args[0])
	for _, k := range s.Keys {
		for _, a := range args[k : k+step] {
			b = resp.AppendBulk(b, a)
		}
	}
	return b
}
