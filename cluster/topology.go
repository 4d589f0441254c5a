// Package cluster says which Redis servers stand behind the proxy and which of
// them owns which hash slot.
//
// A Topology is an immutable snapshot: cluster/discovery builds one, validates
// it and swaps it in; everyone else reads whatever snapshot was newest when they
// looked. The one thing that moves inside a snapshot is each primary's Vouch, a
// lease that discovery keeps alive only while the node proves that it still owns
// its slots. What the near-cache took from a node is void without it.
//
// One server, or a master watched by Sentinels, is a topology of one shard that
// owns every slot, so routing knows a single case.
package cluster

import (
	"fmt"
	"math"
	"strings"

	"cosky-proxy/cluster/slot"
	"cosky-proxy/nearcache/lease"
)

// Slots is the number of hash slots.
const Slots = slot.Count

// NoShard marks a slot that nobody serves in a Topology's slot table.
const NoShard = math.MaxUint16

// Mode is the kind of backend.
type Mode uint8

// The kinds of backend.
const (
	Standalone Mode = iota // one server at a fixed address
	Sentinel               // one master that Sentinels replace when it fails
	Cluster                // Redis Cluster
	Embedded               // the demonstration server that comes with the proxy
)

func (m Mode) String() string {
	switch m {
	case Standalone:
		return "standalone"
	case Sentinel:
		return "sentinel"
	case Cluster:
		return "cluster"
	case Embedded:
		return "embedded"
	}
	return fmt.Sprintf("mode %d", m)
}

// Node is one server. Nodes are immutable except for the lease, and a node that
// did not change keeps its address (*Node) over topologies.
type Node struct {
	ID      string // cluster node ID; the address in the other modes
	Addr    string // host:port, or unix:/path
	Version string // redis_version, "" when not known

	// Blocked: the rest of the cluster has declared the node failed, and it did
	// not answer discovery either. Requests for it will not succeed now.
	Blocked bool

	// Vouch is the proof that the node still is the primary of what the topology
	// says it owns. nil: none needed, the node cannot be replaced (standalone,
	// embedded). A replica's is never alive. It is revoked for ever when ownership
	// changes or may have changed; the next topology then brings a new Node. Any
	// goroutine that learns of a change first (a MOVED reply) may revoke it.
	Vouch *lease.Lease

	// Pulse tells whether the server is fit for reads of clients that do not insist on the
	// primary. nil: nobody looks, because none of them may be served by a replica.
	Pulse *Pulse
}

// Vouched reports whether cached values of this node may be served at now (mono
// nanoseconds), as far as the topology is concerned.
func (n *Node) Vouched(now int64) bool { return n.Vouch == nil || n.Vouch.Alive(now) }

// Shard is a set of slots with the nodes that hold their data.
type Shard struct {
	Primary  *Node
	Replicas []*Node      // may be empty; outside of cluster mode always so unless they are asked for
	Ranges   []slot.Range // ascending, not touching
	Moving   bool         // a slot is on its way in or out: replicas do not know which of its keys have left
}

// Topology is an immutable snapshot of the backend.
type Topology struct {
	Version uint64 // grows with every snapshot of one discovery, starts at 1
	Mode    Mode
	Shards  []Shard // ascending by their first slot

	// Spares are the addresses of primaries that own no slot, ascending. They may have keys: those
	// of the first slots that are on their way there. Empty outside of cluster mode.
	Spares []string

	shardOf [Slots]uint16 // index into Shards, or NoShard
}

// New builds a topology and validates it. It takes over shards.
func New(version uint64, mode Mode, shards []Shard) (*Topology, error) {
	t := &Topology{Version: version, Mode: mode, Shards: shards}
	for s := range t.shardOf {
		t.shardOf[s] = NoShard
	}
	for i := range shards {
		for _, r := range shards[i].Ranges {
			if r.First > r.Last || r.Last >= Slots {
				return nil, fmt.Errorf("shard %d has the impossible slot range %v", i, r)
			}
			for s := int(r.First); s <= int(r.Last); s++ {
				if other := t.shardOf[s]; other != NoShard {
					return nil, fmt.Errorf("shards %d and %d both own slot %d", other, i, s)
				}
				t.shardOf[s] = uint16(i)
			}
		}
	}
	if err := t.Validate(); err != nil {
		return nil, err
	}
	return t, nil
}

