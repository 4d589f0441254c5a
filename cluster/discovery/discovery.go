package discovery

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/dial"
	"cosky-proxy/router/command"
)

// minPause and maxPause bound the pause between two snapshots. Within them it is
// as long as the last one took, so that a large cluster in turmoil costs no more
// than half of one CPU.
const (
	minPause = 50 * time.Millisecond
	maxPause = 250 * time.Millisecond
)

// retryPause is the pause between two attempts while they fail: a server that comes back may
// be another version.
const retryPause = 500 * time.Millisecond

// Options configure a Discovery.
type Options struct {
	Backend Backend

	// Dialer says how servers are reached; nil: plainly.
	Dialer *dial.Dialer

	// ConnectTimeout is what one server may take to connect and answer. Default 2 s.
	ConnectTimeout time.Duration

	// RefreshInterval is the time between snapshots when nothing asks for one, give or take a
	// tenth. It only matters for changes that nobody runs into, such as new replicas. Default 10 s.
	RefreshInterval time.Duration

	// MaxStaleness is how long one proof keeps a primary's lease alive; a proof is
	// asked for every third of it. Default 1 s.
	MaxStaleness time.Duration

	// Replicas asks for those of a standalone server and of a master that Sentinels watch, too, and for
	// everybody's Pulse. MaxReplicaLag is how far behind its primary a replica may be. Default 1 s.
	Replicas      bool
	MaxReplicaLag time.Duration

	// Logger gets topology changes and outages. Default slog.Default().
	Logger *slog.Logger
}

// ServerInfo is what the data servers that answered last have in common.
type ServerInfo struct {
	Version  string // the lowest redis_version
	Server   string // "redis", "valkey", ...
	Mode     cluster.Mode
	Tracking bool // all speak RESP3 and know CLIENT TRACKING
}

// Discovery finds the backend's topology and keeps it fresh. Current, Info,
// Refresh and Subscribe may be called from any goroutine.
type Discovery struct {
	// static
	opts    Options
	source  source
	catalog *catalog
	wake    chan string // reasons to look again; one slot, further ones coalesce with it

	// owned by Start, then by Run
	version uint64
	vouches map[*cluster.Node]context.CancelFunc
	pulses  map[*cluster.Node]pulseRun // by primary
	vouchWG sync.WaitGroup
	down    bool // the last snapshot failed, and was logged
	wrong   bool // what comes up for the first time is not what is configured, and this was logged

	// atomic
	current atomic.Pointer[cluster.Topology]
	info    atomic.Pointer[ServerInfo]

	commands atomic.Pointer[[]command.Command]

	// guarded by mu
	mu          sync.Mutex
	subscribers []func(*cluster.Topology)
	learners    []func([]command.Command)
}

// New builds a Discovery. It also routes what go-redis logs, which it does for the
// whole process, to the logger's debug level: everything that matters is reported here.
func New(opts Options) *Discovery {
	opts.ConnectTimeout = cmp.Or(opts.ConnectTimeout, 2*time.Second)
	opts.RefreshInterval = cmp.Or(opts.RefreshInterval, 10*time.Second)
	opts.MaxStaleness = cmp.Or(opts.MaxStaleness, time.Second)
	opts.MaxReplicaLag = cmp.Or(opts.MaxReplicaLag, time.Second)
	opts.Logger = cmp.Or(opts.Logger, slog.Default())
	redis.SetLogger(libraryLog{opts.Logger})
	d := &Discovery{opts: opts, wake: make(chan string, 1), vouches: make(map[*cluster.Node]context.CancelFunc), pulses: make(map[*cluster.Node]pulseRun)}
	d.catalog = newCatalog(d)
	d.info.Store(&ServerInfo{Mode: opts.Backend.Mode})
	switch opts.Backend.Mode {
	case cluster.Cluster:
		d.source = newClustered(d)
	case cluster.Sentinel:
		d.source = newSentinels(d)
	default:
		d.source = newFixed(d)
	}
	return d
}

type libraryLog struct{ logger *slog.Logger }

func (l libraryLog) Printf(ctx context.Context, format string, v ...any) {
	if l.logger.Enabled(ctx, slog.LevelDebug) {
		l.logger.DebugContext(ctx, fmt.Sprintf(format, v...))
	}
}

// Start returns the first topology. Seeds are asked at the same time, each for at
// most ConnectTimeout; the error names every one of them with its cause. If it is
// Unreachable, Run goes on asking.
func (d *Discovery) Start(ctx context.Context) (*cluster.Topology, error) {
	if err := d.update(ctx); err != nil {
		if d.down = Unreachable(err); !d.down {
			d.source.close()
		}
		return nil, fmt.Errorf("cannot reach the backend %v: %w", d.opts.Backend, err)
	}
	d.catalog.refresh(ctx)
	return d.Current(), nil
}

// Run keeps the topology fresh and the primaries' leases alive until ctx is done.
// Start must have succeeded, or have found everything Unreachable; then Run finds the
// first topology, too.
func (d *Discovery) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { d.source.listen(ctx) })
	wg.Go(func() { d.catalog.run(ctx) })
	defer d.source.close()
	defer d.vouchWG.Wait()
	if t := d.Current(); t != nil {
		d.vouchFor(ctx, t)
		d.feelAll(ctx, t)
	}

	timer := time.NewTimer(jittered(d.opts.RefreshInterval))
	defer timer.Stop()
	for {
		reason := "timer"
		var again <-chan time.Time
		if d.down {
			again = time.After(retryPause)
		}
		select {
		case <-ctx.Done():
			return
		case reason = <-d.wake:
		case <-timer.C:
			timer.Reset(jittered(d.opts.RefreshInterval))
		case <-again:
			reason = "the last attempt failed"
		}
		d.opts.Logger.Debug("looking at the topology", "reason", reason)
		start := time.Now()
		if err := d.update(ctx); ctx.Err() == nil {
			d.report(err)
		}
		if t := d.Current(); t != nil {
			d.catalog.poke()
			d.vouchFor(ctx, t)
			d.feelAll(ctx, t)
		}
		sleep(ctx, min(max(time.Since(start), minPause), maxPause))
	}
}

