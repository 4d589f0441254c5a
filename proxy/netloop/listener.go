package netloop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var (
	// ErrTooManyFiles is given to ListenOptions.Reject when the process or
	// the system is out of file descriptors.
	ErrTooManyFiles = errors.New("too many open files")
	// ErrNoLoop is given to ListenOptions.Reject when no loop took the client.
	ErrNoLoop = errors.New("no event loop took the connection")
)

// acceptPause is the wait after an accept failure that nothing can be done
// about, so that a lasting one does not spin.
const acceptPause = 20 * time.Millisecond

// outageEnd is for how long accepting has to work before it is said to work again.
const outageEnd = time.Second

// ListenOptions configure a listener; the zero value is usable.
type ListenOptions struct {
	// KeepAlive is the idle time after which TCP keepalive probes a client.
	// 0 means 300 s, the default of Redis' tcp-keepalive; negative turns
	// probing off.
	KeepAlive time.Duration
	// UnixMode is the permission of the socket file. 0 leaves it to the umask.
	UnixMode fs.FileMode
	// Wrap, if set, puts a layer such as TLS around every connection, which
	// then uses the goroutine transport. It must not block.
	Wrap func(net.Conn) net.Conn
	// Reject, if set, returns what to tell a client that is turned away
	// because of err. Called by who accepts; the bytes must be
	// few enough to fit an empty send buffer. Not sent when Wrap is set.
	Reject func(err error) []byte
	// Logger receives outages. nil means slog.Default().
	Logger *slog.Logger
}

// ListenerStats counts a listener's work since it was made.
type ListenerStats struct {
	Accepted uint64 // connections handed to a loop
	Rejected uint64 // connections turned away
	Failures uint64 // accept calls that failed
	Outages  uint64 // series of failures, each logged once
}

// Listener accepts connections and deals them out to loops.
type Listener struct {
	// Static.
	opts ListenOptions
	addr string
	acc  *acceptor
	log  *slog.Logger

	// Owned by the goroutine in Serve, or the loop of ServeOn.
	spare    *os.File // a descriptor to give up when there are none left
	outage   bool
	failedAt time.Time // when accept failed last

	// Atomic.
	accepted, rejected, failures, outages atomic.Uint64

	closeOnce sync.Once
	closed    chan struct{}
}

// Listen binds addr: "host:port", or "unix:/path" for a Unix socket. A socket
// file that nobody listens on any more is replaced, any other file is an error.
// SO_REUSEADDR is set; clients that connect wait in the backlog until Serve.
func Listen(addr string, opts ListenOptions) (*Listener, error) {
	if opts.KeepAlive == 0 {
		opts.KeepAlive = 300 * time.Second
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	network, address := "tcp", addr
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		network, address = "unix", path
		if err := removeStale(path); err != nil {
			return nil, fmt.Errorf("cannot listen on %q: %w", addr, err)
		}
	}
	nl, err := bind(network, address, opts)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %q: %w", addr, causeOf(err))
	}
	acc, err := newAcceptor(nl)
	if err != nil {
		nl.Close()
		return nil, fmt.Errorf("cannot listen on %q: %w", addr, err)
	}
	ln := &Listener{
		opts: opts, acc: acc,
		addr:   boundAddr(nl.Addr()),
		log:    opts.Logger.With("listener", addr),
		closed: make(chan struct{}),
	}
	ln.holdSpare()
	return ln, nil
}

func bind(network, address string, opts ListenOptions) (net.Listener, error) {
	lc := net.ListenConfig{
		Control: func(network, _ string, raw syscall.RawConn) error {
			if network == "unix" {
				return nil
			}
			return prepareTCP(raw, opts.KeepAlive)
		},
		KeepAlive: opts.KeepAlive,
	}
	// Multipath TCP is another socket type with a slower path; no Redis
	// client asks for it.
	lc.SetMultipathTCP(false)
	nl, err := lc.Listen(context.Background(), network, address)
	if err != nil {
		return nil, err
	}
	if network == "unix" && opts.UnixMode != 0 {
		if err := os.Chmod(address, opts.UnixMode); err != nil {
			nl.Close()
			return nil, err
		}
	}
	return nl, nil
}

