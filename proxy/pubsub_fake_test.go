package proxy_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/slot"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
)

// speaker is a fake master that lets everybody subscribe, unless refuse has a reply.
type speaker struct {
	*proxytest.Fake

	mu        sync.Mutex
	refuse    string
	listeners []*proxytest.FakeConn
}

func startSpeaker(t *testing.T) *speaker {
	sp := new(speaker)
	sp.Fake = proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
		verb := strings.ToLower(args[0])
		if !strings.HasSuffix(verb, "subscribe") {
			return ""
		}
		sp.mu.Lock()
		defer sp.mu.Unlock()
		switch {
		case strings.HasSuffix(verb, "unsubscribe"):
		case sp.refuse != "":
			return sp.refuse
		case !slices.Contains(sp.listeners, c):
			sp.listeners = append(sp.listeners, c)
		}
		return "*3\r\n" + bulkOf(verb) + bulkOf(args[1]) + ":1\r\n"
	})
	return sp
}

func (sp *speaker) setRefusal(reply string) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.refuse = reply
}

// say sends raw bytes to everybody who has ever subscribed.
func (sp *speaker) say(raw string) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	for _, c := range sp.listeners {
		c.Send(raw)
	}
}

// TestMastersLeaveListeners: who listens to every master goes on doing so, without a
// gap for ordinary messages, when one of them leaves the cluster.
func TestMastersLeaveListeners(t *testing.T) {
	a, b, c := startSpeaker(t), startSpeaker(t), startSpeaker(t)
	if a.Addr > b.Addr { // a, of the lesser ID, is the venue of ordinary messages
		a, b = b, a
	}
	const patience = 200 * time.Millisecond
	s, addr, topology := startFakeCluster(t, func(o *proxy.Options) { o.PubSub.ResubscribeTimeout = patience }, a.Fake, b.Fake)
	client := clustertest.Dial(t, addr)
	client.Do("PSUBSCRIBE", "*")
	ordinary := "*4\r\n" + bulkOf("pmessage") + bulkOf("*") + bulkOf("ch") + bulkOf("m")
	event := func(node string) string {
		return "*4\r\n" + bulkOf("pmessage") + bulkOf("*") + bulkOf("__keyevent@0__:set") + bulkOf(node)
	}
	b.say(ordinary) // a brings it, too
	b.say(event("b"))
	client.Expect(event("b"))
	a.say(ordinary)
	client.Expect(ordinary)

	topology.Set(proxytest.Shards(2, b.Addr))
	s.Adopt(topology.Current())
	clustertest.Await(t, "the change of home", func() error {
		b.say(ordinary)
		if _, err := client.TryReply(10 * time.Millisecond); err != nil {
			return errors.New("no ordinary message")
		}
		return nil
	})
	deadline := time.Now().Add(2 * patience)
	clustertest.Await(t, "the patience with what is missing to end", func() error {
		if time.Now().Before(deadline) {
			return errors.New("not yet")
		}
		return nil
	})
	topology.Set(proxytest.Shards(3, b.Addr, c.Addr)) // a master joins
	s.Adopt(topology.Current())
	clustertest.Await(t, "the new master to be heard", func() error {
		c.say(event("c"))
		for {
			got, err := client.TryReply(10 * time.Millisecond)
			if err != nil {
				return errors.New("no event")
			}
			if got == event("c") {
				return nil
			}
		}
	})
	if got := s.Stats(); got.SubscribersDropped != 0 {
		t.Errorf("%d clients were disconnected although nothing is missing", got.SubscribersDropped)
	}
}

