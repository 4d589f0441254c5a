package soak

import (
	"math/rand/v2"
	"strconv"
)

// optimist increments counters by WATCH, GET, MULTI, SET, EXEC: those that Redis has executed add up.
type optimist struct{ caller }

func (c *optimist) round() {
	c.begin()
	defer c.end()
	b := c.crowd.book
	k := b.watched[rand.IntN(len(b.watched))]
	if !c.expect(k, "+OK\r\n", "WATCH", k.key) {
		return
	}
	reply, ok := c.ask(k.shard, hung, "GET", k.key)
	if !ok || isError(reply) {
		c.drop()
		return
	}
	n, _ := strconv.Atoi(payload(reply))
	if !c.expect(k, "+OK\r\n", "MULTI") || !c.expect(k, "+QUEUED\r\n", "SET", k.key, strconv.Itoa(n+1)) {
		return
	}
	reply, ok = c.ask(k.shard, hung, "EXEC")
	switch {
	case !ok || fateUnknown(reply):
		b.doubt(k)
	case isNull(reply):
		b.served(nil, false)
	case reply == "*1\r\n+OK\r\n":
		b.served(k, c.loose())
	case !isError(reply):
		b.fault("EXEC of one SET was answered %q", reply)
	}
}

// expect asks and starts anew with another connection unless the answer is want.
func (c *optimist) expect(k *counter, want string, args ...string) bool {
	reply, ok := c.ask(k.shard, hung, args...)
	if ok && !isError(reply) && reply != want {
		c.crowd.book.fault("%q was answered %q", args, reply)
	}
	if reply != want {
		c.drop()
	}
	return reply == want
}
