package coherence

import (
	"fmt"
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
	t.Parallel()
	for _, tc := range []struct {
		defect nearcachetest.Defect
		mode   proxy.Invalidation
		fault  func(r *rig, h *hunt)
	}{
		{nearcachetest.Epochs, proxy.InvalidationTracking, func(*rig, *hunt) {}},
		{nearcachetest.Pending, proxy.InvalidationPubSub, func(r *rig, h *hunt) {
			// Writes are executed long before they are answered. Meanwhile one command on the key is
			// fetched, and another one is answered with what was there before.
			r.wire().Lag(proxytest.Plain, 20*time.Millisecond)
		}},
		{nearcachetest.Leases, proxy.InvalidationTracking, func(r *rig, h *hunt) { // scripts rely on a stream that is not there
			wire := r.wire()
			release := h.holdWrites()
			time.Sleep(pause / 2) // everything is cached now
			wire.Refuse(proxytest.Fetch, true)
			wire.Cut(proxytest.Fetch)
			h.writeHidden()
			time.Sleep(pause / 2)
			release()
			wire.Refuse(proxytest.Fetch, false)
			enough := r.server.Stats().Hits + 200
			clustertest.Await(r.t, "the cache to be used again", func() error {
				if n := r.server.Stats().Hits; n < enough {
					return fmt.Errorf("%d hits", n)
				}
				return nil
			})
		}},
	} {
		t.Run(tc.defect.String(), func(t *testing.T) {
			t.Parallel()
			r := startStandalone(t, tc.mode, nil, func(o *proxy.Options) {
				nearcachetest.Weaken(t, o.Cache.Cache, tc.defect)
				if tc.mode == proxy.InvalidationPubSub {
					o.Cache.Rules = severalQuestions
				}
			})
			h := newHunt(t, r.addr)
			h.start(workers)
			var lie string
			for deadline := time.Now().Add(clustertest.Deadline); lie == "" && time.Now().Before(deadline); {
				time.Sleep(pause)
				tc.fault(r, h)
				lie = h.lie()
			}
			h.stop()
			if lie == "" {
				lie = h.lie()
			}
			if lie == "" {
				t.Fatalf("%d keys without %v, and nothing wrong found", h.keys, tc.defect)
			}
			t.Log(lie)
		})
	}
}

// writeHidden changes every key by a script that does not say which.
func (h *hunt) writeHidden() {
	c := h.dial(3)
	for slot := range h.slots {
		r := h.acquire(slot)
		for _, op := range r.kind.write {
			if op.name == hiddenEval {
				h.do(c, r, workers, op, h.value())
			}
		}
		h.release(r)
	}
}

// severalQuestions lets all reads of a key be kept, with nobody to announce its changes: what comes through the proxy
// is all that happens to it.
var severalQuestions = []proxy.Rule{
	{Match: namespace + ":str:*", Commands: []string{"get", "getrange", "exists", "strlen"}, TTL: time.Minute, MaxValue: 1 << 20, Bare: true},
	{Match: namespace + ":zset:*", Commands: []string{"zrange", "zscore", "zcard", "exists"}, TTL: time.Minute, MaxValue: 1 << 20, Bare: true},
}
