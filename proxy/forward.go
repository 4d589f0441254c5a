package proxy

import (
	"cmp"
	"fmt"
	"slices"

	"cosky-proxy/cluster/slot"
	"cosky-proxy/nearcache"
	"cosky-proxy/router"
	"cosky-proxy/router/command"
)

// forward sends a command to where its keys live. It returns false when the
// session has to wait first; nothing has happened then.
func (s *session) forward(cmd *command.Command, args [][]byte, raw []byte) bool {
	l := s.loop
	e := l.effect.reset()
	if cmd.SingleKey {
		key := args[cmd.KeyPos]
		l.concern(e, key, cmd.Flags&command.Write != 0)
		return s.send(cmd, raw, l.target(key), e)
	}
	if cmd.Split > 1 && (len(args)-1)%cmd.Split != 0 { // MSET with a key that has no value
		s.refuse(cmd.ArityError())
		return true
	}
	var problem string
	l.keys, problem = cmd.Keys(args, l.keys[:0])
	switch {
	case problem != "":
		// The backend finds the same fault, and has the better words for it.
		l.concernUnknown(e, cmd)
		if l.clusters && cmd.Has(command.Module) { // finds its keys with code: it may be executed after a redirect
			if s.drain() {
				return false
			}
			s.exclusive = true
		}
		return s.send(cmd, raw, l.anyShard(), e)
	case len(l.keys) == 0:
		return s.keyless(cmd, args, raw)
	}
	t, same := l.common(args, l.keys)
	if !same {
		if step := cmd.Split; step > 0 {
			return s.scatterKeys(cmd, args, step)
		}
		s.refuse(errCrossSlot)
		return true
	}
	l.concernKeys(e, cmd, args)
	return s.send(cmd, raw, t, e)
}

// concernKeys notes what cmd does to its keys, which are in l.keys, and to those that
// it may reach without naming them.
func (l *loop) concernKeys(e *effectScratch, cmd *command.Command, args [][]byte) {
	write := changes(cmd)
	for _, k := range l.keys {
		l.concern(e, args[k], write)
	}
	switch {
	case l.cache == nil:
	case hidesKeys(cmd, args), cmd.Has(command.Module) && l.srv.tracks():
		e.barrier = true
	case cmd.Has(command.Module):
		e.add(nearcache.All, write)
	}
}

// changes reports whether cmd may change its keys. A module need not say that a command
// writes, only that it does not.
func changes(cmd *command.Command) bool {
	return cmd.Flags&command.Write != 0 || cmd.Flags&(command.Module|command.ReadOnly) == command.Module
}

// hidesKeys reports whether the command may read keys that its arguments do not
// name, as SORT does with BY and GET. Redis says of a key spec that it is incomplete, or,
// of SORT's options, that where its keys begin is unknown.
func hidesKeys(cmd *command.Command, args [][]byte) bool {
	for i := range cmd.KeySpecs {
		s := &cmd.KeySpecs[i]
		if s.Flags&command.KeyIncomplete != 0 || s.Begin == command.BeginUnknown && len(args) > -cmd.Arity {
			return true
		}
	}
	return false
}

// target says where a request goes: to the owner of a slot, or to any shard.
type target struct {
	slot  uint16
	keyed bool
	from  source // who may answer besides the owner
}

func (l *loop) target(key []byte) target {
	if !l.clusters {
		return target{}
	}
	return target{slot: slot.Of(key), keyed: true}
}

// common is the target of several keys; same is false when they have none in
// common.
func (l *loop) common(args [][]byte, keys []int) (t target, same bool) {
	t = l.target(args[keys[0]])
	if !l.clusters {
		return t, true
	}
	for _, k := range keys[1:] {
		if slot.Of(args[k]) != t.slot {
			return t, false
		}
	}
	return t, true
}

// effectScratch collects what one command does to the near-cache.
type effectScratch struct {
	touches []touch
	barrier bool // it may have changed or shown more than touches say
	sink    sink // takes its reply; nil: the client does
	hushes  bool // see request
	renews  bool // see request
}

func (e *effectScratch) reset() *effectScratch {
	if cap(e.touches) > 1<<16 { // of a command with very many keys
		e.touches = nil
	}
	e.touches, e.barrier, e.sink, e.hushes, e.renews = e.touches[:0], false, nil, false, false
	return e
}

func (e *effectScratch) none() bool { return len(e.touches) == 0 && !e.barrier }

func (e *effectScratch) add(st nearcache.Stripe, write bool) {
	e.touches = append(e.touches, touch{st, write})
}

// distinct leaves one of several writes on a stripe: however often a command names a key, it is one write in flight
// there. How many of those nearcache.Cache.Begin can count suffices for requests, not for keys.
func distinct(touches []touch) []touch {
	if len(touches) < 2 {
		return touches
	}
	slices.SortFunc(touches, func(a, b touch) int {
		if a.stripe != b.stripe || a.write == b.write {
			return cmp.Compare(a.stripe, b.stripe)
		}
		if a.write {
			return -1
		}
		return 1
	})
	return slices.CompactFunc(touches, func(a, b touch) bool { return a == b && a.write })
}

