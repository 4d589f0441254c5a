package proxy

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/slot"
	"cosky-proxy/nearcache"
	"cosky-proxy/nearcache/lease"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/resp"
)

// trip is what a command goes through in the proxy, without system calls: a loop that does not
// run, on it a client and a lane. Their connections are closed, so that their output just collects.
type trip struct {
	s  *session
	ln *lane // nil in a pipeline that is answered here

	pipeline []byte // depth commands
	replies  []byte // what the backend answers to them; none: the proxy does
	answer   []byte // what the client gets
}

// depth is how many commands come in one read.
const depth = 16

type tripCase struct {
	name    string
	command []string
	reply   string // of the backend
	cached  bool
	resp3   bool
	cluster bool // of three masters; only one of them is asked
}

// tripCases are the commands that have to be cheap.
func tripCases() []tripCase {
	value := strings.Repeat("x", 64)
	hash := "*20\r\n"
	for i := range 10 {
		hash += fmt.Sprintf("$7\r\nfield-%d\r\n$30\r\nvalue-%024d\r\n", i, i)
	}
	set := "*100\r\n"
	for i := range 100 {
		set += fmt.Sprintf("$16\r\nservice-%08d\r\n", i)
	}
	return []tripCase{
		{name: "PING", command: []string{"PING"}},
		{name: "HGETALL cached", command: []string{"HGETALL", "bench-{x}:cfg:app"}, reply: hash, cached: true},
		{name: "HGETALL cached, RESP3", command: []string{"HGETALL", "bench-{x}:cfg:app"}, reply: hash, cached: true, resp3: true},
		{name: "HGETALL cached, of a group", command: []string{"HGETALL", "bench-{x}:svc_itc:order@http#10.0.0.1#8080"}, reply: hash, cached: true},
		{name: "SMEMBERS cached", command: []string{"SMEMBERS", "bench-{x}:svc_idx"}, reply: set, cached: true},
		{name: "GET by a rule", command: []string{"GET", "rule:000000000042"}, reply: "$64\r\n" + value + "\r\n", cached: true},
		{name: "HGET by a rule", command: []string{"HGET", "rule:000000000042", "field"}, reply: "$64\r\n" + value + "\r\n", cached: true},
		{name: "GET", command: []string{"GET", "key:000000000042"}, reply: "$64\r\n" + value + "\r\n"},
		{name: "SET", command: []string{"SET", "key:000000000042", value}, reply: resp.OK},
		{name: "GET, cluster", command: []string{"GET", "key:000000000042"}, reply: "$64\r\n" + value + "\r\n", cluster: true},
		{name: "HGETALL", command: []string{"HGETALL", "plain-{x}:hash"}, reply: hash},
	}
}

type fixedTopology struct{ *cluster.Topology }

func (t fixedTopology) Current() *cluster.Topology { return t.Topology }
func (fixedTopology) Refresh(string)               {}

