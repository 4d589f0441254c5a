package soak

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/test/harness"
)

// TestSoak lets clients of a cluster work while everything happens to it that may happen.
func TestSoak(t *testing.T) {
	t.Parallel()
	r := startRig(t)
	idle := usageOf(r.proxy)
	r.crowd.start(clients)
	r.await(1000)
	var memory []float64
	for begun := time.Now(); ; {
		for _, b := range r.plan() {
			t.Logf("%s", b.name)
			b.do(r, rand.IntN(shards))
			r.await(300)
			memory = append(memory, r.proxy.Metric("process_resident_memory_bytes"))
			if r.failed() {
				break
			}
		}
		if r.failed() || time.Since(begun) >= *long {
			break
		}
	}
	r.crowd.stop()
	r.settle()
	r.checkLeaks(idle, memory)
	t.Logf("%d replies; errors: %v", r.book.replies, r.book.refusals)
}

// plan is a round of faults. The last two are successions.
func (r *rig) plan() []blow {
	p := slices.Clone(blows)
	if *long == 0 { // what takes seconds is left out, and one succession has to do
		i := len(p) - 1 - rand.IntN(2)
		return slices.DeleteFunc(slices.Delete(p, i, i+1), func(b blow) bool { return b.name == longFreeze })
	}
	rand.Shuffle(len(p), func(i, j int) { p[i], p[j] = p[j], p[i] })
	return p
}

// await waits until clients have got n more replies.
func (r *rig) await(n int) {
	r.t.Helper()
	count := func() int {
		r.book.mu.Lock()
		defer r.book.mu.Unlock()
		return r.book.replies
	}
	from := count()
	clustertest.Await(r.t, "clients to go on", func() error {
		if now := count(); now < from+n && !r.failed() {
			return fmt.Errorf("%d of %d", now-from, n)
		}
		return nil
	})
}

// failed reports whether clients have seen what they should not.
func (r *rig) failed() bool {
	r.book.mu.Lock()
	defer r.book.mu.Unlock()
	return len(r.book.faults) > 0
}

// settle compares every counter with what clients know of it.
func (r *rig) settle() {
	r.t.Helper()
	conn := clustertest.Dial(r.t, r.proxy.Addr)
	for _, c := range r.book.counters {
		reply := conn.Do("EVAL", "return tonumber(redis.call('GET', KEYS[1]) or 0)", "1", c.key)
		value, err := strconv.Atoi(reply[1 : len(reply)-2])
		if err != nil {
			r.t.Fatalf("counter %s: %q", c.key, reply)
		}
		r.book.audit(c, value)
	}
	conn.Close()
	for _, f := range r.book.faults {
		r.t.Error(f)
	}
}

// usage is what the proxy occupies.
type usage struct {
	goroutines, descriptors, clients float64
}

func usageOf(p *harness.Proxy) usage {
	descriptors, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.Pid))
	return usage{p.Metric("go_goroutines"), float64(len(descriptors)), p.Metric("cosky_proxy_clients")}
}

// What a proxy without clients may have more than before it had any: connections to servers that it
// keeps for the next client, and the goroutines of one round of discovery.
const (
	spareDescriptors = 60
	spareGoroutines  = 30
)

// checkLeaks: the clients have gone, and so has what they needed. memory was measured during the run.
func (r *rig) checkLeaks(idle usage, memory []float64) {
	r.t.Helper()
	r.proxy.Await("everything to be given back", func() error {
		now := usageOf(r.proxy)
		if now.clients > idle.clients || now.descriptors > idle.descriptors+spareDescriptors || now.goroutines > idle.goroutines+spareGoroutines {
			return fmt.Errorf("at the start %+v, now %+v", idle, now)
		}
		return nil
	})
	if *long == 0 || len(memory) < 20 {
		return
	}
	quarter := len(memory) / 4
	early, late := slices.Max(memory[quarter:2*quarter]), slices.Max(memory[3*quarter:])
	r.t.Logf("memory: at most %.1f MB in the second quarter, %.1f MB in the last", early/(1<<20), late/(1<<20))
	if late > 1.25*early+8<<20 {
		r.t.Errorf("memory grows: at most %.1f MB in the second quarter, %.1f MB in the last", early/(1<<20), late/(1<<20))
	}
}
