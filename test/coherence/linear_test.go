package coherence

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
)

// workers is how many clients a hunt has: enough to meet, few enough for the judge.
const workers = 8

// pause is how long a fault, or the peace between two, lasts.
const pause = 60 * time.Millisecond

func rest() { time.Sleep(pause) }

// fault makes something happen, and requires that it has: do returns how many victims it had.
func (h *hunt) fault(what string, do func() (victims int)) {
	h.t.Helper()
	h.mark(what)
	n := do()
	if n == 0 {
		h.t.Errorf("%s: nobody was hit", what)
	}
	h.faults[what] += n
}

// some waits until do has had a victim: a connection that is gone comes back when somebody needs it.
func (h *hunt) some(do func() (victims int)) (n int) {
	clustertest.Await(h.t, "a victim", func() error {
		if n = do(); n == 0 {
			return errors.New("none yet")
		}
		return nil
	})
	return n
}

// faults of connections: they are the same for one Redis and for a cluster.
func (r *rig) wireFaults(h *hunt) {
	wire, owner := r.wire(), r.owner()
	wire.Lag(proxytest.Fetch, 2*time.Millisecond)
	wire.Lag(proxytest.PubSub, 2*time.Millisecond)
	rest()
	for _, u := range r.uses {
		h.fault(fmt.Sprintf("CLIENT KILL of %v connections", u), func() int {
			return h.some(func() int { return wire.Kill(owner, u) })
		})
		rest()
		h.fault(fmt.Sprintf("%v connections cut", u), func() int {
			return h.some(func() int { return wire.Cut(u) })
		})
		rest()
	}
	for _, u := range r.uses[1:] {
		h.fault(fmt.Sprintf("%v connections silent", u), func() int {
			before := wire.Held()
			wire.Mute(u)
			h.some(func() int { return wire.Held() - before })
			time.Sleep(staleness + pause)
			wire.Unmute(u)
			rest()
			return wire.Held() - before
		})
		h.fault(fmt.Sprintf("%v connections refused", u), func() int {
			before := wire.Turned()
			wire.Refuse(u, true)
			wire.Cut(u)
			rest()
			h.some(func() int { return wire.Turned() - before })
			wire.Refuse(u, false)
			rest()
			return wire.Turned() - before
		})
	}
	wire.Lag(proxytest.Fetch, 0)
	wire.Lag(proxytest.PubSub, 0)
	if slices.Contains(r.uses, proxytest.PubSub) { // nothing that a client of this proxy writes depends on messages
		h.fault("messages lost", func() int {
			before := wire.Lost()
			wire.Deafen(proxytest.PubSub, true)
			time.Sleep(staleness)
			h.some(func() int { return wire.Lost() - before })
			wire.Deafen(proxytest.PubSub, false)
			return wire.Lost() - before
		})
	}
	h.fault("SIGSTOP", func() int {
		owner.Freeze()
		time.Sleep(staleness + pause)
		owner.Thaw()
		return 1
	})
	rest()
}

// restart kills Redis, which has everything on disk.
func (r *rig) restart(h *hunt) {
	h.fault("kill -9, restart", func() int {
		killed := r.redis.Pid()
		r.redis.Restart()
		return b2i(r.redis.Pid() != killed)
	})
	time.Sleep(staleness)
}

// wipe kills Redis, which has nothing on disk: a write to every key, around the proxy, that is over when
// a client of the proxy has been told.
func (r *rig) wipe(h *hunt) {
	h.fault("kill -9, memory lost", func() int {
		done := h.every(crash)
		r.redis.Restart()
		r.redis.Do("FUNCTION", "LOAD", "REPLACE", putFunction)
		h.look()
		done(nil)
		return 1
	})
}

// run lets clients work while faults happen, and judges what they have seen.
func (h *hunt) run(r *rig, faults func()) {
	h.t.Helper()
	h.start(workers)
	again(func() bool {
		faults()
		if lie := h.lie(); lie != "" {
			h.t.Error(lie)
		}
		return !h.t.Failed()
	})
	if !h.t.Failed() {
		h.awaitEnough(r)
	}
	h.stop()
	if lie := h.lie(); lie != "" {
		h.t.Error(lie)
	}
	s := r.server.Stats()
	h.t.Logf("%d keys, %d writes, %d hits, %d misses, %d bypasses; errors: %v", h.keys, h.writes, s.Hits, s.Misses, s.Bypasses, h.failed)
	h.t.Logf("faults and their victims: %v", h.faults)
	if *long > 0 {
		h.t.Logf("operations that were answered: %v", h.answered)
	}
}

