package proxy_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/discovery"
	"cosky-proxy/cluster/slot"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/mono"
	"cosky-proxy/proxy/proxytest"
)

// readFrom allows replicas a lag that no scheduling on a busy machine amounts to.
func readFrom(from proxy.ReadFrom, rules ...proxy.ReadRule) func(*proxy.Options) {
	return func(o *proxy.Options) {
		o.Reads = proxy.ReadOptions{From: from, Rules: rules, MaxLag: 3 * time.Second}
	}
}

// readFromSoon is for tests that wait for a replica to become unfit.
func readFromSoon(from proxy.ReadFrom) func(*proxy.Options) {
	return func(o *proxy.Options) {
		o.Reads = proxy.ReadOptions{From: from, MaxLag: 300 * time.Millisecond}
	}
}

// reads is how many commands of a name a server has executed.
func reads(r *clustertest.Redis, name string) int {
	stat := r.InfoField("commandstats", "cmdstat_"+name)
	n, _ := strconv.Atoi(strings.TrimPrefix(strings.Split(stat, ",")[0], "calls="))
	return n
}

// replicated is a master with replicas, without anybody who would promote one.
type replicated struct {
	master   *clustertest.Redis
	replicas []*clustertest.Redis
}

func startReplicated(t *testing.T, replicas int) *replicated {
	t.Helper()
	s := &replicated{master: clustertest.StartRedis(t)}
	for range replicas {
		s.replicas = append(s.replicas, clustertest.StartRedis(t, "--replicaof", fmt.Sprintf("127.0.0.1 %d", s.master.Port)))
	}
	s.awaitLinks(t)
	return s
}

func (s *replicated) awaitLinks(t *testing.T) {
	t.Helper()
	clustertest.Await(t, "the replicas", func() error {
		for _, r := range s.replicas {
			if r.InfoField("replication", "master_link_status") != "up" {
				return fmt.Errorf("%s is not linked", r.Addr)
			}
		}
		return nil
	})
}

func (s *replicated) backend() discovery.Backend {
	return discovery.Backend{Mode: cluster.Standalone, Seeds: []string{s.master.Addr}}
}

// set writes a key and waits until all replicas have it.
func (s *replicated) set(t *testing.T, key, value string) {
	t.Helper()
	s.master.Do("SET", key, value)
	clustertest.Await(t, "the replicas to have "+key, func() error {
		for _, r := range s.replicas {
			if got := r.Text("GET", key); got != value {
				return fmt.Errorf("%s has %q", r.Addr, got)
			}
		}
		return nil
	})
}

// awaitReader waits until c's reads of key are answered by one of servers.
func awaitReader(t *testing.T, c *clustertest.Conn, key string, servers ...*clustertest.Redis) {
	t.Helper()
	clustertest.Await(t, "reads to reach the server", func() error {
		before := 0
		for _, r := range servers {
			before += reads(r, "strlen")
		}
		got := c.Do("STRLEN", key)
		after := 0
		for _, r := range servers {
			after += reads(r, "strlen")
		}
		if after == before {
			return fmt.Errorf("another one answered %q", got)
		}
		return nil
	})
}

