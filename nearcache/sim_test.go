package nearcache

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cosky-proxy/nearcache/lease"
)

// The simulator runs the real Cache under a made-up proxy: two loops with clients,
// one node, connections that delay, freeze and die, somebody who writes around the
// proxy, and a store that loses, delays and reorders. Every actor is a coroutine that
// yields inside its steps too, so that one seed is one exact interleaving of
// loops, Fill included. Each answer is checked when it is delivered:
//
//   - it is not older than any answer delivered, or write acknowledged, before its read began;
//   - it is not older than a write the same client sent before it in its pipeline;
//   - a hit misses no change around the proxy older than the bound, and no expiry at all.
//
// The values of a key are its versions in the order the node executed its changes, so
// the first two together are linearizability.

const simBound = 40 // staleness bound, in ticks of the simulated clock

// flaw takes away one mechanism of the cache, or one duty of its caller.
type flaw struct {
	name  string
	rules func(*rules)

	noReveal, noLeases, noExpiry, meekEnd, generousAdvance bool

	silentLoser bool // a lost reply is delivered without Bump
	noAgain     bool // every lost reply is delivered, after Bump: no lie, but slow
}

type simChange struct {
	version int
	at      int64
	silent  bool // an expiry: no invalidation, but its time was known to the fetch
}

type simKey struct {
	name     []byte
	stripe   Stripe
	group    Stripe
	version  int
	changes  []simChange
	expireAt int64 // 0: never
	floor    int   // newest version seen or acknowledged through the proxy
}

type simOp struct {
	key    *simKey
	write  bool
	stripe Stripe // what a write announces, or a bypassing read reveals
	floor  int
	after  *simOp // a write sent earlier by the same client
	hasty  bool   // takes a lost reply rather than ask again
	losses int    // fetches lost so far
	alone  bool   // went uncached with Begin and End
	got    int    // a write's version once executed
}

type simFlight struct {
	fetch   Fetch
	key     *simKey
	sentAt  int64
	waiters []*simOp
}

// simMsg is a command on its way to the node or what comes back.
type simMsg struct {
	what    string // get, set, ping, subscribe; back also: push
	key     *simKey
	op      *simOp
	flight  *simFlight
	at      int64 // ping: when it was sent; get: the key's deadline
	version int
}

type simConn struct {
	in, out    []simMsg
	sent       []*simOp // lanes: commands without reply
	frozen     bool
	dead       bool
	subscribed bool
	tracks     map[*simKey]bool

	pings     int  // on their way
	confirmed bool // the proxy knows that it is subscribed
	lease     *lease.Lease
}

type simLoop struct {
	reader  *Reader
	lane    *simConn
	fetch   *simConn
	flights []*simFlight
}

type sim struct {
	rng    *rand.Rand
	flaw   flaw
	calm   int // percent of changes, bypasses and haste that do not happen
	c      *Cache
	store  *chaosStore
	now    int64
	keys   []*simKey
	loops  []*simLoop
	conns  []*simConn
	source *simConn // Pub/Sub; nil: the node tracks fetches
	halt   func()   // yields for the actor that is running
	over   bool
	lie    string // the first wrong answer
	count  map[string]int
	trace  *strings.Builder
}

func (s *sim) chance(percent int) bool { return s.rng.IntN(100) < percent }

func (s *sim) log(format string, args ...any) {
	if s.trace != nil {
		fmt.Fprintf(s.trace, "%d: "+format+"\n", append([]any{s.now}, args...)...)
	}
}

func (s *sim) connect() *simConn {
	n := &simConn{tracks: map[*simKey]bool{}, lease: new(lease.Lease)}
	s.conns = append(s.conns, n)
	return n
}

