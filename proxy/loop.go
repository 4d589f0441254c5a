package proxy

import (
	"fmt"
	"sync/atomic"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/lua"
	"cosky-proxy/nearcache"
	"cosky-proxy/proxy/heat"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/proxy/stats"
	"cosky-proxy/router"
	"cosky-proxy/router/command"
)

// loop is one event loop with everything it owns: its clients, its backend
// connections, its buffers. No other goroutine touches any of it; what comes
// from outside arrives through nl.Post.
type loop struct {
	// static
	id       int
	srv      *Server
	nl       *netloop.Loop
	clusters bool // the backend is a Redis Cluster: keys have owners, replies may redirect
	resends  bool // the backend may have to be asked again elsewhere: requests are kept for that
	cache    *nearcache.Cache
	rules    *ruleSet  // what else than CoSky's keys may be cached; nil: nothing
	guard    guard     // who clients are and what they may do; nil: everything
	throttle *throttle // how many commands they may send; nil: any number

	// loop-owned
	table    *command.Table
	handlers []handler // by command ID; nil: forward
	reads    []*read   // by command ID; nil: never kept

	readSources []source  // by command ID; nil: the owner answers everything
	replicas    [][]*node // by shard index of topo, those that may be read from; none unless readSources are

	topo         *cluster.Topology
	shards       []*node // by shard index of topo
	nodes        map[string]*node
	sessions     map[*session]struct{}
	unownedSince int64      // since when there have been so many slots that nobody serves (mono)
	ownerless    []*session // whose present command waits for somebody to serve its slot
	laneEpoch    uint64     // bumped when requests may travel another way than those in flight; see session.dispatch
	seq          uint64     // of the request sent last
	pins         int
	draining     bool
	paused       pauseState
	connecting   connecting
	monitors     map[*session]struct{} // clients of this loop that monitor
	monitored    int                   // clients of all loops that monitor
	refused      bool                  // the command that was dispatched last; read by dispatchShown
	ears         map[int64]*ear        // by client
	vigil        map[*lane]struct{}    // connections that only listen, see watchOver
	limits       limits                // what one client may occupy at the moment
	budgetAt     int64                 // when budget was last called (mono)
	held         atomic.Int64          // bytes in clients' buffers at the last tick
	filled       []*session            // that may hold some of them
	kept         int64                 // of them, bytes of names
	reapAt       int64                 // when idle clients are looked for next (mono)
	load         atomic.Int64          // clients placed here, for the acceptors
	stats        *stats.Loop
	slow         slowLog
	goneIn       uint64 // bytes of clients that have left
	goneOut      uint64

	// scratch, valid within one callback
	req       resp.Request // the request being dispatched
	own       resp.Request // a stored request being looked at again
	inline    []byte       // it in the form it is sent in, if it is an inline one
	enc       []byte       // another request in that form
	out       []byte       // a reply being composed
	keys      []int
	positions []int       // of keys in a stored request
	reached   [2][][]byte // keys that clash compares
	lanes     []*lane
	merged    []byte     // a reply that was made of several
	free      []*request // for newRequest

	freeBytes   int // of their buffers
	bare        int // how many of them, the first ones, have none
	splitter    router.Splitter
	scatters    *scatter // free ones
	scattersLen int

	// near-cache
	reader       *nearcache.Reader
	fetches      fetches
	views        views
	warmth       int                // reads that rewarm may make in this tick; negative: it has made some of the next one's
	rest         []byte             // scratch of ask
	parts        []*nearcache.Entry // scratch of mget
	effect       effectScratch
	scriptEffect lua.Effect
	hot          *hotSet   // nil: no key is
	hotEpoch     uint32    // bumped when keys become hot
	raised       []*raised // replies of this turn that wait for the invalidation streams

	scripts scriptView
	hub     hub
	heat    *heat.Sketch // of the keys that clients read; nil: nobody counts
}

