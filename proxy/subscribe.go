package proxy

import (
	"bytes"
	"fmt"
	"time"

	"cosky-proxy/cluster/slot"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// hub shares Pub/Sub subscriptions: however many clients of a loop listen to a
// channel, the backend sees one subscriber.
//
// A client's SUBSCRIBE is confirmed only after the backend's own confirmation,
// so that nothing published after the confirmation can be missed. When the
// connection to the backend is lost, messages may have been lost with it; the clients that
// depend on it are disconnected, which is how a Redis that goes away tells them.
type hub struct {
	loop   *loop
	topics map[string]*topic // by kind and name, see topicKey
	feeds  map[string]*feed  // by node address
}

// topic is one channel or pattern.
type topic struct {
	key       string // 'c' or 'p', then the name
	feed      *feed
	members   map[*session]struct{}
	confirmed bool
	waiting   []*subscription
}

// subscription is one client's SUBSCRIBE that waits for the backend.
type subscription struct {
	r       *request
	kind    byte
	names   []string
	missing int
}

// feed is a connection to the backend that only subscribes. It speaks RESP2,
// whose messages differ from RESP3's in the first byte alone.
type feed struct {
	// static
	hub  *hub
	node *node

	// loop-owned
	conn     *netloop.Conn
	pending  []byte // commands queued before the connection is ready
	login    int    // replies of the handshake still to come
	ready    bool
	closed   bool
	lastRead int64
	lastPing int64
}

func (h *hub) init(l *loop) {
	h.loop = l
	h.topics = make(map[string]*topic)
	h.feeds = make(map[string]*feed)
}

func topicKey(kind byte, name string) string { return string(kind) + name }

func (s *session) subscriptions() int { return len(s.subs) }

// subscribed counts channels and patterns.
func (s *session) subscribed() (channels, patterns int) {
	for key := range s.subs {
		if key[0] == 'c' {
			channels++
		} else {
			patterns++
		}
	}
	return channels, patterns
}

// restricted: a RESP2 connection that has subscribed may do little else.
func (s *session) restricted(cmd *command.Command) bool {
	if s.resp3 || s.subscriptions() == 0 {
		return false
	}
	switch cmd.Name {
	case "subscribe", "psubscribe", "unsubscribe", "punsubscribe", "ssubscribe", "sunsubscribe", "ping", "quit", "reset":
		return false
	}
	return true
}

func (s *session) subscribe(cmd *command.Command, args [][]byte, _ []byte) bool {
	if s.drain() {
		return false
	}
	l := s.loop
	sub := &subscription{kind: 'c'}
	if cmd.Name[0] == 'p' {
		sub.kind = 'p'
	}
	for _, a := range args[1:] {
		sub.names = append(sub.names, string(a))
	}
	r := l.newRequest(s, cmd)
	r.sentAt = l.now()
	sub.r = r
	s.exclusive = true
	s.enqueue(r)
	for _, name := range sub.names {
		t, cause := l.hub.topic(sub.kind, name)
		if cause != "" {
			l.abort(r, cause)
			return true
		}
		if !t.confirmed {
			t.waiting = append(t.waiting, sub)
			sub.missing++
		}
	}
	if sub.missing == 0 {
		l.hub.join(sub)
	}
	return true
}

// topic finds or begins an upstream subscription.
func (h *hub) topic(kind byte, name string) (*topic, string) {
	key := topicKey(kind, name)
	if t := h.topics[key]; t != nil {
		return t, ""
	}
	f, cause := h.feed(kind, name)
	if cause != "" {
		return nil, cause
	}
	t := &topic{key: key, feed: f, members: make(map[*session]struct{})}
	h.topics[key] = t
	f.command(verb(kind, "SUBSCRIBE"), name)
	return t, ""
}

func verb(kind byte, v string) string {
	if kind == 'p' {
		return "P" + v
	}
	return v
}

// feed is the connection for a channel: to the shard that owns its hash slot,
// where CoSky's scripts publish.
func (h *hub) feed(kind byte, name string) (*feed, string) {
	l := h.loop
	t := l.anyShard()
	if l.clusters && (kind == 'c' || fixedTag(name)) {
		if sl := slot.Of([]byte(name)); l.topo.ShardOf(sl) >= 0 {
			t.slot = sl
		}
	}
	n, cause := l.owner(t.slot)
	if cause != "" {
		return nil, cause
	}
	if f := h.feeds[n.addr]; f != nil {
		return f, ""
	}
	if n.avoided() {
		return nil, n.cause
	}
	f := &feed{hub: h, node: n, lastRead: l.now()}
	h.feeds[n.addr] = f
	go func(addr string) {
		nc, err := dial(addr, l.srv.opts.Upstream.ConnectTimeout)
		posted := l.nl.Post(func() {
			if err == nil && !f.closed {
				f.conn, err = l.nl.Attach(nc, f)
			}
			if f.closed || err != nil {
				if nc != nil && f.conn == nil {
					nc.Close()
				}
				f.lost(fmt.Errorf("cannot reach backend %s: %w", addr, dialCauseOr(err)))
				return
			}
			f.begin()
		})
		if !posted && nc != nil {
			nc.Close()
		}
	}(n.addr)
	return f, ""
}

func dialCauseOr(err error) error {
	if err == nil {
		return errClosed
	}
	return dialCause(err)
}

// fixedTag reports whether a pattern has a literal hash tag, so that everything
// it can match lives in one slot.
func fixedTag(pattern string) bool {
	b := []byte(pattern)
	tag := slot.Tag(b)
	return len(tag) != len(b) && !bytes.ContainsAny(tag, `*?[\`) && !bytes.ContainsAny(b[:bytes.IndexByte(b, '{')], `*?[\`)
}

// begin logs in and lets the queued commands go.
func (f *feed) begin() {
	b := &f.hub.loop.srv.opts.Backend
	f.lastRead = f.hub.loop.now()
	if b.Password == "" {
		f.open()
		return
	}
	f.conn.Out = resp.AppendCommand(f.conn.Out, auth(b)...)
	f.login = 1
	f.conn.Dirty()
}

func (f *feed) open() {
	f.ready = true
	f.conn.Out = append(f.conn.Out, f.pending...)
	f.pending = nil
	f.conn.Dirty()
}

func (f *feed) command(args ...string) {
	if !f.ready {
		f.pending = resp.AppendCommand(f.pending, args...)
		return
	}
	f.conn.Out = resp.AppendCommand(f.conn.Out, args...)
	f.conn.Dirty()
}

// OnData handles confirmations and messages.
func (f *feed) OnData(b []byte) int {
	f.lastRead = f.hub.loop.now()
	pos := 0
	for pos < len(b) && !f.closed {
		n := resp.Len(b[pos:])
		if n == 0 {
			if len(b)-pos > f.hub.loop.srv.opts.Clients.SubscriberLimit {
				f.lost(fmt.Errorf("a message exceeds clients.subscriber_limit"))
			}
			break
		}
		f.frame(b[pos : pos+n])
		pos += n
	}
	return pos
}

func (f *feed) frame(b []byte) {
	if b[0] == '-' {
		f.lost(fmt.Errorf("backend says %q", b[1:len(b)-2]))
		return
	}
	if f.login > 0 {
		f.login--
		f.open()
		return
	}
	kind, n, size := resp.ReadHeader(b)
	if kind != '*' || n < 2 {
		return
	}
	what, used := resp.ReadBulk(b[size:])
	name, _ := resp.ReadBulk(b[size+used:])
	switch string(what) {
	case "message":
		f.hub.publish('c', name, b)
	case "pmessage":
		f.hub.publish('p', name, b)
	case "subscribe":
		f.hub.confirm('c', name)
	case "psubscribe":
		f.hub.confirm('p', name)
	}
}

// publish passes one message on to everyone who listens.
func (h *hub) publish(kind byte, name []byte, frame []byte) {
	t := h.topics[topicKey(kind, string(name))]
	if t == nil {
		return
	}
	for s := range t.members {
		s.push(frame)
	}
}

// push delivers a message, between replies only.
func (s *session) push(frame []byte) {
	first := byte('*')
	if s.resp3 {
		first = '>'
	}
	if s.midReply {
		s.pushes = append(append(s.pushes, first), frame[1:]...)
	} else {
		s.conn.Out = append(append(s.conn.Reserve(len(frame)), first), frame[1:]...)
		s.conn.Dirty()
	}
	s.checkMessages()
}

// checkMessages cuts a client off that does not read what it has subscribed to.
func (s *session) checkMessages() {
	if s.backlog() > s.loop.srv.opts.Clients.SubscriberLimit {
		s.loop.stats.Cut++
		s.close("does not read its messages")
	}
}

// flushPushes writes the messages that waited for the end of a reply.
func (s *session) flushPushes() {
	if len(s.pushes) == 0 || s.midReply {
		return
	}
	s.write(s.pushes)
	s.pushes = nil
}

// confirm: the backend has put a subscription in force.
func (h *hub) confirm(kind byte, name []byte) {
	t := h.topics[topicKey(kind, string(name))]
	if t == nil || t.confirmed {
		return
	}
	t.confirmed = true
	waiting := t.waiting
	t.waiting = nil
	for _, sub := range waiting {
		if sub.missing--; sub.missing == 0 {
			h.join(sub)
		}
	}
}

// join makes the client a member and confirms each of its names, in order.
func (h *hub) join(sub *subscription) {
	r := sub.r
	s := r.sess
	if s == nil {
		h.loop.release(r)
		h.sweep(sub)
		return
	}
	var reply []byte
	for _, name := range sub.names {
		key := topicKey(sub.kind, name)
		t := h.topics[key]
		if t == nil {
			h.loop.abort(r, "ERR cosky-proxy lost its subscription connection, try again")
			return
		}
		t.members[s] = struct{}{}
		if s.subs == nil {
			s.subs = make(map[string]bool)
		}
		s.subs[key] = true
		reply = s.appendChange(reply, wordFor(sub.kind, "subscribe"), name, false)
	}
	h.loop.countReply(r.cmd, r.sentAt, false)
	h.loop.finish(r, reply)
}

func wordFor(kind byte, w string) string {
	if kind == 'p' {
		return "p" + w
	}
	return w
}

// appendChange appends a (un)subscribe confirmation with the present count.
func (s *session) appendChange(b []byte, what, name string, null bool) []byte {
	if s.resp3 {
		b = resp.AppendPush(b, 3)
	} else {
		b = resp.AppendArray(b, 3)
	}
	b = appendString(b, what)
	if null {
		b = s.appendNull(b)
	} else {
		b = appendString(b, name)
	}
	return resp.AppendInt(b, int64(s.subscriptions()))
}

func (s *session) unsubscribe(cmd *command.Command, args [][]byte, _ []byte) bool {
	if s.drain() {
		return false
	}
	kind := byte('c')
	if cmd.Name[0] == 'p' {
		kind = 'p'
	}
	var names []string
	for _, a := range args[1:] {
		names = append(names, string(a))
	}
	if len(args) == 1 {
		for key := range s.subs {
			if key[0] == kind {
				names = append(names, key[1:])
			}
		}
	}
	return s.answer(cmd, func(b []byte) []byte {
		if len(names) == 0 {
			return s.appendChange(b, wordFor(kind, "unsubscribe"), "", true)
		}
		for _, name := range names {
			s.loop.hub.part(s, topicKey(kind, name))
			b = s.appendChange(b, wordFor(kind, "unsubscribe"), name, false)
		}
		return b
	})
}

// part takes s out of a topic and ends the topic with its last member.
func (h *hub) part(s *session, key string) {
	if _, member := s.subs[key]; !member {
		return
	}
	delete(s.subs, key)
	t := h.topics[key]
	if t == nil {
		return
	}
	delete(t.members, s)
	h.endIfUnused(t)
}

func (h *hub) endIfUnused(t *topic) {
	if len(t.members) > 0 || len(t.waiting) > 0 {
		return
	}
	delete(h.topics, t.key)
	t.feed.command(verb(t.key[0], "UNSUBSCRIBE"), t.key[1:])
}

// sweep ends the topics that a client asked for which has gone meanwhile.
func (h *hub) sweep(sub *subscription) {
	for _, name := range sub.names {
		if t := h.topics[topicKey(sub.kind, name)]; t != nil && t.confirmed {
			h.endIfUnused(t)
		}
	}
}

// leave takes s out of every topic.
func (h *hub) leave(s *session) {
	for key := range s.subs {
		h.part(s, key)
	}
	s.subs = nil
}

var errClosed = fmt.Errorf("closed by the backend")

func (f *feed) OnFlushed() {}
func (f *feed) OnEOF()     { f.conn.Close() }

func (f *feed) OnClose(err error) {
	if err == nil {
		err = errClosed
	}
	f.lost(err)
}

// lost ends the feed and everything that depends on it.
func (f *feed) lost(err error) {
	if f.closed {
		return
	}
	f.closed = true
	h := f.hub
	delete(h.feeds, f.node.addr)
	if f.conn != nil {
		f.conn.Close()
	} else {
		f.node.unreachable(err)
	}
	var failed []*subscription
	var members []*session
	for key, t := range h.topics {
		if t.feed != f {
			continue
		}
		delete(h.topics, key)
		failed = append(failed, t.waiting...)
		for s := range t.members {
			members = append(members, s)
		}
	}
	for _, sub := range failed {
		if sub.missing > 0 {
			sub.missing = -1
			h.loop.abort(sub.r, "ERR cosky-proxy cannot subscribe: "+err.Error())
		}
	}
	for _, s := range members {
		s.close("subscription connection to the backend lost")
	}
}

// moved drops feeds of nodes that are no longer primaries: nobody may stay
// connected to a channel that has gone silent.
func (h *hub) moved() {
	for _, f := range h.feeds {
		if f.node.info == nil {
			f.lost(fmt.Errorf("backend %s left the topology", f.node.addr))
		}
	}
}

// pingEvery is how often an idle feed is probed.
const pingEvery = time.Second

// tick notices half-open connections.
func (h *hub) tick(now int64) {
	for _, f := range h.feeds {
		switch {
		case now-f.lastRead > int64(h.loop.srv.opts.Upstream.Timeout):
			f.lost(fmt.Errorf("backend %s does not answer", f.node.addr))
		case f.ready && now-f.lastPing > int64(pingEvery):
			f.lastPing = now
			f.command("PING")
		}
	}
}
