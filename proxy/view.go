package proxy

import (
	"bytes"
	"sync/atomic"

	"cosky-proxy/lua"
	"cosky-proxy/nearcache"
	"cosky-proxy/nearcache/coskey"
	"cosky-proxy/router/command"
)

// Replies of CoSky's scripts that only ask are served from memory as well. Such a reply is a
// view: it shows many keys (the index of a service, every instance in it), and no command
// names them. The curator of the namespace owns its views; its fetch lane reads every key that
// a view shows, so that Redis tells of their changes there, in order with all replies.
//
// # What makes a view void, and what does not
//
//	what happens to a key it shows             what becomes of the view
//	a write through this proxy                 void from its sending on (nearcache.Cache.ViewStripe)
//	an uncached reply reveals the key          void before that is delivered
//	a message of CoSky's names the key         void or up to date before a client of this proxy gets the message, see hearing.go
//	an invalidation of an index comes          void
//	an invalidation of an instance comes       the instance is read anew and put in its place, see watch
//	a renewal through this proxy               the same, before the renewal is answered
//	the first of its instances may expire      void
//
// A renewal changes when an instance expires and a field that says until when that was
// announced; both are in the replies. With a thousand instances that are renewed every few
// seconds nothing else happens in a registry most of the time, and asking for whole services
// anew each time would cost Redis more than what was saved.
//
// # Why that is coherent
//
// A renewal through this proxy, and views on all loops.
//  1. Loop B sends a renewal of instance i. Views that show i stay valid: nobody can have
//     seen its effect. Whoever learns of it from an uncached reply, of whatever connection,
//     voids the views first; a fetch of i's own key cannot start, because a write of it is pending.
//  2. The reply arrives at B, which asks the curator A to bring the views up to date. A reads i
//     and replaces every view that shows it, or voids those it cannot replace. Of several views of i
//     all are void before the first of the new ones is valid.
//  3. Only then is B's client answered: no read that begins later meets an older view.
//  4. A fetch of a view that was sent before step 2 may have been executed before the
//     renewal. A does not keep its reply, and no reader joins it any more.
//
// A change around the proxy.
//  1. A's lane brings the invalidation of i. Whether it is our own renewal or another
//     client's change of everything nobody knows. The views stay until i has been read anew: a
//     round trip more, and as long as the lane is alive.
//  2. A plain read of i, or a fetch of another view, is answered on the same lane with the new
//     state before i has been read anew. All views of i that are not up to date become void before that
//     reply is delivered: nobody sees the old state after the new one.
//  3. An unknown script through the proxy may have made the change. Its reply waits for a round trip on
//     A's lane (raise), at the end of which views that are not up to date become void.
//
// A fetch of a view races with a change of i.
//  1. The fetch first asks which instances there are, then for the rest of life of each
//     (PTTL), and right behind that runs the script. From the reply to its own PTTL on the
//     lane hears of i: an invalidation after it means that the script may have seen either state,
//     and that the next change goes unheard. The reply is delivered, not kept.
//  2. An invalidation before that reply is about a change before PTTL was executed, so
//     before the script.
//  3. A write through the proxy is no different, except that ViewStripe tells of it: the word of i's
//     stripe was remembered before PTTL was sent.
//
// The script of a fetch writes: it finds an expired instance, takes it out of the index and
// announces it. That is nobody's write and no client waits for it, so it need not be pending
// anywhere. What it does shows in the reply (an instance fewer than the index had), which then
// is not kept, and voids what was cached of the index before it is delivered. The next fetch
// finds nothing to remove. So an expired instance is removed once, whoever asks and however often.
//
// # Two things a view need not show
//
// ttl_at is a rounded number: asked twice within a second, Redis may answer with two neighbouring ones. A
// view repeats what Redis said when the instance was read last. And a script that is flushed
// beside the proxy is still answered here.

// viewKind is the kind of all questions about views: what differs is in the question's text.
const viewKind = nearcache.Kind(1<<16 - 1)

// fickleKind is that of the questions that fickle asks.
const fickleKind = viewKind - 1

