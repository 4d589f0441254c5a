package proxy

import (
	"slices"
	"time"

	"cosky-proxy/cluster"
)

// Hope. When a server of a cluster, or a master that Sentinels watch, is lost, another one takes its place
// within seconds. So what it has not been sent yet is not refused at once: it waits for the new master, or for
// the old one's return, until upstream.timeout, or little less (hopeTime), after the trouble began; so do requests that are streamed (upload.go). Everybody waits out the same
// trouble once: commands that come later are refused at once, until the node, or its successor,
// is in service. The time of each goes on meanwhile (deadline.go). One Redis alone has no successor, so there commands are refused at once.

// hopeful reports whether a node that is out of service may still be, or be replaced, in time.
func (n *node) hopeful(now int64) bool { return n.loop.resends && now < n.breaker.hopeUntil }

// unserved ends the present command, whose slot's node is out of service: it is refused, or, while there
// is hope, waits (false).
func (s *session) unserved(slot uint16, cause string) (done bool) {
	if s.hopes(slot, cause) {
		return false
	}
	s.refuse(cause)
	return true
}

// hopes has the session wait for whoever is to serve slot; cause is why nobody does. False: there is no hope.
func (s *session) hopes(slot uint16, cause string) bool {
	l := s.loop
	switch n, none := l.owner(slot); {
	case none == errUnbound:
		return s.hopesForOwner()
	case none == "" && n.breaker.retryAt != 0 && n.hopeful(l.now()):
		n.hoping = append(n.hoping, s)
	default:
		return false
	}
	return s.holdUp(waitNode, cause)
}

// unowned does what unserved does for a command that concerns a slot that nobody serves: while slots move it may be that none of the
// two nodes has said that it is its own.
func (s *session) unowned() (done bool) {
	if s.hopesForOwner() {
		return false
	}
	s.refuse(errUnbound)
	return true
}

func (s *session) hopesForOwner() bool {
	l := s.loop
	if !l.slotHopeful() {
		return false
	}
	l.missOwner()
	l.ownerless = append(l.ownerless, s)
	return s.holdUp(waitNode, errUnbound)
}

// awaitOwner lets r, whose slot nobody serves, wait for an owner.
func (l *loop) awaitOwner(r *request) {
	l.missOwner()
	if !l.slotHopeful() || !l.later(r, errUnbound) {
		l.abort(r, errUnbound)
	}
}

// missOwner has discovery look who serves the slots now.
func (l *loop) missOwner() {
	l.srv.opts.Topology.Refresh("a slot that is asked for is not served")
}

// slotHopeful reports whether a slot that nobody serves may be served in time. How long it has not been the topology
// knows, also when nobody has asked for a while.
func (l *loop) slotHopeful() bool { return l.now()-l.unownedSince < l.hopeTime() }

// wake lets those go on who wait for the node: it is in service, has been replaced, or there is no
// hope left.
func (n *node) wake() {
	hoping := n.hoping
	n.hoping = nil
	wake(hoping)
}

func wake(hoping []*session) {
	for _, s := range hoping {
		if s.wait == waitNode {
			s.resume()
		}
	}
}

// wakeOwnerless lets those go on whose slot nobody served, to look again: each tick, and with every new topology.
func (l *loop) wakeOwnerless() {
	hoping := l.ownerless
	l.ownerless = nil
	wake(hoping)
}

// hope lets commands know when they have waited for long enough. The loop's tick calls it.
func (n *node) hope(now int64) {
	if len(n.hoping) == 0 {
		return
	}
	if !n.hopeful(now) || n.loop.srv.opts.Cache.StaleFor > 0 && n.lost(now) { // or an entry may stand in now
		n.wake()
		return
	}
	n.loop.srv.opts.Topology.Refresh("clients wait for " + n.addr + " or its successor")
}

// refusal is a time in which a server answered commands with a refusal that is about its state
// (CLUSTERDOWN, LOADING, MASTERDOWN, READONLY): as with a node that is out of reach, every command waits
// for the end of it, but all of them together no longer than upstream.timeout.
type refusal struct {
	since, last int64 // (mono)
}

// refusalGap is the time without a refusal after which the next one is the first of another trouble.
// It is longer than the longest pause between two repeats.
const refusalGap = 2 * int64(repeatMax)

// noteRefusal reports whether it is worth while to repeat a command that the node has just refused.
func (n *node) noteRefusal(now int64) (worth bool) { return n.refusal.note(now, n.loop.hopeTime()) }

// note reports whether the trouble is younger than hopeTime.
func (r *refusal) note(now, hopeTime int64) bool {
	if r.last == 0 || now-r.last > refusalGap {
		r.since = now
	}
	r.last = now
	return now-r.since < hopeTime
}

// hopeTime is how long commands wait for the end of one trouble: for as long as their time allows, but for what it takes to
// ask once more and to be told by the server, rather than by a clock, why there is no answer.
func (l *loop) hopeTime() int64 {
	timeout := int64(l.srv.opts.Upstream.Timeout)
	return timeout - min(lastTryTime, timeout/4)
}

// lastTryTime is what is left of a command's time when it is sent again for the last time, unless all of it is short.
const lastTryTime = int64(250 * time.Millisecond)

// detain has r, which cannot be sent now, wait as long as there is hope.
func (l *loop) detain(r *request, cause string) {
	if r.sink == nil && l.standInFor(r) {
		return
	}
	n, none := l.owner(r.slot)
	hopeless := none == "" && n.breaker.retryAt != 0 && !n.hopeful(l.now())
	if none == errUnbound {
		hopeless = !l.slotHopeful()
	}
	if hopeless || !l.resends || !l.later(r, cause) {
		l.abort(r, cause)
	}
}

// depart notes whether a node that is no master any more has left for good: the cluster has declared that it
// has failed, or nobody knows it. One that was demoted politely answers what it was asked before. That Sentinels list it as a
// replica is no sign of life.
func (n *node) depart(t *cluster.Topology) {
	known := t.NodeAt(n.addr)
	switch {
	case known != nil && !known.Blocked && n.loop.clusters, slices.Contains(t.Spares, n.addr):
		n.goneAt = 0
	case n.goneAt == 0:
		n.goneAt = n.loop.now()
	}
}

// lastWords is how long a master that has been replaced may be silent before what it was asked is given up: a twentieth of
// upstream.timeout, between half a second and five. Sentinels do not say whether it has failed, so one that was demoted and lives
// gets time to say READONLY.
func (l *loop) lastWords() int64 {
	return int64(min(max(500*time.Millisecond, l.srv.opts.Upstream.Timeout/20), 5*time.Second))
}

// orphaned reports whether nothing more is to be expected on a connection to a master that has gone. Blocked
// clients, who may wait for ever, depend on it.
func (ln *lane) orphaned(now int64) bool {
	n := ln.node
	if n.goneAt == 0 || ln.inflight.len == 0 || ln.conn != nil && ln.conn.ReadPaused() {
		return false
	}
	if n.replica != nil && ln.inflight.head.sentAt > n.goneAt { // asked as what it is now
		return false
	}
	silentSince := ln.lastRead
	if !ln.loop.clusters && ln.kind == lanePin { // silence is what who blocks waits in
		silentSince = max(silentSince, n.goneAt)
	}
	return !ln.ready || now-silentSince > ln.loop.lastWords()
}
