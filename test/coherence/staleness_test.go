package coherence

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/lua"
	"cosky-proxy/nearcache/nearcachetest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/mono"
	"cosky-proxy/proxy/proxytest"
)

// noise is what a busy machine may add to staleness: a reader, a loop or the writer that gets no
// turn between a look at the clock and what it is about.
const noise = 700 * time.Millisecond

// prober measures for how long cached reads are behind writes that go around the proxy.
// One writer makes version after version of a hash; one reader per loop reads all the time.
type prober struct {
	// static
	rig    *rig
	key    string
	direct redis.UniversalClient
	cosky  func(v int) bool // whether version v is written, and announced, as CoSky does

	gate    sync.Mutex            // held by each write
	version int                   // guarded by gate
	writer  redis.UniversalClient // guarded by gate
	newest  atomic.Int64          // acknowledged by Redis
	seen    atomic.Int64          // newest that any reader has been answered

	// guarded by mu
	mu    sync.Mutex
	acked map[int64]int64 // version: mono
	stale map[int64]int64 // version: how long after its acknowledgement a read began that did not show it
	lies  []string
}

// figures are what one measurement has found.
type figures struct {
	writes        int
	behind        int           // writes that some read was behind
	typical       time.Duration // median of these
	p50, p99, max time.Duration // of all
	trip          time.Duration // median time of a message from PUBLISH to its subscriber
}

func newProber(r *rig) *prober {
	p := &prober{rig: r, key: namespace + ":cfg:probe"}
	addrs := []string{r.owner().Addr}
	if r.cluster != nil {
		addrs = r.cluster.Addrs()
	}
	p.direct = redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: addrs, IsClusterMode: r.cluster != nil, MaxRetries: -1, MaxRedirects: 3, DisableIdentity: true,
		DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second,
	})
	r.t.Cleanup(func() { p.direct.Close() })
	p.writer = p.direct
	return p
}

// measure reads and writes while fault does what it does.
func (p *prober) measure(fault func()) figures {
	p.acked, p.stale, p.lies = map[int64]int64{}, map[int64]int64{}, nil
	p.awaitWrite()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var all sync.WaitGroup
	for i := range 2 {
		all.Go(func() { p.read(ctx, i) })
	}
	p.awaitHits()
	var trips []time.Duration
	all.Go(func() { trips = p.trips(ctx) })
	all.Go(func() {
		for ctx.Err() == nil {
			p.write()
			time.Sleep(time.Duration(3+rand.IntN(6)) * time.Millisecond)
		}
	})
	fault()
	stop()
	all.Wait()
	return p.figures(trips)
}

func (p *prober) figures(trips []time.Duration) (f figures) {
	f.writes, f.behind = len(p.acked), len(p.stale)
	all := make([]time.Duration, f.writes-f.behind, f.writes)
	for _, d := range p.stale {
		all = append(all, time.Duration(d))
	}
	f.typical = quantile(slices.Clone(all[f.writes-f.behind:]), .5)
	f.p50, f.p99, f.max = quantile(all, .5), quantile(all, .99), quantile(all, 1)
	f.trip = quantile(trips, .5)
	return f
}

func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[int(q*float64(len(d)-1))]
}

func (p *prober) awaitWrite() {
	clustertest.Await(p.rig.t, "a write", p.write)
}

func (p *prober) awaitHits() {
	enough := p.rig.server.Stats().Hits + 100
	clustertest.Await(p.rig.t, "the cache to be used", func() error {
		if n := p.rig.server.Stats().Hits; n < enough {
			return fmt.Errorf("%d hits", n)
		}
		return nil
	})
}

// write makes the next version beside the proxy.
func (p *prober) write() error {
	p.gate.Lock()
	defer p.gate.Unlock()
	p.version++
	v := p.version
	ctx := context.Background()
	var err error
	if p.cosky(v) {
		err = p.writer.Eval(ctx, lua.ByName("config_set").Text, []string{namespace}, "probe", v, v).Err()
	} else {
		err = p.writer.HSet(ctx, p.key, "data", v).Err()
	}
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.acked[int64(v)] = mono.Now()
	p.mu.Unlock()
	p.newest.Store(int64(v))
	return nil
}

