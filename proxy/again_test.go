package proxy_test

import (
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/slot"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
)

const (
	tryAgain    = "-TRYAGAIN Multiple keys request during rehashing of slot\r\n"
	clusterDown = "-CLUSTERDOWN The cluster is down\r\n"
	readOnly    = "-READONLY You can't write against a read only replica.\r\n"
)

// moody is a server that answers some commands, given as words, in its own way the first times they come; "cut" ends the
// connection without an answer.
type moody struct {
	fakeData
	mu    sync.Mutex
	moods map[string][]string
}

func (m *moody) serve(c *proxytest.FakeConn, args []string) string {
	m.mu.Lock()
	words := strings.Join(args, " ")
	mood := ""
	if list := m.moods[words]; len(list) > 0 {
		mood, m.moods[words] = list[0], list[1:]
	}
	m.mu.Unlock()
	switch {
	case mood == "cut":
		c.Close()
		return ""
	case mood != "":
		if args[0] == "EXEC" {
			c.Queue = nil
		}
		return mood
	case args[0] == "EVAL":
		m.execute(args)
		return "+script\r\n"
	}
	return m.fakeData.serve(c, args)
}

// What was sent behind a refused command may have been executed by then: an older write never comes last, and a read sees
// what was written before it and nothing that was written behind it.
func TestRefusedCommandsKeepOrder(t *testing.T) {
	multi := func(commands ...string) []string { return append(append([]string{"MULTI"}, commands...), "EXEC") }
	tests := []struct {
		name     string
		commands []string
		moods    map[string][]string
		want     string
		left     string // value of {t}a in the end
	}{
		{
			"a write behind it is executed",
			[]string{"MSET {t}a 1 {t}b 1", "SET {t}a 2"},
			map[string][]string{"MSET {t}a 1 {t}b 1": {tryAgain}},
			tryAgain + "+OK\r\n", "2",
		},
		{
			"a write of another key behind it is executed",
			[]string{"MSET {t}a 1 {t}b 1", "SET {t}c 2"},
			map[string][]string{"MSET {t}a 1 {t}b 1": {tryAgain}},
			"+OK\r\n+OK\r\n", "1",
		},
		{
			"a read behind it is executed",
			[]string{"MSET {t}a 1 {t}b 1", "GET {t}a"},
			map[string][]string{"MSET {t}a 1 {t}b 1": {tryAgain}},
			"+OK\r\n" + bulkOf("1"), "1",
		},
		{
			"a transaction of reads behind it is executed",
			append([]string{"MSET {t}a 1 {t}b 1"}, multi("GET {t}a")...),
			map[string][]string{"MSET {t}a 1 {t}b 1": {tryAgain}},
			"+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n" + bulkOf("1"), "1",
		},
		{
			"a read and a write behind it are executed",
			[]string{"MSET {t}a 1 {t}b 1", "GET {t}a", "SET {t}a 2"},
			map[string][]string{"MSET {t}a 1 {t}b 1": {tryAgain}},
			tryAgain + "$-1\r\n+OK\r\n", "2",
		},
		{
			"a read behind it is executed, a write refused",
			[]string{"SET {t}a 1", "GET {t}a", "SET {t}a 2"},
			map[string][]string{"SET {t}a 1": {readOnly}, "SET {t}a 2": {readOnly}},
			"+OK\r\n" + bulkOf("1") + "+OK\r\n", "2",
		},
		{
			"a read behind it shows that it was not executed to a write of another key",
			[]string{"SET {t}a 1", "MGET {t}a {t}b", "SET {t}b 2"},
			map[string][]string{"SET {t}a 1": {clusterDown}},
			clusterDown + "*2\r\n" + bulkOf("") + bulkOf("") + "+OK\r\n", "",
		},
		{
			"both are refused, the first one twice",
			[]string{"SET {t}a 1", "SET {t}a 2"},
			map[string][]string{"SET {t}a 1": {clusterDown, clusterDown}, "SET {t}a 2": {clusterDown}},
			"+OK\r\n+OK\r\n", "2",
		},
		{
			"a script behind it is executed",
			[]string{"MSET {t}a 1 {t}b 1", "EVAL return(1) 1 {t}z"},
			map[string][]string{"MSET {t}a 1 {t}b 1": {tryAgain}},
			tryAgain + "+script\r\n", "",
		},
		{
			"a transaction behind it is executed",
			append([]string{"MSET {t}a 1 {t}b 1"}, multi("SET {t}b 2", "SET {t}c 2")...),
			map[string][]string{"MSET {t}a 1 {t}b 1": {tryAgain}},
			tryAgain + "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n", "",
		},
		{
			"it is a transaction",
			append(multi("SET {t}a 1", "SET {t}b 1"), "SET {t}a 2"),
			map[string][]string{"EXEC": {tryAgain}},
			"+OK\r\n+QUEUED\r\n+QUEUED\r\n-EXECABORT Transaction discarded because of: " + tryAgain[1:] + "+OK\r\n", "2",
		},
		{
			"it is a part of a command",
			[]string{"MSET {t}a 1 {t}b 1 {u}a 1", "SET {t}a 2"},
			map[string][]string{"MSET {t}a 1 {t}b 1": {tryAgain}},
			tryAgain + "+OK\r\n", "2",
		},
		{
			"a part of a command behind it is executed",
			[]string{"MSET {t}a 1 {t}b 1", "MSET {u}a 2 {t}a 2"},
			map[string][]string{"MSET {t}a 1 {t}b 1": {tryAgain}},
			tryAgain + "+OK\r\n", "2",
		},
		{
			"a part of a read behind it is executed",
			[]string{"MSET {t}a 1 {t}b 1", "MGET {u}a {t}a"},
			map[string][]string{"MSET {t}a 1 {t}b 1": {tryAgain}},
			"+OK\r\n*2\r\n" + bulkOf("") + bulkOf("1"), "1",
		},
		{
			"a transaction behind it is queued in the backend",
			append([]string{"CONFIG SET a b", "SET {t}a 1"}, multi("SET {t}a 2")...),
			map[string][]string{"CONFIG SET a b": {"+OK\r\n"}, "SET {t}a 1": {clusterDown, clusterDown, clusterDown, clusterDown}},
			"+OK\r\n+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n", "2",
		},
		{
			"a script is refused when it is to be queued in the backend behind it",
			append([]string{"CONFIG SET a b", "SET {t}a 1"}, multi("EVAL return(1) 1 {t}a")...),
			map[string][]string{"CONFIG SET a b": {"+OK\r\n"}, "SET {t}a 1": {clusterDown, clusterDown, clusterDown, clusterDown}, "EVAL return(1) 1 {t}a": {clusterDown}},
			"+OK\r\n+OK\r\n+OK\r\n+QUEUED\r\n", "1",
		},
		{
			"nobody knows whether the write behind it was executed",
			[]string{"MSET {t}a 1 {t}b 1", "SET {t}a 2"},
			map[string][]string{"MSET {t}a 1 {t}b 1": {tryAgain}, "SET {t}a 2": {"cut"}},
			tryAgain + "-ERR cosky-proxy connection lost, fate unknown", "",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := &moody{moods: tt.moods}
			f := proxytest.StartFake(t, m.serve)
			_, addr, _ := startFakeCluster(t, func(o *proxy.Options) { o.Loops, o.Cache.Cache = 1, nil }, f)
			c := clustertest.Dial(t, addr)
			var cs [][]string
			for _, words := range tt.commands {
				cs = append(cs, strings.Fields(words))
			}
			c.Send(oneWrite(cs...))
			var got strings.Builder
			for range cs {
				got.WriteString(c.ReadReply())
			}
			if !strings.HasPrefix(got.String(), tt.want) {
				t.Errorf("got %q, want %q", got.String(), tt.want)
			}
			if left := m.execute([]string{"MGET", "{t}a"}); left != "*1\r\n"+bulkOf(tt.left) {
				t.Errorf("{t}a is %q in the end; executed: %q", left, m.executed())
			}
		})
	}
}

