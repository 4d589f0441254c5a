package proxy_test

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

func idOf(c *clustertest.Conn) string { return strings.Trim(c.Do("CLIENT", "ID"), ":\r\n") }

// TestClientUnblock: a blocked client is answered as if its time were over, or with
// an error, and goes on; right away, too, when its command is still on its way.
func TestClientUnblock(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	for _, proto := range []int{2, 3} {
		p, other := w.dial(t, proto), w.dial(t, 2)
		for _, blocking := range []string{"BLPOP q 0", "BLMPOP 0 1 q LEFT", "BZPOPMIN z 0", "XREAD BLOCK 0 STREAMS s $", "BRPOPLPUSH q r 0", "WAIT 5 0"} {
			for _, reason := range []string{"", "TIMEOUT", "error"} {
				ids := map[*clustertest.Conn]string{p.direct: idOf(p.direct), p.behind: idOf(p.behind)}
				var got []string
				for c, o := range map[*clustertest.Conn]*clustertest.Conn{p.direct: other.direct, p.behind: other.behind} {
					c.Send(encodeAll(script(blocking, "ECHO next")...))
					if c == p.direct {
						awaitBlocked(t, w.direct, "1")
					}
					clustertest.Await(t, "the client to be unblocked", func() error {
						if n := o.Do(strings.Fields("CLIENT UNBLOCK " + ids[c] + " " + reason)...); n != ":1\r\n" {
							return errString(n)
						}
						return nil
					})
					got = append(got, c.ReadReply()+c.ReadReply())
				}
				if got[0] != got[1] {
					t.Errorf("%s %s (RESP%d): got %q with and without a proxy", blocking, reason, proto, got)
				}
				for range 2 {
					other.do([]string{"CLIENT", "UNBLOCK", strconv.Itoa(1 << 40)})
				}
			}
		}
		other.behind.Cmd("CLIENT", "UNBLOCK", idOf(p.behind))
		other.behind.Expect(":0\r\n")
	}
}

type errString string

func (e errString) Error() string { return string(e) }

// TestWaitThroughProxy: WAIT counts the replicas that have what this client wrote,
// which travelled on another connection, and holds up nobody else.
func TestWaitThroughProxy(t *testing.T) {
	master := clustertest.StartRedis(t)
	host, port, _ := strings.Cut(master.Addr, ":")
	replica := clustertest.StartRedis(t, "--replicaof", host+" "+port)
	clustertest.Await(t, "the replica to follow", func() error {
		if got := replica.InfoField("replication", "master_link_status"); got != "up" {
			return errString(got)
		}
		return nil
	})
	_, addr := proxytest.Start(t, strict(t, master, netloop.DefaultTransport))
	c, other := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
	for i := range 20 {
		c.Send(encodeAll(script("SET k "+strconv.Itoa(i), "WAIT 1 0")...))
		c.Expect("+OK\r\n")
		c.Expect(":1\r\n")
		if got, want := clustertest.Dial(t, replica.Addr).Do("GET", "k"), bulkOf(strconv.Itoa(i)); got != want {
			t.Fatalf("after WAIT the replica has %q, want %q", got, want)
		}
	}
	c.Cmd("WAIT", "2", "0")
	awaitBlocked(t, master, "1")
	other.Do("SET", "k", "others go on")
	if got := other.Do("CLIENT", "UNBLOCK", strings.Fields(clientLine(other.Do("CLIENT", "LIST"), c))[0][len("id="):]); got != ":1\r\n" {
		t.Errorf("CLIENT UNBLOCK answers %q", got)
	}
	if got := c.ReadReply(); got != ":0\r\n" && got != ":1\r\n" { // the replica may not have said anything yet
		t.Errorf("WAIT, unblocked, answers %q", got)
	}
	c.Send(encodeAll(script("MULTI", "SET k 1", "WAIT 3 0", "EXEC")...))
	for range 3 {
		c.ReadReply()
	}
	if got := c.ReadReply(); !strings.HasPrefix(got, "*2\r\n+OK\r\n:") {
		t.Errorf("WAIT inside MULTI answers %q", got)
	}
}

// clientLine is the line of CLIENT LIST that is about c.
func clientLine(list string, c *clustertest.Conn) string {
	for _, line := range strings.Split(list, "\n") {
		if strings.Contains(line, " addr="+c.Net().LocalAddr().String()+" ") {
			return line
		}
	}
	return ""
}

// testClusterWait: every master has its replicas; the smallest number counts.
func testClusterWait(t *testing.T, _ *shared, p *proxytest.Discovered) {
	c, other := clustertest.Dial(t, p.Addr), clustertest.Dial(t, p.Addr)
	for i := range 3 {
		c.Do("SET", keyOf("w", i), "1")
	}
	if got := c.Do("WAIT", "1", "0"); got != ":1\r\n" {
		t.Errorf("WAIT answers %q, every master has one replica", got)
	}
	id := idOf(c)
	c.Cmd("WAIT", "2", "0")
	clustertest.Await(t, "WAIT to be unblocked", func() error {
		if got := other.Do("CLIENT", "UNBLOCK", id); got != ":1\r\n" {
			return errString(got)
		}
		return nil
	})
	if got := c.ReadReply(); got != ":0\r\n" && got != ":1\r\n" { // a replica may not have said anything yet
		t.Errorf("WAIT, unblocked on every master, answers %q", got)
	}
}

// TestManyBlockedClients: blocked clients cost a connection each and nothing else,
// however many begin to block at once; each gets its own element, and one that
// leaves takes none with it.
func TestManyBlockedClients(t *testing.T) {
	const n = 1000
	backend := clustertest.StartRedis(t)
	_, addr := proxytest.Start(t, strict(t, backend, netloop.DefaultTransport))
	var clients []*clustertest.Conn
	for range n {
		clients = append(clients, clustertest.Dial(t, addr))
	}
	before := runtime.NumGoroutine()
	for i, c := range clients {
		c.Cmd("BLPOP", fmt.Sprint("q", i), "0")
	}
	awaitBlocked(t, backend, strconv.Itoa(n))
	clustertest.Await(t, "the dialling goroutines to end", func() error {
		if more := runtime.NumGoroutine() - before; more > 10 {
			return fmt.Errorf("%d goroutines more", more)
		}
		return nil
	})
	for _, c := range clients[:n/2] {
		c.Close()
	}
	awaitBlocked(t, backend, strconv.Itoa(n-n/2))
	pusher := clustertest.Dial(t, addr)
	for i := range n {
		pusher.Cmd("RPUSH", fmt.Sprint("q", i), strconv.Itoa(i))
	}
	for range n {
		pusher.Expect(":1\r\n")
	}
	for i, c := range clients[n/2:] {
		i += n / 2
		c.Expect("*2\r\n" + bulkOf(fmt.Sprint("q", i)) + bulkOf(strconv.Itoa(i)))
	}
	pusher.Cmd("DBSIZE")
	pusher.Expect(fmt.Sprintf(":%d\r\n", n/2))
}