// awaitEnough waits until so much has happened that a good verdict means something: every operation has been
// answered, and from memory often enough.
func (h *hunt) awaitEnough(r *rig) {
	h.t.Helper()
	clustertest.Await(h.t, "enough hits, misses and writes to judge", func() error {
		s := r.server.Stats()
		h.mu.Lock()
		defer h.mu.Unlock()
		if s.Hits < 500 || s.Misses < 200 || h.writes < 500 {
			return fmt.Errorf("%d hits, %d misses and %d writes", s.Hits, s.Misses, h.writes)
		}
		for _, name := range everyOperation() {
			if h.answered[name] == 0 {
				return fmt.Errorf("no answer to %s", name)
			}
		}
		return nil
	})
}

// readAll reads every key in every way that may be answered from memory.
func (h *hunt) readAll(c *client) {
	for slot := range h.slots {
		r := h.acquire(slot)
		for _, op := range r.kind.reads {
			h.do(c, r, workers, op, 0)
		}
		h.release(r)
	}
}

// everyOperation are the names of what clients do, with those of the kinds of keys to which they do it.
func everyOperation() (names []string) {
	names = append(names, flush.name)
	for _, k := range kinds {
		for _, op := range slices.Concat(k.reads, k.other, k.write) {
			names = append(names, op.of(k))
		}
	}
	return names
}

// again repeats a round as long as the flag says, and it wants to.
func again(round func() bool) {
	for begun := time.Now(); round() && time.Since(begun) < *long; {
	}
}

// ruled lets a rule keep every read that can be kept, where both sources are asked for: elsewhere
// some reads are never cached.
func ruled(mode proxy.Invalidation) func(*proxy.Options) {
	return func(o *proxy.Options) {
		if mode == proxy.InvalidationBoth {
			o.Cache.Rules = []proxy.Rule{{Match: "*", Commands: proxy.CacheableCommands(), TTL: time.Minute, MaxValue: 1 << 20}}
		}
	}
}

func TestLinearizable(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			r := startStandalone(t, mode, durable, ruled(mode))
			h := newHunt(t, r.addr)
			h.run(r, func() {
				r.wireFaults(h)
				r.restart(h)
			})
		})
	}
}

// TestLinearizableWhileKeysBecomeHot: no rule names the keys; they are cached because they are read
// most, which changes all the time.
func TestLinearizableWhileKeysBecomeHot(t *testing.T) {
	t.Parallel()
	for _, mode := range []proxy.Invalidation{proxy.InvalidationTracking, proxy.InvalidationBoth} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			r := startStandalone(t, mode, durable, func(o *proxy.Options) {
				o.Cache.Rules = nil
				o.Hot = proxy.HotOptions{Sample: 1, Interval: 20 * time.Millisecond, Keys: 2, MinReads: 1}
			})
			h := newHunt(t, r.addr)
			h.run(r, func() { r.wireFaults(h) })
		})
	}
}

// TestLinearizableWhileEntriesStandIn: all that is written comes by this proxy, so even what stands in for a backend
// that is away is in order.
func TestLinearizableWhileEntriesStandIn(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			r := startDirect(t, mode, durable, ruled(mode), func(o *proxy.Options) { o.Cache.StaleFor = time.Minute })
			h := newHunt(t, r.addr)
			c := h.dial(3)
			h.run(r, func() {
				h.fault("away", func() int {
					release := h.holdWrites() // what may have been executed would void what it may have changed
					hits := r.server.Stats().Hits
					h.some(func() int { h.readAll(c); return int(r.server.Stats().Hits - hits) })
					r.redis.Stop()
					before := r.server.Stats().StaleHits
					h.some(func() int { h.readAll(c); return int(r.server.Stats().StaleHits - before) })
					release()
					rest()
					n := r.server.Stats().StaleHits - before
					r.redis.Restart()
					return int(n)
				})
				time.Sleep(staleness)
			})
		})
	}
}

