package proxy_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy/proxytest"
)

// A request that is streamed waits for the successor of a lost master as others do: before its first byte has been sent nothing
// is lost, and more of it is not read.
func TestUploadsWaitForTheNewMaster(t *testing.T) {
	values := map[string]string{
		"goes on when the master is there": strings.Repeat("v", 3<<20),
		"has come whole by then":           strings.Repeat("v", 1<<20+20<<10),
	}
	for _, mode := range []cluster.Mode{cluster.Sentinel, cluster.Cluster} {
		for _, known := range []bool{false, true} {
			for name, value := range values {
				name = mode.String() + "/" + map[bool]string{false: "nobody knows yet/", true: "known to be lost/"}[known] + name
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					var m fakeData
					next := proxytest.StartFake(t, m.serve)
					topology := proxytest.FixedTo(master(1, mode, deadAddr(t)))
					o := proxytest.Options(t, topology)
					o.Backend.Mode, o.Loops, o.Clients.RequestBuffer = mode, 1, 1<<20
					s, addr := proxytest.Start(t, o)
					conn, other := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
					if known {
						other.Cmd("SET", "small", "v")
						awaitTrip(t, s)
					}
					sent := make(chan struct{})
					go func() {
						defer close(sent)
						conn.Send(oneWrite([]string{"SET", "k", value}, []string{"GET", "k"}))
					}()
					awaitTrip(t, s)
					topology.Set(master(2, mode, next.Addr))
					s.Adopt(topology.Current())
					conn.Expect("+OK\r\n")
					conn.Expect(bulkOf(value))
					<-sent
					if n := next.Calls("SET"); n > 2 {
						t.Errorf("%d SET", n)
					}
				})
			}
		}
	}
}

// The wait ends with hope; one Redis alone has no successor. The rest of the request is skipped.
func TestUploadsDoNotWaitInVain(t *testing.T) {
	for _, mode := range []cluster.Mode{cluster.Standalone, cluster.Cluster} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			dead := deadAddr(t)
			o := proxytest.Options(t, proxytest.FixedTo(master(1, mode, dead)))
			o.Backend.Mode, o.Loops = mode, 1
			o.Upstream.Timeout = map[cluster.Mode]time.Duration{cluster.Standalone: time.Hour, cluster.Cluster: 300 * time.Millisecond}[mode]
			_, addr := proxytest.Start(t, o)
			conn := clustertest.Dial(t, addr)
			big := strings.Repeat("v", 3<<20)
			for range 2 {
				if got := conn.Do("SET", "k", big); !strings.HasPrefix(got, "-ERR cosky-proxy cannot reach backend "+dead) {
					t.Errorf("got %q", got)
				}
				expectReply(t, conn, "PING", "+PONG\r\n")
			}
		})
	}
}

// A client that is killed while its upload waits leaves nothing behind.
func TestWaitingUploadOfAKilledClient(t *testing.T) {
	o := proxytest.Options(t, proxytest.FixedTo(master(1, cluster.Cluster, deadAddr(t))))
	o.Backend.Mode, o.Loops, o.Upstream.Timeout = cluster.Cluster, 1, time.Hour
	s, addr := proxytest.Start(t, o)
	conn := clustertest.Dial(t, addr)
	conn.Send(oneWrite([]string{"SET", "ns:svc_itc:a", strings.Repeat("v", 2<<20)})[:1200<<10])
	awaitTrip(t, s)
	other := clustertest.Dial(t, addr)
	expectReply(t, other, "CLIENT KILL ADDR "+conn.Net().LocalAddr().String(), ":1\r\n")
	clustertest.Await(t, "the client to be gone", func() error {
		if n := s.Stats().Clients; n > 1 {
			return errors.New("it is there")
		}
		return nil
	})
	expectReply(t, other, "PING", "+PONG\r\n")
}
