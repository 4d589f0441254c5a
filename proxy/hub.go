package proxy

import (
	"slices"
	"strings"
	"time"

	"cosky-proxy/cluster/slot"
)

// hub shares Pub/Sub subscriptions: however many clients of a loop listen to a
// channel, the backend sees one subscriber.
//
// A client's SUBSCRIBE is confirmed only after the backend's own confirmation,
// so that nothing published after it can be missed. A subscription that the backend
// ends (a restart, a failover, a slot that moves) is put in force again where it belongs now; while that
// fails, clients are kept for pubsub.resubscribe_timeout and then disconnected: nobody
// stays connected to a channel that has gone silent.
type hub struct {
	loop      *loop
	audiences map[*credential]*audience
}

// audience is the part of the hub for clients that are logged in as the same: what
// one of them may listen to must not reach the others through a shared subscription.
type audience struct {
	// static
	hub *hub
	as  *credential // nil: the proxy's own user

	// loop-owned
	topics     [subKinds]map[string]*topic
	feeds      map[string]*feed    // by node address
	recovering map[*topic]struct{} // those that the backend has ended, or never began
	made       int                 // topics so far
}

// subKind is the kind of a subscription.
type subKind uint8

const (
	kindChannel subKind = iota
	kindPattern
	kindShard // a channel of Redis 7's sharded Pub/Sub
	subKinds
)

// command and word make the names that Redis has for the kind's commands and replies.
func (k subKind) command(verb string) string { return [...]string{"", "P", "S"}[k] + verb }
func (k subKind) word(verb string) string    { return [...]string{"", "p", "s"}[k] + verb }

// topicID names what can be subscribed to.
type topicID struct {
	kind subKind
	name string
}

// topic is one channel or pattern with its listeners.
//
// Normally one link carries it. Events of keys come from every master of a cluster, so
// what may match them has a link to each; of those, home alone is listened to for
// ordinary messages, which the cluster brings to every node. Home is at the venue of
// such messages, if it can be.
type topic struct {
	// static
	audience   *audience
	id         topicID
	seq        int  // order of creation
	everywhere bool // wants a link to every master

	// loop-owned
	links    []*link
	home     *link // in force; nil: none is
	members  map[*session]struct{}
	inForce  bool            // every link that it wants is confirmed
	waiting  []*subscription // until then
	holds    int             // subscriptions that have not made their clients members yet
	deadline int64           // when recovering ends (mono); 0: it is not
	hint     string          // address of the node that a redirect named
}

// subscription is a client's wish for some topics.
type subscription struct {
	topics  []*topic
	missing int                // of them, those that are not in force yet
	done    func(cause string) // nil: has been called
}

func (h *hub) init(l *loop) {
	h.loop = l
	h.audiences = make(map[*credential]*audience)
}

func (h *hub) audience(as *credential) *audience {
	a := h.audiences[as]
	if a == nil {
		a = &audience{hub: h, as: as, feeds: make(map[string]*feed), recovering: make(map[*topic]struct{})}
		for k := range a.topics {
			a.topics[k] = make(map[string]*topic)
		}
		h.audiences[as] = a
	}
	return a
}

// want puts topics in force and then calls done, perhaps at once: with an error line
// when that cannot be. Only within done do the topics certainly exist.
func (a *audience) want(ids []topicID, done func(topics []*topic, cause string)) {
	sub := &subscription{missing: 1}
	sub.done = func(cause string) { done(sub.topics, cause) }
	for _, id := range ids {
		t, cause := a.topic(id)
		if cause != "" {
			sub.end(cause)
			return
		}
		t.holds++
		sub.topics = append(sub.topics, t)
		if !t.inForce {
			t.waiting = append(t.waiting, sub)
			sub.missing++
		}
	}
	sub.arrived()
}

// arrived notes that one more of the topics is in force.
func (sub *subscription) arrived() {
	if sub.missing--; sub.missing == 0 {
		sub.end("")
	}
}