// simulate runs one seed and returns the first lie, if any.
func simulate(seed uint64, f flaw, count map[string]int, trace *strings.Builder) string {
	s := &sim{rng: rand.New(rand.NewPCG(seed, 1)), flaw: f, count: count, trace: trace, now: 1000}
	c, err := newCache(Options{Stripes: 1 << s.rng.IntN(5)})
	if err != nil {
		panic(err)
	}
	s.c, s.calm = c, s.rng.IntN(100)
	s.store = &chaosStore{s: s, live: map[uint64]*Entry{}}
	c.store = s.store
	if f.rules != nil {
		f.rules(&c.rules)
	}
	c.rules.halt = func() { s.halt() }
	group := c.StripeOf(c.Hash([]byte("group")))
	for _, name := range []string{"a", "b"} {
		k := []byte(name)
		s.keys = append(s.keys, &simKey{name: k, stripe: c.StripeOf(c.Hash(k)), group: group, version: 1})
	}

	steps := []func(){s.stepServer, s.stepServer, s.stepWorld, s.store.step}
	if s.chance(50) {
		s.source = s.connect()
		s.source.in = append(s.source.in, simMsg{what: "subscribe"})
		steps = append(steps, s.stepSource)
	}
	for range 2 {
		l := &simLoop{reader: c.NewReader(), lane: s.connect(), fetch: s.connect()}
		s.loops = append(s.loops, l)
		step := func() { s.stepLoop(l) }
		steps = append(steps, step)
	}
	s.run(steps)
	return s.lie
}

// run schedules the actors; now and then one of them gets no turn for a while. In the last
// turns nothing changes, nothing dies, and all that is left to do is to read.
func (s *sim) run(steps []func()) {
	const turns, calmAt = 3000, 2000
	type actor struct {
		next func() (struct{}, bool)
		halt func()
	}
	actors := make([]actor, len(steps))
	for i, step := range steps {
		a := &actors[i]
		a.next, _ = iter.Pull(func(yield func(struct{}) bool) {
			a.halt = func() { yield(struct{}{}) }
			for !s.over {
				s.halt = a.halt
				step()
				yield(struct{}{})
			}
		})
	}
	starved := -1
	for turn := 0; turn < turns && s.lie == ""; turn++ {
		if turn == calmAt {
			s.calm = 100
			for _, n := range s.conns {
				n.frozen = false
			}
		}
		if turn%100 == 0 {
			starved = s.rng.IntN(2*len(actors)) - len(actors)
		}
		i := s.rng.IntN(len(actors))
		if i == starved {
			continue
		}
		s.halt = actors[i].halt
		actors[i].next()
	}
	s.over = true
	for i := range actors {
		for ok := true; ok; {
			s.halt = actors[i].halt
			_, ok = actors[i].next()
		}
	}
}

// ---- the node

func (s *sim) expire(k *simKey) {
	if k.expireAt != 0 && s.now >= k.expireAt {
		k.version++
		k.changes = append(k.changes, simChange{k.version, k.expireAt, true})
		s.log("node: %s expires, now v%d", k.name, k.version)
		k.expireAt = 0
	}
}

func (s *sim) change(k *simKey) int {
	s.expire(k)
	k.version++
	k.changes = append(k.changes, simChange{k.version, s.now, false})
	if k.expireAt = 0; s.chance(25) {
		k.expireAt = s.now + 1 + s.rng.Int64N(20)
	}
	for _, n := range s.conns {
		if n.tracks[k] || n.subscribed {
			n.out = append(n.out, simMsg{what: "push", key: k})
			delete(n.tracks, k)
		}
	}
	return k.version
}

func (s *sim) stepServer() {
	for range 1 + s.rng.IntN(3) {
		s.execute()
	}
}

func (s *sim) execute() {
	ready := slices.DeleteFunc(slices.Clone(s.conns), func(n *simConn) bool { return len(n.in) == 0 || n.frozen })
	if len(ready) == 0 {
		return
	}
	n := ready[s.rng.IntN(len(ready))]
	m := n.in[0]
	n.in = n.in[1:]
	switch m.what {
	case "set":
		m.version = s.change(m.key)
		m.op.got = m.version
	case "get":
		s.expire(m.key)
		m.version = m.key.version
		m.at = m.key.expireAt
		if m.flight != nil && s.source == nil && !n.dead {
			n.tracks[m.key] = true
		}
	case "subscribe":
		n.subscribed = true
	}
	s.log("node: %s v%d", m.what, m.version)
	if !n.dead {
		n.out = append(n.out, m)
	}
}

// ---- the world around

