package proxy

import (
	"bytes"
	"fmt"
	"time"

	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// monitor is a session's MONITOR: a connection to every master that does nothing
// else, whose lines go to the client as they come.
type monitor struct {
	s       *session
	lanes   []*lane
	started bool // the client has been told so: nothing is shown before, although some masters show it already
}

// startMonitor answers as Redis' monitorCommand: a second one says nothing at all.
func (s *session) startMonitor(cmd *command.Command, _ [][]byte, raw []byte) bool {
	if s.monitor != nil {
		return true
	}
	if s.drain() {
		return false
	}
	l := s.loop
	m := &monitor{s: s}
	s.monitor = m
	l.monitors[s] = struct{}{}
	l.srv.monitored(1)
	targets := l.everyShard()
	for _, t := range targets {
		n, cause := l.owner(t.slot)
		var ln *lane
		if cause == "" {
			ln, cause = n.private(s, laneKey{as: s.as})
		}
		if cause != "" {
			s.stopMonitor()
			s.refuse(cause)
			return true
		}
		ln.monitor, ln.strayed = m, true
		m.lanes = append(m.lanes, ln)
	}
	sc := s.open(cmd, firstAnswer, len(targets), l.effect.reset())
	s.exclusive = true
	p := sc.parent
	sc.after = func(_ *loop, accepted bool, reply []byte) []byte {
		if s := p.sess; s != nil && !accepted {
			s.stopMonitor()
		}
		m.started = accepted
		return reply
	}
	for i, ln := range m.lanes {
		sc.launch(l, ln, i, raw, targets[i])
	}
	return true
}

func (s *session) stopMonitor() {
	m := s.monitor
	if m == nil {
		return
	}
	s.monitor = nil
	delete(s.loop.monitors, s)
	s.loop.srv.monitored(-1)
	for _, ln := range m.lanes {
		ln.owner, ln.monitor = nil, nil
		ln.fail("")
	}
}

// outside reports whether a client that monitors may not execute cmd: Redis treats
// it as a replica.
func (s *session) outside(cmd *command.Command) bool {
	return cmd.MayWrite() || cmd.Has(command.ReadOnly) || cmd.Name == "exec" && s.tx != nil && s.tx.touchesKeys()
}

const errOutside = "ERR Replica can't interact with the keyspace"

func (tx *transaction) touchesKeys() bool {
	for _, cmd := range tx.cmds {
		if cmd.MayWrite() || cmd.Has(command.ReadOnly) {
			return true
		}
	}
	return false
}

// line passes a whole line on.
func (m *monitor) line(l *loop, line []byte) {
	if m.started && !l.housekeeping(line) {
		m.s.witness(line)
	}
}

// housekeeping reports whether a line of MONITOR is about what the proxy does of its
// own accord: logging in, finding out its connections' ids or what a command is, and
// proving that an invalidation stream is alive.
func (l *loop) housekeeping(line []byte) bool {
	_, rest, ok := bytes.Cut(line, []byte(" ["))
	if !ok {
		return false
	}
	origin, call, ok := bytes.Cut(rest, []byte("] "))
	if !ok {
		return false
	}
	_, addr, _ := bytes.Cut(origin, []byte{' '})
	kind, ours := l.srv.own.Load(string(addr))
	if !ours {
		return false
	}
	name, more, _ := bytes.Cut(bytes.TrimSuffix(call, []byte("\r\n")), []byte{' '})
	switch string(name) {
	case `"PING"`, `"HELLO"`, `"AUTH"`:
		return true
	case `"CLIENT"`:
		return bytes.HasPrefix(more, []byte(`"ID"`)) || kind == laneFetch
	case `"COMMAND"`: // about a name that no table has
		return bytes.HasPrefix(more, []byte(`"INFO"`))
	case `"PTTL"`, `"HPTTL"`, `"OBJECT"`, `"SELECT"`:
		return kind == laneFetch
	}
	return false
}

// monitored tells every loop that there are so many more clients that monitor.
func (s *Server) monitored(more int) {
	for _, o := range s.loops {
		o.nl.Post(func() { o.monitored += more })
	}
}

// dispatchShown executes a request while somebody monitors. What the proxy answers by
// itself is shown by the proxy; in which order with the backend's lines is open.
func (s *session) dispatchShown(req *resp.Request) bool {
	l := s.loop
	seq, queueing := l.seq, s.tx != nil && s.tx.queueing
	l.refused = false
	if !s.dispatch(req) {
		return false
	}
	cmd := s.lastCmd
	switch {
	case l.seq != seq || cmd == nil: // the backend shows it
	case len(req.Args) == 1 && (equalFold(req.Args[0], "EXEC") || equalFold(req.Args[0], "DISCARD")):
		if queueing && s.tx == nil {
			s.show([][]byte{[]byte("multi")})
		}
		s.show(req.Args)
	case l.refused, queueing, cmd.Name == "multi", cmd.Has(command.SkipMonitor), cmd.Has(command.Admin):
	case cmd.Name == "auth", cmd.Name == "hello" && len(req.Args) > 2:
		s.show(req.Args[:1]) // passwords are nobody's business
	default:
		s.show(req.Args)
	}
	return true
}

// show sends a line about a command to every client that monitors.
func (s *session) show(args [][]byte) {
	l := s.loop
	now := time.Now()
	line := fmt.Appendf(nil, "+%d.%06d [%d %s]", now.Unix(), now.Nanosecond()/1000, s.db, s.addr)
	for _, a := range args {
		line = appendQuoted(append(line, ' '), a)
	}
	line = append(line, "\r\n"...)
	for _, o := range l.srv.loops {
		if o == l {
			o.tell(line)
		} else {
			o.nl.Post(func() { o.tell(line) })
		}
	}
}

func (l *loop) tell(line []byte) {
	for s := range l.monitors {
		if s.monitor.started {
			s.witness(line)
		}
	}
}

// witness gives the session a line of MONITOR. CLIENT REPLY drops it like a reply (addReply in
// feedMonitors), other than messages.
func (s *session) witness(line []byte) {
	if !s.mute.on {
		s.emit(line)
	}
}

// appendQuoted quotes as Redis does (sdscatrepr).
func appendQuoted(b, arg []byte) []byte {
	b = append(b, '"')
	for _, c := range arg {
		switch {
		case c == '\\', c == '"':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, `\n`...)
		case c == '\r':
			b = append(b, `\r`...)
		case c == '\t':
			b = append(b, `\t`...)
		case c == '\a':
			b = append(b, `\a`...)
		case c == '\b':
			b = append(b, `\b`...)
		case c >= ' ' && c <= '~':
			b = append(b, c)
		default:
			b = fmt.Appendf(b, `\x%02x`, c)
		}
	}
	return append(b, '"')
}

// emit sends the client something that is no reply to a command, between replies
// only. A client that does not take it in time is cut off.
func (s *session) emit(b []byte) {
	s.writePush(b)
	s.checkMessages()
}
