package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/lua"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/mono"
	"cosky-proxy/proxy/proxytest"
)

// The hunt for stale reads. A few registers (cached hashes and sets) are written with
// ever higher versions in every way there is: through the proxy, beside it, by
// expiry. Each register has one write at a time, so its versions are totally ordered,
// and the register is linearizable if and only if every read shows a version
//
//   - whose write began before the read ended,
//   - not older than any whose write had ended when the read began,
//   - not older than what any other read had shown when it began.
//
// The second condition is relaxed for writes beside the proxy and reads that may be
// cached: such a read may be older, but by no more than max_staleness.

// version is what a register holds after a write.
type version struct {
	began, ended int64 // mono; ended is math.MaxInt64 while, or if for ever, nobody knows whether it happened
	beside       bool  // the write went around the proxy
	absent       bool
	base         int // sets: members base..version are in it, as far as they were added
}

// register is one key and its history.
type register struct {
	key string
	id  string // config or service
	set bool

	write    sync.Mutex // held by whoever writes
	mu       sync.Mutex
	versions []version // [0]: absent, before everything
	reads    []reading
	latest   atomic.Int64
	retired  bool // guarded by write: the fate of the last write is unknown, so no other may follow
}

// reading is one read and what it showed.
type reading struct {
	began, ended int64
	cached       bool // may have come from memory
	what         string
	shows        func(r *register, v int) bool
}

func newRegister(n int) *register {
	r := &register{set: n%2 == 1, id: fmt.Sprintf("r%d", n), versions: []version{{absent: true}}}
	r.key = "{n}:cfg:" + r.id
	if r.set {
		r.key = "{n}:svc_itc_idx:" + r.id
	}
	return r
}

// member is the name under which version v is in a set: an instance id of CoSky.
func member(id string, v int) string { return fmt.Sprintf("%s@http#10.0.0.1#%d", id, v) }

// begin notes the beginning of the next write.
func (r *register) begin(beside, absent, adds bool) (v int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v = len(r.versions)
	next := version{began: mono.Now(), ended: math.MaxInt64, beside: beside, absent: absent, base: v}
	if last := r.versions[v-1]; adds && !last.absent {
		next.base = last.base
	}
	r.versions = append(r.versions, next)
	r.latest.Store(int64(v))
	return v
}

func (r *register) end(v int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.versions[v].ended = mono.Now()
}

func (r *register) saw(x reading) {
	x.ended = mono.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads = append(r.reads, x)
}

// staleness is what check measured.
type staleness struct {
	stale int           // reads that may have been cached, older than a write beside the proxy that had ended
	worst time.Duration // by how much
}

// check judges the history. It gives every read the oldest version that it can have
// shown; if that breaks no rule, the history is right, and if it breaks one, so does
// every other choice.
func (r *register) check(bound time.Duration, s *staleness) error {
	reads := r.reads
	slices.SortFunc(reads, func(a, b reading) int { return int(a.began - b.began) })
	byEnd := make([]int, len(reads))
	for i := range byEnd {
		byEnd[i] = i
	}
	slices.SortFunc(byEnd, func(a, b int) int { return int(reads[a].ended - reads[b].ended) })

	shown := make([]int, len(reads)) // the version each read is given
	seen, finished := 0, 0           // highest version shown by reads that ended before this one began; how many those are
	for i, x := range reads {
		for finished < len(reads) && reads[byEnd[finished]].ended < x.began {
			seen = max(seen, shown[byEnd[finished]])
			finished++
		}
		low, why := seen, "an earlier read showed"
		for v, w := range r.versions {
			limit := x.began
			if x.cached && w.beside {
				limit -= int64(bound)
			}
			if v > low && w.ended < limit {
				low, why = v, "the proxy had acknowledged"
				if w.beside {
					why = "Redis had acknowledged long before"
				}
			}
		}
		v := low
		for v < len(r.versions) && !(x.shows(r, v) && r.versions[v].began < x.ended) {
			v++
		}
		if v == len(r.versions) {
			return fmt.Errorf("%s: read %d shows %s, but %s version %d:\n%s", r.key, i, x.what, why, low, r.around(x, low))
		}
		shown[i] = v
		s.measure(r, x, v)
	}
	return nil
}