func TestReadFrom(t *testing.T) {
	t.Parallel()
	s := startReplicated(t, 2)
	s.set(t, "k", "v")
	s.set(t, "k2", "v2")
	s.master.Do("SET", "large", strings.Repeat("x", 100<<10))
	at := func(t *testing.T, change func(*proxy.Options)) *clustertest.Conn {
		return clustertest.Dial(t, proxytest.StartDiscovered(t, s.backend(), change).Addr)
	}

	t.Run("replica", func(t *testing.T) {
		c := at(t, readFrom(proxy.FromReplica, proxy.ReadRule{Name: "exists", From: proxy.FromMaster}, proxy.ReadRule{Name: "@hash", From: proxy.FromMaster}))
		awaitReader(t, c, "k", s.replicas...)
		before := map[string]int{}
		for _, name := range []string{"get", "mget", "exists", "hget", "scan", "zscan"} {
			before[name] = reads(s.master, name)
		}
		for range 20 {
			expectReply(t, c, "GET k", "$1\r\nv\r\n")
			expectReply(t, c, "MGET k k2", "*2\r\n$1\r\nv\r\n$2\r\nv2\r\n")
		}
		if got := c.Do("GET", "large"); len(got) != 100<<10+len("$102400\r\n\r\n") {
			t.Errorf("a long value came back as %d bytes", len(got))
		}
		expectReply(t, c, "EXISTS k", ":1\r\n")
		expectReply(t, c, "HGET h f", "$-1\r\n")
		c.Do("SCAN", "0")
		c.Do("ZSCAN", "z", "0")
		for name, want := range map[string]int{"get": 0, "mget": 0, "exists": 1, "hget": 1, "scan": 1, "zscan": 1} {
			if got := reads(s.master, name) - before[name]; got != want {
				t.Errorf("the master has answered %d %s, want %d", got, name, want)
			}
		}

		// What has to see its own transaction, or keys that are watched, is the master's.
		gets := reads(s.master, "get")
		expectReply(t, c, "WATCH k", "+OK\r\n")
		expectReply(t, c, "GET k", "$1\r\nv\r\n")
		expectReply(t, c, "MULTI", "+OK\r\n")
		expectReply(t, c, "GET k", "+QUEUED\r\n")
		expectReply(t, c, "EXEC", "*1\r\n$1\r\nv\r\n")
		if got := reads(s.master, "get") - gets; got != 2 {
			t.Errorf("the master has answered %d GETs of a transaction, want 2", got)
		}
	})

	t.Run("a read is not overtaken by the write behind it", func(t *testing.T) {
		c := at(t, readFrom(proxy.FromReplicaPreferred))
		awaitReader(t, c, "k", s.replicas...)
		s.set(t, "n", "0")
		var batch strings.Builder
		for i := range 200 {
			batch.WriteString(oneWrite([]string{"GET", "n"}, []string{"SET", "n", strconv.Itoa(i + 1)}))
		}
		c.Send(batch.String())
		last := 0
		for i := range 200 {
			n, err := strconv.Atoi(bulkText(c.ReadReply()))
			if err != nil || n > i || n < last {
				t.Fatalf("read %d after %d in front of write %d (%v)", n, last, i+1, err)
			}
			last = n
			if got := c.ReadReply(); got != "+OK\r\n" {
				t.Fatalf("SET answered %q", got)
			}
		}
		s.set(t, "n", "done")
	})

	t.Run("a client sees its own writes", func(t *testing.T) {
		p := proxytest.StartDiscovered(t, s.backend(), func(o *proxy.Options) {
			readFrom(proxy.FromReplica)(o)
			o.Reads.OwnWrites = true
		})
		c := clustertest.Dial(t, p.Addr)
		awaitReader(t, c, "k", s.replicas...)
		for i := range 50 {
			v := strconv.Itoa(i)
			c.Send(oneWrite([]string{"SET", "own", v}, []string{"GET", "own"}))
			if got := c.ReadReply() + c.ReadReply() + c.Do("GET", "own"); got != "+OK\r\n"+bulkOf(v)+bulkOf(v) {
				t.Fatalf("got %q", got)
			}
		}
		awaitReader(t, c, "k", s.replicas...)
	})

	t.Run("a client sees its own write that is streamed", func(t *testing.T) {
		p := proxytest.StartDiscovered(t, s.backend(), func(o *proxy.Options) {
			readFrom(proxy.FromReplica)(o)
			o.Reads.OwnWrites = true
		})
		c := clustertest.Dial(t, p.Addr)
		const size = 2 << 20 // more than proxytest.Options holds of a request
		awaitReader(t, c, "k", s.replicas...)
		asked := reads(s.master, "strlen")
		expectReply(t, c, "SET large "+strings.Repeat("x", size), "+OK\r\n")
		expectReply(t, c, "STRLEN large", fmt.Sprintf(":%d\r\n", size))
		if got := reads(s.master, "strlen") - asked; got != 1 {
			t.Errorf("right after the write the master has answered %d reads, want 1", got)
		}
		expectReply(t, c, "DEL large", ":1\r\n")
	})

	t.Run("nearest", func(t *testing.T) {
		p := proxytest.StartDiscovered(t, s.backend(), readFrom(proxy.FromNearest))
		// All are equally near, so clients are spread over all.
		for _, r := range append(s.replicas, s.master) {
			clustertest.Await(t, "somebody to be served by "+r.Addr, func() error {
				before := reads(r, "strlen")
				clustertest.Dial(t, p.Addr).Do("STRLEN", "k")
				if reads(r, "strlen") == before {
					return errors.New("not this one")
				}
				return nil
			})
		}
	})
}

