package netloop

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// patience is how long a test waits for what must happen. It is only ever used
// up by a failing test.
const patience = 20 * time.Second

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// transports runs a behaviour on both transports; they must not differ.
func transports(t *testing.T, f func(t *testing.T, e *env)) {
	for _, tr := range []Transport{DefaultTransport, Goroutine} {
		name := tr.String()
		t.Run(name, func(t *testing.T) { f(t, newEnv(t, Options{Transport: tr})) })
	}
}

// env is a running loop with a listener on it.
type env struct {
	t    *testing.T
	loop *Loop
	ln   *Listener
	done chan struct{} // closed when Run has returned
	// makes the handler of the clients to come; a client may still be on its
	// way through the acceptor when the next test step replaces it
	newHandler atomic.Pointer[func(*Conn) Handler]
}

// accept sets how the handlers of future clients are made.
func (e *env) accept(build func(*Conn) Handler) { e.newHandler.Store(&build) }

func newEnv(t *testing.T, opts Options) *env {
	t.Helper()
	return newEnvOn(t, opts, "127.0.0.1:0")
}

func newEnvOn(t *testing.T, opts Options, addr string) *env {
	t.Helper()
	opts.Logger = quiet()
	l, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := Listen(addr, ListenOptions{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	e := &env{t: t, loop: l, ln: ln, done: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() { ln.ServeOn(l, func() Place { return Place{Loop: l, Welcome: *e.newHandler.Load()} }) })
	wg.Go(func() { l.Run(); close(e.done) })
	t.Cleanup(func() {
		ln.Close()
		l.Stop()
		wg.Wait()
	})
	return e
}

// dial connects a client.
func (e *env) dial() net.Conn {
	e.t.Helper()
	network, addr := "tcp", e.ln.Addr()
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		network, addr = "unix", path
	}
	nc, err := net.Dial(network, addr)
	if err != nil {
		e.t.Fatal(err)
	}
	nc.SetDeadline(time.Now().Add(patience))
	e.t.Cleanup(func() { nc.Close() })
	return nc
}

// serve connects a client whose handler make builds, and returns both ends.
func (e *env) serve(build func(c *Conn) Handler) (net.Conn, *Conn) {
	e.t.Helper()
	got := make(chan *Conn, 1)
	e.accept(func(c *Conn) Handler {
		h := build(c)
		got <- c
		return h
	})
	nc := e.dial()
	return nc, recvFrom(e.t, got)
}

// do runs f on the loop and waits for it.
func (e *env) do(f func()) {
	e.t.Helper()
	done := make(chan struct{})
	if !e.loop.Post(func() { defer close(done); f() }) {
		e.t.Fatal("Post refused by a running loop")
	}
	recvFrom(e.t, done)
}

// until waits until cond, evaluated on the loop, is true.
func (e *env) until(what string, cond func() bool) {
	e.t.Helper()
	eventually(e.t, what, func() bool {
		ok := false
		e.do(func() { ok = cond() })
		return ok
	})
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

func recvFrom[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

// script is a handler made of functions; nil ones do the obvious.
type script struct {
	data    func(b []byte) int
	flushed func()
	eof     func()
	close   func(err error)
}

func (s *script) OnData(b []byte) int {
	if s.data != nil {
		return s.data(b)
	}
	return len(b)
}

func (s *script) OnFlushed() {
	if s.flushed != nil {
		s.flushed()
	}
}

func (s *script) OnEOF() {
	if s.eof != nil {
		s.eof()
	}
}

func (s *script) OnClose(err error) {
	if s.close != nil {
		s.close(err)
	}
}

// reply appends b to the output.
func reply(c *Conn, b []byte) {
	c.Out = append(c.Reserve(1), b...)
	c.Dirty()
}

// echo sends everything back and closes politely at EOF.
func echo(c *Conn) Handler {
	return &script{
		data: func(b []byte) int { reply(c, b); return len(b) },
		eof:  c.CloseAfterFlush,
	}
}

// pattern returns n bytes in which every position is recognisable.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return b
}

func mustRead(t *testing.T, r io.Reader, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(r, got); err != nil {
		t.Fatalf("read %d of %d bytes: %v", n, len(want), err)
	}
	if !bytes.Equal(got, want) {
		t.Fatal("the bytes differ from what was sent")
	}
}

func mustWrite(t *testing.T, w io.Writer, b []byte) {
	t.Helper()
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
}

func mustEnd(t *testing.T, r io.Reader) {
	t.Helper()
	if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
		t.Fatalf("got %d more bytes and %v, want a clean end", len(rest), err)
	}
}

func TestEcho(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		nc, c := e.serve(echo)
		for _, n := range []int{1, 64, smallBuffer, largeBuffer + 1, 300_000} {
			b := pattern(n)
			go nc.Write(b)
			mustRead(t, nc, b)
		}
		// A writer goroutine reports only after the peer may have read.
		e.until("everything is out", func() bool { return c.Buffered() == 0 })
		e.do(func() {
			if c.Sent() != c.Received() || len(c.Unsent()) != 0 {
				t.Errorf("sent %d, received %d, unsent %d", c.Sent(), c.Received(), len(c.Unsent()))
			}
			if c.Out != nil || c.inBuf != nil {
				t.Error("an idle connection holds buffers")
			}
		})
		if c.RemoteAddr() != nc.LocalAddr().String() || c.LocalAddr() != nc.RemoteAddr().String() {
			t.Errorf("addresses %q, %q", c.RemoteAddr(), c.LocalAddr())
		}
	})
}

