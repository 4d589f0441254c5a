package discovery

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/dial"
	"cosky-proxy/cluster/slot"
	"cosky-proxy/conf"
	"cosky-proxy/nearcache/lease"
	"cosky-proxy/proxy/mono"
)

// open parses a URL and builds a Discovery that logs into the test's output.
func open(t *testing.T, url string, change func(*Options)) *Discovery {
	t.Helper()
	u, err := conf.ParseBackend(url)
	if err != nil {
		t.Fatal(err)
	}
	mode := map[conf.BackendKind]cluster.Mode{conf.Standalone: cluster.Standalone, conf.Cluster: cluster.Cluster, conf.Sentinel: cluster.Sentinel}[u.Kind]
	backend := Backend{Mode: mode, Seeds: u.Addrs, MasterName: u.Master, TLS: u.TLS, User: u.User, Password: string(u.Password), DB: u.DB}
	opts := Options{Backend: backend, Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))}
	if change != nil {
		change(&opts)
	}
	return New(opts)
}

// run starts d and keeps it running until the test ends.
func run(t *testing.T, d *Discovery) *cluster.Topology {
	t.Helper()
	topology, err := d.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		d.Run(ctx)
		close(done)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return topology
}

// startError returns what Start says of a backend that cannot be used.
func startError(t *testing.T, d *Discovery) string {
	t.Helper()
	topology, err := d.Start(t.Context())
	if err == nil {
		t.Fatalf("Start of %v succeeded with %v", d.opts.Backend, topology)
	}
	return err.Error()
}

// awaitPrimary waits until the slot's primary has that address and is vouched for.
func awaitPrimary(t *testing.T, d *Discovery, slot uint16, addr string) *cluster.Node {
	t.Helper()
	var n *cluster.Node
	clustertest.Await(t, fmt.Sprintf("%s to be vouched for as the owner of slot %d", addr, slot), func() error {
		n = d.Current().Primary(slot)
		if n == nil || n.Addr != addr || !n.Vouched(mono.Now()) {
			return fmt.Errorf("the topology is %v", d.Current())
		}
		return nil
	})
	return n
}

func awaitRevoked(t *testing.T, l *lease.Lease) {
	t.Helper()
	clustertest.Await(t, "the lease to be revoked", func() error {
		if !l.Revoked() {
			return errors.New("it is not")
		}
		return nil
	})
}

// silent is a server that accepts connections and never answers.
func silent(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln.Addr().String()
}

func refusing(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", clustertest.FreePort(t))
}

func TestStandalone(t *testing.T) {
	server := clustertest.StartRedis(t, "--requirepass", "s3cret/@")
	d := open(t, "redis://:s3cret%2F%40@"+server.Addr+"/3", nil)
	topology := run(t, d)
	n := topology.Primary(0)
	if len(topology.Shards) != 1 || topology.Mode != cluster.Standalone || n.Addr != server.Addr || n.Vouch != nil || topology.Uncovered() != 0 {
		t.Errorf("got topology %v", topology)
	}
	version := server.InfoField("server", "redis_version")
	if n.Version != version {
		t.Errorf("got version %q, want %q", n.Version, version)
	}
	if want := (ServerInfo{Version: version, Server: "redis", Mode: cluster.Standalone, Tracking: true}); d.Info() != want {
		t.Errorf("got info %+v, want %+v", d.Info(), want)
	}
}

