package proxy

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"cosky-proxy/proxy/resp"
	"cosky-proxy/router"
	"cosky-proxy/router/command"
)

// home is where a session lives whose connection state only the backend can keep,
// as CLIENT NO-TOUCH: a private connection to each node it has to do with, opened on
// demand and put into that state before anything else is sent. Everything the session
// sends to a node travels there, in the order in which it was sent.
//
// A home connection is never shared and never used again: what state it holds is
// known to the server alone.
type home struct {
	lanes    map[*node]*lane
	setup    []setting
	tracking *tracking // nil: it does not track
}

// setting is a command that put a part of the state in force.
type setting struct {
	topic topicOf
	raw   []byte
	args  [][]byte // of CLIENT TRACKING, which may have to name an ear as well
}

// topicOf is the part of the state that a setting is about.
type topicOf string

const (
	topicNoTouch  topicOf = "no-touch"
	topicTracking topicOf = "tracking"
)

// append appends the setting as it is sent to n.
func (st *setting) append(out []byte, h *home, n *node) []byte {
	t := h.tracking
	if st.topic != topicTracking || t == nil || t.ear == nil || t.ear.gone || t.ear.lanes[n] == nil {
		return append(out, st.raw...)
	}
	id := strconv.AppendInt(nil, t.ear.lanes[n].serverID, 10)
	return resp.AppendCommandBytes(out, append(st.args[:len(st.args):len(st.args)], []byte("REDIRECT"), id))
}

// lane is the home's connection to n.
func (h *home) lane(s *session, n *node) (ln *lane, cause string) {
	if ln := h.lanes[n]; ln != nil && !ln.closed {
		return ln, ""
	}
	if ln, cause = n.private(s, s.laneKey()); cause != "" {
		return nil, cause
	}
	// The setup is what was in force before the command that is about to be sent.
	ln.home, ln.strayed, ln.setup = h, true, h.setup[:len(h.setup):len(h.setup)]
	h.lanes[n] = ln
	if t := h.tracking; t != nil {
		s.loop.vigil[ln] = struct{}{}
		if t.ear != nil && !t.ear.gone {
			if _, cause = t.ear.open(n); cause != "" {
				return nil, cause
			}
		}
	}
	return ln, ""
}

// makeHome gives the session a home, if it has none. A connection on which it watches
// keys becomes a part of it.
func (s *session) makeHome() {
	if s.home != nil {
		return
	}
	s.home = &home{lanes: make(map[*node]*lane)}
	if s.tx != nil && s.tx.pin != nil {
		ln := s.tx.pin
		ln.home, ln.strayed = s.home, true
		s.home.lanes[ln.node] = ln
	}
}

// set notes that raw is in force.
func (h *home) set(topic topicOf, raw []byte) {
	h.unset(topic)
	h.add(setting{topic: topic, raw: raw})
}

// add notes a further setting of a topic.
func (h *home) add(st setting) { h.setup = append(h.setup, st) }

// unset forgets a topic. Lanes that are being opened keep the slice they were given.
func (h *home) unset(topic topicOf) {
	var kept []setting
	for _, st := range h.setup {
		if st.topic != topic {
			kept = append(kept, st)
		}
	}
	h.setup = kept
}

func (h *home) has(topic topicOf) bool {
	return slices.ContainsFunc(h.setup, func(st setting) bool { return st.topic == topic })
}

// lost: a connection of the session's home has broken. The next command opens another
// one, in the same state; but a client that tracks may have missed something.
func (s *session) homeLost(ln *lane) {
	if s.home.lanes[ln.node] == ln {
		delete(s.home.lanes, ln.node)
	}
	delete(s.loop.vigil, ln)
	if s.home.tracking == nil {
		return
	}
	const reason = "a connection that hears of invalidations for it is lost"
	if s.patient { // it may wait for ever for what is in flight
		s.close(reason)
		return
	}
	s.loop.srv.log.Debug("client closed", "client", s.addr, "reason", reason)
	s.finishAndClose()
}

// greet switches the protocol of every connection.
func (h *home) greet(proto string) {
	for _, ln := range h.lanes {
		ln.note("HELLO", proto)
	}
}

// leaveHome gives up the session's home. What is in flight for a client that has
// gone is still executed, unless it blocks.
func (s *session) leaveHome() {
	if s.home == nil {
		return
	}
	s.untrack()
	h := s.home
	s.home = nil
	for _, ln := range h.lanes {
		if s.tx != nil && s.tx.pin == ln { // it watches, and stays as a pin
			ln.home = nil
			continue
		}
		ln.owner = nil
		if ln.inflight.len == 0 || s.patient {
			ln.fail("")
		} else {
			ln.leaving = true
		}
	}
}

// settle sends a command that changes connection state to the session's home on
// every shard, and makes it one if it has none. after is told whether all of them
// have accepted it; a home that holds no state then is given up.
func (s *session) settle(cmd *command.Command, raw []byte, after func(h *home, accepted bool)) bool {
	if s.drain() {
		return false
	}
	s.makeHome()
	sc, ok := s.broadcast(cmd, firstAnswer, raw, s.loop.effect.reset())
	if sc == nil {
		s.leaveIfEmpty()
		return ok
	}
	s.exclusive = true
	p := sc.parent
	sc.after = func(_ *loop, accepted bool, reply []byte) []byte {
		if s := p.sess; s != nil && s.home != nil {
			after(s.home, accepted)
			s.leaveIfEmpty()
		}
		return reply
	}
	return true
}

func (s *session) leaveIfEmpty() {
	if s.home != nil && len(s.home.setup) == 0 {
		s.leaveHome()
	}
}

// firstAnswer merges answers that say the same everywhere: an error if there is one.
func firstAnswer(a *router.Answers) []byte {
	for _, r := range a.Replies {
		if r[0] == '-' {
			return r
		}
	}
	return a.Replies[0]
}

// lease is a private connection to n: the session's home there, or a pin.
func (s *session) lease(n *node) (ln *lane, cause string) {
	if s.home != nil {
		return s.home.lane(s, n)
	}
	return n.pin(s, s.laneKey())
}

// giveBack ends a lease when nothing is in flight any more. A home stays.
func (ln *lane) giveBack() {
	if ln.home == nil {
		ln.leaving = true
	}
}

// noTouch is state of a connection: the reads of this client leave the keys' access
// times alone.
func (s *session) noTouch(cmd *command.Command, args [][]byte, raw []byte) bool {
	on := equalFold(args[2], "ON")
	if s.home == nil && !on { // it is off; the backend knows what else may be wrong
		return s.forward(cmd, args, raw)
	}
	text := bytes.Clone(raw)
	return s.settle(cmd, raw, func(h *home, accepted bool) {
		switch {
		case accepted && on:
			h.set(topicNoTouch, text)
		case accepted:
			h.unset(topicNoTouch)
		}
	})
}

// errNoPins says why a private connection cannot be had.
func (l *loop) errNoPins() string {
	l.stats.PinsRefused++
	return fmt.Sprintf("ERR cosky-proxy has no private backend connection left: all %d (upstream.max_pins) are in use", l.srv.opts.Upstream.MaxPins)
}
