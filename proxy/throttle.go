package proxy

import (
	"bytes"
	"net"

	"cosky-proxy/proxy/quota"
	"cosky-proxy/proxy/stats"
	"cosky-proxy/router/command"
)

// throttle is a loop's part in limits.rules. What is counted is shared by all loops; that takes
// a read lock for each namespace of a command, and atomics.
//
// A command is counted when it is dispatched, before it is queued or executed, and once: one
// that has to wait keeps its permit. It is in flight until its request ends, whoever waits for
// that: a blocking command as long as it blocks, one whose client has gone until the
// backend has answered. Commands between MULTI and EXEC are counted when they are queued, which
// takes no time; a refused one aborts the transaction, as every refused one does.
type throttle struct {
	// static
	book       *quota.Book
	namespaces bool // rules count by namespace
	uncounted  permit

	// loop-owned
	free  *permit
	found []*quota.Meter            // scratch of obtain
	seen  map[*quota.Meter]struct{} // scratch of obtain
}

// newThrottle returns nil when there are no rules.
func newThrottle(b *quota.Book) *throttle {
	if b == nil {
		return nil
	}
	return &throttle{book: b, namespaces: b.Counts(quota.Namespace), seen: make(map[*quota.Meter]struct{})}
}

// newQuotas returns nil when there are no rules.
func newQuotas(o *LimitOptions) *quota.Book {
	if len(o.Rules) == 0 {
		return nil
	}
	return quota.New(o.Rules, o.MaxNames)
}

// newLimitCounters has one for each rule.
func (s *Server) newLimitCounters() []stats.Limit {
	var list []stats.Limit
	for _, r := range s.opts.Limits.Rules {
		list = append(list, stats.Limit{Per: r.Per.String(), Match: r.Match})
	}
	return list
}

// permit is what a command that was let in has to give back.
type permit struct {
	meters []*quota.Meter // that count it as in flight
	next   *permit        // free list
}

// meters are those that count all commands of a session; nil: nothing counts.
type meters struct {
	connection, address, user *quota.Meter
	name                      string // of the user
}

// obtain counts the command the session is about to execute. refusal is an error line, empty
// when the command may go on.
func (s *session) obtain(cmd *command.Command, args [][]byte) (refusal string) {
	if !limited(cmd) {
		return ""
	}
	t := s.loop.throttle
	t.found = s.meter(t.found[:0])
	own := len(t.found)
	if t.namespaces {
		t.addNamespaces(s.loop, cmd, args)
	}
	refused, verdict := t.ask(s.loop.now())
	p := &t.uncounted
	if refused == nil {
		p = t.permit()
	}
	for _, m := range t.found[own:] {
		if refused != nil || !m.LimitsFlight() {
			m.Release()
		}
	}
	if refused != nil {
		return s.throttled(refused, verdict)
	}
	s.permit, s.fleeting = p, true
	return ""
}

// limited: commands about the connection itself are always let in, and so is what only gives
// something up. Without them a client could not help itself.
func limited(cmd *command.Command) bool {
	switch cmd.Name {
	case "ping", "echo":
		return true
	case "discard", "unwatch", "unsubscribe", "punsubscribe", "sunsubscribe":
		return false
	}
	return cmd.Categories&connectionCategory == 0
}

var connectionCategory = command.Category("connection")

// ask has every meter that was found count the command, or none count it as in flight. Those in front of the
// one that refuses for its rate have been charged: who is refused has asked all the same.
func (t *throttle) ask(now int64) (refused *quota.Meter, v quota.Verdict) {
	for i, m := range t.found {
		if m.LimitsFlight() && m.Enter() != quota.Granted {
			leave(t.found[:i])
			return m, quota.TooMany
		}
	}
	for _, m := range t.found {
		if v := m.Take(now); v != quota.Granted {
			leave(t.found)
			return m, v
		}
	}
	return nil, quota.Granted
}