func TestStartSaysWhy(t *testing.T) {
	server := clustertest.StartRedis(t, "--requirepass", "right")
	node := clustertest.StartRedis(t, "--cluster-enabled", "yes")
	plain := clustertest.StartRedis(t)
	dead, deaf := refusing(t), silent(t)
	short := func(o *Options) { o.ConnectTimeout = 100 * time.Millisecond }
	tests := []struct {
		url   string
		wants []string
	}{
		{"redis://:wrong@" + server.Addr, []string{server.Addr, "WRONGPASS"}},
		{"redis://" + server.Addr, []string{server.Addr + ": it needs a password: set upstream.password or put it into the URL"}},
		{"redis-cluster://" + server.Addr, []string{server.Addr + ": it needs a password: set upstream.password or put it into the URL"}},
		{"redis-sentinel://" + server.Addr + "/m", []string{server.Addr + ": it needs a password: set upstream.sentinel_password"}},
		{"redis://someone:wrong@" + plain.Addr, []string{"WRONGPASS"}},
		{"redis://" + plain.Addr + "/99", []string{"database 99", "out of range"}},
		{"redis://" + dead, []string{dead + ": connection refused"}},
		{"redis://" + node.Addr, []string{"use redis-cluster://" + node.Addr}},
		{"redis-sentinel://" + plain.Addr + "/m", []string{plain.Addr + ": it is not a Sentinel, use redis://" + plain.Addr}},
		{"redis-cluster://" + plain.Addr, []string{"use redis://" + plain.Addr}},
		{"redis-cluster://" + node.Addr, []string{node.Addr + ": no node of its cluster owns any slot"}},
		{"redis-cluster://" + dead + "," + deaf, []string{dead + ": connection refused", deaf + ": no answer within 100ms"}},
		{"redis-sentinel://" + dead + "," + deaf + "/m", []string{dead + ": connection refused", deaf + ": no answer within 100ms"}},
	}
	for _, tt := range tests {
		got := startError(t, open(t, tt.url, short))
		for _, want := range tt.wants {
			if !strings.Contains(got, want) {
				t.Errorf("%s: got %q, want it to say %q", tt.url, got, want)
			}
		}
		if strings.Contains(got, "wrong@") {
			t.Errorf("the error tells the password: %s", got)
		}
	}
}

func TestStartSaysWhyUnderTLS(t *testing.T) {
	ca := clustertest.NewCA(t)
	server := clustertest.StartTLSRedis(t, ca)
	trusting := ca.Client()
	tests := []struct {
		url  string
		tls  *tls.Config
		want string
	}{
		{"rediss://" + server.TLSAddr(), &tls.Config{}, "cannot agree on TLS: failed to verify certificate: x509: certificate signed by unknown authority"},
		{"rediss://" + server.TLSAddr(), &tls.Config{RootCAs: ca.Pool}, "certificate required"},
		{"rediss://" + server.TLSAddr(), &tls.Config{RootCAs: ca.Pool, ServerName: "elsewhere"}, "certificate is valid for localhost, not elsewhere"},
		{"rediss-cluster://" + server.TLSAddr(), trusting, "use rediss://" + server.TLSAddr()},
		{"redis://" + server.TLSAddr(), nil, "it hangs up without a word, as a port does where TLS is spoken (rediss:)"},
	}
	for _, tt := range tests {
		d := open(t, tt.url, func(o *Options) { o.Dialer = &dial.Dialer{TLS: tt.tls} })
		if got := startError(t, d); !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want it to say %q", tt.url, got, tt.want)
		}
	}
	topology := run(t, open(t, "rediss://"+server.TLSAddr(), func(o *Options) { o.Dialer = &dial.Dialer{TLS: trusting} }))
	if topology.Shards[0].Primary.Addr != server.TLSAddr() {
		t.Errorf("got %v", topology)
	}
}

// TestPreferredEndpoints: the addresses of a cluster on IPv6 are what the nodes prefer to be called.
func TestPreferredEndpoints(t *testing.T) {
	c := clustertest.StartClusterWith(t, 2, 0, clustertest.ClusterOptions{Host: "::1"})
	d := open(t, "redis-cluster://"+c.Nodes[0].Addr, nil)
	run(t, d)
	set := func(name, value string) {
		for _, r := range c.Nodes {
			r.Do("CONFIG", "SET", name, value)
		}
		d.Refresh(name + " " + value)
	}
	await := func(host string) {
		t.Helper()
		for i, r := range c.Nodes {
			awaitPrimary(t, d, uint16(i*slot.Count/2), net.JoinHostPort(host, strconv.Itoa(r.Port)))
		}
	}
	await("::1")
	set("cluster-announce-hostname", "localhost")
	set("cluster-preferred-endpoint-type", "hostname")
	await("localhost")
	set("cluster-announce-hostname", "") // "?"
	await("::1")

	// Whoever does not know how it is called is where it was asked.
	set("cluster-preferred-endpoint-type", "unknown-endpoint")
	other := open(t, "redis-cluster://"+c.Nodes[0].Addr, nil)
	run(t, other)
	d = other
	await("127.0.0.1")
}

