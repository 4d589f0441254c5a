package proxy_test

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/dial"
	"cosky-proxy/cluster/discovery"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
)

// TestTLS has TLS on both sides, in front of each kind of backend: lanes, pins, fetches, subscriptions
// and discovery, and clients that show a certificate.
func TestTLS(t *testing.T) {
	t.Parallel()
	ca := clustertest.NewCA(t)
	for name, start := range map[string]func(*testing.T) discovery.Backend{
		"standalone": func(t *testing.T) discovery.Backend {
			return discovery.Backend{Mode: cluster.Standalone, Seeds: []string{clustertest.StartTLSRedis(t, ca).TLSAddr()}}
		},
		"sentinel": func(t *testing.T) discovery.Backend {
			_, sentinel := clustertest.StartTLSSentinel(t, ca)
			return discovery.Backend{Mode: cluster.Sentinel, Seeds: []string{sentinel.TLSAddr()}, MasterName: "mymaster"}
		},
		"cluster": func(t *testing.T) discovery.Backend {
			c := clustertest.StartClusterWith(t, 2, 0, clustertest.ClusterOptions{CA: ca, Host: "::1"})
			return discovery.Backend{Mode: cluster.Cluster, Seeds: []string{c.Nodes[0].TLSAddr()}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log lockedBuffer
			p := proxytest.StartDiscovered(t, start(t), func(o *proxy.Options) {
				o.Listen, o.TLS = []string{"tls:127.0.0.1:0"}, ca.Server()
				o.TLS.ClientAuth = tls.RequireAndVerifyClientCert
				o.Upstream.Dialer = &dial.Dialer{TLS: ca.Client()}
				o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			})
			c := dialTLS(t, p.Addr, ca.Client())
			for i := range 50 {
				key := fmt.Sprintf("k%d", i)
				expectReply(t, c, "SET "+key+" "+key, "+OK\r\n")
				expectReply(t, c, "GET "+key, fmt.Sprintf("$%d\r\n%s\r\n", len(key), key))
			}
			value := strings.Repeat("x", 3<<20)
			expectReply(t, c, "SET large "+value, "+OK\r\n")
			if got := c.Do("GET", "large"); len(got) != len(value)+len("$3145728\r\n\r\n") {
				t.Errorf("a large value came back as %d bytes", len(got))
			}
			expectReply(t, c, "WATCH k1", "+OK\r\n")
			expectReply(t, c, "UNWATCH", "+OK\r\n")
			expectReply(t, c, "BLPOP nosuch 0.01", "*-1\r\n")

			c.Do("HSET", "ns:cfg:a", "data", "1")
			clustertest.Await(t, "a hit", func() error {
				c.Do("HGETALL", "ns:cfg:a")
				if p.CacheStats().Entries == 0 {
					return fmt.Errorf("nothing is cached")
				}
				return nil
			})
			sub := dialTLS(t, p.Addr, ca.Client())
			sub.Do("SUBSCRIBE", "ch")
			c.Do("PUBLISH", "ch", "hello")
			if got := sub.ReadReply(); got != "*3\r\n$7\r\nmessage\r\n$2\r\nch\r\n$5\r\nhello\r\n" {
				t.Errorf("got the message %q", got)
			}

			nc, err := tls.Dial("tcp", p.Addr, &tls.Config{RootCAs: ca.Pool})
			if err == nil { // TLS 1.3 tells who shows no certificate with the first answer
				_, err = nc.Read(make([]byte, 1))
				nc.Close()
			}
			if err == nil || !strings.Contains(err.Error(), "certificate required") {
				t.Errorf("a client without a certificate: %v", err)
			}
			clustertest.Await(t, "the reason in the log", func() error {
				if text := log.String(); !strings.Contains(text, "didn't provide a certificate") {
					return fmt.Errorf("none in %q", text)
				}
				return nil
			})
		})
	}
}

// dialTLS connects a raw client under TLS.
func dialTLS(t *testing.T, addr string, c *tls.Config) *clustertest.Conn {
	t.Helper()
	nc, err := tls.DialWithDialer(&net.Dialer{Timeout: clustertest.Deadline}, "tcp", addr, c)
	if err != nil {
		t.Fatalf("cannot connect to %s: %v", addr, err)
	}
	t.Cleanup(func() { nc.Close() })
	return clustertest.NewConn(t, nc)
}