// jittered spreads what many proxies do at an interval: from nine to eleven tenths of it.
func jittered(d time.Duration) time.Duration {
	return d*9/10 + rand.N(d/5+1)
}

// update takes a snapshot and publishes it if it differs from the last one.
func (d *Discovery) update(ctx context.Context) error {
	snap, err := d.source.snapshot(ctx)
	if err != nil {
		return err
	}
	info := infoOf(d.opts.Backend.Mode, snap.abouts)
	d.info.Store(&info)
	prev := d.Current()
	changed, gone := adopt(prev, snap.shards, d.source.vouched(), d.opts.Replicas)
	if !changed && slices.Equal(prev.Spares, snap.spares) {
		return nil
	}
	next, err := cluster.New(d.version+1, d.opts.Backend.Mode, snap.shards)
	if err != nil {
		return fmt.Errorf("cannot make sense of the topology: %w", err)
	}
	next.Spares = snap.spares
	d.version++
	// First the leases, then the snapshot: whoever acts on the new topology must
	// not find an entry alive that was taken under the old one.
	for _, n := range gone {
		if n.Vouch != nil {
			n.Vouch.Revoke()
		}
	}
	d.current.Store(next)
	level := slog.LevelInfo
	if prev == nil && !d.down { // whoever calls Start tells of it
		level = slog.LevelDebug
	}
	d.opts.Logger.Log(ctx, level, "new topology", "topology", next.String())
	d.mu.Lock()
	subscribers := slices.Clone(d.subscribers)
	d.mu.Unlock()
	for _, f := range subscribers {
		f(next)
	}
	return nil
}

// report logs the beginning and the end of an outage, once each.
func (d *Discovery) report(err error) {
	switch {
	case err != nil && d.Current() == nil && !Unreachable(err):
		if !d.wrong {
			d.opts.Logger.Error("the backend can be reached, but not used; trying on", "cause", err)
		}
		d.wrong = true
	case err != nil && !d.down:
		d.opts.Logger.Warn("cannot refresh the topology, keeping the last one", "cause", err)
	case err == nil && d.down:
		d.opts.Logger.Info("the backend's topology can be read again")
	}
	d.down = err != nil
}

// vouchFor runs one vouch goroutine per primary of t and stops those of nodes
// that are not in t any more. It does not wait for them: the leases they keep
// are revoked already.
func (d *Discovery) vouchFor(ctx context.Context, t *cluster.Topology) {
	stale := make(map[*cluster.Node]context.CancelFunc, len(d.vouches))
	for n, stop := range d.vouches {
		stale[n] = stop
	}
	for _, shard := range t.Shards {
		n := shard.Primary
		delete(stale, n)
		if n.Vouch == nil || d.vouches[n] != nil {
			continue
		}
		vouchCtx, stop := context.WithCancel(ctx)
		d.vouches[n] = stop
		d.vouchWG.Go(func() { d.source.vouch(vouchCtx, shard) })
	}
	for n, stop := range stale {
		stop()
		delete(d.vouches, n)
	}
}

// keeper returns a new keeper of the lease of the shard's primary.
func (d *Discovery) keeper(shard cluster.Shard) *keeper {
	return &keeper{lease: shard.Primary.Vouch, ranges: shard.Ranges, staleness: int64(d.opts.MaxStaleness)}
}

// tick calls f now and then every third of MaxStaleness, until ctx is done.
func (d *Discovery) tick(ctx context.Context, f func()) {
	every(ctx, max(d.opts.MaxStaleness/3, time.Millisecond), f)
}

// every calls f now and then again and again, until ctx is done.
func every(ctx context.Context, pause time.Duration, f func()) {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for ctx.Err() == nil {
		f()
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// Current is the newest topology, nil before Start has succeeded.
func (d *Discovery) Current() *cluster.Topology { return d.current.Load() }

// Info says what the data servers are able to do.
func (d *Discovery) Info() ServerInfo { return *d.info.Load() }

// Subscribe has f called with every further topology, in order, on the goroutine
// of Run (of Start for the first one): it must not block.
func (d *Discovery) Subscribe(f func(*cluster.Topology)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.subscribers = append(d.subscribers, f)
}

// Refresh asks for a new snapshot soon. It never blocks; requests made while one
// is due anyway coalesce with it. reason goes to the log.
func (d *Discovery) Refresh(reason string) {
	select {
	case d.wake <- reason:
	default:
	}
}

func infoOf(mode cluster.Mode, abouts []about) ServerInfo {
	info := ServerInfo{Mode: mode, Tracking: len(abouts) > 0}
	for i, a := range abouts {
		info.Tracking = info.Tracking && a.tracking
		if i == 0 || compareVersions(a.version, info.Version) < 0 {
			info.Version, info.Server = a.version, a.server
		}
	}
	return info
}

// compareVersions compares dotted numbers; what is not a number counts as 0.
func compareVersions(a, b string) int {
	return slices.Compare(versionParts(a), versionParts(b))
}

func versionParts(s string) []int {
	var parts []int
	for part := range strings.SplitSeq(s, ".") {
		n, _ := strconv.Atoi(part)
		parts = append(parts, n)
	}
	return parts
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
