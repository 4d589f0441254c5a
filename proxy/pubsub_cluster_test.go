package proxy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy/proxytest"
)

// testClusterFigures: figures are those of clients, wherever in the cluster their
// subscriptions are.
func testClusterFigures(t *testing.T, c *shared, p *proxytest.Discovered) {
	asked := clustertest.Dial(t, p.Addr)
	channels, subscribers := []string{keyOf("fig", 0), keyOf("fig", 1), keyOf("fig", 2)}, 4
	for range subscribers {
		conn := clustertest.Dial(t, p.Addr)
		played(conn, []string{"HELLO", "3"}, append([]string{"SUBSCRIBE"}, channels...), []string{"PSUBSCRIBE", "fig*", "*"},
			[]string{"SSUBSCRIBE", channels[0]}, []string{"SSUBSCRIBE", channels[1]})
	}
	for i, want := range []struct{ channel, command, reply string }{
		{channels[0], "PUBLISH", ":12\r\n"}, {channels[1], "PUBLISH", ":12\r\n"}, {channels[2], "PUBLISH", ":12\r\n"}, {"other", "PUBLISH", ":4\r\n"},
		{channels[0], "SPUBLISH", ":4\r\n"}, {channels[1], "SPUBLISH", ":4\r\n"}, {channels[2], "SPUBLISH", ":0\r\n"},
	} {
		if got := asked.Do(want.command, want.channel, "m"); got != want.reply {
			t.Errorf("%d: %s: got %q, want %q", i, want.command, got, want.reply)
		}
	}
	expectReply(t, asked, "PUBSUB NUMPAT", ":2\r\n")
	expectReply(t, asked, "PUBSUB NUMSUB "+channels[2]+" other", "*4\r\n"+bulkOf(channels[2])+":4\r\n"+bulkOf("other")+":0\r\n")
	expectReply(t, asked, "PUBSUB SHARDNUMSUB "+channels[1]+" "+channels[2], "*4\r\n"+bulkOf(channels[1])+":4\r\n"+bulkOf(channels[2])+":0\r\n")
	for command, want := range map[string][]string{"CHANNELS": channels, "SHARDCHANNELS": channels[:2]} {
		reply := asked.Do("PUBSUB", command, "fig*")
		for _, channel := range want {
			if !strings.Contains(reply, bulkOf(channel)) || !strings.HasPrefix(reply, fmt.Sprintf("*%d\r\n", len(want))) {
				t.Errorf("PUBSUB %s: got %q, want %q", command, reply, want)
			}
		}
	}
	expectReply(t, asked, "PUBSUB NOSUCH", "-ERR unknown subcommand 'NOSUCH'. Try PUBSUB HELP.\r\n")
	expectReply(t, asked, "SSUBSCRIBE "+channels[0]+" "+channels[1], "-CROSSSLOT Keys in request don't hash to the same slot\r\n")
}

// eventOf waits for the event of key on a connection that gets pmessages, and returns
// what else came before it.
func eventOf(t *testing.T, conn *clustertest.Conn, key string) (others []string) {
	t.Helper()
	for {
		got := conn.ReadReply()
		if strings.HasSuffix(got, bulkOf("__keyevent@0__:set")+bulkOf(key)) {
			return others
		}
		others = append(others, got)
	}
}

// testKeyEvents (PS-04): events come from every master, once each; so does an ordinary
// message to whoever listens to everything.
func testKeyEvents(t *testing.T, c *shared, p *proxytest.Discovered) {
	for _, r := range c.Nodes {
		r.Do("CONFIG", "SET", "notify-keyspace-events", "KE$")
	}
	events, all, space := clustertest.Dial(t, p.Addr), clustertest.Dial(t, p.Addr), clustertest.Dial(t, p.Addr)
	events.Do("PSUBSCRIBE", "__keyevent@0__:*")
	all.Do("PSUBSCRIBE", "*")
	writer := clustertest.Dial(t, p.Addr)
	for i := range 6 {
		key := keyOf(fmt.Sprint("event", i, "-"), i%3)
		space.Do("SUBSCRIBE", "__keyspace@0__:"+key)
		writer.Do("SET", key, "v")
		writer.Do("PUBLISH", "ordinary", fmt.Sprint(i))
		if others := eventOf(t, events, key); len(others) > 0 {
			t.Errorf("before the event of %s came %q", key, others)
		}
		space.Expect("*3\r\n" + bulkOf("message") + bulkOf("__keyspace@0__:"+key) + bulkOf("set"))
		// The event comes from the key's master, the message from another one perhaps.
		want := []string{
			"*4\r\n" + bulkOf("pmessage") + bulkOf("*") + bulkOf("__keyspace@0__:"+key) + bulkOf("set"),
			"*4\r\n" + bulkOf("pmessage") + bulkOf("*") + bulkOf("__keyevent@0__:set") + bulkOf(key),
			"*4\r\n" + bulkOf("pmessage") + bulkOf("*") + bulkOf("ordinary") + bulkOf(fmt.Sprint(i)),
		}
		var got []string
		for range want {
			got = append(got, all.ReadReply())
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("who listens to everything got %q, want %q", got, want)
		}
	}
}

