package nearcache

import (
	"fmt"
	"testing"

	"cosky-proxy/nearcache/lease"
)

// hot fills n keys and returns them with a reader.
func hot(tb testing.TB, n int) (*Reader, [][]byte, []uint64) {
	tb.Helper()
	c := newTestCache(tb, Options{})
	var l lease.Lease
	l.Renew(forever)
	keys, hashes := make([][]byte, n), make([]uint64, n)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "ns:svc_itc:service@%06d", i)
		hashes[i] = c.Hash(keys[i])
		var f Fetch
		c.StartFetch(&f, keys[i], c.StripeOf(c.Hash([]byte("ns:svc_itc"))))
		f.Leases = [3]*lease.Lease{&l, &l}
		c.Fill(&f, mustEntry(tb, string(keys[i]), value("0123456789012345678901234567890123456789"), forever))
	}
	c.store.settle()
	return c.NewReader(), keys, hashes
}

func TestTheHotPathDoesNotAllocate(t *testing.T) {
	r, keys, hashes := hot(t, 1)
	c := r.c
	if r.Get(hashes[0], 0, HGetAll, keys[0], 1) == nil {
		t.Fatal("not a hit")
	}
	var f Fetch
	s := c.StripeOf(hashes[0])
	other := c.StripeOf(hashes[0] + 1)
	buf := make([]byte, 0, 1024)
	for name, do := range map[string]func(){
		"hit":    func() { buf = r.Get(hashes[0], 0, HGetAll, keys[0], 1).AppendReply(buf[:0], true) },
		"miss":   func() { r.Get(hashes[0]+1, 0, HGetAll, keys[0], 1) },
		"fetch":  func() { c.StartFetch(&f, keys[0], other, s); f.Current(c) },
		"write":  func() { c.Begin(other); c.End(other) },
		"push":   func() { b, a := c.Push(other); f.Advance(other, b, a) },
		"refuse": func() { c.Refuse(hashes[0], 0, HGetAll, 1); c.Refused(hashes[0], 0, HGetAll, 1) },
		"tick":   func() { r.Tick(1) },
	} {
		if n := testing.AllocsPerRun(1000, do); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkHit(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("front/keys=%d", n), func(b *testing.B) {
			r, keys, hashes := hot(b, n)
			hits := 0
			for i := 0; b.Loop(); i++ {
				if k := i % n; r.Get(hashes[k], 0, HGetAll, keys[k], 1) != nil {
					hits++
				}
			}
			b.ReportMetric(float64(hits)/float64(b.N)*100, "%hit")
		})
	}
	b.Run("store/keys=30000", func(b *testing.B) {
		r, keys, hashes := hot(b, 30000)
		r.c.frontBytes = 0
		hits := 0
		for i := 0; b.Loop(); i++ {
			if k := i % len(keys); r.Get(hashes[k], 0, HGetAll, keys[k], 1) != nil {
				hits++
			}
		}
		b.ReportMetric(float64(hits)/float64(b.N)*100, "%hit")
	})
}

func BenchmarkHitParallel(b *testing.B) {
	r, keys, hashes := hot(b, 1000)
	c := r.c
	b.RunParallel(func(pb *testing.PB) {
		r := c.NewReader()
		for i := 0; pb.Next(); i++ {
			k := i % len(keys)
			r.Get(hashes[k], 0, HGetAll, keys[k], 1)
		}
	})
}

func BenchmarkWrite(b *testing.B) {
	c := newTestCache(b, Options{})
	for i := uint64(0); b.Loop(); i++ {
		s := c.StripeOf(i * 0x9e3779b97f4a7c15)
		c.Begin(s)
		c.End(s)
	}
}

func BenchmarkFill(b *testing.B) {
	c := newTestCache(b, Options{})
	reply := []byte(value("0123456789012345678901234567890123456789"))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		key := fmt.Appendf(nil, "key%d", i%10000)
		var f Fetch
		c.StartFetch(&f, key)
		e, _ := NewEntry(0, HGetAll, key, reply, forever)
		c.Fill(&f, e)
	}
}

func BenchmarkTick(b *testing.B) {
	r, keys, hashes := hot(b, 4000)
	for i := range keys {
		r.Get(hashes[i], 0, HGetAll, keys[i], 1)
	}
	for b.Loop() {
		for i := range r.front {
			r.front[i].hits++
		}
		r.Tick(1)
	}
}