// A redirect is no reason to overtake either. A slot that comes back in the middle of a pipeline is the only
// way for what follows to be executed by the node that has redirected what precedes it; other keys are no matter of it.
func TestRedirectedCommandsKeepOrder(t *testing.T) {
	tests := []struct {
		name     string
		commands []string
		redirect func(key, addr string) string
		want     string
	}{
		{"the slot comes back", []string{"SET {t}a 1", "SET {t}a 2"}, movedTo, "-ERR cosky-proxy did not execute this command: a backend said MOVED "},
		{"the migration is called off", []string{"SET {t}a 1", "SET {t}a 2"}, askAt, "-ERR cosky-proxy did not execute this command: a backend said ASK "},
		{"another key that has not moved yet", []string{"SET {t}a 1", "SET {t}b 2"}, askAt, "+OK\r\n"},
		{"a script of another key", []string{"SET {t}a 1", "EVAL return(1) 1 {t}b"}, askAt, "+OK\r\n"},
		{"a read", []string{"SET {t}a 1", "GET {t}a"}, movedTo, "+OK\r\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a, b := new(moody), new(moody)
			there := proxytest.StartFake(t, b.serve)
			here := proxytest.StartFake(t, a.serve)
			a.moods = map[string][]string{tt.commands[0]: {tt.redirect("{t}", there.Addr)}}
			_, addr, _ := startFakeCluster(t, func(o *proxy.Options) { o.Loops, o.Cache.Cache = 1, nil }, here)
			c := clustertest.Dial(t, addr)
			c.Send(oneWrite(strings.Fields(tt.commands[0]), strings.Fields(tt.commands[1])))
			if got := c.ReadReply(); !strings.HasPrefix(got, tt.want) {
				t.Errorf("%s: got %q, want %q", tt.commands[0], got, tt.want)
			}
			if got := c.ReadReply(); got[0] == '-' {
				t.Errorf("%s: got %q", tt.commands[1], got)
			}
			if n, want := there.Calls("SET"), map[bool]int{true: 1, false: 0}[tt.want[0] == '+']; n != want {
				t.Errorf("the other node got %d SET, want %d", n, want)
			}
		})
	}
}

