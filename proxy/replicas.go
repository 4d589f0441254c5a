package proxy

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/router/command"
)

// Reads from replicas (upstream.read_from). A read of keys may be answered by another server than the owner
// of its slot: one that is proven to lag by no more than upstream.max_replica_lag, see cluster.Pulse. It travels
// on a shared lane of that server, and its reply takes its turn like any other.
//
// What is kept: a client's read is executed before what it sends behind it (session.astray), commands in a
// transaction or with keys watched, with connection state or a login of the client's own go to the
// owner, and so does everything that fills the near-cache. A read can be repeated, so one that a replica
// loses, or is not fit to answer, goes elsewhere.

// ReadFrom says which servers answer reads.
type ReadFrom string

// The values of upstream.read_from.
const (
	FromMaster           ReadFrom = "master"
	FromMasterPreferred  ReadFrom = "master_preferred"  // replicas while the master is out of reach
	FromReplica          ReadFrom = "replica"           // not the master, unless the replicas are new or slots on their way
	FromReplicaPreferred ReadFrom = "replica_preferred" // the master while no replica is fit
	FromNearest          ReadFrom = "nearest"           // whoever answers fastest
)

// ReadOptions say which servers answer reads.
type ReadOptions struct {
	From   ReadFrom      // empty: FromMaster
	Rules  []ReadRule    // exceptions; the first that names a command counts
	MaxLag time.Duration // how far behind a replica may be, and how long one may be silent

	OwnWrites bool // a client reads from a replica only what cannot be older than its own last write
}

// ReadRule is an exception for one command or one ACL category.
type ReadRule struct {
	Name string // in lower case: "hgetall", "@scripting"
	From ReadFrom
}

// Any reports whether a replica may answer anything, so that it is worth looking for them.
func (o *ReadOptions) Any() bool {
	elsewhere := func(f ReadFrom) bool { return f != "" && f != FromMaster }
	return elsewhere(o.From) || slices.ContainsFunc(o.Rules, func(r ReadRule) bool { return elsewhere(r.From) })
}

// source is a ReadFrom as requests and tables have it.
type source uint8

const (
	masterOnly source = iota
	masterFirst
	replicaOnly
	replicaFirst
	nearest
)

func (f ReadFrom) source() source {
	switch f {
	case FromMasterPreferred:
		return masterFirst
	case FromReplica:
		return replicaOnly
	case FromReplicaPreferred:
		return replicaFirst
	case FromNearest:
		return nearest
	}
	return masterOnly
}

// ownersReads are reads that only the owner can answer: those whose cursor, or whose answer, is about
// one server's memory rather than about the data.
var ownersReads = []string{"hscan", "sscan", "zscan", "touch", "object|freq", "object|idletime", "object|refcount", "object|encoding", "memory|usage", "xread"}

// newReadSources says for every command of t, by ID, who answers it; nil: always the owner.
func newReadSources(o *ReadOptions, t *command.Table) []source {
	if !o.Any() {
		return nil
	}
	list := make([]source, t.Count())
	for _, cmd := range t.All() {
		if straysAtAll(cmd) {
			list[cmd.ID] = o.fromOf(cmd).source()
		}
	}
	return list
}

// straysAtAll reports whether a replica could answer the command: a read of keys that does not block.
func straysAtAll(cmd *command.Command) bool {
	return cmd.Has(command.ReadOnly) && !cmd.Has(command.Blocking) && !cmd.Local && len(cmd.KeySpecs) > 0 && !slices.Contains(ownersReads, cmd.Name)
}

func (o *ReadOptions) fromOf(cmd *command.Command) ReadFrom {
	for _, r := range o.Rules {
		category, is := strings.CutPrefix(r.Name, "@")
		if r.Name == cmd.Name || is && cmd.Categories&command.Category(category) != 0 {
			return r.From
		}
	}
	return o.From
}

// Check refuses rules that could never apply. A name with a dot is a module's command, which nobody knows yet.
func (o *ReadOptions) Check() error {
	t := command.Builtin()
	for _, r := range o.Rules {
		name, category := strings.CutPrefix(r.Name, "@")
		cmd := t.Named(r.Name)
		switch {
		case category && command.Category(name) == 0:
			return fmt.Errorf("upstream.read_from_commands: there is no category %s", r.Name)
		case category, cmd == nil && strings.Contains(name, "."):
		case cmd == nil:
			return fmt.Errorf("upstream.read_from_commands: there is no command %s", r.Name)
		case !straysAtAll(cmd) && r.From != FromMaster:
			return fmt.Errorf("upstream.read_from_commands: only the master can answer %s", r.Name)
		}
	}
	return nil
}

