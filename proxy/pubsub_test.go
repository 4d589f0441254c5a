package proxy_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

// frames plays raw RESP to both twins and compares n frames that come back.
func (p *pair) frames(n int, commands ...[]string) {
	p.t.Helper()
	raw := encodeAll(commands...)
	p.direct.Send(raw)
	p.behind.Send(raw)
	for i := range n {
		if got, want := p.behind.ReadReply(), p.direct.ReadReply(); got != want {
			p.t.Errorf("frame %d behind %q is %q, a direct connection gets %q", i, commands, got, want)
		}
	}
}

// TestSubscriberMode: shapes, counts and refusals of a connection that listens.
func TestSubscriberMode(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		for _, proto := range []int{2, 3} {
			p := w.dial(t, proto)
			p.frames(2, []string{"SUBSCRIBE", "a", "b"})
			p.frames(8, []string{"PING"}, []string{"PING", "hi"}, []string{"GET", "x"}, []string{"SET", "x"}, []string{"NOSUCH"}, []string{"PSUBSCRIBE", "p*"}, []string{"SUBSCRIBE", "a"}, []string{"UNSUBSCRIBE", "nosuch"})
			p.frames(2, []string{"MULTI"}, []string{"EXEC"})
			p.frames(3, []string{"UNSUBSCRIBE", "a"}, []string{"PUNSUBSCRIBE"}, []string{"UNSUBSCRIBE"})
			p.frames(4, []string{"UNSUBSCRIBE"}, []string{"PUNSUBSCRIBE"}, []string{"UNSUBSCRIBE", "x"}, []string{"GET", "x"})
			p.frames(3, []string{"SUBSCRIBE", "z"}, []string{"RESET"}, []string{"GET", "x"})
			p.frames(1, []string{"SUBSCRIBE"})
			p.frames(6, []string{"SUBSCRIBE", "a"}, []string{"SSUBSCRIBE", "s", "t"}, []string{"PSUBSCRIBE", "p", "q"}, []string{"SSUBSCRIBE", "s"})
			p.frames(7, []string{"SUNSUBSCRIBE", "t", "s"}, []string{"UNSUBSCRIBE"}, []string{"PUNSUBSCRIBE"}, []string{"SSUBSCRIBE", "u"}, []string{"GET", "x"})
			p.frames(4, []string{"SUNSUBSCRIBE", "u"}, []string{"SUNSUBSCRIBE"}, []string{"SUNSUBSCRIBE", "x"}, []string{"GET", "x"})
			p.frames(2, []string{"SSUBSCRIBE"}, []string{"PUBSUB", "CHANNELS"})
			p.frames(3, []string{"SUBSCRIBE", "z", "z"}, []string{"QUIT"})
			p.behind.ExpectClosed()
		}
	})
}

// TestManySubscriptions: one confirmation per name, one message per matching
// subscription.
func TestManySubscriptions(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		for _, proto := range []int{2, 3} {
			p := w.dial(t, proto)
			channels, patterns := []string{"SUBSCRIBE"}, []string{"PSUBSCRIBE"}
			for i := range 200 {
				channels = append(channels, fmt.Sprint("c", i))
			}
			for i := range 50 {
				patterns = append(patterns, fmt.Sprintf("p%d-*", i))
			}
			channels = append(channels, "c7", "both", "\r\n\x00", "")
			p.frames(len(channels)-1, channels)
			p.frames(len(patterns), append(patterns, "bo*"))
			for i := range 200 {
				publish(w, fmt.Sprint("c", i), fmt.Sprint("message ", i))
			}
			publish(w, "p49-x", "by pattern")
			publish(w, "\r\n\x00", "\r\n$3\r\n")
			publish(w, "", "")
			publish(w, "nobody", "listens")
			p.frames(203)
			publish(w, "both", "twice")
			got, want := p.behind.ReadReply()+p.behind.ReadReply(), p.direct.ReadReply()+p.direct.ReadReply()
			if sortedReply(got) != sortedReply(want) {
				t.Errorf("a channel and a pattern: got %q, want %q in any order", got, want)
			}
			publish(w, "c0", strings.Repeat("large ", 100<<10))
			p.frames(1)
		}
	})
}

func publish(w *twins, channel, message string) {
	w.direct.Do("PUBLISH", channel, message)
	w.behind.Do("PUBLISH", channel, message)
}

