package proxy

import (
	"bytes"
	"math"
	"slices"
	"time"

	"cosky-proxy/nearcache"
	"cosky-proxy/nearcache/coskey"
	"cosky-proxy/proxy/glob"
	"cosky-proxy/proxy/heat"
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
	case equalFold(args[2], "INSPECT") && len(args) == 4:
		run = func() bool { return s.inspectKey(cmd, args[3]) }
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
		hash := l.cache.Hash(pattern)
		l.cache.Bump(l.cache.StripeOf(hash))
		l.cache.Bump(l.cache.ViewStripe(hash))
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
	l.views.purge(func(key []byte) bool { return glob.Match(pattern, key) })
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
		{"volatile", sum.Volatile},
		{"view_reads", sum.ViewReads},
		{"stale_hits", sum.StaleHits},
		{"stale_nodes", uint64(sum.StaleNodes)},
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

// inspectKey tells what is known here about a key in the client's database.
func (s *session) inspectKey(cmd *command.Command, key []byte) bool {
	r, ready := s.promise(cmd)
	if !ready {
		return false
	}
	l, name := s.loop, string(key)
	gather(l, (*loop).heatKeys, func(parts [][]heat.Key) {
		reads := 0.0
		for _, k := range slices.Concat(parts...) {
			if k.Name == name && k.DB == r.db {
				reads += k.Rate
			}
		}
		l.keep(r, l.appendInspection(nil, []byte(name), r.db, reads, r.resp3))
	})
	return true
}

func (l *loop) appendInspection(b, key []byte, db int32, reads float64, resp3 bool) []byte {
	class, _ := coskey.Classify(key)
	changes, pending := l.cache.State(l.cache.StripeOf(l.cache.Hash(key)))
	n, _ := l.owner(l.target(key).slot)
	node := ""
	if n != nil {
		node = n.addr
	}
	var entries []byte
	count := 0
	now := l.now()
	for _, cmd := range l.table.All() {
		rd := l.reads[cmd.ID]
		if rd == nil || !cmd.AcceptsCount(2) || !rd.keeps([][]byte{nil, key}) {
			continue
		}
		q := l.ask(db, cmd, rd, [][]byte{nil, key})
		if e := l.reader.Peek(&q, now); e != nil {
			count++
			entries = command.AppendMapHeader(entries, 3, resp3)
			entries = appendPair(entries, "command", cmd.Name)
			entries = resp.AppendInt(appendString(entries, "bytes"), int64(e.Size()))
			entries = resp.AppendInt(appendString(entries, "ends_in_ms"), (e.Until()-now)/int64(time.Millisecond))
		}
	}
	b = command.AppendMapHeader(b, 9, resp3)
	b = appendPair(b, "key", string(key))
	b = resp.AppendInt(appendString(b, "db"), int64(db))
	b = appendPair(b, "class", class.String())
	b = appendStrings(appendString(b, "rules"), l.rulesOf(key))
	b = appendPair(b, "node", node)
	b = resp.AppendInt(appendString(b, "reads_per_second"), int64(math.Round(reads)))
	b = resp.AppendInt(appendString(b, "writes_in_flight"), int64(pending))
	b = resp.AppendInt(appendString(b, "changes"), int64(changes))
	b = resp.AppendArray(appendString(b, "entries"), count)
	return append(b, entries...)
}

// rulesOf names the rules that concern key, in the order in which they are looked at.
func (l *loop) rulesOf(key []byte) (names []string) {
	if l.rules != nil {
		for _, r := range l.rules.rules {
			if r.matches(key) {
				names = append(names, r.Match)
			}
		}
	}
	if l.hot.keeps(key) {
		names = append(names, l.srv.hotRule.Match)
	}
	return names
}
