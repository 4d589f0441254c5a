package proxy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"cosky-proxy/proxy/mono"
)

// breaker is the circuit breaker of a node: it keeps clients from waiting, again and again, for a server
// that does not serve.
//
//	closed     Commands travel. It opens when a connection cannot be made or is turned away, when two in a row
//	           end before the node has said anything, and when nothing at all has been heard for upstream.timeout.
//	open       No new connection is made, so commands fail at once (or hope, see hope.go).
//	half-open  After a pause, one connection is tried, with a PING of the proxy's own and
//	           nothing of any client's. If it is answered, the breaker closes and the connection goes into
//	           service; if not within upstream.connect_timeout, the breaker is open for another
//	           pause, twice as long, with jitter.
//
// Commands ask for it only where a connection would be opened (node.lane): as long as there is one, the
// breaker costs nothing. The libraries of the trade (gobreaker, failsafe-go) count calls
// under a lock; here the loop is the lock, and connections are what fails.
type breaker struct {
	// loop-owned
	retryAt   int64 // when the next trial is due (mono); 0: closed
	backoff   time.Duration
	cause     string // why it is not closed, as an error line
	trial     *lane  // the connection being tried; nil: open or closed
	mute      bool   // opened because nothing was heard: a byte on any old connection closes it
	hopeUntil int64  // until then commands wait for the node or its successor (mono)
	stillborn int    // connections in a row that ended before the node had said anything
	triedAt   int64  // when a node without connections was last looked at (mono)
}

// avoided reports whether no connection to the node may be opened at the moment. One that is in no
// topology, because a redirect names it, has nobody who tries it out but the command itself.
func (n *node) avoided() bool {
	b := &n.breaker
	if b.retryAt == 0 || n.info == nil && n.replica == nil && n.loop.now() >= b.retryAt {
		return false
	}
	n.stats.Refused++
	return true
}

// unreachable notes that the node could not be connected to.
func (n *node) unreachable(err error) {
	l := n.loop
	if n.breaker.retryAt == 0 {
		l.srv.log.Warn("backend unreachable", "node", n.addr, "error", dialCause(err).Error())
	}
	n.trip(fmt.Sprintf("ERR cosky-proxy cannot reach backend %s: %v", n.addr, dialCause(err)), l.now())
	l.srv.opts.Topology.Refresh("cannot reach " + n.addr)
}

// stillborn notes that a connection ended before the node had said anything. That may happen once, when somebody
// closes it; again and again it does when something in front of a dead node accepts connections.
func (n *node) stillborn(err error) {
	if n.breaker.stillborn++; n.breaker.stillborn > 1 {
		n.unreachable(err)
	}
}

// refused notes a failed login: nothing but a changed configuration helps, so
// clients are told at once while it is tried again now and then.
func (n *node) refused(reason string) {
	if strings.Contains(reason, "DB index is out of range") {
		return
	}
	if n.breaker.retryAt == 0 {
		n.loop.srv.log.Error("backend refuses the proxy's login", "node", n.addr, "reply", reason)
	}
	n.trip("ERR cosky-proxy cannot log in to backend "+n.addr+": "+reason, n.loop.now())
	n.breaker.hopeUntil = 0
}

// silent notes that a command has waited for upstream.timeout since the given moment. If the node
// has said nothing to anybody for most of that time, it is the node and not the command: its connections take no
// further requests.
func (n *node) silent(since int64) {
	l, timeout := n.loop, int64(n.loop.srv.opts.Upstream.Timeout)
	if n.breaker.retryAt != 0 || l.now()-n.heardAt < timeout-timeout/4 {
		return
	}
	l.srv.log.Warn("backend does not answer", "node", n.addr, "limit", "upstream.timeout")
	n.breaker.mute = true
	n.trip(fmt.Sprintf("ERR cosky-proxy cannot reach backend %s: it has not answered for %s", n.addr, l.srv.opts.Upstream.Timeout), since)
	for ln := range n.opened {
		switch {
		case ln.inflight.len == 0 && ln.owner == nil:
			ln.fail("")
		case ln.kind == laneShared:
			n.retire(ln)
		}
	}
	n.tryOut(l.now())
}