// TestSharedSubscription: many clients listen to one channel, all get every
// message in order, and one that leaves takes nothing from the others.
func TestSharedSubscription(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		var conns []*clustertest.Conn
		for range 20 {
			c := clustertest.Dial(t, w.proxy)
			c.Cmd("SUBSCRIBE", "ch")
			c.Expect("*3\r\n$9\r\nsubscribe\r\n$2\r\nch\r\n:1\r\n")
			conns = append(conns, c)
		}
		publisher := clustertest.Dial(t, w.proxy)
		for i := range 100 {
			publisher.Do("PUBLISH", "ch", fmt.Sprint(i))
			if i == 50 {
				for _, c := range conns[:5] {
					c.Close()
				}
				conns[5].Cmd("UNSUBSCRIBE", "ch")
			}
		}
		for _, c := range conns[6:] {
			for i := range 100 {
				m := fmt.Sprint(i)
				c.Expect("*3\r\n$7\r\nmessage\r\n$2\r\nch\r\n" + bulk(m))
			}
		}
	})
}

// played returns everything that comes back for commands, up to the answer of a last one.
func played(c *clustertest.Conn, commands ...[]string) string {
	const last = "$4\r\nlast\r\n"
	c.Send(encodeAll(append(commands, []string{"ECHO", "last"})...))
	var all strings.Builder
	for {
		got := c.ReadReply()
		if got == last {
			return all.String()
		}
		all.WriteString(got)
	}
}

// TestSubscribingInsideMulti: EXEC subscribes, as Redis does it.
func TestSubscribingInsideMulti(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		w.behind.Do("SET", "k", "v")
		w.direct.Do("SET", "k", "v")
		for _, proto := range []int{2, 3} {
			for _, tt := range [][][]string{
				{{"MULTI"}, {"SUBSCRIBE", "a", "b"}, {"GET", "k"}, {"PSUBSCRIBE", "a*"}, {"PING"}, {"PING", "x"}, {"UNSUBSCRIBE", "a", "c"}, {"UNSUBSCRIBE"}, {"PUNSUBSCRIBE"}, {"SUNSUBSCRIBE"}, {"PING"}, {"EXEC"}},
				{{"MULTI"}, {"SSUBSCRIBE", "s"}, {"GET", "k"}, {"EXEC"}},
				{{"MULTI"}, {"SUBSCRIBE"}, {"SUBSCRIBE", "a"}, {"EXEC"}},
				{{"MULTI"}, {"SUBSCRIBE", "a"}, {"DISCARD"}},
				{{"WATCH", "w"}, {"SET", "w", "1"}, {"MULTI"}, {"SUBSCRIBE", "a"}, {"EXEC"}},
				{{"MULTI"}, {"SUBSCRIBE", "a"}, {"INCR", "k"}, {"UNSUBSCRIBE", "a"}, {"EXEC"}},
				{{"MULTI"}, {"PUBLISH", "a", "m"}, {"PUBSUB", "CHANNELS"}, {"PUBSUB", "NUMSUB", "a"}, {"PUBSUB", "NUMPAT"}, {"PUBSUB", "CHANNELS", "a", "b"}, {"PUBSUB", "NOSUCH"}, {"EXEC"}},
				{{"PUBSUB", "CHANNELS"}, {"PUBSUB", "NUMPAT"}, {"PUBSUB", "NUMSUB"}, {"PUBSUB", "NUMSUB", "a", "b", "a"}, {"PUBSUB", "SHARDNUMSUB", "s"}, {"PUBSUB", "SHARDCHANNELS"}, {"PUBSUB", "HELP"}, {"PUBSUB"}, {"PUBSUB", "CHANNELS", "a", "b"}, {"PUBSUB", "numpat", "x"}},
			} {
				p := w.dial(t, proto)
				if got, want := played(p.behind, tt...), played(p.direct, tt...); got != want {
					t.Errorf("RESP%d %q:\n got %q\nwant %q", proto, tt, got, want)
				}
			}
			p := w.dial(t, proto)
			p.frames(4, []string{"MULTI"}, []string{"SUBSCRIBE", "a"}, []string{"PUBSUB", "NUMSUB", "a"}, []string{"EXEC"})
			publish(w, "a", "m")
			p.frames(1)
			for _, c := range []*clustertest.Conn{p.direct, p.behind} { // counted no more
				played(c, []string{"RESET"})
			}
		}
		clustertest.Await(t, "subscriptions to end", func() error { return unsubscribed(w.behind) })
	})
}

