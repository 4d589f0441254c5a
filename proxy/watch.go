package proxy

import (
	"bytes"
	"math"
	"time"

	"cosky-proxy/lua"
	"cosky-proxy/nearcache"
	"cosky-proxy/nearcache/coskey"
	"cosky-proxy/proxy/resp"
)

// sweepViews is how often void views are looked for.
const sweepViews = time.Second

// rereader is the script that reads an instance anew. Its reply is what all views show of it.
const rereader = "discovery_get_instance"

// maxRounds is how often in a row an instance is read anew without getting up to date. Meanwhile
// clients wait whose renewals have been executed, and views show none of them.
const maxRounds = 3

// watchID names a key on the connection that hears of its changes. Databases have
// connections of their own.
type watchID struct {
	hash uint64
	lane *lane
}

// watch is a key that views of this loop show. When an instance changes, it is read anew,
// once for all of them.
type watch struct {
	// static
	id       watchID
	key      []byte
	class    coskey.Class
	service  []byte // of an instance: in whose index it was found
	instance []byte

	// loop-owned
	views   []*view // that show it; empty: it is forgotten
	reading bool    // it has changed and is being read anew: the views are behind
	heard   bool    // of that reading: the lane hears of later changes
	again   bool    // it has changed meanwhile
	rounds  int     // readings in a row that were overtaken by a change
	sentAt  int64
	pttl    int64
	lasting bool     // its fields do not expire by themselves
	waiters []func() // when the views are up to date, or void
}

// leave ends v's interest.
func (w *watch) leave(vs *views, v *view) {
	for i := len(w.views) - 1; i >= 0; i-- { // voidAll takes the last one
		if w.views[i] == v {
			w.views[i] = w.views[len(w.views)-1]
			w.views[len(w.views)-1] = nil
			w.views = w.views[:len(w.views)-1]
			break
		}
	}
	if w.class == coskey.Instance {
		vs.loop.srv.shown.add(w.id.hash, -1)
	}
	if len(w.views) == 0 && vs.watched[w.id] == w {
		delete(vs.watched, w.id)
		w.done()
	}
}

// await has done called when the reading that is under way, or about to begin, is over.
func (w *watch) await(done func()) { w.waiters = append(w.waiters, done) }

// done lets those go on who wait.
func (w *watch) done() {
	waiters := w.waiters
	w.waiters = nil
	for _, f := range waiters {
		f()
	}
}

func (w *watch) voidAll(vs *views) {
	for len(w.views) > 0 {
		vs.void(w.views[len(w.views)-1])
	}
}

// changed: the key has changed, and its connection hears of no further change before it is
// read again. That a read under way has been answered with PTTL's reply already is the only way to
// know that the change came later.
func (w *watch) changed(vs *views) {
	switch {
	case w.class != coskey.Instance:
		w.voidAll(vs)
	case w.reading && !w.heard:
	case w.reading:
		w.again = true
	default:
		w.read(vs)
	}
}

// renewed has done called when every view shows the state after a renewal that has been
// answered. A read under way may have been executed before it.
func (w *watch) renewed(vs *views, done func()) {
	w.await(done)
	if w.reading {
		w.again = true
		return
	}
	w.read(vs)
}

