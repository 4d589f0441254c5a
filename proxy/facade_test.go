package proxy_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
)

// Node IDs are the SHA-1 of the addresses, whoever computes it.
const (
	idA     = "b6b63b5c1521e1e45157486c6b2a6bb0c6928454" // 10.0.0.1:6380
	idB     = "03a57d7a7dbfe49ff1581a39b351f7ebef2da813" // [fd00::2]:6380
	idC     = "6321c528cb0bd58e52f1e21d534bfc9bf690f666" // proxy-c.example:60000
	shardB  = "9663929bafb5e17a2755750b123e2ef30b7da366" // "shard [fd00::2]:6380"
	unknown = "0123456789012345678901234567890123456789"
)

// threeProxies is the façade of which the proxy under test is the one in the middle.
func threeProxies(o *proxy.Options) {
	o.Facade = proxy.FacadeOptions{Addrs: []string{"proxy-c.example:60000", "10.0.0.1:6380", "[fd00::2]:6380"}, Own: "[fd00::2]:6380"}
}

func TestFacade(t *testing.T) {
	behind := clustertest.StartRedis(t)
	o := proxytest.Options(t, proxytest.Single(behind.Addr))
	threeProxies(&o)
	_, addr := proxytest.Start(t, o)

	bulk := func(text string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }
	verbatim := func(text string) string { return fmt.Sprintf("=%d\r\ntxt:%s\r\n", len(text)+4, text) }
	list := func(kind string, n int, items ...any) string {
		var b strings.Builder
		fmt.Fprintf(&b, "%s%d\r\n", kind, n)
		for _, item := range items {
			switch v := item.(type) {
			case int:
				fmt.Fprintf(&b, ":%d\r\n", v)
			case string:
				if strings.HasSuffix(v, "\r\n") {
					b.WriteString(v)
				} else {
					b.WriteString(bulk(v))
				}
			}
		}
		return b.String()
	}
	nodes := idA + " 10.0.0.1:6380@16380 master - 0 0 1 connected 0-5460\n" +
		idB + " fd00::2:6380@16380 myself,master - 0 0 2 connected 5461-10921\n" +
		idC + " proxy-c.example:60000@0,proxy-c.example master - 0 0 3 connected 10922-16383\n"
	info := "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_slots_ok:16384\r\ncluster_slots_pfail:0\r\ncluster_slots_fail:0\r\n" +
		"cluster_known_nodes:3\r\ncluster_size:3\r\ncluster_current_epoch:3\r\ncluster_my_epoch:2\r\n" +
		"cluster_stats_messages_sent:0\r\ncluster_stats_messages_received:0\r\ntotal_cluster_links_buffer_limit_exceeded:0\r\n"
	slots := func(none string) string {
		return list("*", 3,
			list("*", 3, 0, 5460, list("*", 4, "10.0.0.1", 6380, idA, none)),
			list("*", 3, 5461, 10921, list("*", 4, "fd00::2", 6380, idB, none)),
			list("*", 3, 10922, 16383, list("*", 4, "proxy-c.example", 60000, idC, none)))
	}
	shards := func(kind string, per int) string {
		node := func(id, host string, port int, name ...any) string {
			fields := append([]any{"id", id, "port", port, "ip", host, "endpoint", host}, name...)
			fields = append(fields, "role", "master", "replication-offset", 0, "health", "online")
			return list(kind, len(fields)/2*per, fields...)
		}
		shard := func(first, last int, node string) string {
			return list(kind, 2*per, "slots", list("*", 2, first, last), "nodes", list("*", 1, node))
		}
		return list("*", 3,
			shard(0, 5460, node(idA, "10.0.0.1", 6380)),
			shard(5461, 10921, node(idB, "fd00::2", 6380)),
			shard(10922, 16383, node(idC, "proxy-c.example", 60000, "hostname", "proxy-c.example")))
	}
	fixed := func(name string) string {
		return "-ERR '" + name + "' is not supported by cosky-proxy: the cluster its clients see consists of the proxies that cluster_facade lists, and only the configuration changes it\r\n"
	}
	notBySlot := func(name string) string {
		return "-ERR '" + name + "' is not supported by cosky-proxy in front of a Redis that is no cluster: it does not keep keys by slot\r\n"
	}

	for version, want := range map[string]map[string]string{
		"2": {"CLUSTER NODES": bulk(nodes), "CLUSTER INFO": bulk(info), "CLUSTER SLOTS": slots("*0\r\n"), "CLUSTER SHARDS": shards("*", 2)},
		"3": {"CLUSTER NODES": verbatim(nodes), "CLUSTER INFO": verbatim(info), "CLUSTER SLOTS": slots("%0\r\n"), "CLUSTER SHARDS": shards("%", 1)},
	} {
		conn := clustertest.Dial(t, addr)
		if hello := conn.Do("HELLO", version); !strings.Contains(hello, bulk("mode")+bulk("cluster")) {
			t.Errorf("RESP%s: HELLO says %q", version, hello)
		}
		for _, text := range []string{conn.Do("INFO"), conn.Do("INFO", "server", "cluster")} {
			if !strings.Contains(text, "redis_mode:cluster\r\n") || !strings.Contains(text, "cluster_enabled:1\r\n") {
				t.Errorf("RESP%s: INFO says %q", version, text)
			}
		}
		for command, reply := range map[string]string{
			"READONLY": "+OK\r\n", "READWRITE": "+OK\r\n", "ASKING": "+OK\r\n",
			"CLUSTER MYID":                             bulk(idB),
			"CLUSTER MYSHARDID":                        bulk(shardB),
			"cluster keyslot foo":                      ":12182\r\n",
			"CLUSTER KEYSLOT a{foo}b":                  ":12182\r\n",
			"CLUSTER KEYSLOT":                          "-ERR wrong number of arguments for 'cluster|keyslot' command\r\n",
			"CLUSTER NOSUCH":                           "-ERR unknown subcommand 'NOSUCH'. Try CLUSTER HELP.\r\n",
			"CLUSTER LINKS":                            "*0\r\n",
			"CLUSTER REPLICAS " + idA:                  "*0\r\n",
			"CLUSTER SLAVES " + idC:                    "*0\r\n",
			"CLUSTER REPLICAS " + unknown:              "-ERR Unknown node " + unknown + "\r\n",
			"CLUSTER COUNT-FAILURE-REPORTS " + idA:     ":0\r\n",
			"CLUSTER COUNT-FAILURE-REPORTS " + unknown: "-ERR Unknown node " + unknown + "\r\n",
			"CLUSTER COUNTKEYSINSLOT 1":                notBySlot("cluster|countkeysinslot"),
			"CLUSTER GETKEYSINSLOT 1 10":               notBySlot("cluster|getkeysinslot"),
			"CLUSTER MEET 10.0.0.9 6380":               fixed("cluster|meet"),
			"CLUSTER ADDSLOTS 1 2":                     fixed("cluster|addslots"),
			"CLUSTER ADDSLOTSRANGE 1 2":                fixed("cluster|addslotsrange"),
			"CLUSTER DELSLOTS 1":                       fixed("cluster|delslots"),
			"CLUSTER FLUSHSLOTS":                       fixed("cluster|flushslots"),
			"CLUSTER SETSLOT 1 STABLE":                 fixed("cluster|setslot"),
			"CLUSTER FAILOVER":                         fixed("cluster|failover"),
			"CLUSTER FORGET " + idA:                    fixed("cluster|forget"),
			"CLUSTER REPLICATE " + idA:                 fixed("cluster|replicate"),
			"CLUSTER RESET":                            fixed("cluster|reset"),
			"CLUSTER BUMPEPOCH":                        fixed("cluster|bumpepoch"),
			"CLUSTER SET-CONFIG-EPOCH 7":               fixed("cluster|set-config-epoch"),
			"CLUSTER SAVECONFIG":                       fixed("cluster|saveconfig"),
			"MOVE a 1":                                 "-ERR MOVE is not allowed in cluster mode\r\n",
			"SWAPDB 0 1":                               "-ERR SWAPDB is not allowed in cluster mode\r\n",
			"COPY none b DB 3":                         "-ERR Copying to another database is not allowed in cluster mode\r\n",
			"COPY none b REPLACE":                      ":0\r\n",
			"SELECT 0":                                 "+OK\r\n",
			"SELECT 1":                                 "-ERR SELECT is not allowed in cluster mode\r\n",
			"SELECT x":                                 "-ERR value is not an integer or out of range\r\n",
			"CLUSTER NODES":                            want["CLUSTER NODES"],
			"CLUSTER INFO":                             want["CLUSTER INFO"],
			"CLUSTER SLOTS":                            want["CLUSTER SLOTS"],
			"CLUSTER SHARDS":                           want["CLUSTER SHARDS"],
		} {
			if got := conn.Do(strings.Fields(command)...); got != reply {
				t.Errorf("RESP%s: %s\n got %q\nwant %q", version, command, got, reply)
			}
		}
		if help := conn.Do("CLUSTER", "HELP"); !strings.HasPrefix(help, "*") || !strings.Contains(help, "+SLOTS\r\n") || !strings.HasSuffix(help, "+HELP\r\n+    Prints this help.\r\n") {
			t.Errorf("RESP%s: CLUSTER HELP says %q", version, help)
		}
	}

	// Every slot is served here, and keys of several slots by one backend.
	conn := clustertest.Dial(t, addr)
	for i := range 100 {
		conn.Send(clustertest.Encode("SET", fmt.Sprint(i), "v"))
	}
	for range 100 {
		conn.Expect("+OK\r\n")
	}
	if got := conn.Do("SUNIONSTORE", "a", "b", "c"); got != ":0\r\n" {
		t.Errorf("a command on several slots: got %q", got)
	}
	expectExec(t, conn, "*5\r\n+OK\r\n-ERR SELECT is not allowed in cluster mode\r\n"+bulk(idB)+notBySlot("cluster|countkeysinslot")+":1\r\n",
		"SELECT 0", "SELECT 1", "CLUSTER MYID", "CLUSTER COUNTKEYSINSLOT 1", "INCR n")
}

