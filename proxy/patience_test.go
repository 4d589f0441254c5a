package proxy_test

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy/proxytest"
)

// A server that is frozen does not hold up for ever who blocks for a while, who waits, and whose request is on its way there. Whoever
// blocks for ever gets what comes when it goes on.
func TestPatienceEnds(t *testing.T) {
	r := clustertest.StartRedis(t)
	o := proxytest.Options(t, proxytest.Single(r.Addr))
	o.Upstream.Timeout, o.Upstream.ConnectTimeout = 300*time.Millisecond, 300*time.Millisecond
	o.Cache.Cache, o.Cache.Invalidation = nil, "off"
	_, addr := proxytest.Start(t, o)
	direct := clustertest.Dial(t, r.Addr)
	blockers := map[string]*clustertest.Conn{
		"BLPOP none 2": nil, "BLMPOP 2 1 none LEFT": nil, "XREAD BLOCK 2000 STREAMS none $": nil, "WAIT 1 2000": nil, "BLPOP q 0": nil,
	}
	for command := range blockers {
		c := clustertest.Dial(t, addr)
		c.Cmd(strings.Fields(command)...)
		blockers[command] = c
	}
	clustertest.Await(t, "all to block", func() error {
		if info := direct.Do("INFO", "clients"); !strings.Contains(info, fmt.Sprintf("blocked_clients:%d\r\n", len(blockers))) {
			return fmt.Errorf("%s", info)
		}
		return nil
	})
	const size = 40 << 20 // more than the kernel keeps
	upload := clustertest.Dial(t, addr)
	upload.Send(fmt.Sprintf("*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n$%d\r\n", size) + strings.Repeat("x", size/10))
	clustertest.Await(t, "the beginning of the upload to arrive", func() error {
		var n int
		_, input, _ := strings.Cut(direct.Do("INFO", "stats"), "total_net_input_bytes:")
		if fmt.Sscan(input, &n); n < size/20 {
			return fmt.Errorf("%d bytes", n)
		}
		return nil
	})
	r.Freeze()
	var rest sync.WaitGroup
	rest.Go(func() { upload.Net().Write([]byte(strings.Repeat("x", size-size/10) + "\r\n")) })
	blockers["SET big"] = upload
	for command, c := range blockers {
		if command == "BLPOP q 0" {
			continue
		}
		if got := c.ReadReply(); !strings.HasPrefix(got, "-ERR cosky-proxy timed out after 300ms waiting for backend "+r.Addr) {
			t.Errorf("got %.200q for %s", got, command)
		}
	}
	r.Thaw()
	rest.Wait()
	clustertest.Await(t, "the server to be back in service", func() error {
		if got := upload.Do("EXISTS", "big"); got != ":0\r\n" { // the rest of the request was skipped
			return fmt.Errorf("%s", got)
		}
		return nil
	})
	direct.Do("RPUSH", "q", "e")
	blockers["BLPOP q 0"].Expect("*2\r\n" + bulkOf("q") + bulkOf("e"))
}

// Who goes away while his blocking command is on its way from one master to the next does not block there for ever.
func TestBlockedClientGoesAwayBetweenMasters(t *testing.T) {
	var demoted atomic.Bool
	demoted.Store(true)
	a := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		if args[0] == "BLPOP" && demoted.Load() {
			return "-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)\r\n"
		}
		return ""
	})
	s, addr, _ := startFakeCluster(t, nil, a)
	c := clustertest.Dial(t, addr)
	c.Cmd("BLPOP", "q", "0")
	counted(t, a, "BLPOP", 1)
	if err := c.Net().(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	clustertest.Await(t, "some pauses, in which the client's end is noticed, or that it was noticed before", func() error {
		if n := a.Calls("BLPOP"); n < 5 && s.Stats().Clients > 0 {
			return fmt.Errorf("%d of 5", n)
		}
		return nil
	})
	demoted.Store(false)
	clustertest.Await(t, "the client to be let go", func() error {
		if n := s.Stats().Clients; n > 0 {
			return fmt.Errorf("%d clients", n)
		}
		return nil
	})
}
