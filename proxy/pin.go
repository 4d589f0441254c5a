package proxy

import (
	"slices"

	"cosky-proxy/router/command"
)

// blocking sends a command that may block its connection on a pin, where it can
// block nobody else. Nothing of this session follows until it is answered.
func (s *session) blocking(cmd *command.Command, args [][]byte, raw []byte) bool {
	l := s.loop
	if (cmd.Name == "xread" || cmd.Name == "xreadgroup") && !blocks(args) {
		return s.forward(cmd, args, raw)
	}
	l.keys, _ = cmd.Keys(args, l.keys[:0]) // the backend has the better words for what is wrong with them
	if s.drain() {
		return false
	}
	e := l.effect.reset()
	t := l.anyShard()
	if len(l.keys) > 0 {
		var same bool
		if t, same = l.common(args, l.keys); !same {
			s.refuse(errCrossSlot)
			return true
		}
	}
	n, cause := l.owner(t.slot)
	if cause != "" {
		return s.unserved(t.slot, cause)
	}
	var ln *lane
	if s.tx != nil && s.tx.pin != nil && s.tx.pin.node == n {
		ln = s.tx.pin
	} else if ln, cause = s.lease(n); cause != "" {
		return s.unserved(t.slot, cause)
	} else if ln.home == nil {
		s.pin, ln.leaving = ln, true
	}
	if len(l.keys) > 0 {
		l.concernKeys(e, cmd, args)
	} else {
		l.concernUnknown(e, cmd)
	}
	r := l.newRequest(s, cmd)
	r.slot, r.keyed, r.private, r.since = t.slot, t.keyed, true, 0
	r.raw = append(r.raw[:0], raw...)
	// A write that waits for ever must not keep reads of its keys from the cache
	// for ever: it only counts once it has happened, at its reply.
	for i := range e.touches {
		e.touches[i].write = false
	}
	l.begin(r, e)
	s.enqueue(r)
	s.exclusive, s.patient, s.blocksFor = true, true, blockTime(cmd, args)
	ln.send(r, raw)
	return true
}

// blocks reports whether XREAD or XREADGROUP has a BLOCK option.
func blocks(args [][]byte) bool {
	for _, a := range args[1:] {
		if equalFold(a, "STREAMS") {
			return false
		}
		if equalFold(a, "BLOCK") {
			return true
		}
	}
	return false
}

// unwait gives up the connections that were leased for WAIT.
func (s *session) unwait() {
	for _, ln := range s.waiting {
		ln.node.unpin(ln)
	}
	s.waiting = nil
}

// unpin gives up the session's private connections.
func (s *session) unpin() {
	if s.pin != nil {
		ln := s.pin
		s.pin, s.patient = nil, false
		ln.node.unpin(ln)
	}
	s.unwait()
	if s.tx != nil && s.tx.pin != nil {
		ln := s.tx.pin
		s.tx.pin = nil
		if ln.home == nil {
			ln.fail("")
		}
	}
	s.upload = nil
}

// unpinned tells the session that ln, which it leased, is gone.
func (s *session) unpinned(ln *lane) {
	if s.pin == ln {
		s.pin, s.patient = nil, false
	}
	if s.tx != nil && s.tx.pin == ln {
		s.tx.pin, s.tx.lostPin, s.tx.live = nil, true, nil
	}
	if s.upload != nil && s.upload.pin == ln {
		s.upload.pin = nil
	}
	s.waiting = without(s.waiting, ln)
	if s.monitor != nil && s.monitor == ln.monitor {
		s.close("the connection that monitors a backend is lost")
	}
	if s.home != nil && s.home == ln.home {
		s.homeLost(ln)
	}
}

// settlePin returns a leased connection to its node once the last reply the
// session wanted from it has come.
func (ln *lane) settlePin() {
	s := ln.owner
	if s != nil && ln.home != nil { // its node is none of ours any more
		ln.fail("")
		return
	}
	if s != nil && s.pin == ln {
		s.pin, s.patient = nil, false
	}
	if s != nil {
		s.waiting = without(s.waiting, ln)
	}
	ln.leaving = false
	ln.node.unpin(ln)
}

// without removes e from list.
func without[T comparable](list []T, e T) []T {
	if i := slices.Index(list, e); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}
