package netloop

import "fmt"

// Handler receives the events of one connection, all on the loop goroutine.
type Handler interface {
	// OnData is called with all unconsumed input and returns how many bytes
	// of it, from the front, the handler is done with. The rest is
	// presented again together with what arrives next. b is loop memory
	// and dies at return. It is not called while reading is paused.
	OnData(b []byte) (consumed int)

	// OnFlushed tells that the peer caught up: a flush emptied the output
	// after an earlier one could not, or took it from above the low-water
	// mark to it or below. It is a hint to look at Buffered again.
	OnFlushed()

	// OnEOF tells that the peer has shut down its sending side. No new
	// input follows, but input still unconsumed can be redelivered, and the
	// connection stays writable until it is closed. The loop does
	// nothing by itself.
	OnEOF()

	// OnClose is called exactly once, as the last callback, at the end of
	// the turn in which the connection closed; Unsent is still valid in
	// it. err is nil after Close and CloseAfterFlush.
	OnClose(err error)
}

// HangupHandler is a Handler that also wants to know, while reading is paused, that the peer
// has shut down its sending side. Input that was sent before is still unread then, and OnEOF
// follows when it has been read. The goroutine transport cannot tell.
type HangupHandler interface{ OnHangup() }

// ignore is the handler of a connection that has none yet.
type ignore struct{}

func (ignore) OnData([]byte) int { return 0 }
func (ignore) OnFlushed()        {}
func (ignore) OnEOF()            {}
func (ignore) OnClose(error)     {}

// transport moves the bytes of one Conn. All methods run on the loop.
type transport interface {
	// flush offers unsent output to the peer and calls Conn.flushed when
	// some of it was taken.
	flush()
	// resume makes input flow again after Conn.acceptsInput turned true.
	resume()
	// linger ends the output, then drops what the peer still sends until it has closed,
	// too, and releases the connection, within the loop's bounds. False: that cannot be
	// done, and nothing has happened but that input which has arrived is dropped.
	linger() bool
	// close releases the connection; nothing is sent or read afterwards.
	close()
}

// Conn is one connection on a loop. It belongs to the loop's goroutine.
type Conn struct {
	// Out is the output: append to it, preferably to what Reserve
	// returns, and call Dirty. It may be cut back to a length it had
	// earlier in the same callback, to take back what was just appended.
	// It may become shorter between callbacks, when bytes have been sent.
	Out []byte

	// Static after Attach.
	loop          *Loop
	t             transport
	remote, local string

	// Loop-owned.
	h        Handler
	pos      int    // place in loop.conns
	in       []byte // unconsumed input, a window of inBuf
	inBuf    []byte // buffer behind in, nil when there is none
	usual    int    // how much output there was last time, so that the buffer need not grow
	outOff   int    // Out[:outOff] has been accepted by the kernel
	handed   int    // Out[outOff:outOff+handed] is with the writer goroutine
	lowWater int
	sent     uint64
	sentAt   int64 // mono
	received uint64
	err      error // why it closed
	broken   error // sending failed; input may still hold the peer's last words
	deadline *Timer
	left     int // bytes that were unsent when the deadline was set

	dirty        bool  // on loop.dirty
	expecting    bool  // see Expect
	waited       uint8 // turns that the output has waited for more
	redelivering bool  // on loop.redeliver
	paused       bool
	eof          bool
	draining     bool // CloseAfterFlush was called
	closed       bool
	lagging      bool // the last flush left something
	above        bool // the last flush left more than lowWater
}

// Loop returns the loop the connection lives on.
func (c *Conn) Loop() *Loop { return c.loop }

// RemoteAddr returns the peer's address: "host:port" or a socket path.
func (c *Conn) RemoteAddr() string { return c.remote }

// LocalAddr returns this side's address: "host:port" or a socket path.
func (c *Conn) LocalAddr() string { return c.local }

// SetHandler replaces the handler. Unconsumed input stays; call Redeliver to
// have the new handler see it before more arrives.
func (c *Conn) SetHandler(h Handler) { c.h = h }

// Closed reports whether the connection is closed, even before OnClose was called.
func (c *Conn) Closed() bool { return c.closed }

// Sent returns how many bytes of output the kernel has accepted so far. On the
// goroutine transport bytes count when the writer goroutine gets them.
func (c *Conn) Sent() uint64 { return c.sent }

