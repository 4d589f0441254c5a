package proxy

// raised are replies that wait until every invalidation which the backend sent before them has been
// handled, on every loop. One round trip on the invalidation streams serves all that have
// arrived in a turn, because it begins at the turn's end.
type raised struct {
	loop *loop
	addr string // of the node that answered; empty: any
	held []*request
}

// raise holds r's reply back until every invalidation that the backend sent
// before it has been handled here, on every loop. False: nothing is cached from
// there, so there is nothing to wait for. A nil node means all of them.
func (l *loop) raise(r *request, n *node, reply []byte) bool {
	r.barrier = false
	if l.srv.fetchLanes.Load() == 0 {
		return false
	}
	r.buf = append(r.buf[:0], reply...)
	b := l.raisedFrom(address(n))
	b.held = append(b.held, r)
	return true
}

// raisedFrom are the replies of this turn that the node at addr gave.
func (l *loop) raisedFrom(addr string) *raised {
	for _, b := range l.raised {
		if b.addr == addr {
			return b
		}
	}
	b := &raised{loop: l, addr: addr}
	l.raised = append(l.raised, b)
	l.nl.Post(b.begin) // runs when all events of the turn have been handled
	return b
}

// begin starts the round trip. What arrives from now on is not served by it.
func (b *raised) begin() {
	b.loop.raised = without(b.loop.raised, b)
	b.loop.synchronise(b.addr, b.release)
}

func (b *raised) release() {
	for _, r := range b.held {
		b.loop.hand(r, r.buf)
	}
}

// raiseFirst does the same for a reply too long to be held: the lane stops being
// read before its first byte is passed on. False: there is nothing to wait for.
func (ln *lane) raiseFirst() bool {
	r, l := ln.inflight.head, ln.loop
	if r == nil || ln.handshake > 0 || !r.barrier || r.sink != nil {
		return false
	}
	r.barrier = false
	if l.srv.fetchLanes.Load() == 0 {
		return false
	}
	ln.raising = true
	ln.conn.PauseRead()
	l.synchronise(address(ln.node.witness(r)), func() {
		ln.raising = false
		if !ln.closed {
			ln.conn.ResumeRead()
		}
	})
	return true
}

// synchronise calls done when all loops have handled everything that the node at addr
// (empty: every node) had sent on their fetch lanes.
func (l *loop) synchronise(addr string, done func()) {
	missing := len(l.srv.loops)
	arrived := func() {
		if missing--; missing == 0 {
			done()
		}
	}
	for _, o := range l.srv.loops {
		if o == l {
			o.quiesce(addr, arrived)
			continue
		}
		o.nl.Post(func() { o.quiesce(addr, func() { l.nl.Post(arrived) }) })
	}
}

// quiesce calls done once a round trip on each of the loop's fetch lanes to addr
// (to any node when it is empty) has been completed, or the lane has died, which
// voids what it covered.
func (l *loop) quiesce(addr string, done func()) {
	var lanes []*lane
	for _, n := range l.nodes {
		if addr != "" && n.addr != addr {
			continue
		}
		for _, ln := range n.fetch {
			if ln.ready {
				lanes = append(lanes, ln)
			}
		}
	}
	if len(lanes) == 0 {
		done()
		return
	}
	missing := len(lanes)
	for _, ln := range lanes {
		ln.ping(&pong{ln: ln, done: func() {
			if missing--; missing == 0 {
				done()
			}
		}})
	}
}

// address is where n is; empty when n is nil, which means every node.
func address(n *node) string {
	if n == nil {
		return ""
	}
	return n.addr
}
