package proxy

import (
	"bytes"
	"fmt"
	"strconv"

	"cosky-proxy/proxy/resp"
)

// ear is how a client hears invalidations that others redirect to it: a connection
// per node, whose id stands for the client in the CLIENT TRACKING … REDIRECT of all
// sessions of this loop. It speaks RESP3 whatever the client speaks; what arrives is
// handed to the client on its own loop, in the client's protocol.
//
// An ear that the backend closes has missed something, so its client is disconnected.
// When the client goes, the ears go, and the backend tells those who redirect to it.
type ear struct {
	loop    *loop
	id      int64    // of the client
	client  *session // belongs to loop at
	at      *loop
	lanes   map[*node]*lane
	waiting []func(cause string) // until every lane has an id
	users   int                  // sessions that redirect to it
	gone    bool
	login   *credential
}

// found is a client and the loop it belongs to.
type found struct {
	client *session
	at     *loop
}

// listen finds or makes the ear of a client and calls done with a use of it, when
// its ids are known. A nil ear and no cause: there is no such client.
func (l *loop) listen(id int64, as *credential, done func(e *ear, cause string)) {
	if e := l.ears[id]; e != nil {
		e.use(done)
		return
	}
	gather(l, func(o *loop) found {
		c := o.client(id)
		if c == nil {
			return found{}
		}
		if c.heardOn == nil {
			c.heardOn = make(map[*loop]struct{})
		}
		c.heardOn[l] = struct{}{}
		return found{c, o}
	}, func(parts []found) {
		for _, f := range parts {
			if f.client == nil {
				continue
			}
			e := l.ears[id] // another session may have made it meanwhile
			if e == nil {
				e = &ear{loop: l, id: id, client: f.client, at: f.at, lanes: make(map[*node]*lane), login: as}
				l.ears[id] = e
				e.verify()
			}
			e.use(done)
			return
		}
		done(nil, "")
	})
}

// verify closes the ear if its client has gone before it was made: nobody would do so later.
func (e *ear) verify() {
	e.at.nl.Post(func() {
		if e.client.closed {
			e.loop.nl.Post(func() {
				if !e.gone {
					e.close()
				}
			})
		}
	})
}

// use opens what is missing and waits until all of it is there.
func (e *ear) use(done func(*ear, string)) {
	e.users++
	for _, n := range e.loop.shards {
		if _, cause := e.open(n); cause != "" {
			done(e, cause)
			return
		}
	}
	e.await(func(cause string) { done(e, cause) })
}

// open is the ear's connection to n.
func (e *ear) open(n *node) (ln *lane, cause string) {
	if ln := e.lanes[n]; ln != nil {
		return ln, ""
	}
	if ln, cause = n.private(nil, laneKey{resp3: true, as: e.login}); cause != "" {
		return nil, cause
	}
	ln.ear, ln.strayed = e, true
	e.lanes[n] = ln
	e.loop.vigil[ln] = struct{}{}
	return ln, ""
}

// await calls f when every connection is open, or none will be.
func (e *ear) await(f func(cause string)) {
	e.waiting = append(e.waiting, f)
	e.opened()
}

// opened looks whether those who wait may go on.
func (e *ear) opened() {
	cause := ""
	for n, ln := range e.lanes {
		switch {
		case e.gone:
		case !ln.ready:
			return
		case ln.serverID == 0:
			cause = fmt.Sprintf("ERR cosky-proxy cannot redirect: backend %s does not tell the id of a connection", n.addr)
		}
	}
	if e.gone {
		cause = "ERR cosky-proxy lost the connection that was to hear of invalidations"
	}
	waiting := e.waiting
	e.waiting = nil
	for _, f := range waiting {
		f(cause)
	}
}

// ready reports whether the ear's id at n is known.
func (e *ear) ready(n *node) bool {
	ln := e.lanes[n]
	return e.gone || ln != nil && ln.ready
}

// release gives a use back; with the last one the ear is closed.
func (e *ear) release() {
	if e == nil {
		return
	}
	if e.users--; e.users > 0 || e.gone {
		return
	}
	l, c := e.loop, e.client
	e.close()
	e.at.nl.Post(func() { delete(c.heardOn, l) })
}

func (e *ear) close() {
	e.gone = true
	if e.loop.ears[e.id] == e {
		delete(e.loop.ears, e.id)
	}
	for _, ln := range e.lanes {
		ln.ear = nil
		ln.fail("")
	}
	e.opened()
}

// lost: the backend has closed a connection that others depend on.
func (e *ear) lost(ln *lane) {
	ln.ear = nil
	delete(e.lanes, ln.node)
	if e.gone {
		return
	}
	c := e.client
	e.close()
	e.at.nl.Post(func() { c.close("a connection that hears of invalidations for it is lost") })
}

// hear passes a push on to the client.
func (e *ear) hear(frame []byte) {
	if e.at == e.loop {
		e.client.invalidated(frame)
		return
	}
	c, owned := e.client, bytes.Clone(frame)
	e.at.nl.Post(func() { c.invalidated(owned) })
}

// invalidated delivers a redirected invalidation: as a push, or in RESP2 as a message
// if the client listens to messages (tracking.c: sendTrackingMessage).
func (s *session) invalidated(frame []byte) {
	switch {
	case s.closed:
	case s.resp3:
		s.emit(frame)
	case s.subscriptions() > 0:
		_, _, size := resp.ReadHeader(frame)
		_, n := resp.ReadBulk(frame[size:])
		b := appendPair(resp.AppendArray(nil, 3), "message", "__redis__:invalidate")
		s.emit(append(b, frame[size+n:]...))
	}
}

// deafen closes the ears of a client that goes. done is called when the backend knows
// of it; nil: nobody waits for that.
func (l *loop) deafen(id int64, done func()) {
	e := l.ears[id]
	if e == nil {
		if done != nil {
			done()
		}
		return
	}
	if done == nil {
		e.close()
		return
	}
	k := &killing{e: e, done: done, missing: 1}
	for n, ln := range e.lanes {
		via, cause := n.lane(laneKey{as: ln.key.as})
		if cause != "" || ln.serverID == 0 {
			continue
		}
		ln.ear = nil // that it is closed is no surprise
		q := l.newRequest(nil, nil)
		q.sink, q.alone = k, true
		l.enc = resp.AppendCommand(l.enc[:0], "CLIENT", "KILL", "ID", strconv.FormatInt(ln.serverID, 10))
		k.missing++
		via.send(q, l.enc)
	}
	k.answered()
}

// killing waits until the backend has closed the connections of an ear.
type killing struct {
	e       *ear
	missing int
	done    func()
}

func (k *killing) deliver(l *loop, q *request, _ []byte) {
	l.release(q)
	k.answered()
}

func (k *killing) answered() {
	if k.missing--; k.missing == 0 {
		k.e.close()
		k.done()
	}
}

// unheard tells the loops where others redirect to this client that it goes.
func (s *session) unheard() {
	for o := range s.heardOn {
		o.nl.Post(func() { o.deafen(s.id, nil) })
	}
	s.heardOn = nil
}

// quitHeard lets the backend know that the client goes before it is answered:
// whoever sees the answer may rely on that.
func (s *session) quitHeard(r *request) {
	l, id := s.loop, s.id
	missing := len(s.heardOn)
	for o := range s.heardOn {
		o.nl.Post(func() {
			o.deafen(id, func() {
				l.nl.Post(func() {
					if missing--; missing > 0 {
						return
					}
					if r.sess != nil {
						r.sess.closing = true
					}
					l.keep(r, replyOK)
				})
			})
		})
	}
	s.heardOn = nil
}
