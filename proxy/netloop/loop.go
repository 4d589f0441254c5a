package netloop

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"cosky-proxy/proxy/mono"
)

// Transport says how a loop moves bytes.
type Transport int

const (
	// DefaultTransport is Epoll on Linux and Goroutine elsewhere.
	DefaultTransport Transport = iota
	// Epoll watches plain sockets with epoll; only on Linux.
	Epoll
	// Goroutine serves every connection by a reader and a writer goroutine.
	Goroutine
)

func (t Transport) String() string {
	switch t {
	case Epoll:
		return "epoll"
	case Goroutine:
		return "goroutine"
	}
	return "default"
}

var (
	// ErrStopped is the reason given to OnClose when the loop was stopped.
	ErrStopped = errors.New("event loop stopped")
	// ErrHungUp means the peer closed both directions without an error code.
	ErrHungUp = errors.New("peer hung up")
	// ErrFlushTimeout means CloseAfterFlush gave up on a peer that does not read.
	ErrFlushTimeout = errors.New("peer did not read the remaining output in time")
)

// PanicError is the reason given to OnClose after a callback of the
// connection panicked.
type PanicError struct {
	Callback string // which callback
	Value    any    // what it panicked with
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic in %s: %v", e.Callback, e.Value) }

// Options configure a loop; the zero value is usable.
type Options struct {
	// Transport for plain sockets.
	Transport Transport
	// ReadBuffer is the size in bytes of the input buffer that the
	// connections of the loop share, and so the most one recv returns to a
	// connection without a large unconsumed rest. 0 means 64 KiB; the
	// minimum is 32 KiB.
	ReadBuffer int
	// FlushTimeout is how long CloseAfterFlush waits for a peer that takes nothing. 0 means 5 s.
	FlushTimeout time.Duration
	// LingerTimeout bounds how long the socket of a connection that CloseAfterFlush has
	// closed waits for its peer to close, too. 0 means 1 s.
	LingerTimeout time.Duration
	// Logger receives panics. nil means slog.Default().
	Logger *slog.Logger
	// OnPanic, if set, is called on the loop after a panic was logged.
	OnPanic func(callback string, value any)
}

func (o Options) withDefaults() Options {
	if o.ReadBuffer == 0 {
		o.ReadBuffer = largeBuffer
	}
	o.ReadBuffer = max(o.ReadBuffer, 2*smallBuffer)
	if o.FlushTimeout == 0 {
		o.FlushTimeout = 5 * time.Second
	}
	if o.LingerTimeout == 0 {
		o.LingerTimeout = time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// Stats counts a loop's work since it was made.
type Stats struct {
	Waits    uint64 // polls for events, each one turn of the loop
	Sleeps   uint64 // those that found nothing ready and blocked
	Reads    uint64 // recv calls, or chunks from reader goroutines
	Writes   uint64 // send calls, or windows completed by writer goroutines
	BytesIn  uint64 // bytes received
	BytesOut uint64 // bytes accepted by the kernel
	Posts    uint64 // posted functions that ran
	Panics   uint64 // panics recovered in callbacks
	Opened   uint64 // connections attached so far
	Conns    int    // connections attached now
}

// poller is what a loop waits on.
type poller interface {
	// wait dispatches what is ready to the connections. With nothing ready
	// it blocks for at most timeout nanoseconds (0: not at all, negative:
	// without limit), but only while no function is posted, and returns when wake is called.
	wait(timeout int64)
	// wake ends a wait. Any goroutine, under Loop.mu.
	wake()
	// adopt returns a transport for nc and takes over its descriptor, or
	// returns nil if this kind of connection needs goroutines. When it
	// fails, nc is unchanged.
	adopt(c *Conn, nc net.Conn) (transport, error)
	close()
}

// Loop is one event loop. See the package documentation.
type Loop struct {
	// Static after New.
	opts Options
	poll poller
	quit chan struct{} // closed when the loop ends

	// arriving has one element per connection that a goroutine has accepted and that is on its way to the
	// loop: when thousands come at once, acceptors wait, so that a turn does not belong to them alone.
	arriving chan struct{}

	// Loop-owned.
	now       int64 // mono nanoseconds
	conns     []*Conn
	dirty     []*Conn // to flush
	redeliver []*Conn // to call OnData again
	closing   []*Conn // closed, OnClose outstanding
	timers    timerHeap
	batch     []func() // the inbox being run
	shared    []byte   // input of whichever connection is being read
	bufs      bufferList
	stats     Stats
	readsSeen uint64 // stats.Reads at the end of the last turn
	stopping  bool

	// Atomic. posted is set before the bell is rung, asleep is set before
	// posted is looked at for the last time: one side always sees the other.
	posted atomic.Bool // inbox or stop changed since the loop last looked
	asleep atomic.Bool // the loop may be blocked and needs the bell

	// Atomic.
	lingering atomic.Int64 // sockets that outlive their connections, see linger.go

	// Guarded by mu, the only lock here. No other lock is taken under it.
	mu       sync.Mutex
	inbox    []func()
	started  bool
	stop     bool
	finished bool // no function will run any more; poll is closed
}

// New makes a loop. Run starts it; a loop that is never run must be stopped to
// release its descriptors.
func New(opts Options) (*Loop, error) {
	l := &Loop{opts: opts.withDefaults(), now: mono.Now(), quit: make(chan struct{}), arriving: make(chan struct{}, maxArriving)}
	l.shared = make([]byte, l.opts.ReadBuffer)
	poll, err := newPoller(l)
	if err != nil {
		return nil, fmt.Errorf("cannot create event loop: %w", err)
	}
	l.poll = poll
	return l, nil
}

// maxArriving bounds how many connections one turn accepts, or takes over from a goroutine that does.
const maxArriving = 64

// Run turns the loop until Stop. The calling goroutine becomes the loop
// goroutine. A loop runs once; a second call returns at once.
func (l *Loop) Run() {
	l.mu.Lock()
	refused := l.started || l.stop
	l.started = true
	l.mu.Unlock()
	if refused {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for !l.stopping {
		l.poll.wait(l.timeout())
		l.turn()
	}
	l.shutdown()
}

// turn is everything that follows a wait. What the later steps make for the
// earlier ones (an OnClose that marks other connections dirty, say) is left
// for the next turn, which then does not sleep: no step can starve the others.
func (l *Loop) turn() {
	l.runInbox()
	l.runTimers()
	l.runRedeliveries()
	l.runFlushes()
	l.runCloses()
}

// Stop ends the loop: it flushes once, closes all connections with ErrStopped,
// and Run returns. It does not wait for that. Any goroutine; idempotent.
func (l *Loop) Stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stop {
		return
	}
	l.stop = true
	if !l.started {
		close(l.quit)
		l.finished = true
		l.inbox = nil
		l.poll.close()
		return
	}
	l.posted.Store(true)
	l.ringLocked()
}

// Post queues f to run on the loop and reports whether it will. Functions run
// in the order they were posted, also those posted before Run. After
// the loop has stopped Post returns false and f is dropped. Any goroutine.
func (l *Loop) Post(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.finished {
		return false
	}
	l.inbox = append(l.inbox, f)
	l.posted.Store(true)
	l.ringLocked()
	return true
}

// ringLocked wakes the loop if it may be asleep. Under mu, because shutdown closes the
// bell under mu: a late ring must not write to the number's next owner.
func (l *Loop) ringLocked() {
	if l.asleep.CompareAndSwap(true, false) {
		l.poll.wake()
	}
}

// Now returns the loop's clock in [mono] nanoseconds. It is read after every
// wait and again after every recv, so a decision about bytes just received is
// never taken with a clock older than they are. Loop goroutine only.
func (l *Loop) Now() int64 { return l.now }

// Stats returns a copy of the counters. Loop goroutine only; others Post.
func (l *Loop) Stats() Stats {
	s := l.stats
	s.Conns = len(l.conns)
	return s
}

// Attach puts nc on the loop and takes it over: the caller must not use nc
// again, and when Attach fails nc is closed. The first callback comes in a
// later turn, so h may be completed after Attach returned. Loop goroutine only.
func (l *Loop) Attach(nc net.Conn, h Handler) (*Conn, error) {
	c := &Conn{loop: l, h: h, remote: addrText(nc.RemoteAddr()), local: addrText(nc.LocalAddr())}
	if err := l.attach(c, nc); err != nil {
		nc.Close()
		return nil, fmt.Errorf("cannot attach connection to %q: %w", c.remote, err)
	}
	return c, nil
}

func (l *Loop) attach(c *Conn, nc net.Conn) error {
	if l.stopping {
		return ErrStopped
	}
	t, err := l.poll.adopt(c, nc)
	if err != nil {
		return err
	}
	if t == nil {
		t = newStream(c, nc)
	}
	l.register(c, t)
	return nil
}

// register makes c one of the loop's connections.
func (l *Loop) register(c *Conn, t transport) {
	c.t = t
	c.pos = len(l.conns)
	l.conns = append(l.conns, c)
	l.stats.Opened++
}

func (l *Loop) unregister(c *Conn) {
	last := len(l.conns) - 1
	l.conns[c.pos] = l.conns[last]
	l.conns[c.pos].pos = c.pos
	l.conns[last] = nil
	l.conns = l.conns[:last]
}

func addrText(a net.Addr) string {
	if a == nil {
		return ""
	}
	return a.String()
}

// timeout is how long the next wait may block, in nanoseconds, -1 without limit.
func (l *Loop) timeout() int64 {
	switch {
	case len(l.dirty)+len(l.redeliver)+len(l.closing) > 0:
		return 0
	case len(l.timers) > 0:
		return max(l.timers[0].when-l.now, 0)
	}
	return -1
}

// runInbox runs what was posted before it began.
func (l *Loop) runInbox() {
	if !l.posted.Load() {
		return
	}
	l.mu.Lock()
	l.posted.Store(false)
	l.batch, l.inbox = l.inbox, l.batch[:0]
	l.stopping = l.stop
	l.mu.Unlock()
	l.runBatch()
}

func (l *Loop) runBatch() {
	for i, f := range l.batch {
		l.batch[i] = nil
		l.stats.Posts++
		l.call("posted function", f)
	}
	if cap(l.batch) > maxIdleInbox {
		l.batch = nil
	}
}

// maxIdleInbox is the inbox capacity kept after a burst.
const maxIdleInbox = 4096

// call runs f so that a panic in it does not end the loop.
func (l *Loop) call(what string, f func()) {
	defer func() {
		if v := recover(); v != nil {
			l.panicked(what, v)
		}
	}()
	f()
}

func (l *Loop) panicked(what string, v any) {
	l.stats.Panics++
	l.opts.Logger.Error("panic in event loop callback", "callback", what, "panic", v, "stack", string(debug.Stack()))
	if l.opts.OnPanic != nil {
		l.opts.OnPanic(what, v)
	}
}

func (l *Loop) runRedeliveries() {
	n := len(l.redeliver)
	if n == 0 {
		return
	}
	for i := range n {
		c := l.redeliver[i]
		c.redelivering = false
		c.deliverAgain()
	}
	l.redeliver = dropFront(l.redeliver, n)
}

// runFlushes sends what was marked Dirty. Output that more is about to be appended to may stay
// for a few turns, see Conn.Expect, but only while the loop is busy: a turn in which nothing
// was read sends everything, and no loop sleeps before that.
func (l *Loop) runFlushes() {
	n := len(l.dirty)
	busy := l.stats.Reads != l.readsSeen
	l.readsSeen = l.stats.Reads
	if n == 0 {
		return
	}
	kept := 0
	for i := range n {
		c := l.dirty[i]
		if busy && c.awaitsMore() {
			l.dirty[kept] = c
			kept++
			continue
		}
		c.dirty, c.waited = false, 0
		c.flush()
	}
	rest := copy(l.dirty[kept:], l.dirty[n:])
	clear(l.dirty[kept+rest:])
	l.dirty = l.dirty[:kept+rest]
}

// runCloses delivers the outstanding OnClose callbacks, including those that
// they cause themselves. A connection is here once, so it ends.
func (l *Loop) runCloses() {
	if len(l.closing) == 0 {
		return
	}
	for i := 0; i < len(l.closing); i++ {
		c := l.closing[i]
		l.unregister(c)
		c.callOnClose()
		c.releaseBuffers()
	}
	l.closing = dropFront(l.closing, len(l.closing))
}

// dropFront removes the first n connections and forgets them, so that the list
// keeps no closed connection alive.
func dropFront(list []*Conn, n int) []*Conn {
	rest := copy(list, list[n:])
	clear(list[rest:])
	return list[:rest]
}

// shutdown closes everything. Functions posted before it declares the loop
// finished still run, so that a true from Post is a promise.
func (l *Loop) shutdown() {
	l.readsSeen = l.stats.Reads // nothing is waited for any more
	l.runFlushes()
	for _, c := range l.conns {
		c.fail(ErrStopped)
	}
	l.runCloses()
	close(l.quit)

	l.mu.Lock()
	l.finished = true
	l.batch, l.inbox = l.inbox, nil
	l.poll.close()
	l.mu.Unlock()

	l.runBatch()
	l.runCloses()
}