func (s *sim) stepWorld() {
	switch s.rng.IntN(40) {
	case 0, 1, 2:
		if s.chance(s.calm) {
			return
		}
		k := s.keys[s.rng.IntN(len(s.keys))]
		s.log("around the proxy: %s v%d", k.name, s.change(k))
	case 3, 4, 5:
		n := s.conns[s.rng.IntN(len(s.conns))]
		n.frozen = !n.frozen && s.calm < 100 && s.chance(20)
	case 6:
		s.now += s.rng.Int64N(30)
	case 7, 8, 9, 10, 11, 12:
		s.now++
	}
}

// kill takes the connection away; the node may still execute what it was sent.
func (s *sim) kill(n *simConn) {
	n.dead, n.frozen, n.subscribed = true, false, false
	n.out = nil
	clear(n.tracks)
	n.lease.Revoke()
	if s.chance(50) {
		n.in = nil
	}
	s.count["kills"]++
}

// ---- the Pub/Sub stream

func (s *sim) stepSource() {
	n := s.source
	switch s.rng.IntN(12) {
	case 0:
		if s.calm < 100 && s.chance(40) {
			s.log("the stream dies")
			s.kill(n)
			s.source = s.connect()
			s.source.in = append(s.source.in, simMsg{what: "subscribe"})
		}
	case 1:
		s.ping(n)
	default:
		if len(n.out) == 0 || n.frozen {
			return
		}
		m := n.out[0]
		n.out = n.out[1:]
		switch m.what {
		case "push":
			s.log("stream: %s changed", m.key.name)
			s.c.Bump(m.key.stripe)
		case "ping":
			n.pings--
			n.lease.Renew(m.at + simBound)
		case "subscribe":
			n.confirmed = true
		}
	}
}

// ---- a loop

func (s *sim) stepLoop(l *simLoop) {
	k := s.keys[s.rng.IntN(len(s.keys))]
	switch p := s.rng.IntN(100); {
	case p < 22:
		s.read(l, k, nil)
	case p < 26:
		if s.chance(s.calm) {
			s.read(l, k, nil)
			return
		}
		w := s.write(l, k)
		if s.chance(50) {
			s.read(l, k, w)
		}
	case p < 46:
		for range 1 + s.rng.IntN(5) {
			s.fromLane(l)
		}
	case p < 86:
		for range 1 + s.rng.IntN(3) {
			s.fromFetch(l)
		}
	case p < 94:
		s.ping(l.fetch)
	case p < 98:
		l.reader.Tick(s.now)
	case s.calm == 100:
	case p < 99:
		s.loseLane(l)
	default:
		s.loseFetch(l)
	}
}

// ping asks for a proof that n is alive, if not more than one is under way.
func (s *sim) ping(n *simConn) {
	if n.pings < 2 {
		n.pings++
		n.in = append(n.in, simMsg{what: "ping", at: s.now})
	}
}

func (s *sim) read(l *simLoop, k *simKey, after *simOp) {
	op := &simOp{key: k, floor: k.floor, after: after, stripe: k.stripe}
	op.hasty = s.flaw.noAgain || s.chance(40) && !s.chance(s.calm)
	if s.calm == 100 {
		s.count["calm reads"]++
	}
	if s.chance(20) {
		op.stripe = k.group
	}
	if s.chance(4) && !s.chance(s.calm) {
		s.bypass(l, op)
		return
	}
	s.ask(l, op)
}

// ask is the read path of a proxy.
func (s *sim) ask(l *simLoop, op *simOp) {
	k := op.key
	now := s.now
	if e := s.lookUp(l, k, now); e != nil {
		s.count["hits"]++
		if s.calm == 100 {
			s.count["calm hits"]++
		}
		v := simVersion(e)
		s.log("hit %s v%d", k.name, v)
		s.checkBound(k, v, now)
		s.deliver(op, v)
		return
	}
	s.halt()
	for i := len(l.flights) - 1; i >= 0; i-- {
		if fl := l.flights[i]; fl.key == k {
			if fl.fetch.Current(s.c) {
				s.count["joins"]++
				fl.waiters = append(fl.waiters, op)
				return
			}
			break
		}
	}
	if op.losses >= Patience {
		s.count["patience lost"]++
		op.alone, op.stripe = true, k.stripe
		s.c.Begin(k.stripe)
		s.halt()
		s.bypass(l, op)
		return
	}
	s.start(l, op)
}