func leave(ms []*quota.Meter) {
	for _, m := range ms {
		if m.LimitsFlight() {
			m.Leave()
		}
	}
}

// throttled counts a refusal and words it.
func (s *session) throttled(m *quota.Meter, v quota.Verdict) string {
	c := &s.loop.stats.Limits[m.Rule()]
	if v == quota.TooMany {
		c.TooMany++
	} else {
		c.TooFast++
	}
	return m.Refusal(v)
}

// permit is for the meters that were found.
func (t *throttle) permit() *permit {
	p := t.free
	for _, m := range t.found {
		if !m.LimitsFlight() {
			continue
		}
		if p == nil {
			p = new(permit)
		}
		p.meters = append(p.meters, m)
	}
	if p == nil || len(p.meters) == 0 {
		return &t.uncounted
	}
	if p == t.free {
		t.free = p.next
	}
	p.next = nil
	return p
}

// giveBack: the command has been answered.
func (t *throttle) giveBack(p *permit) {
	if p == &t.uncounted {
		return
	}
	for _, m := range p.meters {
		m.Leave()
		if m.Kind() == quota.Namespace {
			m.Release()
		}
	}
	clear(p.meters)
	p.meters, p.next = p.meters[:0], t.free
	t.free = p
}

// surrender gives back the permit of a command that was answered at once.
func (s *session) surrender() {
	s.loop.throttle.giveBack(s.permit)
	s.permit = nil
}

// meter appends what counts all commands of the session.
func (s *session) meter(found []*quota.Meter) []*quota.Meter {
	b := s.loop.throttle.book
	ms := s.meters
	if ms == nil {
		host, _, err := net.SplitHostPort(s.addr)
		if err != nil { // a Unix socket
			host = s.addr
		}
		ms = &meters{connection: b.Meter(quota.Connection, nil), address: b.Meter(quota.Address, []byte(host))}
		s.meters = ms
	}
	if ms.user == nil || ms.name != s.user {
		if ms.user != nil {
			ms.user.Release()
		}
		ms.user, ms.name = b.Meter(quota.User, []byte(s.user)), s.user
	}
	for _, m := range [...]*quota.Meter{ms.connection, ms.address, ms.user} {
		if m != nil {
			found = append(found, m)
		}
	}
	return found
}

// unmeter lets go of what has counted the session's commands.
func (s *session) unmeter() {
	if s.permit != nil {
		s.surrender()
	}
	if s.meters == nil {
		return
	}
	for _, m := range [...]*quota.Meter{s.meters.connection, s.meters.address, s.meters.user} {
		if m != nil {
			m.Release()
		}
	}
	s.meters = nil
}

// addNamespaces adds what counts commands on the keys of cmd, each once.
func (t *throttle) addNamespaces(l *loop, cmd *command.Command, args [][]byte) {
	if cmd.SingleKey {
		if cmd.KeyPos < len(args) { // else the rest is still on its way
			t.addNamespace(args[cmd.KeyPos])
		}
		return
	}
	l.keys, _ = cmd.Keys(args, l.keys[:0]) // what is wrong with them will be said
	for _, k := range l.keys {
		n := len(t.found)
		t.addNamespace(args[k])
		if len(t.found) == n {
			continue
		}
		m := t.found[n]
		if _, again := t.seen[m]; again {
			m.Release()
			t.found = t.found[:n]
		}
		t.seen[m] = struct{}{}
	}
	clear(t.seen)
}

func (t *throttle) addNamespace(key []byte) {
	if m := t.book.Meter(quota.Namespace, namespaceOf(key)); m != nil {
		t.found = append(t.found, m)
	}
}

// namespaceOf is what stands before the first colon of a key, as in keys of CoSky; of a key
// without one, nothing.
func namespaceOf(key []byte) []byte {
	return key[:max(bytes.IndexByte(key, ':'), 0)]
}