// removeStale makes way for a new socket at path if what is there is a socket
// that its owner left behind.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("a file that is not a socket is in the way")
	}
	nc, err := net.Dial("unix", path)
	if err == nil {
		nc.Close()
		return syscall.EADDRINUSE
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// boundAddr writes an address as Listen takes it.
func boundAddr(a net.Addr) string {
	if a.Network() == "unix" {
		return "unix:" + a.String()
	}
	return a.String()
}

// causeOf strips what the caller's message says itself from an error of bind:
// "listen tcp ADDR: bind: address already in use" names the address again.
func causeOf(err error) error {
	var op *net.OpError
	if !errors.As(err, &op) {
		return err
	}
	var call *os.SyscallError
	if errors.As(op.Err, &call) && (call.Syscall == "bind" || call.Syscall == "listen") {
		return call.Err
	}
	return op.Err
}

// Addr returns the bound address: "host:port" with the real port, or "unix:/path".
func (ln *Listener) Addr() string { return ln.addr }

// Stats returns the counters. Any goroutine.
func (ln *Listener) Stats() ListenerStats {
	return ListenerStats{
		Accepted: ln.accepted.Load(),
		Rejected: ln.rejected.Load(),
		Failures: ln.failures.Load(),
		Outages:  ln.outages.Load(),
	}
}

// Place is where an accepted connection goes.
type Place struct {
	Loop    *Loop               // nil: the client is turned away
	Welcome func(*Conn) Handler // makes the handler, on the loop and with the connection attached; nil closes it
	Lost    func()              // called, on any goroutine, if Welcome never will be; nil: nobody is interested
}

func (p *Place) lost() {
	if p.Lost != nil {
		p.Lost()
	}
}

// Serve accepts until Close, on the calling goroutine. For each connection it
// calls pick, there too, which chooses its place.
//
// Running out of descriptors does not end or spin Serve: clients are then
// accepted on a spare descriptor, told so by Reject and closed, until there
// are descriptors again. Such an outage is logged once.
func (ln *Listener) Serve(pick func() Place) {
	defer ln.dropSpare()
	for {
		a, err := ln.acc.accept()
		switch {
		case ln.isClosed():
			if err == nil {
				a.close()
			}
			return
		case err == nil:
			ln.endOutage()
			ln.place(a, pick(), nil)
		case leftEarly(err):
		case !ln.failed(err):
			select {
			case <-time.After(acceptPause):
			case <-ln.closed:
			}
			ln.holdSpare()
		}
	}
}

// leftEarly: that client left before its turn; the next may not have.
func leftEarly(err error) bool {
	return errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.EINTR)
}

// place gives an accepted connection to the loop that was chosen. on is the loop that has accepted it, nil
// when a goroutine has: that one waits when too many are on their way.
func (ln *Listener) place(a accepted, p Place, on *Loop) {
	loop := p.Loop
	switch {
	case loop == nil:
		ln.reject(a, ErrNoLoop)
		return
	case loop == on:
		ln.accepted.Add(1)
		ln.seat(a, p)
		return
	case on == nil:
		select {
		case loop.arriving <- struct{}{}:
		case <-ln.closed:
			a.close()
			p.lost()
			return
		}
	}
	placed := loop.Post(func() {
		if on == nil {
			<-loop.arriving
		}
		ln.seat(a, p)
	})
	if placed {
		ln.accepted.Add(1)
		return
	}
	if on == nil {
		<-loop.arriving
	}
	p.lost()
	ln.reject(a, ErrNoLoop)
}

// seat puts the connection on its loop, where it is called.
func (ln *Listener) seat(a accepted, p Place) {
	loop := p.Loop
	c, err := a.attach(loop, ln.opts.Wrap)
	if err != nil {
		loop.opts.Logger.Warn("cannot serve client", "err", err)
		p.lost()
		return
	}
	loop.call("new connection", func() {
		if h := p.Welcome(c); h != nil {
			c.SetHandler(h)
		}
	})
	// No handler: it was refused, or making one panicked.
	if c.h == (Handler)(ignore{}) {
		c.Close()
	}
}

func (ln *Listener) reject(a accepted, reason error) {
	ln.rejected.Add(1)
	if ln.opts.Reject != nil && ln.opts.Wrap == nil {
		a.write(ln.opts.Reject(reason))
	}
	a.close()
}

// failed deals with an accept error: it makes room for one client to turn it
// away. False: that is impossible, and nothing can be done but to wait a moment.
func (ln *Listener) failed(err error) bool {
	ln.failures.Add(1)
	ln.failedAt = time.Now()
	if !ln.outage {
		ln.outage = true
		ln.outages.Add(1)
		ln.log.Error("cannot accept clients, turning them away until it works again", "err", err)
	}
	exhausted := errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
	return exhausted && ln.spare != nil && ln.turnAway()
}

// turnAway accepts one client on the spare descriptor. Another goroutine may
// snatch that before accept does, hence the result.
func (ln *Listener) turnAway() bool {
	ln.dropSpare()
	defer ln.holdSpare()
	a, err := ln.acc.tryAccept()
	if err != nil {
		return false
	}
	ln.reject(a, ErrTooManyFiles)
	return true
}

// endOutage notes that a client was accepted. Whenever one leaves another is, so that alone is not the end.
func (ln *Listener) endOutage() {
	if !ln.outage {
		return
	}
	ln.holdSpare()
	if time.Since(ln.failedAt) < outageEnd {
		return
	}
	ln.outage = false
	ln.log.Info("accepting clients again", "rejected", ln.rejected.Load())
}

func (ln *Listener) holdSpare() {
	if ln.spare != nil {
		return
	}
	if f, err := os.Open(os.DevNull); err == nil {
		ln.spare = f
	}
}

func (ln *Listener) dropSpare() {
	if ln.spare != nil {
		ln.spare.Close()
		ln.spare = nil
	}
}

func (ln *Listener) isClosed() bool {
	select {
	case <-ln.closed:
		return true
	default:
		return false
	}
}

// Close stops accepting at once, ends Serve and removes the file of a Unix
// socket. Any goroutine; idempotent.
func (ln *Listener) Close() error {
	var err error
	ln.closeOnce.Do(func() {
		close(ln.closed)
		err = ln.acc.close()
	})
	return err
}