// concern notes that a command writes key, or that its reply shows key's state.
// Only keys that can be cached matter.
func (l *loop) concern(e *effectScratch, key []byte, write bool) {
	if l.cache == nil || !l.mayCache(key) {
		return
	}
	hash := l.cache.Hash(key)
	e.add(l.cache.StripeOf(hash), write)
	if answered(key) {
		e.add(l.cache.ViewStripe(hash), write)
	}
}

// send queues the command on the lane of its target.
func (s *session) send(cmd *command.Command, raw []byte, t target, e *effectScratch) bool {
	l := s.loop
	if s.fetching > 0 && !e.none() {
		return !s.drain()
	}
	t.from = s.readsFrom(cmd)
	ln, cause := s.laneTo(t)
	if cause != "" {
		return s.unserved(t.slot, cause)
	}
	if ln != nil && ln.full() {
		return s.noRoom(ln)
	}
	if t.keyed && !cmd.SingleKey && ln != nil && ln.node.unsettled(l.now()) {
		if s.drain() {
			return false
		}
		s.exclusive = true
	}
	r := l.newRequest(s, cmd)
	r.slot, r.keyed, r.from = t.slot, t.keyed, t.from
	l.begin(r, e)
	if l.resends || cmd.Flags&(command.ReadOnly) != 0 || cmd.Script {
		r.raw = append(r.raw[:0], raw...)
	}
	s.enqueue(r)
	if ln == nil {
		l.awaitOwner(r)
		return true
	}
	ln.send(r, raw)
	return true
}

// laneTo is the connection to t's owner, or to whom else may answer, nil when t's slot has none at the moment.
func (s *session) laneTo(t target) (ln *lane, cause string) {
	n, cause := s.loop.owner(t.slot)
	switch cause {
	case "":
		if t.from != masterOnly {
			return s.readLane(n, t)
		}
		return s.lane(n)
	case errUnbound:
		return nil, ""
	}
	return nil, cause
}

// lane is the connection to n that the session's commands travel on: its pin
// or its home while it holds state there, else the shared lane of its protocol and database.
func (s *session) lane(n *node) (*lane, string) {
	if s.home != nil {
		return s.home.lane(s, n)
	}
	if s.tx != nil && s.tx.pin != nil && s.tx.pin.node == n {
		return s.tx.pin, ""
	}
	return n.lane(s.laneKey())
}

// begin marks r's effects as under way.
func (l *loop) begin(r *request, e *effectScratch) {
	if e.barrier && l.cache != nil && !l.srv.tracks() { // no stream tells of all that it may show
		e.barrier = false
		e.add(nearcache.All, false)
	}
	r.barrier, r.renews = e.barrier, e.renews
	if e.sink != nil {
		r.sink = e.sink
	}
	if e.hushes {
		r.hushes = true
		r.sess.hushed++
	}
	if e.barrier && r.sess != nil {
		r.ordered = true
		r.sess.everyKey++
	}
	for _, t := range distinct(e.touches) {
		if t.write {
			l.cache.Begin(t.stripe)
		}
		if r.sess != nil {
			r.sess.touch(t.stripe)
		}
		r.touches = append(r.touches, t)
	}
}

// keyless sends a command that names no key. On a cluster it goes to one shard
// or to all of them, as its published policy says.
func (s *session) keyless(cmd *command.Command, args [][]byte, raw []byte) bool {
	l := s.loop
	e := l.effect.reset()
	l.concernUnknown(e, cmd)
	if cmd.Has(command.AllowBusy) && (!l.clusters || router.ScopeOf(cmd) == router.AllShards) {
		return s.aside(cmd, args, raw, e)
	}
	if !l.clusters {
		return s.send(cmd, raw, target{}, e)
	}
	switch router.ScopeOf(cmd) {
	case router.AnyShard:
		return s.send(cmd, raw, l.anyShard(), e)
	case router.AllShards, router.AllNodes:
		if changes(cmd) { // a shard that is redirected to must not have executed it before what precedes it
			if s.drain() {
				return false
			}
			s.exclusive = true
		}
		return s.scatterAll(cmd, args, raw, e)
	default:
		s.refuse(unsupportedOnCluster(cmd))
		return true
	}
}

func unsupportedOnCluster(cmd *command.Command) string {
	return fmt.Sprintf("ERR '%s' concerns a single server, and cosky-proxy does not choose one of a Redis Cluster's", cmd.Name)
}

// anyShard is a target that is the same for every keyless command: the shard of
// the lowest slot that is served.
func (l *loop) anyShard() target {
	for sl := range uint16(slot.Count) {
		if l.topo.ShardOf(sl) >= 0 {
			return target{slot: sl}
		}
	}
	return target{}
}

// changesEverything reports whether a command without the write flag may change
// or replace the whole data set.
func changesEverything(cmd *command.Command) bool {
	switch cmd.Name {
	case "debug", "replicaof", "slaveof", "failover":
		return true
	}
	return false
}

// concernUnknown notes the effect of a command whose keys cannot be known: a
// write voids everything, a read may show anything.
func (l *loop) concernUnknown(e *effectScratch, cmd *command.Command) {
	if l.cache == nil {
		return
	}
	switch {
	case changes(cmd), changesEverything(cmd):
		e.add(nearcache.All, true)
	case cmd.Flags&command.ReadOnly != 0:
		e.barrier = true
	}
}