// Requests of every size class arrive whole and in order, however recv cuts them.
func TestUnconsumedInputIsPresentedAgain(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		sizes := []int{3, 100, smallBuffer - 1, 40, 3 * smallBuffer, 2*largeBuffer + 7, 1, 5_000_000, 12}
		var want [][]byte
		var stream []byte
		for range 3 {
			for _, n := range sizes {
				want = append(want, pattern(n))
				stream = append(stream, pattern(n)...)
			}
		}
		got := make(chan struct{})
		nc, _ := e.serve(func(c *Conn) Handler {
			next := 0
			return &script{data: func(b []byte) int {
				used := 0
				for next < len(want) && len(b)-used >= len(want[next]) {
					n := len(want[next])
					if !bytes.Equal(b[used:used+n], want[next]) {
						t.Errorf("request %d of %d bytes is damaged", next, n)
					}
					used += n
					if next++; next == len(want) {
						close(got)
					}
				}
				return used
			}}
		})
		mustWrite(t, nc, stream)
		recvFrom(t, got)
	})
}

func TestSlowPeerGetsEverythingAndOnFlushedFollows(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		const total = 16 << 20
		caughtUp, low := make(chan struct{}), make(chan struct{})
		var once, lowOnce sync.Once
		nc, c := e.serve(func(c *Conn) Handler {
			c.SetLowWater(1 << 20)
			return &script{flushed: func() {
				if c.Buffered() <= 1<<20 {
					lowOnce.Do(func() { close(low) })
				}
				if c.Buffered() == 0 {
					once.Do(func() { close(caughtUp) })
				}
			}}
		})
		data := pattern(total)
		e.do(func() { reply(c, data[:total/2]) })
		e.until("the first flush", func() bool { return c.Sent() > 0 })
		e.do(func() {
			if c.Buffered() == 0 {
				t.Error("the kernel took 8 MB from a peer that reads nothing")
			}
			reply(c, data[total/2:])
			if int(c.Sent())+len(c.Unsent()) != total {
				t.Errorf("%d sent and %d unsent are not %d", c.Sent(), len(c.Unsent()), total)
			}
			if !bytes.Equal(c.Unsent(), data[c.Sent():]) {
				t.Error("Unsent is not the tail of the output")
			}
		})
		mustRead(t, nc, data)
		recvFrom(t, low)
		recvFrom(t, caughtUp)
		e.do(func() {
			if c.Out != nil {
				t.Error("the output buffer was kept")
			}
		})
	})
}

