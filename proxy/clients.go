package proxy

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// CLIENT is about the proxy's own clients, on whichever loop they live. What a
// command asks of other loops is collected there and answered by the client's own.

func (s *session) clientID(cmd *command.Command, _ [][]byte, _ []byte) bool {
	return s.answer(cmd, func(b []byte) []byte { return resp.AppendInt(b, s.id) })
}

func (s *session) clientGetName(cmd *command.Command, _ [][]byte, _ []byte) bool {
	return s.answer(cmd, func(b []byte) []byte {
		if s.name == "" {
			return s.appendNull(b)
		}
		return appendString(b, s.name)
	})
}

func (s *session) clientSetName(cmd *command.Command, args [][]byte, _ []byte) bool {
	if !printable(args[2]) {
		s.refuse(errClientName)
		return true
	}
	s.rename(&s.name, args[2])
	return s.ok(cmd)
}

// rename changes one of the client's names.
func (s *session) rename(p *string, to []byte) {
	s.keep(len(to) - len(*p))
	*p = string(to)
}

func (s *session) clientSetInfo(cmd *command.Command, args [][]byte, _ []byte) bool {
	attr, value := args[2], args[3]
	switch {
	case !equalFold(attr, "LIB-NAME") && !equalFold(attr, "LIB-VER"):
		s.errorf("ERR Unrecognized option '%s'", attr)
		return true
	case !printable(value):
		s.errorf("ERR %s cannot contain spaces, newlines or special characters.", bytes.ToLower(attr))
		return true
	case equalFold(attr, "LIB-NAME"):
		s.rename(&s.library, value)
	default:
		s.rename(&s.libver, value)
	}
	return s.ok(cmd)
}

// noEvict: no client is evicted here, so there is nothing to exempt one from.
func (s *session) noEvict(cmd *command.Command, args [][]byte, _ []byte) bool {
	on := equalFold(args[2], "ON")
	if !on && !equalFold(args[2], "OFF") {
		s.refuse("ERR syntax error")
		return true
	}
	s.unevictable = on
	return s.ok(cmd)
}

// clientAlone answers CLIENT without a subcommand, or with one that has no meaning
// through a proxy.
func (s *session) clientAlone(cmd *command.Command, args [][]byte, _ []byte) bool {
	if cmd.Parent == nil {
		s.refuse("ERR wrong number of arguments for 'client' command")
		return true
	}
	s.errorf("ERR 'CLIENT %s' is not supported by cosky-proxy: it is about one connection to one server", bytes.ToUpper(args[1]))
	return true
}

func (s *session) clientInfo(cmd *command.Command, _ [][]byte, raw []byte) bool {
	line := s.describe(nil, s.loop.now(), len(raw))
	return s.answer(cmd, func(b []byte) []byte { return s.appendText(b, line) })
}

// describe appends the session's line of CLIENT LIST; pending is the length of what
// it has sent and is not executed yet.
func (s *session) describe(b []byte, now int64, pending int) []byte {
	last := "NULL"
	if s.lastCmd != nil {
		last = s.lastCmd.Name
	}
	proto, multi, watching := 2, -1, 0
	if s.resp3 {
		proto = 3
	}
	if s.tx != nil {
		watching = s.tx.watches
		if s.tx.queueing {
			multi = len(s.tx.cmds)
		}
	}
	watch := ""
	if atLeast(s.loop.srv.version(), 7, 4) {
		watch = fmt.Sprintf(" watch=%d", watching)
	}
	channels, patterns, shards := s.subscribed()
	unread := s.conn.Buffered()
	return fmt.Appendf(b, "id=%d addr=%s laddr=%s fd=%d name=%s age=%d idle=%d flags=%s db=%d sub=%d psub=%d ssub=%d multi=%d%s"+
		" qbuf=%d qbuf-free=0 argv-mem=0 multi-mem=%d rbs=0 rbp=0 obl=%d oll=0 omem=0 tot-mem=%d events=r cmd=%s user=%s redir=%d resp=%d lib-name=%s lib-ver=%s\n",
		s.id, s.addr, s.via, s.id, s.name, (now-s.since)/1e9, (now-s.lastActive())/1e9, s.flags(), s.db, channels, patterns, shards, multi, watch,
		pending, s.queuedBytes(), unread, pending+s.claims()+s.backlog(), last, s.user, s.redirection(), proto, s.library, s.libver)
}

func (s *session) queuedBytes() int {
	if s.tx == nil {
		return 0
	}
	return len(s.tx.block)
}