// Unknown is the topology of a backend that has not been reached yet: version 0, no
// shard. Every other one replaces it.
func Unknown(mode Mode) *Topology {
	t := &Topology{Mode: mode}
	for s := range t.shardOf {
		t.shardOf[s] = NoShard
	}
	return t
}

// NewSingle is the topology of one primary that owns every slot.
func NewSingle(version uint64, mode Mode, primary *Node) *Topology {
	t, err := New(version, mode, []Shard{{Primary: primary, Ranges: []slot.Range{slot.All()}}})
	if err != nil {
		panic(fmt.Sprintf("BUG: cannot build a topology of one node: %v", err))
	}
	return t
}

// ShardOf returns the index in Shards of slot's owner, -1 when nobody serves slot.
func (t *Topology) ShardOf(slot uint16) int {
	if i := t.shardOf[slot]; i != NoShard {
		return int(i)
	}
	return -1
}

// Primary returns the node that owns slot, nil when nobody does.
func (t *Topology) Primary(slot uint16) *Node {
	if i := t.ShardOf(slot); i >= 0 {
		return t.Shards[i].Primary
	}
	return nil
}

// NodeAt returns the node with that address, nil when there is none.
func (t *Topology) NodeAt(addr string) *Node {
	for i := range t.Shards {
		if n := t.Shards[i].Primary; n.Addr == addr {
			return n
		}
		for _, n := range t.Shards[i].Replicas {
			if n.Addr == addr {
				return n
			}
		}
	}
	return nil
}

// Uncovered is the number of slots that nobody serves.
func (t *Topology) Uncovered() int {
	uncovered := Slots
	for i := range t.Shards {
		for _, r := range t.Shards[i].Ranges {
			uncovered -= r.Len()
		}
	}
	return uncovered
}

// Validate checks what every reader relies on: each slot has at most one owner
// and the table agrees with the ranges, each shard has a primary and its nodes
// have addresses, no node appears twice, and only a cluster has several shards
// or unserved slots.
func (t *Topology) Validate() error {
	if len(t.Shards) >= NoShard {
		return fmt.Errorf("%d shards are too many", len(t.Shards))
	}
	if t.Mode != Cluster && (len(t.Shards) != 1 || t.Uncovered() != 0) {
		return fmt.Errorf("a %v topology has %d shards and %d unserved slots", t.Mode, len(t.Shards), t.Uncovered())
	}
	seen := make(map[string]bool)
	served := 0
	for i, shard := range t.Shards {
		if shard.Primary == nil {
			return fmt.Errorf("shard %d has no primary", i)
		}
		for _, n := range append([]*Node{shard.Primary}, shard.Replicas...) {
			if n.Addr == "" || seen[n.ID] {
				return fmt.Errorf("node %q at %q of shard %d has no address or appears twice", n.ID, n.Addr, i)
			}
			seen[n.ID] = true
		}
		if len(shard.Ranges) == 0 {
			return fmt.Errorf("shard %d owns no slot", i)
		}
		for _, r := range shard.Ranges {
			for s := int(r.First); s <= int(r.Last); s++ {
				if int(t.shardOf[s]) != i {
					return fmt.Errorf("slot %d is in the ranges of shard %d, but the table says %d", s, i, t.shardOf[s])
				}
				served++
			}
		}
	}
	for s, i := range t.shardOf {
		if i != NoShard {
			served--
		}
		if i != NoShard && int(i) >= len(t.Shards) {
			return fmt.Errorf("slot %d belongs to shard %d of %d", s, i, len(t.Shards))
		}
	}
	if served != 0 {
		return fmt.Errorf("the ranges and the slot table differ by %d slots", served)
	}
	return nil
}

// String is one line for logs.
func (t *Topology) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "v%d %v", t.Version, t.Mode)
	for i := range t.Shards {
		s := &t.Shards[i]
		fmt.Fprintf(&b, " [%s", s.Primary.Addr)
		if s.Primary.Blocked {
			b.WriteString(" (failed)")
		}
		if t.Mode == Cluster {
			for _, r := range s.Ranges {
				fmt.Fprintf(&b, " %v", r)
			}
		}
		if t.Mode == Cluster || len(s.Replicas) > 0 {
			fmt.Fprintf(&b, " +%d replicas", len(s.Replicas))
		}
		b.WriteByte(']')
	}
	if n := t.Uncovered(); n > 0 {
		fmt.Fprintf(&b, " %d slots unserved", n)
	}
	return b.String()
}
