package proxy_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/slot"
	"cosky-proxy/proxy/proxytest"
	"cosky-proxy/proxy/resp"
)

// scanOnce sends one SCAN and returns the next cursor and the keys.
func scanOnce(t *testing.T, conn *clustertest.Conn, cursor string, options ...string) (next string, keys []string) {
	t.Helper()
	reply := conn.Do(append([]string{"SCAN", cursor}, options...)...)
	v, n, err := resp.Parse([]byte(reply))
	if err != nil || n != len(reply) || len(v.Elems) != 2 || v.Elems[1].Kind != '*' {
		t.Fatalf("SCAN %s %q: got %.200q", cursor, options, reply)
	}
	for _, e := range v.Elems[1].Elems {
		keys = append(keys, string(e.Str))
	}
	next = string(v.Elems[0].Str)
	if m, err := strconv.ParseInt(next, 10, 64); err != nil || m >= 1<<53 {
		t.Fatalf("SCAN %s: the cursor %q is no number below 2^53", cursor, next)
	}
	return next, keys
}

// scanAll sweeps, with between called before every call but the first, and returns how often each key came
// and the number of calls.
func scanAll(t *testing.T, conns []*clustertest.Conn, between func(call int), options ...string) (seen map[string]int, calls int) {
	t.Helper()
	seen = make(map[string]int)
	for cursor := "0"; ; {
		var keys []string
		cursor, keys = scanOnce(t, conns[calls%len(conns)], cursor, options...)
		calls++
		for _, k := range keys {
			seen[k]++
		}
		if cursor == "0" {
			return seen, calls
		}
		if calls > 5000 {
			t.Fatal("the sweep does not end")
		}
		if between != nil {
			between(calls)
		}
	}
}

func expectAll(t *testing.T, seen map[string]int, want []string) {
	t.Helper()
	missing := 0
	for _, k := range want {
		if seen[k] == 0 {
			missing++
		}
	}
	if missing > 0 {
		t.Errorf("%d of %d keys were not returned", missing, len(want))
	}
}

// awaitOneEpoch waits until every node has heard of the last hand-over: Redis itself loses a slot that a node
// gives back before.
func awaitOneEpoch(t *testing.T, c *clustertest.Cluster) {
	t.Helper()
	c.AwaitOK()
	clustertest.Await(t, "the nodes to agree on the epoch", func() error {
		epochs := make(map[string]bool)
		for _, r := range c.Nodes {
			_, rest, _ := strings.Cut(r.Text("CLUSTER", "INFO"), "cluster_current_epoch:")
			epoch, _, _ := strings.Cut(rest, "\r\n")
			epochs[epoch] = true
		}
		if len(epochs) > 1 {
			return fmt.Errorf("there are %v", epochs)
		}
		return nil
	})
}

func fill(t *testing.T, conn *clustertest.Conn, keys []string) {
	t.Helper()
	var sets [][]string
	for _, k := range keys {
		sets = append(sets, []string{"SET", k, "v"})
	}
	conn.Send(oneWrite(sets...))
	for range keys {
		conn.Expect("+OK\r\n")
	}
}