// LastSent returns when Sent last grew (mono); 0: it never has. It is the loop's clock of that turn.
func (c *Conn) LastSent() int64 { return c.sentAt }

// took notes that the kernel, or the writer goroutine, has n bytes of output more.
func (c *Conn) took(n int) {
	c.sent += uint64(n)
	c.sentAt = c.loop.now
}

// Received returns how many bytes of input have been read so far.
func (c *Conn) Received() uint64 { return c.received }

// Buffered returns the bytes of output that the kernel has not accepted yet,
// including those a writer goroutine holds.
func (c *Conn) Buffered() int { return len(c.Out) - c.outOff }

// Unconsumed returns how many bytes of input are kept because OnData did not
// consume them.
func (c *Conn) Unconsumed() int { return len(c.in) }

// Unsent returns the output that certainly was not sent: the last
// len(Unsent()) bytes of everything appended. It is valid until the next callback.
func (c *Conn) Unsent() []byte { return c.Out[c.outOff+c.handed:] }

// Reserve returns Out with room for n more bytes, which it takes from the loop's
// buffers: appending that much allocates nothing in steady state.
func (c *Conn) Reserve(n int) []byte {
	if cap(c.Out)-len(c.Out) >= n {
		return c.Out
	}
	if c.Out == nil { // appending to it would be correct, but allocate
		c.Out = c.loop.bufs.get(max(n, c.usual))
		return c.Out
	}
	old := c.Out
	c.Out = append(c.loop.bufs.get(max(2*cap(old), len(old)+n)), old...)
	if c.handed == 0 { // otherwise a writer goroutine still reads it
		c.loop.bufs.put(old)
	}
	return c.Out
}

// Dirty has the output flushed at the end of this turn. It is cheap to call
// after every append.
func (c *Conn) Dirty() {
	if c.dirty || c.closed {
		return
	}
	c.dirty = true
	c.loop.dirty = append(c.loop.dirty, c)
}

// Expect tells whether more output is about to follow what there is. While it is, and the loop
// has more to read, up to maxWait turns may pass before the output is sent, so that one
// system call takes what would have been several.
func (c *Conn) Expect(more bool) { c.expecting = more }

const (
	maxWait     = 3
	maxExpected = smallBuffer // larger output is sent: it is worth a system call of its own
)

// awaitsMore reports whether the output is not to be sent in this turn.
func (c *Conn) awaitsMore() bool {
	if !c.expecting || c.waited >= maxWait || c.draining || c.closed || c.Buffered() > maxExpected {
		return false
	}
	c.waited++
	return true
}

// Flush sends the output now, not at the end of the turn. It is worth calling when nothing
// more will be appended in this turn: the bytes are still in the processor's caches, and the
// buffer is free for the next connection. Call it last in a callback.
func (c *Conn) Flush() {
	if c.Buffered() > 0 {
		c.flush()
	}
}

// SetLowWater asks for OnFlushed also when a flush takes the output from more
// than n bytes to n or fewer. 0, the default, turns it off.
func (c *Conn) SetLowWater(n int) { c.lowWater = n }

// PauseRead stops OnData and, once what has arrived already fills the kernel's
// buffers, the peer. A reset is still noticed. Idempotent.
func (c *Conn) PauseRead() {
	c.paused = true
	if c.broken != nil {
		c.fail(c.broken)
	}
}

// ResumeRead undoes PauseRead. In this turn the unconsumed input is delivered
// again, then reading goes on. Idempotent.
func (c *Conn) ResumeRead() {
	if !c.paused {
		return
	}
	c.paused = false
	c.Redeliver()
}

// ReadPaused reports whether reading is paused.
func (c *Conn) ReadPaused() bool { return c.paused }

// Redeliver has OnData called with the unconsumed input, if there is any, in
// this turn, for handlers that stopped consuming for a reason of their own. Called while input is
// redelivered, it means the next turn: so a handler shares the loop that has much to
// consume. Nothing is read until then.
func (c *Conn) Redeliver() {
	if c.redelivering || c.closed {
		return
	}
	c.redelivering = true
	c.loop.redeliver = append(c.loop.redeliver, c)
}

