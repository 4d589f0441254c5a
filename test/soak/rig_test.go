package soak

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/test/harness"
)

// long is for how long each run goes on; 0: one round of faults.
var long = flag.Duration("long", 0, "how long each run of the soak test lasts; 0: as short as in CI")

// binary is built once, by TestMain.
var binary harness.Binary

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	scope := clustertest.NewScope()
	defer scope.Close()
	var err error
	if binary, err = harness.Build(scope.TempDir()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

const (
	perShard = 3 // counters

	timeout = 3 * time.Second // upstream.timeout of the proxy: longer than a busy machine stands still

	maxLag = time.Second // upstream.max_replica_lag

	// hung is when a reply is overdue: no command waits for longer than the timeout, but machines are slow.
	hung = timeout + 6*time.Second
)

// rig is proxies in front of a stage, with the clients that use them.
type rig struct {
	t        *testing.T
	stage    stage
	fronts   []*front
	book     *ledger
	crowd    *crowd
	audience *audience
}

// front is one of the proxies.
type front struct {
	*harness.Proxy
	name     string
	replicas bool // they answer reads, too

	idle   usage     // before it had clients
	memory []float64 // in the course of the run
}

// newRig starts proxies without clients.
func newRig(t *testing.T, s stage) *rig {
	t.Helper()
	r := &rig{t: t, stage: s, book: newLedger(s)}
	r.open("the proxy")
	if s.replicas() > 0 {
		r.open("the proxy that reads from replicas", "--upstream.read_from", "replica_preferred", "--upstream.read_your_writes", "true", "--upstream.max_replica_lag", maxLag.String())
		r.fronts[1].replicas = true
	}
	r.crowd = &crowd{t: t, fronts: r.fronts, book: r.book}
	return r
}

func (r *rig) open(name string, args ...string) {
	r.t.Helper()
	common := []string{"--backend", r.stage.url(), "--loops", "2", "--upstream.timeout", timeout.String(), "--upstream.reconnect_backoff_max", "500ms"}
	r.fronts = append(r.fronts, &front{Proxy: binary.StartEarly(r.t, append(common, args...)...), name: name})
}

// begin lets clients in.
func (r *rig) begin() {
	for _, f := range r.fronts {
		f.idle = usageOf(f.Proxy)
	}
	r.audience = gather(r.crowd, r.stage.shards())
	r.crowd.start()
}

// startRig is newRig with clients who are served.
func startRig(t *testing.T, s stage) *rig {
	t.Helper()
	r := newRig(t, s)
	r.service(everywhere)
	r.begin()
	return r
}

// during lets f happen while commands on the keys of a shard may fail, and waits until they do not any more.
func (r *rig) during(what string, shard int, f func()) {
	r.t.Helper()
	r.storm(fmt.Sprintf("%s of shard %d", what, shard), storm{shard: shard, on: true}, f)
}

// storm lets f happen, with what it excuses, and waits until commands are executed again.
func (r *rig) storm(what string, s storm, f func()) {
	r.t.Helper()
	r.book.setWeather(s)
	begun := time.Now()
	f()
	done := time.Now()
	r.service(everywhere)
	r.clear()
	r.t.Logf("%s: %v, service %v later", what, done.Sub(begun).Round(time.Millisecond), time.Since(done).Round(time.Millisecond))
}

// clear makes good weather when what was sent before has been answered.
func (r *rig) clear() {
	release := r.crowd.hold()
	r.book.setWeather(storm{})
	release()
}

func everywhere(int) bool { return true }

// service waits until every proxy executes commands on the keys of some shards, on every loop: a loop may find out later than
// another that a server is back.
func (r *rig) service(where func(shard int) bool) {
	r.t.Helper()
	n := r.stage.shards()
	for _, f := range r.fronts {
		probes := make([]*clustertest.Conn, 6) // the loop with the fewest clients gets the next one
		for i := range probes {
			probes[i] = clustertest.Dial(r.t, f.Addr)
		}
		clustertest.Await(r.t, "service by "+f.name, func() error {
			for i := range len(probes) * n {
				if shard := i % n; where(shard) {
					if got := probes[i/n].Do("SET", keyOf("probe", n, shard, 0), "x"); got != "+OK\r\n" {
						return errors.New(got)
					}
				}
			}
			return nil
		})
		for _, p := range probes {
			p.Close()
		}
	}
}

// await waits until clients have got n more replies.
func (r *rig) await(n int) {
	r.t.Helper()
	from := r.book.answered()
	clustertest.Await(r.t, "clients to go on", func() error {
		if now := r.book.answered(); now < from+n && !r.book.failed() {
			return fmt.Errorf("%d of %d", now-from, n)
		}
		return nil
	})
}

// finish sends the clients away and compares what is there with what they know of it.
func (r *rig) finish() {
	r.t.Helper()
	r.crowd.stop()
	r.audience.stop()
	conn := clustertest.Dial(r.t, r.fronts[0].Addr)
	defer conn.Close()
	for _, c := range append(append([]*counter(nil), r.book.counters...), r.book.watched...) {
		reply := conn.Do("EVAL", "return tonumber(redis.call('GET', KEYS[1]) or 0)", "1", c.key)
		value, err := strconv.Atoi(reply[1 : len(reply)-2])
		if err != nil {
			r.t.Fatalf("counter %s: %q", c.key, reply)
		}
		r.book.audit(c, value)
	}
	for _, q := range r.book.queues {
		left := conn.Do("EVAL", "return table.concat(redis.call('LRANGE', KEYS[1], 0, -1), ' ')", "1", q.key)
		if isError(left) {
			r.t.Fatalf("queue %s: %q", q.key, left)
		}
		q.audit(r.book, strings.Fields(payload(left)))
	}
	for _, f := range r.book.faults {
		r.t.Error(f)
	}
	r.t.Logf("%d replies; errors: %v", r.book.replies, r.book.refusals)
}