func newTrip(tb testing.TB, c tripCase) *trip {
	tb.Helper()
	cache, err := nearcache.New(nearcache.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(cache.Close)
	topology := cluster.NewSingle(1, cluster.Standalone, &cluster.Node{Addr: "127.0.0.1:1"})
	if c.cluster {
		topology = threeMasters(tb)
	}
	srv, err := New(Options{
		Loops:    1,
		Logger:   slog.New(slog.NewTextHandler(io.Discard, nil)),
		Backend:  Backend{Mode: topology.Mode, Tracking: true, Version: "7.0.15"},
		Topology: fixedTopology{topology},
		Clients:  ClientOptions{OutputLimit: 1 << 20, MaxInFlight: 1024, RequestBuffer: 1 << 20, MaxRequest: 1 << 20, BufferMemory: 64 << 20},
		Upstream: UpstreamOptions{MaxPins: 16, QueueLimit: 1 << 20},
		Cache: CacheOptions{
			Invalidation: InvalidationTracking, Cache: cache, MaxStaleness: time.Second, TTL: time.Minute, MaxEntry: 1 << 20,
			Rules: []Rule{{Match: "rule:*", Commands: []string{"get", "hget"}, TTL: time.Minute, MaxValue: 1 << 20}},
		},
		Hot:     HotOptions{Sample: 16, Interval: 10 * time.Second},
		Scripts: ScriptOptions{MaxCount: 1, MaxBytes: 1},
		SlowLog: SlowLogOptions{SlowerThan: 10 * time.Millisecond, MaxLen: 128},
	})
	if err != nil {
		tb.Fatal(err)
	}
	l := srv.loops[0]
	tb.Cleanup(l.nl.Stop)
	l.adopt(srv.opts.Topology.Current())

	p := &trip{s: l.welcome(closedConn(tb, l.nl), 1).(*session)}
	p.s.resp3 = c.resp3
	request := clustertest.Encode(c.command...)
	p.pipeline = []byte(strings.Repeat(request, depth))
	switch {
	case c.reply == "":
		p.answer = []byte(strings.Repeat(resp.Pong, depth))
	case c.cached:
		p.answer = bytes.Repeat(p.keep(tb, &c).AppendReply(nil, c.resp3), depth)
	default:
		p.ln = p.openLane(closedConn(tb, l.nl), c.command[1])
		p.replies = []byte(strings.Repeat(c.reply, depth))
		p.answer = p.replies
	}
	return p
}

func threeMasters(tb testing.TB) *cluster.Topology {
	tb.Helper()
	var shards []cluster.Shard
	for i := range uint16(3) {
		const third = slot.Count / 3
		r := slot.Range{First: i * third, Last: (i+1)*third - 1}
		if i == 2 {
			r.Last = slot.Count - 1
		}
		addr := fmt.Sprintf("127.0.0.1:%d", i+1)
		shards = append(shards, cluster.Shard{Primary: &cluster.Node{ID: addr, Addr: addr}, Ranges: []slot.Range{r}})
	}
	t, err := cluster.New(1, cluster.Cluster, shards)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

// closedConn is a connection that takes output and sends nothing.
func closedConn(tb testing.TB, nl *netloop.Loop) *netloop.Conn {
	tb.Helper()
	one, other := net.Pipe()
	tb.Cleanup(func() { other.Close() })
	c, err := nl.Attach(one, nil)
	if err != nil {
		tb.Fatal(err)
	}
	c.Close()
	return c
}

// openLane makes c the loop's lane to the owner of key.
func (p *trip) openLane(c *netloop.Conn, key string) *lane {
	l := p.s.loop
	n, _ := l.owner(l.target([]byte(key)).slot)
	ln := &lane{loop: l, node: n, conn: c, ready: true, greeted: true}
	n.opened[ln], n.shared[ln.key], n.plain[0] = struct{}{}, ln, ln
	return ln
}

// keep puts the reply into the near-cache, as a fetch does.
func (p *trip) keep(tb testing.TB, c *tripCase) *nearcache.Entry {
	tb.Helper()
	l := p.s.loop
	var args [][]byte
	for _, a := range c.command {
		args = append(args, []byte(a))
	}
	cmd, problem := l.table.Resolve(args)
	if problem != "" {
		tb.Fatal(problem)
	}
	rd := l.reads[cmd.ID]
	alive := new(lease.Lease)
	alive.Renew(int64(time.Hour))
	f := &fetch{question: l.ask(0, cmd, rd, args), read: rd, shape: rd.shapeOf(args), policy: l.policyOf(rd.bit, args[1])}
	f.question = f.question.Clone()
	f.body, f.until = []byte(c.reply), int64(time.Hour)
	f.grounds = [3]*lease.Lease{alive, alive}
	if !f.policy.keeps || !f.begin(l) {
		tb.Fatalf("%q cannot be kept", c.command)
	}
	f.pttl = -1
	e, err := f.entry()
	if err == nil {
		e.SetLabel(l.groundsOf(f))
	}
	if err != nil || !l.cache.Fill(&f.Fetch, e) {
		tb.Fatalf("%q is not kept: %v", c.command, err)
	}
	clustertest.Await(tb, "the entry", func() error {
		if l.reader.Get(&f.question, l.now()) != e {
			return fmt.Errorf("not there yet")
		}
		return nil
	})
	return e
}

// send has the client's pipeline come in.
func (p *trip) send() { p.s.OnData(p.pipeline) }

// receive has the backend's replies come in.
func (p *trip) receive() {
	if p.ln != nil {
		p.ln.conn.Out = p.ln.conn.Out[:0]
		p.ln.OnData(p.replies)
	}
}

// take empties the client's output.
func (p *trip) take() []byte {
	out := p.s.conn.Out
	p.s.conn.Out = out[:0]
	return out
}

func (p *trip) check(tb testing.TB) {
	tb.Helper()
	p.send()
	p.receive()
	if got := p.take(); !slices.Equal(got, p.answer) {
		tb.Fatalf("%.60q is answered %.200q, want %.200q", p.pipeline, got, p.answer)
	}
}

// TestTripDoesNotAllocate: from the bytes of a command to those of its reply.
func TestTripDoesNotAllocate(t *testing.T) {
	for _, c := range tripCases() {
		p := newTrip(t, c)
		p.check(t)
		hits := p.s.loop.stats.Hits
		if n := testing.AllocsPerRun(100, func() {
			p.send()
			p.receive()
			p.take()
		}); n != 0 {
			t.Errorf("%s: %v allocations for %d commands", c.name, n, depth)
		}
		if got := p.s.loop.stats.Hits - hits; c.cached != (got > 0) {
			t.Errorf("%s: %d hits", c.name, got)
		}
	}
}

// BenchmarkTrip is the time of one command in the proxy, system calls excluded, when clients
// send pipelines. Where a backend answers, ns/route is the way there, ns/reply the way back.
func BenchmarkTrip(b *testing.B) {
	for _, c := range tripCases() {
		b.Run(strings.ReplaceAll(c.name, " ", "_"), func(b *testing.B) {
			p := newTrip(b, c)
			p.check(b)
			var reply time.Duration
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; n += depth {
				p.send()
				if p.ln != nil {
					began := time.Now()
					p.receive()
					reply += time.Since(began)
				}
				p.take()
			}
			if p.ln != nil {
				b.ReportMetric(float64(b.Elapsed()-reply)/float64(b.N), "ns/route")
				b.ReportMetric(float64(reply)/float64(b.N), "ns/reply")
			}
		})
	}
}
