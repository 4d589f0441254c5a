package proxy

import "time"

// Replies come back in the order of requests, so whoever shares a lane with a client of long
// replies waits for all of them. Clients that move much therefore have lanes of their
// own, which they share with each other: bulk lanes. Who is one of them is looked up at every tick.
const (
	bulkPerTick = 1 << 20          // bytes to and from a client in one tick, 10 MB/s
	bulkFor     = 10 * time.Second // how long a client that has moved so much stays on bulk lanes
)

// weigh finds out who moves much.
func (l *loop) weigh(now int64) {
	for _, s := range l.filled {
		if s.closed {
			continue
		}
		moved := s.conn.Sent() + s.conn.Received()
		if moved-s.moved > bulkPerTick {
			s.bulkyTill = now + int64(bulkFor)
		}
		s.moved = moved
		if bulky := now < s.bulkyTill; bulky != s.bulky {
			s.bulky = bulky
			s.exclusive = s.exclusive || s.inflight > 0 // what is next takes another lane
		}
	}
}