// unsubscribed reports whether nobody subscribes to anything at r.
func unsubscribed(r *clustertest.Redis) error {
	channels, shards, patterns := fmt.Sprint(r.Do("PUBSUB", "CHANNELS")), fmt.Sprint(r.Do("PUBSUB", "SHARDCHANNELS")), r.Do("PUBSUB", "NUMPAT")
	if channels != "[]" || shards != "[]" || patterns != int64(0) {
		return fmt.Errorf("channels %s, shard channels %s, %v patterns", channels, shards, patterns)
	}
	return nil
}

// TestMessagesToOneself: a client that publishes to itself gets the message with the
// reply, on the side of it that its Redis would choose.
func TestMessagesToOneself(t *testing.T) {
	const message, pmessage = ">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nm\r\n", ">4\r\n$8\r\npmessage\r\n$2\r\na*\r\n$1\r\na\r\n$1\r\nm\r\n"
	for version, want := range map[string]string{
		"7.0.15": message + pmessage + ":2\r\n+PONG\r\n",
		"7.2.0":  ":2\r\n" + message + pmessage + "+PONG\r\n",
	} {
		t.Run(version, func(t *testing.T) {
			behind := clustertest.StartRedis(t)
			o := strict(t, behind, netloop.DefaultTransport)
			o.Backend.Version = version
			_, addr := proxytest.Start(t, o)
			c := clustertest.Dial(t, addr)
			played(c, []string{"HELLO", "3"}, []string{"SUBSCRIBE", "a"}, []string{"PSUBSCRIBE", "a*"})
			for range 20 {
				if got := played(c, []string{"PUBLISH", "a", "m"}, []string{"PING"}); got != want {
					t.Fatalf("got %q, want %q", got, want)
				}
			}
			inside := "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:2\r\n+PONG\r\n" + message + pmessage
			if got := played(c, []string{"MULTI"}, []string{"PUBLISH", "a", "m"}, []string{"PING"}, []string{"EXEC"}); got != inside {
				t.Errorf("inside MULTI got %q, want %q", got, inside)
			}
			both := clustertest.Dial(t, addr)
			got := played(both, []string{"HELLO", "3"}, []string{"MULTI"}, []string{"SUBSCRIBE", "b"}, []string{"PUBLISH", "b", "m"}, []string{"UNSUBSCRIBE", "b"}, []string{"EXEC"})
			want := "*3\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:1\r\n:1\r\n>3\r\n$11\r\nunsubscribe\r\n$1\r\nb\r\n:0\r\n>3\r\n$7\r\nmessage\r\n$1\r\nb\r\n$1\r\nm\r\n"
			if !strings.HasSuffix(got, want) {
				t.Errorf("subscribing and publishing inside MULTI got %q, want %q", got, want)
			}
		})
	}
}

// TestPublishCountsClients: figures are those of clients, whichever loop they live on,
// and of subscribers that are connected past the proxy.
func TestPublishCountsClients(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		asked := clustertest.Dial(t, w.proxy)
		check := func(want string, command ...string) {
			t.Helper()
			if got := asked.Do(command...); got != want {
				t.Errorf("%q: got %q, want %q", command, got, want)
			}
		}
		figures := func(channel, either, patterns, shard int) {
			t.Helper()
			check(fmt.Sprintf(":%d\r\n", either), "PUBLISH", "ch", "m")
			check(fmt.Sprintf(":%d\r\n", shard), "SPUBLISH", "ch", "m")
			check(fmt.Sprintf("*4\r\n$2\r\nch\r\n:%d\r\n$5\r\nother\r\n:0\r\n", channel), "PUBSUB", "NUMSUB", "ch", "other")
			check(fmt.Sprintf("*2\r\n$2\r\nch\r\n:%d\r\n", shard), "PUBSUB", "SHARDNUMSUB", "ch")
			check(fmt.Sprintf(":%d\r\n", patterns), "PUBSUB", "NUMPAT")
			list := map[bool]string{true: "*1\r\n$2\r\nch\r\n", false: "*0\r\n"}
			check(list[channel > 0], "PUBSUB", "CHANNELS")
			check(list[channel > 0], "PUBSUB", "CHANNELS", "c[a-h]*")
			check("*0\r\n", "PUBSUB", "CHANNELS", "o*")
			check(list[shard > 0], "PUBSUB", "SHARDCHANNELS")
			asked.Cmd("MULTI")
			asked.Cmd("PUBLISH", "ch", "m")
			asked.Cmd("SPUBLISH", "ch", "m")
			for range 3 {
				asked.ReadReply()
			}
			check(fmt.Sprintf("*2\r\n:%d\r\n:%d\r\n", either, shard), "EXEC")
		}
		figures(0, 0, 0, 0)
		var conns []*clustertest.Conn
		for i := range 6 {
			c := clustertest.Dial(t, w.proxy)
			played(c, []string{"HELLO", "3"}, []string{"SUBSCRIBE", "ch"})
			figures(i+1, 2*i+1, min(i, 1), i)
			played(c, []string{"PSUBSCRIBE", "c*"}, []string{"SSUBSCRIBE", "ch"})
			conns = append(conns, c)
			figures(i+1, 2*i+2, 1, i+1)
		}
		past := clustertest.Dial(t, w.behind.Addr)
		past.Do("SUBSCRIBE", "ch")
		past.Do("PSUBSCRIBE", "?h")
		figures(7, 14, 2, 6)
		for i, c := range conns {
			played(c, []string{"UNSUBSCRIBE"}, []string{"PUNSUBSCRIBE"}, []string{"SUNSUBSCRIBE"})
			left := 5 - i
			figures(left+1, 2*left+2, 1+min(left, 1), left)
		}
	})
}

