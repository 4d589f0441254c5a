package proxy

import (
	"bytes"
	"fmt"
	"slices"

	"cosky-proxy/cluster/slot"
	"cosky-proxy/router"
	"cosky-proxy/router/command"
)

// scatter is one command that several shards execute parts of. Its parent is the
// place in the client's reply queue; the children travel on lanes and come back
// here in any order.
type scatter struct {
	parent  *request
	merge   router.Merge
	answers router.Answers // by child
	missing int            // children that have not answered
	alone   []*request     // children with memory of their own; those that have answered may be other requests by now
	size    int            // bytes of the replies so far
	after   func(l *loop, ok bool, reply []byte) []byte

	// Of a command whose keys are divided; such a scatter goes back to the loop. What its parts need lies
	// together: a thousand commands under way are ten thousand requests, and each would be a cache miss or two.
	parts    router.Parts
	children []request
	sent     []byte // what children keep of themselves
	store    []byte // holds the replies
	next     *scatter
}

// scatterKeys splits a multi-key command by slot.
func (s *session) scatterKeys(cmd *command.Command, args [][]byte, step int) bool {
	l := s.loop
	e := l.effect.reset()
	for _, k := range l.keys {
		l.concern(e, args[k], cmd.Flags&command.Write != 0)
	}
	if s.fetching > 0 && !e.none() {
		return !s.drain()
	}
	sc := l.divide(args, step)
	shares, from := sc.parts.Shares, s.readsFrom(cmd)
	lanes, wait := s.lanesFor(len(shares), func(i int) target { return target{shares[i].Slot, true, from} })
	if lanes == nil {
		l.recycle(sc)
		return !wait
	}
	if l.mayTryAgain(shares, lanes) {
		if s.drain() {
			l.recycle(sc)
			return false
		}
		s.exclusive = true
	}
	e.hushes = s.home != nil // Redis announces what a command has changed after its reply
	sc.collect(s.openParent(cmd, e), router.MergeFor(cmd))
	for i := range shares {
		sc.launchShare(l, lanes[i], i, args, step, from)
	}
	return true
}

// mayTryAgain reports whether one of the shares may have to be repeated because its slot is on the way, see node.unsettled.
func (l *loop) mayTryAgain(shares []router.Share, lanes []*lane) bool {
	for i, ln := range lanes {
		if ln != nil && shares[i].Several() && ln.node.unsettled(l.now()) {
			return true
		}
	}
	return false
}

// divide takes a scatter from the loop's stock and divides the keys of args.
func (l *loop) divide(args [][]byte, step int) *scatter {
	sc := l.scatters
	if sc == nil {
		sc = new(scatter)
	} else {
		l.scatters, sc.next = sc.next, nil
		l.scattersLen--
	}
	l.splitter.Split(&sc.parts, args, step, slot.Of)
	return sc
}

// collect has a divided scatter wait for the answers to its parts.
func (sc *scatter) collect(parent *request, merge router.Merge) {
	n := len(sc.parts.Shares)
	sc.parent, sc.merge, sc.missing, parent.parts = parent, merge, n, sc
	sc.answers.Parts, sc.answers.RESP3 = &sc.parts, parent.resp3
	sc.answers.Replies = slices.Grow(sc.answers.Replies, n)[:n]
	sc.children = slices.Grow(sc.children, n)[:n]
}

const (
	maxFreeScatters = 1024
	maxKeptKeys     = 256     // what larger commands needed is not kept
	maxKeptChildren = 32      // capacity, as the next
	maxKeptStore    = 4 << 10 // of each
	maxKeptMerge    = 1 << 16
)

// recycle takes a divided scatter back. Nobody may hold it any more.
func (l *loop) recycle(sc *scatter) {
	if l.scattersLen >= maxFreeScatters || sc.parts.Keys() > maxKeptKeys {
		return
	}
	parts, children, sent, store, replies := sc.parts, sc.children, sc.sent[:0], sc.store[:0], sc.answers.Replies
	if cap(children) > maxKeptChildren {
		children = nil
	}
	if cap(sent) > maxKeptStore {
		sent = nil
	}
	if cap(store) > maxKeptStore {
		store = nil
	}
	clear(replies) // an earlier store may be behind them
	*sc = scatter{parts: parts, children: children[:0], sent: sent, store: store, answers: router.Answers{Replies: replies[:0]}, next: l.scatters}
	l.scatters = sc
	l.scattersLen++
}

// scatterAll sends a command to every server it concerns.
func (s *session) scatterAll(cmd *command.Command, args [][]byte, raw []byte, e *effectScratch) bool {
	l := s.loop
	merge := router.MergeFor(cmd)
	switch {
	case merge == nil:
		s.refuse(unsupportedOnCluster(cmd))
		return true
	case l.topo.Uncovered() > 0: // a partial answer would be a wrong one
		return s.unowned()
	}
	e.hushes = s.home != nil // see scatterKeys
	var sc *scatter
	var ok bool
	if router.ScopeOf(cmd) == router.AllNodes {
		sc, ok = s.sendToEach(cmd, merge, raw, e, l.everyNode(), s.lane)
	} else {
		sc, ok = s.broadcast(cmd, merge, raw, e)
	}
	if sc != nil {
		sc.keepArgs(args)
	}
	return ok
}