func (s *sim) lookUp(l *simLoop, k *simKey, now int64) *Entry {
	q := ask(s.c, k.name)
	if e := l.reader.Recall(q.DB, q.Kind, q.Key, now); e != nil {
		s.count["recalls"]++
		return e
	}
	e := l.reader.Get(q, now)
	if e != nil {
		l.reader.Remember(q)
	}
	return e
}

func (s *sim) start(l *simLoop, op *simOp) {
	fl := &simFlight{key: op.key, waiters: []*simOp{op}, sentAt: s.now}
	if !s.c.StartFetch(&fl.fetch, ask(s.c, op.key.name), op.key.group) || !s.covered() {
		s.bypass(l, op)
		return
	}
	s.count["fetches"]++
	fl.fetch.Leases[0] = s.leaseFor(l)
	s.halt()
	l.flights = append(l.flights, fl)
	l.fetch.in = append(l.fetch.in, simMsg{what: "get", key: op.key, flight: fl})
}

func (s *sim) covered() bool {
	return s.source == nil || s.source.confirmed
}

func (s *sim) leaseFor(l *simLoop) *lease.Lease {
	switch {
	case s.flaw.noLeases:
		return nil
	case s.source != nil:
		return s.source.lease
	}
	return l.fetch.lease
}

func (s *sim) bypass(l *simLoop, op *simOp) {
	s.count["bypasses"]++
	l.lane.sent = append(l.lane.sent, op)
	l.lane.in = append(l.lane.in, simMsg{what: "get", key: op.key, op: op})
}

func (s *sim) write(l *simLoop, k *simKey) *simOp {
	op := &simOp{key: k, write: true, stripe: []Stripe{k.stripe, k.group, All}[s.rng.IntN(3)]}
	s.c.Begin(op.stripe)
	s.halt()
	l.lane.sent = append(l.lane.sent, op)
	l.lane.in = append(l.lane.in, simMsg{what: "set", key: k, op: op})
	return op
}

func (s *sim) fromLane(l *simLoop) {
	n := l.lane
	if len(n.out) == 0 || n.frozen {
		return
	}
	m := n.out[0]
	n.out, n.sent = n.out[1:], n.sent[1:]
	if m.op.write || m.op.alone {
		if s.flaw.meekEnd {
			s.c.lines[m.op.stripe].word.Add(^uint64(0))
		} else {
			s.c.End(m.op.stripe)
		}
	} else if !s.flaw.noReveal {
		s.c.Bump(m.op.stripe)
	}
	s.halt()
	s.deliver(m.op, m.version)
}

func (s *sim) fromFetch(l *simLoop) {
	n := l.fetch
	if len(n.out) == 0 || n.frozen {
		return
	}
	m := n.out[0]
	n.out = n.out[1:]
	switch m.what {
	case "push":
		before, after := s.c.Push(m.key.stripe)
		s.log("push: %s changed", m.key.name)
		s.halt()
		for _, fl := range l.flights {
			was := fl.fetch.deps
			if s.flaw.generousAdvance {
				before = fl.fetch.deps[0].word
			}
			if fl.fetch.Advance(m.key.stripe, before, after); was != fl.fetch.deps {
				s.count["advances"]++
			}
		}
	case "ping":
		if n.pings--; s.source == nil {
			n.lease.Renew(m.at + simBound)
		}
	case "get":
		l.flights = slices.DeleteFunc(l.flights, func(fl *simFlight) bool { return fl == m.flight })
		deliver := s.fill(l, m)
		s.halt()
		if !deliver {
			s.lose(l, m)
			return
		}
		for _, op := range m.flight.waiters {
			s.deliver(op, m.version)
		}
	}
}

// lose lets those who waited for a lost reply ask again, except the hasty.
func (s *sim) lose(l *simLoop, m simMsg) {
	bumped := s.flaw.silentLoser
	for _, op := range m.flight.waiters {
		if !op.hasty {
			op.losses++
			s.ask(l, op)
			continue
		}
		s.count["lost replies delivered"]++
		if !bumped {
			s.c.Bump(op.key.stripe)
			bumped = true
		}
		s.halt()
		s.deliver(op, m.version)
	}
}

