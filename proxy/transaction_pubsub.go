package proxy

import (
	"bytes"
	"slices"

	"cosky-proxy/router/command"
)

// Pub/Sub inside MULTI. EXEC is not sent before the backend has put every topic in
// force that the transaction subscribes to. From then on the session collects their
// messages, so that it misses none that is published by the transaction or behind it;
// it becomes a member, as far as anyone can see, when EXEC is answered. Messages come
// after that answer, as since Redis 7.2; before, Redis puts them into the middle of it.
// What the same transaction publishes to a topic before it subscribes, or after it has
// unsubscribed again, is among them, too, although it is not counted.

// subscribing is the part of a transaction that subscribes.
type subscribing struct {
	wanted    bool   // it has a (P)SUBSCRIBE
	publishes bool   // it has a (S)PUBLISH
	asked     bool   // the topics have been asked for
	ready     bool   // they are in force, or will not be
	refusal   string // why they will not
}

// amender makes the client's answer of the one that the node at origin gave inside EXEC.
type amender func(s *session, cmd *command.Command, o *own, origin string, answer []byte) []byte

// aboutPubSub: a transaction may have these queued.
func aboutPubSub(cmd *command.Command) bool {
	switch cmd.Name {
	case "subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe", "publish", "spublish":
		return true
	}
	return cmd.Parent != nil && cmd.Parent.Name == "pubsub"
}

// adoptPubSub says what the proxy does about a queued command.
func (tx *transaction) adoptPubSub(cmd *command.Command) (handler, amender) {
	switch cmd.Name {
	case "subscribe", "psubscribe":
		tx.sub.wanted = true
		return (*session).subscribe, nil
	case "unsubscribe", "punsubscribe", "sunsubscribe":
		return (*session).unsubscribe, nil
	case "ssubscribe":
		return (*session).denyBlocking, nil
	case "publish", "spublish":
		tx.sub.publishes = true
		return nil, amendPublish
	case "pubsub|channels", "pubsub|numsub", "pubsub|numpat", "pubsub|shardchannels", "pubsub|shardnumsub":
		return nil, amendPubsub
	case "ping":
		if tx.sub.wanted {
			return nil, amendPing
		}
	}
	return nil, nil
}

// denyBlocking: EXEC executes as a client that expects one reply per command
// (pubsub.c: ssubscribeCommand).
func (s *session) denyBlocking(*command.Command, [][]byte, []byte) bool {
	s.refuse("ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client")
	return true
}

func amendPublish(s *session, cmd *command.Command, o *own, origin string, answer []byte) []byte {
	return s.loop.srv.roster.published(origin, topicID{publishKind(cmd), string(o.args[1])}, 0, answer)
}

func amendPubsub(s *session, cmd *command.Command, o *own, origin string, answer []byte) []byte {
	return s.loop.srv.roster.inspected(cmd, o.args, origin, [][]byte{answer})
}

func amendPing(s *session, _ *command.Command, o *own, _ string, answer []byte) []byte {
	if s.resp3 || s.subscriptions() == 0 {
		return answer
	}
	return appendPong(nil, o.args)
}

// spareReplies drops what is to be done about PUBLISH when there is nothing to do:
// the reply to EXEC need not be collected for it then.
func (tx *transaction) spareReplies(l *loop) {
	if !tx.sub.publishes || tx.sub.wanted || l.srv.roster.size.Load() > 0 {
		return
	}
	tx.sub.publishes = false
	tx.own = slices.DeleteFunc(tx.own, func(o own) bool {
		cmd := tx.cmds[o.at]
		return cmd.Name == "publish" || cmd.Name == "spublish"
	})
}

// prepare puts in force what tx subscribes to. False: EXEC has to wait.
func (s *session) prepare(tx *transaction) bool {
	if tx.sub.asked {
		return tx.sub.ready || !s.awaitTopics()
	}
	var ids []topicID
	for i := range tx.own {
		o := &tx.own[i]
		if cmd := tx.cmds[o.at]; cmd.Name == "subscribe" || cmd.Name == "psubscribe" {
			ids = append(ids, topicIDs(cmd, o.args)...)
		}
	}
	tx.sub.asked = true
	s.hushed++
	s.loop.hub.audience(s.as).want(ids, func(topics []*topic, cause string) { s.prepared(tx, topics, cause) })
	return tx.sub.ready || !s.awaitTopics()
}

func (s *session) awaitTopics() bool { return s.holdUp(waitTopics, s.loop.timeoutLine("")) }

func (s *session) prepared(tx *transaction, topics []*topic, cause string) {
	if s.closed || s.tx != tx { // it has not waited for so long
		return
	}
	if cause == "" && slices.ContainsFunc(topics, (*topic).gone) {
		cause = errSubscriptionLost
	}
	if tx.sub.ready, tx.sub.refusal = true, cause; cause == "" {
		s.early = topics
		for _, t := range topics {
			t.members[s] = struct{}{}
		}
	}
	if s.wait == waitTopics {
		s.resume()
	}
}

// unprepare undoes prepare for a transaction that is not executed.
func (s *session) unprepare(tx *transaction) {
	if tx.sub.asked {
		s.dropEarly()
		s.unhush()
	}
}

// spoken: the reply to r, which hushes, has been written. Only an EXEC ends what is prepared
// for it: other commands that hush may be answered while it is in flight.
func (s *session) spoken(r *request) {
	if r.block != nil {
		s.dropEarly()
	}
	s.unhush()
}

// hush keeps messages back until r, the EXEC of tx, has been answered.
func (s *session) hush(r *request, tx *transaction) {
	switch {
	case tx.sub.asked: // is hushed since
		r.hushes = true
	case tx.sub.publishes && s.subscriptions() > 0:
		r.hushes = true
		s.hushed++
	}
}

// answer gives the client its reply to EXEC. What the transaction has published to
// its own client must be here before an UNSUBSCRIBE of the same transaction counts.
func (x *execution) answer(l *loop, r *request, reply []byte) {
	s := r.sess
	if s == nil || !r.hushes || !x.tx.sub.publishes || reply[0] != '*' {
		x.complete(l, reply)
		return
	}
	reply = bytes.Clone(reply)
	l.hub.audience(s.as).barrier(func() { x.complete(l, reply) })
}

// joinEarly makes s a member of topics that it has been prepared for.
func (s *session) joinEarly(b []byte, ids []topicID) []byte {
	for _, id := range ids {
		i := slices.IndexFunc(s.early, func(t *topic) bool { return t.id == id })
		b = s.join(b, s.early[i])
	}
	return b
}

// dropEarly ends the preparation: topics that have not been joined, or have been left
// again, are let go.
func (s *session) dropEarly() {
	early := s.early
	s.early = nil
	for _, t := range early {
		if s.subs[t.id].topic == t {
			continue
		}
		delete(t.members, s)
		t.endIfUnused(nil)
	}
}
