package discovery

import (
	"strings"
	"testing"

	"cosky-proxy/cluster/slot"
	"cosky-proxy/nearcache/lease"
)

func TestKeeper(t *testing.T) {
	slots := []slot.Range{{First: 0, Last: 99}}
	good := claim{primary: true, stateOK: true, epoch: 5, ranges: slots}
	with := func(change func(*claim)) claim {
		c := good
		change(&c)
		return c
	}
	replica := with(func(c *claim) { c.primary = false })
	fewer := with(func(c *claim) { c.ranges = []slot.Range{{First: 0, Last: 98}} })
	migrating := with(func(c *claim) { c.migrating = true })
	down := with(func(c *claim) { c.stateOK = false })
	failed := with(func(c *claim) { c.failed = true })
	newer := with(func(c *claim) { c.epoch = 6 })
	older := with(func(c *claim) { c.epoch = 4 })

	type step struct {
		claim     claim
		sent, now int64 // a proof is good for 100
		reason    string
		until     int64 // the lease lives until then; 0: it does not live at all
		revoked   bool
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"renewal counts from the question", []step{{good, 10, 40, "", 110, false}, {good, 50, 90, "", 150, false}}},
		{"an answer that is too late proves nothing", []step{{good, 10, 110, "", 0, false}, {good, 120, 130, "", 220, false}}},
		{"losing the role", []step{{good, 10, 20, "", 110, false}, {replica, 30, 40, "changed", 0, true}}},
		{"losing a slot", []step{{good, 10, 20, "", 110, false}, {fewer, 30, 40, "changed", 0, true}}},
		{"a migration begins", []step{{good, 10, 20, "", 110, false}, {migrating, 30, 40, "changed", 0, true}}},
		{"a migration was going on and ends", []step{{migrating, 10, 20, "", 0, false}, {good, 30, 40, "", 130, false}}},
		{"the topology is wrong from the start", []step{{fewer, 10, 20, "not those", 0, false}, {replica, 30, 40, "not those", 0, false}}},
		{"the cluster is down for a moment", []step{{good, 10, 20, "", 110, false}, {down, 30, 40, "", 110, false}, {good, 50, 60, "", 150, false}}},
		{"declared failed", []step{{failed, 10, 20, "", 0, false}}},
		{"slots left and came back", []step{{good, 10, 20, "", 110, false}, {newer, 30, 40, "epoch", 0, true}}},
		{"a witness that lags behind does not count", []step{{good, 10, 20, "", 110, false}, {older, 30, 40, "", 110, false}}},
		{"silence, then an answer", []step{{good, 10, 20, "", 110, false}, {good, 105, 111, "silent", 0, true}}},
		{"after the revocation", []step{{good, 10, 20, "", 110, false}, {fewer, 30, 40, "changed", 0, true}, {good, 50, 60, "revoked", 0, true}}},
	}
	for _, tt := range tests {
		l := new(lease.Lease)
		k := &keeper{lease: l, ranges: slots, staleness: 100}
		for i, s := range tt.steps {
			reason := k.hear(s.claim, s.sent, s.now)
			if (s.reason == "") != (reason == "") || !strings.Contains(reason, s.reason) {
				t.Errorf("%s, step %d: reason %q, want one with %q", tt.name, i, reason, s.reason)
			}
			if l.Revoked() != s.revoked || l.Alive(max(s.until-1, 0)) != (s.until > 0) || l.Alive(max(s.until, s.now)) {
				t.Errorf("%s, step %d: revoked %v, alive at %d %v", tt.name, i, l.Revoked(), s.until-1, l.Alive(s.until-1))
			}
		}
	}
}
