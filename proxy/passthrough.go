package proxy

import (
	"bytes"
	"fmt"
	"slices"

	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// passGuard leaves it to the backend who a client is and what it may do. What a client
// sends travels on connections that are logged in as the client is; AUTH is sent there,
// and the backend's answer is the verdict. A client that has not logged in travels on
// connections that have not either.
//
// What the proxy answers itself, above all from the near-cache, needs the backend's
// opinion, too: it is asked with ACL DRYRUN, over the proxy's own login, and believed for
// max_staleness. All of this belongs to the loop.
type passGuard struct {
	loop      *loop
	logins    map[login]*credential  // those that sessions have, or had not long ago
	anonymous *credential            // of clients that have not logged in
	openUntil int64                  // so long a client that connects needs no login, as far as is known (mono)
	openRules uint64                 // Server.rules at that time
	probing   []func(refusal string) // what waits for a probe under way
	travels   map[string]bool        // commands with a handler that passes them on
	opinions  opinions
}

// login is what a client presents.
type login struct {
	user, password string
	named          bool // AUTH user password, not AUTH password
}

// question is what a session waits for the answer of.
type question struct {
	about    matter
	as       *credential // that asks to be used, until it is or is not; of a login only
	refusal  string      // error line; empty: yes
	answered bool
}

// matter is what a question is about.
type matter uint8

const (
	aboutNewcomers matter = iota // what a new connection may do without a login
	aboutStrangers               // what those without a login may still do
	aboutLogin
	aboutProtocol
	aboutCommand
)

// questions are those about the command that a session is at, oldest first. Whenever one is
// answered the command begins anew, so it finds the answers it has got already, in the
// order in which it asked.
type questions struct {
	list []*question
	next int // of list, the first one that the command has not come to yet
}

// begin: the command comes, perhaps again.
func (qs *questions) begin() { qs.next = 0 }

// find returns the next question about m, nil when it has not been asked.
func (qs *questions) find(m matter) *question {
	for _, q := range qs.list[qs.next:] {
		if q.about == m {
			return q
		}
	}
	return nil
}

// ask appends a question.
func (qs *questions) ask(m matter) *question {
	q := &question{about: m}
	qs.list = append(qs.list, q)
	return q
}

// pass goes on behind q.
func (qs *questions) pass(q *question) { qs.next = slices.Index(qs.list, q) + 1 }

func newPassGuard(l *loop) *passGuard {
	g := &passGuard{
		loop: l, logins: make(map[login]*credential), anonymous: new(credential),
		travels: make(map[string]bool), opinions: opinions{loop: l, known: make(map[string]*opinion)},
	}
	for _, name := range []string{
		"ping", "config|set", "info", "watch", "publish", "spublish",
		"script|load", "script|exists", "script|flush", "scan", "keys", "debug", "client|no-touch",
	} {
		g.travels[name] = true
	}
	for _, name := range CacheableCommands() {
		g.travels[name] = true
	}
	return g
}

func (g *passGuard) welcome(s *session) {
	g.become(s, g.anonymous)
	s.vetted, s.stranger = false, true // as long as nobody has asked
}

func (g *passGuard) recognise(s *session) (refusal string, decided bool) {
	s.questions.begin()
	if refusal, decided = g.vet(s); refusal == errNoAuth { // it has to
		refusal = ""
	}
	return refusal, decided
}

// vet makes sure that s, which has not logged in, is no more than a new connection to the
// backend would be. Redis lets connections be that were there before a password was asked
// for, so those of earlier clients cannot tell. Connections on which nothing was allowed
// are as good as new ones.
func (g *passGuard) vet(s *session) (refusal string, decided bool) {
	if !s.vetted && !s.as.login {
		if refusal, decided = g.vetFirst(s); !decided || refusal != "" {
			return refusal, decided
		}
	}
	c := s.as
	if c.login || !c.guarded {
		return "", true
	}
	rules := g.loop.srv.rules.Load()
	if s.questions.find(aboutStrangers) != nil || g.loop.now() > c.askedUntil || c.askedRules != rules {
		refusal, _, decided = g.consult(s, aboutStrangers, func(q *question) {
			g.loop.put(laneKey{as: c}, [][]byte{[]byte("PING")}, func(reply []byte) { g.answer(s, q, c.tried(g, reply, rules)) })
		})
		if !decided || refusal != "" {
			return refusal, decided
		}
	}
	if s.stranger = c.shut; c.shut {
		return errNoAuth, true
	}
	return "", true
}

// tried notes what the backend answers to a command without a login. refusal says why it does not.
func (c *credential) tried(g *passGuard, reply []byte, rules uint64) (refusal string) {
	if bytes.HasPrefix(reply, []byte("-ERR cosky-proxy ")) {
		return string(reply[1 : len(reply)-2])
	}
	c.shut = bytes.HasPrefix(reply, []byte("-NOAUTH "))
	c.guarded = c.guarded || c.shut
	c.askedUntil, c.askedRules = g.loop.now()+int64(g.loop.srv.opts.Cache.MaxStaleness), rules
	return ""
}

func (g *passGuard) vetFirst(s *session) (refusal string, decided bool) {
	if s.questions.find(aboutNewcomers) != nil || !g.anonymous.guarded && (g.loop.now() > g.openUntil || g.openRules != g.loop.srv.rules.Load()) {
		refusal, _, decided = g.consult(s, aboutNewcomers, func(q *question) {
			g.probe(func(refusal string) { g.answer(s, q, refusal) })
		})
		if !decided || refusal != "" {
			return refusal, decided
		}
	}
	g.become(s, g.anonymous)
	s.vetted = true
	return "", true
}

// probe finds out what a new connection to the backend may do. When it may do nothing, those that
// come from now on are anonymous on connections which began like this one. refusal says why
// it cannot be found out.
func (g *passGuard) probe(then func(refusal string)) {
	if g.probing = append(g.probing, then); len(g.probing) > 1 {
		return
	}
	fresh, rules := new(credential), g.loop.srv.rules.Load()
	g.loop.put(laneKey{as: fresh}, [][]byte{[]byte("PING")}, func(reply []byte) {
		refusal := fresh.tried(g, reply, rules)
		if fresh.guarded {
			g.anonymous = fresh
		} else { // any other error than NOAUTH is about commands, not about who asks
			g.closeLanes(fresh)
		}
		if refusal == "" && !fresh.guarded {
			g.openUntil, g.openRules = fresh.askedUntil, rules
		}
		waiting := g.probing
		g.probing = nil
		for _, then := range waiting {
			then(refusal)
		}
	})
}

func (g *passGuard) leave(s *session) {
	for _, q := range s.questions.list {
		if q.as != nil {
			g.letGo(q.as)
		}
	}
	g.letGo(s.as)
}

// become gives s a login.
func (g *passGuard) become(s *session, c *credential) {
	if s.as != nil {
		g.letGo(s.as)
	}
	c.users++
	s.as, s.user, s.stranger = c, c.name(), false
}

// letGo notes that one less needs c.
func (g *passGuard) letGo(c *credential) {
	c.users--
	c.idleSince = g.loop.now()
	if c.users == 0 && !c.login && c != g.anonymous { // an earlier one
		g.closeLanes(c)
	}
}

// intern returns the credential of a login. When there are too many, one that nobody
// uses goes; c is nil when there is none.
func (g *passGuard) intern(id login) (c *credential, refusal string) {
	if c = g.logins[id]; c != nil {
		return c, ""
	}
	limit := g.loop.srv.opts.Auth.MaxCredentials
	if len(g.logins) >= limit && !g.evictIdle() {
		return nil, fmt.Sprintf("ERR cosky-proxy has connections for as many different logins as it may: all %d (auth.max_credentials) are in use", limit)
	}
	c = &credential{user: id.user, password: id.password, named: id.named, login: true, idleSince: g.loop.now()}
	g.logins[id] = c
	return c, ""
}

// evictIdle forgets the login that has been out of use for longest. False: all are in use.
func (g *passGuard) evictIdle() bool {
	var oldest login
	found := false
	for id, c := range g.logins {
		if c.users == 0 && (!found || c.idleSince < g.logins[oldest].idleSince) {
			oldest, found = id, true
		}
	}
	if found {
		g.forget(oldest)
	}
	return found
}

// forget closes the connections of a login that nobody uses.
func (g *passGuard) forget(id login) {
	c := g.logins[id]
	delete(g.logins, id)
	g.closeLanes(c)
}

func (g *passGuard) closeLanes(c *credential) {
	for _, n := range g.loop.nodes {
		for ln := range n.opened {
			switch {
			case ln.key.as != c || ln.owner != nil || ln.ear != nil:
			case ln.inflight.len == 0:
				ln.fail("")
			case ln.kind == laneShared:
				n.retire(ln)
			}
		}
	}
}

// tick closes what has not been used for long, and forgets old opinions.
func (g *passGuard) tick(now int64) {
	for id, c := range g.logins {
		if c.users == 0 && now-c.idleSince > int64(g.loop.srv.opts.Auth.IdleTimeout) {
			g.forget(id)
		}
	}
	g.opinions.expire(now)
}

// revoked: the backend does not accept c any more, although it did. A Redis that deletes a
// user disconnects its clients, so they are disconnected here.
func (l *loop) revoked(c *credential) {
	for s := range l.sessions {
		if s.as == c {
			s.close("the backend does not accept its login any more")
		}
	}
}

func (g *passGuard) login(s *session, resp3 bool, _, user, password []byte) (refusal string, decided bool) {
	refusal, as, decided := g.consult(s, aboutLogin, func(q *question) {
		c, refusal := g.intern(login{string(user), string(password), user != nil})
		if c == nil {
			g.answer(s, q, refusal)
			return
		}
		c.users++
		q.as = c
		g.verify(s, q, laneKey{resp3: resp3, as: c}, c.auth())
	})
	if as == nil {
		return refusal, decided
	}
	if refusal == "" {
		as.accepted = true
		s.reauthenticate(as)
		g.become(s, as)
	}
	g.letGo(as)
	if id := (login{as.user, as.password, as.named}); refusal != "" && as.users == 0 && g.logins[id] == as {
		g.forget(id)
	}
	return refusal, true
}

// consult asks a question and has s wait for the answer, with which its command comes
// again: then consult returns it. as is the credential that was asked for; it is the caller's
// from then on, once.
func (g *passGuard) consult(s *session, about matter, ask func(q *question)) (refusal string, as *credential, decided bool) {
	q := s.questions.find(about)
	if q == nil {
		if s.drain() {
			return "", nil, false
		}
		q = s.questions.ask(about)
		s.fleeting = true
		ask(q)
	}
	if !q.answered && s.overdue() {
		q.refusal, q.answered = s.heldUp.line, true
	}
	if !q.answered {
		s.holdUp(waitVerdict, g.loop.timeoutLine(""))
		return "", nil, false
	}
	s.questions.pass(q)
	as, q.as = q.as, nil
	return q.refusal, as, true
}

// answer ends the wait for q.
func (g *passGuard) answer(s *session, q *question, refusal string) {
	q.refusal, q.answered = refusal, true
	if s.wait == waitVerdict {
		s.resume()
	}
}

// verify sends a command on a connection of a client's login: how the connection's own
// login ends and what the command is answered is the verdict.
func (g *passGuard) verify(s *session, q *question, key laneKey, args []string) {
	var call [][]byte
	for _, a := range args {
		call = append(call, []byte(a))
	}
	g.loop.put(key, call, func(reply []byte) {
		refusal := ""
		if reply[0] == '-' {
			refusal = string(reply[1 : len(reply)-2])
		}
		g.answer(s, q, refusal)
	})
}

func (g *passGuard) greet(s *session, resp3 bool) (refusal string, decided bool) {
	if s.as.login {
		return "", true
	}
	switch refusal, decided = g.vet(s); {
	case refusal == errNoAuth:
		return errNoAuthHello, true
	case !decided, refusal != "":
		return refusal, decided
	}
	proto := "2"
	if resp3 {
		proto = "3"
	}
	refusal, _, decided = g.consult(s, aboutProtocol, func(q *question) { g.verify(s, q, laneKey{resp3: resp3, as: s.as}, []string{"HELLO", proto}) })
	return refusal, decided
}

func (g *passGuard) admitUpload(s *session, _ *command.Command, _ [][]byte) bool {
	return s.vetted || s.as.login
}

func (g *passGuard) admit(s *session, cmd *command.Command, args [][]byte) (refusal string, decided bool) {
	s.questions.begin()
	g.watchRules(s, cmd)
	queueing := s.tx != nil && s.tx.queueing
	switch {
	case queueing && (cmd.Name == "auth" || cmd.Name == "hello"):
		return "ERR '" + cmd.Name + "' inside MULTI is not supported by cosky-proxy with auth.mode passthrough", true
	case cmd.Has(command.NoAuth):
		return "", true
	case !s.as.login:
		if refusal, decided = g.vet(s); !decided || refusal != "" {
			return refusal, decided
		}
	}
	if !g.answersItself(cmd) {
		return "", true
	}
	if o := g.opinions.of(s, cmd, args); s.questions.find(aboutCommand) == nil && o != nil && o.until != 0 {
		return o.verdict(s, cmd), true
	}
	refusal, _, decided = g.consult(s, aboutCommand, func(q *question) {
		g.opinions.ask(s, cmd, args, func(o *opinion) { g.answer(s, q, o.verdict(s, cmd)) })
	})
	return refusal, decided
}

// watchRules voids the opinions when a client changes what users may do: before that and,
// as nothing follows until it is answered, when its next command comes.
func (g *passGuard) watchRules(s *session, cmd *command.Command) {
	if s.rulesChanged {
		s.rulesChanged = false
		g.loop.srv.rules.Add(1)
	}
	switch cmd.Name {
	case "acl|setuser", "acl|deluser", "acl|load", "config|set":
		s.rulesChanged, s.exclusive = true, true
		g.loop.srv.rules.Add(1)
	}
}

// answersItself reports whether the proxy may answer the command without the backend.
func (g *passGuard) answersItself(cmd *command.Command) bool {
	return g.loop.handlers[cmd.ID] != nil && !cmd.Script && !cmd.Has(command.Blocking) && !g.travels[cmd.Name]
}

// vouches reports whether the backend has said that s may have a cached answer to a read.
// If it is not known, it will be soon.
func (g *passGuard) vouches(s *session, cmd *command.Command, args [][]byte) bool {
	o := g.opinions.of(s, cmd, args)
	if o == nil {
		g.opinions.ask(s, cmd, args, func(*opinion) {})
		return false
	}
	return o.until != 0 && !o.unknown && o.refusal == ""
}

// vouched reports whether that is what the backend said last, at most as long ago as entries stand in for it.
func (g *passGuard) vouched(s *session, cmd *command.Command, args [][]byte) bool {
	o := g.opinions.last(s, cmd, args)
	return o != nil && o.refusal == ""
}

// reauthenticate tells the connections that hold state of the session who it is now.
// One where that does not succeed is closed: it would go on as who the client was.
func (s *session) reauthenticate(c *credential) {
	l := s.loop
	tell := func(ln *lane) {
		r := l.newRequest(nil, nil)
		r.sink, r.alone = told(func(reply []byte) {
			if reply[0] == '-' {
				ln.fail(string(reply[1 : len(reply)-2]))
			}
		}), true
		l.enc = resp.AppendCommand(l.enc[:0], c.auth()...)
		ln.send(r, l.enc)
	}
	if s.tx != nil && s.tx.pin != nil {
		tell(s.tx.pin)
		s.tx.pin.strayed = true
	}
	if s.home != nil {
		for _, ln := range s.home.lanes {
			tell(ln)
		}
	}
}

// put sends a command of the proxy's own on the shared lane of key and hands on the reply,
// which may be an error of the proxy's own, too.
func (l *loop) put(key laneKey, args [][]byte, then func(reply []byte)) {
	l.putTo(l.anyShard(), key, args, then)
}

// putTo does the same at the owner of t.
func (l *loop) putTo(t target, key laneKey, args [][]byte, then func(reply []byte)) {
	n, cause := l.owner(t.slot)
	var ln *lane
	if cause == "" {
		ln, cause = n.lane(key)
	}
	if cause != "" {
		then([]byte("-" + cause + "\r\n"))
		return
	}
	r := l.newRequest(nil, nil)
	r.sink, r.alone = told(then), true
	l.enc = resp.AppendCommandBytes(l.enc[:0], args)
	ln.send(r, l.enc)
}

// told takes a reply.
type told func(reply []byte)

func (f told) deliver(l *loop, r *request, reply []byte) {
	l.release(r)
	f(reply)
}