func (p *prober) read(ctx context.Context, i int) {
	c := redis.NewClient(&redis.Options{Addr: p.rig.addr, Protocol: 2 + i, PoolSize: 1, MaxRetries: -1, DisableIdentity: true, ReadTimeout: clustertest.Deadline})
	defer c.Close()
	for ctx.Err() == nil {
		newest, seen, began := p.newest.Load(), p.seen.Load(), mono.Now()
		v, err := c.HGetAll(context.Background(), p.key).Result()
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		var shown int64
		fmt.Sscan(v["data"], &shown)
		if shown < seen {
			p.lie(fmt.Sprintf("version %d after version %d had been shown; Redis has acknowledged %d", shown, seen, newest))
		}
		for !p.see(shown) {
		}
		if shown < newest {
			p.behind(shown, newest, began)
		}
	}
}

// see notes that v was shown; false: others were faster, and it is to be tried again.
func (p *prober) see(v int64) bool {
	old := p.seen.Load()
	return v <= old || p.seen.CompareAndSwap(old, v)
}

func (p *prober) behind(shown, newest, began int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for v := shown + 1; v <= newest; v++ {
		if at, ok := p.acked[v]; ok && began > at {
			p.stale[v] = max(p.stale[v], began-at)
		}
	}
}

func (p *prober) lie(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.lies) < 5 {
		p.lies = append(p.lies, text)
	}
}

// trips measures how long messages take from a publisher to a subscriber.
func (p *prober) trips(ctx context.Context) (all []time.Duration) {
	s := p.direct.Subscribe(ctx, namespace+"trip")
	defer s.Close()
	for ctx.Err() == nil {
		began := time.Now()
		if p.direct.Publish(ctx, namespace+"trip", "x").Err() == nil {
			for {
				message, err := s.ReceiveTimeout(ctx, time.Second)
				if err != nil {
					break
				}
				if _, ok := message.(*redis.Message); ok {
					all = append(all, time.Since(began))
					break
				}
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return all
}

// ---- faults

// fault is something that happens to the backend, again and again for as long as a
// measurement lasts.
type fault struct {
	name string
	once func(p *prober)
}

// spell is how long a stream is silent: longer than an entry may be served without it, by more
// than noise.
const spell = staleness + noise + 400*time.Millisecond

var peace = fault{"none", func(*prober) { time.Sleep(800 * time.Millisecond) }}

func onWire(name string, do func(w *proxytest.Relay, p *prober)) fault {
	return fault{name, func(p *prober) {
		do(p.rig.wire(), p)
		p.awaitHits()
		time.Sleep(staleness)
	}}
}

func muted(u proxytest.Use) fault {
	return onWire(fmt.Sprintf("%v connections silent for %v", u, spell), func(w *proxytest.Relay, _ *prober) {
		w.Mute(u)
		time.Sleep(spell)
		w.Unmute(u)
	})
}

// shortFaults are those that tell most; CI has time for them.
var shortFaults = []fault{peace, muted(proxytest.Fetch), muted(proxytest.PubSub)}

var longFaults = append(slices.Clone(shortFaults),
	onWire("CLIENT KILL of each connection", func(w *proxytest.Relay, p *prober) {
		for _, u := range p.rig.uses {
			w.Kill(p.rig.redis, u)
			rest()
		}
	}),
	onWire("connections cut", func(w *proxytest.Relay, p *prober) {
		for _, u := range p.rig.uses {
			w.Cut(u)
			rest()
		}
	}),
	onWire("CoSky's messages lost", func(w *proxytest.Relay, _ *prober) {
		w.Deafen(proxytest.PubSub, true)
		time.Sleep(spell)
		w.Deafen(proxytest.PubSub, false)
	}),
	onWire("SIGSTOP for 0.6 s", func(_ *proxytest.Relay, p *prober) {
		p.rig.redis.Freeze()
		time.Sleep(2 * staleness)
		p.rig.redis.Thaw()
	}),
	onWire("kill -9 and restart", func(_ *proxytest.Relay, p *prober) { p.rig.redis.Restart() }),
)

var clusterFaults = []fault{
	peace,
	onWire("failover", func(_ *proxytest.Relay, p *prober) { p.rig.failover() }),
	onWire("the slot moves", func(_ *proxytest.Relay, p *prober) {
		from := p.rig.owner()
		to := p.rig.elsewhere(from)
		p.rig.cluster.MoveSlot(p.rig.cluster.SlotOf(namespace), to)
		rest()
		p.rig.cluster.MoveSlot(p.rig.cluster.SlotOf(namespace), from)
	}),
	onWire("kill -9 of the master", func(_ *proxytest.Relay, p *prober) { p.rig.crash(p.hold) }),
	onWire("master frozen until a replica has taken over", func(_ *proxytest.Relay, p *prober) { p.depose() }),
}

// depose freezes the master. What is sent to it meanwhile it executes when it thaws, and then
// forgets, so writes go to its replica as soon as that has taken over, and nowhere before.
func (p *prober) depose() {
	heir := p.rig.cluster.ReplicasOf(p.rig.owner())[0]
	p.rig.depose(func() (release func()) {
		p.gate.Lock()
		return func() {
			p.rig.awaitMaster(heir)
			p.writer = heir.Client()
			p.gate.Unlock()
		}
	})
	defer p.hold()()
	p.writer = p.direct
}

// hold keeps the writer from writing until release.
func (p *prober) hold() (release func()) {
	p.gate.Lock()
	return p.gate.Unlock
}

// check holds a measurement against the promise.
func (p *prober) check(t *testing.T, f figures) {
	t.Helper()
	for _, lie := range p.lies {
		t.Error(lie)
	}
	if f.writes < 20 {
		t.Errorf("%d writes prove little", f.writes)
	}
	if f.max > staleness+noise {
		t.Errorf("a read was %v behind a write beside the proxy; max_staleness is %v", f.max, staleness)
	}
}

func (p *prober) probe(t *testing.T, x fault) figures {
	t.Helper()
	f := p.measure(func() {
		again(func() bool {
			x.once(p)
			return true
		})
	})
	t.Logf("%s: %d writes, %d with reads behind; p50 %v, p99 %v, max %v; message %v", x.name, f.writes, f.behind, f.p50, f.p99, f.max, f.trip)
	p.check(t, f)
	return f
}

func TestStaleness(t *testing.T) {
	var report table
	t.Cleanup(func() { report.print() })
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			faults := longFaults
			if *long == 0 {
				t.Parallel()
				faults = shortFaults
			}
			p := newProber(startStandalone(t, mode, durable))
			p.cosky = func(v int) bool { return mode == proxy.InvalidationPubSub || v%2 == 0 }
			for _, x := range faults {
				report.add(string(mode), x.name, p.probe(t, x))
			}
		})
	}
	if *long == 0 {
		return // the cluster's faults take seconds each, see TestLinearizableInFrontOfACluster
	}
	t.Run("cluster", func(t *testing.T) {
		p := newProber(startCluster(t, proxy.InvalidationTracking))
		p.cosky = func(int) bool { return false } // Redis does not keep scripts whole while a slot moves
		for _, x := range clusterFaults {
			report.add("tracking, cluster", x.name, p.probe(t, x))
		}
	})
}