// A handler that stops producing because Buffered is above the mark must hear of
// the flush that changes this, even if that flush took everything at once.
func TestLowWaterCrossedWithinOneFlush(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		flushed := make(chan int, 1)
		nc, c := e.serve(func(c *Conn) Handler {
			return &script{flushed: func() { flushed <- c.Buffered() }}
		})
		e.do(func() { c.SetLowWater(10); reply(c, pattern(1000)) })
		mustRead(t, nc, pattern(1000))
		if n := recvFrom(t, flushed); n > 10 {
			t.Errorf("OnFlushed with %d bytes buffered", n)
		}
		e.do(func() { reply(c, pattern(5)) })
		mustRead(t, nc, pattern(5))
		e.do(func() {})
		select {
		case <-flushed:
			t.Error("OnFlushed without a crossing")
		default:
		}
	})
}

// Output that more is about to follow waits while the loop reads, but not for long, and not at
// all when it has nothing to read, or when there is much of it.
func TestExpectedOutputWaitsWhileTheLoopIsBusy(t *testing.T) {
	for _, tt := range []struct {
		name   string
		size   int
		busy   bool
		expect bool
		turns  int // that it stays
	}{
		{"busy", 10, true, true, maxWait},
		{"idle", 10, false, true, 0},
		{"nothing expected", 10, true, false, 0},
		{"large", maxExpected + 1, true, true, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			transports(t, func(t *testing.T, e *env) {
				nc, c := e.serve(func(*Conn) Handler { return &script{} })
				waited := make(chan int, 1)
				turns := -1
				var turn func()
				turn = func() { // once in each turn
					if turns >= 0 && !c.dirty {
						waited <- turns
						return
					}
					turns++
					if tt.busy {
						e.loop.stats.Reads++
					}
					e.loop.Post(turn)
				}
				e.do(func() {
					c.Expect(tt.expect)
					reply(c, pattern(tt.size))
					turn()
				})
				if got := recvFrom(t, waited); got != tt.turns {
					t.Errorf("the output stayed for %d turns, want %d", got, tt.turns)
				}
				mustRead(t, nc, pattern(tt.size))
			})
		})
	}
}

func TestPauseStopsDeliveryAndResumeLosesNothing(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		const total = 32 << 20
		data := pattern(total)
		var seen []byte
		all := make(chan struct{})
		nc, c := e.serve(func(c *Conn) Handler {
			return &script{data: func(b []byte) int {
				if c.ReadPaused() {
					t.Error("OnData while paused")
				}
				if len(seen) == 0 {
					// Stop in the middle, with input left over.
					seen = append(seen, b[:1]...)
					c.PauseRead()
					return 1
				}
				seen = append(seen, b...)
				if len(seen) == total {
					close(all)
				}
				return len(b)
			}}
		})
		var written atomic.Int64
		go func() {
			for off := 0; off < total; off += 64 << 10 {
				n, err := nc.Write(data[off : off+64<<10])
				written.Add(int64(n))
				if err != nil {
					t.Error(err)
					return
				}
			}
		}()
		e.until("the pause", func() bool { return len(seen) == 1 })
		// The peer is blocked when it has not advanced for many turns.
		last, still := int64(-1), 0
		eventually(t, "the peer blocks", func() bool {
			if n := written.Load(); n == last {
				still++
			} else {
				last, still = n, 0
			}
			return still > 100
		})
		if last >= total {
			t.Fatal("the peer could send everything to a paused connection")
		}
		e.do(func() {
			if len(seen) != 1 {
				t.Errorf("%d bytes were delivered", len(seen))
			}
			if c.Received() > largeBuffer {
				t.Errorf("%d bytes were read into memory", c.Received())
			}
			c.ResumeRead()
			if len(seen) != 1 {
				t.Error("ResumeRead called OnData itself")
			}
		})
		recvFrom(t, all)
		if !bytes.Equal(seen, data) {
			t.Error("the input was damaged")
		}
	})
}

// A paused loop must sleep, not spin on an event it cannot serve.
func TestPausedConnectionDoesNotSpin(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		nc, c := e.serve(func(c *Conn) Handler { c.PauseRead(); return &script{} })
		mustWrite(t, nc, pattern(100_000))
		nc.(*net.TCPConn).CloseWrite()
		var before, after Stats
		settle := func() {
			for range 50 {
				e.do(func() {})
				runtime.Gosched()
			}
		}
		settle()
		e.do(func() { before = e.loop.Stats() })
		settle()
		e.do(func() { after = e.loop.Stats() })
		// Each do is one wake-up, two at most.
		if turns := after.Waits - before.Waits; turns > 200 {
			t.Errorf("%d turns for 51 posts", turns)
		}
		e.do(func() {
			if c.Received() > 2*chunkSize {
				t.Errorf("received %d bytes while paused", c.Received())
			}
		})
	})
}