// read asks for the instance anew, unless nobody has looked at the views for a while.
func (w *watch) read(vs *views) {
	l := vs.loop
	now, idle := l.now(), int64(l.srv.opts.Cache.RefreshIdle)
	for i := len(w.views) - 1; i >= 0; i-- {
		v := w.views[i]
		if v.entry.TakeRead() {
			v.usedAt = now
		}
		if idle > 0 && now-v.usedAt > idle || !v.refreshable() || !l.cache.Valid(v.entry, now) {
			vs.void(v)
		}
	}
	if len(w.views) == 0 {
		return
	}
	ln := w.id.lane
	if ln.closed || ln.full() {
		w.voidAll(vs)
		return
	}
	w.reading, w.heard, w.again, w.sentAt = true, false, false, now
	vs.behind[w] = struct{}{}
	l.stats.ViewReads++
	ask := func(index int32) *request {
		r := l.newRequest(nil, nil)
		r.sink, r.index, r.alone = &watchRead{w: w}, index, true
		return r
	}
	l.enc = resp.AppendBulk(resp.AppendBulkString(resp.AppendArray(l.enc[:0], 2), "PTTL"), w.key)
	ln.send(ask(0), l.enc)
	if w.lasting = !l.srv.abilities.Load().fieldsExpire; !w.lasting {
		l.enc = appendObjectEncoding(l.enc[:0], w.key)
		ln.send(ask(2), l.enc)
	}
	own := lua.ByName(rereader)
	ln.teachText(own.SHA1, own.Text)
	l.enc = resp.AppendArray(l.enc[:0], 6)
	l.enc = resp.AppendBulkString(l.enc, "EVALSHA")
	l.enc = resp.AppendBulkString(l.enc, own.SHA1)
	l.enc = resp.AppendBulkString(l.enc, "1")
	l.enc = resp.AppendBulk(l.enc, w.namespace())
	l.enc = resp.AppendBulk(l.enc, w.service)
	l.enc = resp.AppendBulk(l.enc, w.instance)
	ln.send(ask(1), l.enc)
}

func (w *watch) namespace() []byte {
	_, n := coskey.Classify(w.key)
	return w.key[:n]
}

// refreshable reports whether the view's present reply tells how it changes when one of its
// instances does. The words of somebody else's script are not known, and an empty reply
// may have other reasons.
func (v *view) refreshable() bool {
	if v.q.script.Foreign {
		return false
	}
	switch v.q.script.Answer {
	case lua.Instance:
		return v.entry.Size() > len("*0\r\n")
	case lua.InstanceExpiry:
		return !bytes.Equal(v.entry.AppendReply(nil, false), []byte(":-2\r\n"))
	}
	return true
}

// watchRead takes the replies of a read.
type watchRead struct{ w *watch }

func (x *watchRead) deliver(l *loop, r *request, reply []byte) {
	w, index := x.w, r.index
	l.release(r)
	failed := reply[0] == '-'
	switch index {
	case 0:
		w.heard = !failed
		_, w.pttl, _ = resp.ReadHeader(reply)
		return
	case 2:
		w.lasting = lasts(reply)
		return
	}
	vs := &l.views
	switch {
	case len(w.views) == 0: // nobody is interested any more
	case failed || !w.heard:
		delete(w.id.lane.taught, lua.ByName(rereader).SHA1) // it may have been flushed
		w.voidAll(vs)
	case w.again && w.rounds < maxRounds:
		w.rounds++
		w.reading = false
		delete(vs.behind, w)
		w.read(vs)
		return
	case w.again:
		w.voidAll(vs)
	default:
		w.apply(vs, reply)
	}
	w.reading, w.rounds = false, 0
	delete(vs.behind, w)
	w.done()
}

// apply puts the instance in its place in all views that show it.
func (w *watch) apply(vs *views, reply []byte) {
	l := vs.loop
	in, ok := readInstance(reply)
	if !ok || in.size != len(reply) || !in.shows(w.instance, w.pttl) {
		w.voidAll(vs) // it has expired, or is none of the service's any more: the script finds out
		return
	}
	until := deadline(w.sentAt, w.pttl)
	if !w.lasting {
		until = min(until, w.sentAt+int64(l.srv.opts.Cache.MaxStaleness))
	}
	many := len(w.views) > 1
	if many {
		for _, v := range w.views {
			l.cache.Void(v.entry)
		}
	}
	for i := len(w.views) - 1; i >= 0; i-- {
		v := w.views[i]
		e := v.renew(w, reply, in, until)
		if e == nil || !l.cache.Replace(v.entry, e, many) {
			vs.void(v)
			continue
		}
		v.entry = e
	}
}