// fill reports whether the reply may be delivered.
func (s *sim) fill(l *simLoop, m simMsg) bool {
	fl := m.flight
	until := s.now + 1000
	if m.at != 0 && !s.flaw.noExpiry {
		until = m.at // the node's clock and ours are one here, so this is exact
	}
	e, err := NewEntry(ask(s.c, fl.key.name), Map, fmt.Appendf(nil, "%%1\r\n$1\r\nv\r\n$5\r\n%05d\r\n", m.version), until)
	if err != nil {
		panic(err)
	}
	before := s.c.fills.Load()
	deliver := s.c.Fill(&fl.fetch, e)
	if s.c.fills.Load() > before {
		s.count["fills"]++
		s.log("fill %s v%d", fl.key.name, m.version)
	}
	return deliver
}

// loseLane: the fate of the lane's writes is unknown, its reads are answered with errors.
func (s *sim) loseLane(l *simLoop) {
	s.kill(l.lane)
	for _, op := range l.lane.sent {
		if op.write || op.alone {
			s.c.End(op.stripe)
		}
	}
	l.lane = s.connect()
}

// loseFetch: those who waited for its fetches ask again.
func (s *sim) loseFetch(l *simLoop) {
	s.log("a fetch connection dies")
	s.kill(l.fetch)
	l.fetch = s.connect()
	flights := l.flights
	l.flights = nil
	for _, fl := range flights {
		for _, op := range fl.waiters {
			s.ask(l, op)
		}
	}
}

// ---- the judge

func (s *sim) deliver(op *simOp, v int) {
	k := op.key
	switch {
	case op.write:
	case v < op.floor:
		s.accuse("%s: read v%d, but v%d had been seen before it began", k.name, v, op.floor)
	case op.after != nil && (op.after.got == 0 || v < op.after.got):
		s.accuse("%s: read v%d behind the same client's write of v%d", k.name, v, op.after.got)
	}
	s.log("deliver %s v%d (write %v)", k.name, v, op.write)
	k.floor = max(k.floor, v)
}

func (s *sim) checkBound(k *simKey, v int, now int64) {
	for _, ch := range k.changes {
		expired := ch.silent && ch.version == v+1 // the deadline of this very value
		if ch.version > v && (expired && ch.at <= now || ch.at <= now-simBound) {
			s.accuse("%s: hit v%d at %d, but v%d is from %d (expiry %v)", k.name, v, now, ch.version, ch.at, ch.silent)
		}
	}
}

func (s *sim) accuse(format string, args ...any) {
	if s.lie == "" {
		s.lie = fmt.Sprintf(format, args...)
		s.log("LIE: %s", s.lie)
	}
}

func simVersion(e *Entry) int {
	v, err := strconv.Atoi(string(e.buf[e.size-7 : e.size-2]))
	if err != nil {
		panic(err)
	}
	return v
}

// ---- a store as bad as the contract of store allows

type chaosStore struct {
	s      *sim
	live   map[uint64]*Entry
	queue  []*Entry
	leaves []*Entry // exits not reported yet
}

func (st *chaosStore) get(hash uint64) *Entry {
	e := st.live[hash]
	st.s.halt()
	if st.s.chance(3) {
		return nil
	}
	return e
}

func (st *chaosStore) set(hash uint64, e *Entry, _ int64) bool {
	if st.s.chance(5) {
		return false
	}
	if st.live[hash] != nil && st.s.chance(50) {
		st.put(e)
		return true
	}
	st.queue = append(st.queue, e)
	return true
}

func (st *chaosStore) put(e *Entry) {
	if old := st.live[e.hash]; old != nil {
		st.leaves = append(st.leaves, old)
	}
	st.live[e.hash] = e
}

func (st *chaosStore) step() {
	if n := len(st.queue); n > 0 && st.s.chance(90) {
		i := st.s.rng.IntN(n)
		e := st.queue[i]
		st.queue = slices.Delete(st.queue, i, i+1)
		if st.s.chance(8) {
			st.leaves = append(st.leaves, e)
		} else {
			st.put(e)
		}
	}
	if k := st.s.keys[st.s.rng.IntN(len(st.s.keys))]; st.s.chance(3) {
		id := ask(st.s.c, k.name).id
		if e := st.live[id]; e != nil {
			delete(st.live, id)
			st.leaves = append(st.leaves, e)
		}
	}
	if len(st.leaves) > 0 && st.s.chance(30) {
		st.s.c.release(st.leaves[0])
		st.leaves = st.leaves[1:]
	}
}