// Close closes the connection at once and drops unsent output. OnClose(nil) follows.
func (c *Conn) Close() { c.fail(nil) }

// CloseAfterFlush stops reading, sends what is buffered and then closes the
// connection, or closes it with ErrFlushTimeout if the peer takes nothing for FlushTimeout. The peer may be
// sending meanwhile, and gets what was buffered all the same, see linger.go.
func (c *Conn) CloseAfterFlush() {
	if c.closed || c.draining {
		return
	}
	c.draining = true
	switch {
	case c.broken != nil:
		c.fail(c.broken)
		return
	case c.eof && c.Buffered() == 0: // nothing to send, nobody to linger for
		c.fail(nil)
		return
	}
	c.left = c.Buffered()
	c.deadline = c.loop.AfterFunc(c.loop.opts.FlushTimeout, c.lookForProgress)
	c.Dirty()
}

// lookForProgress gives a peer more time that has taken something since the deadline was set. What
// counts is that, not the clock: a long turn takes the peer's time, too.
func (c *Conn) lookForProgress() {
	if c.Buffered() >= c.left {
		c.fail(ErrFlushTimeout)
		return
	}
	c.left = c.Buffered()
	c.deadline.Reset(c.loop.opts.FlushTimeout)
}

// fail closes the connection because of err. Only the first call counts.
func (c *Conn) fail(err error) {
	if c.closed {
		return
	}
	c.t.close()
	c.end(err)
}

// end has OnClose called; the transport has let go of the connection.
func (c *Conn) end(err error) {
	c.closed = true
	c.err = err
	if c.deadline != nil {
		c.deadline.Stop()
	}
	c.loop.closing = append(c.loop.closing, c)
}

// acceptsInput reports whether OnData may be called with new input.
func (c *Conn) acceptsInput() bool { return !c.paused && !c.eof && !c.draining && !c.closed }

// Input.

// room returns free space behind the unconsumed input, at least n bytes. The
// buffer grows geometrically, so gathering a large request copies each byte a
// bounded number of times.
func (c *Conn) room(n int) []byte {
	if cap(c.in)-len(c.in) >= n {
		return c.in[len(c.in):cap(c.in)]
	}
	if cap(c.inBuf)-len(c.in) < max(n, len(c.in)) {
		old := c.inBuf
		c.inBuf = c.loop.bufs.get(len(c.in) + max(n, len(c.in)))
		c.in = append(c.inBuf, c.in...)
		c.loop.bufs.put(old)
		return c.in[len(c.in):cap(c.in)]
	}
	c.in = append(c.inBuf[:0], c.in...)
	return c.in[len(c.in):cap(c.in)]
}

// receive notes n bytes of input. The clock is read here: see Loop.Now.
func (c *Conn) receive(n int, now int64) {
	c.received += uint64(n)
	c.loop.stats.Reads++
	c.loop.stats.BytesIn += uint64(n)
	c.loop.now = now
}

// deliverForeign calls OnData with b, which is all unconsumed input but lies in
// memory that is not the connection's own, and keeps what is left.
func (c *Conn) deliverForeign(b []byte) {
	n := c.callOnData(b)
	if c.closed {
		return
	}
	rest := b[n:]
	if len(rest) == 0 {
		c.releaseInput()
		return
	}
	if cap(c.inBuf) < len(rest) {
		c.loop.bufs.put(c.inBuf)
		c.inBuf = c.loop.bufs.get(len(rest))
	}
	c.in = append(c.inBuf[:0], rest...)
}

// deliverOwn calls OnData with the unconsumed input as it lies in inBuf.
func (c *Conn) deliverOwn() {
	n := c.callOnData(c.in)
	if c.closed {
		return
	}
	c.in = c.in[n:]
	switch {
	case len(c.in) == 0:
		c.releaseInput()
	case len(c.in) <= smallBuffer && cap(c.inBuf) > 2*largeBuffer:
		// A big request is done; the next one's start does not need
		// its buffer.
		c.inBuf = c.loop.bufs.get(smallBuffer)
		c.in = append(c.inBuf, c.in...)
	}
}

func (c *Conn) deliverAgain() {
	if c.closed || c.paused || c.draining {
		return
	}
	if len(c.in) > 0 {
		c.deliverOwn()
	}
	if c.acceptsInput() {
		c.t.resume()
	}
}