// TestSentinelLogin: Sentinels have users of their own.
func TestSentinelLogin(t *testing.T) {
	ca := clustertest.NewCA(t)
	master, sentinel := clustertest.StartTLSSentinel(t, ca)
	sentinel.Do("ACL", "SETUSER", "watcher", "on", ">pw", "allchannels", "+@all")
	sentinel.Do("ACL", "SETUSER", "default", "off")
	url := "rediss-sentinel://" + sentinel.TLSAddr() + "/mymaster"
	login := func(password string) func(o *Options) {
		return func(o *Options) {
			o.Backend.SentinelUser, o.Backend.SentinelPassword = "watcher", password
			o.Dialer = &dial.Dialer{TLS: ca.Client()}
		}
	}
	d := open(t, url, login("pw"))
	run(t, d)
	awaitPrimary(t, d, 0, master.TLSAddr())
	if got := startError(t, open(t, url, login("wrong"))); !strings.Contains(got, "WRONGPASS") {
		t.Errorf("got %q", got)
	}
}

func TestStandaloneSurvivesARestart(t *testing.T) {
	server := clustertest.StartRedis(t)
	d := open(t, "redis://"+server.Addr, nil)
	first := run(t, d)
	server.Restart()
	clustertest.Await(t, "the link to recover", func() error {
		d.Refresh("test")
		_, err := d.source.(*fixed).snapshot(t.Context())
		return err
	})
	if d.Current() != first {
		t.Errorf("the topology changed from %v to %v, though nothing did", first, d.Current())
	}
}

// A server that has come back is looked at although nobody asks for it.
func TestFailedSnapshotIsTriedAgain(t *testing.T) {
	server := clustertest.StartRedis(t)
	d := open(t, "redis://"+server.Addr, func(o *Options) { o.RefreshInterval = time.Hour })
	run(t, d)
	before := d.info.Load()
	server.Stop()
	d.Refresh("test")
	clustertest.Await(t, "the request to be seen", func() error {
		if len(d.wake) > 0 {
			return errors.New("not yet")
		}
		return nil
	})
	server.Restart()
	clustertest.Await(t, "another snapshot", func() error {
		if d.info.Load() == before {
			return errors.New("none")
		}
		return nil
	})
}

