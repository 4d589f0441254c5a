package proxy

import (
	"bytes"
	"fmt"
	"slices"

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
	lanes map[*node]*lane
	setup []setting
}

// setting is a command that put a part of the state in force.
type setting struct {
	topic string // what it sets; a later one on the same topic replaces it
	raw   []byte
}

// lane is the home's connection to n.
func (h *home) lane(s *session, n *node) (ln *lane, cause string) {
	if ln := h.lanes[n]; ln != nil {
		return ln, ""
	}
	if ln, cause = n.private(s, s.laneKey()); cause != "" {
		return nil, cause
	}
	// The setup is what was in force before the command that is about to be sent.
	ln.home, ln.strayed, ln.setup = h, true, h.setup[:len(h.setup):len(h.setup)]
	h.lanes[n] = ln
	return ln, ""
}

// set notes that raw is in force.
func (h *home) set(topic string, raw []byte) {
	h.unset(topic)
	h.setup = append(h.setup, setting{topic, bytes.Clone(raw)})
}

// unset forgets a topic. Lanes that are being opened keep the slice they were given.
func (h *home) unset(topic string) {
	var kept []setting
	for _, st := range h.setup {
		if st.topic != topic {
			kept = append(kept, st)
		}
	}
	h.setup = kept
}

func (h *home) has(topic string) bool {
	return slices.ContainsFunc(h.setup, func(st setting) bool { return st.topic == topic })
}

// lost: the connection has broken. The next command opens another one, in the same
// state.
func (h *home) lost(ln *lane) { delete(h.lanes, ln.node) }

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
	h := s.home
	s.home = nil
	for _, ln := range h.lanes {
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
	if s.home == nil {
		s.home = &home{lanes: make(map[*node]*lane)}
	}
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
			h.set("no-touch", text)
		case accepted:
			h.unset("no-touch")
		}
	})
}

// errNoPins says why a private connection cannot be had.
func (l *loop) errNoPins() string {
	l.stats.PinsRefused++
	return fmt.Sprintf("ERR cosky-proxy has no private backend connection left: all %d (upstream.max_pins) are in use", l.srv.opts.Upstream.MaxPins)
}