func TestRedeliver(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		var calls []string
		stalled := true
		nc, c := e.serve(func(c *Conn) Handler {
			return &script{data: func(b []byte) int {
				calls = append(calls, string(b))
				if stalled {
					return 0
				}
				return len(b)
			}}
		})
		mustWrite(t, nc, []byte("abc"))
		e.until("first delivery", func() bool { return slices.Contains(calls, "abc") })
		nc.(*net.TCPConn).CloseWrite()
		e.until("EOF", func() bool { return c.eof })
		e.do(func() {
			calls, stalled = nil, false
			c.Redeliver()
			c.Redeliver()
		})
		e.do(func() {
			if !slices.Equal(calls, []string{"abc"}) {
				t.Errorf("redelivered %q", calls)
			}
			calls = nil
			c.Redeliver()
		})
		e.do(func() {
			if len(calls) > 0 {
				t.Errorf("delivered %q although all was consumed", calls)
			}
		})
	})
}

func TestHalfCloseIsAnswered(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		closed := make(chan error, 1)
		nc, _ := e.serve(func(c *Conn) Handler {
			var kept []byte
			return &script{
				data:  func(b []byte) int { kept = append(kept, b...); return len(b) },
				eof:   func() { reply(c, kept); c.CloseAfterFlush() },
				close: func(err error) { closed <- err },
			}
		})
		b := pattern(1 << 20)
		mustWrite(t, nc, b)
		nc.(*net.TCPConn).CloseWrite()
		mustRead(t, nc, b)
		mustEnd(t, nc)
		if err := recvFrom(t, closed); err != nil {
			t.Errorf("OnClose(%v)", err)
		}
	})
}

// The last words arrive although the client's own input is still unread.
func TestCloseAfterFlushDeliversWithUnreadInput(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		nc, c := e.serve(func(c *Conn) Handler { c.PauseRead(); return &script{} })
		mustWrite(t, nc, pattern(5000))
		e.do(func() { reply(c, []byte("-ERR bye\r\n")); c.CloseAfterFlush() })
		mustRead(t, nc, []byte("-ERR bye\r\n"))
	})
}

// A peer that reads slowly, but does read, gets everything.
func TestCloseAfterFlushIsPatient(t *testing.T) {
	for _, tr := range []Transport{DefaultTransport, Goroutine} {
		t.Run(tr.String(), func(t *testing.T) {
			t.Parallel()
			const timeout, portions, size = 600 * time.Millisecond, 6, 8 << 20
			e := newEnv(t, Options{Transport: tr, FlushTimeout: timeout})
			nc, c := e.serve(func(c *Conn) Handler { return &script{} })
			b := pattern(portions * size)
			e.do(func() { reply(c, b); c.CloseAfterFlush() })
			for i := range portions {
				mustRead(t, nc, b[i*size:][:size])
				time.Sleep(timeout / 4) // a slow reader
			}
			mustEnd(t, nc)
		})
	}
}

func TestCloseAfterFlushGivesUp(t *testing.T) {
	for _, tr := range []Transport{DefaultTransport, Goroutine} {
		t.Run(tr.String(), func(t *testing.T) {
			e := newEnv(t, Options{Transport: tr, FlushTimeout: 20 * time.Millisecond})
			closed := make(chan error, 1)
			_, c := e.serve(func(c *Conn) Handler {
				return &script{close: func(err error) { closed <- err }}
			})
			e.do(func() { reply(c, pattern(32<<20)); c.CloseAfterFlush() })
			if err := recvFrom(t, closed); err != ErrFlushTimeout {
				t.Errorf("OnClose(%v)", err)
			}
		})
	}
}

