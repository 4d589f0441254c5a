// Package lease holds the proof that an invalidation stream is alive.
//
// A cached value may be served only while everything that would announce its
// change is known to work. Whoever watches such a source (an invalidation
// stream, the topology) owns a Lease and renews it each time a round trip
// proves the source alive; readers ask Alive. Losing the source revokes the
// lease, which voids every entry that points to it at once, with no scan.
package lease

import "sync/atomic"

// forgotten is the deadline of a lease that was revoked before any proof, or that nobody
// needs to remember.
const forgotten = -1

// Lease is alive until a deadline that its owner keeps moving forward. The zero
// value is not alive yet. All methods may be called from any goroutine.
type Lease struct {
	deadline atomic.Int64 // mono nanoseconds; 0 before the first proof; negative once revoked, and for ever
}

// Alive reports whether the lease holds at now (mono nanoseconds).
func (l *Lease) Alive(now int64) bool { return now < l.deadline.Load() }

// Renew extends the lease to until (mono nanoseconds), which the owner derives
// from the moment it *sent* the question whose answer proved the source alive.
// It never shortens a lease and does nothing to a revoked one.
func (l *Lease) Renew(until int64) {
	for {
		d := l.deadline.Load()
		if d < 0 || d >= until || l.deadline.CompareAndSwap(d, until) {
			return
		}
	}
}

// Until returns the deadline (mono nanoseconds): what it was last renewed to, 0 or less if the
// lease was never alive or is revoked.
func (l *Lease) Until() int64 { return l.deadline.Load() }

// Revoke ends the lease for ever: entries that depend on it are void from now on.
// A source that recovers starts a new lease, because it may have missed changes.
func (l *Lease) Revoke() {
	for {
		d := l.deadline.Load()
		if d < 0 || l.deadline.CompareAndSwap(d, min(-d, forgotten)) {
			return
		}
	}
}

// Revoked reports whether the lease was ended by Revoke.
func (l *Lease) Revoked() bool { return l.deadline.Load() < 0 }

// Forget revokes the lease and what Reached knows of it: another source has taken the
// place of this one, so whatever this one covered is older than what can be had.
func (l *Lease) Forget() { l.deadline.Store(forgotten) }

// Reached reports whether the proofs that the lease has had reach to at (mono nanoseconds),
// revoked since or not. It says nothing of what may be served, only how long ago the
// source was last known to work.
func (l *Lease) Reached(at int64) bool {
	d := l.deadline.Load()
	return at < max(d, -d)
}