func TestCluster(t *testing.T) {
	c := clustertest.StartCluster(t, 3, 1)
	for i := range 20000 { // among them are some for the slot that moves
		if key := strconv.Itoa(i); slot.Of([]byte(key)) == 0 {
			c.Nodes[0].Do("SET", key, "x")
		}
	}
	open := func(t *testing.T) (*Discovery, *cluster.Topology) {
		// FO-07: with such a timeout a seed that is waited for hangs the test.
		d := open(t, "redis-cluster://"+silent(t)+","+refusing(t)+",nosuch.invalid:7000,"+c.Nodes[4].Addr, func(o *Options) { o.ConnectTimeout = time.Hour })
		return d, run(t, d)
	}

	t.Run("finds all shards", func(t *testing.T) {
		d, topology := open(t)
		if len(topology.Shards) != 3 || topology.Uncovered() != 0 {
			t.Fatalf("got %v", topology)
		}
		for i, s := range topology.Shards {
			if s.Primary.Addr != c.Nodes[i].Addr || len(s.Replicas) != 1 || s.Replicas[0].Addr != c.Nodes[3+i].Addr {
				t.Errorf("got shard %d of %s with replicas %v", i, s.Primary.Addr, s.Replicas)
			}
			if s.Replicas[0].Vouched(mono.Now()) {
				t.Errorf("a replica is vouched for")
			}
			awaitPrimary(t, d, s.Ranges[0].First, c.Nodes[i].Addr)
		}
		if d.Current() != topology {
			t.Errorf("the topology changed to %v", d.Current())
		}
		if info := d.Info(); !info.Tracking || info.Version != c.Nodes[0].InfoField("server", "redis_version") {
			t.Errorf("got info %+v", info)
		}
	})

	t.Run("a migration ends the vouching of both sides until it is over", func(t *testing.T) {
		d, _ := open(t)
		from, to := awaitPrimary(t, d, 0, c.Nodes[0].Addr), awaitPrimary(t, d, 6000, c.Nodes[1].Addr)
		other := awaitPrimary(t, d, 12000, c.Nodes[2].Addr)
		c.BeginMigrate(0, c.Nodes[1])
		awaitRevoked(t, from.Vouch)
		awaitRevoked(t, to.Vouch)
		clustertest.Await(t, "a new lease", func() error {
			if d.Current().Primary(0) == from || d.Current().Primary(6000) == to {
				return errors.New("the old one is still there")
			}
			return nil
		})
		if n := d.Current().Primary(0); n.Vouched(mono.Now()) || n.Addr != from.Addr {
			t.Errorf("%s is vouched for during the migration", n.Addr)
		}

		c.MigrateKeys(0, c.Nodes[1], 0)
		c.FinishMigrate(0, c.Nodes[1])
		awaitPrimary(t, d, 0, c.Nodes[1].Addr)
		awaitPrimary(t, d, 1, c.Nodes[0].Addr)
		if d.Current().Primary(12000) != other || !other.Vouched(mono.Now()) {
			t.Error("a node that had no part in it changed")
		}
	})

	t.Run("slots that leave and come back between two questions are noticed", func(t *testing.T) {
		d, _ := open(t)
		n := awaitPrimary(t, d, 0, c.Nodes[1].Addr)
		c.MoveSlot(0, c.Nodes[0])
		c.MoveSlot(0, c.Nodes[1])
		awaitRevoked(t, n.Vouch)
		awaitPrimary(t, d, 0, c.Nodes[1].Addr)
	})

	t.Run("CLUSTER FAILOVER", func(t *testing.T) {
		d, _ := open(t)
		n := awaitPrimary(t, d, 12000, c.Nodes[2].Addr)
		other := awaitPrimary(t, d, 6000, c.Nodes[1].Addr)
		c.Failover(c.Nodes[5])
		awaitRevoked(t, n.Vouch)
		awaitPrimary(t, d, 12000, c.Nodes[5].Addr)
		if d.Current().Primary(6000) != other {
			t.Error("a node that had no part in it changed")
		}
	})

	t.Run("a frozen primary loses its lease, others keep theirs", func(t *testing.T) {
		d, _ := open(t)
		frozen := awaitPrimary(t, d, 12000, c.Nodes[5].Addr)
		other := awaitPrimary(t, d, 6000, c.Nodes[1].Addr)
		c.Nodes[5].Freeze()
		clustertest.Await(t, "the lease to run out", func() error {
			if frozen.Vouched(mono.Now()) {
				return errors.New("it lives")
			}
			return nil
		})
		if !other.Vouched(mono.Now()) {
			t.Error("the frozen node took another one with it")
		}
		// Its replica takes over; when it thaws, the old lease stays dead.
		awaitPrimary(t, d, 12000, c.Nodes[2].Addr)
		c.Nodes[5].Thaw()
		c.AwaitOK()
		if !frozen.Vouch.Revoked() {
			t.Error("the old lease could come back to life")
		}
		awaitPrimary(t, d, 12000, c.Nodes[2].Addr)
		awaitPrimary(t, d, 6000, c.Nodes[1].Addr)
	})

	t.Run("kill -9", func(t *testing.T) {
		d, _ := open(t)
		n := awaitPrimary(t, d, 12000, c.Nodes[2].Addr)
		c.Nodes[2].Stop()
		awaitPrimary(t, d, 12000, c.Nodes[5].Addr)
		awaitRevoked(t, n.Vouch)
	})

	t.Run("a primary without a successor is blocked", func(t *testing.T) {
		d, _ := open(t)
		var versions []uint64
		d.Subscribe(func(topology *cluster.Topology) { versions = append(versions, topology.Version) })
		n := awaitPrimary(t, d, 12000, c.Nodes[5].Addr)
		c.Nodes[5].Stop()
		clustertest.Await(t, "the node to be blocked", func() error {
			if p := d.Current().Primary(12000); p == n || !p.Blocked {
				return fmt.Errorf("the topology is %v", d.Current())
			}
			return nil
		})
		c.Nodes[5].Restart()
		awaitPrimary(t, d, 12000, c.Nodes[5].Addr)
	})

	t.Run("a foreign node does not pass for a member", func(t *testing.T) {
		d, _ := open(t)
		s := newClustered(d)
		defer s.close()
		if _, err := s.snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range s.members {
			s.members[i].id = "other" + s.members[i].id
		}
		if views, err := s.askMembers(t.Context(), s.members); err == nil {
			t.Errorf("got %d views", len(views))
		}
	})
}