func (c *Conn) gotEOF() {
	c.eof = true
	c.callOnEOF()
	if c.broken != nil {
		c.fail(c.broken)
	}
}

func (c *Conn) releaseInput() {
	if c.inBuf == nil {
		return
	}
	c.loop.bufs.put(c.inBuf)
	c.in, c.inBuf = nil, nil
}

// Output.

// maxCompact is the buffer size above which a mostly sent output moves to a
// smaller buffer.
const maxCompact = 2 * largeBuffer

func (c *Conn) flush() {
	switch {
	case c.closed || c.broken != nil:
	case c.Buffered() > 0:
		c.t.flush()
	case c.draining:
		c.finish()
	default:
		c.releaseOutput()
	}
}

// flushed notes that the kernel accepted n bytes of the output.
func (c *Conn) flushed(n int) {
	before := c.Buffered()
	c.outOff += n
	c.loop.stats.BytesOut += uint64(n)
	rest := c.Buffered()
	if rest == 0 {
		c.releaseOutput()
	} else {
		c.compact()
	}

	caughtUp := rest == 0 && c.lagging
	if c.lowWater > 0 && rest <= c.lowWater {
		caughtUp = caughtUp || c.above || before > c.lowWater
	}
	c.lagging = rest > 0
	c.above = rest > c.lowWater
	switch {
	case c.draining:
		if rest == 0 {
			c.finish()
		}
	case caughtUp:
		c.callOnFlushed()
	}
}

// compact moves the unsent output to the front once more than half of Out has
// been sent, so that each byte moves at most once on average, and to a smaller
// buffer when there is little left of a large one. No writer holds a window now.
func (c *Conn) compact() {
	rest := c.Out[c.outOff:]
	if c.outOff < len(rest) {
		return
	}
	dst := c.Out[:0]
	if cap(c.Out) > maxCompact && len(rest) < cap(c.Out)/4 {
		dst = c.loop.bufs.get(2 * len(rest))
	}
	c.Out = append(dst, rest...)
	c.outOff = 0
}

// writeFailed notes that nothing can be sent any more. If input may still hold the
// peer's last words (an error reply before it closed, answers to what was
// sent), they are read first; the reading side then finds the end and closes.
func (c *Conn) writeFailed(err error) {
	if c.acceptsInput() {
		c.broken = err
		return
	}
	c.fail(err)
}

// finish closes a drained connection. To its handler it is closed; the socket may linger.
func (c *Conn) finish() {
	if !c.eof && c.t.linger() {
		c.end(nil)
		return
	}
	c.fail(nil)
}

func (c *Conn) releaseOutput() {
	if c.Out == nil {
		return
	}
	c.usual = min(len(c.Out), largeBuffer)
	c.loop.bufs.put(c.Out)
	c.Out, c.outOff = nil, 0
}

// releaseBuffers ends a closed connection. A window that a writer goroutine
// still holds is left to the garbage collector.
func (c *Conn) releaseBuffers() {
	c.releaseInput()
	if c.handed == 0 {
		c.releaseOutput()
	}
	c.Out, c.outOff, c.handed = nil, 0, 0
	c.h = ignore{}
}

// Callbacks. Each recovers a panic, which costs its own connection only.

func (c *Conn) callOnData(b []byte) (consumed int) {
	defer c.guard("OnData")
	n := c.h.OnData(b)
	if n < 0 || n > len(b) {
		panic(fmt.Sprintf("BUG: OnData consumed %d of %d bytes", n, len(b)))
	}
	return n
}

func (c *Conn) callOnFlushed() {
	defer c.guard("OnFlushed")
	c.h.OnFlushed()
}

func (c *Conn) callOnEOF() {
	defer c.guard("OnEOF")
	c.h.OnEOF()
}

func (c *Conn) callOnHangup() {
	defer c.guard("OnHangup")
	if h, ok := c.h.(HangupHandler); ok {
		h.OnHangup()
	}
}

func (c *Conn) callOnClose() {
	defer c.guard("OnClose")
	c.h.OnClose(c.err)
}

func (c *Conn) guard(callback string) {
	if v := recover(); v != nil {
		c.loop.panicked(callback, v)
		c.fail(&PanicError{Callback: callback, Value: v})
	}
}
