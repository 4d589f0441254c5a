package proxy

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/lua"
	"cosky-proxy/nearcache"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/quota"
	"cosky-proxy/proxy/stats"
	"cosky-proxy/router/command"
)

// Server is the proxy: listeners, event loops, and what the loops share.
type Server struct {
	// static
	opts    Options
	log     *slog.Logger
	loops   []*loop
	scripts *scriptMemory
	known   map[string]*lua.Script // scripts whose effects are known, by digest
	roster  *roster
	outages outages      // guards itself
	events  *eventSource // nil unless CoSky's Pub/Sub is a source, or may become one
	keeps   *ruleSet     // nearcache.rules; nil: none
	hotRule *keyRule     // of hot keys; nil: there are none
	quotas  *quota.Book  // limits.rules; nil: none
	started time.Time

	// guarded by its own lock
	denials denialLog

	// atomic
	shown shownKeys

	// owned by Listen and Run
	listeners []*netloop.Listener
	addrs     []string // of listeners, see Addrs. Static once Listen has returned
	facade    *facade  // nil: clients see one standalone master. Static once Listen has returned

	// guarded by mu
	mu sync.Mutex // of those who change commands

	// atomic
	abilities  atomic.Pointer[abilities]
	rules      atomic.Uint64 // bumped when what the backend's users may do may have changed
	commands   atomic.Pointer[vocabulary]
	hot        atomic.Pointer[hotSet] // the newest one that all loops have; nil: no key is
	clients    atomic.Int64           // connected
	refused    atomic.Int64           // connected, to be told that there are too many
	pins       atomic.Int64           // private connections of clients, open on all loops
	nextID     atomic.Int64
	slowID     atomic.Int64 // of the next entry of the slow log
	fetchLanes atomic.Int64 // open on all loops; 0: nothing can be cached
	rejected   atomic.Uint64
	down       atomic.Int64 // nodes that cannot be reached or refuse the login, counted on every loop
	draining   atomic.Bool
	warming    atomic.Bool  // the configured namespaces are being loaded, see warmup.go
	own        sync.Map     // local address of connections to the backend → laneKind
	doubtUntil atomic.Int64 // see doubt.go (mono)

	censuses censuses // guards itself
}

// sources says which invalidation streams an entry depends on.
type sources struct{ tracking, pubsub bool }

// New builds a server; nothing runs before Run.
func New(opts Options) (*Server, error) {
	var src sources
	keeps, err := newRuleSet(opts.Cache.rules())
	if err != nil {
		return nil, err
	}
	hotRule, err := newHotRule(&opts, keeps)
	if err != nil {
		return nil, err
	}
	known := opts.Topology.Current() != nil
	if known {
		if src, err = chooseSources(&opts); err != nil {
			return nil, err
		}
		if err := keeps.checkSources(src); err != nil {
			return nil, err
		}
	}
	s := &Server{
		opts: opts, log: opts.Logger,
		scripts: newScriptMemory(opts.Scripts),
		known:   knownScripts(opts.Cache.Scripts),
		roster:  newRoster(),
		keeps:   keeps,
		hotRule: hotRule,
		quotas:  newQuotas(&opts.Limits),
		started: time.Now(),
	}
	if err := opts.Reads.Check(); err != nil {
		return nil, err
	}
	s.commands.Store(newVocabulary(&opts, command.Builtin()))
	if len(opts.Backend.Commands) > 0 {
		s.AdoptCommands(opts.Backend.Commands)
		s.opts.Backend.Commands = nil // a list is merged once; the table has it
	}
	s.denials.limit = opts.Auth.LogLength
	s.warming.Store(len(opts.Cache.Warmup.Namespaces) > 0 && opts.Cache.Cache != nil)
	s.abilities.Store(newAbilities(src, opts.Backend.Version, opts.Backend.Tracking))
	if src.pubsub || !known && mayListen(&opts) {
		s.events = newEventSource(s)
	}
	for i := range max(opts.Loops, 1) {
		l, err := newLoop(s, i)
		if err != nil {
			return nil, err
		}
		s.loops = append(s.loops, l)
	}
	return s, nil
}

