package proxy

import (
	"cosky-proxy/nearcache"
	"cosky-proxy/router/command"
)

// replyState is how far the reply of a request has come.
type replyState uint8

const (
	replyWaiting replyState = iota // nothing yet
	replyPartial                   // its beginning has arrived and is being streamed
	replyReady                     // complete, held in buf until its turn
)

// awaiting is what of the near-cache's a request waits for. Its session counts those that do.
type awaiting uint8

const (
	awaitsNothing awaiting = iota
	awaitsFetch
	awaitsView
)

// request is one command on its way: a place in its client's reply queue and,
// while it is in flight, a place in its lane's queue. Requests are pooled per
// loop and never leave it.
//
// Ownership: a request belongs to its session's FIFO until its reply has been
// written, and to its lane's FIFO until the reply has arrived. When the client
// goes first, or does not wait any more (deadline.go), sess becomes nil and the lane's side releases it; requests of the
// proxy itself (fetches, heartbeats, handshakes) never have a session.
type request struct {
	sess      *session         // whose reply this is; nil: nobody's any more
	next      *request         // session FIFO
	laneNext  *request         // lane FIFO, or waiters of a fetch
	lane      *lane            // where it is in flight
	cmd       *command.Command // nil for the proxy's own requests
	sink      sink             // takes the whole reply instead of the client; nil: the bytes go to the client as they come
	buf       []byte           // reply bytes held until their turn, or collected for the sink
	raw       []byte           // the request itself, kept while it may have to be sent again
	trail     []byte           // pushes that come after its reply
	head      []byte           // its beginning, for the slow log, where raw is not kept
	touches   []touch          // what it does to the near-cache
	block     *execution       // of EXEC: the transaction that it ends
	parts     *scatter         // the parts that it is divided into, while they are on their way
	again     *resend          // it waits to be sent again; nil: it does not
	off       uint64           // position of its first byte in the lane's stream
	size      int              // its length there
	length    int              // bytes that the client sent
	seq       uint64           // order of sending on this loop; of a request that others are sent for, the last of theirs; 0: not known
	arrived   int64            // when its last byte had been read (mono); of those in a session's queue
	sentAt    int64            // when it was queued on a lane (mono)
	since     int64            // when its command was dispatched first (mono), see deadline.go; 0: it has all the time
	limit     int              // bytes of the reply a sink takes; beyond, the reply is dropped and overrun set
	index     int32            // meaning belongs to the sink: position among a scatter's children, phase of a fetch
	slot      uint16           // hash slot of its keys
	retries   uint8            // redirects and new connections so far
	pauses    uint8            // repeats after a pause so far
	from      source           // who may answer it
	state     replyState
	awaits    awaiting
	origin    string // address of the node whose reply is being delivered, or which was asked last; who answers instead, see slowlog.go
	alone     bool   // part of a block or of a pin's state: never sent again by itself
	private   bool   // belongs on a pin
	spared    bool   // a read for which an entry of the near-cache may stand in, see stale.go; raw is kept
	overtaken bool   // waits for a fetch while its client waits for a later one, too
	ordered   bool   // counted in its session's everyKey although no stripe says so
	keyed     bool   // slot is meaningful: redirects and repeats find the owner by it
	barrier   bool   // its effects are not known: wait for the invalidation streams before answering
	overrun   bool
	late      bool // its time is over: its client is told, its reply reaches nobody, and it is not sent again
	renews    bool // it renews an instance: views are brought up to date before its reply is seen
	mute      bool // its client does not want the reply
	hushes    bool // its client gets no message before its reply has been written
	resp3     bool
	bulk      bool // it travels with those of clients that move much
	inScatter bool // its memory belongs to its scatter
	db        int32
	hotEpoch  uint32      // the loop's when its effects were noted
	as        *credential // of its lane; nil: the proxy's own
	permit    *permit     // nil: nobody counts it
	caching   string      // CLIENT CACHING is in force for it: "YES" or "NO"
}

// sink consumes the complete reply of a request. It runs on the loop; reply dies
// when it returns. The request has left its lane and its effects are settled;
// the sink finishes or releases it.
type sink interface {
	deliver(l *loop, r *request, reply []byte)
}

// touch is one near-cache stripe that a request concerns.
type touch struct {
	stripe nearcache.Stripe
	write  bool // a write in flight; otherwise the reply may reveal the key's state
}

// What pooled requests keep is bounded: what a burst needed is given back.
const (
	maxFreeRequests = 8192
	maxFreeBytes    = 8 << 20  // of their buffers together
	maxKept         = 16 << 10 // capacity of one buffer
	maxTouches      = 512
)

