package proxytest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy/resp"
)

// Use is what a proxy uses a backend connection for, as seen from outside.
type Use int

// The uses. A connection is Plain until what the proxy says on it shows that it is not.
const (
	Plain Use = iota
	Fetch
	PubSub
	replication // a replica's: none of the proxy's business, and no replies
)

func (u Use) String() string { return [...]string{"plain", "fetch", "pubsub", "replication"}[u] }

// Relay passes replies, one by one, between a proxy and its backend, and misbehaves
// on demand. All methods may be called from any goroutine.
type Relay struct {
	// static
	Addr   string
	target string

	// guarded by mu
	mu      sync.Mutex
	changed *sync.Cond // broadcast when muted changes or a pipe ends
	pipes   map[*pipe]bool
	muted   map[Use]bool
	last    map[Use]string // what the reply contains before they are muted
	deaf    map[Use]bool
	refused map[Use]bool
	lagging map[Use]time.Duration
	lost    int
	held    int
	turned  int
}

// pipe is one connection through a relay.
type pipe struct {
	// static
	proxy, redis net.Conn

	// guarded by the relay's mu
	use    Use
	closed bool
}

// StartRelay runs a relay to target until the test ends.
func StartRelay(t testing.TB, target string) *Relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{Addr: ln.Addr().String(), target: target, pipes: map[*pipe]bool{},
		muted: map[Use]bool{}, last: map[Use]string{}, deaf: map[Use]bool{}, refused: map[Use]bool{}, lagging: map[Use]time.Duration{}}
	r.changed = sync.NewCond(&r.mu)
	var all sync.WaitGroup
	t.Cleanup(func() {
		ln.Close()
		r.Cut(Plain, Fetch, PubSub, replication)
		all.Wait()
	})
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() { r.serve(c) })
		}
	})
	return r
}

// RelayCluster puts a relay in front of every node of c and makes the cluster announce
// the relays, so that a proxy comes by there; c's own methods do not. A node that is restarted
// forgets its relay, see Announce.
func RelayCluster(t testing.TB, c *clustertest.Cluster) map[*clustertest.Redis]*Relay {
	t.Helper()
	relays := make(map[*clustertest.Redis]*Relay)
	for _, node := range c.Nodes {
		relays[node] = StartRelay(t, node.Addr)
		Announce(node, relays[node])
	}
	clustertest.Await(t, "every node to know the relays", func() error {
		for _, node := range c.Nodes {
			view, err := node.DoErr("CLUSTER", "NODES")
			if err != nil {
				return err
			}
			for _, r := range relays {
				if !strings.Contains(fmt.Sprint(view), r.Addr+"@") {
					return fmt.Errorf("%s does not know %s", node.Addr, r.Addr)
				}
			}
		}
		return nil
	})
	c.AwaitOK()
	return relays
}

// Announce makes a node of a cluster tell the others, and clients, to come to r.
func Announce(node *clustertest.Redis, r *Relay) {
	_, port, _ := net.SplitHostPort(r.Addr)
	node.Do("CONFIG", "SET", "cluster-announce-port", port)
}

func (r *Relay) serve(c net.Conn) {
	defer c.Close()
	s, err := net.Dial("tcp", r.target)
	if err != nil {
		return
	}
	p := &pipe{proxy: c, redis: s}
	r.mu.Lock()
	r.pipes[p] = true
	r.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { r.upstream(p) })
	both.Go(func() { r.downstream(p) })
	both.Wait()
}

// upstream passes on what the proxy says.
func (r *Relay) upstream(p *pipe) {
	defer r.end(p)
	b := make([]byte, 64<<10)
	for {
		n, err := p.proxy.Read(b)
		if err != nil || !r.admit(p, string(b[:n])) {
			return
		}
		if _, err := p.redis.Write(b[:n]); err != nil {
			return
		}
	}
}

// admit notes what p is used for and whether it is wanted.
func (r *Relay) admit(p *pipe, said string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case strings.Contains(said, "TRACKING"), strings.Contains(said, "PTTL"):
		p.use = Fetch
	case strings.Contains(said, "SUBSCRIBE"):
		p.use = PubSub
	case strings.Contains(said, "REPLCONF"):
		p.use = replication
	}
	if r.refused[p.use] {
		r.turned++
		return false
	}
	return true
}

// downstream passes on what Redis says, whole replies only, unless connections like p
// are muted.
func (r *Relay) downstream(p *pipe) {
	defer r.end(p)
	var held []byte
	b := make([]byte, 64<<10)
	for {
		n, err := p.redis.Read(b)
		if err != nil {
			return
		}
		held = append(held, b[:n]...)
		for last := true; last; {
			var whole, rest []byte
			whole, rest, last, err = r.sift(p, held)
			if err != nil || !r.pass(p) {
				return
			}
			if _, err := p.proxy.Write(whole); err != nil {
				return
			}
			held = append(held[:0], rest...)
			if last {
				r.Mute(r.useOf(p))
			}
		}
	}
}

