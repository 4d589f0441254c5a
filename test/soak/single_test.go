package soak

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
)

// singleStage is one Redis.
type singleStage struct{ redis *clustertest.Redis }

func (s singleStage) url() string                          { return "redis://" + s.redis.Addr }
func (s singleStage) shards() int                          { return 1 }
func (s singleStage) replicas() int                        { return 0 }
func (s singleStage) master(int) *clustertest.Redis        { return s.redis }
func (s singleStage) heir(*clustertest.Redis) func() error { return nil }
func (s singleStage) patience(time.Duration)               {}
func (s singleStage) settled()                             {}

func (s singleStage) blows() []blow {
	return append([]blow{
		{"DEBUG SLEEP", brief, func(*rig, int) { s.redis.Do("DEBUG", "SLEEP", (timeout / 6).Seconds()) }}, // nobody sees an error
		{"DEBUG RELOAD", brief, func(*rig, int) { s.redis.Do("DEBUG", "RELOAD") }},
		{"a restart with much to load", brief, s.load},
	}, nuisances...)
}

// load restarts the server with so many keys, in another database, that it is loading for a while.
func (s singleStage) load(r *rig, shard int) {
	batches := 10 // of 10,000 keys, none of which takes long
	if *long > 0 {
		batches = 40
	}
	elsewhere := func(args ...any) {
		conn := s.redis.Client().Conn()
		defer conn.Close()
		for _, cmd := range [][]any{{"SELECT", 1}, args} {
			if err := conn.Do(context.Background(), cmd...).Err(); err != nil {
				r.t.Fatalf("%v: %v", cmd, err)
			}
		}
	}
	for i := range batches {
		elsewhere("DEBUG", "POPULATE", 10_000, fmt.Sprintf("ballast%d", i), 100)
	}
	s.rewrite(r)
	told := r.book.refusedWith("LOADING Redis")
	r.during("a restart with much to load", shard, s.redis.Restart)
	if told = r.book.refusedWith("LOADING Redis") - told; told == 0 && *long > 0 {
		r.t.Error("nobody was told that Redis is loading")
	}
	r.t.Logf("clients were told %d times that Redis is loading", told)
	elsewhere("FLUSHDB", "ASYNC")
	s.rewrite(r)
}

// rewrite has everything put into the log, or out of it, that it does not tell of as it should.
func (s singleStage) rewrite(r *rig) {
	s.redis.Do("BGREWRITEAOF")
	clustertest.Await(r.t, "the log to be rewritten", func() error {
		if s.redis.InfoField("persistence", "aof_rewrite_in_progress") != "0" || s.redis.InfoField("persistence", "aof_rewrite_scheduled") != "0" {
			return errors.New("not yet")
		}
		return nil
	})
}

// startSingle is startRig with a Redis that is not there yet, neither for the proxy nor for its first clients.
func startSingle(t *testing.T) *rig {
	t.Helper()
	s := singleStage{clustertest.StartRedis(t, durable...)}
	s.redis.Stop()
	r := newRig(t, s)
	if status, _ := r.fronts[0].Get("/readyz"); status != 503 {
		t.Errorf("/readyz says %d without a backend", status)
	}
	r.book.setWeather(storm{on: true, all: true})
	r.begin()
	r.await(100)
	r.during("the first start", 0, s.redis.Restart)
	r.fronts[0].Await("/readyz", func() error {
		if status, page := r.fronts[0].Get("/readyz"); status != 200 {
			return errors.New(page)
		}
		return nil
	})
	return r
}
