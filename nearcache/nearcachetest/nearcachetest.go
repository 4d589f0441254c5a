// Package nearcachetest breaks near-caches on purpose, so that tests of coherence can show that
// they would find out. It takes a test to do so: no program can.
package nearcachetest

import (
	"testing"

	"cosky-proxy/nearcache"
	"cosky-proxy/nearcache/internal/defect"
)

// Defect is one mechanism that a cache does without.
type Defect = defect.Defect

// The defects.
const (
	Epochs    = defect.Epochs    // nobody looks whether something has changed
	Pending   = defect.Pending   // nobody looks whether writes are in flight
	Leases    = defect.Leases    // entries are served although nobody would announce their changes
	Expiry    = defect.Expiry    // entries outlive their keys
	Directory = defect.Directory // entries are served although newer ones have been delivered
)

// Weaken takes a mechanism out of c, which nobody must have used yet.
func Weaken(t testing.TB, c *nearcache.Cache, d Defect) {
	t.Helper()
	t.Logf("a near-cache without %v", d)
	c.Weaken(d)
}