// keepArgs shows the merge what was asked for.
func (sc *scatter) keepArgs(args [][]byte) {
	for _, a := range args {
		sc.answers.Args = append(sc.answers.Args, bytes.Clone(a))
	}
}

// everyNode are all masters and replicas.
func (l *loop) everyNode() []*node {
	nodes := slices.Concat(l.shards, l.spares())
	for i := range l.topo.Shards {
		for _, replica := range l.topo.Shards[i].Replicas {
			nodes = append(nodes, l.node(replica.Addr))
		}
	}
	return nodes
}

// aside sends a command that Redis executes while a script runs, to every master, on connections
// that no script holds up. What the client itself has sent before comes first.
func (s *session) aside(cmd *command.Command, args [][]byte, raw []byte, e *effectScratch) bool {
	if s.drain() {
		return false
	}
	s.exclusive = true
	sc, ok := s.sendToEach(cmd, router.MergeFor(cmd), raw, e, s.loop.shards, func(n *node) (*lane, string) {
		return n.asideLane(laneKey{resp3: s.resp3, as: s.as})
	})
	if sc != nil {
		sc.keepArgs(args)
	}
	return ok
}

// sendToEach sends raw to these very servers, which nobody else can answer for; via chooses the connection. sc is nil
// when the command was refused or has to wait (ok false).
func (s *session) sendToEach(cmd *command.Command, merge router.Merge, raw []byte, e *effectScratch, nodes []*node, via func(*node) (*lane, string)) (sc *scatter, ok bool) {
	if s.fetching > 0 && !e.none() {
		return nil, !s.drain()
	}
	if len(nodes) == 0 {
		s.refuse(errNoBackend)
		return nil, true
	}
	lanes, ok := s.lanesTo(nodes, via)
	if lanes == nil {
		return nil, ok
	}
	sc = s.open(cmd, merge, len(lanes), e)
	for i, ln := range lanes {
		ln.send(sc.child(s.loop, ln, i), raw)
	}
	return sc, true
}

// lanesTo are the connections to these servers. Nil: the command was refused, or, when ok is false, has to wait for room.
func (s *session) lanesTo(nodes []*node, via func(*node) (*lane, string)) (lanes []*lane, ok bool) {
	lanes = make([]*lane, 0, len(nodes))
	for _, n := range nodes {
		ln, cause := via(n)
		switch {
		case cause != "":
			s.refuse(cause)
			return nil, true
		case ln.full():
			return nil, s.noRoom(ln)
		}
		lanes = append(lanes, ln)
	}
	return lanes, true
}

// spares are masters that own no slot.
func (l *loop) spares() []*node {
	nodes := make([]*node, 0, len(l.topo.Spares))
	for _, addr := range l.topo.Spares {
		nodes = append(nodes, l.node(addr))
	}
	return nodes
}

// broadcast sends raw to every shard, and to masters that slots may be on their way to; sc is nil when the command was refused or
// has to wait (ok false).
func (s *session) broadcast(cmd *command.Command, merge router.Merge, raw []byte, e *effectScratch) (sc *scatter, ok bool) {
	l := s.loop
	if s.fetching > 0 && !e.none() {
		return nil, !s.drain()
	}
	targets := l.everyShard()
	if len(targets) == 0 {
		s.refuse(errNoBackend)
		return nil, true
	}
	lanes, wait := s.lanesFor(len(targets), func(i int) target { return targets[i] })
	if lanes == nil {
		return nil, !wait
	}
	spares, ok := s.lanesTo(l.spares(), s.lane)
	if spares == nil {
		return nil, ok
	}
	sc = s.open(cmd, merge, len(lanes)+len(spares), e)
	for i, ln := range lanes {
		sc.launch(l, ln, i, raw, targets[i])
	}
	for i, ln := range spares {
		ln.send(sc.child(l, ln, len(lanes)+i), raw)
	}
	return sc, true
}

// everyShard has one target per shard: any slot it owns.
func (l *loop) everyShard() []target {
	if !l.clusters {
		return []target{{}}
	}
	seen := make([]bool, len(l.shards))
	var ts []target
	for sl := range uint16(slot.Count) {
		if i := l.topo.ShardOf(sl); i >= 0 && !seen[i] {
			seen[i] = true
			ts = append(ts, target{slot: sl})
		}
	}
	return ts
}

// lanesFor finds the lanes of n targets, in scratch of the loop; one whose slot nobody serves at the moment
// has none. Nil: the command was refused, or, when wait is true, has to wait for room.
func (s *session) lanesFor(n int, at func(int) target) (lanes []*lane, wait bool) {
	lanes = s.loop.lanes[:0]
	for i := range n {
		ln, cause := s.laneTo(at(i))
		if cause != "" {
			return nil, !s.unserved(at(i).slot, cause)
		}
		if ln != nil && ln.full() {
			return nil, !s.noRoom(ln)
		}
		lanes = append(lanes, ln)
	}
	s.loop.lanes = lanes
	return lanes, false
}

