package soak

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestSoakCluster lets clients of a cluster work while everything happens to it that may happen.
func TestSoakCluster(t *testing.T) {
	t.Parallel()
	startRig(t, startCluster(t)).soak()
}

// TestSoakSentinel does so with a master that sentinels watch.
func TestSoakSentinel(t *testing.T) {
	t.Parallel()
	startRig(t, startSentinel(t)).soak()
}

// TestSoakOneRedis does so with one Redis, which is not there yet when the proxy starts.
func TestSoakOneRedis(t *testing.T) {
	t.Parallel()
	startSingle(t).soak()
}

// soak has everything happen for as long as the run lasts, and looks at what has become of it.
func (r *rig) soak() {
	r.t.Helper()
	r.await(1000)
	r.announce()
	for begun := time.Now(); ; {
		for _, b := range r.plan() {
			r.t.Logf("after %v: %s", time.Since(begun).Round(10*time.Millisecond), b.name)
			b.do(r, rand.IntN(r.stage.shards()))
			r.announce()
			r.await(300)
			for _, f := range r.fronts {
				f.memory = append(f.memory, f.Metric("process_resident_memory_bytes"))
			}
			if r.book.failed() {
				break
			}
		}
		if r.book.failed() || time.Since(begun) >= *long {
			break
		}
	}
	r.finish()
	r.checkLeaks()
}

// plan is a round of faults.
func (r *rig) plan() []blow {
	p := r.stage.blows()
	rand.Shuffle(len(p), func(i, j int) { p[i], p[j] = p[j], p[i] })
	if *long > 0 {
		return p
	}
	succeeded := false
	return slices.DeleteFunc(p, func(b blow) bool {
		second := b.kind == succession && succeeded
		succeeded = succeeded || b.kind == succession
		return b.kind == lengthy || second
	})
}
