// Package proxytest runs a proxy inside the test process, in front of a backend
// that the test has started, with limits a test can change.
package proxytest

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/nearcache"
	"cosky-proxy/proxy"
)

// Fixed is a topology that never changes by itself.
type Fixed struct {
	current   atomic.Pointer[cluster.Topology]
	Refreshes atomic.Int64 // how often a new one was asked for
}

// Single is the topology of one standalone server.
func Single(addr string) *Fixed {
	f := new(Fixed)
	f.current.Store(cluster.NewSingle(1, cluster.Standalone, &cluster.Node{ID: addr, Addr: addr}))
	return f
}

// Set replaces the topology; the server under test has to be told by Adopt.
func (f *Fixed) Set(t *cluster.Topology)    { f.current.Store(t) }
func (f *Fixed) Current() *cluster.Topology { return f.current.Load() }
func (f *Fixed) Refresh(string)             { f.Refreshes.Add(1) }

// Options are sensible for tests: two loops, the near-cache on, short timeouts.
func Options(t testing.TB, topology proxy.Topology) proxy.Options {
	t.Helper()
	cache, err := nearcache.New(nearcache.Options{})
	if err != nil {
		t.Fatalf("cannot make a near-cache: %v", err)
	}
	t.Cleanup(cache.Close)
	return proxy.Options{
		Listen: []string{"127.0.0.1:0"}, Loops: 2, DrainTimeout: 5 * time.Second,
		Logger:   slog.New(slog.NewTextHandler(io.Discard, nil)),
		Backend:  proxy.Backend{Mode: cluster.Standalone, Tracking: true, Version: "7.0.15"},
		Topology: topology,
		Clients: proxy.ClientOptions{
			Max: 10000, OutputLimit: 1 << 20, StallTimeout: 2 * time.Second, SubscriberLimit: 32 << 20,
			HandshakeTimeout: 10 * time.Second, MaxInFlight: 256, RequestBuffer: 1 << 20, MaxRequest: 64 << 20, BufferMemory: 96 << 20,
		},
		Upstream: proxy.UpstreamOptions{
			ConnectTimeout: 2 * time.Second, Timeout: 10 * time.Second, MaxPins: 1024, MaxConnecting: 64, QueueLimit: 16 << 20, QueueTimeout: 2 * time.Second,
			MaxRedirects: 5, BackoffMin: 20 * time.Millisecond, BackoffMax: 500 * time.Millisecond,
		},
		Cache: proxy.CacheOptions{
			Invalidation: proxy.InvalidationAuto, Cache: cache,
			MaxStaleness: time.Second, TTL: time.Minute, PubSubTTL: time.Second, MaxEntry: 1 << 20, RefreshIdle: 10 * time.Second,
			Warmup: proxy.WarmupOptions{Concurrency: 16, Timeout: 10 * time.Second, Rate: 1000},
		},
		Reads:   proxy.ReadOptions{From: proxy.FromMaster, MaxLag: time.Second},
		Scripts: proxy.ScriptOptions{MaxCount: 10000, MaxBytes: 64 << 20},
		PubSub:  proxy.PubSubOptions{OnLoss: proxy.Resubscribe, ResubscribeTimeout: 10 * time.Second},
		SlowLog: proxy.SlowLogOptions{SlowerThan: 10 * time.Millisecond, MaxLen: 128},
	}
}

// Start runs a proxy until the test ends and returns it with its address.
func Start(t testing.TB, o proxy.Options) (s *proxy.Server, addr string) {
	t.Helper()
	s, err := proxy.New(o)
	if err != nil {
		t.Fatalf("cannot make a proxy: %v", err)
	}
	if err := s.Listen(); err != nil {
		t.Fatalf("cannot listen: %v", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("the proxy ended with %v", err)
		}
	})
	addr = strings.TrimPrefix(s.Addrs()[0], "tls:")
	if _, _, err := net.SplitHostPort(addr); err != nil {
		t.Fatalf("unexpected address %q", addr)
	}
	return s, addr
}
