package proxy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/resp"
)

// feed is a connection to the backend that only subscribes. It speaks RESP2,
// whose messages differ from RESP3's in the first byte alone.
//
// Life: dialling and login (commands collect in pending) → ready → closed, for want
// of use or because it was lost. Commands are answered in order, so asks tells
// confirmations from each other and from messages.
type feed struct {
	// static
	audience *audience
	node     *node

	// loop-owned
	conn     *netloop.Conn // nil while dialling
	pending  []byte        // commands queued before the connection is ready
	asks     []ask         // commands not answered yet, oldest first
	links    map[*link]struct{}
	skip     resp.ReplyScanner // of a message that is too long for anyone
	hearing  hearing
	logins   int  // replies of the handshake still to come
	greeted  bool // the backend has said something
	ready    bool
	closed   bool
	departed bool  // its node has left the topology
	leaveAt  int64 // its node is no master any more, and listened to until then (mono); 0: it is one
	openedAt int64 // (mono)
	lastRead int64
	lastPing int64
	usedAt   int64 // last seen to carry a link
}

// link is one subscription of a feed. It is counted in the roster from before the
// backend may know of it until the backend certainly does not any more.
type link struct {
	topic   *topic // nil: nobody wants it any more
	id      topicID
	feed    *feed
	inForce bool // the backend has confirmed it
}

// ask is a command on a feed that has not been answered.
type ask struct {
	what askKind
	link *link // not of a ping
	gate *gate // passed by the answer, or when none can come any more; may be nil
}

type askKind uint8

const (
	askSubscribe askKind = iota
	askUnsubscribe
	askPing
)

// gate runs done when everything that was counted in has passed.
type gate struct {
	left int
	done func()
}

func (g *gate) pass() {
	if g == nil {
		return
	}
	if g.left--; g.left == 0 {
		g.done()
	}
}

// feed is the connection to n, opened when there is none. cause is an error line
// when n is known to be out of reach at the moment.
func (a *audience) feed(n *node) (f *feed, cause string) {
	if f = a.feeds[n.addr]; f != nil {
		return f, ""
	}
	if n.avoided() {
		return nil, n.breaker.cause
	}
	l := a.hub.loop
	f = &feed{audience: a, node: n, links: make(map[*link]struct{}), openedAt: l.now(), lastRead: l.now(), usedAt: l.now()}
	a.feeds[n.addr] = f
	go func(addr string) {
		nc, err := l.srv.dial(addr)
		posted := l.nl.Post(func() {
			switch {
			case f.closed:
				if nc != nil {
					nc.Close()
				}
				return
			case err == nil:
				if f.conn, err = l.nl.Attach(nc, f); err == nil {
					l.srv.own.Store(f.conn.LocalAddr(), lanePin)
				}
			}
			if err != nil {
				n.unreachable(err)
				f.lost(fmt.Errorf("cannot reach backend %s: %w", addr, dialCause(err)))
				return
			}
			f.login()
		})
		if !posted && nc != nil {
			nc.Close()
		}
	}(n.addr)
	return f, ""
}

// login says whom the feed subscribes as; what is queued follows when that is accepted.
func (f *feed) login() {
	l := f.audience.hub.loop
	f.lastRead = l.now()
	b, as := &l.srv.opts.Backend, f.audience.as
	switch {
	case as != nil && as.login:
		f.conn.Out = resp.AppendCommand(f.conn.Out, as.auth()...)
	case as == nil && b.Password != "":
		f.conn.Out = resp.AppendCommand(f.conn.Out, auth(b)...)
	default:
		f.open()
		return
	}
	f.conn.Dirty()
	f.logins = 1
}

func (f *feed) open() {
	f.ready = true
	f.conn.Out = append(f.conn.Out, f.pending...)
	f.conn.Dirty()
	f.pending = nil
}

// command sends a command, whose answer belongs to a.
func (f *feed) command(a ask, args ...string) {
	f.asks = append(f.asks, a)
	if !f.ready {
		f.pending = resp.AppendCommand(f.pending, args...)
		return
	}
	f.conn.Out = resp.AppendCommand(f.conn.Out, args...)
	f.conn.Dirty()
}

// subscribe links t to the feed's node.
func (f *feed) subscribe(t *topic) {
	ln := &link{topic: t, id: t.id, feed: f}
	t.links = append(t.links, ln)
	f.links[ln] = struct{}{}
	f.audience.hub.loop.srv.roster.attach(f.node.addr, t.id)
	f.command(ask{what: askSubscribe, link: ln}, t.id.kind.command("SUBSCRIBE"), t.id.name)
}

