package nearcache

import (
	"math"

	"cosky-proxy/nearcache/internal/defect"
	"cosky-proxy/nearcache/lease"
)

// Weaken takes a mechanism out of the cache, which is then wrong. Call it before anything else.
// Only tests can: the argument's type is internal, see package nearcachetest.
func (c *Cache) Weaken(d defect.Defect) {
	r := &c.rules
	switch d {
	case defect.Epochs:
		r.ignore(epochMask)
	case defect.Pending:
		r.ignore(pendingMask)
		r.bypass = 0
	case defect.Leases:
		r.seal = func(e *Entry) { e.leases = [len(e.leases)]*lease.Lease{} }
	case defect.Expiry:
		r.seal = func(e *Entry) { e.until = math.MaxInt64 }
	case defect.Directory:
		r.way = 0
	}
}

// ignore takes some bits of words out of every decision.
func (r *rules) ignore(bits Word) {
	r.hit &^= bits
	r.join &^= bits
	r.fill &^= bits
}
