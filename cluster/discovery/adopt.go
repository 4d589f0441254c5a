package discovery

import (
	"slices"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/slot"
	"cosky-proxy/nearcache/lease"
)

// adopt puts the nodes of prev that did not change in the place of their equals
// in shards, and gives the others leases (unless vouched is false: then no node
// needs one), and pulses if they are wanted. changed tells whether anything differs from prev; gone are the
// nodes of prev that are in shards no more, whose leases must end.
//
// A node whose lease was revoked never stays: entries that point to the old lease
// are void for ever, new ones need a new lease.
func adopt(prev *cluster.Topology, shards []cluster.Shard, vouched, pulses bool) (changed bool, gone []*cluster.Node) {
	type place struct {
		node    *cluster.Node
		primary bool
		ranges  []slot.Range
	}
	before := make(map[string]place)
	if prev != nil {
		for _, s := range prev.Shards {
			before[s.Primary.ID] = place{s.Primary, true, s.Ranges}
			for _, r := range s.Replicas {
				before[r.ID] = place{r, false, nil}
			}
		}
	}
	keep := func(n *cluster.Node, primary bool, ranges []slot.Range, anew bool) *cluster.Node {
		b, known := before[n.ID]
		if known && n.Version == "" {
			n.Version = b.node.Version
		}
		if known && !anew && same(b.node, n) && b.primary == primary && slices.Equal(b.ranges, ranges) {
			delete(before, n.ID)
			return b.node
		}
		changed = true
		if vouched {
			n.Vouch = new(lease.Lease)
		}
		if pulses {
			n.Pulse = cluster.NewPulse()
		}
		return n
	}
	for i := range shards {
		s := &shards[i]
		found := s.Primary
		s.Primary = keep(found, true, s.Ranges, false)
		// What replicas were proven to have was what the shard had. It may have got more slots since.
		anew := pulses && s.Primary == found
		for j := range s.Replicas {
			s.Replicas[j] = keep(s.Replicas[j], false, nil, anew)
		}
	}
	for _, b := range before {
		gone = append(gone, b.node)
	}
	return changed || len(gone) > 0 || !sameShape(prev, shards), gone
}

// same compares what a *cluster.Node that stays must have in common with its successor.
func same(old, n *cluster.Node) bool {
	return old.Addr == n.Addr && old.Version == n.Version && old.Blocked == n.Blocked &&
		(old.Vouch == nil || !old.Vouch.Revoked())
}

// sameShape tells whether the shards consist of the same nodes as those of prev.
func sameShape(prev *cluster.Topology, shards []cluster.Shard) bool {
	return prev != nil && slices.EqualFunc(prev.Shards, shards, func(a, b cluster.Shard) bool {
		return a.Primary == b.Primary && a.Moving == b.Moving && slices.Equal(a.Replicas, b.Replicas)
	})
}