// TestNodesThatKnowNoSlots: neither a seed that belongs to no cluster (yet) nor a member that was reset says where
// the cluster is, and that is no mistake in the configuration.
func TestNodesThatKnowNoSlots(t *testing.T) {
	c := clustertest.StartCluster(t, 2, 0)
	stranger := c.StartStranger()
	a, b := c.Nodes[0], c.Nodes[1]
	d := open(t, "redis-cluster://"+stranger.Addr+","+a.Addr+","+b.Addr, func(o *Options) { o.ConnectTimeout = 500 * time.Millisecond })
	defer d.source.close()
	find := func() {
		t.Helper()
		clustertest.Await(t, "the cluster to be found", func() error { return d.update(t.Context()) })
		if got := d.Current().Primary(16383); got == nil || got.Addr != b.Addr {
			t.Fatalf("got %v", d.Current())
		}
	}
	a.Freeze()
	b.Freeze()
	if topology, err := d.Start(t.Context()); err == nil || !Unreachable(err) {
		t.Fatalf("got %v, %v while only the stranger answers; want an error that may go away", topology, err)
	}
	a.Thaw()
	b.Thaw()
	find()

	b.Freeze()
	a.Do("CLUSTER", "RESET", "SOFT")
	if err := d.update(t.Context()); err == nil {
		t.Fatalf("got %v of a node that was reset", d.Current())
	}
	b.Thaw()
	find()
}

func TestSentinel(t *testing.T) {
	set := clustertest.StartSentinel(t)
	// Only one sentinel is named, and it dies: the others are known by then.
	seeds := silent(t) + "," + refusing(t) + "," + set.Sentinels[2].Addr
	d := open(t, "redis-sentinel://"+seeds+"/"+set.Name, nil)
	topology := run(t, d)
	if topology.Mode != cluster.Sentinel || len(topology.Shards) != 1 {
		t.Fatalf("got %v", topology)
	}
	first := awaitPrimary(t, d, 0, set.Nodes[0].Addr)
	set.Sentinels[2].Stop()

	set.Nodes[0].Freeze()
	second := set.AwaitFailover(set.Nodes[0])
	n := awaitPrimary(t, d, 0, second.Addr)
	if !first.Vouch.Revoked() {
		t.Error("the lease of the old master is not revoked")
	}
	set.Nodes[0].Thaw()
	set.AwaitOK()

	second.Stop()
	third := set.AwaitFailover(second)
	awaitPrimary(t, d, 0, third.Addr)
	awaitRevoked(t, n.Vouch)
	if !d.Info().Tracking {
		t.Errorf("got info %+v", d.Info())
	}
}

