package proxy

import (
	"bytes"
	"slices"

	"cosky-proxy/nearcache"
	"cosky-proxy/nearcache/coskey"
	"cosky-proxy/proxy/resp"
)

// Whoever is told of a change by a message of CoSky's and reads on its account must see the change. For
// what a message names that is simple: it is voided before the message is passed on. But messages
// about instances do not name the service, and every renewal that is announced would void what a
// hundred clients are about to read. So where Redis tells of changes, such a message waits until the
// curator has heard of all of them that came before it (a PING on the connections that it reads the
// namespace on), and its views are up to date again. Messages that have arrived meanwhile need not wait once more.

// hearing is the state of a feed with respect to that.
type hearing struct {
	waits   bool // the feed is not read on
	cleared int  // bytes of its input that need not wait: whole messages that arrived before the last question was asked
}

// heard: so many bytes of the input have been passed on.
func (h *hearing) heard(n int) { h.cleared = max(h.cleared-n, 0) }

// curation is a connection's other end, and the loop that owns the connection.
type curation struct {
	curator *loop
	addr    string
}

// hold reports whether the message at the start of the input has to wait, and sees to the end of that.
func (f *feed) hold(input []byte) bool {
	l := f.audience.hub.loop
	switch {
	case f.hearing.waits:
		return true
	case f.hearing.cleared > 0, f.skip.Started(), l.cache == nil, !l.srv.tracks(), l.srv.fetchLanes.Load() == 0:
		return false
	}
	if kind, name, channel, ok := readMessage(input); !ok || !holds(channel) || f.audience.listened(f, kind, name, channel) == nil {
		return false
	}
	var curations []curation
	size := 0
	for n := resp.Len(input); n > 0; n = resp.Len(input[size:]) {
		if _, _, channel, ok := readMessage(input[size:]); ok && holds(channel) {
			c, known := l.curation(channel)
			if !known {
				break
			}
			if !slices.Contains(curations, c) {
				curations = append(curations, c)
			}
		}
		size += n
	}
	if len(curations) == 0 { // it is not complete yet, or nobody owns what it is about
		return false
	}
	f.wait(size, curations)
	return true
}

// holds reports whether messages of the channel wait.
func holds(channel []byte) bool { return coskey.ClassOfChannel(channel) == coskey.Instance }

// curation tells where changes of what such a message is about are heard of, if anywhere.
func (l *loop) curation(channel []byte) (c curation, known bool) {
	ns := channel[:bytes.IndexByte(channel, ':')]
	n, cause := l.owner(l.target(ns).slot)
	if cause != "" {
		return c, false
	}
	return curation{l.curatorOf(ns), n.addr}, true
}

// wait holds the feed up until so many bytes of its input may be passed on.
func (f *feed) wait(size int, curations []curation) {
	l := f.audience.hub.loop
	f.hearing.waits = true
	f.conn.PauseRead()
	missing := len(curations)
	goOn := func() {
		missing = 0
		f.hearing = hearing{cleared: size}
		if !f.closed {
			f.conn.ResumeRead()
		}
	}
	timer := l.nl.AfterFunc(l.srv.opts.Cache.MaxStaleness, func() { // what does not answer for so long is no source any more
		l.cache.Bump(nearcache.All)
		goOn()
	})
	arrived := func() {
		if missing--; missing == 0 {
			timer.Stop()
			goOn()
		}
	}
	for _, c := range curations {
		if c.curator == l {
			l.catchUp(c.addr, arrived)
			continue
		}
		if !c.curator.nl.Post(func() { c.curator.catchUp(c.addr, func() { l.nl.Post(arrived) }) }) {
			arrived()
		}
	}
}

// catchUp calls done when everything that the node had sent on this loop's fetch lanes has been
// handled, and no view is behind it.
func (l *loop) catchUp(addr string, done func()) {
	n := l.nodes[addr]
	if n == nil {
		done()
		return
	}
	missing := 1
	arrived := func() {
		if missing--; missing == 0 {
			done()
		}
	}
	for _, ln := range n.fetch {
		if ln.ready {
			missing++
			ln.ping(&pong{ln: ln, spares: true, done: arrived})
		}
	}
	arrived()
}

// heard voids what a message of CoSky's says has changed, before its listeners get it; of one that has
// waited, views show that already. The message is the last part of the frame.
func (l *loop) heard(channel, frame []byte, waited bool) {
	if l.cache == nil || bytes.IndexByte(channel, ':') < 0 {
		return
	}
	kind, parts, at := resp.ReadHeader(frame)
	for ; parts > 1 && (kind == '*' || kind == '>'); parts-- {
		_, size := resp.ReadBulk(frame[at:])
		at += size
	}
	payload, _ := resp.ReadBulk(frame[at:])
	coskey.Event(channel, payload, listener{l.cache, !waited || coskey.ClassOfChannel(channel) != coskey.Instance})
}

// listener voids what it visits.
type listener struct {
	c     *nearcache.Cache
	views bool // that show it, too
}

func (x listener) Key(key []byte)     { x.void(key) }
func (x listener) Group(group []byte) { x.void(group) }

func (x listener) void(name []byte) {
	hash := x.c.Hash(name)
	x.c.Bump(x.c.StripeOf(hash))
	if x.views {
		x.c.Bump(x.c.ViewStripe(hash))
	}
}