func TestCloseComesOnceAndLast(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		var events []string
		note := func(s string) { events = append(events, s) }
		var unsent string
		nc, c := e.serve(func(c *Conn) Handler {
			return &script{
				data: func(b []byte) int {
					reply(c, []byte("never sent"))
					c.Close()
					c.Close()
					note("data")
					return len(b)
				},
				flushed: func() { note("flushed") },
				eof:     func() { note("eof") },
				close: func(err error) {
					unsent = string(c.Unsent())
					c.Close()
					c.CloseAfterFlush()
					c.Dirty()
					c.Redeliver()
					c.ResumeRead()
					note("close")
				},
			}
		})
		mustWrite(t, nc, []byte("x"))
		mustEnd(t, nc)
		e.until("OnClose", func() bool { return slices.Contains(events, "close") })
		e.do(func() { c.PauseRead(); c.ResumeRead(); c.Dirty(); c.Close() })
		e.do(func() {
			if !slices.Equal(events, []string{"data", "close"}) {
				t.Errorf("events %q", events)
			}
			if unsent != "never sent" {
				t.Errorf("Unsent in OnClose is %q", unsent)
			}
			if !c.Closed() || e.loop.Stats().Conns != 0 {
				t.Error("the connection is still there")
			}
		})
	})
}

func reset(t *testing.T, nc net.Conn) {
	t.Helper()
	nc.(*net.TCPConn).SetLinger(0)
	nc.Close()
}

func TestResetIsNoticed(t *testing.T) {
	for _, paused := range []bool{false, true} {
		name := "reading"
		if paused {
			name = "paused"
		}
		t.Run(name, func(t *testing.T) {
			transports(t, func(t *testing.T, e *env) {
				closed := make(chan error, 2)
				nc, _ := e.serve(func(c *Conn) Handler {
					if paused {
						c.PauseRead()
					}
					return &script{close: func(err error) { closed <- err }}
				})
				reset(t, nc)
				if err := recvFrom(t, closed); err == nil {
					t.Error("OnClose without an error")
				}
				e.do(func() {
					if len(closed) > 0 {
						t.Error("OnClose twice")
					}
				})
			})
		})
	}
}

// What a peer said before it went away is read even if writing to it fails first.
func TestLastWordsAreReadAfterWriteError(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		var got []byte
		nc, c := e.serve(func(c *Conn) Handler {
			return &script{data: func(b []byte) int { got = append(got, b...); return len(b) }}
		})
		words := []byte("-ERR max number of clients reached\r\n")
		e.do(func() {
			mustWrite(t, nc, words)
			nc.Close()
			if _, ok := c.t.(*stream); ok {
				return // its reader does not wait for the loop
			}
			// Reading cannot happen before this function returns.
			for deadline := time.Now().Add(patience); c.broken == nil && time.Now().Before(deadline); {
				reply(c, []byte("x"))
				c.flush()
			}
			if c.broken == nil || c.Closed() || c.Received() > 0 {
				t.Errorf("broken %v, closed %v, received %d", c.broken, c.Closed(), c.Received())
			}
		})
		e.until("the close", func() bool {
			reply(c, []byte("x"))
			return c.Closed()
		})
		e.do(func() {
			if !bytes.Equal(got, words) {
				t.Errorf("got %q", got)
			}
		})
	})
}

func TestPanicCostsOneConnection(t *testing.T) {
	for _, where := range []string{"OnData", "OnFlushed", "OnEOF", "OnClose", "consumed too much", "consumed less than nothing"} {
		t.Run(where, func(t *testing.T) {
			transports(t, func(t *testing.T, e *env) {
				other, _ := e.serve(echo)
				closed := make(chan error, 2)
				nc, _ := e.serve(func(c *Conn) Handler {
					s := &script{close: func(err error) { closed <- err }}
					boom := func() { panic("boom") }
					switch where {
					case "OnData":
						s.data = func([]byte) int { panic("boom") }
					case "OnFlushed":
						c.SetLowWater(1)
						s.data = func(b []byte) int { reply(c, pattern(100)); return len(b) }
						s.flushed = boom
					case "OnEOF":
						s.eof = boom
					case "OnClose":
						s.eof = c.Close
						s.close = func(err error) { closed <- &PanicError{}; panic("boom") }
					case "consumed too much":
						s.data = func(b []byte) int { return len(b) + 1 }
					default:
						s.data = func(b []byte) int { return -1 }
					}
					return s
				})
				mustWrite(t, nc, []byte("x"))
				nc.(*net.TCPConn).CloseWrite()
				err := recvFrom(t, closed)
				if pe := (*PanicError)(nil); !errors.As(err, &pe) {
					t.Errorf("OnClose(%v)", err)
				}
				io.Copy(io.Discard, nc)
				mustWrite(t, other, []byte("still here"))
				mustRead(t, other, []byte("still here"))
				e.do(func() {
					if s := e.loop.Stats(); s.Panics != 1 || s.Conns != 1 {
						t.Errorf("%d panics, %d connections", s.Panics, s.Conns)
					}
				})
			})
		})
	}
}

