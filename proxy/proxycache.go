package proxy

import (
	"bytes"

	"cosky-proxy/nearcache"
	"cosky-proxy/proxy/glob"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/proxy/stats"
	"cosky-proxy/router/command"
)

// proxyCache answers PROXY CACHE FLUSH [pattern], INSPECT key and STATS.
func (s *session) proxyCache(cmd *command.Command, args [][]byte, _ []byte) bool {
	var run func() bool
	switch {
	case equalFold(args[2], "FLUSH") && len(args) == 3:
		run = func() bool { return s.flushCache(cmd) }
	case equalFold(args[2], "FLUSH") && len(args) == 4:
		run = func() bool { return s.purgeCache(cmd, args[3]) }
	case equalFold(args[2], "STATS") && len(args) == 3:
		run = func() bool { return s.cacheStats(cmd) }
	default:
		s.refuse(subcommandSyntax(cmd, args[1:]))
		return true
	}
	if s.loop.cache == nil {
		s.refuse("ERR the near-cache is off: nearcache.invalidation")
		return true
	}
	return run()
}

// flushCache voids every entry and every fetch under way.
func (s *session) flushCache(cmd *command.Command) bool {
	s.loop.cache.Bump(nearcache.All)
	return s.ok(cmd)
}

// purgeCache voids the entries of the keys that match. A pattern that can match one key only
// is that key, and voided by its stripe.
func (s *session) purgeCache(cmd *command.Command, pattern []byte) bool {
	l := s.loop
	if !bytes.ContainsAny(pattern, `*?[\`) {
		l.cache.Bump(l.cache.StripeOf(l.cache.Hash(pattern)))
		return s.ok(cmd)
	}
	r, ready := s.promise(cmd)
	if !ready {
		return false
	}
	p := string(pattern)
	gather(l, func(o *loop) struct{} {
		o.voidFetches(p)
		return struct{}{}
	}, func([]struct{}) {
		l.cache.Purge(p, l.now())
		gather(l, func(o *loop) struct{} {
			o.reader.Sweep()
			return struct{}{}
		}, func([]struct{}) { l.keep(r, replyOK) })
	})
	return true
}

// voidFetches voids the fetches under way of keys that match.
func (l *loop) voidFetches(pattern string) {
	for _, f := range l.fetches { // of each key one, which stands for all
		if q := &f.question; glob.Match(pattern, q.Key) {
			l.cache.Bump(l.cache.StripeOf(q.Hash()))
		}
	}
}

// cacheStats answers with what the near-cache has done.
func (s *session) cacheStats(cmd *command.Command) bool {
	r, ready := s.promise(cmd)
	if !ready {
		return false
	}
	l := s.loop
	l.gatherStats(func(sum stats.Snapshot) {
		l.keep(r, l.srv.appendCacheStats(nil, &sum, r.resp3))
	})
	return true
}

func (s *Server) appendCacheStats(b []byte, sum *stats.Snapshot, resp3 bool) []byte {
	c := s.CacheStats()
	figures := []struct {
		name  string
		value uint64
	}{
		{"hits", sum.Hits},
		{"misses", sum.Misses},
		{"joined", sum.Joined},
		{"bypasses", sum.Bypasses},
		{"invalidations", sum.Invalidations},
		{"entries", uint64(c.Entries)},
		{"bytes", uint64(c.Bytes)},
		{"fills", c.Fills},
		{"lost_fills", c.Lost},
		{"dropped_fills", c.Dropped},
		{"exits", c.Exits},
		{"epochs", c.Epochs},
	}
	b = command.AppendMapHeader(b, 1+len(figures), resp3)
	b = appendPair(b, "sources", s.abilities.Load().sources.String())
	for _, f := range figures {
		b = resp.AppendInt(appendString(b, f.name), int64(f.value))
	}
	return b
}