// viewQuestion is a call of a script that only asks. The question's text is the request
// behind its name: digest or text, namespace and arguments.
type viewQuestion struct {
	nearcache.Question
	script *lua.Script
	raw    []byte // the request
	args   [][]byte
}

func (q *viewQuestion) namespace() []byte    { return q.args[3] }
func (q *viewQuestion) arg(n int) []byte     { return q.args[3+n] } // from 1
func (q *viewQuestion) is(a lua.Answer) bool { return q.script.Answer == a }

// asks returns the script that args call when its reply may be served from memory, else nil.
func (l *loop) asks(cmd *command.Command, args [][]byte) *lua.Script {
	if l.cache == nil || len(args) < 4 || string(args[2]) != "1" {
		return nil
	}
	var sc *lua.Script
	switch {
	case byDigest(cmd):
		sc = l.srv.known[string(args[1])]
	case byText(cmd):
		sc = l.srv.known[l.scripts.digest(args[1])]
	}
	if sc == nil || sc.Answer == lua.NoAnswer || len(args) < 4+sc.Answer.Args() {
		return nil
	}
	return sc
}

// behindName is the part of a request, as it is sent, behind the command's name. Equal
// parts are equal arguments.
func behindName(raw []byte, name []byte) []byte {
	i := bytes.IndexByte(raw, '\n') + 1
	i += bytes.IndexByte(raw[i:], '\n') + 1
	return raw[i+len(name)+len("\r\n"):]
}

// readView serves a script's reply from memory if it can, and else has the curator fetch it. A
// client that has something else under way waits until that is answered: which keys
// the script reads is not known here.
func (s *session) readView(sc *lua.Script, cmd *command.Command, args [][]byte, raw []byte) bool {
	l := s.loop
	if s.tx != nil || s.home != nil {
		l.stats.Bypasses++
		return s.call(cmd, args, raw)
	}
	if l.guard != nil && !l.guard.vouches(s, cmd, args) {
		return s.lastWord(cmd, args, raw)
	}
	if (s.touches > 0 || s.everyKey > 0 || s.fetching > 0) && s.drain() {
		return false
	}
	q := l.cache.Ask(s.db, viewKind, behindName(raw, args[0]), nil)
	if e := l.reader.Get(&q, l.now()); e != nil {
		e.MarkRead()
		s.hit(cmd, e)
		return true
	}
	if e := l.standIn(l.target(args[3]).slot, &q); e != nil {
		l.stats.StaleHits++
		s.serve(cmd, e)
		return true
	}
	l.stats.Misses++
	r := l.newRequest(s, cmd)
	r.sentAt = l.now()
	r.slot, r.keyed = l.target(args[3]).slot, l.clusters
	r.raw = append(r.raw[:0], raw...)
	s.enqueue(r)
	s.fetching++
	s.viewing++
	r.awaits = awaitsView
	s.exclusive = true // what comes next might be answered from memory with something older
	l.sendForView(r, newViewQuestion(q, sc, raw))
	return true
}

func newViewQuestion(q nearcache.Question, sc *lua.Script, raw []byte) *viewQuestion {
	return &viewQuestion{Question: q.Clone(), script: sc, raw: bytes.Clone(raw)}
}

// sendForView has the curator find the reply to q, and answers r.
func (l *loop) sendForView(r *request, q *viewQuestion) {
	curator := l.curatorOf(l.parse(r.raw)[3])
	if curator == l {
		l.view(q, func(e *nearcache.Entry) { l.viewed(r, e) })
		return
	}
	posted := curator.nl.Post(func() {
		curator.view(q, func(e *nearcache.Entry) { l.nl.Post(func() { l.viewed(r, e) }) })
	})
	if !posted {
		l.viewed(r, nil)
	}
}

// viewed answers r with what the curator has found: nil means that the script has to be called.
func (l *loop) viewed(r *request, e *nearcache.Entry) {
	if r.sess == nil {
		l.release(r)
		return
	}
	r.sess.fetching--
	r.sess.viewing--
	r.awaits = awaitsNothing
	if e != nil {
		l.deliverEntry(r, e)
		return
	}
	l.stats.Bypasses++
	r.spared = l.srv.opts.Cache.StaleFor > 0
	n, cause := l.owner(r.slot)
	var ln *lane
	if cause == "" {
		ln, cause = n.lane(r.laneKey())
	}
	args := l.parse(r.raw)
	eff := l.effect.reset()
	l.keys = append(l.keys[:0], 3)
	name := l.scriptName(r.cmd, args)
	l.concernScript(eff, r.cmd, name, args)
	l.begin(r, eff)
	if cause != "" {
		l.detain(r, cause)
		return
	}
	ln.sendKept(r, false)
}

