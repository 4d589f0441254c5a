package soak

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// queue is a list that clients push to and that others block on. No element is popped twice, and none is lost
// without an error that says so.
type queue struct {
	// static
	key   string
	shard int

	// guarded by mu
	mu       sync.Mutex
	elements map[string]*element
	unknown  int // pops whose fate nobody knows: each may have taken one element
}

// element is what has become of one element.
type element struct {
	acked, refused bool // its push; neither: nobody knows
	popped         bool
	loose          bool // Redis may lose its push or its pop
}

func newQueue(key string, shard int) *queue {
	return &queue{key: key, shard: shard, elements: map[string]*element{}}
}

// pusher pushes one element after the other.
type pusher struct {
	caller
	queue *queue
	n     int
}

func (c *pusher) round() {
	c.begin()
	defer c.end()
	q := c.queue
	c.n++
	name, e := fmt.Sprintf("e%d", c.n), &element{}
	q.mu.Lock()
	q.elements[name] = e
	q.mu.Unlock()
	reply, ok := c.ask(q.shard, hung, "RPUSH", q.key, name)
	q.mu.Lock()
	defer q.mu.Unlock()
	e.loose = e.loose || c.loose()
	switch {
	case !ok || fateUnknown(reply):
	case isError(reply):
		e.refused = true
	default:
		e.acked = true
		c.crowd.book.served(nil, false)
	}
}

// popper blocks on a queue.
type popper struct {
	caller
	queue *queue
}

// blocking is how long it does, at least: on a new master it begins anew.
const blocking = 300 * time.Millisecond

func (c *popper) round() {
	c.begin()
	defer c.end()
	q := c.queue
	reply, ok := c.ask(q.shard, hung+2*blocking, "BLPOP", q.key, fmt.Sprint(blocking.Seconds()))
	switch {
	case !ok || fateUnknown(reply):
		q.mu.Lock()
		q.unknown++
		q.mu.Unlock()
	case isError(reply):
	case isNull(reply):
		c.crowd.book.served(nil, false)
	default:
		c.crowd.book.served(nil, false)
		name, isPop := strings.CutPrefix(reply, "*2\r\n"+bulk(q.key))
		if !isPop {
			c.crowd.book.fault("BLPOP %s was answered %q", q.key, reply)
			return
		}
		q.pop(c.crowd.book, payload(name), c.loose())
	}
}

func (q *queue) pop(b *ledger, name string, loose bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.elements[name]
	if e == nil {
		b.fault("queue %s: %q was popped, and nobody has pushed it", q.key, name)
		return
	}
	e.loose = e.loose || loose
	if e.popped && !e.loose {
		b.fault("queue %s: %q was popped twice", q.key, name)
	}
	e.popped = true
}

// audit looks for elements that are neither popped nor in the list, when nobody uses it any more.
func (q *queue) audit(b *ledger, left []string) {
	for _, name := range left {
		q.pop(b, name, false)
	}
	lost := 0
	for name, e := range q.elements {
		switch {
		case e.refused && e.popped:
			b.fault("queue %s: %q was popped, and its push refused", q.key, name)
		case e.acked && !e.popped && !e.loose:
			lost++
		}
	}
	if lost > q.unknown {
		b.fault("queue %s: %d elements are lost, and the fate of %d pops is unknown", q.key, lost, q.unknown)
	}
}
