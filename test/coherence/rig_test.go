package coherence

import (
	"context"
	"flag"
	"testing"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/discovery"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
)

// long is for how long each run goes on, over and over its faults; 0: once.
var long = flag.Duration("long", 0, "how long each run of the checker and each measurement of the prober lasts; 0: as short as in CI")

// rig is a proxy of two loops, with relays between it and its backend.
type rig struct {
	t       *testing.T
	uses    []proxytest.Use // of the proxy's connections
	server  *proxy.Server
	addr    string
	redis   *clustertest.Redis // standalone
	cluster *clustertest.Cluster
	relays  map[*clustertest.Redis]*proxytest.Relay
}

// staleness is max_staleness and pubsub_ttl of these proxies.
const staleness = 300 * time.Millisecond

var modes = []proxy.Invalidation{proxy.InvalidationTracking, proxy.InvalidationPubSub, proxy.InvalidationBoth}

// durable Redis forgets nothing that it has acknowledged when it is killed: replies are sent after
// the operating system has taken the log.
var durable = []string{"--appendonly", "yes", "--appendfsync", "no"}

func options(mode proxy.Invalidation) func(*proxy.Options) {
	return func(o *proxy.Options) {
		o.Cache.Invalidation, o.Cache.MaxStaleness, o.Cache.PubSubTTL = mode, staleness, staleness
		o.Cache.Rules = rules(mode)
	}
}

func startStandalone(t *testing.T, mode proxy.Invalidation, args []string, change ...func(*proxy.Options)) *rig {
	t.Helper()
	r := &rig{t: t, uses: usesOf(mode), redis: clustertest.StartRedis(t, args...)}
	wire := proxytest.StartRelay(t, r.redis.Addr)
	r.relays = map[*clustertest.Redis]*proxytest.Relay{r.redis: wire}
	r.startProxy(wire.Addr, with(mode, change))
	return r
}

// startDirect does without the relay: a port where nobody listens refuses connections, which a relay cannot.
func startDirect(t *testing.T, mode proxy.Invalidation, args []string, change ...func(*proxy.Options)) *rig {
	t.Helper()
	r := &rig{t: t, uses: usesOf(mode), redis: clustertest.StartRedis(t, args...)}
	r.startProxy(r.redis.Addr, with(mode, change))
	return r
}

func (r *rig) startProxy(backend string, change func(*proxy.Options)) {
	r.t.Helper()
	p := proxytest.StartDiscovered(r.t, discovery.Backend{Mode: cluster.Standalone, Seeds: []string{backend}}, change)
	r.server, r.addr = p.Server, p.Addr
}

func startCluster(t *testing.T, mode proxy.Invalidation, change ...func(*proxy.Options)) *rig {
	t.Helper()
	r := &rig{t: t, uses: usesOf(mode), cluster: clustertest.StartCluster(t, 3, 1)}
	r.relays = proxytest.RelayCluster(t, r.cluster)
	r.patience(calm)
	p := proxytest.StartCluster(t, r.cluster, with(mode, change))
	r.server, r.addr = p.Server, p.Addr
	return r
}

// usesOf is what a proxy uses its connections for.
func usesOf(mode proxy.Invalidation) []proxytest.Use {
	if mode == proxy.InvalidationTracking {
		return []proxytest.Use{proxytest.Plain, proxytest.Fetch}
	}
	return []proxytest.Use{proxytest.Plain, proxytest.Fetch, proxytest.PubSub}
}

func with(mode proxy.Invalidation, change []func(*proxy.Options)) func(*proxy.Options) {
	return func(o *proxy.Options) {
		options(mode)(o)
		for _, f := range change {
			f(o)
		}
	}
}

// How long nodes wait for each other before they elect another master. A node that a busy machine
// holds up is no dead one, and an election that nobody meant to happen may lose writes.
const (
	calm  = 20 * time.Second
	hasty = 1500 * time.Millisecond
)

func (r *rig) patience(d time.Duration) {
	r.t.Helper()
	for _, n := range r.cluster.Nodes {
		n.Do("CONFIG", "SET", "cluster-node-timeout", d.Milliseconds())
	}
}

// owner is the server that has the keys.
func (r *rig) owner() *clustertest.Redis {
	if r.redis != nil {
		return r.redis
	}
	return r.cluster.OwnerOf(namespace)
}

func (r *rig) wire() *proxytest.Relay { return r.relays[r.owner()] }

// replicated waits until a replica of the owner has executed everything that the owner has.
func (r *rig) replicated(owner *clustertest.Redis) {
	r.t.Helper()
	conn := owner.Client().Conn()
	defer conn.Close()
	ctx := context.Background()
	if err := conn.Set(ctx, namespace+":marker", "x", 0).Err(); err != nil {
		r.t.Fatalf("cannot write to %s: %v", owner.Addr, err)
	}
	if n, err := conn.Wait(ctx, 1, clustertest.Deadline).Result(); n < 1 || err != nil {
		r.t.Fatalf("no replica of %s has what it has: %d, %v", owner.Addr, n, err)
	}
}
