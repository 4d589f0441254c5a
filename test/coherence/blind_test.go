package coherence

import (
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/nearcache/nearcachetest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
)

// TestCheckerIsNotBlind takes one mechanism out of the cache at a time. A checker that finds
// nothing wrong then proves nothing about a cache that is whole.
func TestCheckerIsNotBlind(t *testing.T) {
	for _, tc := range []struct {
		defect nearcachetest.Defect
		fault  func(r *rig)
	}{
		{nearcachetest.Epochs, func(*rig) {}},
		{nearcachetest.Pending, func(*rig) {}},
		{nearcachetest.Leases, func(r *rig) { // scripts rely on a stream that is not there
			wire := r.wire()
			wire.Refuse(proxytest.Fetch, true)
			wire.Cut(proxytest.Fetch)
			time.Sleep(pause)
			wire.Refuse(proxytest.Fetch, false)
			time.Sleep(2 * pause)
		}},
	} {
		t.Run(tc.defect.String(), func(t *testing.T) {
			t.Parallel()
			r := startStandalone(t, proxy.InvalidationTracking, nil, func(o *proxy.Options) {
				nearcachetest.Weaken(t, o.Cache.Cache, tc.defect)
			})
			h := newHunt(t, r.addr)
			h.start(workers)
			var lie string
			for deadline := time.Now().Add(clustertest.Deadline); lie == "" && time.Now().Before(deadline); {
				time.Sleep(pause)
				tc.fault(r)
				lie = h.lie()
			}
			h.stop()
			if lie == "" {
				lie = h.lie()
			}
			if lie == "" {
				t.Fatalf("%d keys without %v, and nothing wrong found", len(h.all), tc.defect)
			}
			t.Log(lie)
		})
	}
}
