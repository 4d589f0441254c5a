package pubsub

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"sync"
	"time"

	"cosky-proxy/nearcache/lease"
	"cosky-proxy/proxy/mono"
	"cosky-proxy/proxy/resp"
)

// maxMessage is the longest reply that is accepted, in bytes. CoSky's messages are
// a few hundred; what is longer ends the connection rather than fill the memory.
const maxMessage = 16 << 20

var errTooLong = errors.New("a message is longer than 16 MiB")

// link is one connection of a stream. Two goroutines share it: the writer sends
// commands, the reader (Run's goroutine) takes what comes back.
type link struct {
	// static
	s     *Stream
	conn  net.Conn
	lease *lease.Lease
	stop  chan struct{} // closed when the reader has ended

	// reader-owned
	confirmed map[string]*lease.Lease
	refused   map[string]bool // namespaces with a subscription the node denied
	grown     bool            // confirmed has grown since it was published
	proven    bool            // a PING was answered

	// guarded by mu
	mu    sync.Mutex
	asked []question          // commands whose replies have not all arrived, in order
	queue []func(passed bool) // barriers for which no question has been sent yet
	over  bool                // no barrier is taken any more
}

// question is a command the node has yet to answer.
type question struct {
	verb verb
	left int                 // replies still to come
	ns   string              // subscribe: the namespace
	last bool                // subscribe: the namespace is covered once this is answered
	sent int64               // ping: mono nanoseconds
	pass []func(passed bool) // ping: barriers that its answer passes
}

type verb uint8

const (
	auth verb = iota
	subscribe
	ping
)

// fail ends the connection. The lease goes first: whatever it vouched for is void
// before anybody can see that the stream is down.
func (l *link) fail() {
	l.lease.Revoke()
	l.s.leases.Store(&map[string]*lease.Lease{})
	l.conn.Close()
}

// await queues a barrier for the writer. False: the connection is over.
func (l *link) await(done func(passed bool)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.queue = append(l.queue, done)
	}
	return !l.over
}

// giveUp ends what waits at a barrier. Reader and writer have ended.
func (l *link) giveUp() {
	l.mu.Lock()
	waiting := l.queue
	for _, q := range l.asked {
		waiting = append(waiting, q.pass...)
	}
	l.over, l.queue, l.asked = true, nil, nil
	l.mu.Unlock()
	for _, done := range waiting {
		done(false)
	}
}

// ---- the writer

// write sends what there is to send until the reader ends. An error of its own makes the
// reader end, because it closes the connection.
func (l *link) write() {
	defer l.conn.Close()
	tick := time.NewTicker(l.s.opts.MaxStaleness / 3)
	defer tick.Stop()

	subscribed := map[string]bool{}
	b := l.appendAuth(nil)
	b = l.appendSubscriptions(b, subscribed)
	b = l.appendPing(b)
	for {
		if err := l.send(b); err != nil {
			l.lease.Revoke()
			return
		}
		b = b[:0]
		select {
		case <-l.stop:
			return
		case <-l.s.wake:
			b = l.appendSubscriptions(b, subscribed)
			if l.barred() {
				b = l.appendPing(b)
			}
		case <-tick.C:
			b = l.appendPing(b)
		}
	}
}

func (l *link) send(b []byte) error {
	if err := l.conn.SetWriteDeadline(time.Now().Add(l.s.silence())); err != nil {
		return err
	}
	_, err := l.conn.Write(b)
	return err
}

// ask notes the question before its command is sent, so that the reader knows it when the answer comes.
func (l *link) ask(q question) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, q)
}

func (l *link) appendAuth(b []byte) []byte {
	o := &l.s.opts
	if o.Password == "" {
		return b
	}
	l.ask(question{verb: auth, left: 1})
	if o.User == "" {
		return resp.AppendCommand(b, "AUTH", o.Password)
	}
	return resp.AppendCommand(b, "AUTH", o.User, o.Password)
}

// appendSubscriptions subscribes all wanted namespaces that done does not have yet.
func (l *link) appendSubscriptions(b []byte, done map[string]bool) []byte {
	for name, ns := range *l.s.wanted.Load() {
		if done[name] {
			continue
		}
		done[name] = true
		if n := len(ns.channels); n > 0 {
			l.ask(question{verb: subscribe, ns: name, left: n, last: len(ns.patterns) == 0})
			b = resp.AppendCommand(b, append([]string{"SUBSCRIBE"}, ns.channels...)...)
		}
		if n := len(ns.patterns); n > 0 {
			l.ask(question{verb: subscribe, ns: name, left: n, last: true})
			b = resp.AppendCommand(b, append([]string{"PSUBSCRIBE"}, ns.patterns...)...)
		}
	}
	return b
}

