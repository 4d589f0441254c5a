package proxy

import (
	"bytes"

	"cosky-proxy/proxy/resp"
	"cosky-proxy/router"
	"cosky-proxy/router/command"
)

// replicated answers WAIT and WAITAOF. Redis waits for the replication offset of the
// last command of the connection that asks (processCommand: c->woff), so the connection is
// a private one, on which a PING behind everything this client was answered takes the
// present offset. On a cluster that is so on every master, and the worst answer counts.
func (s *session) replicated(cmd *command.Command, args [][]byte, raw []byte) bool {
	l := s.loop
	if s.drain() {
		return false
	}
	targets := l.everyShard()
	lanes := make([]*lane, 0, len(targets))
	for _, t := range targets {
		n, cause := l.owner(t.slot)
		var ln *lane
		if cause == "" {
			ln, cause = s.waitOn(n)
		}
		if cause != "" {
			s.unwait()
			s.refuse(cause)
			return true
		}
		lanes = append(lanes, ln)
	}
	sc := s.open(cmd, leastOf, len(lanes), l.effect.reset())
	s.exclusive, s.patient, s.blocksFor = true, true, blockTime(cmd, args)
	for i, ln := range lanes {
		ln.note("PING")
		sc.launch(l, ln, i, raw, targets[i])
	}
	return true
}

// waitOn is the private connection to n that the session waits on: what it holds
// there, or a pin.
func (s *session) waitOn(n *node) (ln *lane, cause string) {
	if s.tx != nil && s.tx.pin != nil && s.tx.pin.node == n {
		return s.tx.pin, ""
	}
	if ln, cause = s.lease(n); cause != "" {
		return nil, cause
	}
	if ln.home == nil {
		ln.leaving = true
		s.waiting = append(s.waiting, ln)
	}
	return ln, ""
}

// leastOf merges what several masters answer to WAIT (a number) or WAITAOF (two): the
// smallest of each.
func leastOf(a *router.Answers) []byte {
	least := firstAnswer(a)
	if least[0] == '-' {
		return least
	}
	numbers := countsOf(least)
	for _, r := range a.Replies {
		for i, n := range countsOf(r) {
			numbers[i] = min(numbers[i], n)
		}
	}
	var out []byte
	if least[0] == '*' {
		out = resp.AppendArray(out, len(numbers))
	}
	for _, n := range numbers {
		out = resp.AppendInt(out, n)
	}
	return out
}

// countsOf reads an integer or a flat array of integers.
func countsOf(reply []byte) (ns []int64) {
	for _, line := range bytes.Split(reply, []byte("\r\n")) {
		if len(line) > 0 && line[0] == ':' {
			_, n, _ := resp.ReadHeader(append(line[:len(line):len(line)], "\r\n"...))
			ns = append(ns, n)
		}
	}
	return ns
}
