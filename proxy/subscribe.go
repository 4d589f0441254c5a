package proxy

import (
	"slices"

	"cosky-proxy/cluster/slot"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// membership is a session's place in a topic.
type membership struct {
	topic *topic
	order int // of subscribing
}

func (s *session) subscriptions() int { return len(s.subs) }

// subscribed counts channels, patterns and shard channels.
func (s *session) subscribed() (channels, patterns, shards int) {
	for id := range s.subs {
		if id.kind == kindPattern {
			patterns++
		}
	}
	return len(s.subs) - patterns - s.shardSubs, patterns, s.shardSubs
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

// subscriptionKind is the kind that a (UN)SUBSCRIBE command of any kind is about.
func subscriptionKind(cmd *command.Command) subKind {
	switch cmd.Name {
	case "psubscribe", "punsubscribe":
		return kindPattern
	case "ssubscribe", "sunsubscribe":
		return kindShard
	}
	return kindChannel
}

func topicIDs(cmd *command.Command, args [][]byte) []topicID {
	kind := subscriptionKind(cmd)
	ids := make([]topicID, 0, len(args)-1)
	for _, a := range args[1:] {
		ids = append(ids, topicID{kind, string(a)})
	}
	return ids
}

// subscribe puts the topics in force at the backend, then confirms them to the client.
func (s *session) subscribe(cmd *command.Command, args [][]byte, _ []byte) bool {
	ids := topicIDs(cmd, args)
	if s.captured != nil {
		s.captured.out = s.joinEarly(s.captured.out, ids)
		return true
	}
	if s.drain() {
		return false
	}
	l := s.loop
	if l.clusters && crossSlot(ids) {
		s.refuse(errCrossSlot)
		return true
	}
	r := l.newRequest(s, cmd)
	r.sentAt = l.now()
	s.exclusive = true
	s.enqueue(r)
	l.hub.audience(s.as).want(ids, func(topics []*topic, cause string) {
		if cause == "" && slices.ContainsFunc(topics, (*topic).gone) {
			cause = errSubscriptionLost
		}
		if cause != "" || r.sess == nil {
			l.abort(r, cause)
			return
		}
		var reply []byte
		for _, t := range topics {
			reply = s.join(reply, t)
		}
		l.countReply(cmd, r.sentAt, false)
		l.finish(r, reply)
	})
	return true
}

const errSubscriptionLost = "ERR cosky-proxy lost its subscription connection, try again"

// crossSlot reports whether shard channels live in different slots of a cluster.
func crossSlot(ids []topicID) bool {
	for _, id := range ids {
		if id.kind == kindShard && slot.Of([]byte(id.name)) != slot.Of([]byte(ids[0].name)) {
			return true
		}
	}
	return false
}

// join makes s a member of t and appends the confirmation.
func (s *session) join(b []byte, t *topic) []byte {
	if _, member := s.subs[t.id]; !member {
		if s.subs == nil {
			s.subs = make(map[topicID]membership)
		}
		s.joined++
		s.keep(len(t.id.name) + subscriptionCost)
		s.subs[t.id] = membership{t, s.joined}
		if t.id.kind == kindShard {
			s.shardSubs++
		}
		t.members[s] = struct{}{}
		s.loop.srv.roster.join(t.id)
	}
	return s.appendChange(b, "subscribe", t.id, false)
}

// leave ends the membership and, with the last one, the topic; g waits until the
// backend knows.
func (s *session) leave(id topicID, g *gate) {
	m, member := s.subs[id]
	if !member {
		return
	}
	delete(s.subs, id)
	s.keep(-len(id.name) - subscriptionCost)
	if id.kind == kindShard {
		s.shardSubs--
	}
	delete(m.topic.members, s)
	s.loop.srv.roster.leave(id)
	m.topic.endIfUnused(g)
}

// leaveAll takes s out of every topic.
func (s *session) leaveAll() {
	for id := range s.subs {
		s.leave(id, nil)
	}
	s.subs = nil
	s.dropEarly()
}

// appendChange appends a (un)subscribe confirmation with the present count. Shard
// channels are counted apart, as in Redis.
func (s *session) appendChange(b []byte, what string, id topicID, null bool) []byte {
	if s.resp3 {
		b = resp.AppendPush(b, 3)
	} else {
		b = resp.AppendArray(b, 3)
	}
	b = appendString(b, id.kind.word(what))
	if null {
		b = s.appendNull(b)
	} else {
		b = appendString(b, id.name)
	}
	if id.kind == kindShard {
		return resp.AppendInt(b, int64(s.shardSubs))
	}
	return resp.AppendInt(b, int64(len(s.subs)-s.shardSubs))
}

// unsubscribe leaves topics. The client is told once the backend knows, so that whoever
// has been told finds everyone's PUBLISH and PUBSUB NUMSUB counting right.
func (s *session) unsubscribe(cmd *command.Command, args [][]byte, _ []byte) bool {
	if s.captured != nil {
		s.captured.out = s.appendLeave(s.captured.out, cmd, args, nil)
		return true
	}
	if s.drain() {
		return false
	}
	l := s.loop
	r := l.newRequest(s, cmd)
	r.sentAt = l.now()
	s.exclusive = true
	s.enqueue(r)
	g := &gate{left: 1}
	reply := s.appendLeave(nil, cmd, args, g)
	g.done = func() {
		l.countReply(cmd, r.sentAt, false)
		l.finish(r, reply)
	}
	g.pass()
	return true
}

func (s *session) appendLeave(b []byte, cmd *command.Command, args [][]byte, g *gate) []byte {
	ids := topicIDs(cmd, args)
	if len(ids) == 0 {
		ids = s.joinedTopics(subscriptionKind(cmd))
	}
	for _, id := range ids {
		s.leave(id, g)
		b = s.appendChange(b, "unsubscribe", id, false)
	}
	if len(ids) == 0 {
		b = s.appendChange(b, "unsubscribe", topicID{kind: subscriptionKind(cmd)}, true)
	}
	return b
}

// joinedTopics are those of one kind, oldest first.
func (s *session) joinedTopics(kind subKind) (ids []topicID) {
	for id := range s.subs {
		if id.kind == kind {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b topicID) int { return s.subs[a].order - s.subs[b].order })
	return ids
}

// push delivers a message, between replies only.
func (s *session) push(frame []byte) {
	s.fill()
	first := byte('*')
	if s.resp3 {
		first = '>'
	}
	if s.midReply || s.hushed > 0 {
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

// writePush writes a message between replies, or keeps it until there is room for one.
func (s *session) writePush(b []byte) {
	if s.midReply || s.hushed > 0 {
		s.fill()
		s.pushes = append(s.pushes, b...)
		return
	}
	s.write(b)
}

// flushPushes writes the messages that waited for the end of a reply.
func (s *session) flushPushes() {
	if len(s.pushes) == 0 || s.midReply || s.hushed > 0 {
		return
	}
	s.write(s.pushes)
	s.pushes = nil
}

// unhush lets messages through again that waited for a reply, which has been written.
func (s *session) unhush() {
	s.hushed--
	s.flushPushes()
}