func newLoop(srv *Server, id int) (*loop, error) {
	nl, err := netloop.New(netloop.Options{Transport: srv.opts.Transport, Logger: srv.log})
	if err != nil {
		return nil, fmt.Errorf("cannot create event loop: %w", err)
	}
	l := &loop{
		id: id, srv: srv, nl: nl,
		clusters: srv.opts.Backend.Mode == cluster.Cluster,
		resends:  srv.opts.Backend.Mode == cluster.Cluster || srv.opts.Backend.Mode == cluster.Sentinel,
		cache:    srv.opts.Cache.Cache,
		rules:    srv.keeps,
		nodes:    make(map[string]*node),
		sessions: make(map[*session]struct{}),
		ears:     make(map[int64]*ear),
		monitors: make(map[*session]struct{}),
		vigil:    make(map[*lane]struct{}),
		fetches:  make(fetches),
		stats:    stats.NewLoop(0),
		slow:     newSlowLog(&srv.opts.SlowLog),
	}
	l.stats.Rules = srv.newRuleCounters()
	l.learn(srv.commands.Load())
	l.topo = cluster.Unknown(srv.opts.Backend.Mode)
	l.limits = srv.opts.Clients.limits()
	l.guard = l.newGuard()
	l.throttle = newThrottle(srv.quotas)
	l.stats.Limits = srv.newLimitCounters()
	l.scripts.shared = srv.scripts
	l.hub.init(l)
	if h := &srv.opts.Hot; h.Sample > 0 {
		l.heat = heat.New(h.Sample, int64(h.Interval), nl.Now())
	}
	l.views.init(l)
	if l.cache != nil {
		l.reader = l.cache.NewReader()
	}
	return l, nil
}

func (l *loop) now() int64 { return l.nl.Now() }

// tickInterval is how often a loop looks after what no event announces.
const tickInterval = 100 * time.Millisecond

func (l *loop) start() {
	if t := l.srv.opts.Topology.Current(); t != nil {
		l.adopt(t)
	}
	l.nl.AfterFunc(tickInterval, l.tick)
	if l.id == 0 {
		l.srv.keepHot(l)
	}
}

func (l *loop) tick() {
	now := l.now()
	for _, n := range l.nodes {
		n.probe(now)
		n.hope(now)
		n.nurse(now)
		for ln := range n.opened {
			switch {
			case ln.closed:
			case ln.forsaken():
				ln.owner.close("client went away")
			case ln.timedOut(now):
				ln.expire()
			case ln.clogged(now):
				ln.lost(ln.overdue())
			case ln.orphaned(now):
				ln.lost(ln.replaced())
			case ln.wilted(now):
				ln.lost(ln.overdue())
			case ln.stuck(now):
				l.doubt()
				n.retire(ln)
			default:
				ln.watchQueue(now)
			}
		}
	}
	l.wakeOwnerless()
	l.keepTime(now)
	if l.reader != nil {
		l.reader.Tick(now)
		l.rewarm(now)
		l.views.tick(now)
	}
	for addr, n := range l.nodes {
		if n.info == nil && n.replica == nil && len(n.opened) == 0 && !l.hub.uses(n) {
			delete(l.nodes, addr)
			l.srv.outages.leave(addr)
			l.stats.Forget(addr)
			n.marked(false)
			n.wake()
		}
	}
	if l.heat != nil {
		l.heat.Tick(now)
	}
	l.budget()
	l.weigh(now)
	l.forgetEmpty()
	l.reapIdle(now)
	l.hub.tick(now)
	if l.guard != nil {
		l.guard.tick(now)
	}
	l.watchOver(now)
	if l.throttle != nil {
		l.throttle.book.Sweep(now)
	}
	l.nl.AfterFunc(tickInterval, l.tick)
}

// reapIdle closes clients that have neither sent nor taken anything for clients.idle_timeout, as
// clientsCronHandleTimeout in Redis does. Whoever waits for something else than its own reading is not idle.
func (l *loop) reapIdle(now int64) {
	idle := int64(l.srv.opts.Clients.IdleTimeout)
	if idle == 0 || now < l.reapAt {
		return
	}
	l.reapAt = now + min(idle/8, int64(time.Second)) // every client is looked at
	for s := range l.sessions {
		waits := s.head != nil || s.wait != waitNothing && s.wait != waitOutput
		if waits || s.subscriptions() > 0 || s.monitor != nil || now-s.lastActive() <= idle {
			continue
		}
		s.conn.Flush() // it may have been answered in this very turn
		if now-s.lastActive() > idle {
			l.stats.IdleClosed++
			s.close("idle")
		}
	}
}

// adopt makes t the loop's topology. Requests in flight keep their lanes; those
// of a node that owns nothing any more drain and close.
func (l *loop) adopt(t *cluster.Topology) {
	if t.Version <= l.topo.Version {
		return
	}
	if t.Uncovered() != l.topo.Uncovered() {
		l.unownedSince = l.now()
	}
	first := len(l.shards) == 0
	if l.srv.opts.Cache.StaleFor > 0 && l.cache != nil && takenOver(l.topo, t) {
		l.cache.Bump(nearcache.All) // see stale.go
	}
	l.topo = t
	l.shards = l.shards[:0]
	wanted := make(map[string]bool, len(t.Shards))
	for i := range t.Shards {
		n := l.node(t.Shards[i].Primary.Addr)
		n.info, n.goneAt = t.Shards[i].Primary, 0
		wanted[n.addr] = true
		l.shards = append(l.shards, n)
	}
	l.adoptReplicas(t)
	for addr, n := range l.nodes {
		if !wanted[addr] && n.replica == nil {
			n.dismiss()
		}
		if !wanted[addr] {
			n.depart(t)
		}
		n.wake()
	}
	l.wakeOwnerless()
	if !first {
		l.laneEpoch++
		l.hub.moved()
		for s := range l.sessions {
			s.relocated()
			if s.delayed > 0 {
				l.hurry(s)
			}
		}
	}
}

