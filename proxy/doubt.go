package proxy

import (
	"bytes"
	"time"

	"cosky-proxy/router/command"
)

// Doubt. The proxy answers PING and queues commands after MULTI by itself, because a
// Redis in good health would say nothing else. One that is busy with a script, out of
// memory or loading refuses them. So for a while after any sign of that, and after a change
// of its configuration, PING is passed on and transactions are queued in Redis itself. Refusals that
// are sat out (see refusal) are no such sign.

// doubtFor is how long a sign of trouble counts.
const doubtFor = int64(time.Second)

// doubt notes a sign that the backend refuses commands, for all loops.
func (l *loop) doubt() { l.srv.doubtUntil.Store(l.now() + doubtFor) }

func (l *loop) inDoubt() bool { return l.srv.doubtUntil.Load() > l.now() }

// whole reports whether there is a master of each slot that may be asked: a shard that is lost is no matter of clients that
// only want to know whether they are connected.
func (l *loop) whole() bool {
	if !l.clusters {
		return true
	}
	for _, n := range l.shards {
		if !n.well() {
			return false
		}
	}
	return l.topo.Uncovered() == 0
}

// refusesCommands reports whether the first word of an error says that the server
// would refuse other commands, too (server.c: processCommand).
func refusesCommands(word []byte) bool {
	switch string(word) {
	case "BUSY", "OOM", "MISCONF", "LOADING", "NOREPLICAS", "MASTERDOWN", "READONLY":
		return true
	}
	return false
}

// firstWord is the code of an error line.
func firstWord(line []byte) []byte {
	word, _, _ := bytes.Cut(line, []byte{' '})
	return word
}

// configSet passes CONFIG SET on; what the backend refuses may change with it.
func (s *session) configSet(cmd *command.Command, args [][]byte, raw []byte) bool {
	s.loop.doubt()
	return s.forward(cmd, args, raw)
}

// scriptPatience is how long a script may run before others use another connection.
const scriptPatience = int64(100 * time.Millisecond)

// stuck reports whether a script has been running on the lane for so long that
// requests behind it should not wait for its end: on a connection of their own they
// get Redis' -BUSY, and can stop it. The same for a module's command, which may block its
// client without being flagged as one that does.
func (ln *lane) stuck(now int64) bool {
	r := ln.inflight.head
	return ln.kind == laneShared && ln.greeted && r != nil && (r.runsScript() || r.cmd != nil && r.cmd.Has(command.Module)) && now-max(r.sentAt, ln.lastRead) > scriptPatience
}

// sidestep moves what comes next to another connection if a script is running on
// the present one: what is asked in doubt is asked about just that.
func (n *node) sidestep(key laneKey) {
	ln, _ := n.lane(key)
	if ln == nil || !ln.greeted || ln.inflight.head == nil || !ln.inflight.head.runsScript() {
		return
	}
	if now := n.loop.now(); now-n.asideAt > scriptPatience { // not one connection per script
		n.asideAt = now
		n.retire(ln)
	}
}

// pingBackend passes PING on to where it can be refused.
func (s *session) pingBackend(cmd *command.Command, args [][]byte, raw []byte) bool {
	for _, n := range s.loop.shards {
		n.sidestep(s.laneKey())
	}
	if s.mustWait() { // the script is the client's own
		return false
	}
	return s.forward(cmd, args, raw)
}

// runsScript reports whether the backend runs a script while it executes r.
func (r *request) runsScript() bool {
	return script(r) || r.block != nil && r.block.tx.scripts
}