// TestLinearizableWhenMemoryIsLost: Redis comes back empty, as if somebody had flushed it.
func TestLinearizableWhenMemoryIsLost(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			r := startStandalone(t, mode, nil)
			h := newHunt(t, r.addr)
			h.run(r, func() {
				for range 3 {
					time.Sleep(staleness)
					r.wipe(h)
				}
				time.Sleep(staleness)
			})
		})
	}
}

func TestLinearizableInFrontOfACluster(t *testing.T) {
	t.Parallel()
	modes := modes
	if *long == 0 {
		modes = []proxy.Invalidation{proxy.InvalidationBoth} // what fails the others fails it
	}
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			r := startCluster(t, mode, ruled(mode))
			h := newHunt(t, r.addr)
			h.run(r, func() {
				r.wireFaults(h)
				r.reshard(h)
				h.fault("failover", func() int { return r.deposed(r.failover) })
				h.fault("kill -9 of the master", func() int { return r.deposed(func() { r.crash(h.holdWrites) }) })
			})
		})
	}
}

// reshard moves the slot of all keys to another master and back.
func (r *rig) reshard(h *hunt) {
	h.cautious.Store(true)
	h.holdWrites()() // what was begun without caution is over
	defer h.cautious.Store(false)
	slot, from := r.cluster.SlotOf(namespace), r.owner()
	h.fault("the slot moves", func() (keys int) {
		keys = r.move(slot, r.elsewhere(from))
		rest()
		keys += r.move(slot, from)
		rest()
		return keys
	})
}

// deposed reports whether the keys have another owner after change.
func (r *rig) deposed(change func()) int {
	before := r.owner()
	change()
	return b2i(r.owner() != before)
}

// elsewhere is a master that is not owner.
func (r *rig) elsewhere(owner *clustertest.Redis) *clustertest.Redis {
	r.t.Helper()
	for _, n := range r.cluster.Nodes {
		if n != owner && n.InfoField("replication", "role") == "master" {
			return n
		}
	}
	r.t.Fatalf("%s is the only master", owner.Addr)
	return nil
}

// move is MoveSlot with time for clients to meet every stage. It returns how many keys have moved.
func (r *rig) move(slot int, to *clustertest.Redis) (keys int) {
	r.cluster.BeginMigrate(slot, to)
	rest()
	keys = r.cluster.MigrateKeys(slot, to, 2)
	rest()
	keys += r.cluster.MigrateKeys(slot, to, 0)
	rest()
	r.cluster.FinishMigrate(slot, to)
	return keys
}

// failover makes a replica the master in the way that loses nothing.
func (r *rig) failover() {
	r.patience(hasty)
	r.cluster.Failover(r.cluster.ReplicasOf(r.owner())[0])
	r.patience(calm)
	rest()
}

// crash kills the master. Redis may lose what it has acknowledged and not yet replicated, so
// nothing is written in the moment of the kill.
func (r *rig) crash(hold func() (release func())) {
	r.succeed(hold, func(owner *clustertest.Redis) { owner.Stop() }, func(owner *clustertest.Redis) {
		owner.Restart()
		proxytest.Announce(owner, r.relays[owner])
	})
}

// depose freezes the master until its replica has taken over.
func (r *rig) depose(hold func() (release func())) {
	r.succeed(hold, (*clustertest.Redis).Freeze, (*clustertest.Redis).Thaw)
}

// succeed takes the master out, lets its replica take over, and brings it back.
func (r *rig) succeed(hold func() (release func()), out, back func(owner *clustertest.Redis)) {
	owner := r.owner()
	r.patience(hasty)
	heir := r.cluster.ReplicasOf(owner)[0]
	release := hold()
	r.replicated(owner)
	out(owner)
	release()
	r.awaitMaster(heir)
	time.Sleep(2 * staleness)
	back(owner)
	r.cluster.AwaitOK()
	r.patience(calm)
	rest()
}

func (r *rig) awaitMaster(heir *clustertest.Redis) {
	r.t.Helper()
	clustertest.Await(r.t, "the replica to take over", func() error {
		if role := heir.InfoField("replication", "role"); role != "master" {
			return fmt.Errorf("it is a %s", role)
		}
		return nil
	})
}