// In front of a cluster the owner of a slot counts and names its keys.
func TestFacadeOfCluster(t *testing.T) {
	c := clustertest.StartCluster(t, 2, 0)
	p := proxytest.StartCluster(t, c, threeProxies)
	conn := clustertest.Dial(t, p.Addr)
	for _, tag := range []string{"b", "foo"} { // slots 3300 and 12182, on either node
		for _, key := range []string{"1", "2"} {
			if got := conn.Do("SET", "{"+tag+"}"+key, "v"); got != "+OK\r\n" {
				t.Fatalf("SET: got %q", got)
			}
		}
	}
	for command, want := range map[string]string{
		"CLUSTER COUNTKEYSINSLOT 3300":     ":2\r\n",
		"CLUSTER COUNTKEYSINSLOT 12182":    ":2\r\n",
		"CLUSTER COUNTKEYSINSLOT 1":        ":0\r\n",
		"CLUSTER COUNTKEYSINSLOT 16384":    "-ERR Invalid slot\r\n",
		"CLUSTER COUNTKEYSINSLOT x":        "-ERR value is not an integer or out of range\r\n",
		"CLUSTER GETKEYSINSLOT 3300 0":     "*0\r\n",
		"CLUSTER GETKEYSINSLOT 12182 -1":   "-ERR Invalid slot or number of keys\r\n",
		"CLUSTER GETKEYSINSLOT 12182 many": "-ERR value is not an integer or out of range\r\n",
		"SELECT 1":                         "-ERR SELECT is not allowed in cluster mode\r\n",
		"SELECT 0":                         "+OK\r\n",
	} {
		if got := conn.Do(strings.Fields(command)...); got != want {
			t.Errorf("%s: got %q, want %q", command, got, want)
		}
	}
	if info := conn.Do("INFO"); !strings.Contains(info, "redis_mode:cluster\r\n") || !strings.Contains(info, "cluster_enabled:1\r\n") || strings.Contains(info, "cluster_enabled:0") {
		t.Errorf("INFO says %q", info)
	}
	for slot, tag := range map[string]string{"3300": "{b}", "12182": "{foo}"} {
		got := conn.Do("CLUSTER", "GETKEYSINSLOT", slot, "10")
		if !strings.HasPrefix(got, "*2\r\n") || !strings.Contains(got, tag+"1") || !strings.Contains(got, tag+"2") {
			t.Errorf("CLUSTER GETKEYSINSLOT %s: got %q", slot, got)
		}
	}
	expectExec(t, conn, "*3\r\n-ERR 'cluster|countkeysinslot' inside MULTI is not supported by cosky-proxy\r\n-ERR SELECT is not allowed in cluster mode\r\n:1\r\n",
		"CLUSTER COUNTKEYSINSLOT 1", "SELECT 1", "INCR n")
}