func TestPanicInPostedFunctionAndTimer(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		var caught []string
		e.loop.opts.OnPanic = func(callback string, v any) { caught = append(caught, callback) }
		e.loop.Post(func() { panic("boom") })
		e.do(func() { e.loop.AfterFunc(0, func() { panic("boom") }) })
		e.until("both panics", func() bool { return slices.Equal(caught, []string{"posted function", "timer"}) })
	})
}

// A handler closes all other connections of its batch and takes over their
// descriptor numbers; no event of the old ones may reach the new ones.
func TestClosingOthersOfTheSameBatch(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		const n = 20
		var conns []*Conn
		var stray, delivered int
		clients := make([]net.Conn, n)
		for i := range clients {
			nc, c := e.serve(func(c *Conn) Handler {
				return &script{data: func(b []byte) int {
					delivered++
					for _, o := range conns {
						if o != c {
							o.Close()
						}
					}
					for range n {
						a, b := net.Pipe()
						e.t.Cleanup(func() { b.Close() })
						attachTo(e, a, &script{data: func(b []byte) int { stray++; return len(b) }})
						x, y := socketPair(t)
						e.t.Cleanup(func() { y.Close() })
						attachTo(e, x, &script{data: func(b []byte) int { stray++; return len(b) }, eof: func() { stray++ }})
					}
					return len(b)
				}}
			})
			clients[i] = nc
			e.do(func() { conns = append(conns, c) })
		}
		e.do(func() {
			for _, nc := range clients {
				mustWrite(t, nc, []byte("x"))
			}
		})
		e.until("a delivery", func() bool { return delivered > 0 })
		e.until("closes", func() bool { return e.loop.Stats().Conns == 1+2*n })
		e.do(func() {
			if delivered != 1 || stray != 0 {
				t.Errorf("%d deliveries, %d stray events", delivered, stray)
			}
		})
	})
}

func attachTo(e *env, nc net.Conn, h Handler) *Conn {
	c, err := e.loop.Attach(nc, h)
	if err != nil {
		e.t.Error(err)
	}
	return c
}

// socketPair returns two ends of a TCP connection.
func socketPair(t *testing.T) (net.Conn, net.Conn) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	a, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

// An outbound connection and a pipe live on the loop like accepted clients.
func TestAttach(t *testing.T) {
	kinds := map[string]func(t *testing.T) (net.Conn, net.Conn){
		"tcp":  socketPair,
		"pipe": func(*testing.T) (net.Conn, net.Conn) { return net.Pipe() },
	}
	for name, pair := range kinds {
		t.Run(name, func(t *testing.T) {
			transports(t, func(t *testing.T, e *env) {
				ours, theirs := pair(t)
				defer theirs.Close()
				theirs.SetDeadline(time.Now().Add(patience))
				h := &script{}
				e.do(func() {
					c := attachTo(e, ours, h)
					h.data = func(b []byte) int { reply(c, b); return len(b) }
				})
				go theirs.Write(pattern(100_000))
				mustRead(t, theirs, pattern(100_000))
			})
		})
	}
}

func TestSetHandler(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		got := make(chan string, 1)
		nc, _ := e.serve(func(c *Conn) Handler {
			return &script{data: func(b []byte) int {
				c.SetHandler(&script{data: func(b []byte) int { got <- string(b); return len(b) }})
				c.Redeliver()
				return 1
			}}
		})
		mustWrite(t, nc, []byte("abc"))
		if s := recvFrom(t, got); s != "bc" {
			t.Errorf("the new handler got %q", s)
		}
	})
}

