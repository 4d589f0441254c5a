package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/slot"
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
	clients  = 12
	shards   = 3
	perShard = 3 // counters

	timeout = 3 * time.Second // upstream.timeout of the proxy: longer than a busy machine stands still

	// hung is when a reply is overdue: a command may wait for a new master for one timeout and then for its
	// answer for another, and machines are slow.
	hung = 2*timeout + 6*time.Second
)

// durable Redis forgets nothing that it has acknowledged when it is killed: replies are sent after
// the operating system has taken the log.
var durable = []string{"--appendonly", "yes", "--appendfsync", "no"}

// How long servers of a cluster wait for each other before they elect another master. One that a
// busy machine holds up is no dead one, and an election that nobody meant to happen loses writes.
const (
	calm  = 20 * time.Second
	hasty = 1500 * time.Millisecond
)

// rig is a proxy in front of a cluster, with the clients that use it.
type rig struct {
	t     *testing.T
	c     *clustertest.Cluster
	proxy *harness.Proxy
	book  *ledger
	crowd *crowd
}

func startRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, c: clustertest.StartCluster(t, shards, 1, append([]string{"--cluster-require-full-coverage", "no"}, durable...)...)}
	r.patience(calm)
	r.proxy = binary.Start(t, "--backend", "redis-cluster://"+strings.Join(r.c.Addrs()[:shards], ","), "--loops", "2", "--upstream.timeout", timeout.String())
	r.book = &ledger{refusals: map[string]int{}}
	for i := range shards * perShard {
		r.book.counters = append(r.book.counters, &counter{key: keyOf("count", i%shards, i/shards), shard: i % shards})
	}
	r.crowd = &crowd{t: t, front: r.proxy.Addr, book: r.book, patience: hung}
	return r
}

// keyOf is the i-th key of the form "prefix…" of a shard.
func keyOf(prefix string, shard, i int) string {
	for j := 0; ; j++ {
		key := prefix + strconv.Itoa(j)
		if int(slot.Of([]byte(key)))*shards/slot.Count != shard {
			continue
		}
		if i--; i < 0 {
			return key
		}
	}
}

func (r *rig) patience(d time.Duration) {
	r.t.Helper()
	for _, n := range r.c.Nodes {
		if n.Running() {
			n.Do("CONFIG", "SET", "cluster-node-timeout", d.Milliseconds())
		}
	}
}

// master is the server that has the keys of a shard.
func (r *rig) master(shard int) *clustertest.Redis {
	return r.c.OwnerOfSlot(shard * slot.Count / shards)
}

// during lets f happen while commands on the keys of a shard may fail, and waits until they do not any more.
func (r *rig) during(what string, shard int, f func()) {
	r.t.Helper()
	r.book.setWeather(storm{shard: shard, on: true})
	begun := time.Now()
	f()
	done := time.Now()
	probe := clustertest.Dial(r.t, r.proxy.Addr)
	defer probe.Close()
	clustertest.Await(r.t, "service after "+what, func() error {
		for i := range shards {
			if got := probe.Do("SET", keyOf("probe", i, 0), "x"); got != "+OK\r\n" {
				return errors.New(got)
			}
		}
		return nil
	})
	// What was sent in the storm may still be answered.
	release := r.crowd.hold()
	r.book.setWeather(storm{})
	release()
	r.t.Logf("%s of shard %d: %v, service %v later", what, shard, done.Sub(begun).Round(time.Millisecond), time.Since(done).Round(time.Millisecond))
}

// replicated waits until the replica of a master has executed everything that the master has.
func (r *rig) replicated(master *clustertest.Redis, shard int) {
	r.t.Helper()
	conn := master.Client().Conn()
	defer conn.Close()
	ctx := context.Background()
	if err := conn.Set(ctx, keyOf("marker", shard, 0), "x", 0).Err(); err != nil {
		r.t.Fatalf("cannot write to %s: %v", master.Addr, err)
	}
	if n, err := conn.Wait(ctx, 1, clustertest.Deadline).Result(); n < 1 || err != nil {
		r.t.Fatalf("no replica of %s has what it has: %d, %v", master.Addr, n, err)
	}
}

