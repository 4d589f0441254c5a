package proxy_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
)

const instanceKey = "{n}:svc_itc:s@1"

// startRelayedViews is startViews with a relay before Redis, and time voiding nothing.
func startRelayedViews(t *testing.T, change ...func(*proxy.Options)) (*nearRig, *proxytest.Relay) {
	r, wire := startRelayed(t, append([]func(*proxy.Options){patientLeases}, change...)...)
	r.load()
	for i := range 3 {
		r.must(r.direct, ":1\r\n", registration(fmt.Sprint("s@", i), 600, "s")...)
	}
	return r, wire
}

// awaitCalls waits until Redis has executed a command once more than before.
func (r *nearRig) awaitCalls(command, before string) {
	r.t.Helper()
	clustertest.Await(r.t, command+" to reach Redis", func() error {
		if r.calls(command) == before {
			return errors.New("not yet")
		}
		return nil
	})
}

func (r *nearRig) calls(command string) string {
	return r.redis.InfoField("commandstats", "cmdstat_"+command)
}

// COSKY.SYNC has proven nothing while an instance that has changed is still being read anew.
func TestSyncAwaitsViews(t *testing.T) {
	t.Parallel()
	r, wire := startRelayedViews(t)
	read := viewReads[0]
	r.warm(read...)
	wire.Mute(proxytest.Fetch)
	r.direct.Do("HSET", instanceKey, "_zone", "new")
	pings := r.calls("ping")
	r.front[0].Cmd("COSKY.SYNC")
	r.awaitCalls("ping", pings)
	r.direct.Do("CLIENT", "PAUSE", fmt.Sprint(2*clustertest.Deadline.Milliseconds()), "WRITE") // holds scripts
	wire.Unmute(proxytest.Fetch)
	r.front[0].Expect("+OK\r\n")
	before := r.server.Stats()
	for _, c := range r.front {
		c.Cmd(read...)
	}
	clustertest.Await(t, "the reads to arrive", func() error {
		if s := r.server.Stats(); s.Hits+s.Misses < before.Hits+before.Misses+2 {
			return errors.New("not yet")
		}
		return nil
	})
	r.direct.Do("CLIENT", "UNPAUSE")
	for i, c := range r.front {
		if got := c.ReadReply(); !strings.Contains(got, "new") {
			t.Errorf("client %d, after COSKY.SYNC: %.300q", i, got)
		}
	}
}

// A script may show an instance that its service did not have when the keys were read one by one. Whoever
// sees that does not see an older state of it in another view.
func TestViewOfMoreThanItsKeys(t *testing.T) {
	t.Parallel()
	r, wire := startRelayedViews(t)
	r.must(r.direct, ":1\r\n", registration("t@1", 600, "t")...)
	other := scriptCall("discovery_get_instance", "t", "t@1")
	r.warm(other...)
	wire.Mute(proxytest.Fetch)
	asked := r.calls("smembers")
	r.front[0].Cmd(viewReads[0]...)
	r.awaitCalls("smembers", asked)
	r.direct.Do("HSET", "{n}:svc_itc:t@1", "_zone", "new")
	r.direct.Do("SADD", "{n}:svc_itc_idx:s", "t@1")
	wire.MuteAfter(proxytest.Fetch, "new") // the instance is being read anew
	wire.Unmute(proxytest.Fetch)
	if got := r.front[0].ReadReply(); !strings.Contains(got, "new") {
		t.Fatalf("the service shows %.500q", got)
	}
	before := r.server.Stats()
	r.front[1].Cmd(other...)
	clustertest.Await(t, "the read to arrive", func() error {
		if s := r.server.Stats(); s.Hits+s.Misses == before.Hits+before.Misses {
			return errors.New("not yet")
		}
		return nil
	})
	wire.Unmute(proxytest.Fetch)
	if got := r.front[1].ReadReply(); !strings.Contains(got, "new") {
		t.Errorf("the instance alone is %.300q", got)
	}
}