// unsubscribe ends ln, which belongs to no topic any more. g waits for the answer.
func (f *feed) unsubscribe(ln *link, g *gate) {
	ln.topic = nil
	if g != nil {
		g.left++
	}
	f.command(ask{askUnsubscribe, ln, g}, ln.id.kind.command("UNSUBSCRIBE"), ln.id.name)
}

// ping has g wait until everything is here that the node has sent so far.
func (f *feed) ping(g *gate) {
	if g != nil {
		g.left++
	}
	f.lastPing = f.audience.hub.loop.now()
	f.command(ask{what: askPing, gate: g}, "PING")
}

// gone forgets ln, which is certainly not in force at the backend any more.
func (f *feed) gone(ln *link) {
	if _, counted := f.links[ln]; !counted {
		return
	}
	delete(f.links, ln)
	f.audience.hub.loop.srv.roster.detach(f.node.addr, ln.id)
	if t := ln.topic; t != nil {
		ln.topic = nil
		t.unlink(ln)
	}
}

// OnData handles answers and messages.
func (f *feed) OnData(b []byte) int {
	f.lastRead = f.audience.hub.loop.now()
	pos := 0
	for pos < len(b) && !f.closed && !f.hold(b[pos:]) {
		n := f.take(b[pos:])
		if n == 0 {
			break
		}
		pos += n
		f.hearing.heard(n)
	}
	return pos
}

// take consumes a frame, or a piece of one that nobody can receive. 0: more bytes
// are needed.
func (f *feed) take(b []byte) int {
	if f.skip.Started() {
		return f.skipOn(b)
	}
	n := resp.Len(b)
	if n > 0 {
		f.frame(b[:n])
		return n
	}
	if len(b) <= f.audience.hub.loop.srv.opts.Clients.SubscriberLimit {
		return 0
	}
	// It would be the end of everyone it is for, so it need not be complete for that. The others
	// on this feed are not concerned.
	if kind, name, _, ok := readMessage(b); ok {
		f.audience.cut(kind, name)
	}
	return f.skipOn(b)
}

func (f *feed) skipOn(b []byte) int {
	n, _, err := f.skip.Scan(b)
	if err != nil {
		f.lost(fmt.Errorf("backend %s sends bytes that are not RESP: %w", f.node.addr, err))
	}
	return n
}

// readMessage reads the beginning of a message: its topic and its channel, which of a
// pattern is the one that matched, nil when it has not arrived yet.
func readMessage(b []byte) (kind subKind, name, channel []byte, ok bool) {
	_, _, size := resp.ReadHeader(b)
	if size == 0 {
		return 0, nil, nil, false
	}
	what, n := resp.ReadBulk(b[size:])
	size += n
	if name, n = resp.ReadBulk(b[size:]); n == 0 {
		return 0, nil, nil, false
	}
	switch string(what) {
	case "message":
		return kindChannel, name, name, true
	case "smessage":
		return kindShard, name, name, true
	case "pmessage":
		channel, _ = resp.ReadBulk(b[size+n:])
		return kindPattern, name, channel, true
	}
	return 0, nil, nil, false
}

// frame handles a complete answer or message.
func (f *feed) frame(b []byte) {
	greeted := f.greeted
	f.greeted = true
	switch {
	case b[0] == '-':
		f.refused(string(b[1:len(b)-2]), !greeted && isRefusal(b))
		return
	case f.logins > 0:
		f.logins--
		f.open()
		return
	case b[0] != '*': // PONG while nothing is subscribed
		f.answered(askPing, nil)
		return
	}
	if kind, name, channel, ok := readMessage(b); ok {
		f.audience.publish(f, kind, name, channel, b)
		return
	}
	_, _, size := resp.ReadHeader(b)
	what, n := resp.ReadBulk(b[size:])
	name, _ := resp.ReadBulk(b[size+n:])
	f.answer(string(what), string(name))
}

// answer handles what is an answer to a command, or says that a slot has moved.
func (f *feed) answer(what, name string) {
	for k := range subKinds {
		switch what {
		case k.word("subscribe"):
			f.answered(askSubscribe, &topicID{k, name})
			return
		case k.word("unsubscribe"):
			id := &topicID{k, name}
			if k == kindShard && !f.awaits(askUnsubscribe, id) {
				f.audience.moved(f, name)
				return
			}
			f.answered(askUnsubscribe, id)
			return
		}
	}
	f.answered(askPing, nil)
}

