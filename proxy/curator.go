package proxy

import (
	"bytes"

	"cosky-proxy/cluster/slot"
	"cosky-proxy/nearcache"
	"cosky-proxy/nearcache/coskey"
)

// Every key has a curator: the loop whose fetch lane reads it for all loops. All entries
// of a key, to whatever question, then come from one connection, on which Redis sends
// the invalidation of a change before any reply that shows it. So an entry that is valid
// when another one of its key is filled shows the same state of it:
//
//  1. HGET k f is fetched and kept. The key changes around the proxy.
//  2. HGETALL k is fetched on the same connection; the push about the change comes
//     first, and the entry of HGET is void before anybody sees the newer reply.
//
// Over two connections the push for the first might come after the reply on the second,
// and a client could see the new state and then the old one. The same holds across the
// keys of a hash tag, or of a namespace of CoSky's, which have one curator: a reply that
// shows several of them.
//
// A curator's lanes may break or move to another node; entries of the old one are void by
// then, through its lease or the node's (Vouch).

// curator is the loop that reads key for all loops.
func (l *loop) curator(p *policy, key []byte) *loop {
	if p.class != coskey.None {
		_, n := coskey.Classify(key)
		key = key[:n]
	}
	return l.curatorOf(key)
}

// curatorOf is the loop that reads the keys of a hash tag, or of a namespace.
func (l *loop) curatorOf(name []byte) *loop {
	loops := l.srv.loops
	return loops[l.cache.Hash(slot.Tag(name))%uint64(len(loops))]
}

// errand is a fetch that one loop makes for another's.
type errand struct {
	loop *loop  // whose it is
	of   *fetch // owned by that loop, but for what never changes
	late bool   // it cannot be done, and its loop hears of that when what came before it is done
}

// outcome is what a fetch has brought.
type outcome struct {
	entry  *nearcache.Entry // nil: nothing to keep
	asked  int64            // when Redis was asked for it, or it was found to be valid (mono)
	filled bool             // it may be delivered, see nearcache.Cache.Fill
	body   []byte           // without an entry: an error for those who wait, if any
}

// entrust has the curator fetch for f, which keeps its waiters. What f remembers of
// the stripes decides who may still join it here.
//
// The curator may answer with what is in the cache, but not when this loop has an older
// fetch of the question under way: a client that waits for that one, too, must not get
// the older answer later.
func (f *fetch) entrust(l, curator *loop) {
	l.seq++ // a monitor is shown the read when it is sent
	older, _ := l.fetches.of(&f.question)
	fresh := older != nil
	curator.nl.Post(func() { curator.run(errand{loop: l, of: f}, fresh) })
}

// run makes the fetch of e, or joins one that is under way. Errands about one question
// end in order, so that a client that goes uncached after one does not overtake an
// older one.
func (l *loop) run(e errand, fresh bool) {
	q := &e.of.question
	if !fresh {
		if kept := l.reader.Get(q, l.now()); kept != nil {
			e.report(outcome{entry: kept, asked: l.now(), filled: true})
			return
		}
	}
	before, _ := l.fetches.of(q)
	f := l.fetchOf(e.of)
	switch {
	case f != nil:
		f.errands = append(f.errands, e)
	case before != nil:
		e.late = true
		before.errands = append(before.errands, e)
	default:
		e.report(outcome{})
	}
}

// report tells the loops that wait for f what it has brought.
func (f *fetch) report(o outcome) {
	o.body = bytes.Clone(o.body)
	for _, e := range f.errands {
		if e.late {
			e.report(outcome{})
		} else {
			e.report(o)
		}
	}
	f.errands = nil
}

func (e errand) report(o outcome) {
	l, f := e.loop, e.of
	l.nl.Post(func() {
		l.fetches.remove(f)
		if o.entry == nil {
			f.body = o.body
			f.failed = true
			f.giveUp(l)
			f.ended()
			return
		}
		f.startedAt = o.asked
		f.hand(l, o.entry, o.filled)
		f.ended()
	})
}