// sift returns the whole replies in b that are to be passed on, and what comes after them. last: connections
// like p are to be muted then.
func (r *Relay) sift(p *pipe, b []byte) (whole, rest []byte, last bool, err error) {
	if r.useOf(p) == replication {
		return b, nil, false, nil
	}
	for {
		var scan resp.ReplyScanner
		n, done, err := scan.Scan(b)
		if err != nil || !done {
			return whole, b, false, err
		}
		if !r.loses(p, b[:n]) {
			whole = append(whole, b[:n]...)
		}
		last, b = r.isLast(p, b[:n]), b[n:]
		if last {
			return whole, b, true, nil
		}
	}
}

// isLast reports whether MuteAfter waits for the reply.
func (r *Relay) isLast(p *pipe, reply []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := r.last[p.use]
	if text == "" || !bytes.Contains(reply, []byte(text)) {
		return false
	}
	delete(r.last, p.use)
	return true
}

func (r *Relay) useOf(p *pipe) Use {
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.use
}

// loses reports whether reply is a message or an invalidation that is to be lost.
func (r *Relay) loses(p *pipe, reply []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.deaf[p.use] || reply[0] != '>' && reply[0] != '*' {
		return false
	}
	_, n, size := resp.ReadHeader(reply)
	if n < 2 || reply[size] != '$' {
		return false
	}
	what, _ := resp.ReadBulk(reply[size:])
	if !bytes.HasSuffix(what, []byte("message")) && string(what) != "invalidate" {
		return false
	}
	r.lost++
	return true
}

// pass waits until p may speak; false when it is over.
func (r *Relay) pass(p *pipe) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.lagging[p.use]; d > 0 {
		r.mu.Unlock()
		time.Sleep(rand.N(d))
		r.mu.Lock()
	}
	if r.muted[p.use] {
		r.held++
	}
	for r.muted[p.use] && !p.closed {
		r.changed.Wait()
	}
	return !p.closed
}

func (r *Relay) end(p *pipe) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.closed = true
	delete(r.pipes, p)
	r.changed.Broadcast()
	p.proxy.Close()
	p.redis.Close()
}

// Mute holds back what Redis says on connections of a use, which stay open.
func (r *Relay) Mute(u Use) { r.set(r.muted, u, true) }

// MuteAfter does so behind the next reply that contains text.
func (r *Relay) MuteAfter(u Use, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[u] = text
}

// Unmute lets them have what was held back.
func (r *Relay) Unmute(u Use) { r.set(r.muted, u, false) }

// Deafen loses messages and invalidations on connections of a use, and nothing else: PINGs are
// answered as if all were well. TCP and Redis never do that.
func (r *Relay) Deafen(u Use, on bool) { r.set(r.deaf, u, on) }

// Refuse ends new connections of a use as soon as they show what they are.
func (r *Relay) Refuse(u Use, on bool) { r.set(r.refused, u, on) }

func (r *Relay) set(what map[Use]bool, u Use, on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	what[u] = on
	r.changed.Broadcast()
}

// Lag delays what Redis says on connections of a use by up to d, each time anew.
func (r *Relay) Lag(u Use, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lagging[u] = d
}

// Lost is how many messages and invalidations Deafen has lost.
func (r *Relay) Lost() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost
}

// Held is how often Mute has kept a connection from speaking that had something to say.
func (r *Relay) Held() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held
}

// Turned is how many connections Refuse has ended.
func (r *Relay) Turned() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.turned
}

func (r *Relay) of(uses ...Use) (ps []*pipe) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.pipes {
		if slices.Contains(uses, p.use) {
			ps = append(ps, p)
		}
	}
	return ps
}

// Cut closes connections of these uses on both sides, and returns how many there were.
func (r *Relay) Cut(uses ...Use) (cut int) {
	for _, p := range r.of(uses...) {
		r.end(p)
		cut++
	}
	return cut
}

// Kill makes Redis close them, with CLIENT KILL, and returns how many there were. A server that does
// not answer kills nothing.
func (r *Relay) Kill(redis *clustertest.Redis, uses ...Use) (killed int) {
	for _, p := range r.of(uses...) {
		if _, err := redis.DoErr("CLIENT", "KILL", "ADDR", p.redis.LocalAddr().String()); err == nil {
			killed++
		}
	}
	return killed
}
