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
		s := p.Stats()
		if s.FeedsLost != 4 || s.Resubscriptions != 12 || s.SubscribersDropped != 0 {
			t.Errorf("%d feeds lost, %d topics put in force again, %d clients dropped; want 4, 12, 0", s.FeedsLost, s.Resubscriptions, s.SubscribersDropped)
		}
	})
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
