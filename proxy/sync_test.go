package proxy_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
)

// patientLeases keeps time from voiding anything during a test.
func patientLeases(o *proxy.Options) { o.Cache.MaxStaleness = 2 * clustertest.Deadline }

// TestPromisesBetweenProxies is what two proxies in front of one Redis promise to a client that moves
// between them: that it may see an older value at the second one until Redis' word has reached it,
// and no older one once COSKY.SYNC has been answered there.
func TestPromisesBetweenProxies(t *testing.T) {
	for name, mode := range map[string]struct {
		invalidation proxy.Invalidation
		wire         proxytest.Use
	}{
		"tracking": {proxy.InvalidationTracking, proxytest.Fetch},
		"both":     {proxy.InvalidationBoth, proxytest.PubSub},
		"pubsub":   {proxy.InvalidationPubSub, proxytest.PubSub},
	} {
		t.Run(name, func(t *testing.T) {
			setMode := func(o *proxy.Options) {
				o.Cache.Invalidation, o.Cache.PubSubTTL = mode.invalidation, time.Minute
			}
			a, wire := startRelayed(t, patientLeases, setMode)
			o := proxytest.Options(t, proxytest.Single(a.redis.Addr))
			setMode(&o)
			_, addr := proxytest.Start(t, o)
			b := clustertest.Dial(t, addr)

			for i := range 5 {
				b.Do("HSET", hashKey, "f", fmt.Sprintf("old%d", i))
				a.front[0].Do("COSKY.SYNC")
				a.agree(true, "HGETALL", hashKey)
				old := a.warm("HGETALL", hashKey)
				wire.Mute(proxytest.Fetch)
				wire.Mute(proxytest.PubSub)
				b.Do("HSET", hashKey, "f", fmt.Sprintf("new%d", i))
				if got := b.Do("HGETALL", hashKey); got == old {
					t.Fatalf("the second proxy does not read its own write: %q", got)
				}
				for _, c := range a.front {
					if got := c.Do("HGETALL", hashKey); got != old {
						t.Fatalf("not served from memory: %q", got)
					}
				}
				if got := a.front[0].Do("COSKY.SYNC", "20"); got != "-ERR COSKY.SYNC timed out after 20 ms: an invalidation stream has not answered\r\n" {
					t.Fatalf("a barrier was passed that cannot have been: %q", got)
				}
				a.front[0].Cmd("COSKY.SYNC")
				a.front[0].Cmd("HGETALL", hashKey) // waits behind the barrier
				wire.Unmute(proxytest.Fetch)
				wire.Unmute(proxytest.PubSub)
				a.front[0].Expect("+OK\r\n")
				want := a.direct.Do("HGETALL", hashKey)
				if got := a.front[0].ReadReply(); got != want {
					t.Errorf("behind the barrier: %q", got)
				}
				if got := a.front[1].Do("HGETALL", hashKey); got != want { // another client, on another loop
					t.Errorf("after the barrier: %q", got)
				}
			}
		})
	}
}

// TestSyncBringsViewsUpToDate: an instance that has changed is read anew for the replies that show it, which takes
// longer than hearing of the change. Behind the barrier they are not served meanwhile.
func TestSyncBringsViewsUpToDate(t *testing.T) {
	a, wire := startRelayed(t, patientLeases)
	a.load()
	a.must(a.direct, ":1\r\n", registration("s@1", 600, "s")...)
	for i := range 10 {
		for _, read := range viewReads[:3] {
			a.warm(read...)
		}
		wire.Mute(proxytest.Fetch)
		a.must(a.direct, ":1\r\n", scriptCall("registry_set_metadata", "s@1", "_v", fmt.Sprint(i))...) // as another proxy does
		calls := a.redis.InfoField("commandstats", "cmdstat_ping")
		reader := a.front[i%2]
		reader.Send(oneWrite([]string{"COSKY.SYNC"}, viewReads[0], viewReads[1]))
		clustertest.Await(t, "the question to reach Redis", func() error {
			if a.redis.InfoField("commandstats", "cmdstat_ping") == calls {
				return errors.New("not yet")
			}
			return nil
		})
		wire.Unmute(proxytest.Fetch)
		reader.Expect("+OK\r\n")
		for range 2 {
			if got, want := reader.ReadReply(), fmt.Sprintf("_v\r\n$1\r\n%d\r\n", i); !strings.Contains(got, want) {
				t.Errorf("behind the barrier: %.300q, want %q in it", got, want)
			}
		}
	}
}