// writesTooEarly notes that cmd may write. It reports whether it has to wait first for reads that are in flight to
// replicas, which could see it.
func (s *session) writesTooEarly(cmd *command.Command) bool {
	if !cmd.MayWrite() && cmd.Name != "exec" && !cmd.Has(command.Module) {
		return false
	}
	if s.astray && s.drain() {
		return true
	}
	s.wroteAt = unanswered
	return false
}

// unanswered is session.wroteAt while the last write may be in flight.
const unanswered = -1

// floor is the moment up to which a replica must have everything to be read from by s (mono).
func (s *session) floor(now int64) int64 {
	switch {
	case s == nil || !s.loop.srv.opts.Reads.OwnWrites:
		return 0
	case s.wroteAt == unanswered && s.inflight > 0:
		return math.MaxInt64
	case s.wroteAt == unanswered:
		s.wroteAt = now
	}
	return s.wroteAt
}

// readsFrom says who may answer the session's next command.
func (s *session) readsFrom(cmd *command.Command) source {
	l := s.loop
	if l.readSources == nil || s.tx != nil || s.home != nil || s.as != nil {
		return masterOnly
	}
	return l.readSources[cmd.ID]
}

// readLane is the connection on which a read of t travels that others than the owner may answer.
func (s *session) readLane(owner *node, t target) (ln *lane, cause string) {
	l := s.loop
	n := l.readable(owner, t.slot, t.from, s)
	if n == nil {
		return nil, errNoReplica(owner)
	}
	if n != owner {
		s.astray = true
		l.stats.ReplicaReads++
	}
	return n.lane(l.readKey(s.laneKey(), n))
}

func errNoReplica(owner *node) string {
	return "ERR cosky-proxy finds no replica of " + owner.addr + " that may be read from (upstream.read_from): all are out of reach, loading, or lag by more than upstream.max_replica_lag"
}

// readKey is what a read needs of a connection to n. The replicas of a cluster have to be told.
func (l *loop) readKey(key laneKey, n *node) laneKey {
	if n.replica != nil && l.clusters {
		key.replica = true
	}
	return key
}

// readable chooses who answers a read of slot: the same server for the same client, for as long as it is fit.
// nil: nobody may.
func (l *loop) readable(owner *node, slot uint16, from source, s *session) *node {
	i := 0
	if l.clusters {
		i = l.topo.ShardOf(slot)
	}
	now := l.now()
	if l.topo.Shards[i].Moving || owner.unsettled(now) { // its replicas would deny keys that have left
		return owner
	}
	chooser := uint64(0)
	floor := s.floor(now)
	if s != nil {
		chooser = uint64(s.id)
	}
	replicas := l.replicas[i]
	switch {
	case from == masterFirst && owner.alive(now):
		return owner
	case from == nearest:
		return l.nearest(owner, replicas, chooser, now, floor)
	}
	for k := range replicas {
		if n := replicas[(chooser+uint64(k))%uint64(len(replicas))]; n.fit(now, floor) {
			return n
		}
	}
	if from == replicaOnly && floor == 0 && !slices.ContainsFunc(replicas, func(n *node) bool { return n.newcomer(now) }) {
		return nil
	}
	return owner
}

// newcomer reports whether a replica, or what its shard owns, is so new that it could not be proven to be fit yet. The master
// stands in for it.
func (n *node) newcomer(now int64) bool {
	return n.replica.Pulse != nil && n.replica.Pulse.Young(now, 2*int64(n.loop.srv.opts.Reads.MaxLag))
}

// Servers whose answers take at most twice as long as the fastest one's, and a little, are equally near: what lies
// below is scheduling, not distance.
const alsoNear = 200 * time.Microsecond

func (l *loop) nearest(owner *node, replicas []*node, chooser uint64, now, floor int64) *node {
	fastest := time.Duration(-1)
	consider := func(p *cluster.Pulse) {
		if rtt := p.RTT(); rtt > 0 && (fastest < 0 || rtt < fastest) {
			fastest = rtt
		}
	}
	if owner.alive(now) {
		consider(owner.info.Pulse)
	}
	for _, n := range replicas {
		if n.fit(now, floor) {
			consider(n.replica.Pulse)
		}
	}
	limit := 2*fastest + alsoNear
	near := 0
	if owner.alive(now) && owner.info.Pulse.RTT() <= limit {
		near++
	}
	for _, n := range replicas {
		if n.fit(now, floor) && n.replica.Pulse.RTT() <= limit {
			near++
		}
	}
	if near == 0 {
		return owner
	}
	chosen := int(chooser % uint64(near))
	for _, n := range replicas {
		if n.fit(now, floor) && n.replica.Pulse.RTT() <= limit {
			if chosen == 0 {
				return n
			}
			chosen--
		}
	}
	return owner
}

