package cluster

import (
	"strings"
	"testing"

	"cosky-proxy/cluster/slot"
	"cosky-proxy/nearcache/lease"
)

func node(name string) *Node {
	return &Node{ID: name, Addr: name + ":6379", Vouch: new(lease.Lease)}
}

func TestTopologyFindsOwners(t *testing.T) {
	a, b, r := node("a"), node("b"), node("r")
	topo, err := New(3, Cluster, []Shard{
		{Primary: a, Ranges: []slot.Range{{First: 0, Last: 99}, {First: 200, Last: 200}}},
		{Primary: b, Replicas: []*Node{r}, Ranges: []slot.Range{{First: 100, Last: 199}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for s, want := range map[uint16]int{0: 0, 99: 0, 100: 1, 199: 1, 200: 0, 201: -1, 16383: -1} {
		if got := topo.ShardOf(s); got != want {
			t.Errorf("ShardOf(%d) = %d, want %d", s, got, want)
		}
	}
	if topo.Primary(150) != b || topo.Primary(201) != nil {
		t.Error("Primary does not agree with ShardOf")
	}
	if topo.NodeAt("r:6379") != r || topo.NodeAt("a:6379") != a || topo.NodeAt("x:6379") != nil {
		t.Error("NodeAt finds the wrong nodes")
	}
	if got, want := topo.Uncovered(), Slots-201; got != want {
		t.Errorf("Uncovered() = %d, want %d", got, want)
	}
	want := "v3 cluster [a:6379 0-99 200 +0 replicas] [b:6379 100-199 +1 replicas] 16183 slots unserved"
	if got := topo.String(); got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
}

func TestSingleServesEverySlot(t *testing.T) {
	topo := NewSingle(1, Standalone, node("a"))
	if topo.ShardOf(0) != 0 || topo.ShardOf(Slots-1) != 0 || topo.Uncovered() != 0 {
		t.Error("a single node does not own every slot")
	}
}

func TestNewRejects(t *testing.T) {
	all := []slot.Range{slot.All()}
	a, b := node("a"), node("b")
	tests := []struct {
		name   string
		mode   Mode
		shards []Shard
		want   string
	}{
		{"overlap", Cluster, []Shard{{Primary: a, Ranges: all}, {Primary: b, Ranges: []slot.Range{{First: 5, Last: 5}}}}, "both own slot 5"},
		{"no primary", Cluster, []Shard{{Ranges: all}}, "no primary"},
		{"no slots", Cluster, []Shard{{Primary: a}}, "owns no slot"},
		{"no address", Cluster, []Shard{{Primary: &Node{ID: "x"}, Ranges: all}}, "no address"},
		{"twice", Cluster, []Shard{{Primary: a, Replicas: []*Node{a}, Ranges: all}}, "twice"},
		{"backwards", Cluster, []Shard{{Primary: a, Ranges: []slot.Range{{First: 6, Last: 5}}}}, "impossible"},
		{"too high", Cluster, []Shard{{Primary: a, Ranges: []slot.Range{{First: 0, Last: Slots}}}}, "impossible"},
		{"two standalone", Standalone, []Shard{{Primary: a, Ranges: []slot.Range{{First: 0, Last: 5}}}, {Primary: b, Ranges: []slot.Range{{First: 6, Last: Slots - 1}}}}, "2 shards"},
		{"hole in standalone", Standalone, []Shard{{Primary: a, Ranges: []slot.Range{{First: 0, Last: 5}}}}, "unserved"},
		{"no shard", Sentinel, nil, "0 shards"},
	}
	for _, tt := range tests {
		if _, err := New(1, tt.mode, tt.shards); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got error %v, want one about %q", tt.name, err, tt.want)
		}
	}
}

func TestValidateComparesTableAndRanges(t *testing.T) {
	topo := NewSingle(1, Standalone, node("a"))
	topo.shardOf[7] = NoShard
	if topo.Validate() == nil {
		t.Error("Validate accepts a table that lacks slot 7")
	}
	topo = NewSingle(1, Cluster, node("a"))
	topo.Shards[0].Ranges = []slot.Range{{First: 1, Last: Slots - 1}}
	if topo.Validate() == nil {
		t.Error("Validate accepts a table with a slot that is in no range")
	}
}

func TestVouched(t *testing.T) {
	n := node("a")
	if n.Vouched(1) {
		t.Error("a node is vouched for before the first proof")
	}
	n.Vouch.Renew(10)
	if !n.Vouched(9) || n.Vouched(10) {
		t.Error("the lease does not decide")
	}
	n.Vouch = nil
	if !n.Vouched(10) {
		t.Error("a node that needs no proof is not vouched for")
	}
}

func TestShardOfAllocatesNothing(t *testing.T) {
	topo := NewSingle(1, Standalone, node("a"))
	if n := testing.AllocsPerRun(100, func() { topo.Primary(77) }); n != 0 {
		t.Errorf("Primary allocates %v times", n)
	}
}