// TestReplicasThatAreNotFit: they are not read from, whatever the reason, and again when it is over.
func TestReplicasThatAreNotFit(t *testing.T) {
	t.Parallel()
	s := startReplicated(t, 1)
	replica := s.replicas[0]
	s.set(t, "k", "v")
	preferred := clustertest.Dial(t, proxytest.StartDiscovered(t, s.backend(), readFromSoon(proxy.FromReplicaPreferred)).Addr)
	strict := clustertest.Dial(t, proxytest.StartDiscovered(t, s.backend(), readFromSoon(proxy.FromReplica)).Addr)
	away := proxytest.StartDiscovered(t, s.backend(), readFromSoon(proxy.FromMasterPreferred))
	guarded := clustertest.Dial(t, away.Addr)
	awaitReader(t, preferred, "k", replica)
	awaitReader(t, strict, "k", replica)
	awaitReader(t, guarded, "k", s.master)

	unfit := func(t *testing.T) {
		t.Helper()
		clustertest.Await(t, "reads from the master", func() error {
			before := reads(s.master, "get")
			if got := preferred.Do("GET", "k"); got != "$1\r\nv\r\n" {
				t.Fatalf("got %q", got)
			}
			if reads(s.master, "get") == before {
				return errors.New("the replica answers")
			}
			return nil
		})
		clustertest.Await(t, "an error", func() error {
			if got := strict.Do("GET", "k"); !strings.HasPrefix(got, "-ERR cosky-proxy finds no replica of "+s.master.Addr) {
				return errors.New(got)
			}
			return nil
		})
	}
	fit := func(t *testing.T) {
		t.Helper()
		awaitReader(t, preferred, "k", replica)
		awaitReader(t, strict, "k", replica)
	}

	t.Run("lagging", func(t *testing.T) {
		replica.Do("REPLICAOF", "127.0.0.1", "1")
		s.master.Do("SET", "missed", "1")
		unfit(t)
		replica.Do("REPLICAOF", "127.0.0.1", s.master.Port)
		fit(t)
	})
	t.Run("frozen", func(t *testing.T) {
		replica.Freeze()
		unfit(t)
		replica.Thaw()
		fit(t)
	})
	t.Run("killed", func(t *testing.T) {
		replica.Stop()
		unfit(t)
		replica.Restart()
		s.awaitLinks(t)
		fit(t)
	})
	t.Run("the master is gone", func(t *testing.T) {
		clustertest.Await(t, "every proxy to know the replica again", func() error {
			if n := len(away.Discovery.Current().Shards[0].Replicas); n != 1 {
				return fmt.Errorf("%d replicas", n)
			}
			return nil
		})
		s.master.Stop()
		clustertest.Await(t, "a read from the replica", func() error {
			if got := guarded.Do("GET", "k"); got != "$1\r\nv\r\n" {
				return errors.New(got)
			}
			return nil
		})
		expectReply(t, preferred, "GET k", "$1\r\nv\r\n")
		if got := guarded.Do("SET", "k", "w"); got[0] != '-' {
			t.Errorf("SET without a master: %q", got)
		}
	})
	if away.Ready() == nil {
		t.Error("a proxy without a master is ready")
	}
}