// awaits reports whether the next answer is expected to be this one.
func (f *feed) awaits(what askKind, id *topicID) bool {
	return len(f.asks) > 0 && f.asks[0].what == what && (what == askPing || f.asks[0].link.id == *id)
}

func (f *feed) next() ask {
	a := f.asks[0]
	if f.asks = f.asks[1:]; len(f.asks) == 0 {
		f.asks = nil
	}
	return a
}

// answered ends the oldest command.
func (f *feed) answered(what askKind, id *topicID) {
	if !f.awaits(what, id) {
		f.lost(fmt.Errorf("backend %s answers what nobody asked it", f.node.addr))
		return
	}
	a := f.next()
	switch what {
	case askUnsubscribe:
		f.gone(a.link)
	case askSubscribe:
		if a.link.topic != nil {
			f.audience.confirmed(a.link)
		}
	}
	a.gate.pass()
}

// refused handles an error: about the connection, or about one subscription.
func (f *feed) refused(line string, turnedAway bool) {
	if turnedAway {
		f.node.unreachable(errors.New(line))
	}
	if f.logins > 0 || turnedAway || len(f.asks) == 0 || f.asks[0].what == askPing || strings.HasPrefix(line, "NOAUTH") {
		f.lost(fmt.Errorf("backend %s says %q", f.node.addr, line))
		return
	}
	a := f.next()
	t := a.link.topic
	f.gone(a.link)
	if t != nil {
		f.audience.denied(t, f.node, line)
	}
	a.gate.pass()
}

// feedLinger is how long an unused feed is kept: clients that subscribe and
// unsubscribe in turn need not wait for a connection each time.
const feedLinger = time.Second

// pingEvery is how often a feed is probed.
const pingEvery = time.Second

// look closes an unused feed and notices a half-open connection.
func (f *feed) look(now int64) {
	if len(f.links) > 0 || len(f.asks) > 0 && f.asks[0].what != askPing {
		f.usedAt = now
	}
	if f.hearing.waits { // the feed is not read on
		f.lastRead = now
	}
	switch {
	case f.leaveAt != 0 && now >= f.leaveAt:
		f.depart()
	case now-f.lastRead > int64(f.audience.hub.loop.srv.opts.Upstream.Timeout):
		f.lost(fmt.Errorf("backend %s does not answer", f.node.addr))
	case now-f.usedAt > int64(feedLinger):
		f.lost(errors.New("not used any more"))
	case f.ready && now-f.lastPing > int64(pingEvery):
		f.ping(nil)
	}
}

func (f *feed) OnFlushed() {}
func (f *feed) OnEOF()     { f.conn.Close() }

func (f *feed) OnClose(err error) {
	if err == nil {
		err = errors.New("closed by the backend")
	}
	f.lost(fmt.Errorf("the connection to backend %s was lost: %w", f.node.addr, err))
}

// depart ends the feed, whose node is none of those any more that clients are to hear.
func (f *feed) depart() {
	f.departed = true
	f.lost(fmt.Errorf("backend %s left the topology", f.node.addr))
}

// lost ends the feed. Every topic that it carried has to be put in force elsewhere.
func (f *feed) lost(err error) {
	if f.closed {
		return
	}
	f.closed = true
	h := f.audience.hub
	delete(f.audience.feeds, f.node.addr)
	if f.conn != nil {
		h.loop.srv.own.Delete(f.conn.LocalAddr())
		f.conn.Close()
	}
	if len(f.links) > 0 {
		h.loop.stats.FeedsLost++
		h.loop.srv.log.Warn("subscription connection lost", "node", f.node.addr, "subscriptions", len(f.links), "error", err.Error())
	}
	var topics []*topic
	for ln := range f.links {
		if ln.topic != nil {
			topics = append(topics, ln.topic)
		}
		f.gone(ln)
	}
	slices.SortFunc(topics, func(a, b *topic) int { return a.seq - b.seq })
	for _, a := range f.asks {
		a.gate.pass()
	}
	f.asks = nil
	// A node that accepts connections and closes them at once must not be dialled in
	// a circle: then the next tick has to do.
	again := h.loop.now()-f.openedAt > int64(pingEvery)
	for _, t := range topics {
		if f.departed && !t.gone() { // its successor is known
			f.audience.astray(t, err.Error(), true)
			continue
		}
		f.audience.broken(t, err.Error(), again)
	}
}