func (sub *subscription) end(cause string) {
	done := sub.done
	if done == nil {
		return
	}
	sub.done = nil
	done(cause)
	for _, t := range sub.topics {
		t.holds--
		t.endIfUnused(nil)
	}
}

// topic finds or begins a subscription at the backend.
func (a *audience) topic(id topicID) (*topic, string) {
	if t := a.topics[id.kind][id.name]; t != nil {
		return t, ""
	}
	a.made++
	t := &topic{audience: a, id: id, seq: a.made, members: make(map[*session]struct{})}
	t.everywhere = a.hub.loop.clusters && id.hearsKeys()
	a.topics[id.kind][id.name] = t
	if cause := a.place(t); cause != "" {
		t.end(nil)
		return nil, cause
	}
	return t, ""
}

// places are the nodes to which t wants a link.
func (a *audience) places(t *topic) (ns []*node, cause string) {
	l := a.hub.loop
	switch {
	case len(l.shards) == 0:
		return nil, errNoBackend
	case t.everywhere:
		return l.speakers(), ""
	case t.hint != "":
		return []*node{l.node(t.hint)}, ""
	case t.id.kind != kindShard && len(t.links) > 0: // any node will do, so it stays where it is
		return []*node{t.links[0].feed.node}, ""
	}
	n, cause := l.owner(l.venue(t.id.kind, []byte(t.id.name)).slot)
	if cause != "" {
		return nil, cause
	}
	return []*node{n}, ""
}

// speakers are the masters that may have something to say: not those that the rest of
// the cluster has declared failed. When one of them comes back, the topology says so.
func (l *loop) speakers() []*node {
	failed := func(n *node) bool { return n.info != nil && n.info.Blocked }
	if !slices.ContainsFunc(l.shards, failed) {
		return l.shards
	}
	return slices.DeleteFunc(slices.Clone(l.shards), failed)
}

// place opens the links that t lacks. cause says why one of them cannot be opened now. It
// may find that t is complete: what has been lost is not wanted any more.
func (a *audience) place(t *topic) (cause string) {
	ns, cause := a.places(t)
	for _, n := range ns {
		if t.link(n) != nil {
			continue
		}
		f, why := a.feed(n)
		if why != "" {
			cause = why
			continue
		}
		f.subscribe(t)
	}
	if t.deadline != 0 && a.complete(t) {
		a.settled(t)
	}
	return cause
}

// link is t's link to n, nil when there is none.
func (t *topic) link(n *node) *link {
	for _, ln := range t.links {
		if ln.feed.node == n {
			return ln
		}
	}
	return nil
}

// unlink forgets a link that has ended.
func (t *topic) unlink(ln *link) {
	t.links = slices.DeleteFunc(t.links, func(o *link) bool { return o == ln })
	if t.home == ln {
		t.home = nil
		t.settleDown()
	}
}

// settleDown chooses a home. Once there are listeners it is kept for as long as it is in
// force: while it changes, a message could come by both.
func (t *topic) settleDown() {
	if t.home != nil && len(t.members) > 0 {
		return
	}
	for _, ln := range t.links {
		if ln.inForce && (t.home == nil || t.audience.hub.loop.hosts(ln.feed.node, t.id)) {
			t.home = ln
		}
	}
}

// confirmed: the backend has put ln in force.
func (a *audience) confirmed(ln *link) {
	t := ln.topic
	ln.inForce = true
	t.settleDown()
	if !t.inForce && a.complete(t) {
		a.settled(t)
	}
}

// complete reports whether every link that t wants is in force.
func (a *audience) complete(t *topic) bool {
	ns, cause := a.places(t)
	for _, n := range ns {
		if ln := t.link(n); ln == nil || !ln.inForce {
			return false
		}
	}
	return cause == "" && len(ns) > 0
}

