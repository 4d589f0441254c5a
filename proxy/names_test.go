package proxy_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/dial"
	"cosky-proxy/cluster/discovery"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
)

// TestNameThatLeadsElsewhere: behind a name there is another server all at once, as after the failover of a
// hosted Redis. No connection is lost, but the old server is a replica now; nothing of it is served any more.
func TestNameThatLeadsElsewhere(t *testing.T) {
	first, second := clustertest.StartRedis(t), clustertest.StartRedis(t)
	names := startDNS(t)
	port := fmt.Sprint(first.Port)
	passOn(t, "127.0.0.2:"+port, second.Addr)
	names.answer.Store(&[4]byte{127, 0, 0, 1})
	p := proxytest.StartDiscovered(t, discovery.Backend{Mode: cluster.Standalone, Seeds: []string{"redis.test:" + port}}, names.asked)
	const key = "ns:cfg:a"
	first.Do("HSET", key, "from", "first")
	second.Do("HSET", key, "from", "second")
	c := clustertest.Dial(t, p.Addr)
	clustertest.Await(t, "a hit", func() error {
		if got := c.Do("HGETALL", key); !strings.Contains(got, "first") {
			t.Fatalf("got %q", got)
		}
		if p.Stats().Hits == 0 {
			return errors.New("none yet")
		}
		return nil
	})
	node := p.Discovery.Current().Primary(0)

	names.answer.Store(&[4]byte{127, 0, 0, 2})
	first.Do("REPLICAOF", "127.0.0.1", second.Port)
	clustertest.Await(t, "writes to reach the other server", func() error {
		switch got := c.Do("SET", "k", "v"); {
		case got == "+OK\r\n":
			return nil
		case !strings.HasPrefix(got, "-READONLY "):
			t.Fatalf("SET answered %q", got)
		}
		return errors.New("still the old one")
	})
	if got := second.Text("GET", "k"); got != "v" {
		t.Errorf("the second server has %q", got)
	}
	if got := c.Do("HGETALL", key); !strings.Contains(got, "second") {
		t.Errorf("got %q", got)
	}
	if !node.Vouch.Revoked() {
		t.Error("the first server still vouches for what was cached from it")
	}
	if got := p.Discovery.Current().Primary(0).Addr; got != "127.0.0.2:"+port {
		t.Errorf("the topology has %s", got)
	}
}

// TestAddressMap: a node that announces an address which leads nowhere from here is reached where the
// configuration says.
func TestAddressMap(t *testing.T) {
	t.Parallel()
	c := clustertest.StartCluster(t, 1, 0, "--cluster-announce-ip", "10.255.255.1")
	node := c.Nodes[0]
	port := fmt.Sprint(node.Port)
	for from, to := range map[string]string{"10.255.255.1:" + port: node.Addr, "10.255.255.1": "127.0.0.1"} {
		p := proxytest.StartCluster(t, c, func(o *proxy.Options) {
			o.Upstream.Dialer = &dial.Dialer{Map: map[string]string{from: to}}
		})
		expectReply(t, clustertest.Dial(t, p.Addr), "SET k v", "+OK\r\n")
		if got := p.Discovery.Current().Shards[0].Primary.Addr; got != "10.255.255.1:"+port {
			t.Errorf("the topology has %s", got)
		}
	}
}