// TestFiguresLeaveNearCacheOut: what the near-cache listens to is no client's. It listens after the first read, which
// opens all that it needs at once.
func TestFiguresLeaveNearCacheOut(t *testing.T) {
	behind := clustertest.StartRedis(t)
	o := strict(t, behind, netloop.DefaultTransport)
	o.Cache.Invalidation = proxy.InvalidationPubSub
	_, addr := proxytest.Start(t, o)
	c := clustertest.Dial(t, addr)
	c.Do("HGETALL", "ns:svc_itc:a")
	clustertest.Await(t, "the near-cache to listen", func() error {
		if n := behind.Do("PUBSUB", "NUMPAT"); n != int64(2) {
			return fmt.Errorf("%v patterns", n)
		}
		return nil
	})
	for command, want := range map[string]string{
		"PUBLISH ns:svc_itc:a set": ":0\r\n", "PUBSUB NUMPAT": ":0\r\n", "PUBSUB CHANNELS": "*0\r\n", "PUBSUB NUMSUB ns:svc_idx": "*2\r\n$10\r\nns:svc_idx\r\n:0\r\n",
	} {
		expectReply(t, c, command, want)
	}
}

// TestOversizedMessage: what no client may leave unread ends those it is for, and
// nobody else.
func TestOversizedMessage(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind := clustertest.StartRedis(t)
		o := strict(t, behind, transport)
		o.Clients.SubscriberLimit = 256 << 10
		s, addr := proxytest.Start(t, o)
		for range 4 { // on both loops
			c, other := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
			c.Do("PSUBSCRIBE", "large*")
			other.Do("SUBSCRIBE", "small")
			behind.Do("PUBLISH", "large", strings.Repeat("m", 4<<20))
			c.ExpectClosed()
			behind.Do("PUBLISH", "small", "m")
			other.Expect("*3\r\n$7\r\nmessage\r\n$5\r\nsmall\r\n$1\r\nm\r\n")
		}
		if st := s.Stats(); st.Cut != 4 || st.FeedsLost != 0 {
			t.Errorf("%d clients cut off, %d subscription connections lost; want 4, 0", st.Cut, st.FeedsLost)
		}
	})
}

// TestMessagesBetweenReplies: RESP3 messages never split a reply, however long.
func TestMessagesBetweenReplies(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		w.behind.Do("SET", "big", strings.Repeat("b", 3<<20))
		c := clustertest.Dial(t, w.proxy)
		c.Do("HELLO", "3")
		c.Do("SUBSCRIBE", "ch")
		const rounds = 10
		for range rounds {
			c.Cmd("GET", "big")
			w.behind.Do("PUBLISH", "ch", "m")
		}
		replies, messages := 0, 0
		for replies+messages < 2*rounds {
			switch got := c.ReadReply(); got {
			case ">3\r\n$7\r\nmessage\r\n$2\r\nch\r\n$1\r\nm\r\n":
				messages++
			case bulk(strings.Repeat("b", 3<<20)):
				replies++
			default:
				t.Fatalf("got %.100q", got)
			}
		}
		if replies != rounds || messages != rounds {
			t.Errorf("got %d replies and %d messages, want %d of each", replies, messages, rounds)
		}
	})
}