// view answers q: from a view that is valid, by a fetch that may still be joined, or by a
// new one. done gets nil when that is not possible at the moment.
func (l *loop) view(q *viewQuestion, done func(*nearcache.Entry)) {
	vs := &l.views
	if v := vs.of(&q.Question); v != nil {
		if l.cache.Valid(v.entry, l.now()) { // the store has not let it in yet
			v.entry.MarkRead()
			v.entry.Use()
			done(v.entry)
			return
		}
		if vs.ended(v) {
			vs.drop(v)
		}
	}
	w := viewWaiter{done, l.now()}
	if f := vs.fetchOf(&q.Question); f != nil && !f.spoiled && l.joinable(&f.Fetch, f.startedAt) {
		l.stats.Joined++
		f.waiters = append(f.waiters, w)
		return
	}
	f := l.newViewFetch(q)
	if f == nil {
		done(nil)
		return
	}
	f.waiters = append(f.waiters, w)
	if !f.spoiled { // else nothing more can happen to it
		vs.fetches = append(vs.fetches, f)
	}
	f.proceed()
}

// views are what a loop owns as a curator.
type views struct {
	loop    *loop
	byID    map[fetchKey]*view
	watched map[watchID]*watch
	behind  map[*watch]struct{} // that are reading
	fetches []*viewFetch        // in flight
	lapsed  []lapsedView        // to be fetched again, see rewarm
	sweepAt int64               // when views that are void are next looked for (mono)
}

func (vs *views) init(l *loop) {
	vs.loop, vs.byID, vs.watched, vs.behind = l, make(map[fetchKey]*view), make(map[watchID]*watch), make(map[*watch]struct{})
}

// view is a reply that is kept, with what it shows.
type view struct {
	q      *viewQuestion
	entry  *nearcache.Entry
	lane   *lane
	until  int64 // it is not served longer, whatever it shows
	usedAt int64 // when it was last seen to have been read (mono)
	parts  []viewPart
}

// viewPart is a key that a view shows.
type viewPart struct {
	watch *watch
	until int64 // of an instance: when it expires at the earliest (mono)
	start int   // of an instance in Instances: where its list is in the reply
	end   int
}

func (vs *views) of(q *nearcache.Question) *view {
	if v := vs.byID[keyOf(q)]; v != nil && v.q.Same(q) {
		return v
	}
	return nil
}

func (vs *views) fetchOf(q *nearcache.Question) *viewFetch {
	for i := len(vs.fetches) - 1; i >= 0; i-- {
		if vs.fetches[i].q.Same(q) {
			return vs.fetches[i]
		}
	}
	return nil
}

// void ends v: no loop serves it any more.
func (vs *views) void(v *view) {
	vs.loop.cache.Void(v.entry)
	vs.drop(v)
}

// ended reports whether v is void for good. A lease that has ended may come back to life with the next
// sign of its connection, and v with it: until then its keys are watched on.
func (vs *views) ended(v *view) bool {
	return v.lane.closed || !vs.loop.cache.Unchanged(v.entry, vs.loop.now())
}

// drop forgets v, which is void for good.
func (vs *views) drop(v *view) {
	if id := keyOf(&v.q.Question); vs.byID[id] == v {
		delete(vs.byID, id)
	}
	for i := range v.parts {
		v.parts[i].watch.leave(vs, v)
	}
	v.parts = nil
}

// add makes v the view of its question.
func (vs *views) add(v *view) {
	if old := vs.byID[keyOf(&v.q.Question)]; old != nil {
		vs.void(old)
	}
	vs.byID[keyOf(&v.q.Question)] = v
}