func (st *chaosStore) used() int64 { return 0 }
func (st *chaosStore) settle()     {}
func (st *chaosStore) clear()      {}
func (st *chaosStore) close()      {}

// ---- the tests

func TestCoherenceUnderEveryInterleavingTried(t *testing.T) {
	count := map[string]int{}
	for seed := range uint64(1500) {
		if lie := simulate(seed, flaw{}, count, nil); lie != "" {
			var trace strings.Builder
			simulate(seed, flaw{}, map[string]int{}, &trace)
			t.Fatalf("seed %d: %s\n%s", seed, lie, trace.String())
		}
	}
	t.Log(count)
	for _, what := range []string{"hits", "recalls", "joins", "fetches", "bypasses", "fills", "advances", "lost replies delivered", "patience lost", "kills"} {
		if count[what] < 1000 {
			t.Errorf("the simulation had only %d %s: it proves little", count[what], what)
		}
	}
}

// TestEachMechanismIsNeeded: the simulator must find a lie as soon as any one of them is missing.
// Missing busy takes a rarer interleaving, see TestTwoFillsOfOneStripe.
func TestEachMechanismIsNeeded(t *testing.T) {
	flaws := []flaw{
		{name: "epochs", rules: func(r *rules) { r.ignore(epochMask) }},
		{name: "epoch of a hit", rules: func(r *rules) { r.hit &^= epochMask }},
		{name: "epoch of a join", rules: func(r *rules) { r.join &^= epochMask }},
		{name: "fills of a join", rules: func(r *rules) { r.join &^= fillsMask }},
		{name: "pending writes", rules: func(r *rules) {
			r.ignore(pendingMask)
			r.bypass = 0
		}},
		{name: "pending write of a hit", rules: func(r *rules) { r.hit &^= pendingMask }},
		{name: "pending write of a join", rules: func(r *rules) { r.join &^= pendingMask }},
		{name: "fill rule", rules: func(r *rules) { r.fill &^= fillsMask }},
		{name: "directory", rules: func(r *rules) { r.way = 0 }},
		{name: "bump by a revealing reply", noReveal: true},
		{name: "bump by a lost reply that is delivered", silentLoser: true},
		{name: "leases", noLeases: true},
		{name: "expiry", noExpiry: true},
		{name: "epoch of End", meekEnd: true},
		{name: "Advance compares words", generousAdvance: true},
	}
	for _, f := range flaws {
		t.Run(strings.ReplaceAll(f.name, " ", "_"), func(t *testing.T) {
			for seed := range uint64(6000) {
				if lie := simulate(seed, f, map[string]int{}, nil); lie != "" {
					t.Logf("found with seed %d: %s", seed, lie)
					return
				}
			}
			t.Error("no lie found without it: either it is not needed or the simulator is blind")
		})
	}
}

// TestLosersLetTheCacheSettle: when nothing changes any more most reads are hits, but not
// if lost replies are delivered instead of asked for again.
func TestLosersLetTheCacheSettle(t *testing.T) {
	share := func(f flaw) float64 {
		count := map[string]int{}
		for seed := range uint64(300) {
			if lie := simulate(seed, f, count, nil); lie != "" {
				t.Fatalf("seed %d: %s", seed, lie)
			}
		}
		return float64(count["calm hits"]) / float64(count["calm reads"])
	}
	again, delivered := share(flaw{}), share(flaw{noAgain: true})
	t.Logf("hits: %.0f %%; with lost replies delivered: %.0f %%", 100*again, 100*delivered)
	if again < 0.5 {
		t.Errorf("only %.0f %% of calm reads are hits: loops disturb each other", 100*again)
	}
	if delivered > 0.5 {
		t.Errorf("%.0f %% of calm reads are hits although lost replies are delivered: the simulator does not see loops disturb each other", 100*delivered)
	}
}