// settled: t is in force.
func (a *audience) settled(t *topic) {
	if t.deadline != 0 {
		t.deadline = 0
		delete(a.recovering, t)
		a.hub.loop.stats.Resubscriptions++
	}
	t.inForce, t.hint = true, ""
	waiting := t.waiting
	t.waiting = nil
	for _, sub := range waiting {
		sub.arrived()
	}
}

// broken: a link of t has ended, or has failed, although t wants it. again allows a
// new attempt at once.
func (a *audience) broken(t *topic, cause string, again bool) {
	t.hint = ""
	switch {
	case t.gone():
	case !t.inForce && t.deadline == 0: // it never was, so whoever asks for it learns why
		a.giveUp(t, "ERR cosky-proxy cannot subscribe: "+cause)
	default:
		a.astray(t, cause, again)
	}
}

// astray: t has to be put in force elsewhere, or again.
func (a *audience) astray(t *topic, cause string, again bool) {
	if len(t.members) > 0 && a.hub.loop.srv.opts.PubSub.OnLoss == Disconnect {
		a.giveUp(t, "ERR cosky-proxy lost its subscription: "+cause)
		return
	}
	a.recover(t)
	if again {
		a.place(t)
	}
}

// gone: t has ended.
func (t *topic) gone() bool { return t.audience.topics[t.id.kind][t.id.name] != t }

// recover goes on trying to put t in force, for as long as clients may be kept waiting.
func (a *audience) recover(t *topic) {
	t.inForce = false
	if t.deadline == 0 {
		t.deadline = a.hub.loop.now() + int64(a.hub.loop.srv.opts.PubSub.ResubscribeTimeout)
		a.recovering[t] = struct{}{}
	}
}

// denied: n has refused the subscription.
func (a *audience) denied(t *topic, n *node, line string) {
	l := a.hub.loop
	word, _, _ := strings.Cut(line, " ")
	switch {
	case t.gone():
	case l.clusters && elsewhere(line):
		l.srv.opts.Topology.Refresh(word + " from " + n.addr)
		hinted := t.hint != ""
		if t.hint = ""; word == "MOVED" && !hinted {
			if addr, known := l.redirected(n.addr, line); known {
				t.hint = addr
			}
		}
		a.astray(t, line, t.hint != "")
	default:
		a.giveUp(t, line)
	}
}

// giveUp ends t: those who wait for it are told, those who listen to it disconnected.
func (a *audience) giveUp(t *topic, cause string) {
	l := a.hub.loop
	waiting := t.waiting
	t.waiting = nil
	t.end(nil)
	for _, sub := range waiting {
		sub.end(cause)
	}
	if len(t.members) == 0 {
		return
	}
	l.srv.log.Warn("subscribers disconnected", "topic", t.id.name, "clients", len(t.members), "reason", cause)
	for s := range t.members {
		l.stats.SubscribersDropped++
		s.close("its subscription was lost: " + cause)
	}
}

// endIfUnused ends t when nobody wants it. g waits until the backend knows.
func (t *topic) endIfUnused(g *gate) {
	if len(t.members) == 0 && t.holds == 0 && !t.gone() {
		t.end(g)
	}
}

// end takes t out of the hub.
func (t *topic) end(g *gate) {
	delete(t.audience.topics[t.id.kind], t.id.name)
	delete(t.audience.recovering, t)
	links := t.links
	t.links, t.home = nil, nil
	for _, ln := range links {
		ln.feed.unsubscribe(ln, g)
	}
}

// publish passes a message on to everyone who listens. It allocates nothing and
// looks at nothing that loops share.
func (a *audience) publish(f *feed, kind subKind, name, channel []byte, frame []byte) {
	t := a.listened(f, kind, name, channel)
	if t == nil {
		return
	}
	a.hub.loop.heard(channel, frame, f.hearing.cleared > 0)
	for s := range t.members {
		s.push(frame)
	}
}

