package soak

import (
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
)

// crowd is the clients of one run.
type crowd struct {
	// static
	t      *testing.T
	fronts []*front
	book   *ledger

	stopped atomic.Bool
	gate    sync.RWMutex // read-locked while a client has commands in flight, unless it is free
	workers sync.WaitGroup
}

// How many clients of each kind there are.
const (
	pipelined   = 12
	optimists   = 3
	poppersEach = 2 // of each queue
)

func (w *crowd) start() {
	for id := range pipelined {
		w.employ(newClient(w.caller(id), id))
	}
	for id := range optimists {
		w.employ(&optimist{caller: w.caller(id)})
	}
	for i, q := range w.book.queues {
		w.employ(&pusher{caller: w.caller(i), queue: q})
		for k := range poppersEach {
			p := &popper{caller: w.caller(k), queue: q}
			p.free = true
			w.employ(p)
		}
	}
}

// worker is a client that does the same thing again and again.
type worker interface {
	round()
	drop() // closes its connection
}

func (w *crowd) employ(c worker) {
	w.workers.Go(func() {
		for !w.stopped.Load() {
			c.round()
			time.Sleep(rand.N(2 * time.Millisecond)) // the machine belongs to others, too
		}
		c.drop()
	})
}

func (w *crowd) stop() {
	w.stopped.Store(true)
	w.workers.Wait()
}

// hold keeps everybody who is not free from sending until release, and waits for what is in flight.
func (w *crowd) hold() (release func()) {
	w.gate.Lock()
	return w.gate.Unlock
}

func (w *crowd) caller(i int) caller {
	return caller{crowd: w, front: w.fronts[i%len(w.fronts)]}
}

// caller is a client's connection, which comes and goes.
type caller struct {
	// static
	crowd *crowd
	front *front
	free  bool // it does not stop when the others are held, because it may be blocked

	conn   *clustertest.Conn
	fresh  bool  // the connection has not been used yet
	before storm // the weather when the present round began
}

// begin and end enclose a round.
func (c *caller) begin() {
	w := c.crowd
	if !c.free {
		w.gate.RLock()
	}
	c.before = w.book.weather()
	c.fresh = c.conn == nil
	if !c.fresh {
		return
	}
	c.conn = clustertest.Dial(w.t, c.front.Addr)
	if rand.IntN(2) == 0 {
		c.conn.Cmd("HELLO", "3")
		if reply, err := c.conn.TryReply(hung); err != nil || isError(reply) {
			c.lost(err)
		}
	}
}

func (c *caller) end() {
	if !c.free {
		c.crowd.gate.RUnlock()
	}
}

func (c *caller) drop() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// lost: the proxy has closed the connection, or said nothing.
func (c *caller) lost(err error) {
	if b := c.crowd.book; !c.excused(-1) {
		b.fault("a client lost its connection in good weather: %v", err)
	}
	c.drop()
}

// excused reports whether a command of a shard, -1 of several, may have failed.
func (c *caller) excused(shard int) bool {
	now := c.crowd.book.weather()
	return c.before.excuses(shard) || now.excuses(shard) || c.free && now.number != c.before.number
}

// loose reports whether Redis may lose what it has acknowledged in this round.
func (c *caller) loose() bool { return loose(c.before, c.crowd.book.weather()) }

// moving reports whether a replica may have denied a key in this round.
func (c *caller) moving() bool {
	return c.front.replicas && (c.before.moving || c.crowd.book.weather().moving)
}

// send writes commands; false: the connection is lost.
func (c *caller) send(raw string) bool {
	c.conn.Net().SetWriteDeadline(time.Now().Add(hung))
	if _, err := io.WriteString(c.conn.Net(), raw); err != nil {
		c.lost(err)
		return false
	}
	return true
}

// reply reads the next reply, which may take patience; false: the connection is lost. An error that is not
// excused is a fault.
func (c *caller) reply(shard int, args []string, patience time.Duration) (string, bool) {
	b := c.crowd.book
	begun := time.Now()
	reply, err := c.conn.TryReply(patience)
	if err != nil {
		if waited := time.Since(begun); waited >= patience {
			b.fault("%q got no reply within %v", args, waited)
		}
		c.lost(err)
		return "", false
	}
	if isError(reply) {
		b.refused(reply)
		if redirects(reply) || !c.excused(shard) {
			b.fault("%q, of shard %d, was answered %.200q with the weather %+v", args, shard, reply, b.weather())
		}
	}
	return reply, true
}

// redirects reports whether an error is meant for clients of a cluster, which these are not.
func redirects(reply string) bool {
	return strings.HasPrefix(reply, "-MOVED ") || strings.HasPrefix(reply, "-ASK ")
}

// ask sends one command and waits for its reply.
func (c *caller) ask(shard int, patience time.Duration, args ...string) (string, bool) {
	if c.conn == nil || !c.send(clustertest.Encode(args...)) {
		return "", false
	}
	return c.reply(shard, args, patience)
}

// payload is a bulk string's text, "" for null.
func payload(reply string) string {
	if reply[0] != '$' {
		return ""
	}
	_, rest, _ := strings.Cut(reply, "\r\n")
	return strings.TrimSuffix(rest, "\r\n")
}

func isNull(reply string) bool {
	return reply == "$-1\r\n" || reply == "*-1\r\n" || reply == "_\r\n"
}
