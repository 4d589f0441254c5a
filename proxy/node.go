package proxy

import (
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/nearcache/lease"
	"cosky-proxy/proxy/stats"
)

// node is one Redis server as one loop sees it: its lanes and its health. All of
// it is owned by the loop.
type node struct {
	loop *loop
	addr string
	info *cluster.Node // newest topology's view; nil for a redirect target not in it yet

	shared    map[laneKey]*lane      // lanes that take new requests
	plain     [2]*lane               // shared lanes of plain keys, by protocol, without the map
	fetch     map[int32]*lane        // by database
	fallen    map[int32]*lease.Lease // of the last fetch lane that was lost, by database, until another takes its place
	idle      map[laneKey][]*lane
	asides    map[laneKey]*lane  // shared by commands that must not wait for a script; opened on demand
	opened    map[*lane]struct{} // every lane that is not closed, retired ones and pins included
	outage    *outage            // whether it is out of reach, as all loops know it together
	stats     *stats.Node
	breaker   breaker
	hoping    []*session // that wait for it to be in service again, see hope.go
	refusal   refusal
	heardAt   int64  // when it last said anything on a lane (mono)
	goneAt    int64  // when it left the topology for good (mono); 0: it has not
	goneIn    uint64 // bytes of connections that have closed
	goneOut   uint64
	refetchAt int64 // do not open a fetch lane before (mono)
	asideAt   int64 // last sidestep (mono)
	movedAt   int64 // when a slot of it was last seen to be on the move (mono); 0: never
	missed    bool  // counted in Server.down

	replica    *cluster.Node // newest topology's view of a replica that may be read from; nil: it is none
	unfitUntil int64         // not to be read from before (mono)
}

func (l *loop) node(addr string) *node {
	n := l.nodes[addr]
	if n == nil {
		n = &node{
			loop: l, addr: addr,
			shared: make(map[laneKey]*lane), fetch: make(map[int32]*lane), fallen: make(map[int32]*lease.Lease),
			idle: make(map[laneKey][]*lane), asides: make(map[laneKey]*lane), opened: make(map[*lane]struct{}),
			stats: l.stats.Node(addr), outage: l.srv.outages.join(addr),
		}
		l.nodes[addr] = n
	}
	return n
}

// lane returns the shared lane for key, opening it when there is none. cause is
// an error line when the node is known to be out of reach at the moment.
func (n *node) lane(key laneKey) (ln *lane, cause string) {
	if key.plain() {
		ln = n.plain[index(key.resp3)]
	} else {
		ln = n.shared[key]
	}
	if ln != nil {
		return ln, ""
	}
	if n.avoided() {
		return nil, n.breaker.cause
	}
	ln = n.open(key, laneShared)
	n.list(ln)
	return ln, ""
}

// list puts ln in service for what is to come.
func (n *node) list(ln *lane) {
	n.shared[ln.key] = ln
	if ln.key.plain() {
		n.plain[index(ln.key.resp3)] = ln
	}
}

// asideLane is a shared connection that never carries a script, so that one can be stopped. Its login
// is all that Redis executes meanwhile, so key has database 0.
func (n *node) asideLane(key laneKey) (ln *lane, cause string) {
	if ln = n.asides[key]; ln != nil {
		return ln, ""
	}
	if n.avoided() {
		return nil, n.breaker.cause
	}
	ln = n.open(key, laneShared)
	n.asides[key] = ln
	return ln, ""
}

func index(b bool) int {
	if b {
		return 1
	}
	return 0
}

// refetchPause is how long a node is left alone that refuses a fetch lane, for
// instance because the proxy's user may not use CLIENT TRACKING.
const refetchPause = 5 * time.Second

func (n *node) refetchLater(reason string) {
	n.refetchAt = n.loop.now() + int64(refetchPause)
	n.loop.srv.log.Warn("nothing is cached from this backend: it refuses the tracking connection", "node", n.addr, "reply", reason)
}

// unsettledFor is how long a node counts as handing over slots after a sign of it.
const unsettledFor = int64(time.Second)

// unsettled reports whether slots of the node are on the move. A command of several
// keys may then have to be sent again, while one behind it on one of those keys would be
// executed at once, so it travels alone.
func (n *node) unsettled(now int64) bool { return n.movedAt != 0 && now-n.movedAt < unsettledFor }

// retire takes a shared lane out of service; it closes when it has drained.
func (n *node) retire(ln *lane) {
	if ln.retired {
		return
	}
	ln.retired = true
	n.unlist(ln)
	if ln.inflight.len > 0 {
		n.loop.laneEpoch++
	}
}

func (n *node) unlist(ln *lane) {
	if n.shared[ln.key] == ln {
		delete(n.shared, ln.key)
		if ln.key.plain() {
			n.plain[index(ln.key.resp3)] = nil
		}
	}
	if n.asides[ln.key] == ln {
		delete(n.asides, ln.key)
	}
	if n.fetch[ln.key.db] == ln {
		delete(n.fetch, ln.key.db)
	}
}

// forget removes a closed lane everywhere.
func (n *node) forget(ln *lane) {
	n.unlist(ln)
	delete(n.opened, ln)
	delete(n.loop.vigil, ln)
	n.stats.Connections--
	if n.breaker.trial == ln {
		n.breaker.trial = nil
	}
	if ln.kind == lanePin {
		n.loop.pins--
		n.loop.srv.pins.Add(-1)
		n.dropIdle(ln)
	}
	if ln.kind == laneFetch {
		n.loop.srv.fetchLanes.Add(-1)
	}
}

func (n *node) dropIdle(ln *lane) {
	idle := n.idle[ln.key]
	for i, o := range idle {
		if o == ln {
			n.idle[ln.key] = append(idle[:i], idle[i+1:]...)
			break
		}
	}
	if len(n.idle[ln.key]) == 0 { // keys come and go with clients' logins
		delete(n.idle, ln.key)
	}
}

// pin leases a private connection to s.
func (n *node) pin(s *session, key laneKey) (ln *lane, cause string) {
	key.bulk = false
	if idle := n.idle[key]; len(idle) > 0 {
		ln = idle[len(idle)-1]
		n.idle[key] = idle[:len(idle)-1]
		ln.owner = s
		return ln, ""
	}
	return n.private(s, key)
}

// private opens a private connection for s.
func (n *node) private(s *session, key laneKey) (ln *lane, cause string) {
	key.bulk = false
	if n.avoided() {
		return nil, n.breaker.cause
	}
	l := n.loop
	if l.pins >= l.srv.opts.Upstream.MaxPins {
		return nil, l.errNoPins()
	}
	if !l.srv.fileLeft() {
		return nil, errNoFiles
	}
	l.pins++
	l.srv.pins.Add(1)
	ln = n.open(key, lanePin)
	ln.owner = s
	return ln, ""
}

// maxIdlePins is how many unused private connections a node keeps per lane key.
const maxIdlePins = 8

// unpin takes a private connection back. Only one that holds no state and owes
// no reply may serve another session.
func (n *node) unpin(ln *lane) {
	ln.owner = nil
	if ln.closed {
		return
	}
	if ln.strayed || ln.inflight.len > 0 || !ln.ready || ln.scanner.Started() || len(n.idle[ln.key]) >= maxIdlePins {
		ln.fail("")
		return
	}
	n.idle[ln.key] = append(n.idle[ln.key], ln)
}
