package discovery

import (
	"slices"

	"cosky-proxy/cluster/slot"
	"cosky-proxy/nearcache/lease"
)

// claim is what was heard of a primary in answer to one question.
type claim struct {
	primary   bool // it says so
	failed    bool // it was declared failed
	migrating bool // a slot is on its way in or out
	stateOK   bool // it is in a state to serve
	epoch     uint64
	ranges    []slot.Range
}

// keeper decides over one primary's lease. It is owned by the node's vouch
// goroutine, and time is passed in.
type keeper struct {
	// static
	lease     *lease.Lease
	ranges    []slot.Range // what the topology says the node owns
	staleness int64        // nanoseconds that one proof is good for

	// owned by the vouch goroutine
	proven bool   // the lease was renewed at least once
	epoch  uint64 // the config epoch of the first proof
}

// hear renews or revokes the lease after an answer that came at now to a question
// sent at sent (mono nanoseconds). A non-empty reason says why the topology
// should be looked at again.
//
// Why a lapsed lease is not revived: a node that was frozen answers the questions
// it finds in its socket before it hears from its peers that it was replaced
// meanwhile. What was cached from it before must not come back to life on such
// an answer. (Younger than staleness it may be served anyway.)
func (k *keeper) hear(c claim, sent, now int64) (reason string) {
	moved := !c.primary || !slices.Equal(c.ranges, k.ranges)
	switch {
	case k.lease.Revoked():
		return "its lease was revoked"
	case k.proven && (moved || c.migrating):
		k.lease.Revoke()
		return "its role or slots changed"
	case moved:
		return "its role or slots are not those of the topology"
	case c.migrating || c.failed || !c.stateOK:
		return ""
	case k.proven && c.epoch > k.epoch:
		k.lease.Revoke()
		return "its config epoch grew"
	case c.epoch < k.epoch:
		return ""
	case k.proven && !k.lease.Alive(now):
		k.lease.Revoke()
		return "it was silent for too long"
	case sent+k.staleness <= now:
		return ""
	}
	k.lease.Renew(sent + k.staleness)
	if !k.proven {
		k.proven, k.epoch = true, c.epoch
	}
	return ""
}
