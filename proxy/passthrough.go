package proxy

import (
	"bytes"
	"fmt"
	"strings"

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
	logins    map[login]*credential // those that sessions have, or had not long ago
	anonymous *credential           // of clients that have not logged in
	openUntil int64                 // so long a client that connects needs no login, as far as is known (mono)
	openRules uint64                // Server.rules at that time
	travels   map[string]bool       // commands with a handler that passes them on
	opinions  map[string]*opinion   // by what they are about, see topic
	topic     []byte                // scratch
}

// login is what a client presents.
type login struct {
	user, password string
	named          bool // AUTH user password, not AUTH password
}

// opinion is what the backend thinks of a command of a user.
type opinion struct {
	refusal string // error line; empty: allowed
	unknown bool   // it would not say
	until   int64  // believed so long (mono); 0: it has not answered yet
	rules   uint64 // Server.rules when it was asked
}

// question is what a session waits for the answer of.
type question struct {
	as       *credential // that asks to be used; nil: the question is about a command
	refusal  string      // error line; empty: yes
	answered bool
}

// maxOpinions bounds the opinions that a loop remembers, and maxTopic the bytes of what
// one of them is about.
const (
	maxOpinions = 4096
	maxTopic    = 1 << 10
)

func newPassGuard(l *loop) *passGuard {
	g := &passGuard{
		loop: l, logins: make(map[login]*credential), opinions: make(map[string]*opinion),
		anonymous: new(credential),
	}
	g.travels = make(map[string]bool)
	for _, name := range passedOn {
		g.travels[name] = true
	}
	return g
}

// passedOn have a handler that sends them to the backend, with the session's login.
var passedOn = [...]string{
	"ping", "config|set", "info", "watch", "publish", "spublish", "hgetall", "smembers",
	"script|load", "script|exists", "script|flush", "scan", "keys", "debug", "client|no-touch",
}

func (g *passGuard) welcome(s *session) {
	g.become(s, g.anonymous)
	s.vetted = false
}

// vet makes sure that s, which has not logged in, is no more than a new connection to the
// backend would be. Redis lets connections be that were there before a password was asked
// for, so those of earlier clients cannot tell. False: the backend is being asked.
func (g *passGuard) vet(s *session) (decided bool) {
	if s.vetted || s.as.login {
		return true
	}
	rules := g.loop.srv.rules.Load()
	if s.question == nil && (g.anonymous.guarded || g.loop.now() <= g.openUntil && g.openRules == rules) {
		g.become(s, g.anonymous)
		s.vetted = true
		return true
	}
	_, _, decided = g.consult(s, func(q *question) {
		fresh := new(credential)
		g.send(laneKey{as: fresh}, [][]byte{[]byte("PING")}, func(reply []byte) {
			if bytes.HasPrefix(reply, []byte("-NOAUTH ")) {
				fresh.guarded = true
				g.anonymous = fresh
			} else {
				g.openUntil, g.openRules = g.loop.now()+int64(g.loop.srv.opts.Cache.MaxStaleness), rules
				g.closeLanes(fresh)
			}
			g.answer(s, q, "")
		})
	})
	if decided {
		g.become(s, g.anonymous)
		s.vetted = true
	}
	return decided
}

