package proxy_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/discovery"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

const noPerm = "-NOPERM this user has no permissions to access one of the keys used as arguments\r\n"

// guarded is a Redis that knows who its clients are, with a proxy that lets it decide.
type guarded struct {
	t     *testing.T
	redis *clustertest.Redis
	admin *clustertest.Conn // to Redis itself
	proxy *proxy.Server
	addr  string
}

func startGuarded(t *testing.T, own string, change ...func(*proxy.Options)) *guarded {
	t.Helper()
	r := clustertest.StartRedis(t)
	g := &guarded{t: t, redis: r, admin: clustertest.Dial(t, r.Addr)}
	setPeople(t, r, append([]string{own}, people...))
	o := strict(t, r, netloop.DefaultTransport)
	o.Loops = 1
	o.Auth = authOptions(t, proxy.AuthPassthrough, nil)
	o.Backend.User, o.Backend.Password = "proxy", "own"
	for _, f := range change {
		f(&o)
	}
	g.proxy, g.addr = proxytest.Start(t, o)
	return g
}

const ownUser = "proxy on >own ~* &* +@all"

func (g *guarded) login(user, password string) *clustertest.Conn {
	g.t.Helper()
	c := clustertest.Dial(g.t, g.addr)
	if got := c.Do("AUTH", user, password); got != "+OK\r\n" {
		g.t.Fatalf("AUTH %s: %q", user, got)
	}
	return c
}

// eventually waits until ok, which asks for something, is satisfied.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(clustertest.Deadline); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