// measure counts x if it was stale, by the newest version that it can have shown.
func (s *staleness) measure(r *register, x reading, oldest int) {
	newest := oldest
	for v := oldest + 1; v < len(r.versions) && r.versions[v].began < x.ended; v++ {
		if x.shows(r, v) {
			newest = v
		}
	}
	if newest+1 < len(r.versions) && r.versions[newest+1].ended < x.began {
		s.stale++
		s.worst = max(s.worst, time.Duration(x.began-r.versions[newest+1].ended))
	}
}

// around prints what happened shortly before and during x.
func (r *register) around(x reading, low int) string {
	type line struct {
		at   int64
		text string
	}
	ms := func(t int64) string {
		if t == math.MaxInt64 {
			return "?"
		}
		return fmt.Sprintf("%+.3f ms", float64(t-x.began)/1e6)
	}
	var lines []line
	for v := max(low-6, 0); v < min(low+6, len(r.versions)); v++ {
		w := r.versions[v]
		lines = append(lines, line{w.began, fmt.Sprintf("%s .. %s write %d absent=%v beside=%v base=%d", ms(w.began), ms(w.ended), v, w.absent, w.beside, w.base)})
	}
	for _, y := range r.reads {
		if y.ended > x.began-int64(20*time.Millisecond) && y.began <= x.ended {
			lines = append(lines, line{y.began, fmt.Sprintf("%s .. %s read %s cached=%v", ms(y.began), ms(y.ended), y.what, y.cached)})
		}
	}
	slices.SortFunc(lines, func(a, b line) int { return int(a.at - b.at) })
	var b strings.Builder
	for _, l := range lines[max(len(lines)-60, 0):] {
		b.WriteString("  " + l.text + "\n")
	}
	return b.String()
}

// hunt is one run.
type hunt struct {
	t         *testing.T
	redis     *clustertest.Redis
	front     string
	readers   int
	registers [6]atomic.Pointer[register]
	nextID    atomic.Int64
	stopped   atomic.Bool
	calm      atomic.Bool // only writes beside the proxy and reads that may be cached: nothing but the streams voids an entry
	finished  sync.WaitGroup

	mu     sync.Mutex
	all    []*register
	sent   int
	failed map[string]int // replies that were errors, by what they say
}

func (h *hunt) client(addr string, protocol int) *redis.Client {
	c := redis.NewClient(&redis.Options{
		Addr: addr, Protocol: protocol, MaxRetries: -1, PoolSize: 1, DisableIdentity: true,
		DialTimeout: 5 * time.Second, ReadTimeout: clustertest.Deadline, WriteTimeout: clustertest.Deadline,
	})
	h.t.Cleanup(func() { c.Close() })
	return c
}

func (h *hunt) fresh(slot int) {
	r := newRegister(int(h.nextID.Add(1))*len(h.registers) + slot)
	h.mu.Lock()
	h.all = append(h.all, r)
	h.mu.Unlock()
	h.registers[slot].Store(r)
}

func (h *hunt) note(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	text := err.Error()
	if i := strings.IndexByte(text, ':'); i > 0 {
		text = text[:i]
	}
	h.failed[text]++
}

const hiddenWrite = `
redis.call('DEL', ARGV[1])
if ARGV[3] == 'set' then redis.call('SADD', ARGV[1], ARGV[2]) else redis.call('HSET', ARGV[1], 'data', ARGV[2]) end
return 1`