// TestSyncAnswers: a stream that is not what the reads depend on does not hold it up, and
// neither does a proxy that has cached nothing yet.
func TestSyncAnswers(t *testing.T) {
	r := startNear(t)
	for _, c := range []struct{ call, want string }{
		{"COSKY.SYNC", "+OK\r\n"},
		{"cosky.sync 0", "+OK\r\n"},
		{"COSKY.SYNC 10000", "+OK\r\n"},
		{"COSKY.SYNC x", "-ERR timeout is not an integer or out of range\r\n"},
		{"COSKY.SYNC -1", "-ERR timeout is negative\r\n"},
		{"COSKY.SYNC 9223372036854775807", "-ERR timeout is not an integer or out of range\r\n"},
		{"COSKY.SYNC 1 2", "-ERR wrong number of arguments for 'cosky.sync' command\r\n"},
		{"MULTI", "+OK\r\n"},
		{"COSKY.SYNC", "-ERR Command not allowed inside a transaction\r\n"},
		{"EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n"},
	} {
		if got := r.front[0].Do(words(c.call)...); got != c.want {
			t.Errorf("%s: %q, want %q", c.call, got, c.want)
		}
	}
	r.warm("HGETALL", hashKey)
	if got := r.front[1].Do("COSKY.SYNC"); got != "+OK\r\n" {
		t.Errorf("with open streams: %q", got)
	}
}

// TestSyncTellsOfADeadStream: the connection breaks while the barrier waits for it.
func TestSyncTellsOfADeadStream(t *testing.T) {
	for name, sort := range map[string]proxytest.Use{"tracking": proxytest.Fetch, "pubsub": proxytest.PubSub} {
		t.Run(name, func(t *testing.T) {
			r, wire := startRelayed(t, patientLeases, func(o *proxy.Options) { o.Cache.Invalidation = proxy.InvalidationBoth })
			r.warm("HGETALL", hashKey)
			wire.Mute(sort)
			r.front[0].Cmd("COSKY.SYNC")
			calls := r.redis.InfoField("commandstats", "cmdstat_ping")
			clustertest.Await(t, "the question to reach Redis", func() error {
				if r.redis.InfoField("commandstats", "cmdstat_ping") == calls {
					r.front[1].Cmd("COSKY.SYNC", "1")
					r.front[1].ReadReply()
					return fmt.Errorf("not yet")
				}
				return nil
			})
			wire.Cut(sort)
			got := r.front[0].ReadReply()
			if !strings.HasPrefix(got, "-ERR COSKY.SYNC found the invalidation stream of backend "+wire.Addr+" dead (") {
				t.Errorf("got %q", got)
			}
			wire.Unmute(sort)
			clustertest.Await(t, "a barrier to be passed again", func() error {
				if got := r.front[0].Do("COSKY.SYNC"); got != "+OK\r\n" {
					return fmt.Errorf("%q", got)
				}
				return nil
			})
		})
	}
}

// TestSyncOnACluster: every master is vouched for anew.
func TestSyncOnACluster(t *testing.T) {
	c := clustertest.StartCluster(t, 3, 0)
	p := proxytest.StartCluster(t, c, nil)
	a := clustertest.Dial(t, p.Addr)
	beside := proxytest.StartCluster(t, c, nil)
	b := clustertest.Dial(t, beside.Addr)
	for i := range 4 {
		for _, ns := range []string{"a", "b", "c", "d"} {
			key := "{" + ns + "}:cfg:x"
			a.Do("HGETALL", key)
			b.Do("HSET", key, "f", fmt.Sprint(i))
		}
		if got := a.Do("COSKY.SYNC"); got != "+OK\r\n" {
			t.Fatalf("COSKY.SYNC: %q", got)
		}
		for _, ns := range []string{"a", "b", "c", "d"} {
			if got, want := a.Do("HGETALL", "{"+ns+"}:cfg:x"), fmt.Sprintf("*2\r\n$1\r\nf\r\n$1\r\n%d\r\n", i); got != want {
				t.Errorf("round %d, %s: %q", i, ns, got)
			}
		}
	}
	for _, r := range c.Nodes {
		r.Stop()
	}
	clustertest.Await(t, "an error", func() error {
		if got := a.Do("COSKY.SYNC"); got[0] != '-' {
			return fmt.Errorf("%q without a backend", got)
		}
		return nil
	})
}
