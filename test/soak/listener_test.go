package soak

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cosky-proxy/cluster/clustertest"
)

// channel is one that the test publishes numbers on.
type channel struct {
	publish string // PUBLISH or SPUBLISH
	name    string
	shard   int // of its tag, -1: none
	n       int // published last
}

// listener subscribes to a channel. It hears ascending numbers, so none twice; after a fault it hears again.
type listener struct {
	caller
	channel   *channel
	subscribe []string

	heard atomic.Int64 // the last number
	mu    sync.Mutex   // guards conn
}

// audience is the listeners of a run.
type audience struct {
	channels  []*channel
	listeners []*listener
	stopped   atomic.Bool
	wg        sync.WaitGroup
}

// gather starts a listener of each kind at each front.
func gather(w *crowd, shards int) *audience {
	a := &audience{channels: []*channel{{publish: "PUBLISH", name: "news", shard: -1}}}
	for i := range shards {
		a.channels = append(a.channels, &channel{publish: "SPUBLISH", name: keyOf("shardnews", shards, i, 0), shard: i})
	}
	for i := range w.fronts {
		a.join(w.caller(i), a.channels[0], "SUBSCRIBE", "news")
		a.join(w.caller(i), a.channels[0], "PSUBSCRIBE", "new?")
		for _, ch := range a.channels[1:] {
			a.join(w.caller(i), ch, "SSUBSCRIBE", ch.name)
		}
	}
	return a
}

func (a *audience) join(c caller, ch *channel, subscribe ...string) {
	c.free = true
	l := &listener{caller: c, channel: ch, subscribe: subscribe}
	a.listeners = append(a.listeners, l)
	a.wg.Go(func() {
		for !a.stopped.Load() {
			l.listen(&a.stopped)
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// stop ends all of them, who may be waiting for a message.
func (a *audience) stop() {
	a.stopped.Store(true)
	for _, l := range a.listeners {
		l.mu.Lock()
		l.drop()
		l.mu.Unlock()
	}
	a.wg.Wait()
}

// listen subscribes and listens until the connection ends.
func (l *listener) listen(stopped *atomic.Bool) {
	l.mu.Lock()
	l.begin()
	if stopped.Load() {
		l.drop()
	}
	conn := l.conn
	l.mu.Unlock()
	if conn == nil {
		return
	}
	conn.Cmd(l.subscribe...)
	for patience := hung; ; patience = time.Hour { // silence is normal
		reply, err := conn.TryReply(patience)
		if stopped.Load() {
			return
		}
		if err != nil || isError(reply) {
			if !l.excused(-1) {
				l.crowd.book.fault("%q at %s ended in good weather: %q, %v", l.subscribe, l.front.name, reply, err)
			}
			l.mu.Lock()
			l.drop()
			l.mu.Unlock()
			return
		}
		l.hear(reply)
		l.before = l.crowd.book.weather()
	}
}

func (l *listener) hear(reply string) {
	lines := strings.Split(reply, "\r\n")
	if len(lines) < 4 || !strings.HasSuffix(lines[2], "message") {
		return // a confirmation
	}
	n, err := strconv.ParseInt(lines[len(lines)-2], 10, 64)
	if last := l.heard.Swap(n); err != nil || n <= last {
		l.crowd.book.fault("%q at %s heard %q after number %d", l.subscribe, l.front.name, reply, last)
	}
}

// announce publishes until everybody hears again, and then what everybody has to hear.
func (r *rig) announce() {
	r.t.Helper()
	conn := clustertest.Dial(r.t, r.fronts[0].Addr)
	defer conn.Close()
	from := make(map[*channel]int)
	for _, ch := range r.audience.channels {
		from[ch] = ch.n
	}
	clustertest.Await(r.t, "listeners to hear again", func() error {
		for _, ch := range r.audience.channels {
			ch.say(conn)
		}
		return r.audience.behind(func(ch *channel) int { return from[ch] + 1 })
	})
	for _, ch := range r.audience.channels {
		if got := ch.say(conn); isError(got) {
			r.t.Fatalf("%s %s was answered %q", ch.publish, ch.name, got)
		}
	}
	clustertest.Await(r.t, "what was published after the recovery", func() error {
		return r.audience.behind(func(ch *channel) int { return ch.n })
	})
}

func (ch *channel) say(conn *clustertest.Conn) string {
	ch.n++
	return conn.Do(ch.publish, ch.name, strconv.Itoa(ch.n))
}

// behind is an error if somebody has not heard what want says.
func (a *audience) behind(want func(*channel) int) error {
	for _, l := range a.listeners {
		if heard := l.heard.Load(); int(heard) < want(l.channel) {
			return fmt.Errorf("%q at %s has heard %d, not %d", l.subscribe, l.front.name, heard, want(l.channel))
		}
	}
	return nil
}
