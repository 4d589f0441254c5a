package proxy

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"cosky-proxy/router"
	"cosky-proxy/router/command"
)

// A transaction on a cluster is executed by one shard. What concerns all of them is executed there in its place
// among the other commands, and by the others as soon as EXEC has been answered, before the client sees the answer:
// all or nothing holds for the transaction's shard, and nothing happens anywhere if EXEC is refused.

// spread reports whether the command concerns several shards of a cluster.
func (l *loop) spread(cmd *command.Command) bool {
	if !l.clusters || len(cmd.KeySpecs) > 0 || cmd.Script {
		return false
	}
	switch cmd.Name {
	case "scan", "keys", "debug", "config|set", "script|load", "script|exists", "script|flush", "function|load":
		return true
	}
	return l.handlers[cmd.ID] == nil && router.ScopeOf(cmd) != router.AnyShard
}

// spreadProblem says why a command that concerns several shards cannot be part of a transaction, "" if it can.
func spreadProblem(cmd *command.Command, args [][]byte) string {
	scope := router.ScopeOf(cmd)
	if scope != router.AllShards && scope != router.AllNodes || router.MergeFor(cmd) == nil || cmd.Has(command.AllowBusy) {
		return fmt.Sprintf("ERR '%s' inside MULTI concerns all shards of the Redis Cluster, but a transaction is executed by one", cmd.Name)
	}
	if cmd.Name == "config|set" {
		return settingsProblem(args)
	}
	return ""
}

// spread has the other servers execute what the transaction's shard has just answered. False: there is nothing to
// wait for.
func (c *completion) spread(l *loop, cmd *command.Command, o *own, answer []byte) bool {
	s, here := c.x.exec.sess, c.x.exec.origin
	var nodes []*node
	if answer[0] != '-' {
		nodes = slices.Concat(l.shards, l.spares())
		if router.ScopeOf(cmd) == router.AllNodes {
			nodes = l.everyNode()
		}
		nodes = slices.DeleteFunc(nodes, func(n *node) bool { return n.addr == here })
	}
	if len(nodes) == 0 {
		c.out = append(c.out, answer...)
		return false
	}
	e := l.effect.reset()
	l.concernUnknown(e, cmd)
	p := l.newRequest(s, cmd)
	p.sentAt = l.now()
	l.begin(p, e)
	c.promised(p)
	c.x.exec.seq = 0 // the reply depends on what is sent only now
	if !c.x.exec.hushes {
		c.x.exec.hushes = true
		s.hushed++
	}
	sc := newScatter(p, router.MergeFor(cmd), len(nodes)+1)
	sc.missing--
	sc.answers.Replies[len(nodes)], sc.answers.From[len(nodes)] = bytes.Clone(answer), here
	sc.answers.Args = o.args
	for i, n := range nodes {
		ln, cause := s.lane(n)
		child := sc.child(l, ln, i)
		if cause != "" {
			l.abort(child, cause)
			continue
		}
		ln.send(child, o.raw)
	}
	return true
}

// settingsProblem names a setting that cannot be the same on every server of a cluster.
func settingsProblem(args [][]byte) string {
	for i := 2; i < len(args); i += 2 {
		if name := strings.ToLower(string(args[i])); ofOneServer(name) {
			return fmt.Sprintf("ERR CONFIG SET failed (possibly related to argument '%s') - it concerns a single server, and cosky-proxy does not choose one of a Redis Cluster's", name)
		}
	}
	return ""
}