// barred reports whether somebody waits for a question to be sent.
func (l *link) barred() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue) > 0
}

func (l *link) appendPing(b []byte) []byte {
	now := mono.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, question{verb: ping, left: 1, sent: now, pass: l.queue})
	l.queue = nil
	return resp.AppendCommand(b, "PING", strconv.FormatInt(now, 10))
}

// ---- the reader

// read handles what the node sends until the connection fails.
func (l *link) read() error {
	buf := make([]byte, 0, 16<<10)
	for {
		if len(buf) == cap(buf) {
			if len(buf) >= maxMessage {
				return errTooLong
			}
			buf = append(make([]byte, 0, 2*cap(buf)), buf...)
		}
		if err := l.conn.SetReadDeadline(time.Now().Add(l.s.silence())); err != nil {
			return err
		}
		n, err := l.conn.Read(buf[len(buf):cap(buf)])
		if err != nil {
			l.lease.Revoke()
			return err
		}
		buf = buf[:len(buf)+n]
		used, err := l.handleAll(buf)
		if err != nil {
			return err
		}
		buf = buf[:copy(buf, buf[used:])]
		l.publish()
	}
}

func (l *link) handleAll(b []byte) (used int, err error) {
	for {
		v, n, err := resp.Parse(b[used:])
		if n == 0 || err != nil {
			return used, err
		}
		if err := l.handle(&v); err != nil {
			return used, err
		}
		used += n
	}
}

// publish makes the namespaces confirmed since the last time visible to LeaseFor.
func (l *link) publish() {
	if !l.grown {
		return
	}
	l.grown = false
	m := maps.Clone(l.confirmed)
	l.s.leases.Store(&m)
	if l.s.fallen != nil && l.s.fallen != l.lease { // what it missed can be seen from now on
		l.s.fallen.Forget()
	}
	l.s.fallen = l.lease
}

// handle takes one reply. Messages come unasked; everything else answers the oldest question.
func (l *link) handle(v *resp.Value) error {
	if e := v.Elems; len(e) > 0 {
		switch kind := string(e[0].Str); {
		case kind == "message" && len(e) == 3:
			l.s.opts.OnMessage(e[1].Str, e[2].Str)
			return nil
		case kind == "pmessage" && len(e) == 4:
			l.s.opts.OnMessage(e[2].Str, e[3].Str)
			return nil
		}
	}
	passed, err := l.answer(v)
	for _, done := range passed {
		done(true)
	}
	return err
}

// answer takes the answer to the oldest question, and returns the barriers that it passes.
func (l *link) answer(v *resp.Value) (passed []func(bool), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.asked) == 0 {
		return nil, fmt.Errorf("an answer to no question: %c %q", v.Kind, v.Str)
	}
	q := &l.asked[0]
	if v.IsError() {
		if q.verb != subscribe {
			return nil, fmt.Errorf("the node refuses: %s", v.Str)
		}
		l.s.opts.Logger.Warn("cannot subscribe", "node", l.s.opts.Addr, "namespace", q.ns, "error", string(v.Str))
		l.refused[q.ns] = true
		q.left = 1 // one error answers the whole command
	} else if err := q.verb.check(v); err != nil {
		return nil, err
	}
	if q.left--; q.left > 0 {
		return nil, nil
	}
	passed = q.pass
	l.answered(*q)
	l.asked = append(l.asked[:0], l.asked[1:]...)
	return passed, nil
}

// check reports whether v is of the form in which the node confirms the command.
func (c verb) check(v *resp.Value) error {
	kind := ""
	if len(v.Elems) > 0 {
		kind = string(v.Elems[0].Str)
	}
	ok := false
	switch c {
	case auth:
		ok = v.Kind == '+'
	case subscribe:
		ok = kind == "subscribe" || kind == "psubscribe"
	case ping: // a bulk string before the first subscription is in force
		ok = kind == "pong" || v.Kind == '$' && !v.Null
	}
	if !ok {
		return fmt.Errorf("an answer to another question: %c %q %q", v.Kind, v.Str, kind)
	}
	return nil
}

func (l *link) answered(q question) {
	switch q.verb {
	case subscribe:
		if q.last && !l.refused[q.ns] {
			l.confirmed[q.ns] = l.lease
			l.grown = true
		}
	case ping:
		l.proven = true
		l.lease.Renew(q.sent + int64(l.s.opts.MaxStaleness))
	}
}