// TestCachedForWhoMayRead: an entry serves those whom the backend would have answered,
// and a permission that is taken away is missed within max_staleness.
func TestCachedForWhoMayRead(t *testing.T) {
	g := startGuarded(t, ownUser, func(o *proxy.Options) { o.Cache.MaxStaleness = 200 * time.Millisecond })
	g.admin.Do("HSET", "x:cfg:a", "f", "v")
	const value = "*2\r\n$1\r\nf\r\n$1\r\nv\r\n"
	may, mayNot, nobody := g.login("default", "pw"), g.login("app", "secret"), clustertest.Dial(t, g.addr)
	read := func(c *clustertest.Conn, want string) {
		t.Helper()
		if got := c.Do("HGETALL", "x:cfg:a"); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	eventually(t, "a hit", func() bool {
		for range 3 { // a read that is passed on voids the entry
			read(may, value)
		}
		read(mayNot, noPerm)
		read(nobody, "-NOAUTH Authentication required.\r\n")
		return g.proxy.Stats().Hits >= 20
	})
	g.admin.Do("ACL", "SETUSER", "default", "resetkeys", "~y:*")
	eventually(t, "the end of the permission", func() bool { return may.Do("HGETALL", "x:cfg:a") == noPerm })
	read(may, noPerm)
}

// TestWhatIsAllowedOfOneKey: to be allowed MGET of one key says nothing about two, whatever bytes are in it.
func TestWhatIsAllowedOfOneKey(t *testing.T) {
	g := startGuarded(t, ownUser, keepAll, func(o *proxy.Options) { o.Cache.Rules[0].Match = "*" })
	g.admin.Do("MSET", "app:a", "v", "secret", "w")
	may, mayNot := g.login("default", "pw"), g.login("app", "secret")
	for range 10 {
		eventually(t, "a hit", func() bool {
			before := g.proxy.Stats().Hits
			may.Do("MGET", "app:a", "secret")
			return g.proxy.Stats().Hits > before
		})
		mayNot.Do("MGET", "app:a\x00secret")
		if got := mayNot.Do("MGET", "app:a", "secret"); got != noPerm {
			t.Fatalf("got %q", got)
		}
	}
}

// TestNoOpinion: where the backend does not answer ACL DRYRUN, everything still works that
// the backend decides itself, and nothing is served from memory.
func TestNoOpinion(t *testing.T) {
	g := startGuarded(t, ownUser+" -acl|dryrun")
	c := g.login("app", "secret")
	for range 5 {
		c.Do("HSET", "app:cfg:a", "f", "v")
		if got := c.Do("HGETALL", "app:cfg:a"); got != "*2\r\n$1\r\nf\r\n$1\r\nv\r\n" {
			t.Fatalf("got %q", got)
		}
	}
	if hits := g.proxy.Stats().Hits; hits != 0 {
		t.Errorf("%d cache hits", hits)
	}
	for _, call := range []struct{ call, want string }{
		{"CLIENT SETNAME me", "+OK\r\n"}, {"CLIENT GETNAME", "$2\r\nme\r\n"}, {"MULTI", "+OK\r\n"}, {"GET k", noPerm},
		{"EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n"},
		{"CLIENT LIST", "-ERR cosky-proxy cannot find out whether user 'app' may run 'client|list': the backend does not answer ACL DRYRUN\r\n"},
	} {
		c.Send(call.call + "\r\n")
		if got := c.ReadReply(); got != call.want {
			t.Errorf("%s: got %q, want %q", call.call, got, call.want)
		}
	}
}

// TestDeletedUser: Redis disconnects the clients of a user that is deleted, so they are
// disconnected here; others go on.
func TestDeletedUser(t *testing.T) {
	g := startGuarded(t, ownUser)
	deleted, other := g.login("app", "secret"), g.login("default", "pw")
	deleted.Do("SET", "app:k", "v")
	g.admin.Do("ACL", "DELUSER", "app")
	eventually(t, "the disconnection", func() bool {
		deleted.Cmd("GET", "app:k")
		got, err := deleted.TryReply(clustertest.Deadline)
		if err == nil && got[0] != '-' {
			t.Fatalf("a deleted user reads: %q", got)
		}
		return err != nil
	})
	if got := other.Do("GET", "app:k"); got != "$1\r\nv\r\n" {
		t.Errorf("got %q", got)
	}
	if got := clustertest.Dial(t, g.addr).Do("AUTH", "app", "secret"); got != "-WRONGPASS invalid username-password pair or user is disabled.\r\n" {
		t.Errorf("got %q", got)
	}
}

// TestPasswordAskedForLater: connections that the backend let in before are of no use to
// clients that come after.
func TestPasswordAskedForLater(t *testing.T) {
	g := startGuarded(t, ownUser, func(o *proxy.Options) { o.Cache.MaxStaleness = 50 * time.Millisecond })
	g.admin.Do("ACL", "SETUSER", "default", "nopass")
	early := clustertest.Dial(t, g.addr)
	if got := early.Do("SET", "k", "v"); got != "+OK\r\n" {
		t.Fatalf("got %q", got)
	}
	g.admin.Do("ACL", "SETUSER", "default", "resetpass", ">pw")
	eventually(t, "a refusal", func() bool {
		late := clustertest.Dial(t, g.addr)
		defer late.Close()
		return late.Do("GET", "k") == "-NOAUTH Authentication required.\r\n"
	})
	if got := early.Do("GET", "k"); got != "$1\r\nv\r\n" { // as in Redis
		t.Errorf("got %q", got)
	}
}

// TestPasswordNotAskedForAnyMore: whoever was refused for want of a login is served once the
// backend does without, whatever it begins with.
func TestPasswordNotAskedForAnyMore(t *testing.T) {
	g := startGuarded(t, ownUser, func(o *proxy.Options) { o.Cache.MaxStaleness = 20 * time.Millisecond })
	stranger := clustertest.Dial(t, g.addr)
	if got := stranger.Do("PING"); got != "-NOAUTH Authentication required.\r\n" {
		t.Fatalf("got %q", got)
	}
	g.admin.Do("ACL", "SETUSER", "default", "nopass")
	eventually(t, "the protocol to change", func() bool { return stranger.Do("HELLO", "3")[0] == '%' })
	if got := stranger.Do("CLIENT", "GETNAME"); got != "_\r\n" {
		t.Errorf("got %q", got)
	}
}

// TestReconnectsLogIn: however often the backend's connections are replaced, each is logged
// in before it carries a command.
func TestReconnectsLogIn(t *testing.T) {
	g := startGuarded(t, ownUser)
	c := g.login("app", "secret")
	g.admin.Do("SET", "app:k", "v")
	for range 10 {
		g.admin.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		for range 3 {
			switch got := c.Do("GET", "app:k"); {
			case got == "$1\r\nv\r\n", strings.Contains(got, "lost its connection"):
			default:
				t.Fatalf("got %q", got)
			}
		}
	}
}

// TestLoginsAreBounded: connections cost the backend, so there are not endlessly many kinds.
func TestLoginsAreBounded(t *testing.T) {
	g := startGuarded(t, ownUser, func(o *proxy.Options) { o.Auth.MaxCredentials = 1 })
	first, second := g.login("app", "secret"), clustertest.Dial(t, g.addr)
	const full = "-ERR cosky-proxy has connections for as many different logins as it may: all 1 (auth.max_credentials) are in use\r\n"
	if got := second.Do("AUTH", "pw"); got != full {
		t.Fatalf("got %q", got)
	}
	third := g.login("app", "secret")
	first.Close()
	third.Close()
	eventually(t, "room for another login", func() bool { return second.Do("AUTH", "pw") == "+OK\r\n" })
	if got := second.Do("SET", "k", "v"); got != "+OK\r\n" {
		t.Errorf("got %q", got)
	}
	second.Close()
	for i := range 20 { // those that fail are forgotten at once
		c := clustertest.Dial(t, g.addr)
		eventually(t, "the verdict", func() bool { return c.Do("AUTH", "app", fmt.Sprint(i)) != full })
		c.Close()
	}
}

// TestUnusedLoginsAreDisconnected: what nobody uses is closed after a while, and opened again.
func TestUnusedLoginsAreDisconnected(t *testing.T) {
	g := startGuarded(t, ownUser, func(o *proxy.Options) { o.Auth.IdleTimeout = time.Millisecond })
	c := g.login("app", "secret")
	for range 2 {
		if got := c.Do("SET", "app:k", "v"); got != "+OK\r\n" {
			t.Fatalf("got %q", got)
		}
		c.Close()
		eventually(t, "the end of the connections", func() bool { return !strings.Contains(g.admin.Do("CLIENT", "LIST"), "user=app") })
		c = g.login("app", "secret")
	}
}

// TestPasswordsAreNotTold: neither the log nor CLIENT LIST has one, whatever happens.
func TestPasswordsAreNotTold(t *testing.T) {
	for _, mode := range []proxy.AuthMode{proxy.AuthProxy, proxy.AuthPassthrough} {
		var log lockedBuffer
		g := startGuarded(t, ownUser, func(o *proxy.Options) {
			o.Auth = authOptions(t, mode, people)
			o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
		for _, s := range authScripts {
			runScript(t, g.addr, s.script)
		}
		c := g.login("default", "pw")
		g.admin.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		c.Do("GET", "k")
		told := log.String() + g.login("default", "pw").Do("CLIENT", "LIST")
		if !strings.Contains(told, "user=default") || strings.Contains(told, "secret") || strings.Contains(told, "p@ss") {
			t.Errorf("%s: a password, or not even a user: %s", mode, told)
		}
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestPassthroughToCluster: every way to a shard is one of the client's login.
func TestPassthroughToCluster(t *testing.T) {
	c := clustertest.StartCluster(t, 3, 0)
	for _, addr := range c.Addrs() {
		admin := clustertest.Dial(t, addr)
		for _, u := range []string{ownUser, "app on >secret ~app:* &app* +@all -cluster", "default off"} {
			admin.Send("ACL SETUSER " + u + "\r\n")
			admin.Expect("+OK\r\n")
		}
	}
	p := proxytest.StartDiscovered(t, discovery.Backend{Mode: cluster.Cluster, Seeds: c.Addrs()[:1], User: "proxy", Password: "own"}, func(o *proxy.Options) {
		o.Auth = authOptions(t, proxy.AuthPassthrough, nil)
	})
	conn := clustertest.Dial(t, p.Addr)
	for _, call := range []struct{ call, want string }{
		{"GET app:1", "-NOAUTH Authentication required.\r\n"}, {"AUTH app secret", "+OK\r\n"},
		{"MSET app:1 a app:2 b app:3 c app:4 d", "+OK\r\n"}, {"MGET app:1 app:2 app:3 app:4", "*4\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n$1\r\nd\r\n"},
		{"MGET app:1 app:2 x", noPerm}, {"DEL app:1 app:2 app:3 app:4 app:5", ":4\r\n"},
		{"EVAL 'return redis.call(\"set\",KEYS[1],1)' 1 app:1", "+OK\r\n"}, {"EVAL 'return 1' 1 x", noPerm},
		{"SCRIPT LOAD 'return 7'", "$40\r\n59b6ab2fbe0ee4b25733de0f62e6cda4899ef8e9\r\n"},
		{"EVALSHA 59b6ab2fbe0ee4b25733de0f62e6cda4899ef8e9 1 app:2", ":7\r\n"}, {"EVALSHA 59b6ab2fbe0ee4b25733de0f62e6cda4899ef8e9 1 app:3", ":7\r\n"},
		{"MULTI", "+OK\r\n"}, {"SET {app:t}1 v", noPerm}, {"EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n"},
		{"MULTI", "+OK\r\n"}, {"SET app:{t}1 v", "+QUEUED\r\n"}, {"GET app:{t}1", "+QUEUED\r\n"}, {"EXEC", "*2\r\n+OK\r\n$1\r\nv\r\n"},
		{"WATCH x", noPerm}, {"BLPOP app:none 0.01", "*-1\r\n"}, {"BLPOP none 0.01", noPerm}, {"DBSIZE", ":2\r\n"},
		{"HSET app:cfg:a f v", ":1\r\n"}, {"HGETALL app:cfg:a", "*2\r\n$1\r\nf\r\n$1\r\nv\r\n"}, {"HGETALL x:cfg:a", noPerm},
		{"ACL WHOAMI", "$3\r\napp\r\n"}, {"SCAN 0 MATCH app:{t}* COUNT 10000", "*2\r\n$1\r\n0\r\n*1\r\n$8\r\napp:{t}1\r\n"}, {"CLIENT NO-EVICT ON", "+OK\r\n"}, {"GET app:{t}1", "$1\r\nv\r\n"},
	} {
		conn.Send(call.call + "\r\n")
		if got := conn.ReadReply(); got != call.want {
			t.Errorf("%s: got %q, want %q", call.call, got, call.want)
		}
	}
}

// TestRevokedChannel: who may not listen any more is disconnected, as Redis does it; who
// may goes on listening, although both shared a connection to the backend.
func TestRevokedChannel(t *testing.T) {
	g := startGuarded(t, ownUser)
	g.admin.Do("ACL", "SETUSER", "app", "resetchannels", "&one", "&two")
	one, two := g.login("app", "secret"), g.login("app", "secret")
	if got := one.Do("SUBSCRIBE", "one"); !strings.Contains(got, "one") {
		t.Fatalf("got %q", got)
	}
	two.Do("SUBSCRIBE", "two")
	g.admin.Do("ACL", "SETUSER", "app", "resetchannels", "&two")
	one.ExpectClosed()
	eventually(t, "a receiver", func() bool { return g.admin.Do("PUBLISH", "two", "m") == ":1\r\n" })
	if got := two.ReadReply(); got != "*3\r\n$7\r\nmessage\r\n$3\r\ntwo\r\n$1\r\nm\r\n" {
		t.Errorf("got %q", got)
	}
}

// While the backend does not say whether a client has to log in, one that sends more than it could without a login learns just that.
func TestLargeRequestOfWhomNobodyKnows(t *testing.T) {
	t.Parallel()
	f := startFrozen(t, "PING")
	_, c := startSingle(t, f, func(o *proxy.Options) {
		o.Upstream.Timeout, o.Cache.Cache, o.Cache.Invalidation = allowed/5, nil, proxy.InvalidationOff
		o.Auth = authOptions(t, proxy.AuthPassthrough, nil)
	})
	c.Cmd("SET", "k", strings.Repeat("v", 20<<10))
	if got := c.ReadReply(); !strings.HasPrefix(got, "-ERR cosky-proxy ") {
		t.Errorf("got %q", got)
	}
	c.ExpectClosed()
}

// A command about which the backend had to be asked first has no more time than others to wait for room in a queue.
func TestAskedAboutAndThenHeldUp(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	pushes := startPusher(t)
	f := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
		if args[0] == "SET" {
			if !full.Swap(true) {
				pushes.to(c) // a sign of life
			}
			<-pushes.done
		}
		return ""
	})
	s, a := startSingle(t, f, func(o *proxy.Options) {
		briefly(o)
		o.Cache.Cache, o.Cache.Invalidation, o.Cache.MaxStaleness = nil, proxy.InvalidationOff, time.Millisecond
		o.Auth = authOptions(t, proxy.AuthPassthrough, nil)
		o.Upstream.QueueLimit, o.Upstream.QueueTimeout = 1<<10, time.Hour
	})
	go a.Net().Write([]byte(strings.Repeat(clustertest.Encode("SET", "k", strings.Repeat("v", 64<<10)), 300))) // more than sockets hold
	in, still := uint64(0), 0
	clustertest.Await(t, "a full queue", func() error {
		if n := s.Stats().BytesIn; n > in || in == 0 {
			in, still = n, 0
		} else {
			still++
		}
		if still < 20 {
			return errors.New("not yet")
		}
		return nil
	})
	b := clustertest.Dial(t, s.Addrs()[0])
	began := time.Now()
	b.Cmd("GET", "k")
	expectTimeout(t, b, began, f.Addr, certain)
}