// An instance that expires between the read of its key and the script is removed by that, which the
// index shows from then on.
func TestViewThatRemovesShowsTheIndex(t *testing.T) {
	t.Parallel()
	for i, read := range viewReads[1:3] {
		r, wire := startRelayedViews(t)
		const index = "{n}:svc_itc_idx:s"
		r.warm("SMEMBERS", index)
		r.direct.Do("DEBUG", "SET-ACTIVE-EXPIRE", "0")
		r.direct.Do("PEXPIRE", instanceKey, "500")
		r.direct.Do("CLIENT", "PAUSE", fmt.Sprint(2*clustertest.Deadline.Milliseconds()), "WRITE")
		r.front[0].Cmd(read...) // reads the key, and the script is held
		clustertest.Await(t, "the end of the instance", func() error {
			if got := r.direct.Do("PTTL", instanceKey); got != ":-2\r\n" {
				return errors.New(got)
			}
			return nil
		})
		wire.MuteAfter(proxytest.Fetch, []string{"*0\r\n", ":-2\r\n"}[i])
		r.direct.Do("CLIENT", "UNPAUSE")
		if got := r.front[0].ReadReply(); got != "*0\r\n" && got != ":-2\r\n" {
			t.Fatalf("an expired instance is %q", got)
		}
		before := r.server.Stats()
		r.front[1].Cmd("SMEMBERS", index)
		clustertest.Await(t, "the read to arrive", func() error {
			if s := r.server.Stats(); s.Hits+s.Misses == before.Hits+before.Misses {
				return errors.New("not yet")
			}
			return nil
		})
		wire.Unmute(proxytest.Fetch)
		if got := r.front[1].ReadReply(); strings.Contains(got, "s@1") {
			t.Errorf("the index still has it: %q", got)
		}
	}
}

// Without client tracking, too, no reply shows an older state of a key than another one did, whichever of
// them was kept first and although nobody tells of the change.
func TestViewsAgreeWithoutTracking(t *testing.T) {
	t.Parallel()
	shows := [][]string{
		viewReads[0],
		viewReads[1],
		{"HGETALL", instanceKey},
		{"SORT", "{n}:svc_itc_idx:s", "BY", "nosort", "GET", "{n}:svc_itc:*->_zone"},
	}
	for first := range shows {
		for kept := range shows[:3] {
			if first == kept {
				continue
			}
			r := startViews(t, patientLeases, func(o *proxy.Options) {
				o.Backend.Tracking, o.Cache.Invalidation, o.Cache.PubSubTTL = false, proxy.InvalidationPubSub, 2*clustertest.Deadline
			})
			r.warm(shows[kept]...)
			r.direct.Do("HSET", instanceKey, "_zone", "new")
			if got := r.front[0].Do(shows[first]...); !strings.Contains(got, "new") {
				t.Fatalf("%.80q does not show the change: %.300q", shows[first], got)
			}
			for i, c := range r.front {
				if got := c.Do(shows[kept]...); !strings.Contains(got, "new") {
					t.Errorf("client %d: %.80q is behind %.80q: %.300q", i, shows[kept], shows[first], got)
				}
			}
		}
	}
}

// With it, a reply of SORT that shows keys which it does not name waits for the word about them.
func TestSortAwaitsInvalidations(t *testing.T) {
	t.Parallel()
	r, wire := startRelayedViews(t)
	for i := range 3 { // the client's order may send one read past the cache
		key := fmt.Sprint("{n}:svc_itc:s@", i)
		kept, zone := []string{"HGETALL", key}, fmt.Sprint("new", i)
		r.warm(kept...)
		wire.Mute(proxytest.Fetch)
		r.direct.Do("HSET", key, "_zone", zone)
		sorted := r.calls("sort")
		r.front[0].Cmd("SORT", "{n}:svc_itc_idx:s", "BY", "nosort", "GET", "{n}:svc_itc:*->_zone")
		r.front[0].Cmd(kept...)
		r.awaitCalls("sort", sorted)
		wire.Unmute(proxytest.Fetch)
		if got := r.front[0].ReadReply(); !strings.Contains(got, zone) {
			t.Fatalf("SORT does not show the change: %q", got)
		}
		if got := r.front[0].ReadReply(); !strings.Contains(got, zone) {
			t.Errorf("%q behind it: %.300q", kept, got)
		}
	}
}