// A proxy that cannot find itself in the list does not start.
func TestFacadeWithoutItself(t *testing.T) {
	o := proxytest.Options(t, proxytest.Single("127.0.0.1:1"))
	o.Facade.Addrs = []string{"10.0.0.1:1", "10.0.0.2:2"}
	s, err := proxy.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err == nil || !strings.Contains(err.Error(), "set cluster_announce") {
		t.Errorf("Listen: %v", err)
	}
}

// expectExec runs commands in a transaction and compares what EXEC says.
func expectExec(t *testing.T, conn *clustertest.Conn, want string, commands ...string) {
	t.Helper()
	conn.Do("MULTI")
	for _, command := range commands {
		if got := conn.Do(strings.Fields(command)...); got != "+QUEUED\r\n" {
			t.Errorf("%s inside MULTI: got %q", command, got)
		}
	}
	if got := conn.Do("EXEC"); got != want {
		t.Errorf("EXEC of %q:\n got %q\nwant %q", commands, got, want)
	}
}

// A proxy that is gone is shown as failed and its slots at the other one; clients find
// the way, and back once it has returned.
func TestFacadeNodeFails(t *testing.T) {
	behind := clustertest.StartRedis(t)
	addrs := []string{fmt.Sprintf("127.0.0.1:%d", clustertest.FreePort(t)), fmt.Sprintf("127.0.0.1:%d", clustertest.FreePort(t))}
	slices.Sort(addrs)
	start := func(own string) (stop func()) {
		o := proxytest.Options(t, proxytest.Single(behind.Addr))
		o.Listen, o.Facade = []string{own}, proxy.FacadeOptions{Addrs: addrs, NodeTimeout: 300 * time.Millisecond}
		s, err := proxy.New(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Listen(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		stop = sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("the proxy ended with %v", err)
			}
		})
		t.Cleanup(stop)
		return stop
	}
	start(addrs[0])
	stop := start(addrs[1])
	conn := clustertest.Dial(t, addrs[0])
	// By default go-redis asks once a minute, even when it cannot reach a node.
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ClusterStateReloadInterval: 200 * time.Millisecond})
	defer client.Close()
	awaitView := func(what string, want ...string) {
		t.Helper()
		clustertest.Await(t, what, func() error {
			for i, command := range []string{"NODES", "INFO", "SLOTS", "SHARDS"} {
				if got := conn.Do("CLUSTER", command); !strings.Contains(got, want[i]) {
					return fmt.Errorf("CLUSTER %s says %q, want %q", command, got, want[i])
				}
			}
			return nil
		})
		clustertest.Await(t, "every key to be served with "+what, func() error {
			for i := range 50 {
				if err := client.Set(t.Context(), fmt.Sprint(i), "v", 0).Err(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	both := []string{" connected 8192-16383\n", "cluster_size:2\r\n", ":8192\r\n:16383\r\n", "*2\r\n:8192\r\n:16383\r\n"}
	awaitView("two proxies", both...)
	stop()
	awaitView("one proxy", " master,fail - 0 0 2 disconnected\n", "cluster_size:1\r\n", "*1\r\n*3\r\n:0\r\n:16383\r\n", "$5\r\nslots\r\n*0\r\n")
	start(addrs[1])
	awaitView("two proxies again", both...)
}