// flags are those of Redis' catClientInfoString, as far as they exist here.
func (s *session) flags() string {
	t := s.tracking()
	var f []byte
	for _, x := range []struct {
		flag byte
		set  bool
	}{
		{'O', s.monitor != nil},
		{'P', s.subscriptions() > 0},
		{'x', s.tx != nil && s.tx.queueing},
		{'b', s.blocked()},
		{'t', t != nil},
		{'R', t != nil && t.broken},
		{'B', t != nil && t.bcast},
		{'c', s.closing},
		{'U', strings.HasPrefix(s.via, "unix:")},
		{'e', s.unevictable},
		{'T', s.home != nil && s.home.has(topicNoTouch)},
	} {
		if x.set {
			f = append(f, x.flag)
		}
	}
	if len(f) == 0 {
		return "N"
	}
	return string(f)
}

// blocked reports whether the session waits in a blocking command or for the end of
// a pause.
func (s *session) blocked() bool {
	return s.wait == waitPause || s.inflight > 0 && s.exclusive && s.patient && s.upload == nil
}

// clientType is Redis' getClientType, of which clients of a proxy know two.
type clientType string

const (
	clientNormal clientType = "normal"
	clientPubSub clientType = "pubsub"
)

func (s *session) clientType() clientType {
	if s.subscriptions() > 0 {
		return clientPubSub
	}
	return clientNormal
}

// clientTypeNamed reads the argument of TYPE, problem is Redis' error line.
func clientTypeNamed(b []byte) (t clientType, problem string) {
	switch name := strings.ToLower(string(b)); name {
	case "normal", "pubsub", "master", "replica":
		return clientType(name), ""
	case "slave":
		return "replica", ""
	}
	return "", fmt.Sprintf("ERR Unknown client type '%s'", b)
}

// listed is one line of CLIENT LIST.
type listed struct {
	id   int64
	line []byte
}

func (s *session) clientList(cmd *command.Command, args [][]byte, raw []byte) bool {
	var kind clientType
	var ids []int64
	problem := ""
	switch {
	case len(args) == 4 && equalFold(args[2], "TYPE"):
		kind, problem = clientTypeNamed(args[3])
	case len(args) > 3 && equalFold(args[2], "ID"):
		if ids, problem = clientIDs(args[3:]); problem == "" && ids == nil {
			ids = []int64{}
		}
	case len(args) != 2:
		problem = "ERR syntax error"
	}
	if problem != "" {
		s.refuse(problem)
		return true
	}
	r, ready := s.promise(cmd)
	if !ready {
		return false
	}
	l, size := s.loop, len(raw)
	gather(l, func(o *loop) (lines []listed) {
		for c := range o.sessions {
			if kind != "" && c.clientType() != kind || ids != nil && !slices.Contains(ids, c.id) {
				continue
			}
			pending := c.conn.Unconsumed()
			if c == s {
				pending = size
			}
			lines = append(lines, listed{c.id, c.describe(nil, o.now(), pending)})
		}
		return lines
	}, func(parts [][]listed) {
		l.keep(r, r.appendText(nil, arrange(slices.Concat(parts...), ids)))
	})
	return true
}

// clientIDs reads the arguments of ID; problem is Redis' error line.
func clientIDs(args [][]byte) (ids []int64, problem string) {
	for _, a := range args {
		id, ok := integer(a)
		if !ok {
			return nil, "ERR Invalid client ID"
		}
		ids = append(ids, id)
	}
	return ids, ""
}

// arrange joins the lines: the oldest client first, or as ids ask for them.
func arrange(lines []listed, ids []int64) (text []byte) {
	slices.SortFunc(lines, func(a, b listed) int { return cmp.Compare(a.id, b.id) })
	if ids == nil {
		for _, one := range lines {
			text = append(text, one.line...)
		}
		return text
	}
	for _, id := range ids {
		if i, found := slices.BinarySearchFunc(lines, id, func(e listed, id int64) int { return cmp.Compare(e.id, id) }); found {
			text = append(text, lines[i].line...)
		}
	}
	return text
}

// victims are the clients that a CLIENT KILL is about.
type victims struct {
	addr, via, user string
	kind            clientType
	id              int64 // 0: any
	age             int64 // seconds at least; 0: any
	skipMe          bool
}

func (v *victims) match(c, me *session, now int64) bool {
	switch {
	case v.addr != "" && c.addr != v.addr,
		v.via != "" && c.via != v.via,
		v.user != "" && c.user != v.user,
		v.kind != "" && c.clientType() != v.kind,
		v.id != 0 && c.id != v.id,
		v.age != 0 && (now-c.since)/1e9 < v.age,
		v.skipMe && c == me:
		return false
	}
	return true
}

