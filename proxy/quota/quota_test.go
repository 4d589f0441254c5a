package quota

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const second = int64(time.Second)

func TestRate(t *testing.T) {
	b := New([]Rule{{Per: User, Rate: 10, Burst: 3}, {Per: Address, Rate: 4}}, 100)
	m := b.Meter(User, []byte("app"))
	now := 5 * second
	take := func(n int) (granted int) {
		for range n {
			if m.Take(now) == Granted {
				granted++
			}
		}
		return granted
	}
	if n := take(10); n != 3 {
		t.Errorf("%d at once, want the burst of 3", n)
	}
	now += second / 10
	if n := take(10); n != 1 {
		t.Errorf("%d after a tenth of a second, want 1", n)
	}
	now -= second / 20 // another loop, whose clock is behind
	if n := take(10); n != 0 {
		t.Errorf("%d by a clock that is behind, want none", n)
	}
	now += 100 * second
	if n := take(10); n != 3 {
		t.Errorf("%d after a long pause, want the burst of 3", n)
	}
	m = b.Meter(Address, []byte("10.0.0.1"))
	if n := take(10); n != 4 {
		t.Errorf("%d at once, want a second's worth where no burst is named", n)
	}
}

// TestLargeBurst: what would take longer than time can tell is granted all the same.
func TestLargeBurst(t *testing.T) {
	m := New([]Rule{{Per: User, Rate: 0.01, Burst: 100_000_000}}, 100).Meter(User, []byte("app"))
	for i := range 1000 {
		if m.Take(second) != Granted {
			t.Fatalf("command %d of a burst of 100 million was refused", i)
		}
	}
}

// TestRateIsShared: many goroutines together get what the rate allows, not more.
func TestRateIsShared(t *testing.T) {
	b := New([]Rule{{Per: User, Rate: 1000, Burst: 50}}, 100)
	var now, granted atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			m := b.Meter(User, []byte("app"))
			for range 20_000 {
				if m.Take(now.Add(int64(time.Microsecond))) == Granted {
					granted.Add(1)
				}
			}
		})
	}
	all.Wait()
	if n := granted.Load(); n < 120 || n > 130 { // 80 ms
		t.Errorf("%d were granted in 80 ms, want 50 and 80", n)
	}
}

func TestInFlight(t *testing.T) {
	b := New([]Rule{{Per: User, InFlight: 2}}, 100)
	m := b.Meter(User, []byte("app"))
	for i, want := range []Verdict{Granted, Granted, TooMany, TooMany} {
		if got := m.Enter(); got != want {
			t.Errorf("command %d: got %d, want two at once", i, got)
		}
	}
	m.Leave()
	if m.Enter() != Granted || m.Enter() != TooMany {
		t.Error("want room for one after one has left")
	}
	if m.Take(0) != Granted {
		t.Error("there is no rate")
	}
}

// TestRules: the first rule of a kind that matches applies, names are counted apart, connections
// always.
func TestRules(t *testing.T) {
	b := New([]Rule{{Per: User, Match: "batch*", InFlight: 1}, {Per: User, InFlight: 2}, {Per: Connection, InFlight: 3}, {Per: Namespace, Match: "a", Rate: 1}}, 100)
	for _, c := range []struct {
		kind Kind
		name string
		rule int // -1: none
	}{{User, "batch7", 0}, {User, "app", 1}, {Connection, "x", 2}, {Namespace, "a", 3}, {Namespace, "b", -1}, {Address, "10.0.0.1", -1}} {
		m := b.Meter(c.kind, []byte(c.name))
		switch {
		case m == nil && c.rule < 0:
		case m == nil || m.Rule() != c.rule:
			t.Errorf("%s %s: got %v", c.kind, c.name, m)
		case (m == b.Meter(c.kind, []byte(c.name))) == (c.kind == Connection):
			t.Errorf("%s %s: asked for twice", c.kind, c.name)
		case m == b.Meter(c.kind, []byte(c.name+"x")):
			t.Errorf("%s %s: shared with another name", c.kind, c.name)
		}
	}
	if b.Counts(Address) || !b.Counts(Namespace) {
		t.Error("Counts")
	}
}

// TestNamesAreBounded: those beyond the bound share one meter; unused ones are forgotten, used ones and
// those that have something to remember are not.
func TestNamesAreBounded(t *testing.T) {
	b := New([]Rule{{Per: User, Rate: 1, InFlight: 1}}, 3)
	var ms []*Meter
	for i := range 5 {
		ms = append(ms, b.Meter(User, fmt.Append(nil, "u", i)))
	}
	if b.Names(0) != 3 || ms[3] != ms[4] || ms[2] == ms[3] {
		t.Errorf("%d names, %v", b.Names(0), ms)
	}
	now := 10 * second
	ms[0].Take(now) // is remembered until 11 s
	ms[0].Release()
	ms[1].Release()
	b.Sweep(now)
	if b.Names(0) != 2 || b.Meter(User, []byte("u0")) != ms[0] || b.Meter(User, []byte("u2")) != ms[2] {
		t.Errorf("%d names are left, want u0 and u2", b.Names(0))
	}
	ms[0].Release()
	b.Sweep(now + second/2) // too soon
	b.Sweep(now + 2*second)
	if b.Names(0) != 1 {
		t.Errorf("%d names are left, want u2", b.Names(0))
	}
}

// TestLongNames: what is kept of a name that a client has chosen is bounded.
func TestLongNames(t *testing.T) {
	b := New([]Rule{{Per: Namespace, Rate: 1}}, 3)
	long := strings.Repeat("x", 1<<20)
	if m := b.Meter(Namespace, []byte(long)); len(m.name) > maxName || m != b.Meter(Namespace, []byte(long+"y")) {
		t.Errorf("%d bytes of a name are kept", len(m.name))
	}
}

func TestRefusals(t *testing.T) {
	b := New([]Rule{{Per: Namespace, Rate: 5, InFlight: 7}, {Per: Connection, Rate: 1}}, 10)
	m := b.Meter(Namespace, []byte("a\r\n"+strings.Repeat("b", 100)))
	if got, want := m.Refusal(TooFast), `THROTTLED namespace "a\r\n`+strings.Repeat("b", 61)+`" exceeds the 5 commands per second that limits.rules allow`; got != want {
		t.Errorf("got %q", got)
	}
	if got := m.Refusal(TooMany); !strings.HasSuffix(got, " has 7 commands in flight already, as many as limits.rules allow") {
		t.Errorf("got %q", got)
	}
	if got, want := b.Meter(Connection, nil).Refusal(TooFast), "THROTTLED connection exceeds the 1 commands per second that limits.rules allow"; got != want {
		t.Errorf("got %q", got)
	}
}

func TestTakeAllocatesNothing(t *testing.T) {
	b := New([]Rule{{Per: Namespace, Rate: 1 << 20, InFlight: 10}}, 10)
	name := []byte("ns")
	if n := testing.AllocsPerRun(100, func() {
		m := b.Meter(Namespace, name)
		m.Enter()
		m.Take(1)
		m.Leave()
		m.Release()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