// open puts the parent into the reply queue.
func (s *session) open(cmd *command.Command, merge router.Merge, n int, e *effectScratch) *scatter {
	return newScatter(s.openParent(cmd, e), merge, n)
}

// newScatter collects n answers for parent.
func newScatter(parent *request, merge router.Merge, n int) *scatter {
	sc := &scatter{parent: parent, merge: merge, missing: n, alone: make([]*request, 0, n)}
	parent.parts = sc
	sc.answers.Replies, sc.answers.From, sc.answers.RESP3 = make([][]byte, n), make([]string, n), parent.resp3
	return sc
}

// openParent is the place in the reply queue of a command for which others are sent.
func (s *session) openParent(cmd *command.Command, e *effectScratch) *request {
	l := s.loop
	p := l.newRequest(s, cmd)
	p.sentAt = l.now()
	l.begin(p, e)
	s.enqueue(p)
	return p
}

// child is the request for the part number i, which travels on ln.
func (sc *scatter) child(l *loop, ln *lane, i int) *request {
	c := l.newRequest(nil, nil)
	sc.adopt(l, c, i)
	sc.alone = append(sc.alone, c)
	if ln != nil && sc.answers.From != nil {
		sc.answers.From[i] = ln.node.addr
	}
	return c
}

// adopt makes c the request for the part number i.
func (sc *scatter) adopt(l *loop, c *request, i int) {
	c.sink, c.index, c.limit, c.since = sc, int32(i), l.srv.opts.Clients.MaxRequest, sc.parent.since
	c.takeKey(sc.parent.laneKey())
	c.caching = sc.parent.caching
}

// launch sends a part to the owner of t, whoever that is when it has to be sent again.
func (sc *scatter) launch(l *loop, ln *lane, i int, raw []byte, t target) {
	c := sc.child(l, ln, i)
	c.raw = append(c.raw[:0], raw...)
	c.launch(l, ln, t, raw)
}

// launchShare sends share i of args to the owner of its slot.
func (sc *scatter) launchShare(l *loop, ln *lane, i int, args [][]byte, step int, from source) {
	c := &sc.children[i]
	*c = request{inScatter: true, hotEpoch: l.hotEpoch}
	sc.adopt(l, c, i)
	// Put together where the caches have it: read back from what is kept, it would have to arrive there first.
	l.enc = sc.parts.AppendShare(l.enc[:0], args, step, i)
	start := len(sc.sent)
	sc.sent = append(sc.sent, l.enc...) // when it grows, what others keep stays where it is
	c.raw = sc.sent[start:len(sc.sent):len(sc.sent)]
	c.launch(l, ln, target{sc.parts.Shares[i].Slot, true, from}, l.enc)
}

// launch sends r, whose bytes are raw, to t.
func (r *request) launch(l *loop, ln *lane, t target, raw []byte) {
	r.slot, r.keyed, r.from = t.slot, t.keyed, t.from
	if ln == nil {
		l.awaitOwner(r)
		return
	}
	ln.send(r, raw)
}

// deliver takes one child's reply; the last one completes the command.
func (sc *scatter) deliver(l *loop, r *request, reply []byte) {
	if r.overrun || sc.size+len(reply) > l.srv.opts.Clients.MaxRequest {
		reply = fmt.Appendf(nil, "-ERR the merged reply would exceed clients.max_request (%d bytes); ask for fewer keys at once\r\n", l.srv.opts.Clients.MaxRequest)
	}
	sc.size += len(reply)
	// When the store grows, earlier replies stay where they are.
	from := len(sc.store)
	sc.store = append(sc.store, reply...)
	sc.answers.Replies[r.index] = sc.store[from:len(sc.store):len(sc.store)]
	sc.parent.origin, sc.parent.retries = r.origin, max(sc.parent.retries, r.retries) // of the last one, for which the others have waited
	l.release(r)
	sc.missing--
	if sc.missing == 0 {
		sc.complete(l)
	}
}

// complete answers the command.
func (sc *scatter) complete(l *loop) {
	p := sc.parent
	p.parts = nil
	sc.answers.Out = l.merged
	merged := sc.merge(&sc.answers)
	if l.merged = sc.answers.Out; cap(l.merged) > maxKeptMerge {
		l.merged = nil
	}
	failed := merged[0] == '-'
	if failed && l.standInFor(p) {
		return
	}
	if sc.after != nil {
		merged = sc.after(l, !failed, merged)
	}
	l.countReply(p.cmd, p.sentAt, failed)
	if !p.barrier || !l.raise(p, nil, merged) {
		l.hand(p, merged) // to its client, or as a part of EXEC's reply
	}
	if sc.answers.Parts != nil {
		l.recycle(sc)
	}
}

// countReply counts the answer of a command that no single node gave.
func (l *loop) countReply(cmd *command.Command, since int64, failed bool) {
	c := &l.stats.Commands[cmd.ID]
	c.Calls++
	c.Latency.Observe(l.now() - since)
	if failed {
		c.Errors++
	}
}