// Pipelines whose commands are redirected one by one stay pipelines, and in order.
func TestRedirectedPipelines(t *testing.T) {
	var m fakeData
	b := proxytest.StartFake(t, m.serve)
	a := proxytest.StartFake(t, redirecting(askAt, b.Addr))
	_, addr, _ := startFakeCluster(t, nil, a)
	c := clustertest.Dial(t, addr)
	c.Send(strings.Repeat(clustertest.Encode("INCR", "n"), 1000))
	for i := range 1000 {
		if got, want := c.ReadReply(), ":"+strconv.Itoa(i+1)+"\r\n"; got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

// Nothing is written between the answer to a pause and its end: not what was on its way when its connection broke, nor a script
// that the backend had to be given again.
func TestPauseHoldsWhatIsSentAgain(t *testing.T) {
	script := "return redis.call('SET', KEYS[1], 1)"
	sum := sha1.Sum([]byte(script))
	sha := hex.EncodeToString(sum[:])
	for _, tt := range []struct {
		name  string
		write []string
		stall string // what is not answered until the pause is in force
	}{
		{"connection lost", []string{"SET", "k", "v"}, "HELLO"},
		{"NOSCRIPT", []string{"EVALSHA", sha, "1", "k"}, "EVALSHA"},
	} {
		for _, mode := range []cluster.Mode{cluster.Standalone, cluster.Cluster} {
			t.Run(mode.String()+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				var asked atomic.Bool
				paused := make(chan struct{})
				f := proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
					switch name := strings.ToUpper(args[0]); {
					case name == tt.stall && !asked.Swap(true):
						<-paused
						if name == "EVALSHA" {
							return "-NOSCRIPT No matching script. Please use EVAL.\r\n"
						}
						c.Close()
						return ""
					case name == "SET", name == "EVALSHA", name == "EVAL", name == "GET", name == "SCRIPT":
						return "+done\r\n"
					}
					return ""
				})
				release := sync.OnceFunc(func() { close(paused) })
				t.Cleanup(release)
				topology := proxytest.FixedTo(master(1, mode, f.Addr))
				o := proxytest.Options(t, topology)
				o.Backend.Mode, o.Loops, o.Cache.Cache = mode, 1, nil
				s, addr := proxytest.Start(t, o)
				writer, boss, held := clustertest.Dial(t, addr), clustertest.Dial(t, addr), clustertest.Dial(t, addr)
				expectReply(t, boss, "EVAL x 0", "+done\r\n")
				if tt.stall == "EVALSHA" {
					writer.Do("EVAL", script, "1", "k")
				}
				for _, c := range []*clustertest.Conn{writer, boss} { // on one connection, which has to log in
					c.Do("HELLO", "3")
				}
				writer.Cmd(tt.write...)
				counted(t, f, tt.stall, 1)
				boss.Cmd("CLIENT", "PAUSE", "60000", "WRITE")
				clustertest.Await(t, "the pause to begin", func() error {
					held.Cmd("SET", "other", "v")
					if s.Stats().Paused == 0 {
						return errors.New("not yet")
					}
					return nil
				})
				before := f.Calls(tt.write[0])
				release()
				boss.Expect("+OK\r\n")
				expectReply(t, boss, "GET k", "+done\r\n")
				if n := f.Calls(tt.write[0]); n != before {
					t.Errorf("%s was sent during the pause", tt.write[0])
				}
				expectReply(t, boss, "CLIENT UNPAUSE", "+OK\r\n")
				writer.Expect("+done\r\n")
			})
		}
	}
}