// writer writes until the hunt ends, now through the proxy, now beside it.
func (h *hunt) writer(seed uint64) {
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(seed, 1))
	through := []*redis.Client{h.client(h.front, 2), h.client(h.front, 3)}
	direct := h.client(h.redis.Addr, 3)
	for !h.stopped.Load() {
		slot := rng.IntN(len(h.registers))
		r := h.registers[slot].Load()
		r.write.Lock()
		if r.retired {
			r.write.Unlock()
			continue
		}
		c, beside := through[rng.IntN(2)], rng.IntN(100) < 30 || h.calm.Load()
		if beside {
			c = direct
		}
		err := h.write(ctx, r, c, beside, rng)
		if err != nil {
			h.note(err)
			r.retired = true
			h.fresh(slot)
		}
		r.write.Unlock()
		if rng.IntN(50) == 0 {
			h.flush(ctx, through[rng.IntN(2)], rng.IntN(2) == 0 || h.calm.Load(), direct)
		}
		time.Sleep(time.Duration(rng.IntN(1500)) * time.Microsecond) // let entries live for a while
	}
}

// write makes one write to r, which its caller holds.
func (h *hunt) write(ctx context.Context, r *register, c redis.UniversalClient, beside bool, rng *rand.Rand) error {
	way := rng.IntN(8)
	absent := way <= 1
	adds := r.set && way == 2 || r.set && way == 3
	v := r.begin(beside, absent, adds)
	value, kind, field := strconv.Itoa(v), "hash", []any{"data", strconv.Itoa(v)}
	if r.set {
		value, kind = member(r.id, v), "set"
		field = []any{value}
	}
	put := func(c redis.Cmdable, key string) error {
		if r.set {
			return c.SAdd(ctx, key, field...).Err()
		}
		return c.HSet(ctx, key, field...).Err()
	}
	err := func() error {
		switch way {
		case 0:
			return c.Del(ctx, r.key).Err()
		case 1:
			return h.expire(ctx, r, c)
		case 2:
			return put(c, r.key)
		case 3:
			return h.cosky(ctx, r, c, value)
		case 4:
			if err := put(c, r.key+"}tmp"); err != nil {
				return err
			}
			return c.Rename(ctx, r.key+"}tmp", r.key).Err()
		case 5:
			_, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Del(ctx, r.key)
				return put(p, r.key)
			})
			return err
		case 6:
			return c.Eval(ctx, hiddenWrite, nil, r.key, value, kind).Err()
		default:
			_, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Eval(ctx, hiddenWrite, nil, r.key, value, kind)
				return nil
			})
			return err
		}
	}()
	if err != nil {
		return fmt.Errorf("way %d: %w", way, err)
	}
	r.end(v)
	h.mu.Lock()
	h.sent++
	h.mu.Unlock()
	return nil
}

