package router

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"cosky-proxy/cluster/slot"
)

const nodesReply = "07c3 127.0.0.1:30004@31004,host slave e7d1 0 1 4 connected\n" +
	"e7d1 :30001@31001 myself,master - 0 0 7 connected 0-5460 10000 [77->-67ed] [78-<-292f]\n" +
	"67ed ::1:30002@31002 master - 0 2 2 connected\n" +
	"292f 127.0.0.1:30003@31003 master - 0 3 3 connected 10923-16383\n" +
	"dead :0@0 master,noaddr - 0 3 3 disconnected\n"

func TestParseMaster(t *testing.T) {
	got, err := ParseMaster(nodesReply)
	want := Master{
		ID: "e7d1", Epoch: 7, Ranges: []slot.Range{{First: 0, Last: 5460}, {First: 10000, Last: 10000}},
		Migrating: map[uint16]string{77: "67ed"}, Importing: map[uint16]string{78: "292f"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	for _, tt := range []struct{ nodes, want string }{
		{"", "not in its own"},
		{"a 1:1@1 myself,slave b 0 0 1 connected\n", "no master"},
		{"a 1:1@1 myself,master - 0 0 x connected\n", "config epoch"},
		{"a 1:1@1 myself,master - 0 0\n", "cannot parse"},
		{"a 1:1@1 myself,master - 0 0 1 connected 1-99999\n", "slot range"},
		{"a 1:1@1 myself,master - 0 0 1 connected [1>2]\n", "bad marker"},
	} {
		if _, err := ParseMaster(tt.nodes); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: got %v, want an error with %q", tt.nodes, err, tt.want)
		}
	}
	for id, want := range map[string]string{"67ed": "[::1]:30002", "292f": "127.0.0.1:30003", "e7d1": "", "dead": "", "none": ""} {
		if got := AddrIn(nodesReply, id); got != want {
			t.Errorf("address of %s: got %q, want %q", id, got, want)
		}
	}
}

// master describes a master in the words of CLUSTER NODES.
func master(t *testing.T, id string, epoch int, slots string) Master {
	t.Helper()
	m, err := ParseMaster(fmt.Sprintf("%s 127.0.0.1:1@2 myself,master - 0 0 %d connected %s\n", id, epoch, slots))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func order(c *Census) string {
	var ids []string
	for i := range c.Steps {
		ids = append(ids, c.Steps[i].ID)
	}
	return strings.Join(ids, " ")
}

func TestSweepOrder(t *testing.T) {
	for _, tt := range []struct {
		name string
		a, b string // slots of masters a (epoch 2) and b (epoch 1)
		c    string // of c (epoch 3)
		want string
	}{
		{"by epoch", "0-99", "100-199", "200-16383", "b a c"},
		{"who imports comes last", "0-99 [7->-b]", "100-199 [7-<-a]", "200-16383", "a c b"},
		{"a migration that only the source knows of", "0-99 [7->-b]", "100-199", "200-16383", "a c b"},
		{"an import that the source does not know of yet", "0-99", "100-199 [7-<-a]", "200-16383", "a c b"},
		{"who gives and takes comes twice", "0-99 [7->-b] [100-<-b]", "100-199 [7-<-a] [100->-a]", "200-16383", "c b a b a"},
		{"a chain", "0-99 [7->-b]", "100-199 [7-<-a] [100->-c]", "200-16383 [100-<-b]", "a b b c"},
		{"both claim the slot", "0-99 [7->-b]", "7 100-199", "200-16383", "a c b"},
	} {
		c := NewCensus([]Master{master(t, "a", 2, tt.a), master(t, "b", 1, tt.b), master(t, "c", 3, tt.c)})
		if got := order(c); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
		if !c.Complete() {
			t.Errorf("%s: not complete", tt.name)
		}
	}
	if NewCensus([]Master{master(t, "a", 1, "0-7 9-16383")}).Complete() {
		t.Error("a census without slot 8 passes for complete")
	}
	if got := Missing([]Master{master(t, "a", 1, "0-16383 [1->-b] [2->-b]")}); !slices.Equal(got, []string{"b"}) {
		t.Errorf("not asked yet: got %q, want b", got)
	}
}

func TestDigestTellsCensusesApart(t *testing.T) {
	seen := make(map[uint16]string)
	for _, tt := range [][2]string{
		{"0-99", "100-16383"}, {"0-98", "99-16383"}, {"0-99 [7->-b]", "100-16383"}, {"0-99", "100-16383 [7-<-a]"},
		{"0-99 [7->-b]", "100-16383 [7-<-a]"}, {"0-99 [8->-b]", "100-16383 [8-<-a]"},
	} {
		a, b := master(t, "a", 1, tt[0]), master(t, "b", 2, tt[1])
		d := NewCensus([]Master{a, b}).Digest
		if d2 := NewCensus([]Master{b, a}).Digest; d2 != d {
			t.Errorf("%q: the digest depends on the order", tt)
		}
		if other, known := seen[d]; known || d == 0 {
			t.Errorf("%q has the digest of %s", tt, other)
		}
		seen[d] = tt[0] + " / " + tt[1]
		b.Epoch = 3
		if NewCensus([]Master{a, b}).Digest == d {
			t.Errorf("%q: the digest does not depend on the epochs", tt)
		}
	}
}

func TestResume(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before [3]string // slots of a, b, c with epochs 1, 2, 3: swept in this order unless slots move
		after  [3]string
		epochs [3]int
		at     int
		ended  bool
		want   string // the steps still to do, by the census after
	}{
		{"a slot of one that was swept has moved on", [3]string{"0-9", "10-19", "20-16383"}, [3]string{"0-8", "9-19", "20-16383"}, [3]int{1, 4, 3}, 1, true, "c b"},
		{"a slot has moved to one that was swept", [3]string{"0-9", "10-19", "20-16383"}, [3]string{"0-10", "11-19", "20-16383"}, [3]int{4, 2, 3}, 1, true, "c a"},
		{"the step under way was broken off", [3]string{"0-9", "10-19", "20-16383"}, [3]string{"0-8", "9-19", "20-16383"}, [3]int{1, 2, 3}, 1, false, "b c"},
		{"it has ended", [3]string{"0-9", "10-19", "20-16383"}, [3]string{"0-9", "10-18", "19-16383"}, [3]int{1, 2, 3}, 1, true, "c"},
		{"a migration begins", [3]string{"0-9", "10-19", "20-16383"}, [3]string{"0-9 [5->-c]", "10-19", "20-16383 [5-<-a]"}, [3]int{1, 2, 3}, 0, true, "a b c"},
		{"a migration of a slot that was swept begins", [3]string{"0-9", "10-19", "20-16383"}, [3]string{"0-9 [5->-c]", "10-19", "20-16383 [5-<-a]"}, [3]int{1, 2, 3}, 1, true, "c"},
		{"a migration ends while the receiver is swept", [3]string{"0-9 [5->-c]", "10-19", "20-16383 [5-<-a]"}, [3]string{"0-4 6-9", "10-19", "5 20-16383"}, [3]int{1, 2, 3}, 2, true, ""},
		{"and the receiver may have given it away in between", [3]string{"0-9 [5->-c]", "10-19", "20-16383 [5-<-a]"}, [3]string{"0-4 6-9", "10-19", "5 20-16383"}, [3]int{1, 2, 4}, 2, true, "c"},
		{"the next one begins", [3]string{"0-9 [5->-c]", "10-19", "20-16383 [5-<-a]"}, [3]string{"0-4 6-9 [6->-c]", "10-19", "5 20-16383 [6-<-a]"}, [3]int{1, 2, 3}, 2, true, ""},
		{"a master was replaced", [3]string{"0-9", "10-19", "20-16383"}, [3]string{"0-9", "", "10-16383"}, [3]int{1, 2, 4}, 1, false, "c"},
	} {
		census := func(slots [3]string, epochs [3]int) *Census {
			return NewCensus([]Master{master(t, "a", epochs[0], slots[0]), master(t, "b", epochs[1], slots[1]), master(t, "c", epochs[2], slots[2])})
		}
		before, after := census(tt.before, [3]int{1, 2, 3}), census(tt.after, tt.epochs)
		step := before.Resume(tt.at, tt.ended, after)
		if got := strings.TrimSpace(strings.Join(strings.Fields(order(after))[step:], " ")); got != tt.want {
			t.Errorf("%s: got %q, want %q (order %s)", tt.name, got, tt.want, order(after))
		}
	}
}

func TestCursor(t *testing.T) {
	for _, c := range []Cursor{
		{Digest: 1}, {Digest: 65535, Step: 15, Node: 1<<31 - 1}, {Digest: 2, Step: 16, Node: 3}, {Digest: 2, Step: 127, Node: 1 << 20},
		{Digest: 3, Step: 2047, Node: 7}, {Digest: 3, Step: 20000, Node: 1<<30 - 1}, {Digest: 9, Step: 0, Node: 1<<41 - 1},
	} {
		n, ok := c.Number()
		if got := ParseCursor(n); !ok || got != c || n == 0 || n > math.MaxInt64 {
			t.Errorf("%+v: became %d (%v), read as %+v", c, n, ok, got)
		}
		if c.Step < 16 && c.Node < 1<<31 && n >= 1<<53 {
			t.Errorf("%+v: %d is beyond what JavaScript can count", c, n)
		}
	}
	if n, ok := (Cursor{Digest: 1, Node: 1 << 41}).Number(); ok {
		t.Errorf("a node cursor that does not fit became %d", n)
	}
	random := rand.New(rand.NewPCG(3, 4))
	for range 10000 {
		n := random.Uint64() >> (1 + random.IntN(63))
		if c := ParseCursor(n); c.Step < 0 {
			t.Fatalf("%d was read as %+v", n, c)
		}
	}
}