// Replies that are kept back, or wait for their turn, are bounded: before a refused command keeps its client from being served at
// all, it is too late for it.
func TestRefusedCommandsDoNotPileUpReplies(t *testing.T) {
	for _, size := range []int{20 << 10, 200 << 10} { // whole, and passed on in pieces
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			t.Parallel()
			value := strings.Repeat("v", size)
			f := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
				switch args[0] {
				case "MSET":
					return tryAgain
				case "GET":
					return bulkOf(value)
				}
				return ""
			})
			_, addr, _ := startFakeCluster(t, func(o *proxy.Options) {
				o.Loops, o.Cache.Cache, o.Clients.OutputLimit = 1, nil, 256<<10
				o.Upstream.Timeout, o.Clients.StallTimeout = time.Hour, time.Hour
			}, f)
			c := clustertest.Dial(t, addr)
			const reads = 60
			c.Send(oneWrite([]string{"MSET", "{t}a", "1", "{t}b", "1"}) + strings.Repeat(clustertest.Encode("GET", "{t}a"), reads))
			c.Expect(tryAgain)
			for range reads {
				c.Expect(bulkOf(value))
			}
		})
	}
}

// A client that goes while a part of its command waits to be sent again, the last one that has no answer, leaves nothing behind.
func TestClientLeavesWhileAPartWaits(t *testing.T) {
	t.Parallel()
	here, there := keyIn("k", 0, 2, 0), keyIn("k", 1, 2, 0)
	refuses := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		if args[0] == "MSET" {
			return clusterDown
		}
		return ""
	})
	well := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		if args[0] == "MSET" {
			return "+OK\r\n"
		}
		return ""
	})
	s, addr, _ := startFakeCluster(t, func(o *proxy.Options) {
		o.Loops, o.Cache.Cache, o.Upstream.Timeout = 1, nil, time.Hour
	}, refuses, well)
	c := clustertest.Dial(t, addr)
	c.Cmd("MSET", here, "1", there, "2")
	counted(t, well, "MSET", 1)
	counted(t, refuses, "MSET", 2)
	setLinger0(c)
	c.Close()
	clustertest.Await(t, "the client to be gone", func() error {
		if n := s.Stats().Clients; n != 0 {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
}

// A client has many thousands of parts of commands in flight when a connection is lost: what is done for each of them does not
// depend on how many there are, else nobody would be served for longer than commands may take.
func TestManyPartsAreSentAgainAtOnce(t *testing.T) {
	const depth, keys = 250, 500
	var lost atomic.Bool
	node := func(loses bool) *proxytest.Fake {
		return proxytest.StartFake(t, func(c *proxytest.FakeConn, args []string) string {
			switch {
			case args[0] != "MGET":
				return ""
			case loses && !lost.Swap(true):
				c.Close()
				return ""
			}
			return "*1\r\n$1\r\nv\r\n"
		})
	}
	_, addr, _ := startFakeCluster(t, func(o *proxy.Options) { o.Loops, o.Cache.Cache, o.Upstream.Timeout = 1, nil, 5*time.Second }, node(false), node(true))
	mget, want := []string{"MGET"}, fmt.Sprintf("*%d\r\n%s", keys, strings.Repeat("$1\r\nv\r\n", keys))
	for i, slots := 0, map[uint16]bool{}; len(slots) < keys; i++ { // a part for each key
		key := "k" + strconv.Itoa(i)
		if sl := slot.Of([]byte(key)); !slots[sl] {
			slots[sl] = true
			mget = append(mget, key)
		}
	}
	c := clustertest.Dial(t, addr)
	go c.Send(strings.Repeat(clustertest.Encode(mget...), depth))
	for range depth {
		if got := c.ReadReply(); got != want {
			t.Fatalf("got %.100q", got)
		}
	}
}

// A client that reads slowly holds its connection up. What others have on it is late, and no reason to give up what precedes it.
func TestOthersSlowReadingForestallsNothing(t *testing.T) {
	const limit = 64 << 10
	var m fakeData
	moved, seen := make(chan struct{}), make(chan struct{})
	big := bulkOf(strings.Repeat("b", 16<<20))
	b := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		switch args[0] {
		case "GET":
			<-seen
			return "$-1\r\n"
		case "SET":
			return m.execute(args)
		}
		return ""
	})
	a := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		switch args[0] {
		case "SET":
			<-moved
			return movedTo(args[1], b.Addr)
		case "GET":
			return big
		}
		return ""
	})
	release := sync.OnceFunc(func() { close(moved) })
	show := sync.OnceFunc(func() { close(seen) })
	t.Cleanup(release)
	t.Cleanup(show)
	s, addr, _ := startFakeCluster(t, func(o *proxy.Options) {
		o.Loops, o.Cache.Cache, o.Clients.OutputLimit = 1, nil, limit
		o.Upstream.Timeout, o.Clients.StallTimeout = time.Hour, time.Hour
	}, a, b)
	key, other := keyIn("k", 0, 2, 0), keyIn("k", 1, 2, 0)
	c, slow := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
	sent := 0
	for _, part := range []struct {
		from *clustertest.Conn
		raw  string
	}{
		{c, oneWrite([]string{"SET", key, "1"}, []string{"GET", other})},
		{slow, clustertest.Encode("GET", key)},
		{c, clustertest.Encode("SET", key, "2")},
	} {
		part.from.Send(part.raw)
		sent += len(part.raw)
		awaitReceived(t, func() uint64 { return s.Stats().BytesIn }, sent)
	}
	release()
	clustertest.Await(t, "the slow client to hold the connection up", func() error {
		if n := s.Stats().BufferBytes; n <= limit/2 { // with less, it is read on
			return fmt.Errorf("%d bytes are kept for clients", n)
		}
		return nil
	})
	show() // the moment at which it is looked at what may go
	clustertest.Await(t, "the other node's reply", func() error {
		for _, n := range s.Stats().Nodes {
			if n.Addr == b.Addr && n.Calls > 0 {
				return nil
			}
		}
		return errors.New("there is none")
	})
	slow.Expect(big)
	for _, want := range []string{"+OK\r\n", "$-1\r\n", "+OK\r\n"} {
		c.Expect(want)
	}
	if left := m.execute([]string{"GET", key}); left != bulkOf("2") {
		t.Errorf("%s is %q in the end", key, left)
	}
}
