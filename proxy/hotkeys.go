package proxy

import (
	"math"

	"cosky-proxy/nearcache/coskey"
	"cosky-proxy/proxy/heat"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/proxy/stats"
	"cosky-proxy/router/command"
)

// countRead counts a read on the keys it names. Reads inside MULTI and in scripts are not
// counted. A read that has to wait for its turn may be counted twice.
func (s *session) countRead(cmd *command.Command, args [][]byte) {
	h := s.loop.heat
	switch {
	case cmd.SingleKey:
		if h.Due() {
			h.Count(args[cmd.KeyPos], s.db, uint16(cmd.ID))
		}
	case cmd.Split > 0:
		for i := 1; i < len(args); i += cmd.Split {
			if h.Due() {
				h.Count(args[i], s.db, uint16(cmd.ID))
			}
		}
	}
}

func (s *Server) hotKeys(keys []heat.Key) []stats.HotKey {
	hot := make([]stats.HotKey, len(keys))
	for i, k := range keys {
		hot[i] = stats.HotKey{Key: k.Name, DB: int(k.DB), Command: s.CommandName(int(k.Kind)), Reads: k.Rate, Cached: s.cachedAs([]byte(k.Name), k.Kind)}
	}
	return hot
}

// cachedAs says why replies to a command on key are kept, as stats.HotKey does.
func (s *Server) cachedAs(key []byte, kind uint16) string {
	if s.opts.Cache.Cache == nil {
		return "no"
	}
	bit := s.commands.Load().bitOf(kind)
	class, _ := coskey.Classify(key)
	switch {
	case class != coskey.None && bit&ownBits != 0:
		return "cosky"
	case s.keeps.find(key, bit) != nil:
		return "rule"
	case s.hotRule != nil && s.hotRule.commands&bit != 0 && s.hot.Load().keeps(key):
		return "hot"
	}
	return "no"
}

// heatKeys is what the loop has counted; it runs on the loop.
func (l *loop) heatKeys() []heat.Key {
	if l.heat == nil {
		return nil
	}
	return l.heat.Keys(l.now())
}

// HotKeys returns the n keys that are read most, the hottest first. A loop that does not answer
// in time is left out. Any goroutine but a loop's.
func (s *Server) HotKeys(n int) []stats.HotKey {
	return s.hotKeys(heat.Merge(askLoops(s, (*loop).heatKeys), n))
}

const (
	defaultHotKeys = 20
	maxHotKeys     = 1000
)

// proxyHotKeys answers PROXY HOTKEYS [count].
func (s *session) proxyHotKeys(cmd *command.Command, args [][]byte, _ []byte) bool {
	n := int64(defaultHotKeys)
	if len(args) > 3 {
		s.refuse(subcommandSyntax(cmd, args))
		return true
	}
	if len(args) == 3 {
		var ok bool
		if n, ok = integer(args[2]); !ok || n < 1 || n > maxHotKeys {
			s.errorf("ERR count must be a number from 1 to %d", maxHotKeys)
			return true
		}
	}
	if s.loop.heat == nil {
		s.refuse("ERR reads are not counted: nearcache.hot.sample is 0")
		return true
	}
	r, ready := s.promise(cmd)
	if !ready {
		return false
	}
	l := s.loop
	gather(l, (*loop).heatKeys, func(parts [][]heat.Key) {
		keys := l.srv.hotKeys(heat.Merge(parts, int(n)))
		b := resp.AppendArray(nil, len(keys))
		for i := range keys {
			b = appendHotKey(b, &keys[i], r.resp3)
		}
		l.keep(r, b)
	})
	return true
}

// appendHotKey appends the key as a map.
func appendHotKey(b []byte, k *stats.HotKey, resp3 bool) []byte {
	b = command.AppendMapHeader(b, 5, resp3)
	b = appendPair(b, "key", k.Key)
	b = resp.AppendInt(appendString(b, "db"), int64(k.DB))
	b = appendPair(b, "command", k.Command)
	b = resp.AppendInt(appendString(b, "reads_per_second"), int64(math.Round(k.Reads)))
	return appendPair(b, "cached", k.Cached)
}