// listened is the topic whose listeners a message on f is for; nil: it is for nobody.
func (a *audience) listened(f *feed, kind subKind, name, channel []byte) *topic {
	t := a.topics[kind][string(name)]
	if t == nil || t.home == nil {
		return nil
	}
	event := t.everywhere && keyEvent(channel)
	switch {
	case event && f.leaveAt != 0: // a replica repeats its master's events
		return nil
	case !event && t.home.feed != f: // home brings it, too
		return nil
	}
	return t
}

// cut ends the listeners of a topic that have been sent more than they may leave unread.
func (a *audience) cut(kind subKind, name []byte) {
	t := a.topics[kind][string(name)]
	if t == nil {
		return
	}
	for s := range t.members {
		a.hub.loop.stats.Cut++
		s.close("a message exceeds clients.subscriber_limit")
	}
}

// moved: the slot of a shard channel has left the feed's node. It is asked once more,
// because it knows better than the topology where the slot is now, and every moment costs messages.
func (a *audience) moved(f *feed, name string) {
	a.hub.loop.srv.opts.Topology.Refresh("a shard channel left " + f.node.addr)
	t := a.topics[kindShard][name]
	if t == nil {
		return
	}
	ln := t.link(f.node)
	if ln == nil || ln.feed != f {
		return
	}
	f.gone(ln)
	a.astray(t, "its slot left "+f.node.addr, true)
}

// uses reports whether there is a feed from n.
func (h *hub) uses(n *node) bool {
	for _, a := range h.audiences {
		if a.feeds[n.addr] != nil {
			return true
		}
	}
	return false
}

// moved follows a change of the topology.
func (h *hub) moved() {
	for _, a := range h.audiences {
		a.follow()
	}
}

func (a *audience) follow() {
	l := a.hub.loop
	for _, f := range a.feeds {
		switch {
		case f.node.info != nil:
			f.leaveAt = 0
		case !l.clusters, f.node.goneAt != 0:
			f.depart()
		case f.leaveAt == 0:
			f.leaveAt = l.now() + handover
		}
	}
	if !l.clusters {
		return
	}
	for _, t := range a.topics[kindShard] {
		a.followSlot(t)
	}
	for _, kind := range []subKind{kindChannel, kindPattern} {
		for _, t := range a.topics[kind] {
			if t.everywhere && !a.complete(t) {
				a.recover(t) // a master has joined
				a.place(t)
			}
		}
	}
}

// handover is how long a master that was demoted, or has given its slots away, is still listened to (ns). The
// cluster brings it every message, as before, while its successor may yet be on the way to hear of some that
// listeners have had already: from there they would come a second time, behind later ones.
const handover = int64(time.Second)

// followSlot moves a shard channel to the owner of its slot.
func (a *audience) followSlot(t *topic) {
	t.hint = ""
	n, cause := a.hub.loop.owner(slot.Of([]byte(t.id.name)))
	if cause != "" || len(t.links) == 0 || t.link(n) != nil {
		return
	}
	links := t.links
	t.links, t.home = nil, nil
	for _, ln := range links {
		ln.feed.unsubscribe(ln, nil)
	}
	a.astray(t, "its slot left "+links[0].feed.node.addr, true)
}

// tick looks after what no event announces.
func (h *hub) tick(now int64) {
	for as, a := range h.audiences {
		for _, f := range a.feeds {
			f.look(now)
		}
		for t := range a.recovering {
			if now < t.deadline {
				a.place(t)
				continue
			}
			a.giveUp(t, "ERR cosky-proxy cannot subscribe: not put in force again within pubsub.resubscribe_timeout")
		}
		if len(a.feeds) == 0 && a.unused() {
			delete(h.audiences, as)
		}
	}
}

func (a *audience) unused() bool {
	for k := range a.topics {
		if len(a.topics[k]) > 0 {
			return false
		}
	}
	return true
}

// barrier calls done when every message has been passed on that the backend had
// sent to this audience before.
func (a *audience) barrier(done func()) {
	g := &gate{left: 1, done: done}
	for _, f := range a.feeds {
		if f.ready && len(f.links) > 0 {
			f.ping(g)
		}
	}
	g.pass()
}