func TestSentinelManualFailover(t *testing.T) {
	set := clustertest.StartSentinel(t)
	d := open(t, "redis-sentinel://"+strings.Join(set.Addrs(), ",")+"/"+set.Name, nil)
	run(t, d)
	first := awaitPrimary(t, d, 0, set.Nodes[0].Addr)
	set.Failover()
	awaitPrimary(t, d, 0, set.Master().Addr)
	awaitRevoked(t, first.Vouch)
}

func TestSentinelWithoutThatMaster(t *testing.T) {
	set := clustertest.StartSentinel(t)
	got := startError(t, open(t, "redis-sentinel://"+set.Sentinels[0].Addr+"/other", nil))
	if !strings.Contains(got, `no master named "other"`) {
		t.Errorf("got %q", got)
	}
}

// TestUnreachable: what may go away by itself does not end the proxy, unless something else is wrong.
func TestUnreachable(t *testing.T) {
	refused := unreachable{errors.New("connection refused")}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{seedErrors{"a:1": refused, "b:1": errNoSlots, "c:1": errNotMaster}, true},
		{errNoSlots, true},
		{seedErrors{"a:1": refused, "b:1": errDataPassword}, false},
		{errors.New("cannot make sense of the topology"), false},
	} {
		if got := Unreachable(fmt.Errorf("cannot reach the backend: %w", c.err)); got != c.want {
			t.Errorf("%v: got %v", c.err, got)
		}
	}
}

func TestSentinelInThePlaceOfAServer(t *testing.T) {
	addr := clustertest.StartSentinel(t).Sentinels[0].Addr
	for _, url := range []string{"redis://" + addr, "redis://" + addr + "/3", "redis-cluster://" + addr} {
		got := startError(t, open(t, url, nil))
		if want := addr + ": it is a Sentinel, use redis-sentinel://" + addr + "/NAME"; !strings.HasSuffix(got, want) {
			t.Errorf("%s: got %q, want it to end with %q", url, got, want)
		}
	}
}

func TestRefreshNeverBlocks(t *testing.T) {
	d := open(t, "redis://"+refusing(t), nil)
	for range 1000 {
		d.Refresh("nobody listens")
	}
}

func TestLinkRetiresWhileAskedAndIdle(t *testing.T) {
	server := clustertest.StartRedis(t)
	l := &link{addr: server.Addr}
	if _, _, err := l.ask(t.Context(), clustertest.Deadline, []any{"PING"}); err != nil {
		t.Fatal(err)
	}
	server.Freeze()
	answered := make(chan error)
	go func() {
		err := errBusy
		for errors.Is(err, errBusy) { // with the look at mu below
			_, _, err = l.ask(t.Context(), clustertest.Deadline, []any{"PING"})
		}
		answered <- err
	}()
	clustertest.Await(t, "the question to be on its way", func() error {
		if l.mu.TryLock() {
			l.mu.Unlock()
			return errors.New("it is not")
		}
		return nil
	})
	if _, _, err := l.ask(t.Context(), clustertest.Deadline, []any{"PING"}); !errors.Is(err, errBusy) {
		t.Errorf("a second question got %v", err)
	}
	l.retire()
	server.Thaw()
	if err := <-answered; err != nil {
		t.Errorf("the question on its way failed: %v", err)
	}
	if l.conn != nil {
		t.Error("the link is still open")
	}
	if _, _, err := l.ask(t.Context(), clustertest.Deadline, []any{"PING"}); !errors.Is(err, errRetired) {
		t.Errorf("a retired link answers with %v", err)
	}
}

func TestCompareVersions(t *testing.T) {
	ascending := []string{"", "6.0.20", "6.2.1", "7.0.2", "7.0.15", "7.2", "7.2.1", "8.0.0", "10.0"}
	if !slices.IsSortedFunc(ascending, compareVersions) || compareVersions("7.0.2", "7.0.15") >= 0 {
		t.Error("versions are not in order")
	}
}
