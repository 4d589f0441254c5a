package proxy

import (
	"bytes"
	"strings"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/proxy/resp"
)

// intercept deals with error replies that are about the backend's state rather
// than about the command. It reports whether it has taken care of r, which has
// left its lane and carries its own bytes.
func (l *loop) intercept(ln *lane, r *request, reply []byte) bool {
	word, rest, _ := bytes.Cut(reply[1:len(reply)-2], []byte{' '})
	switch string(word) {
	case "MOVED":
		return l.clusters && l.moved(ln, r, rest)
	case "ASK":
		return l.clusters && l.asked(ln, r, rest)
	case "TRYAGAIN", "CLUSTERDOWN":
		if l.clusters {
			l.srv.opts.Topology.Refresh(string(word) + " from " + ln.node.addr)
			return l.later(r)
		}
	case "READONLY":
		if l.srv.opts.Backend.Mode != cluster.Standalone && !script(r) {
			l.srv.opts.Topology.Refresh("READONLY from " + ln.node.addr)
			return l.later(r)
		}
	case "NOSCRIPT":
		return l.heal(ln, r)
	case "NOAUTH":
		l.abort(r, "ERR cosky-proxy is not logged in to backend "+ln.node.addr+" ("+string(reply[1:len(reply)-2])+"): check the proxy's credentials")
		return true
	}
	return false
}

func script(r *request) bool { return r.cmd != nil && r.cmd.Script }

// redirectTarget parses "slot host:port". An empty host means the host of the
// node that answered (cluster-preferred-endpoint-type unknown-endpoint).
func redirectTarget(from string, rest []byte) string {
	_, addr, ok := strings.Cut(string(rest), " ")
	if !ok {
		return ""
	}
	if strings.HasPrefix(addr, ":") {
		host := from[:strings.LastIndexByte(from, ':')]
		return host + addr
	}
	return addr
}

// moved follows a MOVED: the topology is behind, so a new one is asked for, and
// this command goes to the node named right away. Others behind it get the same
// answer from the same node and follow in order.
func (l *loop) moved(ln *lane, r *request, rest []byte) bool {
	addr := redirectTarget(ln.node.addr, rest)
	l.srv.opts.Topology.Refresh("MOVED from " + ln.node.addr)
	return l.follow(r, addr, false)
}

// asked follows an ASK: this command only, with ASKING before it.
func (l *loop) asked(ln *lane, r *request, rest []byte) bool {
	return l.follow(r, redirectTarget(ln.node.addr, rest), true)
}

func (l *loop) follow(r *request, addr string, asking bool) bool {
	if addr == "" || len(r.raw) == 0 || int(r.retries) >= l.srv.opts.Upstream.MaxRedirects {
		return false
	}
	ln, cause := l.node(addr).lane(laneKey{r.db, r.resp3})
	if cause != "" {
		l.abort(r, cause)
		return true
	}
	l.stats.Redirects++
	r.retries++
	if asking {
		ln.note("ASKING")
	}
	ln.send(r, r.raw)
	return true
}

// note sends a command whose reply interests nobody.
func (ln *lane) note(args ...string) {
	r := ln.loop.newRequest(nil, nil)
	r.sink = ignore{}
	ln.loop.enc = resp.AppendCommand(ln.loop.enc[:0], args...)
	ln.send(r, ln.loop.enc)
}

// ignore drops a reply.
type ignore struct{}

func (ignore) deliver(l *loop, r *request, _ []byte) { l.release(r) }

// Back-off between repeats of a command whose slot is on the move.
const (
	repeatFirst = 10 * time.Millisecond
	repeatMax   = 500 * time.Millisecond
)

// later sends r again after a while, as long as its time allows. Its session
// sends nothing new meanwhile, so that nothing overtakes it.
func (l *loop) later(r *request) bool {
	now := l.now()
	if r.deadline == 0 {
		r.deadline = now + int64(l.srv.opts.Upstream.Timeout)
	}
	if len(r.raw) == 0 || now >= r.deadline {
		return false
	}
	if s := r.client(); s != nil {
		s.exclusive = true
	}
	wait := min(repeatFirst<<min(r.retries, 8), repeatMax)
	r.retries = min(r.retries+1, 200)
	l.stats.Retries++
	l.nl.AfterFunc(wait, func() { l.repeat(r) })
	return true
}

// client is the session that waits for r, directly or through its scatter.
func (r *request) client() *session {
	if sc, ok := r.sink.(*scatter); ok {
		return sc.parent.sess
	}
	return r.sess
}

func (l *loop) repeat(r *request) {
	if r.sess == nil && r.sink == nil {
		l.settle(r)
		l.release(r)
		return
	}
	n, cause := l.owner(r.slot)
	if cause == "" {
		var ln *lane
		if ln, cause = n.lane(laneKey{r.db, r.resp3}); cause == "" {
			ln.send(r, r.raw)
			return
		}
	}
	if !l.later(r) {
		l.abort(r, cause)
	}
}

// heal answers NOSCRIPT for a script that went through this proxy before: the
// node has lost it or never had it, so it is loaded there and the call repeated.
func (l *loop) heal(ln *lane, r *request) bool {
	if !script(r) || len(r.raw) == 0 || int(r.retries) >= l.srv.opts.Upstream.MaxRedirects {
		return false
	}
	args := l.parse(r.raw)
	text := l.srv.scripts.text(args[1])
	if text == "" || ln.closed {
		return false
	}
	r.retries++
	l.stats.ScriptsHealed++
	ln.note("SCRIPT", "LOAD", text)
	ln.send(r, r.raw)
	return true
}

// parse looks again at a request that was sent before.
func (l *loop) parse(raw []byte) [][]byte {
	var p resp.Parser
	n, err := p.Next(raw, &l.srv.opts.Protocol, &l.own)
	if err != nil || n != len(raw) {
		panic("BUG: a stored request does not parse")
	}
	return l.own.Args
}