// atLeast compares a redis_version with major.minor. An unreadable one counts as
// new: features of newer servers only make the cache more careful.
func atLeast(version string, major, minor int) bool {
	a, b, ok := majorMinor(version)
	return !ok || a > major || a == major && b >= minor
}

// older reports whether version a is certainly below b.
func older(a, b string) bool {
	major, minor, ok := majorMinor(b)
	return ok && !atLeast(a, major, minor)
}

func majorMinor(version string) (major, minor int, ok bool) {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return 0, 0, false
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	return major, minor, err1 == nil && err2 == nil
}

// Listen binds every listener.
func (s *Server) Listen() error {
	for _, addr := range s.opts.Listen {
		o := netloop.ListenOptions{
			KeepAlive: keepalive(s.opts.Clients.Keepalive),
			Logger:    s.log,
			Reject:    func(error) []byte { return []byte(errMaxClients) },
		}
		bound, under := strings.CutPrefix(addr, tlsListener)
		if under {
			o.Wrap = s.encrypt()
		}
		ln, err := netloop.Listen(bound, o)
		if err != nil {
			s.closeListeners()
			return err
		}
		s.listeners = append(s.listeners, ln)
		if under {
			s.addrs = append(s.addrs, tlsListener+ln.Addr())
		} else {
			s.addrs = append(s.addrs, ln.Addr())
		}
	}
	if err := s.openFacade(); err != nil {
		s.closeListeners()
		return err
	}
	return nil
}

// keepalive: 0 is off in the configuration, negative is off for the listener.
func keepalive(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// Addrs returns the bound addresses, in the form of Options.Listen.
func (s *Server) Addrs() []string { return s.addrs }

func (s *Server) closeListeners() {
	for _, ln := range s.listeners {
		ln.Close()
	}
}

// Adopt tells every loop about a new topology. Any goroutine.
func (s *Server) Adopt(t *cluster.Topology) {
	s.follow(t)
	for _, l := range s.loops {
		l.nl.Post(func() { l.adopt(t) })
	}
	if s.events != nil {
		s.events.prune(t)
	}
}

// Run serves until ctx is done, then stops gracefully: no new clients, replies in
// flight are delivered, and whatever is left after the drain timeout is cut.
func (s *Server) Run(ctx context.Context) error {
	if t := s.opts.Topology.Current(); t != nil {
		s.follow(t)
	}
	var loops sync.WaitGroup
	for _, l := range s.loops {
		l.nl.Post(l.start)
		loops.Go(l.nl.Run)
	}
	var acceptors sync.WaitGroup
	for i, ln := range s.listeners {
		acceptors.Go(func() { ln.ServeOn(s.loops[i%len(s.loops)].nl, s.place) })
	}
	var watch sync.WaitGroup
	watch.Go(func() { s.watchFacade(ctx) })
	watch.Go(func() { s.warmUp(ctx) })
	<-ctx.Done()
	s.draining.Store(true)
	s.closeListeners()
	acceptors.Wait()
	watch.Wait()
	left := s.drain()
	for _, l := range s.loops {
		l.nl.Stop()
	}
	loops.Wait()
	if s.events != nil {
		s.events.close()
	}
	if left > 0 {
		s.log.Warn("clients cut off at the end of drain_timeout", "clients", left, "drain_timeout", s.opts.DrainTimeout)
	}
	return nil
}

// drain waits until every client is served, and returns how many are not.
func (s *Server) drain() int64 {
	for _, l := range s.loops {
		l.nl.Post(l.drain)
	}
	deadline := time.NewTimer(s.opts.DrainTimeout)
	defer deadline.Stop()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		select {
		case <-deadline.C:
			return s.clients.Load()
		case <-poll.C:
			if s.clients.Load() == 0 {
				return 0
			}
		}
	}
}

// drain lets every session finish what it has taken on.
func (l *loop) drain() {
	l.draining = true
	for s := range l.sessions {
		if s.upload == nil {
			s.finishAndClose()
		}
	}
}

const errMaxClients = "-ERR max number of clients reached\r\n"