// TestReadFromCluster: the replicas of a cluster answer, also after they have changed places with their
// masters, and not while a slot of theirs is on its way: they would deny the keys that have left.
func TestReadFromCluster(t *testing.T) {
	t.Parallel()
	c := clustertest.StartCluster(t, 2, 1)
	p := proxytest.StartCluster(t, c, func(o *proxy.Options) {
		readFrom(proxy.FromReplica)(o)
		o.Cache.MaxStaleness = maxStaleness
	})
	conn := clustertest.Dial(t, p.Addr)
	masters, replicas := c.Nodes[:2], c.Nodes[2:]
	const keys = 40
	var all []string
	for i := range keys {
		key := fmt.Sprintf("k%d", i)
		expectReply(t, conn, "SET "+key+" "+key, "+OK\r\n")
		all = append(all, key)
	}
	synced := func() {
		t.Helper()
		for _, m := range c.Nodes {
			if m.InfoField("replication", "role") == "master" {
				m.Do("WAIT", 1, clustertest.Deadline.Milliseconds())
			}
		}
	}
	readAll := func(t *testing.T) {
		t.Helper()
		for _, key := range all {
			expectReply(t, conn, "GET "+key, bulkOf(key))
		}
		if got := conn.Do(append([]string{"MGET"}, all...)...); strings.Count(got, "$") != keys || strings.Contains(got, "$-1") {
			t.Errorf("MGET of all keys answered %.300q", got)
		}
	}
	ready := func(t *testing.T) {
		t.Helper()
		asked := func() (n int) { // of masters
			for i := range p.Discovery.Current().Shards {
				for _, r := range c.Nodes {
					if r.Addr == p.Discovery.Current().Shards[i].Primary.Addr {
						n += reads(r, "strlen")
					}
				}
			}
			return n
		}
		clustertest.Await(t, "replicas of all shards", func() error {
			before := asked()
			for _, key := range all {
				if got := conn.Do("STRLEN", key); got != fmt.Sprintf(":%d\r\n", len(key)) {
					t.Fatalf("STRLEN %s answered %q", key, got)
				}
			}
			if n := asked() - before; n != 0 {
				return fmt.Errorf("masters have answered %d", n)
			}
			return nil
		})
	}
	calls := func(nodes []*clustertest.Redis) (n int) {
		for _, r := range nodes {
			n += reads(r, "get") + reads(r, "mget")
		}
		return n
	}

	synced()
	ready(t)
	atMasters, atReplicas := calls(masters), calls(replicas)
	readAll(t)
	if m, r := calls(masters)-atMasters, calls(replicas)-atReplicas; m != 0 || r != 2*keys { // MGET is split by slot
		t.Errorf("the masters have answered %d reads, the replicas %d", m, r)
	}

	t.Run("a slot moves", func(t *testing.T) {
		const key = "k1"
		to := masters[0]
		if c.OwnerOf(key) == to {
			to = masters[1]
		}
		slot := c.SlotOf(key)
		c.BeginMigrate(slot, to)
		clustertest.Await(t, "the topology to say so", func() error {
			top := p.Discovery.Current()
			if !top.Shards[top.ShardOf(uint16(slot))].Moving {
				return errors.New("it does not")
			}
			return nil
		})
		expectReply(t, conn, "GET "+key, bulkOf(key))
		c.MigrateKeys(slot, to, 0)
		expectReply(t, conn, "GET "+key, bulkOf(key))
		c.FinishMigrate(slot, to)
		c.AwaitOK()
		synced()
		ready(t)
		readAll(t)
	})

	t.Run("failover", func(t *testing.T) {
		c.Failover(replicas[0])
		ready(t)
		synced()
		clustertest.Await(t, "the topology to know", func() error {
			if got := p.Discovery.Current().NodeAt(masters[0].Addr); got == nil || !got.Pulse.Alive(mono.Now()) || p.Discovery.Current().Shards[0].Primary.Addr == masters[0].Addr {
				return errors.New("it does not")
			}
			return nil
		})
		before := calls(masters[:1])
		readAll(t)
		if calls(masters[:1]) == before {
			t.Error("the old master is not read from")
		}
	})
}