// TestDemotedMastersAreHeardOn: the successor of a master that steps down is listened to when it has certainly heard all
// that listeners have: what it still has to say of that time would come twice, and out of order.
func TestDemotedMastersAreHeardOn(t *testing.T) {
	a, b := startSpeaker(t), startSpeaker(t)
	s, addr, topology := startFakeCluster(t, func(o *proxy.Options) { o.Loops = 1 }, a.Fake)
	client := clustertest.Dial(t, addr)
	client.Do("SUBSCRIBE", "ch")
	events := clustertest.Dial(t, addr)
	events.Do("PSUBSCRIBE", "*")
	message := func(m string) string { return "*3\r\n" + bulkOf("message") + bulkOf("ch") + bulkOf(m) }
	event := func(node string) string {
		return "*4\r\n" + bulkOf("pmessage") + bulkOf("*") + bulkOf("__keyevent@0__:set") + bulkOf(node)
	}
	a.say(message("1"))
	client.Expect(message("1"))

	swapped, err := cluster.New(2, cluster.Cluster, []cluster.Shard{{
		Primary: &cluster.Node{ID: b.Addr, Addr: b.Addr}, Replicas: []*cluster.Node{{ID: a.Addr, Addr: a.Addr}}, Ranges: []slot.Range{slot.All()},
	}})
	if err != nil {
		t.Fatal(err)
	}
	topology.Set(swapped)
	s.Adopt(swapped)
	clustertest.Await(t, "the events of the new master", func() error {
		b.say(event("b"))
		_, err := events.TryReply(10 * time.Millisecond)
		return err
	})
	a.say(event("a")) // of its master's, which a replica repeats
	if n := b.Calls("SUBSCRIBE"); n != 0 {
		t.Fatalf("the new master was asked at once (%d times)", n)
	}
	a.say(message("2"))
	client.Expect(message("2"))
	b.say(event("last"))
	for got := event("b"); got != event("last"); got = events.ReadReply() {
		if got != event("b") {
			t.Errorf("a replica was listened to: %q", got)
		}
	}
	counted(t, b.Fake, "SUBSCRIBE", 1)
	clustertest.Await(t, "the messages of the new master", func() error {
		b.say(message("3"))
		got, err := client.TryReply(10 * time.Millisecond)
		if err == nil && got != message("3") {
			t.Fatalf("got %q", got)
		}
		return err
	})
}

// TestShardSubscriptionIsRedirected: the owner of a slot that the topology does not know
// of yet is found by its predecessor's word; a slot without an owner is waited for.
func TestShardSubscriptionIsRedirected(t *testing.T) {
	for name, refusal := range map[string]func(to string) string{
		"moved":         func(to string) string { return movedTo("ch", to) },
		"down":          func(string) string { return "-CLUSTERDOWN Hash slot not served\r\n" },
		"moved in vain": func(string) string { return movedTo("ch", "127.0.0.1:1") },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := startSpeaker(t), startSpeaker(t)
			a.setRefusal(refusal(b.Addr))
			s, addr, topology := startFakeCluster(t, nil, a.Fake)
			client := clustertest.Dial(t, addr)
			client.Cmd("SSUBSCRIBE", "ch")
			clustertest.Await(t, "the refusal", func() error {
				if a.Calls("SSUBSCRIBE") == 0 {
					return errors.New("nobody has asked")
				}
				return nil
			})
			if name != "moved" {
				a.setRefusal("")
			}
			client.Expect("*3\r\n" + bulkOf("ssubscribe") + bulkOf("ch") + ":1\r\n")
			message := "*3\r\n" + bulkOf("smessage") + bulkOf("ch") + bulkOf("m")
			map[bool]*speaker{true: b, false: a}[name == "moved"].say(message)
			client.Expect(message)
			if topology.Refreshes.Load() == 0 {
				t.Error("nobody asked for a new topology")
			}
			if name != "moved" {
				return
			}
			topology.Set(proxytest.Shards(2, b.Addr)) // which says nothing new
			s.Adopt(topology.Current())
			client.Cmd("SSUBSCRIBE", "ch2")
			client.Expect("*3\r\n" + bulkOf("ssubscribe") + bulkOf("ch2") + ":2\r\n")
			b.say(message)
			client.Expect(message)
			// The second may have been sent to the predecessor just before the topology came.
			if got := s.Stats(); b.Calls("SSUBSCRIBE") != 2 || got.Resubscriptions < 1 || got.Resubscriptions > 2 {
				t.Errorf("%d subscriptions at the new owner, %d of them again; want 2, and 1 or 2", b.Calls("SSUBSCRIBE"), got.Resubscriptions)
			}
		})
	}
}

