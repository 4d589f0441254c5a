package proxy

import (
	"context"
	"maps"
	"net"
	"sync"
	"sync/atomic"

	"cosky-proxy/cluster"
	"cosky-proxy/nearcache/coskey"
	"cosky-proxy/nearcache/lease"
	"cosky-proxy/nearcache/pubsub"
)

// eventSource keeps a Pub/Sub stream to each node from which something is
// cached, and voids what CoSky's events concern. Streams run on goroutines of
// their own; loops only look up leases, without a lock.
type eventSource struct {
	// static
	srv    *Server
	ctx    context.Context
	cancel context.CancelFunc

	// atomic
	streams       atomic.Pointer[map[string]*stream] // by address; immutable
	invalidations atomic.Uint64

	// mu serialises changes of streams
	mu      sync.Mutex
	running sync.WaitGroup
}

type stream struct {
	*pubsub.Stream
	stop   context.CancelFunc
	topics []topicID // that it subscribes to, as the roster has them; guarded by eventSource.mu
}

func newEventSource(s *Server) *eventSource {
	es := &eventSource{srv: s}
	es.ctx, es.cancel = context.WithCancel(context.Background())
	es.streams.Store(&map[string]*stream{})
	return es
}

// eventLease is the lease of the stream that covers key, nil while there is none.
// Asking for it starts what is missing.
func (s *Server) eventLease(addr string, key []byte) *lease.Lease {
	_, n := coskey.Classify(key)
	ns := key[:n]
	st := (*s.events.streams.Load())[addr]
	if st == nil {
		st = s.events.open(addr)
	}
	if l := st.LeaseFor(ns); l != nil {
		return l
	}
	if st.Wants(ns) {
		s.events.cover(st, addr, ns)
	}
	return nil
}

// cover subscribes to the events of ns. They are no clients' business, so PUBLISH must
// not count them.
func (es *eventSource) cover(st *stream, addr string, ns []byte) {
	es.mu.Lock()
	defer es.mu.Unlock()
	if !st.Wants(ns) || (*es.streams.Load())[addr] != st {
		return
	}
	channels, patterns := coskey.Subscription(ns)
	st.Cover(string(ns), channels, patterns)
	for _, name := range channels {
		st.topics = append(st.topics, topicID{kindChannel, name})
	}
	for _, name := range patterns {
		st.topics = append(st.topics, topicID{kindPattern, name})
	}
	for _, id := range st.topics[len(st.topics)-len(channels)-len(patterns):] {
		es.srv.roster.attach(addr, id)
	}
}

func (es *eventSource) open(addr string) *stream {
	es.mu.Lock()
	defer es.mu.Unlock()
	old := *es.streams.Load()
	if st := old[addr]; st != nil {
		return st
	}
	o := &es.srv.opts
	ctx, stop := context.WithCancel(es.ctx)
	st := &stream{stop: stop, Stream: pubsub.New(pubsub.Options{
		Addr: addr, User: o.Backend.User, Password: o.Backend.Password,
		Dial:         func(_ context.Context, addr string) (net.Conn, error) { return es.srv.dial(addr) },
		MaxStaleness: o.Cache.MaxStaleness,
		OnMessage:    es.invalidate,
		Logger:       es.srv.log,
	})}
	next := maps.Clone(old)
	next[addr] = st
	es.streams.Store(&next)
	es.running.Go(func() { st.Run(ctx) })
	return st
}

// prune ends the streams of nodes that own nothing any more.
func (es *eventSource) prune(t *cluster.Topology) {
	wanted := make(map[string]bool)
	for i := range t.Shards {
		wanted[t.Shards[i].Primary.Addr] = true
	}
	es.mu.Lock()
	defer es.mu.Unlock()
	next := make(map[string]*stream)
	for addr, st := range *es.streams.Load() {
		if wanted[addr] {
			next[addr] = st
		} else {
			st.stop()
			for _, id := range st.topics {
				es.srv.roster.detach(addr, id)
			}
		}
	}
	es.streams.Store(&next)
}

// invalidate voids everything an event implies to have changed.
func (es *eventSource) invalidate(channel, payload []byte) {
	coskey.Event(channel, payload, bumper{es})
}

// bumper voids what it visits.
type bumper struct{ es *eventSource }

func (b bumper) Key(key []byte)     { b.bump(key) }
func (b bumper) Group(group []byte) { b.bump(group) }

func (b bumper) bump(name []byte) {
	c := b.es.srv.opts.Cache.Cache
	hash := c.Hash(name)
	c.Bump(c.StripeOf(hash))
	if !b.es.srv.tracks() { // else views hear of it where they come from
		c.Bump(c.ViewStripe(hash))
	}
	b.es.invalidations.Add(1)
}

func (es *eventSource) close() {
	es.cancel()
	es.running.Wait()
}
