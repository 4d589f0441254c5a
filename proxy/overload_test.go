package proxy_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

// TestBlockedClientsThatLeave: that a blocked client goes away is noticed, also behind more
// requests than are read meanwhile, and its connection to the backend is free again.
func TestBlockedClientsThatLeave(t *testing.T) {
	behind := clustertest.StartRedis(t)
	o := strict(t, behind, netloop.Epoll)
	o.Clients.RequestBuffer = 16 << 10
	s, addr := proxytest.Start(t, o)
	for _, pending := range []int{0, 1, 64 << 10} {
		c := clustertest.Dial(t, addr)
		c.Send(clustertest.Encode("BLPOP", "q", "0") + strings.Repeat("PING\r\n", pending/6))
		clustertest.Await(t, "the client to be blocked", func() error {
			if n := behind.InfoField("clients", "blocked_clients"); n != "1" {
				return fmt.Errorf("%s are", n)
			}
			return nil
		})
		if err := c.Net().(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		awaitClients(t, s, 0)
		clustertest.Await(t, "nobody to be blocked", func() error {
			if n := behind.InfoField("clients", "blocked_clients"); n != "0" {
				return fmt.Errorf("%s are", n)
			}
			return nil
		})
	}
}
