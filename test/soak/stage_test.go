package soak

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/slot"
)

// stage is what stands behind the proxies.
type stage interface {
	url() string
	shards() int
	replicas() int                            // of each shard
	master(shard int) *clustertest.Redis      // the server that has its keys
	heir(old *clustertest.Redis) func() error // nil once another server has taken over from old
	patience(d time.Duration)                 // sets after how much silence of a master its successor is elected
	settled()                                 // waits until all servers are well
	blows() []blow                            // what happens there
}

// How long servers wait for each other before they elect another master. One that a
// busy machine holds up is no dead one, and an election that nobody meant to happen loses writes.
const (
	calm  = 20 * time.Second
	hasty = 1500 * time.Millisecond
)

// durable Redis forgets nothing that it has acknowledged when it is killed: replies are sent after
// the operating system has taken the log.
var durable = []string{"--appendonly", "yes", "--appendfsync", "no"}

// keyOf is the i-th key of the form "prefix…" of a shard.
func keyOf(prefix string, shards, shard, i int) string {
	return keyWhere(func(slotOfKey int) bool { return slotOfKey*shards/slot.Count == shard }, prefix, i)
}

// keyWhere is the i-th key of the form "prefix…" whose slot fits.
func keyWhere(fits func(slotOfKey int) bool, prefix string, i int) string {
	for j := 0; ; j++ {
		key := prefix + strconv.Itoa(j)
		if !fits(int(slot.Of([]byte(key)))) {
			continue
		}
		if i--; i < 0 {
			return key
		}
	}
}

// blow is a fault, with the shard that it hits.
type blow struct {
	name string
	kind kind
	do   func(r *rig, shard int)
}

// kind says when a blow is left out.
type kind int

const (
	brief      kind = iota
	lengthy         // in a short run
	succession      // in a short run all but one
)

// nuisances are blows that every server may get.
var nuisances = []blow{
	{"CLIENT KILL", brief, func(r *rig, shard int) {
		r.during("CLIENT KILL", shard, func() { r.stage.master(shard).DoErr("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") })
	}},
	{"kill -9 and restart", brief, func(r *rig, shard int) {
		r.during("kill -9 and restart", shard, func() {
			r.stage.master(shard).Restart()
			r.stage.settled()
			r.stage.patience(calm)
		})
	}},
	{"CLIENT PAUSE", brief, func(r *rig, shard int) { // nobody sees an error
		r.stage.master(shard).Do("CLIENT", "PAUSE", (timeout / 6).Milliseconds(), "WRITE")
		r.await(300)
	}},
	{"a short freeze", brief, func(r *rig, shard int) { // within the timeout: nobody sees an error
		m := r.stage.master(shard)
		m.Freeze()
		time.Sleep(timeout / 4)
		m.Thaw()
	}},
	{"a freeze beyond the timeout", lengthy, func(r *rig, shard int) {
		r.during("a freeze", shard, func() {
			m := r.stage.master(shard)
			m.Freeze()
			time.Sleep(timeout + timeout/2)
			m.Thaw()
		})
	}},
}

// successions are blows after which another server is the master.
var successions = []blow{
	{"kill -9 of a master", succession, func(r *rig, shard int) {
		r.during("kill -9 and succession", shard, func() {
			r.succeed(shard, (*clustertest.Redis).Stop, (*clustertest.Redis).Restart)
		})
	}},
	{"a freeze with succession", succession, func(r *rig, shard int) {
		r.during("a freeze with succession", shard, func() {
			r.succeed(shard, (*clustertest.Redis).Freeze, (*clustertest.Redis).Thaw)
		})
	}},
}

// succeed takes a master out, lets a replica take over, and brings it back. What it was asked after it had
// been taken out must not count: it comes back when the proxy has given it up.
func (r *rig) succeed(shard int, out, back func(*clustertest.Redis)) {
	r.t.Helper()
	m := r.stage.master(shard)
	r.stage.patience(hasty)
	succeeded := r.stage.heir(m)
	release := r.crowd.hold()
	r.replicated(m, shard)
	out(m)
	release()
	clustertest.Await(r.t, "a replica to take over", succeeded)
	promoted := time.Now()
	r.service(func(i int) bool { return i == shard })
	r.t.Logf("service %v after the promotion", time.Since(promoted).Round(time.Millisecond))
	time.Sleep(2 * time.Second) // the proxy has closed every connection to the old master
	back(m)
	r.stage.patience(calm)
	r.stage.settled()
}

// replicated waits until the replicas of a master have executed everything that it has. Clients are held; those that
// block on a queue get nothing any more when it is empty.
func (r *rig) replicated(master *clustertest.Redis, shard int) {
	r.t.Helper()
	conn := master.Client().Conn()
	defer conn.Close()
	ctx := context.Background()
	q := r.book.queues[shard]
	clustertest.Await(r.t, q.key+" to be empty", func() error {
		if n, err := conn.LLen(ctx, q.key).Result(); n > 0 || err != nil {
			return fmt.Errorf("%d left, %v", n, err)
		}
		return nil
	})
	if err := conn.Set(ctx, keyOf("marker", r.stage.shards(), shard, 0), "x", 0).Err(); err != nil {
		r.t.Fatalf("cannot write to %s: %v", master.Addr, err)
	}
	if n, err := conn.Wait(ctx, r.stage.replicas(), clustertest.Deadline).Result(); int(n) < r.stage.replicas() || err != nil {
		r.t.Fatalf("%d replicas of %s have what it has: %v", n, master.Addr, err)
	}
}

// promoted is an error until a server calls itself a master.
func promoted(r *clustertest.Redis) error {
	if role := r.InfoField("replication", "role"); role != "master" {
		return errors.New(r.Addr + " is a " + role)
	}
	return nil
}
