package proxy

import (
	"bytes"
	"net"
	"strings"

	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// intercept deals with error replies that are about the backend's state rather
// than about the command. It reports whether it has taken care of r, which has
// left its lane and carries its own bytes.
func (l *loop) intercept(ln *lane, r *request, reply []byte) bool {
	switch {
	case r.place().late:
		return false
	case r.block != nil:
		return r.block.intercept(l, ln, r, string(reply[1:len(reply)-2]))
	case r.alone && !r.private, onlyQueued(r):
		return false
	}
	line := reply[1 : len(reply)-2]
	word := firstWord(line)
	if r.from != masterOnly && ln.node.replica != nil && unfitSays(word) {
		if l.readAgain(ln, r) {
			return true
		}
		if r.from == replicaOnly {
			return false
		}
	}
	if refusesCommands(word) && !(l.resends && elsewhere(line)) {
		l.doubt()
	}
	switch string(word) {
	case "MOVED":
		return l.clusters && l.moved(ln, r, string(line))
	case "ASK":
		ln.node.movedAt = l.now()
		return l.clusters && l.follow(ln, r, string(line), true)
	case "TRYAGAIN":
		if l.clusters {
			ln.node.movedAt = l.now()
			l.srv.opts.Topology.Refresh("TRYAGAIN from " + ln.node.addr)
			return l.later(r, string(line))
		}
	case "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY":
		if !l.resends {
			l.srv.opts.Topology.Refresh(string(word) + " from " + ln.node.addr) // its name may lead elsewhere by now
			return false
		}
		return l.sitOut(ln.node, r, string(line))
	case "UNBLOCKED":
		// A master that becomes a replica lets go of those who block on it (disconnectAllBlockedClients).
		return l.resends && bytes.HasPrefix(line, []byte("UNBLOCKED force unblock ")) && l.later(r, string(line))
	case "NOSCRIPT":
		return l.heal(ln, r, line)
	case "NOAUTH":
		if string(line) != "NOAUTH Authentication required." {
			return false // a script's own words
		}
		if ln.key.as != nil { // the client's own matter
			return false
		}
		l.notLoggedIn(r, ln.node, string(line))
		return true
	}
	return false
}

// notLoggedIn answers r when the backend wants a password that the proxy does not
// have. The backend's own words would ask the client to log in.
func (l *loop) notLoggedIn(r *request, n *node, line string) {
	l.abort(r, "ERR cosky-proxy is not logged in to backend "+n.addr+" ("+line+"): check the proxy's credentials")
}

func script(r *request) bool { return r.cmd != nil && r.cmd.Script }

// redirectTarget parses "MOVED slot host:port" and the like, where IPv6 addresses have no brackets. An empty
// host means the host of the node that answered (cluster-preferred-endpoint-type unknown-endpoint);
// "?" is that of a node without a hostname in a cluster that prefers hostnames.
func redirectTarget(from, line string) (host, port string) {
	_, rest, _ := strings.Cut(line, " ")
	_, addr, _ := strings.Cut(rest, " ")
	colon := strings.LastIndexByte(addr, ':')
	if colon < 0 {
		return "", ""
	}
	host, port = strings.Trim(addr[:colon], "[]"), addr[colon+1:]
	if host == "" {
		host, _, _ = net.SplitHostPort(from)
	}
	return host, port
}

// redirected is the address that a redirect leads to: known is false when only the topology can
// tell, and that does not yet. addr is empty when the line makes no sense.
func (l *loop) redirected(from, line string) (addr string, known bool) {
	host, port := redirectTarget(from, line)
	if host == "" {
		return "", false
	}
	if host != "?" {
		return net.JoinHostPort(host, port), true
	}
	for i := range l.topo.Shards {
		if n := l.topo.Shards[i].Primary; strings.HasSuffix(n.Addr, ":"+port) {
			if known {
				return n.Addr, false // two of them
			}
			addr, known = n.Addr, true
		}
	}
	if !known {
		addr = ":" + port
	}
	return addr, known
}

// moved follows a MOVED: the topology is behind, so a new one is asked for, and
// this command goes to the node named right away. Others behind it get the same
// answer from the same node and follow in order.
func (l *loop) moved(from *lane, r *request, line string) bool {
	l.srv.opts.Topology.Refresh("MOVED from " + from.node.addr)
	return l.follow(from, r, line, false)
}

// follow sends r to the node that a redirect names; ASK is for this command only,
// with ASKING before it. It takes care of r whatever happens: clients that know
// of no cluster have no use for a redirect.
func (l *loop) follow(from *lane, r *request, line string, asking bool) bool {
	addr, known := l.redirected(from.node.addr, line)
	// What a node that is not the owner yet is asked to watch or to track, it would not: ASKING
	// goes with the very next command, and so does CLIENT CACHING.
	waits := r.caching == "YES" || watches(r)
	switch {
	case addr == "":
		return false
	case r.client() == nil: // nobody waits any more
		l.drop(r)
		return true
	case len(r.raw) == 0:
		l.abort(r, "ERR cosky-proxy passed the request on while it arrived and cannot send it again, try again ("+line+")")
		return true
	case waits && asking, !known, int(r.retries) >= l.srv.opts.Upstream.MaxRedirects:
		if cause := "ERR cosky-proxy finds no node that serves the request, the last one said " + line; !l.later(r, cause) {
			l.abort(r, cause)
		}
		return true
	}
	l.redirect(r, addr, asking, errOvertaken(line))
	return true
}

// redirect sends r to the node at addr as soon as its order allows. line is its answer if that never comes about.
func (l *loop) redirect(r *request, addr string, asking bool, line string) {
	l.stats.Redirects++
	r.retries++
	l.postpone(r, &resend{why: redirected, target: addr, asking: asking, line: line})
}

// sendKept sends a request that was kept, with the whole of its block if it ends one. ASKING holds for
// the next command or, before MULTI, for the block (Redis' resetClient keeps it).
func (ln *lane) sendKept(r *request, asking bool) {
	ln.prepare(r)
	if asking { // CLIENT CACHING would undo it; to track more than was asked for does no harm
		r.caching = ""
		ln.note("ASKING")
	}
	if r.block != nil {
		ln.optFor(r)
		r.block.launch(ln.loop, ln)
		return
	}
	ln.send(r, r.raw)
}

// prepare makes sure that the scripts r calls are known on another connection than
// the one it was meant for.
func (ln *lane) prepare(r *request) {
	if r.block != nil {
		for _, sha := range r.block.tx.shas {
			ln.teach(sha)
		}
		return
	}
	if r.cmd != nil && byDigest(r.cmd) && len(r.raw) > 0 {
		ln.teach(ln.loop.parse(r.raw)[1])
	}
}

// laneFor is the connection to n that r may be sent on again: a shared one, or
// for a private request a pin, which takes the place of the one it was sent on. All
// requests of a session that has a home travel there.
func (l *loop) laneFor(r *request, n *node) (ln *lane, cause string) {
	key := r.laneKey()
	s := r.sess
	switch c := r.client(); {
	case r.private && watches(r):
		return s.rewatch(n)
	case c != nil && c.home != nil:
		return c.home.lane(c, n)
	case !r.private:
		return n.lane(key)
	}
	if ln, cause = n.pin(s, key); cause == "" {
		s.pin, s.patient, ln.leaving = ln, r.cmd.Has(command.Blocking), true
	}
	return ln, cause
}

// note sends a command whose reply interests nobody. It is not worth repeating:
// what it prepares has a way to go on without it.
func (ln *lane) note(args ...string) {
	r := ln.loop.newRequest(nil, nil)
	r.sink, r.alone = ignore{}, true
	ln.loop.enc = resp.AppendCommand(ln.loop.enc[:0], args...)
	ln.send(r, ln.loop.enc)
}

// ignore drops a reply.
type ignore struct{}

func (ignore) deliver(l *loop, r *request, _ []byte) { l.release(r) }

// sitOut repeats r, which a node has refused because of the state that it is in, until it has another state or
// r goes to another node. A script may have said it of its own accord, after it has written, unless these are Redis' own words
// about a command of a script: then none can have written anything.
func (l *loop) sitOut(n *node, r *request, line string) bool {
	n.movedAt = l.now()
	l.srv.opts.Topology.Refresh(line[:strings.IndexByte(line+" ", ' ')] + " from " + n.addr)
	if script(r) && strings.HasPrefix(line, "READONLY ") && !strings.HasPrefix(line, "READONLY You can't write against a read only replica. script: ") {
		return false
	}
	return n.noteRefusal(l.now()) && l.later(r, line)
}

// elsewhere reports whether an error line says that the command was not executed,
// because its keys are not there (now).
func elsewhere[T string | []byte](line T) bool {
	for i := range len(line) {
		if line[i] != ' ' {
			continue
		}
		switch string(line[:i]) {
		case "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "READONLY", "LOADING", "MASTERDOWN":
			return true
		}
		return false
	}
	return false
}

// heal answers NOSCRIPT for a script that went through this proxy before: the
// node has lost it or never had it, so it is loaded there and the call repeated.
func (l *loop) heal(ln *lane, r *request, line []byte) bool {
	if !script(r) || len(r.raw) == 0 || int(r.retries) >= l.srv.opts.Upstream.MaxRedirects {
		return false
	}
	args := l.parse(r.raw)
	text := l.srv.scripts.text(args[1])
	if text == "" || ln.closed {
		return false
	}
	ln.note("SCRIPT", "LOAD", text)
	r.retries++
	l.stats.ScriptsHealed++
	l.postpone(r, &resend{why: unsent, target: ln.node.addr, line: string(line)})
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
