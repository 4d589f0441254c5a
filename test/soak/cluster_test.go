package soak

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/slot"
)

// clusterStage is a cluster of three masters with a replica each.
type clusterStage struct {
	*clustertest.Cluster
	elected *time.Time // when a replica was last
}

func startCluster(t *testing.T) clusterStage {
	t.Helper()
	s := clusterStage{elected: new(time.Time), Cluster: clustertest.StartCluster(t, 3, 1, append([]string{"--cluster-require-full-coverage", "no"}, durable...)...)}
	s.patience(calm)
	return s
}

func (s clusterStage) shards() int   { return 3 }
func (s clusterStage) replicas() int { return 1 }
func (s clusterStage) settled()      { s.AwaitOK() }

func (s clusterStage) url() string {
	return "redis-cluster://" + strings.Join(s.Addrs()[:s.shards()], ",")
}

func (s clusterStage) master(shard int) *clustertest.Redis {
	return s.OwnerOfSlot(shard * slot.Count / s.shards())
}

func (s clusterStage) heir(old *clustertest.Redis) func() error {
	heir := s.ReplicasOf(old)[0]
	return func() error {
		*s.elected = time.Now()
		return promoted(heir)
	}
}

func (s clusterStage) patience(d time.Duration) {
	for _, n := range s.Nodes {
		if n.Running() {
			n.Do("CONFIG", "SET", "cluster-node-timeout", d.Milliseconds())
		}
	}
}

func (s clusterStage) blows() []blow {
	return append(append([]blow{
		{"a slot moves", brief, s.moveSlot},
		{"CLIENT KILL while a slot moves", brief, s.moveSlotInTrouble},
		{"CLUSTER FAILOVER", brief, s.failover},
		{"a frozen replica", brief, func(r *rig, shard int) { // what it was asked goes elsewhere
			replica := s.ReplicasOf(s.master(shard))[0]
			replica.Freeze()
			time.Sleep(timeout / 2)
			replica.Thaw()
			s.settled()
		}},
		{"kill -9 of a replica", brief, func(r *rig, shard int) {
			replica := s.ReplicasOf(s.master(shard))[0]
			replica.Stop()
			r.await(300)
			replica.Restart()
			s.settled()
			s.patience(calm)
		}},
	}, nuisances...), successions...)
}

// failover has a replica promoted politely. Masters vote for the replicas of one master once in two node timeouts; if it were asked
// for earlier, the master would refuse writes in vain, for five seconds.
func (s clusterStage) failover(_ *rig, shard int) {
	time.Sleep(time.Until(s.elected.Add(2*hasty + hasty/2)))
	s.patience(hasty)
	s.Failover(s.ReplicasOf(s.master(shard))[0])
	*s.elected = time.Now()
	s.patience(calm)
}

// moveSlot moves a slot to another master and back.
func (s clusterStage) moveSlot(r *rig, shard int) {
	r.book.setWeather(storm{moving: true})
	s.migrate(r, shard, func() {})
	r.clear()
}

// moveSlotInTrouble does so while connections break.
func (s clusterStage) moveSlotInTrouble(r *rig, shard int) {
	r.storm("CLIENT KILL while a slot moves", storm{on: true, all: true, moving: true}, func() {
		s.migrate(r, shard, func() {
			for i := range s.shards() {
				s.master(i).DoErr("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
			}
		})
	})
}

// migrate moves the slot of a counter, a queue or a channel, with a nuisance after each step.
func (s clusterStage) migrate(r *rig, shard int, nuisance func()) {
	b := r.book
	keys := []string{
		b.counters[shard+s.shards()*rand.IntN(perShard)].key, b.watched[shard].key,
		b.queues[shard].key, r.audience.channels[1+shard].name,
	}
	key := keys[rand.IntN(len(keys))]
	to := s.master((shard + 1) % s.shards())
	from := s.OwnerOf(key)
	sl := s.SlotOf(key)
	for _, step := range []func(){
		func() { s.BeginMigrate(sl, to) },
		func() { s.MigrateKeys(sl, to, 2) },
		func() { s.MigrateKeys(sl, to, 0) },
		func() { s.FinishMigrate(sl, to) },
		s.AwaitOK,
		func() { s.MoveSlot(sl, from) },
		s.AwaitOK,
	} {
		step()
		nuisance()
	}
	s.awaitMap(r, key)
}

// awaitMap waits until the proxies know who has a key. If the one who had it were frozen before it could say MOVED, what
// was sent there would share its fate.
func (s clusterStage) awaitMap(r *rig, key string) {
	r.t.Helper()
	for _, f := range r.fronts {
		redirects := func() float64 { return f.Metric("cosky_proxy_redirects_total") }
		clustertest.Await(r.t, "no more redirects", func() error {
			before := redirects()
			for range 4 { // on every loop
				conn := clustertest.Dial(r.t, f.Addr)
				conn.Do("GET", key)
				conn.Close()
			}
			if n := redirects() - before; n > 0 {
				return fmt.Errorf("%.0f more", n)
			}
			return nil
		})
	}
}