func (g *passGuard) leave(s *session) {
	if s.question != nil && s.question.as != nil {
		g.letGo(s.question.as)
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
			case ln.key.as != c || ln.owner != nil:
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
	for topic, o := range g.opinions {
		if o.until != 0 && o.until < now {
			delete(g.opinions, topic)
		}
	}
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
	refusal, as, decided := g.consult(s, func(q *question) {
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
// again: then consult returns it. as is the credential that was asked for.
func (g *passGuard) consult(s *session, ask func(q *question)) (refusal string, as *credential, decided bool) {
	if s.question == nil {
		if s.drain() {
			return "", nil, false
		}
		s.question = new(question)
		ask(s.question)
	}
	if q := s.question; q.answered {
		s.question = nil
		return q.refusal, q.as, true
	}
	s.pause(waitVerdict)
	return "", nil, false
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
	l := g.loop
	n, cause := l.owner(l.anyShard().slot)
	var ln *lane
	if cause == "" {
		ln, cause = n.lane(key)
	}
	if cause != "" {
		g.answer(s, q, cause)
		return
	}
	r := l.newRequest(nil, nil)
	r.sink, r.alone = told(func(reply []byte) {
		refusal := ""
		if reply[0] == '-' {
			refusal = string(reply[1 : len(reply)-2])
		}
		g.answer(s, q, refusal)
	}), true
	l.enc = resp.AppendCommand(l.enc[:0], args...)
	ln.send(r, l.enc)
}

func (g *passGuard) greet(s *session, resp3 bool) (refusal string, decided bool) {
	if s.as.login {
		return "", true
	}
	if !s.vetted && !g.vet(s) {
		return "", false
	}
	proto := "2"
	if resp3 {
		proto = "3"
	}
	refusal, _, decided = g.consult(s, func(q *question) { g.verify(s, q, laneKey{resp3: resp3, as: s.as}, []string{"HELLO", proto}) })
	return refusal, decided
}

func (g *passGuard) admitUpload(*session, *command.Command, [][]byte) bool { return true }

func (g *passGuard) admit(s *session, cmd *command.Command, args [][]byte) (refusal string, decided bool) {
	g.watchRules(s, cmd)
	queueing := s.tx != nil && s.tx.queueing
	switch {
	case queueing && (cmd.Name == "auth" || cmd.Name == "hello"):
		return "ERR '" + cmd.Name + "' inside MULTI is not supported by cosky-proxy with auth.mode passthrough", true
	case cmd.Has(command.NoAuth):
		return "", true
	case !s.vetted && !g.vet(s):
		return "", false
	case !g.answersItself(cmd):
		return "", true
	}
	o, topic := g.opinion(s, cmd, args)
	if s.question == nil && o != nil && o.until != 0 {
		return g.tell(s, o.verdict(s, cmd)), true
	}
	refusal, _, decided = g.consult(s, func(q *question) {
		g.ask(s, cmd, args, topic, func(o *opinion) { g.answer(s, q, o.verdict(s, cmd)) })
	})
	if !decided {
		return "", false
	}
	return g.tell(s, refusal), true
}

// tell notes what a verdict says about the client itself.
func (g *passGuard) tell(s *session, refusal string) string {
	s.stranger = !s.as.login && refusal == errNoAuth
	return refusal
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

// verdict is what an opinion means for a command that the proxy answers itself. When the
// backend would not say, what only concerns the client's own connection is allowed.
func (o *opinion) verdict(s *session, cmd *command.Command) string {
	switch {
	case o.refusal != "" || !o.unknown:
		return o.refusal
	case cmd.Categories&(command.Category("admin")|command.Category("dangerous")) == 0:
		return ""
	}
	return "ERR cosky-proxy cannot find out whether user '" + s.user + "' may run '" + cmd.Name + "': the backend does not answer ACL DRYRUN"
}

// vouches reports whether the backend has said that s may have a cached answer to a read.
// If it is not known, it will be soon.
func (g *passGuard) vouches(s *session, cmd *command.Command, args [][]byte) bool {
	o, topic := g.opinion(s, cmd, args)
	if o == nil && topic != "" {
		g.ask(s, cmd, args, topic, func(*opinion) {})
		return false
	}
	return o != nil && o.until != 0 && !o.unknown && o.refusal == ""
}

// opinion returns what is known about a command of s; nil: nothing, and topic is what
// it can be remembered under, empty when it is too long for that.
func (g *passGuard) opinion(s *session, cmd *command.Command, args [][]byte) (o *opinion, topic string) {
	// Who may log in with a password but is nobody yet has opinions of its own.
	b := append(g.topic[:0], "+-"[index(s.as.login)])
	b = append(append(b, s.user...), 0)
	for _, arg := range args[:relevant(cmd, len(args))] {
		if b = append(append(b, arg...), 0); len(b) > maxTopic {
			return nil, ""
		}
	}
	g.topic = b
	now := g.loop.now()
	if o = g.opinions[string(b)]; o != nil && (o.until == 0 || o.until >= now) && o.rules == g.loop.srv.rules.Load() {
		return o, ""
	}
	return nil, string(b)
}

// relevant is how many arguments an opinion may depend on: a command without keys and
// channels is judged by its name and its first argument.
func relevant(cmd *command.Command, n int) int {
	switch {
	case len(cmd.KeySpecs) > 0 || cmd.Has(command.PubSub) || cmd.Has(command.MovableKeys):
		return n
	case cmd.Parent != nil:
		return min(n, 3)
	}
	return min(n, 2)
}

// ask asks the backend what it thinks of a command of s, and remembers it under topic.
func (g *passGuard) ask(s *session, cmd *command.Command, args [][]byte, topic string, then func(o *opinion)) {
	o := &opinion{rules: g.loop.srv.rules.Load()}
	if topic != "" {
		if len(g.opinions) >= maxOpinions {
			clear(g.opinions)
		}
		g.opinions[topic] = o
	}
	done := func() {
		o.until = g.loop.now() + int64(g.loop.srv.opts.Cache.MaxStaleness)
		then(o)
	}
	dryrun := func() { g.dryrun(s.user, cmd, args, o, done) }
	if s.as.login {
		dryrun()
		return
	}
	// Whether nobody may do what the default user may is told by the answer to any command.
	call := make([][]byte, len(args))
	for i, a := range args {
		call[i] = bytes.Clone(a)
	}
	args = call
	g.send(laneKey{as: s.as}, [][]byte{[]byte("PING")}, func(reply []byte) {
		if bytes.HasPrefix(reply, []byte("-NOAUTH ")) {
			o.refusal = string(reply[1 : len(reply)-2])
			done()
			return
		}
		dryrun()
	})
}

func (g *passGuard) dryrun(user string, cmd *command.Command, args [][]byte, o *opinion, done func()) {
	call := append([][]byte{[]byte("ACL"), []byte("DRYRUN"), []byte(user)}, args...)
	g.send(laneKey{}, call, func(reply []byte) {
		o.refusal, o.unknown = forecast(cmd, reply)
		done()
	})
}

// send sends a command of the proxy's own.
func (g *passGuard) send(key laneKey, args [][]byte, then func(reply []byte)) {
	l := g.loop
	n, cause := l.owner(l.anyShard().slot)
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

// forecast reads the reply of ACL DRYRUN: as the error line of the command itself, in the
// words of the version that answers.
func forecast(cmd *command.Command, reply []byte) (refusal string, unknown bool) {
	switch {
	case reply[0] == '+':
		return "", false
	case reply[0] != '$':
		return "", true
	}
	body, _ := resp.ReadBulk(reply)
	text := string(body)
	old := strings.HasPrefix(text, "This user ")
	switch {
	case strings.Contains(text, "permissions to run") && old: // 7.0
		return "NOPERM t" + text[1:], false
	case strings.Contains(text, "permissions to run"):
		return "NOPERM " + text, false
	case strings.HasSuffix(text, " channel") && old:
		return "NOPERM this user has no permissions to access one of the channels used as arguments", false
	case strings.HasSuffix(text, " channel"):
		return "NOPERM No permissions to access a channel", false
	case old:
		return "NOPERM this user has no permissions to access one of the keys used as arguments", false
	}
	return "NOPERM No permissions to access a key", false
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
