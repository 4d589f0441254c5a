package soak

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/test/harness"
)

// usage is what a proxy occupies.
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

// checkLeaks: the clients have gone, and so has what they needed.
func (r *rig) checkLeaks() {
	r.t.Helper()
	for _, f := range r.fronts {
		begun := time.Now()
		f.Await("everything to be given back", func() error {
			now := usageOf(f.Proxy)
			if now.clients > f.idle.clients || now.descriptors > f.idle.descriptors+spareDescriptors || now.goroutines > f.idle.goroutines+spareGoroutines {
				return fmt.Errorf("at the start %+v, now %+v%s", f.idle, now, r.whoIsThere(f, begun))
			}
			return nil
		})
		if *long == 0 || len(f.memory) < 20 {
			continue
		}
		quarter := len(f.memory) / 4
		early, late := slices.Max(f.memory[quarter:2*quarter]), slices.Max(f.memory[3*quarter:])
		r.t.Logf("memory of %s: at most %.1f MB in the second quarter, %.1f MB in the last", f.name, early/(1<<20), late/(1<<20))
		if late > 1.25*early+8<<20 {
			r.t.Errorf("memory of %s grows: at most %.1f MB in the second quarter, %.1f MB in the last", f.name, early/(1<<20), late/(1<<20))
		}
	}
}

// whoIsThere lists the clients of a proxy that should have none, once it has had time to notice.
func (r *rig) whoIsThere(f *front, since time.Time) string {
	if time.Since(since) < harness.Deadline/2 {
		return ""
	}
	conn := clustertest.Dial(r.t, f.Addr)
	defer conn.Close()
	return "\n" + conn.Do("CLIENT", "LIST")
}
