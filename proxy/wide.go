package proxy

import (
	"strings"

	"cosky-proxy/router"
	"cosky-proxy/router/command"
)

// Commands that would concern one server, if there were only one.

// keysMatching answers KEYS in front of a cluster: from one shard if the pattern matches keys of one slot only.
func (s *session) keysMatching(cmd *command.Command, args [][]byte, raw []byte) bool {
	l := s.loop
	if key := router.FixedTag(args[1]); key != nil {
		e := l.effect.reset()
		l.concernUnknown(e, cmd)
		return s.send(cmd, raw, l.target(key), e)
	}
	return s.keyless(cmd, args, raw)
}

// configEverywhere sets what may be the same on every server of a cluster.
func (s *session) configEverywhere(cmd *command.Command, args [][]byte, raw []byte) bool {
	if problem := settingsProblem(args); problem != "" {
		s.refuse(problem)
		return true
	}
	return s.configSet(cmd, args, raw)
}

// ofOneServer: a parameter that says who or where a server is.
func ofOneServer(name string) bool {
	switch name {
	case "port", "tls-port", "cluster-port", "bind", "bind-source-addr":
		return true
	}
	return strings.HasPrefix(name, "cluster-announce-") || strings.HasPrefix(name, "replica-announce-") || strings.HasPrefix(name, "slave-announce-")
}

// debug sends DEBUG to where its subject is: to the owner of a key, to every master what is to change the behaviour of
// the server, to any of them what only shows how a server works. What would tell about one master or
// ruin it is refused.
func (s *session) debug(cmd *command.Command, args [][]byte, raw []byte) bool {
	l := s.loop
	e := l.effect.reset()
	l.concernUnknown(e, cmd)
	switch sub := strings.ToLower(string(args[1])); sub {
	case "object", "listpack", "ziplist", "quicklist", "sdslen", "htstats-key", "digest-value":
		if len(args) < 3 {
			return s.send(cmd, raw, l.anyShard(), e)
		}
		t := l.target(args[2])
		if sub != "digest-value" {
			return s.send(cmd, raw, t, e)
		}
		for _, key := range args[3:] {
			if l.target(key) != t {
				s.refuse(errCrossSlot)
				return true
			}
		}
		return s.send(cmd, raw, t, e)
	case "help", "protocol", "stringmatch-len", "structsize", "log", "error", "mallctl", "mallctl-str":
		return s.send(cmd, raw, l.anyShard(), e)
	case "sleep", "jmap", "set-active-expire", "quicklist-packed-threshold", "set-disable-deny-scripts", "replybuffer",
		"dict-resizing", "reload", "loadaof", "config-rewrite-force-all", "pause-cron", "replicate", "delay-rdb-client-free-seconds":
		_, ok := s.broadcast(cmd, firstAnswer, raw, e)
		return ok
	}
	s.errorf("ERR 'DEBUG %s' concerns a single server, and cosky-proxy does not choose one of a Redis Cluster's", strings.ToUpper(string(args[1])))
	return true
}
