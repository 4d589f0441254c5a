package proxy

import (
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"cosky-proxy/cluster"
	"cosky-proxy/nearcache"
	"cosky-proxy/router/command"
)

// Standing in (nearcache.on_backend_loss). While a node is out of reach, reads are answered
// from the near-cache without proof of freshness, for a bounded time.
//
// Out of reach is a node to which a connection was refused, timed out or was left without an answer to
// its login, and which since then has said nothing on any connection of any loop: at once if there is no
// other connection, else after max_staleness. A late heartbeat, a slow command, a refused login, a full
// backlog of descriptors here: none of that counts.
//
// What clients see stays in order, because an entry that stands in is void in the same cases as ever: a
// reply that revealed a newer state, a write that may have been executed, a newer fill. And nothing stands
// in any more once the node has answered: whichever loop hears from it first voids all entries before it
// delivers a byte of what it heard (node.answered). The same when another node takes over slots (loop.adopt).

// outage is what all loops know together of one node's being out of reach.
type outage struct {
	// atomic
	state     atomic.Int64 // 0: it answers; t: suspected since t (mono), see above; -t: declared to be out of reach
	connected atomic.Int64 // connections on which it has answered
	triedAt   atomic.Int64 // last attempt to reach it that was not left to its back-off (mono)
	spent     atomic.Bool  // nothing stands in any more: it has been away for too long

	users int // loops that know the node; guarded by outages.mu
}

// outages are those of all nodes, by address.
type outages struct {
	declared atomic.Int64 // nodes out of reach for which entries stand in
	suspects atomic.Int64 // nodes whose state is not 0

	mu     sync.Mutex
	byAddr map[string]*outage // guarded by mu
}

func (os *outages) join(addr string) *outage {
	os.mu.Lock()
	defer os.mu.Unlock()
	o := os.byAddr[addr]
	if o == nil {
		if os.byAddr == nil {
			os.byAddr = make(map[string]*outage)
		}
		o = new(outage)
		os.byAddr[addr] = o
	}
	o.users++
	return o
}

func (os *outages) leave(addr string) {
	os.mu.Lock()
	defer os.mu.Unlock()
	o := os.byAddr[addr]
	if o.users--; o.users == 0 {
		delete(os.byAddr, addr)
		os.end(o)
	}
}

// end returns whether anything stood in.
func (os *outages) end(o *outage) (declared bool) {
	was := o.state.Swap(0)
	if was != 0 {
		os.suspects.Add(-1)
	}
	if was < 0 {
		os.declared.Add(-1)
		o.spent.Store(false)
	}
	return was < 0
}

// suspect notes that the node could not be connected to, if the reason is its own.
func (n *node) suspect(err error) {
	srv := n.loop.srv
	if srv.opts.Cache.StaleFor == 0 || srv.opts.Cache.Cache == nil || !outOfReach(err) {
		return
	}
	if n.outage.state.CompareAndSwap(0, n.loop.now()) {
		srv.outages.suspects.Add(1)
	}
}

// errMute is the reason to suspect a node that accepts connections and then says nothing.
var errMute = errors.New("no answer to a login")