// clientKill closes connections. The client that asks is answered before its own.
func (s *session) clientKill(cmd *command.Command, args [][]byte, _ []byte) bool {
	v, problem := s.loop.victims(args)
	if problem != "" {
		s.refuse(problem)
		return true
	}
	r, ready := s.promise(cmd)
	if !ready {
		return false
	}
	l, old := s.loop, len(args) == 3
	suicide := false
	gather(l, func(o *loop) (n int) {
		for c := range o.sessions {
			if !v.match(c, s, o.now()) {
				continue
			}
			n++
			if c == s {
				suicide = true // on this client's own loop, as done is
			} else {
				c.close("killed by CLIENT KILL")
			}
		}
		return n
	}, func(killed []int) {
		n := 0
		for _, k := range killed {
			n += k
		}
		switch {
		case !old:
			l.out = resp.AppendInt(l.out[:0], int64(n))
		case n == 0:
			l.out = append(l.out[:0], "-ERR No such client\r\n"...)
		default:
			l.out = append(l.out[:0], resp.OK...)
		}
		if suicide && r.sess != nil {
			r.sess.closing = true
		}
		l.keep(r, l.out)
	})
	return true
}

// victims reads the arguments of CLIENT KILL; problem is Redis' error line.
func (l *loop) victims(args [][]byte) (v victims, problem string) {
	if len(args) == 3 { // the old form
		return victims{addr: string(args[2])}, ""
	}
	v.skipMe = true
	for rest := args[2:]; len(rest) > 0; rest = rest[2:] {
		if len(rest) == 1 {
			return v, "ERR syntax error"
		}
		option, value := rest[0], rest[1]
		switch {
		case equalFold(option, "ID"):
			id, ok := integer(value)
			if !ok || id < 1 {
				return v, "ERR client-id should be greater than 0"
			}
			v.id = id
		case equalFold(option, "TYPE"):
			if v.kind, problem = clientTypeNamed(value); problem != "" {
				return v, problem
			}
		case equalFold(option, "ADDR"):
			v.addr = string(value)
		case equalFold(option, "LADDR"):
			v.via = string(value)
		case equalFold(option, "USER"):
			if !l.knowsUser(value) {
				return v, fmt.Sprintf("ERR No such user '%s'", value)
			}
			v.user = string(value)
		case equalFold(option, "SKIPME") && equalFold(value, "YES"):
			v.skipMe = true
		case equalFold(option, "SKIPME") && equalFold(value, "NO"):
			v.skipMe = false
		case equalFold(option, "MAXAGE") && atLeast(l.srv.version(), 7, 4):
			if v.age, problem = maxAge(value); problem != "" {
				return v, problem
			}
		default:
			return v, "ERR syntax error"
		}
	}
	return v, ""
}

func maxAge(b []byte) (age int64, problem string) {
	age, ok := integer(b)
	switch {
	case !ok:
		return 0, "ERR maxage is not an integer or out of range"
	case age < 1:
		return 0, "ERR maxage should be greater than 0"
	}
	return age, ""
}

// knowsUser reports whether a client can be logged in under this name.
func (l *loop) knowsUser(name []byte) bool {
	if users := l.srv.opts.Auth.Users; users != nil {
		return users.Lookup(name) != nil
	}
	return string(name) == defaultUser || l.guard != nil // the backend's users are not known
}

// promise is the present command's place in the reply queue; it is answered by keep,
// some time later. ready is false when the session has to wait first: until then
// what the answer tells may be out of date, or its own doing still to come.
func (s *session) promise(cmd *command.Command) (r *request, ready bool) {
	if s.captured == nil && s.drain() {
		return nil, false
	}
	l := s.loop
	r = l.newRequest(s, cmd)
	r.sentAt = l.now()
	if s.captured != nil {
		s.captured.promised(r)
		return r, true
	}
	s.exclusive = true
	s.enqueue(r)
	return r, true
}

// keep answers a promise.
func (l *loop) keep(r *request, reply []byte) {
	l.countReply(r.cmd, r.sentAt, reply[0] == '-')
	l.hand(r, reply)
}

// appendText appends text as Redis sends INFO and CLIENT LIST: a bulk string in
// RESP2, a verbatim string in RESP3.
func (r *request) appendText(b, text []byte) []byte {
	if r.resp3 {
		return resp.AppendVerbatim(b, "txt", text)
	}
	return resp.AppendBulk(b, text)
}

// gather runs f on every loop and hands the results to done on this one.
func gather[T any](l *loop, f func(*loop) T, done func(parts []T)) {
	loops := l.srv.loops
	parts, missing := make([]T, len(loops)), len(loops)
	for i, o := range loops {
		o.nl.Post(func() {
			part := f(o)
			l.nl.Post(func() {
				parts[i] = part
				if missing--; missing == 0 {
					done(parts)
				}
			})
		})
	}
}

// errClientSubcommand is what Redis says of arguments that no form of a subcommand takes.
func errClientSubcommand(args [][]byte) string {
	return fmt.Sprintf("ERR unknown subcommand or wrong number of arguments for '%s'. Try CLIENT HELP.", args[1])
}
