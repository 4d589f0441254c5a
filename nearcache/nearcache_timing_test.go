package nearcache

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cosky-proxy/nearcache/lease"
)

// hot fills n keys and returns their questions with a reader.
func hot(tb testing.TB, n int) (*Reader, []*Question) {
	tb.Helper()
	c := newTestCache(tb, Options{})
	var l lease.Lease
	l.Renew(forever)
	qs := make([]*Question, n)
	for i := range qs {
		key := fmt.Sprintf("ns:svc_itc:service@%06d", i)
		qs[i] = ask(c, key)
		var f Fetch
		c.StartFetch(&f, qs[i], c.StripeOf(c.Hash([]byte("ns:svc_itc"))))
		f.Leases = [3]*lease.Lease{&l, &l}
		c.Fill(&f, mustEntry(tb, key, value("0123456789012345678901234567890123456789"), forever))
	}
	c.store.settle()
	return c.NewReader(), qs
}

func TestTheHotPathDoesNotAllocate(t *testing.T) {
	r, qs := hot(t, 1)
	c := r.c
	if r.Get(qs[0], 1) == nil {
		t.Fatal("not a hit")
	}
	var f Fetch
	s := c.StripeOf(qs[0].hash)
	other := c.StripeOf(qs[0].hash + 1)
	buf, rest, field := make([]byte, 0, 1024), make([]byte, 0, 64), []byte("field")
	for name, do := range map[string]func(){
		"hit":  func() { buf = r.Get(qs[0], 1).AppendReply(buf[:0], true) },
		"miss": func() { q := c.Ask(1, hgetall, qs[0].Key, nil); r.Get(&q, 1) },
		"part": func() {
			rest = AppendRest(rest[:0], [][]byte{field})
			q := c.Ask(0, smembers, qs[0].Key, rest)
			r.Get(&q, 1)
		},
		"fetch":  func() { c.StartFetch(&f, qs[0], other, s); f.Current(c) },
		"write":  func() { c.Begin(other); c.End(other) },
		"push":   func() { b, a := c.Push(other); f.Advance(other, b, a) },
		"refuse": func() { c.Refuse(qs[0], 1); c.Refused(qs[0], 1) },
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
			r, qs := hot(b, n)
			hits := 0
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if k := i % n; r.Get(qs[k], 1) != nil {
					hits++
				}
			}
			b.ReportMetric(float64(hits)/float64(b.N)*100, "%hit")
		})
	}
	b.Run("store/keys=30000", func(b *testing.B) {
		r, qs := hot(b, 30000)
		r.c.frontBytes = 0
		hits := 0
		for i := 0; b.Loop(); i++ {
			if k := i % len(qs); r.Get(qs[k], 1) != nil {
				hits++
			}
		}
		b.ReportMetric(float64(hits)/float64(b.N)*100, "%hit")
	})
}

// BenchmarkHitPerCore is what a hit costs on one thread, and on as many at once as there are processors, each
// with its own reader of the same entries. cpu-ns/op is processor time, which other processes do not lengthen;
// what one thread takes divided by what each of all takes is the scaling per core.
func BenchmarkHitPerCore(b *testing.B) {
	for _, keys := range []int{1, 100, 1000} {
		for _, threads := range []int{1, runtime.NumCPU()} {
			b.Run(fmt.Sprintf("keys=%d/threads=%d", keys, threads), func(b *testing.B) {
				r, qs := hot(b, keys)
				var cpu atomic.Int64
				var all sync.WaitGroup
				b.ReportAllocs()
				b.ResetTimer()
				for range threads {
					all.Go(func() { cpu.Add(hitsOnThread(b, r.c.NewReader(), qs, b.N/threads)) })
				}
				all.Wait()
				b.ReportMetric(float64(cpu.Load())/float64(max(b.N/threads, 1)*threads), "cpu-ns/op")
			})
		}
	}
}

// hitsOnThread returns the processor time of n hits, in nanoseconds.
func hitsOnThread(b *testing.B, r *Reader, qs []*Question, n int) int64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadCPU(b)
	for i := range n {
		if r.Get(qs[i%len(qs)], 1) == nil {
			b.Error("not a hit")
			break
		}
	}
	return threadCPU(b) - before
}

func threadCPU(b *testing.B) int64 {
	const thread = 1 // RUSAGE_THREAD, which package syscall does not name
	var used syscall.Rusage
	if err := syscall.Getrusage(thread, &used); err != nil {
		b.Errorf("cannot read the thread's CPU time: %v", err)
	}
	return used.Utime.Nano() + used.Stime.Nano()
}

// BenchmarkRecall is a hit without its question.
func BenchmarkRecall(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			r, qs := hot(b, n)
			for _, q := range qs {
				r.Get(q, 1)
				r.Remember(q)
			}
			hits := 0
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if q := qs[i%n]; r.Recall(q.DB, q.Kind, q.Key, 1) != nil {
					hits++
				}
			}
			b.ReportMetric(float64(hits)/float64(b.N)*100, "%hit")
		})
	}
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
		q := ask(c, key)
		c.StartFetch(&f, q)
		e, _ := NewEntry(q, Map, reply, forever)
		c.Fill(&f, e)
	}
}

func BenchmarkTick(b *testing.B) {
	r, qs := hot(b, 4000)
	for i := range qs {
		r.Get(qs[i], 1)
	}
	for b.Loop() {
		for i := range r.front {
			r.front[i].hits++
		}
		r.Tick(1)
	}
}

// BenchmarkHitsDuringCollections measures single hits while a million entries are held and the garbage
// collector runs all the time, or not at all.
func BenchmarkHitsDuringCollections(b *testing.B) {
	c := newTestCache(b, Options{MaxBytes: 1 << 30})
	reply := []byte(value("0123456789012345678901234567890123456789"))
	const million = 1_000_000
	for i := range million {
		q := c.Ask(0, hgetall, fmt.Appendf(nil, "ns:svc_itc:service@%07d", i), nil)
		var f Fetch
		c.StartFetch(&f, &q)
		e, err := NewEntry(&q, Map, reply, forever)
		if err != nil {
			b.Fatal(err)
		}
		c.Fill(&f, e)
	}
	c.store.settle()
	for _, collecting := range []bool{false, true} {
		b.Run(fmt.Sprintf("collecting=%v", collecting), func(b *testing.B) {
			defer debug.SetGCPercent(debug.SetGCPercent(-1))
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for {
					select {
					case <-stop:
						return
					default:
						if collecting {
							runtime.GC()
						} else {
							time.Sleep(time.Millisecond)
						}
					}
				}
			}()
			r := c.NewReader()
			took := make([]int64, 0, b.N)
			buf := make([]byte, 0, 4096)
			for i := 0; b.Loop(); i++ {
				q := c.Ask(0, hgetall, fmt.Appendf(buf[:0], "ns:svc_itc:service@%07d", i%100), nil)
				began := time.Now()
				if r.Get(&q, 1) == nil {
					b.Fatal("not a hit")
				}
				took = append(took, int64(time.Since(began)))
			}
			close(stop)
			<-stopped
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*999/1000]), "p99.9-ns")
			b.ReportMetric(float64(took[len(took)*99999/100000]), "p99.999-ns")
			b.ReportMetric(float64(took[len(took)-1]), "max-ns")
		})
	}
}