// outlives publishes to channel until every subscriber has got a message again.
func outlives(t *testing.T, channel string, publish func(message string), subscribers ...*clustertest.Conn) {
	t.Helper()
	waiting, n := subscribers, 0
	clustertest.Await(t, "messages to arrive again", func() error {
		n++
		publish(fmt.Sprint(n))
		var silent []*clustertest.Conn
		for _, c := range waiting {
			switch got, err := c.TryReply(10 * time.Millisecond); {
			case err == nil && strings.Contains(got, bulk(channel)):
			case err == nil:
				t.Fatalf("got %.200q", got)
			case !errors.Is(err, os.ErrDeadlineExceeded):
				t.Fatalf("a subscriber was disconnected: %v", err)
			default:
				silent = append(silent, c)
			}
		}
		if waiting = silent; len(silent) > 0 {
			return fmt.Errorf("%d subscribers have got nothing", len(silent))
		}
		return nil
	})
}

// TestSubscribersOutliveTheirBackend (PS-03): the same connections get messages again
// after a restart, and after somebody has killed the subscription connections.
func TestSubscribersOutliveTheirBackend(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind := clustertest.StartRedis(t)
		p, addr := proxytest.Start(t, strict(t, behind, transport))
		var subscribers []*clustertest.Conn
		for i := range 100 {
			c := clustertest.Dial(t, addr)
			switch i % 3 {
			case 0:
				c.Do("SUBSCRIBE", "ch")
			case 1:
				c.Do("PSUBSCRIBE", "c?")
			default:
				c.Do("SSUBSCRIBE", "ch")
			}
			subscribers = append(subscribers, c)
		}
		publish := func(message string) {
			for _, command := range []string{"PUBLISH", "SPUBLISH"} {
				if _, err := behind.DoErr(command, "ch", message); err != nil {
					t.Logf("%s: %v", command, err)
				}
			}
		}
		behind.Restart()
		outlives(t, "ch", publish, subscribers...)
		if killed := behind.Do("CLIENT", "KILL", "TYPE", "pubsub"); killed != int64(2) {
			t.Errorf("%v connections subscribe for 2 loops", killed)
		}
		again := clustertest.Dial(t, addr)
		again.Do("SUBSCRIBE", "ch")
		outlives(t, "ch", publish, again)
		clustertest.Await(t, "the other loop to resubscribe, too", func() error {
			s := p.Stats()
			if s.FeedsLost < 4 || s.Resubscriptions < 12 || s.SubscribersDropped != 0 {
				return fmt.Errorf("%d feeds lost, %d topics put in force again, %d clients dropped; want 4, 12 (more if Redis came and went), 0", s.FeedsLost, s.Resubscriptions, s.SubscribersDropped)
			}
			return nil
		})
	})
}

// TestSubscribersOfFrozenBackend: a backend that keeps its connections but says nothing
// is noticed, and subscribed to again when it wakes up.
func TestSubscribersOfFrozenBackend(t *testing.T) {
	behind := clustertest.StartRedis(t)
	o := strict(t, behind, netloop.DefaultTransport)
	o.Upstream.Timeout = 200 * time.Millisecond
	p, addr := proxytest.Start(t, o)
	c := clustertest.Dial(t, addr)
	c.Do("SUBSCRIBE", "ch")
	behind.Freeze()
	defer behind.Thaw()
	clustertest.Await(t, "the loss", func() error {
		if p.Stats().FeedsLost == 0 {
			return errors.New("not noticed")
		}
		return nil
	})
	behind.Thaw()
	outlives(t, "ch", func(message string) { behind.Do("PUBLISH", "ch", message) }, c)
}

// TestNothingIsLeftBehind: with the last client, a subscription ends, and its
// connection too.
func TestNothingIsLeftBehind(t *testing.T) {
	behind := clustertest.StartRedis(t)
	_, addr := proxytest.Start(t, strict(t, behind, netloop.DefaultTransport))
	var conns []*clustertest.Conn
	for range 4 { // on both loops
		c := clustertest.Dial(t, addr)
		c.Do("GET", "k")
		conns = append(conns, c)
	}
	for i, c := range conns {
		played(c, []string{"HELLO", "3"}, []string{"SUBSCRIBE", "a", fmt.Sprint(i)}, []string{"PSUBSCRIBE", "a*"}, []string{"SSUBSCRIBE", "s"})
		if i < 2 {
			played(c, []string{"RESET"})
		}
	}
	played(conns[2], []string{"UNSUBSCRIBE"}, []string{"PUNSUBSCRIBE"}, []string{"SUNSUBSCRIBE"})
	conns[3].Close()
	clustertest.Await(t, "subscriptions to end", func() error { return unsubscribed(behind) })
	clustertest.Await(t, "connections to end", func() error {
		list := behind.Text("CLIENT", "LIST")
		if n := strings.Count(list, "cmd=sunsubscribe") + strings.Count(list, "cmd=ping") + strings.Count(list, "cmd=punsubscribe"); n > 0 {
			return fmt.Errorf("%d are left:\n%s", n, list)
		}
		return nil
	})
}