func TestPostIsFIFOUnderContention(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		const posters, each = 8, 25_000
		var next [posters]int
		inversions := 0
		var wg sync.WaitGroup
		for p := range posters {
			wg.Go(func() {
				for i := range each {
					e.loop.Post(func() {
						if next[p] != i {
							inversions++
						}
						next[p] = i + 1
					})
				}
			})
		}
		wg.Wait()
		e.do(func() {
			for p, n := range next {
				if n != each {
					t.Errorf("poster %d: %d of %d ran", p, n, each)
				}
			}
			if inversions > 0 {
				t.Errorf("%d inversions", inversions)
			}
			if cap(e.loop.inbox) > 2*maxIdleInbox && cap(e.loop.batch) > 2*maxIdleInbox {
				t.Error("both inboxes kept their burst size")
			}
		})
	})
}

// Every single post must wake a sleeping loop.
func TestPostWakesTheLoop(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		for range 2000 {
			e.do(func() {})
		}
	})
}

func TestPostBeforeRunAndAfterStop(t *testing.T) {
	for _, tr := range []Transport{DefaultTransport, Goroutine} {
		t.Run(tr.String(), func(t *testing.T) {
			l, err := New(Options{Transport: tr, Logger: quiet()})
			if err != nil {
				t.Fatal(err)
			}
			var ran []int
			for i := range 3 {
				l.Post(func() { ran = append(ran, i) })
			}
			l.Post(l.Stop)
			l.Run()
			if !slices.Equal(ran, []int{0, 1, 2}) {
				t.Errorf("ran %v", ran)
			}
			if l.Post(func() { t.Error("ran after Stop") }) {
				t.Error("Post accepted after Stop")
			}
			l.Stop()
			l.Run()

			l, _ = New(Options{Transport: tr})
			l.Stop()
			if l.Post(func() {}) {
				t.Error("Post accepted by a loop stopped before Run")
			}
			l.Run()
		})
	}
}

// A Post that returned true runs, even when it races with Stop.
func TestAcceptedPostsRunDespiteStop(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		var accepted, ran atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for e.loop.Post(func() { ran.Add(1) }) {
					accepted.Add(1)
				}
			})
		}
		eventually(t, "some posts", func() bool { return ran.Load() > 100 })
		e.loop.Stop()
		wg.Wait()
		recvFrom(t, e.done)
		if accepted.Load() != ran.Load() {
			t.Errorf("%d accepted, %d ran", accepted.Load(), ran.Load())
		}
	})
}

func TestStopClosesConnections(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		const n = 5
		closed := make(chan error, n+1)
		var clients []net.Conn
		var last *Conn
		for range n {
			nc, c := e.serve(func(c *Conn) Handler {
				return &script{close: func(err error) {
					if _, err := e.loop.Attach(lonelyPipe(), &script{}); !errors.Is(err, ErrStopped) {
						t.Errorf("Attach while stopping: %v", err)
					}
					closed <- err
				}}
			})
			clients, last = append(clients, nc), c
		}
		e.loop.Post(func() { reply(last, []byte("goodbye")) })
		e.loop.Stop()
		recvFrom(t, e.done)
		for range n {
			if err := recvFrom(t, closed); err != ErrStopped {
				t.Errorf("OnClose(%v)", err)
			}
		}
		if e.loop.opts.Transport != Goroutine {
			mustRead(t, clients[n-1], []byte("goodbye"))
		}
		for _, nc := range clients {
			io.Copy(io.Discard, nc)
		}
	})
}

// lonelyPipe returns one end of a pipe nobody else holds.
func lonelyPipe() net.Conn {
	a, _ := net.Pipe()
	return a
}

