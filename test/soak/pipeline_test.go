package soak

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"cosky-proxy/cluster/clustertest"
)

// client sends pipelines and looks whether each reply is in its place and shows what it has to.
type client struct {
	caller
	id   int
	tags int
	own  []*ownKey
	sent time.Time // when the present pipeline was

	floors []int // what each counter is known to have reached, among what Redis does not lose
}

// ownKey is a key that only one client writes.
type ownKey struct {
	key     string
	shard   int
	value   string          // of the last SET that was acknowledged
	unknown map[string]bool // values of those whose fate is unknown, and those that a lost SET gives way to
}

// step is one command of a pipeline, with what may be said of its reply.
type step struct {
	args    []string
	shard   int      // of its key; -1: it has none
	counter *counter // that it increments; nil: none
	check   func(reply string) (ok bool)
	doubt   func() // its fate is unknown
}

func newClient(c caller, id int) *client {
	counters := c.crowd.book.counters
	me := &client{caller: c, id: id, floors: make([]int, len(counters))}
	for i, counter := range counters {
		me.own = append(me.own, &ownKey{key: fmt.Sprintf("{%s}:own:%d:%d", counter.key, id, i), shard: counter.shard, unknown: map[string]bool{}})
	}
	return me
}

// round sends a pipeline and reads its replies.
func (c *client) round() {
	c.begin()
	defer c.end()
	if c.conn == nil {
		return
	}
	var steps []*step
	if c.fresh { // a connection that has written is shown what earlier ones have, by replicas, too
		steps = append(steps, c.set(c.own[rand.IntN(len(c.own))], c.tag()))
	}
	for range 1 + rand.IntN(8) {
		steps = append(steps, c.choose()...)
	}
	var raw strings.Builder
	for _, s := range steps {
		raw.WriteString(clustertest.Encode(s.args...))
	}
	c.sent = time.Now()
	if !c.send(raw.String()) {
		c.undecided(steps)
		return
	}
	if rand.IntN(50) == 0 { // it goes away in the middle
		c.drop()
		c.undecided(steps)
		return
	}
	for i, s := range steps {
		reply, ok := c.reply(s.shard, s.args, hung)
		if !ok {
			c.undecided(steps[i:])
			return
		}
		c.judge(s, reply)
	}
}

// undecided: nobody knows what has become of steps.
func (c *client) undecided(steps []*step) {
	for _, s := range steps {
		if s.counter != nil {
			c.crowd.book.doubt(s.counter)
		}
		if s.doubt != nil {
			s.doubt()
		}
	}
}

func (c *client) judge(s *step, reply string) {
	b := c.crowd.book
	if isError(reply) {
		if fateUnknown(reply) {
			c.undecided([]*step{s})
		}
		return
	}
	if !s.check(reply) {
		b.fault("client %d at %s: %q was answered %.200q", c.id, c.front.name, s.args, reply)
		return
	}
	b.served(s.counter, c.loose())
}

func (c *client) tag() string {
	c.tags++
	return fmt.Sprintf("%d.%d", c.id, c.tags)
}

// choose is what a client does next.
func (c *client) choose() []*step {
	b := c.crowd.book
	k := rand.IntN(len(b.counters))
	counter, own := b.counters[k], c.own[k]
	tag := c.tag()
	switch rand.IntN(8) {
	case 0:
		return []*step{{args: []string{"INCR", counter.key}, shard: counter.shard, counter: counter, check: c.counts(k)}}
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
		return []*step{c.set(own, tag), c.get(own)}
	case 5:
		return []*step{c.get(own), {args: []string{"ECHO", tag}, shard: -1, check: is(bulk(tag))}}
	case 6:
		return []*step{{args: []string{"GET", counter.key}, shard: counter.shard, check: c.reaches(k)}}
	default:
		return []*step{{args: []string{"MGET", c.own[0].key, c.own[len(c.own)-1].key, own.key}, shard: -1, check: beginsWith("*3\r\n")}}
	}
}

// counts: an increment returns more than the client has seen.
func (c *client) counts(k int) func(string) bool {
	return func(reply string) bool {
		n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(reply, ":"), "\r\n"))
		if err != nil || reply[0] != ':' || n <= c.floors[k] {
			return false
		}
		c.raise(k, n)
		return true
	}
}

// reaches: a read shows no less than the client's increments, and no less than what anybody was told before it was
// sent, or, when replicas answer, maxLag before. (While the master is in trouble there is no such bound.)
func (c *client) reaches(k int) func(string) bool {
	return func(reply string) bool {
		counter := c.crowd.book.counters[k]
		least, since := c.floors[k], c.sent
		if c.front.replicas {
			since = since.Add(-maxLag)
		}
		if !c.loose() && !(c.front.replicas && c.excused(counter.shard)) {
			least = max(least, c.crowd.book.marked(counter, since))
		}
		if isNull(reply) {
			return least == 0 || c.moving()
		}
		n, err := strconv.Atoi(payload(reply))
		return err == nil && n >= least
	}
}

func (c *client) raise(k, n int) {
	if !c.loose() {
		c.floors[k] = n
		c.crowd.book.mark(c.crowd.book.counters[k], n)
	}
}

func (c *client) set(k *ownKey, tag string) *step {
	return &step{
		args: []string{"SET", k.key, tag}, shard: k.shard,
		check: func(reply string) bool {
			if c.loose() {
				k.unknown[k.value] = true
			}
			k.value = tag
			return reply == "+OK\r\n"
		},
		doubt: func() { k.unknown[tag] = true },
	}
}

func (c *client) get(k *ownKey) *step {
	return &step{args: []string{"GET", k.key}, shard: k.shard, check: func(reply string) bool {
		got := payload(reply)
		return got == k.value || k.unknown[got] || isNull(reply) && c.moving()
	}}
}

func bulk(v string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(v), v) }

func is(want string) func(string) bool {
	return func(reply string) bool { return reply == want }
}

func beginsWith(want string) func(string) bool {
	return func(reply string) bool { return strings.HasPrefix(reply, want) }
}
