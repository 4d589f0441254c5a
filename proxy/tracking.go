package proxy

import (
	"bytes"
	"strconv"
	"time"

	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// tracking is a session's CLIENT TRACKING. The backend does it, on the session's home
// at every master; here is what has to be known to bring another connection into the
// same state, and to speak of clients by the proxy's ids.
//
// A client that tracks depends on hearing of every change. When one of its home
// connections breaks, changes may have gone unheard, so it is disconnected, which is
// how it would learn of that from Redis itself.
type tracking struct {
	redirect int64  // client that hears the invalidations; 0: this one
	ear      *ear   // of that client
	bcast    bool   // changes of keys that were not read are announced, too
	mode     string // "OPTIN", "OPTOUT" or neither
	caching  string // "YES" or "NO" for the next command, see CLIENT CACHING
	broken   bool   // the backend has said that the ear is gone
}

// trackingOptions is what the proxy reads of CLIENT TRACKING's arguments.
type trackingOptions struct {
	redirectAt int // position of the client id; 0: there is none
	bcast      bool
	mode       string
}

// readTracking reads as far as the backend will.
func readTracking(args [][]byte) (o trackingOptions) {
	for i := 3; i < len(args); i++ {
		more := i+1 < len(args)
		switch {
		case equalFold(args[i], "REDIRECT") && more:
			i++
			if o.redirectAt == 0 {
				o.redirectAt = i
			}
		case equalFold(args[i], "PREFIX") && more:
			i++
		case equalFold(args[i], "BCAST"):
			o.bcast = true
		case equalFold(args[i], "OPTIN"), equalFold(args[i], "OPTOUT"):
			o.mode = string(bytes.ToUpper(args[i]))
		}
	}
	return o
}

// clientTracking puts tracking in force, or ends it, on every master. The backend
// judges the arguments; only the client that REDIRECT names is known here alone.
func (s *session) clientTracking(cmd *command.Command, args [][]byte, raw []byte) bool {
	o := readTracking(args)
	if s.home == nil && !equalFold(args[2], "ON") && o.redirectAt == 0 { // there is nothing to end
		return s.forward(cmd, args, raw)
	}
	r, ready := s.promise(cmd)
	if !ready {
		return false
	}
	l := s.loop
	change := &trackingChange{options: o, on: equalFold(args[2], "ON")}
	for _, a := range args {
		change.args = append(change.args, bytes.Clone(a))
	}
	if o.redirectAt == 0 {
		change.launch(s, r)
		return true
	}
	id, ok := integer(args[o.redirectAt])
	if !ok {
		change.launch(s, r)
		return true
	}
	l.listen(id, s.as, func(e *ear, cause string) {
		change.ear, change.redirect = e, id
		switch {
		case r.sess == nil || cause != "":
			e.release()
			l.abort(r, cause)
		case e == nil: // the backend has the words for it, and knows whether something else is wrong
			change.args[o.redirectAt] = []byte(nobody)
			change.launch(s, r)
		default:
			change.launch(s, r)
		}
	})
	return true
}

// nobody is an id that no connection has.
const nobody = "9223372036854775807"

// trackingChange is one CLIENT TRACKING under way.
type trackingChange struct {
	args     [][]byte
	options  trackingOptions
	on       bool
	redirect int64
	ear      *ear // holds a use of it; nil: no redirection
}

// launch sends the command to every master; r is its place in the reply queue.
func (c *trackingChange) launch(s *session, r *request) {
	l := s.loop
	s.makeHome()
	targets := l.everyShard()
	lanes, cause := s.homesOf(targets)
	if cause != "" {
		c.ear.release()
		s.leaveIfEmpty()
		l.abort(r, cause)
		return
	}
	sc := newScatter(r, firstAnswer, len(lanes))
	sc.after = func(_ *loop, accepted bool, reply []byte) []byte {
		c.settled(r.sess, accepted)
		return reply
	}
	for i, ln := range lanes {
		if c.ear != nil {
			c.args[c.options.redirectAt] = strconv.AppendInt(nil, c.ear.lanes[ln.node].serverID, 10)
		}
		l.enc = resp.AppendCommandBytes(l.enc[:0], c.args)
		sc.launch(l, ln, i, l.enc, targets[i])
	}
}

// homesOf are the session's home connections to the owners of targets.
func (s *session) homesOf(targets []target) (lanes []*lane, cause string) {
	for _, t := range targets {
		n, cause := s.loop.owner(t.slot)
		var ln *lane
		if cause == "" {
			ln, cause = s.home.lane(s, n)
		}
		if cause != "" {
			return nil, cause
		}
		lanes = append(lanes, ln)
	}
	return lanes, ""
}

// settled notes what the backend has agreed to.
func (c *trackingChange) settled(s *session, accepted bool) {
	if s == nil || s.home == nil {
		c.ear.release()
		return
	}
	h := s.home
	switch {
	case !accepted:
		c.ear.release()
	case !c.on:
		c.ear.release()
		s.untrack()
	default:
		old := h.tracking
		h.tracking = &tracking{redirect: c.redirect, ear: c.ear, bcast: c.options.bcast, mode: c.options.mode}
		if old != nil {
			old.ear.release()
		}
		if at := c.options.redirectAt; at > 0 { // the ear's id is another at every node
			c.args = append(c.args[:at-1:at-1], c.args[at+1:]...)
		}
		h.add(setting{topic: topicTracking, raw: resp.AppendCommandBytes(nil, c.args), args: c.args})
		for _, ln := range h.lanes {
			s.loop.vigil[ln] = struct{}{}
		}
	}
	s.leaveIfEmpty()
}

// untrack forgets that the session tracks.
func (s *session) untrack() {
	h := s.home
	if h == nil || h.tracking == nil {
		return
	}
	h.tracking.ear.release()
	h.tracking = nil
	h.unset(topicTracking)
	for _, ln := range h.lanes {
		delete(s.loop.vigil, ln)
	}
}

// tracking is nil when the session does not track.
func (s *session) tracking() *tracking {
	if s.home == nil {
		return nil
	}
	return s.home.tracking
}

// clientCaching is about the next command only. It goes before that one on whichever
// connection it takes.
func (s *session) clientCaching(cmd *command.Command, args [][]byte, _ []byte) bool {
	t, choice := s.tracking(), string(bytes.ToUpper(args[2]))
	switch {
	case t == nil:
		s.refuse("ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled")
	case choice == "YES" && t.mode != "OPTIN":
		s.refuse("ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.")
	case choice == "NO" && t.mode != "OPTOUT":
		s.refuse("ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.")
	case choice != "YES" && choice != "NO":
		s.refuse("ERR syntax error")
	default:
		t.caching, s.fleeting = choice, true
		return s.ok(cmd)
	}
	return true
}

// choice is what CLIENT CACHING has said about the present command; empty: nothing.
func (t *tracking) choice() string {
	if t == nil {
		return ""
	}
	return t.caching
}

// optFor sends the CLIENT CACHING that is in force for r before r itself, also when that is
// sent a second time, elsewhere.
func (ln *lane) optFor(r *request) {
	if ln.home != nil && r.caching != "" {
		ln.opt(r.caching)
	}
}

// opt is ln.note of CLIENT CACHING, in bytes of its own: the command that it is for may be in the
// loop's scratch.
func (ln *lane) opt(choice string) {
	o := ln.loop.newRequest(nil, nil)
	o.sink, o.alone = ignore{}, true
	ln.send(o, resp.AppendCommand(nil, "CLIENT", "CACHING", choice))
}

// fade forgets CLIENT CACHING after the command, or the transaction, that it was for.
func (t *tracking) fade(s *session) {
	if (s.tx == nil || !s.tx.queueing) && (s.lastCmd == nil || s.lastCmd.Parent == nil || s.lastCmd.Parent.Name != "client") {
		t.caching = ""
	}
}

func (s *session) clientGetRedir(cmd *command.Command, _ [][]byte, _ []byte) bool {
	return s.answer(cmd, func(b []byte) []byte { return resp.AppendInt(b, s.redirection()) })
}

// redirection is the client that this one's invalidation messages go to; 0: itself;
// -1: it does not track.
func (s *session) redirection() int64 {
	if t := s.tracking(); t != nil {
		return t.redirect
	}
	return -1
}

// clientTrackingInfo asks the backend, which alone knows whether the redirection is
// broken.
func (s *session) clientTrackingInfo(cmd *command.Command, _ [][]byte, _ []byte) bool {
	if s.tracking() == nil {
		return s.answer(cmd, s.appendNotTracking)
	}
	r, ready := s.promise(cmd)
	if !ready {
		return false
	}
	l := s.loop
	n, cause := l.owner(l.anyShard().slot)
	var ln *lane
	if cause == "" {
		ln, cause = s.home.lane(s, n)
	}
	if cause != "" {
		l.abort(r, cause)
		return true
	}
	ln.optFor(r)
	q := l.newRequest(nil, nil)
	q.sink, q.alone = &trackingInfo{r, s.redirection()}, true
	l.enc = resp.AppendCommand(l.enc[:0], "CLIENT", "TRACKINGINFO")
	ln.send(q, l.enc)
	return true
}

func (s *session) appendNotTracking(b []byte) []byte {
	b = appendString(s.appendMap(b, 3), "flags")
	if s.resp3 {
		b = resp.AppendSet(b, 1)
	} else {
		b = resp.AppendArray(b, 1)
	}
	b = appendString(appendString(b, "off"), "redirect")
	b = appendString(resp.AppendInt(b, -1), "prefixes")
	return resp.AppendArray(b, 0)
}

// trackingInfo puts the proxy's client id in the place of the backend's.
type trackingInfo struct {
	r        *request
	redirect int64
}

func (i *trackingInfo) deliver(l *loop, q *request, reply []byte) {
	const name = "$8\r\nredirect\r\n:"
	before, after, found := bytes.Cut(reply, []byte(name))
	out := append([]byte(nil), before...)
	if found {
		_, rest, _ := bytes.Cut(after, []byte("\r\n"))
		out = strconv.AppendInt(append(out, name...), i.redirect, 10)
		out = append(append(out, "\r\n"...), rest...)
	}
	l.release(q)
	l.keep(i.r, out)
}

// pushed passes on what the backend says of its own accord on a home connection.
//
// Invariant: a push never overtakes a reply that came before it. Whoever is told that a key has
// changed and then gets a value of it that is older would keep that for ever.
func (s *session) pushed(frame []byte) {
	if !s.resp3 {
		return
	}
	_, _, size := resp.ReadHeader(frame)
	what, _ := resp.ReadBulk(frame[size:])
	t := s.tracking()
	if string(what) != "tracking-redir-broken" || t == nil {
		s.trail(frame)
		return
	}
	t.broken = true
	b := appendString(resp.AppendPush(nil, 2), "tracking-redir-broken")
	s.trail(resp.AppendInt(b, t.redirect))
}

// trail sends the client a push, behind every reply of which the backend has given something that
// the client has not: it waits for those before it, for another node's part, or for a barrier.
func (s *session) trail(push []byte) {
	var last *request
	for r := s.head; r != nil; r = r.next {
		if r.lane == nil {
			last = r
		}
	}
	if last == nil || s.patient { // WAIT tells nothing of keys, and may take long
		s.emit(push)
		return
	}
	last.trail = append(last.trail, push...)
	s.hold(len(push))
	s.checkMessages()
}

// relocated: the topology has changed. A new master's changes have not been announced
// to a client that is told of all changes, so it has to begin anew.
func (s *session) relocated() {
	t := s.tracking()
	if t == nil || !t.bcast {
		return
	}
	for _, n := range s.loop.shards {
		if s.home.lanes[n] == nil {
			s.close("it tracks all changes, and there is a new master")
			return
		}
	}
}

// watchOver makes sure that connections which only listen are noticed when they are
// dead: whoever depends on them would hear nothing for ever.
func (l *loop) watchOver(now int64) {
	for ln := range l.vigil {
		live := ln.owner != nil && ln.owner.tx != nil && ln.owner.tx.live != nil // a PING would be queued
		if ln.ready && !ln.closed && ln.inflight.len == 0 && !live && now-ln.lastRead > int64(time.Second) {
			ln.note("PING")
		}
	}
}