func (l *loop) newRequest(s *session, cmd *command.Command) *request {
	var r *request
	if last := len(l.free) - 1; last >= 0 {
		r, l.free = l.free[last], l.free[:last]
		l.freeBytes -= r.holds()
		l.bare = min(l.bare, last)
	} else {
		r = new(request)
	}
	r.sess, r.cmd, r.hotEpoch = s, cmd, l.hotEpoch
	if s != nil {
		if r.since = l.now(); s.heldUp != nil {
			r.since = s.heldUp.since
		}
		r.mute = s.muted()
		r.resp3, r.db, r.as, r.bulk = s.resp3, s.db, s.as, s.bulky
		r.permit, s.permit = s.permit, nil
		if s.home != nil {
			r.caching = s.home.tracking.choice()
		}
	}
	return r
}

// release returns r to the pool. Nobody may hold it any more.
func (l *loop) release(r *request) {
	if len(r.touches) != 0 {
		panic("BUG: request released with unsettled effects")
	}
	if r.inScatter {
		return
	}
	if r.permit != nil {
		l.throttle.giveBack(r.permit)
	}
	buf, raw, head, touches := r.buf, r.raw, r.head, r.touches
	if cap(buf) > maxKept {
		buf = nil
	}
	if cap(raw) > maxKept {
		raw = nil
	}
	if cap(touches) > maxTouches {
		touches = nil
	}
	*r = request{buf: buf[:0], raw: raw[:0], head: head[:0], touches: touches[:0]}
	if len(l.free) >= maxFreeRequests {
		return
	}
	if !l.makeRoom(r.holds()) {
		r.buf, r.raw, r.head = nil, nil, nil
	}
	l.freeBytes += r.holds()
	l.free = append(l.free, r)
}

// makeRoom has the pool keep n bytes more: those that have not been used for longest, at its bottom, lose their buffers, so that
// what clients needed once does not keep them from what they need now.
func (l *loop) makeRoom(n int) bool {
	for l.freeBytes+n > maxFreeBytes && l.bare < len(l.free) {
		r := l.free[l.bare]
		l.freeBytes -= r.holds()
		r.buf, r.raw, r.head = nil, nil, nil
		l.bare++
	}
	return l.freeBytes+n <= maxFreeBytes
}

// holds is how many bytes r's buffers take.
func (r *request) holds() int { return cap(r.buf) + cap(r.raw) + cap(r.head) }

// fifo is an intrusive queue of requests linked by laneNext.
type fifo struct {
	head, tail *request
	len        int
}

func (q *fifo) push(r *request) {
	r.laneNext = nil
	if q.tail == nil {
		q.head = r
	} else {
		q.tail.laneNext = r
	}
	q.tail = r
	q.len++
}

// pushFront puts r before all others.
func (q *fifo) pushFront(r *request) {
	if r.laneNext = q.head; q.head == nil {
		q.tail = r
	}
	q.head = r
	q.len++
}

func (q *fifo) pop() *request {
	r := q.head
	q.head = r.laneNext
	if q.head == nil {
		q.tail = nil
	}
	r.laneNext = nil
	q.len--
	return r
}

// finish answers r with a complete reply: its effects are settled first, so that
// no client can see the reply while a value it outdates is still served.
func (l *loop) finish(r *request, reply []byte) {
	l.settle(r)
	s := r.sess
	if s == nil {
		l.release(r)
		return
	}
	if l.now()-r.arrived >= l.slow.after {
		l.noteSlow(r, reply)
	}
	if r.mute {
		reply = nil
	}
	if r != s.head {
		r.buf = append(r.buf[:0], reply...)
		r.state = replyReady
		s.hold(len(reply))
		return
	}
	s.write(reply)
	s.advance()
}

// stream passes on the next piece of r's reply; done marks the last one.
func (l *loop) stream(r *request, piece []byte, done bool) {
	s := r.sess
	if r.state == replyWaiting {
		l.settle(r)
		r.state = replyPartial
		if s != nil && l.now()-r.arrived >= l.slow.after {
			l.noteSlow(r, piece)
		}
	}
	if r.mute {
		piece = nil
	}
	switch {
	case s == nil:
		if done {
			l.release(r)
		}
	case r == s.head:
		s.write(piece)
		if done {
			s.advance()
		} else {
			s.midReply = true
		}
	default:
		r.buf = append(r.buf, piece...)
		s.hold(len(piece))
		if done {
			r.state = replyReady
		}
	}
}
