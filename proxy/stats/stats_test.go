package stats

import (
	"reflect"
	"testing"
	"time"
)

func TestObserve(t *testing.T) {
	for _, c := range []struct {
		ns     int64
		bucket int
	}{
		{-5, 0}, {0, 0}, {1, 0}, {1000, 0},
		{1001, 1}, {2000, 1}, {2001, 2}, {4000, 2}, {4001, 3},
		{int64(time.Microsecond << 22), 22}, {int64(time.Microsecond<<22) + 1, 23},
		{int64(time.Hour), 23}, {1<<63 - 1, 23},
	} {
		var h Histogram
		h.Observe(c.ns)
		if h.Buckets[c.bucket] != 1 || h.Count() != 1 {
			t.Errorf("Observe(%d): buckets %v, want one in bucket %d", c.ns, h.Buckets, c.bucket)
		}
		if want := uint64(max(c.ns, 0)); h.Sum != want {
			t.Errorf("Observe(%d): sum %d, want %d", c.ns, h.Sum, want)
		}
	}
}

func TestUpperBoundAgreesWithObserve(t *testing.T) {
	for i := range HistogramBuckets - 1 {
		d, ok := UpperBound(i)
		if !ok {
			t.Fatalf("UpperBound(%d): none", i)
		}
		var h Histogram
		h.Observe(int64(d))
		h.Observe(int64(d) + 1)
		if h.Buckets[i] != 1 || h.Buckets[i+1] != 1 {
			t.Errorf("bucket %d does not end at %s: %v", i, d, h.Buckets)
		}
	}
	if _, ok := UpperBound(HistogramBuckets - 1); ok {
		t.Error("the last bucket has a bound")
	}
}

func TestObserveAllocatesNothing(t *testing.T) {
	l := NewLoop(4)
	if n := testing.AllocsPerRun(100, func() {
		l.Hits++
		l.Commands[3].Calls++
		l.Commands[3].Latency.Observe(12345)
	}); n != 0 {
		t.Errorf("%v allocations per observation", n)
	}
}

// fill sets every number under v to n, so that a field that Add forgets shows.
func fill(v reflect.Value, n uint64) {
	switch v.Kind() {
	case reflect.Uint64:
		v.SetUint(n)
	case reflect.Int64, reflect.Int:
		v.SetInt(int64(n))
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Array, reflect.Slice:
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	}
}

func filled(n uint64) Snapshot {
	s := Snapshot{Commands: make([]Command, 3), Nodes: []Node{{Addr: "a:1"}, {Addr: "b:2"}}, Rules: []Rule{{Match: "x"}}, Limits: []Limit{{Per: "user", Match: "x"}}}
	fill(reflect.ValueOf(&s).Elem(), n)
	return s
}

func TestAddSumsEveryField(t *testing.T) {
	s, o := filled(1), filled(41)
	s.Add(&o)
	if want := filled(42); !reflect.DeepEqual(s, want) {
		t.Errorf("got  %+v\nwant %+v", s, want)
	}
	if !reflect.DeepEqual(o, filled(41)) {
		t.Error("Add changed its argument")
	}
}

func TestAddToTheZeroSnapshot(t *testing.T) {
	var s Snapshot
	o := filled(7)
	s.Add(&o)
	if !reflect.DeepEqual(s, filled(7)) {
		t.Errorf("got %+v", s)
	}
	s.Commands[0].Calls, s.Nodes[0].Calls, s.Rules[0].Hits, s.Limits[0].TooFast = 99, 99, 99, 99
	if !reflect.DeepEqual(o, filled(7)) {
		t.Error("the sum shares memory with its summand")
	}
}

func TestAddMatchesNodesByAddress(t *testing.T) {
	s := Snapshot{Nodes: []Node{{Addr: "a:1", Calls: 1}, {Addr: "b:2", Calls: 2}}}
	s.Add(&Snapshot{Nodes: []Node{{Addr: "b:2", Calls: 10}, {Addr: "c:3", Calls: 30}}})
	want := []Node{{Addr: "a:1", Calls: 1}, {Addr: "b:2", Calls: 12}, {Addr: "c:3", Calls: 30}}
	if !reflect.DeepEqual(s.Nodes, want) {
		t.Errorf("got %+v", s.Nodes)
	}
}

func TestSnapshotIsACopy(t *testing.T) {
	l := NewLoop(2)
	n := l.Node("a:1")
	n.Calls, l.Commands[1].Calls, l.Hits = 1, 2, 3
	s := l.Snapshot()
	n.Calls, l.Commands[1].Calls, l.Hits = 10, 20, 30
	if s.Nodes[0].Calls != 1 || s.Commands[1].Calls != 2 || s.Hits != 3 || s.Loops != 1 {
		t.Errorf("the snapshot followed its loop: %+v", s)
	}
	if l.Node("a:1") != n {
		t.Error("a node's counters moved")
	}
	l.Forget("a:1")
	if len(l.Nodes) != 0 {
		t.Errorf("forgotten node is still there: %+v", l.Nodes)
	}
}