// TestReadFromSentinel: the replicas that Sentinels know answer, and the one that is promoted does not any more.
func TestReadFromSentinel(t *testing.T) {
	t.Parallel()
	s := clustertest.StartSentinel(t)
	p := proxytest.StartSentinel(t, s, readFrom(proxy.FromReplica))
	c := clustertest.Dial(t, p.Addr)
	expectReply(t, c, "SET k v", "+OK\r\n")
	awaitReader(t, c, "k", s.Replicas()...)
	s.Failover()
	master := s.Master()
	awaitReader(t, c, "k", s.Replicas()...)
	clustertest.Await(t, "writes to reach the new master", func() error {
		if got := c.Do("SET", "k", "v2"); got != "+OK\r\n" {
			return errors.New(got)
		}
		return nil
	})
	before := reads(master, "strlen")
	for range 20 {
		c.Do("STRLEN", "k")
	}
	if got := reads(master, "strlen"); got != before {
		t.Errorf("the new master has answered %d reads", got-before)
	}
}

// TestRestartedMasterHasAnotherHistory: the offsets of a master that was restarted begin anew, so a replica that has not found back
// to it seems to be ahead of it. It is not read from.
func TestRestartedMasterHasAnotherHistory(t *testing.T) {
	t.Parallel()
	c := clustertest.StartCluster(t, 1, 1, "--appendonly", "yes", "--appendfsync", "no") // nobody elects another master
	master, replica := c.Nodes[0], c.Nodes[1]
	p := proxytest.StartCluster(t, c, func(o *proxy.Options) {
		readFromSoon(proxy.FromReplicaPreferred)(o)
		o.Reads.OwnWrites = true
	})
	conn := clustertest.Dial(t, p.Addr)
	write := func(v string) {
		t.Helper()
		clustertest.Await(t, "a write", func() error {
			if got := conn.Do("SET", "k", v); got != "+OK\r\n" {
				return errors.New(got)
			}
			return nil
		})
	}
	write("before")
	awaitReader(t, conn, "k", replica)
	replica.Do("CONFIG", "SET", "masterauth", "which keeps it from coming back")
	master.Restart()
	write("after")
	asked := reads(replica, "info")
	for own := 1; reads(replica, "info") < asked+own+10; own++ { // until the proxy has asked it ten times
		if got := conn.Do("GET", "k"); got != bulkOf("after") {
			t.Fatalf("got %q", got)
		}
		time.Sleep(time.Millisecond)
	}
	replica.Do("CONFIG", "SET", "masterauth", "")
	awaitReader(t, conn, "k", replica)
}

