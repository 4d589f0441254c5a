package proxy

import (
	"bytes"

	"cosky-proxy/nearcache"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/router"
	"cosky-proxy/router/command"
)

// bundle is an MGET that the near-cache answers: it has a part for each key, which is
// what GET would be answered. What is not in memory is fetched, and the reply is made
// when all parts are valid at the same time: an MSET through this proxy is seen as a whole
// or not at all, as in Redis. If that does not come about, MGET is sent as it is. Entries that
// stand in for a lost node serve as parts, too.
//
// Nothing that its client sends behind it is executed meanwhile (session.exclusive).
type bundle struct {
	parent  *request
	get     *command.Command
	keys    [][]byte
	raw     []byte             // the MGET, with bytes of its own
	parts   []*nearcache.Entry // by key; nil: not known
	next    int                // the first key that has not been looked at in this round
	missing int                // parts that are being fetched
	size    int                // bytes of the parts that have been fetched
	rounds  int                // that have not brought all parts together
	refused bool               // a part cannot be had, or all of them are too much
}

// part is one key of a bundle, which waits for a fetch.
type part struct {
	of    *bundle
	index int
}

const (
	// maxBundle bounds the parts that one MGET fetches at once, and so many of the largest size
	// those that it holds until the last one is there.
	maxBundle = 64

	// maxMissing bounds those that it fetches at all: one by one they cost Redis several times what the MGET does.
	// Beyond that it is passed on, and as any uncached reply that shows keys it voids what is cached of them.
	maxMissing = 1024
)

// mget answers from memory if every key's value is there, or can be fetched.
func (s *session) mget(cmd *command.Command, args [][]byte, raw []byte) bool {
	l := s.loop
	get := l.table.Named("get")
	if s.tx != nil || s.home != nil || get == nil || !s.bundles(args) {
		return s.forward(cmd, args, raw)
	}
	if l.guard != nil && !l.guard.vouches(s, cmd, args) {
		return s.lastWord(cmd, args, raw)
	}
	keys := args[1:]
	if s.viewing > 0 && s.drain() { // see cachedRead
		return false
	}
	if s.fetching > 0 {
		for _, key := range keys {
			q, _ := l.askPart(s.db, cmd, get, key)
			if l.fetches[keyOf(&q)] != nil {
				return !s.drain()
			}
		}
	}
	missing := l.gatherParts(s.db, cmd, get, keys)
	p := l.policyOf(mgetBit, keys[0])
	if missing == 0 {
		if together, stale := l.together(l.parts, keys); together {
			if stale {
				l.stats.StaleHits++
			} else {
				l.countRule(&p, 1, 0)
				l.stats.Hits++
			}
			l.stats.Commands[cmd.ID].Calls++
			l.out = appendParts(l.out[:0], l.parts, s.resp3)
			s.reply(l.out)
			return true
		}
	}
	if missing > maxMissing {
		l.stats.Bypasses++
		return s.forward(cmd, args, raw)
	}
	if s.fetching >= maxFetching {
		return !s.drain()
	}
	l.countRule(&p, 0, 1)
	l.stats.Misses++
	s.bundle(cmd, get, keys, raw)
	return true
}

// gatherParts puts into l.parts what there is for these keys, and returns how many have nothing.
func (l *loop) gatherParts(db int32, mget, get *command.Command, keys [][]byte) (missing int) {
	now := l.now()
	l.parts = l.parts[:0]
	for _, key := range keys {
		q, _ := l.askPart(db, mget, get, key)
		e := l.reader.Get(&q, now)
		if e == nil {
			e = l.standIn(l.target(key).slot, &q)
		}
		if e == nil {
			missing++
		}
		l.parts = append(l.parts, e)
	}
	return missing
}

// bundles reports whether the keys may be answered for one by one.
func (s *session) bundles(args [][]byte) bool {
	l := s.loop
	for _, key := range args[1:] {
		if p := l.policyOf(mgetBit, key); !p.keeps {
			return false
		}
		if q := l.cache.Ask(s.db, 0, key, nil); s.behind(&q) {
			l.stats.Bypasses++
			return false
		}
	}
	return true
}

// askPart makes the question of one key, which is that of GET unless another rule holds for that.
func (l *loop) askPart(db int32, mget, get *command.Command, key []byte) (nearcache.Question, policy) {
	kind, p := get.ID, l.policyOf(mgetBit, key)
	if o := l.policyOf(l.reads[get.ID].bit, key); o.keeps && o.rule != p.rule {
		kind = mget.ID
	}
	return l.cache.Ask(db, nearcache.Kind(kind), key, nil), p
}

// together reports whether all parts may be served at the same time; stale: some of them because they stand in.
func (l *loop) together(parts []*nearcache.Entry, keys [][]byte) (ok, stale bool) {
	now := l.now()
	for i, e := range parts {
		switch {
		case e == nil:
			return false, false
		case l.cache.Valid(e, now):
		case l.standsIn(l.target(keys[i]).slot, e):
			stale = true
		default:
			return false, false
		}
	}
	return true, stale
}

