package proxytest

import (
	"context"
	"testing"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/discovery"
	"cosky-proxy/proxy"
)

// Discovered is a proxy whose topology is found and kept fresh by discovery, as
// cmd/cosky-proxy wires it.
type Discovered struct {
	*proxy.Server
	Addr      string
	Discovery *discovery.Discovery
}

// StartDiscovered runs a proxy in front of b until the test ends. change may alter
// the options, except for what discovery decides; nil leaves them alone.
func StartDiscovered(t testing.TB, b discovery.Backend, change func(*proxy.Options)) *Discovered {
	t.Helper()
	o := Options(t, nil)
	o.Backend = proxy.Backend{Mode: b.Mode, User: b.User, Password: b.Password}
	if change != nil {
		change(&o)
	}
	d := discovery.New(discovery.Options{
		Backend: b, Dialer: o.Upstream.Dialer, Replicas: o.Reads.Any(), MaxReplicaLag: o.Reads.MaxLag, ConnectTimeout: o.Upstream.ConnectTimeout, MaxStaleness: o.Cache.MaxStaleness, Logger: o.Logger,
	})
	if _, err := d.Start(t.Context()); err != nil {
		t.Fatalf("cannot find the backend: %v", err)
	}
	info := d.Info()
	o.Topology, o.Backend.Tracking, o.Backend.Version = d, info.Tracking, info.Version
	o.Backend.Commands = d.Commands()
	p := &Discovered{Discovery: d}
	watch, stop := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	t.Cleanup(func() { stop(); <-stopped }) // after the proxy
	p.Server, p.Addr = Start(t, o)
	d.Subscribe(p.Adopt)
	d.SubscribeCommands(p.AdoptCommands)
	go func() { defer close(stopped); d.Run(watch) }()
	return p
}

// StartCluster runs a proxy in front of c. It is told one node only and finds the others.
func StartCluster(t testing.TB, c *clustertest.Cluster, change func(*proxy.Options)) *Discovered {
	t.Helper()
	return StartDiscovered(t, discovery.Backend{Mode: cluster.Cluster, Seeds: c.Addrs()[:1]}, change)
}

// StartSentinel runs a proxy in front of the master that the sentinels of s watch.
func StartSentinel(t testing.TB, s *clustertest.SentinelSet, change func(*proxy.Options)) *Discovered {
	t.Helper()
	return StartDiscovered(t, discovery.Backend{Mode: cluster.Sentinel, Seeds: s.Addrs(), MasterName: s.Name}, change)
}