// place chooses the loop of a new client: the one with the fewest. It runs on the
// loops that accept, or on goroutines of the listeners.
func (s *Server) place() netloop.Place {
	if s.draining.Load() {
		return netloop.Place{}
	}
	if !s.fileLeft() { // it must not even linger
		s.rejected.Add(1)
		return netloop.Place{}
	}
	if s.clients.Add(1) > int64(s.opts.Clients.Max) {
		s.clients.Add(-1)
		return s.turnAway()
	}
	best := s.loops[0]
	for _, l := range s.loops[1:] {
		if l.load.Load() < best.load.Load() {
			best = l
		}
	}
	best.load.Add(1)
	id := s.nextID.Add(1) // here, so that ids are in the order of connecting
	return netloop.Place{
		Loop:    best.nl,
		Welcome: func(c *netloop.Conn) netloop.Handler { return best.welcome(c, id) },
		Lost: func() {
			best.load.Add(-1)
			s.clients.Add(-1)
		},
	}
}

// turnedAway is a client for which there is no room. A loop has it, so that its error reaches
// it whatever it sends meanwhile.
type turnedAway struct{ srv *Server }

func (s *Server) turnAway() netloop.Place {
	s.refused.Add(1)
	n := s.rejected.Add(1)
	return netloop.Place{
		Loop: s.loops[n%uint64(len(s.loops))].nl,
		Welcome: func(c *netloop.Conn) netloop.Handler {
			c.Out = append(c.Reserve(len(errMaxClients)), errMaxClients...)
			c.CloseAfterFlush()
			return turnedAway{s}
		},
		Lost: func() { s.refused.Add(-1) },
	}
}

func (turnedAway) OnData(b []byte) int { return len(b) }
func (turnedAway) OnFlushed()          {}
func (turnedAway) OnEOF()              {}
func (t turnedAway) OnClose(error)     { t.srv.refused.Add(-1) }

// welcome makes the session of a new client.
func (l *loop) welcome(c *netloop.Conn, id int64) netloop.Handler {
	now := l.now()
	s := &session{
		loop: l, conn: c, id: id,
		addr: c.RemoteAddr(), via: c.LocalAddr(),
		db: int32(l.srv.opts.Backend.DB), user: defaultUser, since: now, lastSeen: now,
	}
	if l.guard != nil {
		l.guard.welcome(s)
	}
	c.SetLowWater(l.limits.output / 2)
	l.sessions[s] = struct{}{}
	l.stats.Accepted++
	if l.draining {
		s.finishAndClose()
	}
	return s
}

// Ready reports why the proxy cannot serve at the moment, nil if it can.
func (s *Server) Ready() error {
	switch {
	case s.draining.Load():
		return errors.New("draining")
	case s.opts.Topology.Current() == nil:
		return errors.New("the backend has not been reached yet; the log says why")
	case s.down.Load() > 0:
		return errors.New("a backend node cannot be reached or refuses the login; the log says which")
	case s.warming.Load():
		return errors.New("the near-cache is being warmed up")
	}
	return nil
}

// Stats sums the counters of all loops. A loop that does not answer in time is
// left out.
func (s *Server) Stats() stats.Snapshot {
	var sum stats.Snapshot
	for _, one := range askLoops(s, (*loop).snapshot) {
		sum.Add(&one)
	}
	return s.withShared(sum)
}

// askLoops runs f on every loop and returns the results of those that answer in time. Any goroutine but a loop's.
func askLoops[T any](s *Server, f func(*loop) T) (parts []T) {
	answers := make(chan T, len(s.loops))
	missing := 0
	for _, l := range s.loops {
		if l.nl.Post(func() { answers <- f(l) }) {
			missing++
		}
	}
	timeout := time.After(statsTimeout)
	for range missing {
		select {
		case one := <-answers:
			parts = append(parts, one)
		case <-timeout:
			return parts
		}
	}
	return parts
}

// statsTimeout bounds how long a scrape waits for a loop.
const statsTimeout = 2 * time.Second

func (s *Server) withShared(sum stats.Snapshot) stats.Snapshot {
	sum.Rejected += s.rejected.Load()
	if s.events != nil {
		sum.Invalidations += s.events.invalidations.Load()
	}
	return sum
}

// CacheStats describes the near-cache; all zero when it is off.
func (s *Server) CacheStats() nearcache.Stats {
	if s.opts.Cache.Cache == nil {
		return nearcache.Stats{}
	}
	return s.opts.Cache.Cache.Stats()
}