func TestScanCluster(t *testing.T) {
	c := clustertest.StartCluster(t, 3, 0)
	p, other := proxytest.StartCluster(t, c, nil), proxytest.StartCluster(t, c, nil)
	var conns []*clustertest.Conn // on every loop of both
	for range 2 {
		conns = append(conns, clustertest.Dial(t, p.Addr), clustertest.Dial(t, other.Addr))
	}
	conn := conns[0]

	for _, tt := range [][2]string{
		{"SCAN 0", "*2\r\n$1\r\n0\r\n*0\r\n"},
		{"SCAN abc", "-ERR invalid cursor\r\n"},
		{"SCAN 0 COUNT", "-ERR syntax error\r\n"},
		{"SCAN 0 COUNT x", "-ERR value is not an integer or out of range\r\n"},
		{"SCAN 0 COUNT 0", "-ERR syntax error\r\n"},
		{"SCAN", "-ERR wrong number of arguments for 'scan' command\r\n"},
	} {
		expectReply(t, conn, tt[0], tt[1])
	}

	var keys, tagged []string
	for i := range 3000 {
		keys = append(keys, fmt.Sprint("scan:", i))
		tagged = append(tagged, fmt.Sprint("{many}:", i))
	}
	keys = append(keys, tagged...)
	fill(t, conn, keys)
	expectReply(t, conn, "SADD aset m", ":1\r\n")

	t.Run("at rest", func(t *testing.T) {
		seen, _ := scanAll(t, conns, nil)
		expectAll(t, seen, keys)
		for k, n := range seen {
			if n > 1 {
				t.Errorf("%s was returned %d times although nothing changed", k, n)
			}
		}
		if seen, _ = scanAll(t, conns, nil, "MATCH", "scan:1*", "COUNT", "100"); len(seen) != 1111 {
			t.Errorf("MATCH: got %d keys, want 1111", len(seen))
		}
		if seen, _ = scanAll(t, conns, nil, "TYPE", "set"); len(seen) != 1 || seen["aset"] != 1 {
			t.Errorf("TYPE: got %v, want the one set", seen)
		}
		if seen, calls := scanAll(t, conns, nil, "COUNT", "100000"); calls != 1 || len(seen) != len(keys)+1 {
			t.Errorf("COUNT of more than there is: got %d keys in %d calls, want all in one", len(seen), calls)
		}
	})

	t.Run("replies in order", func(t *testing.T) {
		conn.Send(oneWrite([]string{"ECHO", "a"}, []string{"SCAN", "0", "COUNT", "1"}, []string{"ECHO", "b"}))
		conn.Expect("$1\r\na\r\n")
		if got := conn.ReadReply(); !strings.HasPrefix(got, "*2\r\n") {
			t.Errorf("got %.100q in the place of SCAN's reply", got)
		}
		conn.Expect("$1\r\nb\r\n")
	})

	t.Run("RESP3", func(t *testing.T) {
		conn3 := clustertest.Dial(t, p.Addr)
		conn3.Do("HELLO", "3")
		seen, _ := scanAll(t, []*clustertest.Conn{conn3}, nil, "COUNT", "500")
		expectAll(t, seen, keys)
	})

	t.Run("any cursor", func(t *testing.T) {
		for range 50 {
			scanOnce(t, conn, strconv.FormatInt(rand.Int64(), 10))
		}
	})

	t.Run("slots move back and forth", func(t *testing.T) {
		random := rand.New(rand.NewPCG(5, 6))
		sl, to, phase := 0, c.Nodes[0], 0
		move := func(call int) { // a part of a move before each of the first calls
			if call > 60 && phase == 0 {
				return
			}
			switch phase {
			case 0:
				sl, to = c.SlotOf(keys[random.IntN(len(keys))]), c.Nodes[random.IntN(3)]
				if c.OwnerOfSlot(sl) == to {
					return
				}
				c.BeginMigrate(sl, to)
			case 1:
				c.MigrateKeys(sl, to, 1+random.IntN(1000))
			case 2:
				c.MigrateKeys(sl, to, 0)
			case 3:
				c.FinishMigrate(sl, to)
				awaitOneEpoch(t, c)
			}
			phase = (phase + 1) % 4
		}
		seen, _ := scanAll(t, conns, move, "COUNT", "50")
		for phase != 0 {
			move(0)
		}
		expectAll(t, seen, keys)
	})

	t.Run("an endless reshard", func(t *testing.T) {
		to := c.AddNode()
		slots := make(map[int]bool)
		for _, k := range keys[:3000] {
			slots[c.SlotOf(k)] = true
		}
		var queue []int
		for sl := range slots {
			queue = append(queue, sl)
		}
		// One proxy remembers what has changed; several have only the cursor, and start over.
		one := []*clustertest.Conn{conns[0], conns[2]}
		seen, calls := scanAll(t, one, func(int) { // a slot before each call, until they run out
			if len(queue) > 0 {
				c.MoveSlot(queue[0], to)
				queue = queue[1:]
			}
		}, "COUNT", "200")
		expectAll(t, seen, keys)
		if calls > 100 {
			t.Errorf("%d calls: the sweep starts over all the time", calls)
		}
	})

	t.Run("an open migration", func(t *testing.T) {
		to := c.AddNode() // is no part of the slot table
		sl := int(slot.Of([]byte(tagged[0])))
		c.BeginMigrate(sl, to)
		c.MigrateKeys(sl, to, 1000)
		seen, _ := scanAll(t, conns, func(int) { c.MigrateKeys(sl, to, 50) }, "COUNT", "100")
		expectAll(t, seen, keys)
		seen, _ = scanAll(t, conns, nil)
		expectAll(t, seen, keys)
		clustertest.Await(t, "the proxy to hear of the empty master", func() error {
			if got, want := conn.Do("DBSIZE"), fmt.Sprintf(":%d\r\n", len(keys)+1); got != want {
				return fmt.Errorf("DBSIZE: got %q, want %q", got, want)
			}
			return nil
		})
		expectReply(t, conn, "FLUSHALL", "+OK\r\n")
		if got := to.Text("DBSIZE"); got != "0" {
			t.Errorf("%s keys are left on the master that owns no slot yet", got)
		}
	})
}