func TestTimers(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		var fired []string
		var stopped, reused *Timer
		done := make(chan struct{})
		e.do(func() {
			l := e.loop
			start := l.Now()
			at := func(name string, d time.Duration) *Timer {
				return l.AfterFunc(d, func() {
					if l.Now()-start < int64(d) {
						t.Errorf("timer %s fired early", name)
					}
					fired = append(fired, name)
				})
			}
			at("c", 30*time.Millisecond)
			at("a", 0)
			stopped = at("never", 5*time.Millisecond)
			at("b", 10*time.Millisecond)
			reused = at("d", 40*time.Millisecond)
			reused.Reset(time.Hour)
			reused.Reset(40 * time.Millisecond)
			l.AfterFunc(60*time.Millisecond, func() { close(done) })
			if !stopped.Stop() || stopped.Stop() {
				t.Error("Stop must report true exactly once")
			}
		})
		recvFrom(t, done)
		e.do(func() {
			if !slices.Equal(fired, []string{"a", "b", "c", "d"}) {
				t.Errorf("fired %q", fired)
			}
			if reused.Stop() {
				t.Error("Stop after firing reports true")
			}
			if len(e.loop.timers) != 0 {
				t.Error("timers are left")
			}
		})
	})
}

// A timer that re-arms itself for at once must not keep the loop from its work.
func TestEagerTimerDoesNotStarveTheLoop(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		nc, _ := e.serve(echo)
		e.do(func() {
			var tm *Timer
			tm = e.loop.AfterFunc(0, func() { tm.Reset(0) })
		})
		mustWrite(t, nc, []byte("x"))
		mustRead(t, nc, []byte("x"))
	})
}

func TestClockIsNotOlderThanTheInput(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		seen := make(chan int64, 1)
		nc, _ := e.serve(func(c *Conn) Handler {
			return &script{data: func(b []byte) int { seen <- c.Loop().Now(); return len(b) }}
		})
		last := int64(0)
		for range 100 {
			mustWrite(t, nc, []byte("x"))
			now := recvFrom(t, seen)
			if now <= last {
				t.Fatal("the clock did not advance between two reads")
			}
			last = now
		}
	})
}

func TestUnixSocket(t *testing.T) {
	for _, tr := range []Transport{DefaultTransport, Goroutine} {
		t.Run(tr.String(), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			e := newEnvOn(t, Options{Transport: tr}, "unix:"+path)
			nc, c := e.serve(echo)
			mustWrite(t, nc, pattern(1000))
			mustRead(t, nc, pattern(1000))
			if c.LocalAddr() != path {
				t.Errorf("local address %q", c.LocalAddr())
			}
			// A Unix peer that is gone is reported by EPOLLHUP alone.
			nc.Close()
			e.until("the close", func() bool { return c.Closed() })
		})
	}
}

func TestChurnLeaksNothing(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		const rounds, width = 50, 20
		closed := 0
		e.accept(func(c *Conn) Handler {
			return &script{
				data:  func(b []byte) int { reply(c, b); return len(b) },
				eof:   c.CloseAfterFlush,
				close: func(error) { closed++ },
			}
		})
		goroutines := runtime.NumGoroutine()
		descriptors := openDescriptors(t)
		for round := range rounds {
			var wg sync.WaitGroup
			for i := range width {
				nc := e.dial()
				wg.Go(func() {
					defer nc.Close()
					nc.Write([]byte("ping"))
					switch (round + i) % 3 {
					case 0:
						io.ReadFull(nc, make([]byte, 4))
					case 1:
						nc.(*net.TCPConn).SetLinger(0)
					}
				})
			}
			wg.Wait()
		}
		e.until("all closes", func() bool { return closed == rounds*width })
		e.do(func() {
			if s := e.loop.Stats(); s.Conns != 0 || s.Opened != rounds*width {
				t.Errorf("%d connections left of %d", s.Conns, s.Opened)
			}
		})
		eventually(t, "goroutines and descriptors are back", func() bool {
			return runtime.NumGoroutine() <= goroutines && openDescriptors(t) <= descriptors
		})
	})
}

func TestEchoAllocatesNothing(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		nc, _ := e.serve(echo)
		msg, buf := pattern(64), make([]byte, 64)
		trip := func() {
			nc.Write(msg)
			if _, err := io.ReadFull(nc, buf); err != nil {
				t.Fatal(err)
			}
		}
		for range 100 {
			trip()
		}
		if n := testing.AllocsPerRun(500, trip); n >= 1 {
			t.Errorf("%v allocations per round trip", n)
		}
	})
}