// While a write of an instance is under way its service is read, and neither that nor the write voids
// the views of other services.
func TestReadDuringAWriteLeavesOtherViews(t *testing.T) {
	t.Parallel()
	r, wire := startRelayedViews(t)
	r.must(r.direct, ":1\r\n", registration("t@1", 600, "t")...)
	other := scriptCall("discovery_get_instances", "t")
	r.warm(viewReads[0]...)
	r.warm(other...)
	writer := r.dial()
	writer.Do("GET", "x") // its connection is there
	wire.Mute(proxytest.Plain)
	written := r.calls("hset")
	writer.Cmd("HSET", instanceKey, "_zone", "new")
	r.awaitCalls("hset", written)
	if got := r.front[0].Do(viewReads[0]...); !strings.Contains(got, "new") {
		t.Errorf("during the write: %.300q", got)
	}
	hits := r.hits(func() {
		for _, c := range r.front {
			c.Do(other...)
		}
	})
	wire.Unmute(proxytest.Plain)
	writer.Expect(":0\r\n")
	if hits != 2 {
		t.Errorf("%d of 2 reads of another service came from memory", hits)
	}
}

// Announced renewals and registrations leave views in memory that they are no reason to forget, and
// whoever hears of them sees them.
func TestMessagesLeaveViewsInMemory(t *testing.T) {
	t.Parallel()
	r := startViews(t)
	r.must(r.direct, ":1\r\n", registration("t@1", 600, "t")...)
	other := scriptCall("discovery_get_instances", "t")
	listener := r.dial()
	listener.Do("PSUBSCRIBE", "{n}:svc_itc:*")
	r.warm(viewReads[0]...)
	r.warm(other...)
	now, misses := int(time.Now().Unix()), r.server.Stats().Misses
	const rounds = 30
	for i := range rounds {
		r.direct.Do("HSET", instanceKey, "__last_renew_pub_ttl_at", "1") // so that it is announced
		r.must(r.direct, ":1\r\n", scriptCall("registry_renew", "s@1", fmt.Sprint(1000*(i+1)))...)
		if got := listener.ReadReply(); !strings.HasSuffix(got, "renew\r\n") {
			t.Fatalf("the message is %q", got)
		}
		for _, c := range r.front {
			if at := slices.Max(expiries(c.Do(viewReads[0]...))); at < now+1000*(i+1) {
				t.Fatalf("renewal %d is not shown: %d", i, at)
			}
		}
	}
	if n := r.server.Stats().Misses - misses; n > rounds/10 {
		t.Errorf("%d misses in %d reads", n, 2*rounds)
	}
	r.warm(other...)
	r.must(r.direct, ":1\r\n", registration("s@9", 600, "s")...)
	listener.ReadReply()
	hits := r.hits(func() {
		for _, c := range r.front {
			if got := c.Do(viewReads[0]...); !strings.Contains(got, "s@9") {
				t.Errorf("the registration is not shown: %.300q", got)
			}
			c.Do(other...)
		}
	})
	if hits < 2 {
		t.Errorf("%d hits: the registration in one service voids another one", hits)
	}
}

// A message does not wait for longer than max_staleness for a connection that says nothing.
func TestMessagesDoNotWaitForever(t *testing.T) {
	t.Parallel()
	r, wire := startRelayed(t, func(o *proxy.Options) { o.Cache.MaxStaleness = 300 * time.Millisecond })
	r.load()
	r.must(r.direct, ":1\r\n", registration("s@1", 600, "s")...)
	listener := r.dial()
	listener.Do("PSUBSCRIBE", "{n}:svc_itc:*")
	r.warm(viewReads[0]...)
	wire.Mute(proxytest.Fetch)
	defer wire.Unmute(proxytest.Fetch)
	for i := range 2 {
		r.must(r.direct, ":1\r\n", scriptCall("registry_set_metadata", "s@1", "_zone", fmt.Sprint("new", i))...)
		if got := listener.ReadReply(); !strings.HasSuffix(got, "set_metadata\r\n") {
			t.Fatalf("the message is %q", got)
		}
		if got := r.front[0].Do(viewReads[0]...); !strings.Contains(got, fmt.Sprint("new", i)) {
			t.Errorf("after the message: %.300q", got)
		}
	}
}

