package proxy

import (
	"fmt"
	"time"

	"cosky-proxy/nearcache"
	"cosky-proxy/nearcache/lease"
	"cosky-proxy/proxy/mono"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/router/command"
)

// barrier is a COSKY.SYNC under way. It is passed when everything that lets this proxy serve
// from memory has been proven again by a question asked after the command arrived: each fetch
// lane of each loop and each stream of CoSky's events has answered a PING, behind every
// invalidation that its node had sent before; and in front of a cluster each master has been
// heard to own its slots still. So a read that begins afterwards is not older than what Redis had
// when the command arrived, whoever wrote it.
//
// A connection that breaks meanwhile takes what it covered with it, so no promise is broken then
// either. It is an error all the same: whoever waits for a proof is told when there is none.
type barrier struct {
	// static
	loop  *loop // of the client
	since int64 // when the command arrived (mono)

	// owned by loop
	r       *request // nil: answered
	timer   *netloop.Timer
	missing int
	problem string
}

// synchroniseAll answers COSKY.SYNC [timeout], in milliseconds; none and 0: upstream.timeout.
func (s *session) synchroniseAll(cmd *command.Command, args [][]byte, _ []byte) bool {
	timeout := s.loop.srv.opts.Upstream.Timeout
	switch {
	case len(args) > 2:
		s.refuse(cmd.ArityError())
		return true
	case len(args) == 2:
		ms, ok := integer(args[1])
		switch {
		case !ok, ms > int64(maxBarrier/time.Millisecond):
			s.refuse("ERR timeout is not an integer or out of range")
			return true
		case ms < 0:
			s.refuse("ERR timeout is negative")
			return true
		}
		if ms > 0 {
			timeout = time.Duration(ms) * time.Millisecond
		}
	}
	if s.loop.cache == nil { // nothing is served from memory
		return s.ok(cmd)
	}
	r, ready := s.promise(cmd)
	if !ready {
		return false
	}
	r.since = 0 // it has a time of its own
	b := &barrier{loop: s.loop, since: mono.Now(), r: r}
	b.timer = s.loop.nl.AfterFunc(timeout, func() {
		b.finish(fmt.Sprintf("ERR COSKY.SYNC timed out after %d ms: an invalidation stream has not answered", timeout.Milliseconds()))
	})
	b.start()
	return true
}

// maxBarrier is the longest timeout that makes sense to a timer.
const maxBarrier = 365 * 24 * time.Hour

func (b *barrier) start() {
	l := b.loop
	if !l.srv.tracks() || l.rules.anyBare() {
		// Events tell what CoSky's scripts have done, not what anybody else has, and some
		// rules do without any stream.
		l.cache.Bump(nearcache.All)
	}
	b.missing = 1
	for _, o := range l.srv.loops {
		b.missing++
		if o == l {
			o.prove(b.since, true, b.arrived)
		} else {
			o.nl.Post(func() {
				o.prove(b.since, false, func(problem string) { l.nl.Post(func() { b.arrived(problem) }) })
			})
		}
	}
	if es := l.srv.events; es != nil {
		for addr, st := range *es.streams.Load() {
			b.missing++
			st.Barrier(func(passed bool) {
				problem := ""
				if !passed {
					problem = deadStream(addr, "not connected")
				}
				l.nl.Post(func() { b.arrived(problem) })
			})
		}
	}
	b.arrived("")
}

func deadStream(addr, why string) string {
	return "ERR COSKY.SYNC found the invalidation stream of backend " + addr + " dead (" + why + "): what it covered is not served from memory any more, try again"
}

// arrived is one proof, or why there is none.
func (b *barrier) arrived(problem string) {
	if b.problem == "" {
		b.problem = problem
	}
	if b.missing--; b.missing == 0 {
		b.finish(b.problem)
	}
}

// finish answers once.
func (b *barrier) finish(problem string) {
	r := b.r
	if r == nil {
		return
	}
	b.r = nil
	b.timer.Stop()
	if problem == "" {
		b.loop.keep(r, replyOK)
		return
	}
	b.loop.keep(r, append(append([]byte{'-'}, problem...), '\r', '\n'))
}

// prove calls done when all of the loop's fetch lanes have answered a PING and their nodes have
// been vouched for since the moment since. reach: masters without a fetch lane have to answer,
// too, because one that is out of reach has no stream to be alive.
func (l *loop) prove(since int64, reach bool, done func(problem string)) {
	missing, found := 1, ""
	arrived := func(problem string) {
		if found == "" {
			found = problem
		}
		if missing--; missing == 0 {
			done(found)
		}
	}
	for _, n := range l.nodes {
		streams := 0
		for _, ln := range n.fetch {
			if ln.ready {
				streams++
				missing++
				ln.prove(arrived)
			}
		}
		if n.info == nil {
			continue
		}
		switch {
		case streams == 0 && reach:
			missing++
			if ln, cause := n.lane(laneKey{}); cause == "" {
				ln.prove(arrived)
			} else {
				arrived(cause)
			}
		case streams > 0 && n.info.Vouch != nil:
			missing++
			l.awaitProof(n.info.Vouch, since+int64(l.srv.opts.Cache.MaxStaleness), func() { arrived("") })
		}
	}
	arrived("")
}

// prove calls done when the lane has answered a PING, or will not.
func (ln *lane) prove(done func(problem string)) {
	p := &pong{ln: ln}
	p.done = func() {
		ln.loop.views.settle() // they have heard of every change, but not all show it yet
		if p.refusal == "" {
			done("")
		} else {
			done(deadStream(ln.node.addr, p.refusal))
		}
	}
	ln.ping(p)
}

// proofPoll is how often awaitProof looks: well below the interval of renewals.
const proofPoll = 5 * time.Millisecond

// awaitProof calls done when le has been renewed to until, or is not alive any more: then nothing is
// served that depends on it.
func (l *loop) awaitProof(le *lease.Lease, until int64, done func()) {
	if le.Until() >= until || !le.Alive(l.now()) {
		done()
		return
	}
	l.nl.AfterFunc(proofPoll, func() { l.awaitProof(le, until, done) })
}