// unanswered notes that a connection that was tried has got no answer. As that took its time, the next one
// need not wait for long: the node, if it was only frozen, answers the one that it finds.
func (n *node) unanswered() {
	n.breaker.backoff = n.loop.srv.opts.Upstream.BackoffMin
	n.unreachable(errNoAnswer)
}

// trip opens the breaker, or keeps it open for another pause. since is when the trouble began.
func (n *node) trip(cause string, since int64) {
	l, b := n.loop, &n.breaker
	b.cause = cause
	if b.retryAt == 0 {
		n.marked(true)
		n.stats.Trips++
		n.stats.Open = 1
		b.backoff = l.srv.opts.Upstream.BackoffMin
		b.hopeUntil = since + l.hopeTime()
	}
	pause := b.backoff/2 + rand.N(b.backoff+1)
	b.retryAt = mono.Now() + int64(pause)
	l.nl.AfterFunc(pause, func() { n.probe(mono.Now()) })
}

// marked counts the node among those without which the proxy is not ready, or no longer. A replica never is.
func (n *node) marked(down bool) {
	if down = down && n.replica == nil; down != n.missed {
		n.missed = down
		if down {
			n.loop.srv.down.Add(1)
		} else {
			n.loop.srv.down.Add(-1)
		}
	}
}

// reachable closes the breaker.
func (n *node) reachable() {
	if n.breaker.retryAt == 0 {
		return
	}
	n.marked(false)
	n.loop.srv.log.Info("backend reachable again", "node", n.addr)
	n.stats.Open = 0
	n.breaker = breaker{triedAt: n.breaker.triedAt}
	n.wake()
}

// probe tries the node when its pause is over. The loop's tick calls it, too, for a pause that
// was cut short.
func (n *node) probe(now int64) {
	if b := &n.breaker; b.retryAt != 0 && now >= b.retryAt {
		n.tryOut(now)
	}
}

// checkPause keeps a node that closes every connection from being dialled all the time.
const checkPause = time.Second

// check finds out whether a node that closed its last connection is still there,
// so that readiness does not wait for the next command to notice.
func (n *node) check() {
	if now := n.loop.now(); n.breaker.retryAt == 0 && now-n.breaker.triedAt > int64(checkPause) {
		n.tryOut(now)
	}
}

// tryOut opens the lane that the next command will want and has it answer.
func (n *node) tryOut(now int64) {
	b := &n.breaker
	if n.info == nil && n.replica == nil || b.trial != nil {
		return
	}
	key := n.loop.readKey(laneKey{resp3: n.loop.srv.abilities.Load().tracking}, n)
	switch {
	case b.retryAt != 0:
		b.backoff = min(2*b.backoff, n.loop.srv.opts.Upstream.BackoffMax)
		b.trial = n.open(key, laneShared)
		b.trial.probe = true
	case len(n.shared) == 0:
		b.triedAt = now
		if ln, _ := n.lane(key); ln != nil {
			ln.probe = true
		}
	}
}

// passed: the connection that was tried has been answered, and goes into service.
func (ln *lane) passed() {
	n := ln.node
	n.breaker.trial = nil
	if n.shared[ln.key] == nil {
		n.list(ln)
		return
	}
	n.retire(ln)
}

// errNoAnswer is why a connection that was tried is given up.
var errNoAnswer = errors.New("it accepts connections, but does not answer")

// serving reports whether a server that answers a PING in this way executes commands. One that is busy with a
// script or out of memory does, after a fashion, and clients have to hear its own words.
func serving(word []byte) bool { return string(word) != "LOADING" && string(word) != "MASTERDOWN" }