// TestRefusedSubscription: what the backend refuses, it refuses in its own words, and
// other subscriptions are not concerned.
func TestRefusedSubscription(t *testing.T) {
	behind := clustertest.StartRedis(t)
	behind.Do("ACL", "SETUSER", "default", "resetchannels", "&mine*")
	p, addr := proxytest.Start(t, strict(t, behind, netloop.DefaultTransport))
	c, other := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
	for _, conn := range []*clustertest.Conn{c, other} {
		conn.Do("SUBSCRIBE", "mine")
	}
	const refusal = "-NOPERM this user has no permissions to access one of the channels used as arguments\r\n"
	for _, command := range []string{"SUBSCRIBE yours", "SUBSCRIBE mine2 yours mine3", "PSUBSCRIBE *", "SSUBSCRIBE a b"} {
		expectReply(t, c, command, refusal)
	}
	expectReply(t, c, "SUBSCRIBE mine2", "*3\r\n$9\r\nsubscribe\r\n$5\r\nmine2\r\n:2\r\n")
	behind.Do("PUBLISH", "mine", "m")
	for _, conn := range []*clustertest.Conn{c, other} {
		conn.Expect("*3\r\n$7\r\nmessage\r\n$4\r\nmine\r\n$1\r\nm\r\n")
	}
	if n := p.Stats().FeedsLost; n != 0 {
		t.Errorf("%d subscription connections lost", n)
	}
}

// TestSubscribersAreDisconnected: nobody stays connected to silence, neither when that
// is how a loss is to be treated, nor when the backend does not come back.
func TestSubscribersAreDisconnected(t *testing.T) {
	for name, tt := range map[string]struct {
		onLoss proxy.OnLoss
		lose   func(*clustertest.Redis)
	}{
		"disconnect":  {proxy.Disconnect, (*clustertest.Redis).Restart},
		"resubscribe": {proxy.Resubscribe, (*clustertest.Redis).Stop},
	} {
		t.Run(name, func(t *testing.T) {
			behind := clustertest.StartRedis(t)
			o := strict(t, behind, netloop.DefaultTransport)
			o.PubSub = proxy.PubSubOptions{OnLoss: tt.onLoss, ResubscribeTimeout: 300 * time.Millisecond}
			p, addr := proxytest.Start(t, o)
			c, bystander := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
			c.Do("SUBSCRIBE", "ch")
			bystander.Do("PING")
			tt.lose(behind)
			late := clustertest.Dial(t, addr)
			if got := late.Do("SUBSCRIBE", "ch"); name == "resubscribe" && !strings.HasPrefix(got, "-ERR cosky-proxy cannot ") {
				t.Errorf("SUBSCRIBE to a backend that has gone: got %q", got)
			}
			c.ExpectClosed()
			if got := p.Stats().SubscribersDropped; got != 1 {
				t.Errorf("%d clients dropped, want 1", got)
			}
			if got := bystander.Do("ECHO", "x"); got != bulk("x") {
				t.Errorf("a client that does not subscribe got %q", got)
			}
		})
	}
}

// TestSilentSubscriberIsCutOff: who does not read its messages loses its
// connection at the limit, and the others keep theirs.
func TestSilentSubscriberIsCutOff(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind := clustertest.StartRedis(t)
		o := strict(t, behind, transport)
		o.Clients.SubscriberLimit = 1 << 20
		s, addr := proxytest.Start(t, o)
		silent, reading := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
		silent.Do("SUBSCRIBE", "ch")
		reading.Do("SUBSCRIBE", "ch")
		message := strings.Repeat("m", 256<<10)
		clustertest.Await(t, "the cut", func() error {
			behind.Do("PUBLISH", "ch", message)
			reading.Expect("*3\r\n$7\r\nmessage\r\n$2\r\nch\r\n" + bulk(message))
			if n := s.Stats().Cut; n != 1 {
				return fmt.Errorf("%d clients were cut off", n)
			}
			return nil
		})
	})
}