// alive reports whether an owner is believed to answer.
func (n *node) alive(now int64) bool {
	return n.well() && n.info != nil && n.info.Pulse != nil && n.info.Pulse.Alive(now)
}

// fit reports whether a replica may be read from, and has everything up to floor.
func (n *node) fit(now, floor int64) bool {
	if n.replica == nil || n.replica.Blocked || n.replica.Pulse == nil {
		return false
	}
	p := n.replica.Pulse
	return p.Alive(now) && (floor == 0 || p.Has() > floor) && n.breaker.retryAt == 0 && now >= n.unfitUntil
}

// unfitFor is how long a replica is left alone that has lost or refused a read.
const unfitFor = int64(time.Second)

// readAgain sends a read elsewhere that ln, a replica's, has lost or refused. False: it was the owner that
// did, or there is nobody else in time.
func (l *loop) readAgain(ln *lane, r *request) bool {
	n, now := ln.node, l.now()
	if r.from == masterOnly || n.replica == nil || r.state != replyWaiting || len(r.raw) == 0 {
		return false
	}
	n.unfitUntil = now + unfitFor
	if r.sess == nil && r.sink == nil {
		return false
	}
	if int(r.retries) >= l.srv.opts.Upstream.MaxRedirects || l.expired(r) {
		return false
	}
	owner, cause := l.owner(r.slot)
	if cause != "" {
		return false
	}
	next := l.readable(owner, r.slot, r.from, r.client())
	if next == nil {
		return false
	}
	to, cause := next.lane(l.readKey(r.laneKey(), next))
	if cause != "" {
		return false
	}
	r.retries++
	l.stats.Retries++
	to.prepare(r)
	to.send(r, r.raw)
	return true
}

// unfitSays reports whether an error says that a replica cannot answer at present (server.c: processCommand).
func unfitSays(word []byte) bool {
	switch string(word) {
	case "LOADING", "MASTERDOWN", "CLUSTERDOWN":
		return true
	}
	return false
}

// witness is the node whose invalidation streams tell what r's reply may reveal: the owner, whoever answered.
func (n *node) witness(r *request) *node {
	if n.replica == nil {
		return n
	}
	if owner, cause := n.loop.owner(r.slot); cause == "" {
		return owner
	}
	return nil
}

// wilted reports whether reads wait for a replica that may be dead or frozen: it is no longer
// proven to be fit, and says nothing. What it was sent as a master, before it was demoted, is waited for as long as ever.
func (ln *lane) wilted(now int64) bool {
	n, r := ln.node, ln.inflight.head
	return n.replica != nil && r != nil && r.from != masterOnly && !n.fit(now, 0) && now-max(ln.lastRead, r.sentAt) > int64(ln.loop.srv.opts.Reads.MaxLag)
}

// adoptReplicas makes those of t the ones to read from.
func (l *loop) adoptReplicas(t *cluster.Topology) {
	l.replicas = l.replicas[:0]
	if l.readSources == nil {
		return
	}
	wanted := make(map[*node]bool)
	for i := range t.Shards {
		var list []*node
		for _, info := range t.Shards[i].Replicas {
			n := l.node(info.Addr)
			if n.replica == nil {
				n.dismiss() // what it was before, its connections are no good for reads
				n.marked(false)
			}
			n.replica, wanted[n] = info, true
			list = append(list, n)
		}
		l.replicas = append(l.replicas, list)
	}
	for _, n := range l.nodes {
		if n.replica != nil && !wanted[n] {
			n.replica = nil
			n.dropReadLanes()
		}
	}
	for _, n := range l.shards {
		n.marked(n.breaker.retryAt != 0)
	}
}

// dropReadLanes lets the connections go that only a replica needs.
func (n *node) dropReadLanes() {
	for ln := range n.opened {
		switch {
		case !ln.key.replica:
		case ln.inflight.len == 0:
			ln.fail("")
		default:
			n.retire(ln)
		}
	}
}