// dismiss lets a node go that owns nothing any more; tick removes it when its
// last connection has closed.
func (n *node) dismiss() {
	n.info = nil
	for ln := range n.opened {
		switch {
		case ln.kind == laneFetch, ln.inflight.len == 0 && (ln.owner == nil || ln.home != nil):
			ln.fail("")
		case ln.home != nil:
			ln.leaving = true
		case ln.kind == laneShared:
			n.retire(ln)
		}
	}
}

// Error lines of routing, in Redis' words.
const (
	errCrossSlot = "CROSSSLOT Keys in request don't hash to the same slot"
	errUnbound   = "CLUSTERDOWN Hash slot not served"
)

// owner is the node that serves slot, or an error line.
func (l *loop) owner(slot uint16) (*node, string) {
	if len(l.shards) == 0 {
		return nil, errNoBackend
	}
	if !l.clusters {
		return l.shards[0], ""
	}
	i := l.topo.ShardOf(slot)
	if i < 0 {
		return nil, errUnbound
	}
	return l.shards[i], ""
}

// settle ends r's effects on the near-cache: outdated entries are void before
// anyone can see the reply.
func (l *loop) settle(r *request) {
	if r.ordered {
		r.ordered = false
		if r.sess != nil {
			r.sess.everyKey--
		}
	}
	if r.hotEpoch != l.hotEpoch {
		l.settleStraggler(r)
	}
	if len(r.touches) == 0 {
		return
	}
	for _, t := range r.touches {
		if t.write {
			l.stats.Invalidations++
			l.cache.End(t.stripe)
		} else {
			l.cache.Bump(t.stripe)
		}
		if r.sess != nil {
			r.sess.untouch(t.stripe)
		}
	}
	r.touches = r.touches[:0]
}

// account counts a reply from n.
func (l *loop) account(n *node, r *request, failed bool) {
	now := l.now()
	n.stats.Calls++
	n.stats.Latency.Observe(now - r.sentAt)
	if failed {
		n.stats.Errors++
	}
	if r.cmd == nil {
		return
	}
	c := &l.stats.Commands[r.cmd.ID]
	c.Calls++
	c.Latency.Observe(now - r.arrived)
	if failed {
		c.Errors++
	}
}

// again sends r to the present owner of its keys (or to n when it was for that very node).
// False: it has been tried often enough, or there is no way.
func (l *loop) again(r *request, n *node, raw []byte) bool {
	if int(r.retries) >= l.srv.opts.Upstream.MaxRedirects {
		return false
	}
	r.retries++
	if r.keyed || len(r.raw) > 0 || !l.clusters {
		if o, cause := l.owner(r.slot); cause == "" {
			n = o
		}
	}
	ln, cause := l.laneFor(r, n)
	if cause != "" {
		return false
	}
	if len(r.raw) > 0 {
		ln.sendKept(r, false)
		return true
	}
	ln.send(r, raw)
	return true
}

// snapshot copies the loop's counters; it runs on the loop.
func (l *loop) snapshot() stats.Snapshot {
	c := &l.stats.Counters
	c.Clients, c.Subscribers, c.Paused, c.BufferBytes = int64(len(l.sessions)), 0, 0, l.kept
	c.BytesIn, c.BytesOut = l.goneIn, l.goneOut
	for s := range l.sessions {
		c.BytesIn += s.conn.Received()
		c.BytesOut += s.conn.Sent()
		c.BufferBytes += int64(s.backlog() + s.requestBytes())
		if s.wait == waitPause {
			c.Paused++
		}
		if s.subscriptions() > 0 {
			c.Subscribers++
		}
	}
	if l.id == 0 { // all loops know the same of it
		c.StaleNodes = l.srv.outages.declared.Load()
	}
	c.Lanes, c.Pins = 0, int64(l.pins)
	for _, n := range l.nodes {
		n.stats.BytesIn, n.stats.BytesOut = n.goneIn, n.goneOut
		for ln := range n.opened {
			if ln.kind != lanePin {
				c.Lanes++
			}
			if ln.conn != nil {
				n.stats.BytesIn += ln.conn.Received()
				n.stats.BytesOut += ln.conn.Sent()
			}
		}
	}
	return l.stats.Snapshot()
}