// renew returns v's entry with the instance as it is now, nil if that cannot be.
func (v *view) renew(w *watch, fields []byte, in instance, until int64) *nearcache.Entry {
	old := v.entry.AppendReply(nil, false)
	p := v.part(w)
	p.until = until
	switch v.q.script.Answer {
	case lua.Instances:
		old = v.splice(p, old, fields)
	case lua.Instance:
		old = fields
	case lua.InstanceExpiry:
		old = in.appendExpiry(nil, w.pttl)
	}
	return v.newEntry(old)
}

// newEntry makes v's entry of a reply, nil if it is none that can be kept. It ends before
// the first of the instances that it shows.
func (v *view) newEntry(reply []byte) *nearcache.Entry {
	ends := int64(never)
	for i := range v.parts {
		ends = min(ends, v.parts[i].until)
	}
	e, err := nearcache.NewEntry(&v.q.Question, nearcache.Plain, reply, min(v.until, ends))
	if err != nil {
		return nil
	}
	e.Outlive(ends)
	return e
}

func (v *view) part(w *watch) *viewPart {
	for i := range v.parts {
		if v.parts[i].watch == w {
			return &v.parts[i]
		}
	}
	panic("BUG: a view does not show what it watches")
}

// splice replaces the list of one instance in a reply of Instances.
func (v *view) splice(p *viewPart, old, fields []byte) []byte {
	start, end, by := p.start, p.end, len(fields)-(p.end-p.start)
	for i := range v.parts {
		if o := &v.parts[i]; o.start > start {
			o.start, o.end = o.start+by, o.end+by
		}
	}
	p.end += by
	b := make([]byte, 0, len(old)+by)
	return append(append(append(b, old[:start]...), fields...), old[end:]...)
}

// deadline is when a key that has ms milliseconds to live expires at the earliest, when the
// question was sent at the given time. Redis counts whole milliseconds, so one may have
// begun before. Without an expiry it is far away.
func deadline(sentAt, ms int64) int64 {
	if ms < 0 {
		return never
	}
	return sentAt + (ms-1)*int64(time.Millisecond)
}

const never = math.MaxInt64

// instance is what is read off a list of fields of an instance.
type instance struct {
	size    int    // of the list in bytes
	id      []byte // its field instanceId, nil if it has none
	expires []byte // its last field, if that is ttl_at
}

// readInstance reads the list at the start of b.
func readInstance(b []byte) (in instance, ok bool) {
	kind, n, pos := resp.ReadHeader(b)
	if kind != '*' || pos == 0 || n < 0 || n%2 != 0 {
		return in, false
	}
	for ; n > 0; n -= 2 {
		name, size := resp.ReadBulk(b[pos:])
		if size == 0 || name == nil {
			return in, false
		}
		pos += size
		value, size := resp.ReadBulk(b[pos:])
		if size == 0 || value == nil {
			return in, false
		}
		pos += size
		switch {
		case string(name) == "instanceId":
			in.id = value
		case n == 2 && string(name) == "ttl_at":
			in.expires = value
		}
	}
	in.size = pos
	return in, true
}

// shows reports whether the list is that of the instance id, which has pttl milliseconds
// to live, and may be kept. Less than half a second before its end Redis leaves ttl_at out,
// which clients do not understand.
func (in *instance) shows(id []byte, pttl int64) bool {
	return in.id != nil && bytes.Equal(in.id, id) && (pttl == -1 || pttl >= 0 && in.expires != nil)
}

// appendExpiry appends the reply of discovery_get_instance_ttl.
func (in *instance) appendExpiry(b []byte, pttl int64) []byte {
	if pttl == -1 {
		return append(b, ":-1\r\n"...)
	}
	return append(append(append(b, ':'), in.expires...), '\r', '\n')
}