// blow is a fault, with the shard that it hits.
type blow struct {
	name string
	do   func(r *rig, shard int)
}

const longFreeze = "a freeze beyond the timeout"

var blows = []blow{
	{"a slot moves", func(r *rig, shard int) {
		to := r.master((shard + 1) % shards)
		key := r.book.counters[shard+shards*rand.IntN(perShard)].key
		from := r.c.OwnerOf(key)
		sl := r.c.SlotOf(key)
		r.c.BeginMigrate(sl, to)
		r.c.MigrateKeys(sl, to, 2)
		r.c.MigrateKeys(sl, to, 0)
		r.c.FinishMigrate(sl, to)
		r.c.AwaitOK()
		r.c.MoveSlot(sl, from)
		r.c.AwaitOK()
		r.awaitMap(key)
	}},
	{"CLUSTER FAILOVER", func(r *rig, shard int) {
		r.patience(hasty)
		r.c.Failover(r.c.ReplicasOf(r.master(shard))[0])
		r.patience(calm)
	}},
	{"CLIENT KILL", func(r *rig, shard int) {
		r.during("CLIENT KILL", shard, func() { r.master(shard).DoErr("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") })
	}},
	{"kill -9 and restart", func(r *rig, shard int) {
		r.during("kill -9 and restart", shard, func() {
			r.master(shard).Restart()
			r.c.AwaitOK()
			r.patience(calm)
		})
	}},
	{"a short freeze", func(r *rig, shard int) { // within the timeout: nobody sees an error
		m := r.master(shard)
		m.Freeze()
		time.Sleep(timeout / 4)
		m.Thaw()
	}},
	{longFreeze, func(r *rig, shard int) {
		r.during("a freeze", shard, func() {
			m := r.master(shard)
			m.Freeze()
			time.Sleep(timeout + timeout/2)
			m.Thaw()
		})
	}},
	{"kill -9 of a master", func(r *rig, shard int) {
		r.during("kill -9 and succession", shard, func() {
			r.succeed(shard, (*clustertest.Redis).Stop, (*clustertest.Redis).Restart)
		})
	}},
	{"a freeze with succession", func(r *rig, shard int) {
		r.during("a freeze with succession", shard, func() {
			r.succeed(shard, (*clustertest.Redis).Freeze, (*clustertest.Redis).Thaw)
		})
	}},
}

// awaitMap waits until the proxy knows who has a key. If the one who had it were frozen before it could say MOVED, what
// was sent there would share its fate.
func (r *rig) awaitMap(key string) {
	r.t.Helper()
	redirects := func() float64 { return r.proxy.Metric("cosky_proxy_redirects_total") }
	clustertest.Await(r.t, "no more redirects", func() error {
		before := redirects()
		for range 4 { // on every loop
			conn := clustertest.Dial(r.t, r.proxy.Addr)
			conn.Do("GET", key)
			conn.Close()
		}
		if n := redirects() - before; n > 0 {
			return fmt.Errorf("%.0f more", n)
		}
		return nil
	})
}

// succeed takes a master out, lets its replica take over, and brings it back. What it was asked after it had
// been taken out must not count: it comes back when the proxy has given it up.
func (r *rig) succeed(shard int, out, back func(*clustertest.Redis)) {
	m := r.master(shard)
	r.patience(hasty)
	heir := r.c.ReplicasOf(m)[0]
	release := r.crowd.hold()
	r.replicated(m, shard)
	out(m)
	release()
	clustertest.Await(r.t, "the replica to take over", func() error {
		if role := heir.InfoField("replication", "role"); role != "master" {
			return fmt.Errorf("it is a %s", role)
		}
		return nil
	})
	probe := clustertest.Dial(r.t, r.proxy.Addr)
	defer probe.Close()
	promoted := time.Now()
	clustertest.Await(r.t, "service by the new master", func() error {
		if got := probe.Do("SET", keyOf("probe", shard, 0), "x"); got != "+OK\r\n" {
			return errors.New(got)
		}
		return nil
	})
	r.t.Logf("service %v after the promotion", time.Since(promoted).Round(time.Millisecond))
	time.Sleep(2 * time.Second) // the proxy has closed every connection to the old master
	back(m)
	r.patience(calm)
	r.c.AwaitOK()
}