func appendParts(b []byte, parts []*nearcache.Entry, resp3 bool) []byte {
	b = resp.AppendArray(b, len(parts))
	for _, e := range parts {
		b = e.AppendReply(b, resp3)
	}
	return b
}

// bundle fetches what l.parts lacks.
func (s *session) bundle(cmd, get *command.Command, keys [][]byte, raw []byte) {
	l := s.loop
	b := &bundle{get: get, raw: bytes.Clone(raw), parts: append([]*nearcache.Entry(nil), l.parts...)}
	for _, key := range keys {
		b.keys = append(b.keys, bytes.Clone(key))
	}
	b.parent = l.newRequest(s, cmd)
	b.parent.sentAt = l.now()
	s.enqueue(b.parent)
	s.exclusive = true
	b.fetch(l)
}

// fetch starts, or joins, fetches of the next parts that are missing or not valid any more.
func (b *bundle) fetch(l *loop) {
	now := l.now()
	b.missing = 1 // until all are started
	for ; b.next < len(b.keys) && b.missing <= maxBundle && !b.refused; b.next++ {
		i, key := b.next, b.keys[b.next]
		if e := b.parts[i]; e != nil && l.cache.Valid(e, now) {
			continue
		}
		q, p := l.askPart(b.parent.db, b.parent.cmd, b.get, key)
		if b.parts[i] = l.reader.Get(&q, now); b.parts[i] == nil {
			b.parts[i] = l.standIn(l.target(key).slot, &q)
		}
		if b.parts[i] != nil {
			continue
		}
		l.enc = resp.AppendArray(l.enc[:0], 2)
		l.enc = resp.AppendBulk(resp.AppendBulkString(l.enc, "GET"), key)
		f := l.fetchOf(&fetch{question: q, read: l.reads[b.get.ID], policy: p, raw: l.enc})
		if f == nil {
			b.refused = true
			break
		}
		f.parts = append(f.parts, part{b, i})
		b.missing++
	}
	b.arrived(l)
}

// share gives the parts that wait for f its entry; nil: the fetch was lost.
func (f *fetch) share(l *loop, e *nearcache.Entry) {
	parts := f.parts
	f.parts = nil
	for _, p := range parts {
		p.of.parts[p.index] = e
		if e != nil {
			p.of.size += e.Size()
		}
		p.of.arrived(l)
	}
}

// refuse tells the parts that wait for f that they cannot be had.
func (f *fetch) refuse(l *loop) {
	for _, p := range f.parts {
		p.of.refused = true
	}
	f.share(l, nil)
}

// arrived notes that one part more is not waited for. After the last one the MGET goes on with the next
// parts, and is answered when there are none.
func (b *bundle) arrived(l *loop) {
	if b.missing--; b.missing > 0 {
		return
	}
	r := b.parent
	if r.sess == nil { // nobody waits any more
		l.release(r)
		return
	}
	b.refused = b.refused || b.size > maxBundle*l.srv.opts.Cache.MaxEntry
	if !b.refused && b.next < len(b.keys) {
		b.fetch(l)
		return
	}
	switch together, stale := l.together(b.parts, b.keys); {
	case together:
		if stale {
			l.stats.StaleHits++
		}
		l.countReply(r.cmd, r.sentAt, false)
		r.origin = fromCache
		l.out = appendParts(l.out[:0], b.parts, r.resp3)
		l.finish(r, l.out)
	case b.refused, b.rounds >= nearcache.Patience:
		b.pass(l)
	default:
		b.rounds++
		b.next, b.size = 0, 0
		b.fetch(l)
	}
}

// pass sends the MGET to Redis.
func (b *bundle) pass(l *loop) {
	r := b.parent
	if l.srv.opts.Cache.StaleFor > 0 {
		r.raw, r.spared = append(r.raw[:0], b.raw...), true
	}
	e := l.effect.reset()
	for _, key := range b.keys {
		l.concern(e, key, false)
	}
	if l.clusters {
		l.begin(r, e)
		b.scatter(l)
		return
	}
	l.begin(r, e)
	r.raw = append(r.raw[:0], b.raw...)
	ln, cause := l.laneTo(0, r.laneKey())
	if cause != "" {
		l.detain(r, cause)
		return
	}
	ln.send(r, r.raw)
}

// scatter sends it to every shard that has some of the keys.
func (b *bundle) scatter(l *loop) {
	args := append([][]byte{[]byte("MGET")}, b.keys...)
	sc := l.divide(args, 1)
	sc.collect(b.parent, router.MergeFor(b.parent.cmd))
	for i := range sc.parts.Shares {
		ln, cause := l.laneTo(sc.parts.Shares[i].Slot, b.parent.laneKey())
		if cause != "" {
			ln = nil // its slot has no owner: it waits for one
		}
		sc.launchShare(l, ln, i, args, 1, masterOnly)
	}
}

// laneTo is a shared connection to the owner of a slot.
func (l *loop) laneTo(sl uint16, key laneKey) (*lane, string) {
	n, cause := l.owner(sl)
	if cause != "" {
		return nil, cause
	}
	return n.lane(key)
}