// outOfReach tells the node's reasons, and those of the network in between, from the proxy's own, such as a
// lack of descriptors.
func outOfReach(err error) bool {
	if err == errMute {
		return true
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return false
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return true
	}
	for _, errno := range [...]syscall.Errno{
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EHOSTUNREACH, syscall.EHOSTDOWN, syscall.ENETUNREACH,
		syscall.ENOENT, // of a Unix socket
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// answered: the node has said something. If entries stood in for it they are void before anybody
// can see what it has said.
func (n *node) answered() {
	srv := n.loop.srv
	if !srv.outages.end(n.outage) {
		return
	}
	n.loop.cache.Bump(nearcache.All)
	srv.log.Info("the backend answers again: nothing stands in for it any more", "node", n.addr)
}

// lost reports whether entries may stand in for the node, and declares it out of reach if it is.
func (n *node) lost(now int64) bool {
	o, srv := n.outage, n.loop.srv
	since := o.state.Load()
	switch {
	case since < 0:
		return true
	case since == 0, o.connected.Load() > 0 && now-since <= int64(srv.opts.Cache.MaxStaleness):
		return false
	}
	if o.state.CompareAndSwap(since, -since) {
		srv.outages.declared.Add(1)
		srv.log.Warn("the backend is out of reach: cached values stand in for it without proof that they are current",
			"node", n.addr, "for_at_most", srv.opts.Cache.StaleFor)
		return true
	}
	return o.state.Load() < 0
}

// recheck is the pause between two attempts to reach a node for which entries stand in. It is short
// because what they are worth ends when the node is back.
const recheck = tickInterval

// nurse looks after a node that may be out of reach. The loop's tick calls it.
func (n *node) nurse(now int64) {
	o, limit := n.outage, int64(n.loop.srv.opts.Cache.StaleFor)
	if limit == 0 {
		return
	}
	for ln := range n.opened { // dialled in time, but no answer: a frozen process accepts connections, too
		if !ln.greeted && ln.conn != nil && ln.handshake > 0 && now-ln.lastRead > int64(n.loop.srv.opts.Upstream.ConnectTimeout) {
			n.suspect(errMute)
		}
	}
	if o.state.Load() == 0 || n.info == nil {
		return
	}
	for _, ln := range n.shared { // if it is there after all it has to be asked, to say so
		if ln.ready && ln.inflight.len == 0 {
			ln.note("PING")
		}
	}
	if last := o.triedAt.Load(); now-last >= int64(recheck) && o.triedAt.CompareAndSwap(last, now) {
		n.breaker.retryAt = min(n.breaker.retryAt, now)
		n.tryOut(now)
	}
	if since := o.state.Load(); n.lost(now) && now-max(since, -since) > limit && o.spent.CompareAndSwap(false, true) {
		n.loop.srv.log.Warn("the backend has been out of reach for too long: nothing stands in for it any more", "node", n.addr)
	}
}

// standIn is an entry that may be served for a key whose owner is out of reach, nil if there is none.
func (l *loop) standIn(slot uint16, q *nearcache.Question) *nearcache.Entry {
	if !l.outOfReach(slot) {
		return nil
	}
	return l.reader.StandIn(q, l.now(), l.standsSince())
}

// standsIn reports whether an entry that was found so may still be served.
func (l *loop) standsIn(slot uint16, e *nearcache.Entry) bool {
	return l.outOfReach(slot) && l.cache.StandsIn(e, l.now(), l.standsSince())
}

// outOfReach reports whether entries may stand in for the owner of slot.
func (l *loop) outOfReach(slot uint16) bool {
	if l.srv.outages.suspects.Load() == 0 {
		return false
	}
	n, cause := l.owner(slot)
	return cause == "" && n.lost(l.now())
}

// standsSince is when whatever vouched for an entry that stands in must have done so, or later. A proof is good for
// max_staleness, so the source worked that much before the end of the last one.
func (l *loop) standsSince() int64 {
	o := &l.srv.opts.Cache
	return l.now() - int64(o.StaleFor-o.MaxStaleness)
}

// passOn forwards a read that the near-cache cannot answer now. If the way turns out to lead to
// a node out of reach, an entry may still stand in.
func (s *session) passOn(cmd *command.Command, args [][]byte, raw []byte) bool {
	before := s.inflight
	if !s.forward(cmd, args, raw) {
		return false
	}
	if r := s.tail; s.loop.srv.opts.Cache.StaleFor > 0 && s.inflight > before && r.sink == nil {
		r.raw = append(r.raw[:0], raw...)
		r.spared = true
	}
	return true
}

// standInFor answers a read that has failed from memory, if it can.
func (l *loop) standInFor(r *request) bool {
	if !r.spared || r.sess == nil {
		return false
	}
	since, resp3 := r.sentAt, r.resp3
	if !l.appendStandIn(r.cmd, l.parse(r.raw), r.raw, r.db, resp3) {
		return false
	}
	l.stats.StaleHits++
	l.disclaim(r)
	r.barrier = false
	l.countReply(r.cmd, since, false)
	r.origin = fromCache
	l.finish(r, l.out)
	return true
}

// appendStandIn makes l.out what may stand in for the answer to a read, and reports whether there is anything.
func (l *loop) appendStandIn(cmd *command.Command, args [][]byte, raw []byte, db int32, resp3 bool) bool {
	var q nearcache.Question
	key := args[1]
	switch {
	case cmd.Name == "mget":
		keys := args[1:]
		if l.gatherParts(db, cmd, l.table.Named("get"), keys) > 0 {
			return false
		}
		together, _ := l.together(l.parts, keys)
		l.out = appendParts(l.out[:0], l.parts, resp3)
		return together
	case cmd.Script:
		q, key = l.cache.Ask(db, viewKind, behindName(raw, args[0]), nil), args[3]
	default:
		q = l.ask(db, cmd, l.reads[cmd.ID], args)
	}
	e := l.standIn(l.target(key).slot, &q)
	if e == nil {
		return false
	}
	l.out = e.AppendReply(l.out[:0], resp3)
	return true
}

// lastWord is for a read that nobody vouches for (auth.mode passthrough). While the backend cannot be asked because
// it is out of reach, what it said last about such a read stands in as entries do, and not for longer; else the
// read is passed on.
func (s *session) lastWord(cmd *command.Command, args [][]byte, raw []byte) bool {
	l := s.loop
	if l.srv.outages.suspects.Load() == 0 || s.tx != nil || s.home != nil || !l.guard.vouched(s, cmd, args) {
		return s.unspared(cmd, args, raw)
	}
	if s.drain() {
		return false
	}
	if cmd.Name == "mget" && slices.ContainsFunc(args[1:], func(key []byte) bool { return !l.outOfReach(l.target(key).slot) }) {
		return s.forward(cmd, args, raw) // of those within reach more than the last word is asked for
	}
	if !l.appendStandIn(cmd, args, raw, s.db, s.resp3) {
		return s.unspared(cmd, args, raw)
	}
	l.stats.StaleHits++
	l.stats.Commands[cmd.ID].Calls++
	s.reply(l.out)
	return true
}

// unspared forwards a read for which nothing stands in.
func (s *session) unspared(cmd *command.Command, args [][]byte, raw []byte) bool {
	if cmd.Script {
		return s.call(cmd, args, raw)
	}
	return s.forward(cmd, args, raw)
}

// disclaim drops what r's reply would have revealed: it has failed. Writes stay, they may have been executed.
func (l *loop) disclaim(r *request) {
	kept := r.touches[:0]
	for _, t := range r.touches {
		if t.write {
			kept = append(kept, t)
		} else if r.sess != nil {
			r.sess.untouch(t.stripe)
		}
	}
	r.touches = kept
}

// takenOver reports whether a slot has got another owner.
func takenOver(before, now *cluster.Topology) bool {
	if before.Version == 0 {
		return false
	}
	for slot := range uint16(cluster.Slots) {
		old, owner := before.Primary(slot), now.Primary(slot)
		if owner != nil && owner != old && (old == nil || owner.Addr != old.Addr) {
			return true
		}
	}
	return false
}