// TestProberIsNotBlind: without leases, entries are served for as long as their stream is silent.
func TestProberIsNotBlind(t *testing.T) {
	t.Parallel()
	p := newProber(startStandalone(t, proxy.InvalidationTracking, nil, func(o *proxy.Options) {
		nearcachetest.Weaken(t, o.Cache.Cache, nearcachetest.Leases)
	}))
	p.cosky = func(int) bool { return true }
	f := p.measure(func() { muted(proxytest.Fetch).once(p) })
	if f.max <= staleness+noise {
		t.Errorf("without leases reads were at most %v behind", f.max)
	}
	t.Logf("without leases reads were up to %v behind", f.max)
}

// table is a report in Markdown.
type table struct {
	mu   sync.Mutex
	rows []string
}

func (t *table) add(mode, fault string, f figures) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, fmt.Sprintf("| %s | %s | %d | %.0f %% | %s | %s | %s | %s | %s |", mode, fault, f.writes,
		100*float64(f.behind)/float64(f.writes), ms(f.typical), ms(f.p50), ms(f.p99), ms(f.max), ms(f.trip)))
}

func ms(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", float64(d)/1e6)
}

func (t *table) print() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if *long == 0 {
		return
	}
	fmt.Fprintf(os.Stdout, "\n| invalidation | fault | writes | followed by old reads | their p50, ms | p50 of all | p99 | max | a Pub/Sub message, p50 |\n|---|---|---|---|---|---|---|---|---|\n%s\n", strings.Join(t.rows, "\n"))
}