// A lease that was dead comes back to life with the next sign of its connection, and what it vouches for
// with it. A view that was given up meanwhile does not.
func TestViewsEndWithTheirLease(t *testing.T) {
	t.Parallel()
	r, wire := startRelayed(t, func(o *proxy.Options) { o.Cache.MaxStaleness = time.Second })
	r.load()
	r.must(r.direct, ":1\r\n", registration("s@1", 600, "s")...)
	const sameLane = "{n}:cfg:x"
	r.direct.Do("HSET", sameLane, "f", "v")
	r.warm("HGETALL", sameLane)
	r.warm(viewReads[0]...)
	wire.Mute(proxytest.Fetch)
	clustertest.Await(t, "the lease to end", func() error {
		if r.hits(func() { r.front[1].Do("HGETALL", sameLane) }) > 0 {
			return errors.New("it is alive")
		}
		return nil
	})
	wire.Mute(proxytest.Plain)
	calls := r.calls("evalsha")
	r.front[0].Cmd(viewReads[0]...) // finds nothing that is alive
	r.awaitCalls("evalsha", calls)
	wire.Unmute(proxytest.Fetch)
	r.direct.Do("HSET", instanceKey, "_zone", "new")
	clustertest.Await(t, "the change to be seen", func() error {
		if got := r.front[1].Do(viewReads[0]...); !strings.Contains(got, "new") {
			return fmt.Errorf("%.300q", got)
		}
		return nil
	})
	wire.Unmute(proxytest.Plain)
	r.front[0].ReadReply()
}

// Who asks a script when an instance has expired is not answered by a call that was executed before, although its
// reply is still on its way.
func TestViewJoinedAfterAnExpiry(t *testing.T) {
	t.Parallel()
	r, wire := startRelayedViews(t)
	r.warm(viewReads[5]...)
	r.direct.Do("DEBUG", "SET-ACTIVE-EXPIRE", "0")
	r.direct.Do("PEXPIRE", instanceKey, "700")
	wire.MuteAfter(proxytest.Fetch, "s@1") // the index names it; what comes after that is held
	called := r.calls("evalsha")
	r.front[0].Cmd(viewReads[0]...)
	r.awaitCalls("evalsha", called)
	clustertest.Await(t, "the end of the instance", func() error {
		if got := r.direct.Do("PTTL", instanceKey); got != ":-2\r\n" {
			return errors.New(got)
		}
		return nil
	})
	joined := r.server.Stats().Joined
	r.front[1].Cmd(viewReads[0]...)
	clustertest.Await(t, "the second client to join", func() error {
		if r.server.Stats().Joined == joined {
			return errors.New("not yet")
		}
		return nil
	})
	wire.Unmute(proxytest.Fetch)
	if got := r.front[0].ReadReply(); !strings.Contains(got, "s@1") {
		t.Errorf("who asked in time got %.300q", got)
	}
	if got := r.front[1].ReadReply(); strings.Contains(got, "s@1") || !strings.Contains(got, "s@2") {
		t.Errorf("who asked after the instance had expired got %.300q", got)
	}
}

// TestFetchesAreNotJoinedForEver: a reply that is held up on a connection says nothing about the time after it was sent, so
// who asks when entries of that connection are not served any more does not wait for it.
func TestFetchesAreNotJoinedForEver(t *testing.T) {
	t.Parallel()
	const staleness = time.Second
	r, wire := startRelayed(t, keepAll, func(o *proxy.Options) { o.Loops, o.Cache.MaxStaleness = 1, staleness })
	r.load()
	r.must(r.direct, ":1\r\n", registration("s@1", 600, "s")...)
	for _, read := range [][]string{{"GET", "rs"}, viewReads[0]} {
		r.direct.Do("SET", "rs", "old")
		r.direct.Do("HSET", instanceKey, "_zone", "old")
		r.warm("GET", "rwarm")
		called := r.calls(strings.ToLower(read[0]))
		if read[0] == "GET" {
			wire.Mute(proxytest.Fetch)
		} else {
			wire.MuteAfter(proxytest.Fetch, "s@1")
		}
		r.front[0].Cmd(read...)
		r.awaitCalls(strings.ToLower(read[0]), called)
		begun := time.Now()
		r.direct.Do("SET", "rs", "new")
		r.direct.Do("HSET", instanceKey, "_zone", "new")
		clustertest.Await(t, "the end of what the connection vouches for", func() error {
			if d := time.Since(begun); d < staleness+staleness/4 {
				return fmt.Errorf("only %s have passed", d)
			}
			return nil
		})
		before := r.server.Stats()
		r.front[1].Cmd(read...)
		clustertest.Await(t, "the second client to ask", func() error {
			if s := r.server.Stats(); s.Misses == before.Misses && s.Bypasses == before.Bypasses {
				return errors.New("not yet")
			}
			return nil
		})
		wire.Unmute(proxytest.Fetch)
		if got := r.front[1].ReadReply(); !strings.Contains(got, "new") {
			t.Errorf("%q, %s after a change: %.300q", read, time.Since(begun), got)
		}
		r.front[0].ReadReply()
	}
}
