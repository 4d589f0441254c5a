package proxy

import (
	"fmt"
	"slices"
	"strings"

	"cosky-proxy/cluster"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// handler executes a command that is not simply forwarded. It returns false when
// the session has to wait; then it must not have done anything.
type handler func(s *session, cmd *command.Command, args [][]byte, raw []byte) bool

// newHandlers returns the handlers of the commands of t by ID; nil means forward.
func newHandlers(o *Options, t *command.Table) []handler {
	hs := make([]handler, t.Count())
	set := func(h handler, names ...string) {
		for _, name := range names {
			if cmd := t.Named(name); cmd != nil {
				hs[cmd.ID] = h
			}
		}
	}
	setAll := func(h handler, container string) {
		set(h, container)
		for _, sub := range t.Named(container).Subs {
			hs[sub.ID] = h
		}
	}
	for _, cmd := range t.All() {
		if cmd.Has(command.Blocking) {
			hs[cmd.ID] = (*session).blocking
		}
	}

	// Connection state is the proxy's own.
	set((*session).ping, "ping")
	set((*session).echo, "echo")
	set((*session).quit, "quit")
	set((*session).reset, "reset")
	set((*session).selectDB, "select")
	set((*session).hello, "hello")
	set((*session).auth, "auth")
	setAll((*session).clientAlone, "client")
	set(nil, "client|help") // the backend has the text
	set((*session).clientID, "client|id")
	set((*session).clientGetName, "client|getname")
	set((*session).clientSetName, "client|setname")
	set((*session).clientSetInfo, "client|setinfo")
	set((*session).clientInfo, "client|info")
	set((*session).clientList, "client|list")
	set((*session).clientKill, "client|kill")
	set((*session).clientUnblock, "client|unblock")
	set((*session).clientPause, "client|pause")
	set((*session).clientUnpause, "client|unpause")
	set((*session).clientTracking, "client|tracking")
	set((*session).clientTrackingInfo, "client|trackinginfo")
	set((*session).clientCaching, "client|caching")
	set((*session).clientGetRedir, "client|getredir")
	set((*session).clientReply, "client|reply")
	set((*session).noEvict, "client|no-evict")
	set((*session).noTouch, "client|no-touch")

	// Seen from a client, the proxy is one standalone master, or with a façade a cluster.
	if len(o.Facade.Addrs) > 0 {
		setAll((*session).cluster, "cluster")
		set((*session).accepted, "readonly", "readwrite", "asking")
	} else {
		setAll((*session).clusterDisabled, "cluster")
		set((*session).clusterDisabled, "readonly", "readwrite", "asking")
	}
	set((*session).info, "info")
	set((*session).role, "role")
	set((*session).configSet, "config|set")

	set((*session).multi, "multi")
	set((*session).exec, "exec")
	set((*session).discard, "discard")
	set((*session).watch, "watch")
	set((*session).unwatch, "unwatch")

	set((*session).subscribe, "subscribe", "psubscribe", "ssubscribe")
	set((*session).unsubscribe, "unsubscribe", "punsubscribe", "sunsubscribe")
	set((*session).publish, "publish", "spublish")
	set((*session).pubsub, "pubsub|channels", "pubsub|numsub", "pubsub|numpat", "pubsub|shardchannels", "pubsub|shardnumsub")

	set((*session).eval, "eval", "eval_ro", "evalsha", "evalsha_ro", "fcall", "fcall_ro")
	set((*session).scriptLoad, "script|load")
	set((*session).scriptExists, "script|exists")
	set((*session).scriptFlush, "script|flush")

	if o.Cache.Cache != nil {
		set((*session).cachedRead, "hgetall", "smembers")
		kept := o.hotCommands()
		for i := range o.Cache.Rules {
			kept = append(kept[:len(kept):len(kept)], o.Cache.Rules[i].Commands...)
		}
		set((*session).cachedRead, kept...)
		if slices.Contains(kept, "mget") {
			set((*session).mget, "mget")
		}
	}

	set((*session).notYet, "script|debug")
	set((*session).replication, "sync", "psync", "replconf", "replicaof", "slaveof", "failover")
	set((*session).startMonitor, "monitor")
	set((*session).replicated, "wait", "waitaof")
	if o.Backend.Mode == cluster.Cluster {
		set((*session).scan, "scan")
		set((*session).keysMatching, "keys")
		set((*session).debug, "debug")
		set((*session).functionLoad, "function|load")
		set((*session).configEverywhere, "config|set")
	}
	if len(o.Facade.Addrs) > 0 {
		set((*session).notInCluster, "move", "swapdb")
		set((*session).copyInCluster, "copy")
	}
	if o.Auth.Mode == AuthProxy {
		setACLHandlers(set)
	}
	setOwnHandlers(t, set)
	if o.Backend.Mode == cluster.Embedded {
		setAll((*session).command, "command")
		setAll((*session).embeddedConfig, "config")
		for _, cmd := range t.All() {
			if cmd.Parent != nil && strings.HasSuffix(cmd.Name, "|help") && cmd.Parent.Name != "cluster" && !cmd.Own {
				hs[cmd.ID] = (*session).help
			}
		}
	}
	return hs
}

// errorf answers the present command with an error.
func (s *session) errorf(format string, args ...any) { s.refuse(fmt.Sprintf(format, args...)) }

func (s *session) notYet(cmd *command.Command, _ [][]byte, _ []byte) bool {
	where := ""
	if s.loop.clusters {
		where = " in front of a Redis Cluster"
	}
	s.errorf("ERR '%s' is not supported by cosky-proxy%s yet", cmd.Name, where)
	return true
}

// replication is refused: the proxy is no replica's master, and which server is a
// master is decided by those who watch over it.
func (s *session) replication(cmd *command.Command, _ [][]byte, _ []byte) bool {
	s.errorf("ERR '%s' is not supported by cosky-proxy: replication is between Redis servers, send it to the server itself", cmd.Name)
	return true
}

// answer replies with what f appends and counts the command.
func (s *session) answer(cmd *command.Command, f func(b []byte) []byte) bool {
	l := s.loop
	l.out = f(l.out[:0])
	l.stats.Commands[cmd.ID].Calls++
	s.reply(l.out)
	return true
}

func (s *session) ok(cmd *command.Command) bool {
	s.loop.stats.Commands[cmd.ID].Calls++
	s.reply(replyOK)
	return true
}

var (
	replyOK     = []byte(resp.OK)
	replyPong   = []byte(resp.Pong)
	replyQueued = []byte(resp.Queued)
)

func (s *session) ping(cmd *command.Command, args [][]byte, raw []byte) bool {
	switch {
	case len(args) > 2:
		s.refuse("ERR wrong number of arguments for 'ping' command")
		return true
	case s.subscriptions() > 0 && !s.resp3:
		return s.answer(cmd, func(b []byte) []byte { return appendPong(b, args) })
	case s.home != nil: // behind it, everything said before it on those connections has come
		return s.forward(cmd, args, raw)
	case s.loop.inDoubt() && s.loop.whole(), s.as != nil:
		return s.pingBackend(cmd, args, raw)
	case len(args) == 2:
		return s.echo(cmd, args, nil)
	}
	s.loop.stats.Commands[cmd.ID].Calls++
	s.reply(replyPong)
	return true
}

// appendPong appends the answer to the PING of a RESP2 connection that has subscribed.
func appendPong(b []byte, args [][]byte) []byte {
	b = resp.AppendBulk(resp.AppendArray(b, 2), []byte("pong"))
	if len(args) == 2 {
		return resp.AppendBulk(b, args[1])
	}
	return resp.AppendBulk(b, nil)
}

func (s *session) echo(cmd *command.Command, args [][]byte, _ []byte) bool {
	l := s.loop
	l.stats.Commands[cmd.ID].Calls++
	l.out = resp.AppendBulk(l.out[:0], args[1])
	s.reply(l.out)
	return true
}

func (s *session) quit(cmd *command.Command, _ [][]byte, _ []byte) bool {
	if len(s.heardOn) > 0 {
		r, ready := s.promise(cmd)
		if ready {
			s.quitHeard(r)
		}
		return ready
	}
	s.ok(cmd)
	s.finishAndClose()
	return true
}

// reset brings the connection back to its first state, as Redis' resetCommand does.
func (s *session) reset(cmd *command.Command, _ [][]byte, _ []byte) bool {
	if s.drain() {
		return false
	}
	s.leaveAll()
	s.unpin()
	s.leaveHome()
	s.stopMonitor()
	s.mute, s.unevictable = muting{}, false
	s.tx, s.resp3, s.db, s.user = nil, false, int32(s.loop.srv.opts.Backend.DB), defaultUser
	s.rename(&s.name, nil)
	if s.loop.guard != nil {
		s.loop.guard.welcome(s)
	}
	return s.answer(cmd, func(b []byte) []byte { return append(b, "+RESET\r\n"...) })
}

func (s *session) clusterDisabled(*command.Command, [][]byte, []byte) bool {
	s.refuse("ERR This instance has cluster support disabled")
	return true
}

func (s *session) role(cmd *command.Command, _ [][]byte, _ []byte) bool {
	return s.answer(cmd, func(b []byte) []byte {
		b = resp.AppendBulk(resp.AppendArray(b, 3), []byte("master"))
		return resp.AppendArray(resp.AppendInt(b, 0), 0)
	})
}