// TestDemotedMasterIsWaitedFor: what a master was sent before it became a replica that may be read from is no read from a
// replica: its answer is waited for longer than one of those, and a refusal is sat out at the new master.
func TestDemotedMasterIsWaitedFor(t *testing.T) {
	for _, answer := range []string{"+OK\r\n", "-LOADING Redis is loading the dataset in memory\r\n"} {
		arrived, release := make(chan struct{}), make(chan struct{})
		old := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
			if args[0] != "SET" {
				return ""
			}
			close(arrived)
			<-release
			return answer
		})
		successor := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
			if args[0] == "SET" {
				return "+OK\r\n"
			}
			return ""
		})
		led := func(version uint64, master string, replicas ...string) *cluster.Topology {
			shard := cluster.Shard{Primary: &cluster.Node{ID: master, Addr: master}, Ranges: []slot.Range{{First: 0, Last: slot.Count - 1}}}
			for _, r := range replicas {
				shard.Replicas = append(shard.Replicas, &cluster.Node{ID: r, Addr: r})
			}
			top, err := cluster.New(version, cluster.Sentinel, []cluster.Shard{shard})
			if err != nil {
				t.Fatal(err)
			}
			return top
		}
		topology := proxytest.FixedTo(led(1, old.Addr, successor.Addr))
		o := proxytest.Options(t, topology)
		o.Backend.Mode = cluster.Sentinel
		readFromSoon(proxy.FromReplicaPreferred)(&o)
		o.Upstream.Timeout = 10 * time.Minute // a twentieth of it is for last words
		s, addr := proxytest.Start(t, o)
		c := clustertest.Dial(t, addr)
		c.Cmd("SET", "k", "v")
		<-arrived
		topology.Set(led(2, successor.Addr, old.Addr))
		s.Adopt(topology.Current())
		begun := time.Now()
		clustertest.Await(t, "a replica not to be waited for any more", func() error {
			if d := time.Since(begun); d < 2*o.Reads.MaxLag {
				return fmt.Errorf("only %s have passed", d)
			}
			return nil
		})
		close(release)
		if got := c.ReadReply(); got != "+OK\r\n" {
			t.Errorf("when it answered %q the client got %q", answer, got)
		}
	}
}

// A read that a replica loses, or is not fit to answer, waits for the owner as every command does when that is out of reach.
func TestReadsOfLostReplicasWait(t *testing.T) {
	for name, fail := range map[string]func(*proxytest.FakeConn) string{
		"refused": func(*proxytest.FakeConn) string { return "-CLUSTERDOWN The cluster is down\r\n" },
		"lost":    func(c *proxytest.FakeConn) string { c.Close(); return "" },
	} {
		t.Run(name, func(t *testing.T) {
			var m fakeData
			next := proxytest.StartFake(t, m.serve)
			replica := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
				switch args[0] {
				case "GET":
					return fail(c)
				case "READONLY":
					return "+OK\r\n"
				}
				return ""
			})
			shard := func(version uint64, primary string, replicas ...*cluster.Node) *cluster.Topology {
				shard := cluster.Shard{Primary: &cluster.Node{ID: primary, Addr: primary}, Replicas: replicas, Ranges: []slot.Range{slot.All()}}
				topo, err := cluster.New(version, cluster.Cluster, []cluster.Shard{shard})
				if err != nil {
					t.Fatal(err)
				}
				return topo
			}
			pulse := cluster.NewPulse()
			pulse.Renew(mono.Now() + int64(time.Hour))
			topology := proxytest.FixedTo(shard(1, deadAddr(t), &cluster.Node{ID: "r", Addr: replica.Addr, Pulse: pulse}))
			o := proxytest.Options(t, topology)
			o.Backend.Mode, o.Loops = cluster.Cluster, 1
			readFrom(proxy.FromReplicaPreferred)(&o)
			s, addr := proxytest.Start(t, o)
			clustertest.Dial(t, addr).Cmd("SET", "k", "v")
			awaitTrip(t, s)
			c := clustertest.Dial(t, addr)
			c.Cmd("GET", "k")
			counted(t, replica, "GET", 1)
			if got, err := c.TryReply(50 * time.Millisecond); err == nil {
				t.Fatalf("got %q while there is hope", got)
			}
			topology.Set(shard(2, next.Addr))
			s.Adopt(topology.Current())
			if got := c.ReadReply(); got != bulkOf("v") && got != "$-1\r\n" {
				t.Errorf("got %q", got)
			}
		})
	}
}