// expire lets r expire, and waits until c is told so.
func (h *hunt) expire(ctx context.Context, r *register, c redis.UniversalClient) error {
	if err := c.PExpire(ctx, r.key, 3*time.Millisecond).Err(); err != nil {
		return err
	}
	for {
		n, err := c.Exists(ctx, r.key).Result()
		if err != nil || n == 0 {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// cosky writes as CoSky's SDK does.
func (h *hunt) cosky(ctx context.Context, r *register, c redis.UniversalClient, value string) error {
	name, args := "config_set", []any{r.id, value, value}
	if r.set {
		name, args = "registry_register", []any{"-1", r.id, value, "http", "10.0.0.1", "1", "1"}
	}
	script := lua.ByName(name)
	err := c.EvalSha(ctx, script.SHA1, []string{"{n}"}, args...).Err()
	if err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
		err = c.Eval(ctx, script.Text, []string{"{n}"}, args...).Err()
	}
	return err
}

// flush empties the database: a write to every register at once.
func (h *hunt) flush(ctx context.Context, through *redis.Client, beside bool, direct *redis.Client) {
	release := h.holdAll()
	c := through
	if beside {
		c = direct
	}
	held := make(map[*register]int)
	for i := range h.registers {
		r := h.registers[i].Load()
		held[r] = r.begin(beside, true, false)
	}
	err := c.FlushDB(ctx).Err()
	for i := range h.registers {
		r := h.registers[i].Load()
		if err != nil {
			r.retired = true
			h.fresh(i)
			continue
		}
		r.end(held[r])
	}
	if err != nil {
		h.note(err)
	}
	release()
}

// holdAll waits until nobody writes and keeps it so.
func (h *hunt) holdAll() (release func()) {
	for {
		var held []*register
		for i := range h.registers {
			r := h.registers[i].Load()
			r.write.Lock()
			held = append(held, r)
		}
		release = func() {
			for _, r := range held {
				r.write.Unlock()
			}
		}
		current := true
		for i, r := range held {
			current = current && h.registers[i].Load() == r
		}
		if current {
			return release
		}
		release()
	}
}

// reader reads until the hunt ends, mostly what may be cached.
func (h *hunt) reader(seed uint64) {
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(seed, 2))
	c := h.client(h.front, 2+int(seed%2))
	for !h.stopped.Load() {
		r := h.registers[rng.IntN(len(h.registers))].Load()
		x := reading{began: mono.Now(), cached: true}
		way := 0
		if rng.IntN(100) < 15 && !h.calm.Load() {
			way = 1 + rng.IntN(2)
			x.cached = false
		}
		err := r.read(ctx, c, way, &x)
		if err != nil {
			h.note(err)
			time.Sleep(time.Millisecond)
			continue
		}
		r.saw(x)
	}
}

// read reads r: 0 the way that is cached, 1 a field or member, 2 its existence or size.
func (r *register) read(ctx context.Context, c *redis.Client, way int, x *reading) error {
	holds := func(v int) { // exactly version v is there
		x.what = fmt.Sprintf("version %d", v)
		x.shows = func(_ *register, w int) bool { return w == v }
	}
	absent := func(is bool) {
		x.what = fmt.Sprintf("absent=%v", is)
		x.shows = func(r *register, w int) bool { return r.versions[w].absent == is }
	}
	switch {
	case way == 0 && r.set:
		members, err := c.SMembers(ctx, r.key).Result()
		if err != nil || len(members) == 0 {
			absent(true)
			return err
		}
		newest := 0
		for _, m := range members {
			v, err := strconv.Atoi(m[strings.LastIndexByte(m, '#')+1:])
			if err != nil {
				return err
			}
			newest = max(newest, v)
		}
		holds(newest)
	case way == 0:
		fields, err := c.HGetAll(ctx, r.key).Result()
		if err != nil || len(fields) == 0 {
			absent(true)
			return err
		}
		v, err := strconv.Atoi(fields["data"])
		holds(v)
		return err
	case way == 1 && r.set:
		m := int(r.latest.Load())
		in, err := c.SIsMember(ctx, r.key, member(r.id, m)).Result()
		x.what = fmt.Sprintf("%d in the set: %v", m, in)
		x.shows = func(r *register, w int) bool {
			has := w >= m && !r.versions[w].absent && r.versions[w].base <= m
			return has == in
		}
		return err
	case way == 1:
		text, err := c.HGet(ctx, r.key, "data").Result()
		if errors.Is(err, redis.Nil) {
			absent(true)
			return nil
		}
		if err != nil {
			return err
		}
		v, err := strconv.Atoi(text)
		holds(v)
		return err
	case r.set:
		n, err := c.Exists(ctx, r.key).Result()
		absent(n == 0)
		return err
	default:
		n, err := c.HLen(ctx, r.key).Result()
		absent(n == 0)
		return err
	}
	return nil
}

// maxStaleness of the hunts, and what a clock that a loop reads once per round may add to it
// on a machine that is busy with other tests.
const (
	huntStaleness = 300 * time.Millisecond
	clockSlack    = 200 * time.Millisecond
)

// run hunts while faults does what it does, and judges.
func (h *hunt) run(faults func()) (s staleness) {
	t := h.t
	for i := range h.registers {
		h.fresh(i)
	}
	for i := range 3 {
		h.finished.Go(func() { h.writer(uint64(i)) })
	}
	for i := range h.readers {
		h.finished.Go(func() { h.reader(uint64(i)) })
	}
	faults()
	h.stopped.Store(true)
	h.finished.Wait()

	reads := 0
	for _, r := range h.all {
		reads += len(r.reads)
		if err := r.check(huntStaleness+clockSlack, &s); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d writes and %d reads of %d registers; %d reads behind a write beside the proxy, by up to %v; errors: %v",
		h.sent, reads, len(h.all), s.stale, s.worst, h.failed)
	return s
}

func newHunt(t *testing.T, change ...func(*proxy.Options)) (*hunt, *nearRig, *proxytest.Relay) {
	t.Helper()
	rig, wire := startRelayed(t, append([]func(*proxy.Options){func(o *proxy.Options) {
		o.Cache.MaxStaleness, o.Cache.PubSubTTL = huntStaleness, huntStaleness
	}}, change...)...)
	return &hunt{t: t, redis: rig.redis, front: rig.addr, readers: 4, failed: map[string]int{}}, rig, wire
}

// prove waits, while clients are at work, until enough has happened to trust a good verdict.
func (h *hunt) prove(rig *nearRig) {
	clustertest.Await(h.t, "enough hits and misses", func() error {
		if s := rig.server.Stats(); s.Hits < 200 || s.Misses < 200 {
			return fmt.Errorf("%d hits and %d misses prove little", s.Hits, s.Misses)
		}
		return nil
	})
}

var huntModes = []proxy.Invalidation{proxy.InvalidationTracking, proxy.InvalidationPubSub, proxy.InvalidationBoth}

// TestNoStaleReads hunts without faults, but with streams that lag behind the replies on
// other connections, which gives every race time.
func TestNoStaleReads(t *testing.T) {
	for _, mode := range huntModes {
		t.Run(string(mode), func(t *testing.T) {
			eachTransport(t, func(t *testing.T, transport func(*proxy.Options)) {
				h, rig, wire := newHunt(t, transport, func(o *proxy.Options) { o.Cache.Invalidation = mode })
				h.readers = 12 // they wait most of the time
				wire.Lag(proxytest.Fetch, 3*time.Millisecond)
				wire.Lag(proxytest.PubSub, 3*time.Millisecond)
				h.run(func() { time.Sleep(1500 * time.Millisecond); h.prove(rig) })
				if len(h.failed) > 0 {
					t.Errorf("errors without a fault: %v", h.failed)
				}
			})
		})
	}
}

// TestNoStaleReadsUnderFaults kills connections of every kind, mutes them while
// they stay open, freezes Redis and kills it.
func TestNoStaleReadsUnderFaults(t *testing.T) {
	for _, mode := range huntModes {
		t.Run(string(mode), func(t *testing.T) {
			h, rig, wire := newHunt(t, func(o *proxy.Options) { o.Cache.Invalidation = mode })
			kinds := []proxytest.Use{proxytest.Plain, proxytest.Fetch, proxytest.PubSub}
			h.run(func() {
				time.Sleep(300 * time.Millisecond)
				for _, kind := range kinds {
					wire.Kill(h.redis, kind)
					time.Sleep(150 * time.Millisecond)
					wire.Cut(kind)
					time.Sleep(150 * time.Millisecond)
				}
				for _, kind := range []proxytest.Use{proxytest.Fetch, proxytest.PubSub} {
					h.calm.Store(true)
					release := h.holdAll()
					time.Sleep(100 * time.Millisecond) // every register is cached now
					wire.Mute(kind)
					release()
					time.Sleep(2*huntStaleness + clockSlack)
					h.calm.Store(false)
					time.Sleep(100 * time.Millisecond)
					wire.Unmute(kind)
					time.Sleep(200 * time.Millisecond)
				}
				h.redis.Freeze()
				time.Sleep(huntStaleness + clockSlack)
				h.redis.Thaw()
				time.Sleep(200 * time.Millisecond)
				h.restart()
				time.Sleep(500 * time.Millisecond)
				h.prove(rig)
			})
		})
	}
}

// restart kills Redis, which loses everything, as if somebody had deleted it.
func (h *hunt) restart() {
	release := h.holdAll()
	defer release()
	for i := range h.registers {
		h.registers[i].Load().begin(true, true, false)
	}
	h.redis.Restart()
	for i := range h.registers {
		h.registers[i].Load().retired = true
		h.fresh(i)
	}
}

// TestCheckerFindsLies gives the checker small histories, right and wrong ones.
func TestCheckerFindsLies(t *testing.T) {
	const bound = 10
	type wr = version
	show := func(v int) func(*register, int) bool { return func(_ *register, w int) bool { return w == v } }
	gone := func(r *register, w int) bool { return r.versions[w].absent }
	start := wr{absent: true}
	for name, tc := range map[string]struct {
		writes []version
		reads  []reading
		lie    bool
	}{
		"newest":                 {[]wr{{began: 1, ended: 2}}, []reading{{began: 3, ended: 4, shows: show(1)}}, false},
		"old after the reply":    {[]wr{{began: 1, ended: 2}}, []reading{{began: 3, ended: 4, shows: gone}}, true},
		"old during the write":   {[]wr{{began: 1, ended: 5}}, []reading{{began: 3, ended: 4, shows: gone}}, false},
		"from the future":        {[]wr{{began: 5, ended: 6}}, []reading{{began: 3, ended: 4, shows: show(1)}}, true},
		"back after a read":      {[]wr{{began: 1, ended: 9}}, []reading{{began: 2, ended: 3, shows: show(1)}, {began: 4, ended: 5, shows: gone}}, true},
		"two reads at once":      {[]wr{{began: 1, ended: 9}}, []reading{{began: 2, ended: 4, shows: show(1)}, {began: 3, ended: 5, shows: gone}}, false},
		"beside, cached, late":   {[]wr{{began: 1, ended: 2, beside: true}}, []reading{{began: 11, ended: 12, cached: true, shows: gone}}, false},
		"beside, cached, later":  {[]wr{{began: 1, ended: 2, beside: true}}, []reading{{began: 13, ended: 14, cached: true, shows: gone}}, true},
		"beside, uncached":       {[]wr{{began: 1, ended: 2, beside: true}}, []reading{{began: 3, ended: 4, shows: gone}}, true},
		"back after uncached":    {[]wr{{began: 1, ended: 9, beside: true}}, []reading{{began: 2, ended: 3, shows: show(1)}, {began: 4, ended: 5, cached: true, shows: gone}}, true},
		"beside before through":  {[]wr{{began: 1, ended: 2, beside: true}, {began: 3, ended: 4, absent: true}}, []reading{{began: 5, ended: 6, cached: true, shows: show(1)}}, true},
		"absent again, twice":    {[]wr{{began: 1, ended: 2}, {began: 3, ended: 4, absent: true}}, []reading{{began: 5, ended: 6, shows: gone}, {began: 7, ended: 8, shows: gone}}, false},
		"absent is the older":    {[]wr{{began: 1, ended: 9}, {began: 10, ended: 19, absent: true}}, []reading{{began: 11, ended: 12, shows: gone}, {began: 13, ended: 14, shows: show(1)}}, true},
		"fate unknown, happened": {[]wr{{began: 1, ended: math.MaxInt64}}, []reading{{began: 50, ended: 51, shows: gone}, {began: 52, ended: 53, shows: show(1)}}, false},
		"fate unknown, undone":   {[]wr{{began: 1, ended: math.MaxInt64}}, []reading{{began: 50, ended: 51, shows: show(1)}, {began: 52, ended: 53, shows: gone}}, true},
	} {
		r := &register{versions: append([]version{start}, tc.writes...), reads: tc.reads}
		var s staleness
		if err := r.check(bound, &s); (err != nil) != tc.lie {
			t.Errorf("%s: %v", name, err)
		}
	}
}
