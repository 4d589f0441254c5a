package soak

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
)

// sentinelStage is a master with two replicas and three sentinels.
type sentinelStage struct{ *clustertest.SentinelSet }

func startSentinel(t *testing.T) sentinelStage {
	t.Helper()
	s := sentinelStage{clustertest.StartSentinel(t, durable...)}
	s.patience(calm)
	return s
}

func (s sentinelStage) shards() int                         { return 1 }
func (s sentinelStage) replicas() int                       { return 2 }
func (s sentinelStage) settled()                            { s.AwaitOK() }
func (s sentinelStage) patience(d time.Duration)            { s.Patience(d) }
func (s sentinelStage) master(shard int) *clustertest.Redis { return s.Master() }

func (s sentinelStage) url() string {
	return "redis-sentinel://" + strings.Join(s.Addrs(), ",") + "/" + s.Name
}

func (s sentinelStage) heir(old *clustertest.Redis) func() error {
	return func() error {
		if m := s.Master(); m != old {
			return promoted(m)
		}
		return promoted(s.Replicas()[0])
	}
}

func (s sentinelStage) blows() []blow {
	return append(append([]blow{
		{"SENTINEL FAILOVER", brief, s.failover},
		{"kill -9 of a sentinel", brief, func(r *rig, _ int) { // nobody sees an error
			sentinel := s.anySentinel()
			sentinel.Stop()
			r.await(300)
			s.RestartSentinel(sentinel)
			s.patience(calm)
		}},
		{"a frozen sentinel", brief, func(r *rig, _ int) {
			sentinel := s.anySentinel()
			sentinel.Freeze()
			r.await(300)
			time.Sleep(timeout / 4)
			sentinel.Thaw()
			s.settled()
		}},
		{"a frozen replica", lengthy, func(r *rig, _ int) {
			replica := s.anyReplica()
			replica.Freeze()
			time.Sleep(timeout / 2)
			replica.Thaw()
			s.settled()
		}},
		{"kill -9 of a replica", brief, func(r *rig, _ int) {
			replica := s.anyReplica()
			replica.Stop()
			r.await(300)
			replica.Restart()
			s.settled()
		}},
	}, nuisances...), successions...)
}

func (s sentinelStage) anySentinel() *clustertest.Redis {
	return s.Sentinels[rand.IntN(len(s.Sentinels))]
}

func (s sentinelStage) anyReplica() *clustertest.Redis { return s.Replicas()[rand.IntN(s.replicas())] }

// failover has a replica promoted while the master lives. Until the sentinels have told it, up to a second, it goes on to
// acknowledge writes that the new one does not have: Redis loses them.
func (s sentinelStage) failover(r *rig, shard int) {
	r.storm("SENTINEL FAILOVER", storm{on: true, all: true, lossy: true}, func() {
		release := r.crowd.hold()
		r.replicated(s.Master(), shard)
		release()
		s.Failover()
	})
}