// changed: an invalidation of a key has arrived on ln.
func (vs *views) changed(ln *lane, hash uint64) {
	for _, f := range vs.fetches {
		f.changed(ln, hash)
	}
	if w := vs.watched[watchID{hash, ln}]; w != nil {
		w.changed(vs)
	}
}

// reveal voids the views of a key that are not up to date, before its present state is
// shown by a reply that came on ln.
func (vs *views) reveal(ln *lane, hash uint64) {
	if w := vs.watched[watchID{hash, ln}]; w != nil && w.reading {
		w.voidAll(vs)
	}
}

// settle voids all views that are not up to date.
func (vs *views) settle() {
	for w := range vs.behind {
		w.voidAll(vs)
	}
}

// catchUp calls done when no view is behind what has been heard of so far.
func (vs *views) catchUp(done func()) {
	missing := 1
	arrived := func() {
		if missing--; missing == 0 {
			done()
		}
	}
	for w := range vs.behind {
		missing++
		w.await(arrived)
	}
	arrived()
}

// tick lets go of views that are not served any more for other reasons.
func (vs *views) tick(now int64) {
	if now < vs.sweepAt || len(vs.byID) == 0 {
		return
	}
	vs.sweepAt = now + int64(sweepViews)
	for _, v := range vs.byID {
		if vs.ended(v) {
			vs.lapse(v, now)
			vs.drop(v)
		}
	}
}

// answered reports whether views may show key.
func answered(key []byte) bool {
	class, _ := coskey.Classify(key)
	return class.Answered()
}

// renewal is the script whose writes views follow.
const renewal = "registry_renew"

// renewed holds the reply to a renewal back until all views show it. False: no view shows
// the instance, and what settles the request voids any that is about to.
func (l *loop) renewed(r *request, reply []byte) bool {
	r.renews = false
	if len(r.raw) == 0 || !l.srv.tracks() {
		return false
	}
	args := l.parse(r.raw)
	if len(args) < 5 || string(args[2]) != "1" {
		return false
	}
	hash := l.cache.Hash(coskey.AppendKey(nil, coskey.Instance, args[3], args[4]))
	if !l.srv.shown.has(hash) {
		return false
	}
	curator, slot, db := l.curatorOf(args[3]), r.slot, r.db
	r.buf = append(r.buf[:0], reply...)
	finish := func() {
		r.spare(l.cache.ViewStripe(hash))
		l.hand(r, r.buf)
	}
	if curator == l {
		l.views.renewed(hash, slot, db, finish)
		return true
	}
	return curator.nl.Post(func() {
		curator.views.renewed(hash, slot, db, func() { l.nl.Post(finish) })
	})
}

// renewed calls done when no view shows an older state of the instance than that after a
// renewal that has been answered.
func (vs *views) renewed(hash uint64, slot uint16, db int32, done func()) {
	for _, f := range vs.fetches {
		f.renewed(hash)
	}
	n, _ := vs.loop.owner(slot)
	if n != nil {
		if ln := n.fetch[db]; ln != nil {
			if w := vs.watched[watchID{hash, ln}]; w != nil {
				w.renewed(vs, done)
				return
			}
		}
	}
	done()
}

// spare takes back that r's reply voids what depends on st.
func (r *request) spare(st nearcache.Stripe) {
	for i, t := range r.touches {
		if t.stripe == st && !t.write {
			r.touches = append(r.touches[:i], r.touches[i+1:]...)
			if r.sess != nil {
				r.sess.untouch(st)
			}
			return
		}
	}
}

// shownKeys counts, by hash, the instances that views of any loop show or are about to: a
// renewal of one that none shows has nobody to ask.
type shownKeys [4096]atomic.Int32

func (s *shownKeys) add(hash uint64, n int32) { s[hash%uint64(len(s))].Add(n) }
func (s *shownKeys) has(hash uint64) bool     { return s[hash%uint64(len(s))].Load() > 0 }

// purge voids the views and fetches of views that show a key which matches.
func (vs *views) purge(matches func(key []byte) bool) {
	for _, w := range vs.watched {
		if matches(w.key) {
			w.voidAll(vs)
		}
	}
	for _, f := range vs.fetches {
		for i := range f.keys {
			f.spoiled = f.spoiled || matches(f.keys[i].key)
		}
	}
}
