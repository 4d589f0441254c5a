package soak

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
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
	t        *testing.T
	front    string // the proxy
	book     *ledger
	patience time.Duration // no reply takes longer

	stopped atomic.Bool
	gate    sync.RWMutex // read-locked while a client has commands in flight
	workers sync.WaitGroup
}

// client is one of them. Its connections come and go.
type client struct {
	crowd *crowd
	id    int
	conn  *clustertest.Conn
	tags  int
	own   []*ownKey
}

// ownKey is a key that only one client writes.
type ownKey struct {
	key     string
	shard   int
	value   string          // of the last SET that was acknowledged
	unknown map[string]bool // values of those whose fate is unknown
}

// step is one command of a pipeline, with what may be said of its reply.
type step struct {
	args    []string
	shard   int      // of its key; -1: it has none
	counter *counter // that it increments; nil: none
	check   func(reply string) (ok bool)
	doubt   func() // its fate is unknown
}

func (w *crowd) start(clients int) {
	for id := range clients {
		c := &client{crowd: w, id: id}
		for i, counter := range w.book.counters {
			c.own = append(c.own, &ownKey{key: fmt.Sprintf("{%s}:own:%d:%d", counter.key, id, i), shard: counter.shard, unknown: map[string]bool{}})
		}
		w.workers.Go(c.run)
	}
}

func (w *crowd) stop() {
	w.stopped.Store(true)
	w.workers.Wait()
}

// hold keeps everybody from sending until release, and waits for what is in flight.
func (w *crowd) hold() (release func()) {
	w.gate.Lock()
	return w.gate.Unlock
}

func (c *client) run() {
	for !c.crowd.stopped.Load() {
		c.round()
		time.Sleep(rand.N(2 * time.Millisecond)) // the machine belongs to others, too
	}
	if c.conn != nil {
		c.conn.Close()
	}
}

// round sends a pipeline and reads its replies.
func (c *client) round() {
	w := c.crowd
	w.gate.RLock()
	defer w.gate.RUnlock()
	if c.conn == nil {
		c.conn = clustertest.Dial(w.t, w.front)
		if rand.IntN(2) == 0 {
			c.conn.Do("HELLO", "3")
		}
	}
	before := w.book.weather()
	var steps []*step
	var raw strings.Builder
	for range 1 + rand.IntN(8) {
		steps = append(steps, c.choose()...)
	}
	for _, s := range steps {
		raw.WriteString(clustertest.Encode(s.args...))
	}
	if _, err := io.WriteString(c.conn.Net(), raw.String()); err != nil {
		c.lost(steps, before, err)
		return
	}
	if rand.IntN(50) == 0 { // it goes away in the middle
		c.conn.Close()
		c.conn = nil
		for _, s := range steps {
			s.undecided(w.book)
		}
		return
	}
	for i, s := range steps {
		begun := time.Now()
		reply, err := c.conn.TryReply(w.patience)
		if err != nil {
			if waited := time.Since(begun); waited >= w.patience {
				w.book.fault("%q got no reply within %v", s.args, waited)
			}
			c.lost(steps[i:], before, err)
			return
		}
		c.judge(s, reply, before)
	}
}

// lost: the proxy has closed the connection, or said nothing.
func (c *client) lost(steps []*step, before storm, err error) {
	b := c.crowd.book
	if now := b.weather(); !before.on && !now.on {
		b.fault("client %d lost its connection in good weather: %v", c.id, err)
	}
	for _, s := range steps {
		s.undecided(b)
	}
	c.conn.Close()
	c.conn = nil
}

func (s *step) undecided(b *ledger) {
	if s.counter != nil {
		b.doubt(s.counter)
	}
	if s.doubt != nil {
		s.doubt()
	}
}

func (c *client) judge(s *step, reply string, before storm) {
	b := c.crowd.book
	if reply[0] != '-' {
		if !s.check(reply) {
			b.fault("client %d: %q was answered %.200q", c.id, s.args, reply)
			return
		}
		b.served(s.counter)
		return
	}
	b.refused(reply, s.counter)
	if s.doubt != nil && fateUnknown(reply) {
		s.doubt()
	}
	if now := b.weather(); !before.excuses(s.shard) && !now.excuses(s.shard) && !(s.shard < 0 && (before.on || now.on)) {
		b.fault("client %d: %q, of shard %d, was answered %.200q with the weather %+v", c.id, s.args, s.shard, reply, now)
	}
}

// choose is what a client does next.
func (c *client) choose() []*step {
	b := c.crowd.book
	k := rand.IntN(len(b.counters))
	counter, own := b.counters[k], c.own[k]
	c.tags++
	tag := fmt.Sprintf("%d.%d", c.id, c.tags)
	switch rand.IntN(7) {
	case 0:
		return []*step{{args: []string{"INCR", counter.key}, shard: counter.shard, counter: counter, check: isNumber}}
	case 1:
		return []*step{{
			args:  []string{"EVAL", "return {ARGV[1], redis.call('INCR', KEYS[1])}", "1", counter.key, tag},
			shard: counter.shard, counter: counter, check: beginsWith("*2\r\n" + bulk(tag) + ":"),
		}}
	case 2:
		return []*step{
			{args: []string{"MULTI"}, shard: counter.shard, check: is("+OK\r\n")},
			{args: []string{"INCR", counter.key}, shard: counter.shard, check: is("+QUEUED\r\n")},
			{args: []string{"EVAL", "return ARGV[1]", "1", counter.key, tag}, shard: counter.shard, check: is("+QUEUED\r\n")},
			{args: []string{"EXEC"}, shard: counter.shard, counter: counter, check: func(r string) bool {
				return strings.HasPrefix(r, "*2\r\n:") && strings.HasSuffix(r, "\r\n"+bulk(tag))
			}},
		}
	case 3:
		return []*step{{args: []string{"EVAL_RO", "return ARGV[1]", "1", counter.key, tag}, shard: counter.shard, check: is(bulk(tag))}}
	case 4:
		return []*step{own.set(tag), own.get()}
	case 5:
		return []*step{own.get(), {args: []string{"ECHO", tag}, shard: -1, check: is(bulk(tag))}}
	default:
		return []*step{{args: []string{"MGET", c.own[0].key, c.own[len(c.own)-1].key, own.key}, shard: -1, check: beginsWith("*3\r\n")}}
	}
}

func (k *ownKey) set(tag string) *step {
	return &step{
		args: []string{"SET", k.key, tag}, shard: k.shard,
		check: func(reply string) bool {
			k.value = tag
			return reply == "+OK\r\n"
		},
		doubt: func() { k.unknown[tag] = true },
	}
}

func (k *ownKey) get() *step {
	return &step{args: []string{"GET", k.key}, shard: k.shard, check: func(reply string) bool {
		if reply == "$-1\r\n" || reply == "_\r\n" {
			return k.value == ""
		}
		_, rest, _ := strings.Cut(reply, "\r\n")
		got := strings.TrimSuffix(rest, "\r\n")
		return got == k.value || k.unknown[got]
	}}
}

func bulk(v string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(v), v) }

func is(want ...string) func(string) bool {
	return func(reply string) bool { return slices.Contains(want, reply) }
}

func beginsWith(want string) func(string) bool {
	return func(reply string) bool { return strings.HasPrefix(reply, want) }
}

func isNumber(reply string) bool {
	_, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(reply, ":"), "\r\n"))
	return err == nil && reply[0] == ':'
}