// TestRepliesWhileSubscribingInsideMulti: what is answered before EXEC takes nothing away from it.
func TestRepliesWhileSubscribingInsideMulti(t *testing.T) {
	release := make(chan struct{})
	f := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		switch args[0] {
		case "SUBSCRIBE":
			return "*3\r\n" + bulkOf("subscribe") + bulkOf(args[1]) + ":1\r\n"
		case "PUBLISH":
			return ":1\r\n"
		case "MULTI":
			return "+OK\r\n"
		case "GET":
			return "+QUEUED\r\n"
		case "EXEC":
			<-release
			return "*2\r\n+PONG\r\n$1\r\nv\r\n"
		}
		return ""
	})
	o := proxytest.Options(t, proxytest.Single(f.Addr))
	o.Loops, o.Backend.Version = 1, "7.2.0"
	_, addr := proxytest.Start(t, o)
	clustertest.Dial(t, addr).Do("SUBSCRIBE", "b")
	c := clustertest.Dial(t, addr)
	played(c, []string{"HELLO", "3"}, []string{"SUBSCRIBE", "a"})
	c.Send(oneWrite(words("PUBLISH a m"), words("MULTI"), words("SUBSCRIBE b"), words("GET k"), words("EXEC")))
	for _, want := range []string{":1\r\n", "+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n"} {
		c.Expect(want)
	}
	close(release)
	c.Expect("*2\r\n>3\r\n" + bulkOf("subscribe") + bulkOf("b") + ":2\r\n" + bulkOf("v"))
}

// TestMovedSlotIsFollowedAtOnce: a node that ends a shard subscription is asked where the slot is
// before anything else is asked of it.
func TestMovedSlotIsFollowedAtOnce(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	var feed *proxytest.FakeConn
	f := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
		if args[0] != "SSUBSCRIBE" {
			return ""
		}
		mu.Lock()
		defer mu.Unlock()
		asked, feed = append(asked, args[1]), c
		return "*3\r\n" + bulkOf("ssubscribe") + bulkOf(args[1]) + ":1\r\n"
	})
	_, addr, _ := startFakeCluster(t, nil, f)
	client := clustertest.Dial(t, addr)
	client.Do("SSUBSCRIBE", "ch")
	client.Do("SSUBSCRIBE", "other")
	message := "*3\r\n" + bulkOf("smessage") + bulkOf("other") + bulkOf("m")
	mu.Lock()
	feed.Send("*3\r\n" + bulkOf("sunsubscribe") + bulkOf("ch") + ":1\r\n" + message)
	mu.Unlock()
	client.Expect(message)
	client.Do("SSUBSCRIBE", "third")
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"ch", "other", "ch", "third"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
}

// TestSubscriptionConnectionIsTurnedAway: a backend with too many clients is not one that
// refuses the subscription.
func TestSubscriptionConnectionIsTurnedAway(t *testing.T) {
	sp := startSpeaker(t)
	o := proxytest.Options(t, proxytest.Single(sp.Addr))
	o.Loops = 1
	_, addr := proxytest.Start(t, o)
	client := clustertest.Dial(t, addr)
	client.Do("SUBSCRIBE", "ch")
	sp.Greet("-ERR max number of clients reached\r\n")
	sp.CutAll()
	accepted := sp.Accepted()
	clustertest.Await(t, "some attempts", func() error {
		if n := sp.Accepted() - accepted; n < 3 {
			return fmt.Errorf("%d attempts", n)
		}
		return nil
	})
	sp.Greet("")
	message := "*3\r\n" + bulkOf("message") + bulkOf("ch") + bulkOf("m")
	clustertest.Await(t, "a message", func() error {
		sp.say(message)
		if got, err := client.TryReply(10 * time.Millisecond); err != nil || got != message {
			return fmt.Errorf("got %q, %v", got, err)
		}
		return nil
	})
}
