package proxytest

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/redcon"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/slot"
)

// Fake is a scripted Redis server: it answers what a test wants, when it wants,
// and remembers what it was asked. Connection state (HELLO, AUTH, CLIENT, SELECT, ASKING)
// and PING are taken care of unless the script sees to them.
type Fake struct {
	Addr string

	// guarded by mu
	mu       sync.Mutex
	greeting string
	accepted int
	conns    map[*FakeConn]struct{}
	calls    map[string]int
}

// Script answers one command with raw RESP bytes; "" is no answer (yet). It runs
// on the connection's own goroutine, so it may block to stall the connection.
type Script func(c *FakeConn, args []string) string

// FakeConn is one connection to a Fake.
type FakeConn struct {
	Asking bool       // the command before this one was ASKING
	Queue  [][]string // for scripts that play transactions
	net.Conn
}

// Send writes raw bytes at once, from any goroutine: a late reply, half of one.
func (c *FakeConn) Send(raw string) { c.Write([]byte(raw)) }

// StartFake runs a fake server until the test ends. The script may be called for
// several connections at the same time.
func StartFake(t testing.TB, script Script) *Fake {
	t.Helper()
	f := &Fake{calls: make(map[string]int), conns: make(map[*FakeConn]struct{})}
	accept := func(c redcon.Conn) bool {
		fc := &FakeConn{Conn: c.NetConn()}
		c.SetContext(fc)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.accepted++
		if f.greeting != "" {
			fc.Send(f.greeting)
			return false
		}
		f.conns[fc] = struct{}{}
		return true
	}
	handle := func(c redcon.Conn, cmd redcon.Command) { f.serve(c.Context().(*FakeConn), cmd, script) }
	closed := func(c redcon.Conn, _ error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.conns, c.Context().(*FakeConn))
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("cannot listen: %v", err)
	}
	f.Addr = ln.Addr().String()
	s := redcon.NewServer(f.Addr, handle, accept, closed)
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(ln) }()
	t.Cleanup(func() { ln.Close(); f.CutAll(); <-done })
	return f
}

func (f *Fake) serve(c *FakeConn, cmd redcon.Command, script Script) {
	args := make([]string, len(cmd.Args))
	for i, a := range cmd.Args {
		args[i] = string(a)
	}
	name := strings.ToUpper(args[0])
	f.mu.Lock()
	f.calls[name]++
	f.mu.Unlock()
	if reply := script(c, args); reply != "" {
		c.Send(reply)
	} else {
		c.Send(fallback(name, args))
	}
	c.Asking = name == "ASKING"
}

// fallback answers the commands a proxy sends on its own account.
func fallback(name string, args []string) string {
	switch name {
	case "PING":
		return "+PONG\r\n"
	case "HELLO":
		return "%1\r\n$5\r\nproto\r\n:" + args[1] + "\r\n"
	case "AUTH", "CLIENT", "SELECT", "ASKING":
		return "+OK\r\n"
	case "PTTL": // part of every read for the near-cache
		return ":-1\r\n"
	}
	return ""
}

// Greet makes the server say greeting to every further connection and close it,
// as a Redis with too many clients does. Empty: serve again.
func (f *Fake) Greet(greeting string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.greeting = greeting
}

// CutAll closes every connection.
func (f *Fake) CutAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		c.Close()
	}
}

// Accepted is the number of connections so far.
func (f *Fake) Accepted() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.accepted
}

// Calls is how often a command (in upper case) has arrived.
func (f *Fake) Calls(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[name]
}

// Shards is the topology of a cluster whose slots are spread evenly over masters
// at addrs, without replicas.
func Shards(version uint64, addrs ...string) *cluster.Topology {
	shards := make([]cluster.Shard, len(addrs))
	for i, addr := range addrs {
		shards[i] = cluster.Shard{
			Primary: &cluster.Node{ID: addr, Addr: addr},
			Ranges:  []slot.Range{{First: uint16(i * slot.Count / len(addrs)), Last: uint16((i+1)*slot.Count/len(addrs) - 1)}},
		}
	}
	t, err := cluster.New(version, cluster.Cluster, shards)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return t
}

// FixedTo is a topology that changes only when Set does.
func FixedTo(t *cluster.Topology) *Fixed {
	f := new(Fixed)
	f.Set(t)
	return f
}
