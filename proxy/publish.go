package proxy

import (
	"bytes"

	"cosky-proxy/router"
	"cosky-proxy/router/command"
)

// publish sends a message to where the clients of this proxy listen.
func (s *session) publish(cmd *command.Command, args [][]byte, raw []byte) bool {
	l := s.loop
	e := l.effect.reset()
	kind := publishKind(cmd)
	at := l.venue(kind, args[1])
	if l.srv.roster.size.Load() > 0 {
		p := &publication{on: topicID{kind, string(args[1])}}
		if n, cause := l.owner(at.slot); cause == "" {
			p.own = l.srv.roster.receivers(n.addr, p.on)
		}
		e.sink = p
		e.hushes = s.subscriptions() > 0 && l.srv.abilities.Load().repliesFirst
	}
	return s.send(cmd, raw, at, e)
}

// publishKind is the kind of subscription that a message is for in the first place.
func publishKind(cmd *command.Command) subKind {
	if cmd.Name == "spublish" {
		return kindShard
	}
	return kindChannel
}

// publication is a PUBLISH in flight whose answer has to count clients.
type publication struct {
	on  topicID
	own int64 // subscriptions of the proxy's that it was going to reach
}

func (p *publication) deliver(l *loop, r *request, reply []byte) {
	reply = l.srv.roster.published(r.origin, p.on, p.own, reply)
	s := r.sess
	if s == nil || s.subscriptions() == 0 {
		l.finish(r, reply)
		return
	}
	// A client that publishes to itself gets the message with the reply: behind it or, before
	// Redis 7.2, ahead of it.
	reply = bytes.Clone(reply)
	l.hub.audience(s.as).barrier(func() { l.finish(r, reply) })
}

// pubsub asks every shard and makes the answer count clients.
func (s *session) pubsub(cmd *command.Command, args [][]byte, raw []byte) bool {
	kept := make([][]byte, len(args))
	for i, a := range args {
		kept[i] = bytes.Clone(a)
	}
	merge := func(a *router.Answers) []byte {
		return s.loop.srv.roster.inspected(cmd, kept, "", a.Replies)
	}
	_, ok := s.broadcast(cmd, merge, raw, s.loop.effect.reset())
	return ok
}