// testShardChannels: a shard channel is served by the owner of its slot, also after
// the slot has moved; its subscribers do not notice.
func testShardChannels(t *testing.T, c *shared, p *proxytest.Discovered) {
	channel := keyOf("shardchannel", 1)
	var subscribers []*clustertest.Conn
	for range 4 {
		conn := clustertest.Dial(t, p.Addr)
		if got := conn.Do("SSUBSCRIBE", channel); got != "*3\r\n"+bulkOf("ssubscribe")+bulkOf(channel)+":1\r\n" {
			t.Fatalf("SSUBSCRIBE: got %q", got)
		}
		subscribers = append(subscribers, conn)
	}
	publisher := clustertest.Dial(t, p.Addr)
	reaches := func() {
		const n = ":4\r\n"
		t.Helper()
		clustertest.Await(t, "the figure to be right", func() error {
			if got := publisher.Do("SPUBLISH", channel, "m"); got != n {
				return fmt.Errorf("SPUBLISH: got %q, want %q", got, n)
			}
			return nil
		})
	}
	reaches()
	for _, conn := range subscribers {
		conn.Expect("*3\r\n" + bulkOf("smessage") + bulkOf(channel) + bulkOf("m"))
	}
	home := c.OwnerOf(channel)
	c.MoveSlot(c.SlotOf(channel), c.other(home))
	outlives(t, channel, func(message string) { publisher.Do("SPUBLISH", channel, message) }, subscribers...)
	reaches()
	c.MoveSlot(c.SlotOf(channel), home)
	c.AwaitOK()
}

// other is a master that is not r.
func (c *shared) other(r *clustertest.Redis) *clustertest.Redis {
	for i := range 3 {
		if owner := c.OwnerOf(keyOf("k", i)); owner != r {
			return owner
		}
	}
	return nil
}

// testSubscribersFailover: whatever a client listens to, messages arrive again on the
// same connection after its master has changed; events come from the new master.
func testSubscribersFailover(t *testing.T, c *shared, p *proxytest.Discovered) {
	for _, r := range c.Nodes {
		r.Do("CONFIG", "SET", "notify-keyspace-events", "KE$")
	}
	channel := keyOf("failover", 1)
	events, ordinary, shard := clustertest.Dial(t, p.Addr), clustertest.Dial(t, p.Addr), clustertest.Dial(t, p.Addr)
	events.Do("PSUBSCRIBE", "__keyevent@0__:*")
	ordinary.Do("SUBSCRIBE", channel)
	shard.Do("SSUBSCRIBE", channel)
	c.swap(t, channel)
	writer := clustertest.Dial(t, p.Addr)
	outlives(t, channel, func(m string) { writer.Do("PUBLISH", channel, m) }, ordinary)
	outlives(t, channel, func(m string) { writer.Do("SPUBLISH", channel, m) }, shard)
	outlives(t, channel, func(m string) { writer.Do("SET", channel, m) }, events)
	for i := range 3 {
		key := keyOf(fmt.Sprint("after", i, "-"), i)
		writer.Do("SET", key, "v")
		for _, other := range eventOf(t, events, key) {
			if !strings.HasSuffix(other, bulkOf(channel)) {
				t.Errorf("an event that nothing caused: %q", other)
			}
		}
	}
	c.swap(t, channel)
}
