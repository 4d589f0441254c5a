package pubsub

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"cosky-proxy/nearcache/lease"
)

const (
	defaultMaxStaleness = time.Second

	// maxNamespaces bounds the namespaces covered, and with them the node's subscriptions:
	// clients choose the names.
	maxNamespaces = 1024

	firstBackoff = 50 * time.Millisecond
	lastBackoff  = 5 * time.Second

	// patience is how many times MaxStaleness may pass without a byte from the node before
	// the connection is given up.
	patience = 3
)

// Options configures a Stream.
type Options struct {
	// Addr is the node's address, host:port.
	Addr string

	// User and Password authenticate the connection; no password, no AUTH.
	User, Password string

	// Dial opens the connection. Default: plain TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	// MaxStaleness is how long after a PING was sent its PONG keeps the lease alive. A PING
	// is sent three times as often. Default 1 s.
	MaxStaleness time.Duration

	// OnMessage is called on the stream's goroutine with each message, in order, and
	// returns before any later PONG renews the lease. It must not block; the
	// slices die when it returns.
	OnMessage func(channel, payload []byte)

	// Logger gets connection losses and refused subscriptions. Default: none.
	Logger *slog.Logger
}

// Stream is the Pub/Sub invalidation stream of one node. All methods may be called
// from any goroutine.
type Stream struct {
	// static
	opts Options
	wake chan struct{} // holds a token when wanted has grown or a barrier waits

	// atomic; the maps are immutable, replaced as a whole
	wanted atomic.Pointer[map[string]*namespace]
	leases atomic.Pointer[map[string]*lease.Lease]

	mu sync.Mutex // serialises Cover

	// guarded by linkMu, under which nothing is called
	linkMu sync.Mutex
	link   *link // the present connection; nil: none

	// owned by Run
	fallen *lease.Lease // of the last connection that covered anything
}

// namespace is a set of subscriptions that are confirmed together.
type namespace struct {
	name               string
	channels, patterns []string
}

// New returns a stream that does nothing until Run.
func New(o Options) *Stream {
	if o.MaxStaleness <= 0 {
		o.MaxStaleness = defaultMaxStaleness
	}
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	if o.OnMessage == nil {
		o.OnMessage = func(_, _ []byte) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Stream{opts: o, wake: make(chan struct{}, 1)}
	s.wanted.Store(&map[string]*namespace{})
	s.leases.Store(&map[string]*lease.Lease{})
	return s
}

// Cover asks for the subscriptions of namespace ns and returns at once; LeaseFor tells when they
// are in place. They are renewed on every connection and never given up. A stream that covers
// 1,024 namespaces takes no more.
func (s *Stream) Cover(ns string, channels, patterns []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.wanted.Load()
	if old[ns] != nil || len(old) >= maxNamespaces {
		return
	}
	wanted := maps.Clone(old)
	wanted[ns] = &namespace{ns, channels, patterns}
	s.wanted.Store(&wanted)
	s.rouse()
}

// rouse makes the writer look for something to send.
func (s *Stream) rouse() {
	select {
	case s.wake <- struct{}{}:
	default: // the token is there
	}
}

// Barrier has the node asked a question at once, and calls done when the answer has come: then
// every message that the node sent before it has been handled. done(false) means that the connection
// is lost, and with it the lease of whatever it covered, or that there was none. done is called
// exactly once, on any goroutine, and must not block.
func (s *Stream) Barrier(done func(passed bool)) {
	s.linkMu.Lock()
	l := s.link
	s.linkMu.Unlock()
	if l == nil || !l.await(done) {
		done(false)
		return
	}
	s.rouse()
}

func (s *Stream) linked(l *link) {
	s.linkMu.Lock()
	defer s.linkMu.Unlock()
	s.link = l
}

// Wants reports whether a Cover of ns would have an effect: it was not asked for yet and there
// is room. Like LeaseFor it neither locks nor allocates.
func (s *Stream) Wants(ns []byte) bool {
	wanted := *s.wanted.Load()
	return len(wanted) < maxNamespaces && wanted[string(ns)] == nil
}

// LeaseFor returns the lease that covers namespace ns, or nil while the node has not
// confirmed all its subscriptions on the present connection. The lease may be dead; ask Alive.
func (s *Stream) LeaseFor(ns []byte) *lease.Lease { return (*s.leases.Load())[string(ns)] }

// Run keeps the stream connected until ctx is done. It is to be called once.
func (s *Stream) Run(ctx context.Context) {
	backoff := firstBackoff
	for {
		proven, err := s.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		if proven {
			backoff = firstBackoff
		}
		pause := backoff/2 + rand.N(backoff)
		s.opts.Logger.Warn("invalidation stream lost", "node", s.opts.Addr, "error", err, "retry_in", pause)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		backoff = min(2*backoff, lastBackoff)
	}
}

// serve runs one connection to its end. proven: the node answered a PING on it.
func (s *Stream) serve(ctx context.Context) (proven bool, err error) {
	dialing, cancel := context.WithTimeout(ctx, s.silence())
	conn, err := s.opts.Dial(dialing, s.opts.Addr)
	cancel()
	if err != nil {
		return false, fmt.Errorf("cannot connect to %q: %w", s.opts.Addr, err)
	}
	l := &link{
		s:         s,
		conn:      conn,
		lease:     new(lease.Lease),
		stop:      make(chan struct{}),
		confirmed: map[string]*lease.Lease{},
		refused:   map[string]bool{},
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()

	var writer sync.WaitGroup
	writer.Go(l.write)
	s.linked(l)
	err = l.read()
	s.linked(nil)
	l.fail()
	close(l.stop)
	writer.Wait()
	l.giveUp()
	return l.proven, err
}

// silence is how long a node may say nothing at all.
func (s *Stream) silence() time.Duration { return max(patience*s.opts.MaxStaleness, time.Second) }
