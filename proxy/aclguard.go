package proxy

import (
	"sync"

	"cosky-proxy/proxy/acl"
	"cosky-proxy/proxy/mono"
	"cosky-proxy/router/command"
)

// aclGuard enforces the users of the configuration, as a Redis with these users would.
// Everything of it belongs to the loop but the users, which never change.
type aclGuard struct {
	loop    *loop
	users   *acl.Users
	checker acl.Checker
}

func (g *aclGuard) welcome(s *session) {
	d := g.users.Default()
	s.user, s.rights = d.Name, d
	s.stranger = !d.NoPass() || !d.Enabled()
}

func (g *aclGuard) leave(*session) {}

func (g *aclGuard) tick(int64) {}

func (g *aclGuard) vouches(*session, *command.Command, [][]byte) bool { return true }
func (g *aclGuard) vouched(*session, *command.Command, [][]byte) bool { return true }

func (g *aclGuard) admit(s *session, cmd *command.Command, args [][]byte) (refusal string, decided bool) {
	queueing := s.tx != nil && s.tx.queueing
	switch {
	case s.stranger && !cmd.Has(command.NoAuth):
		return errNoAuth, true
	case queueing && cmd.Has(command.NoMulti):
		return "ERR Command not allowed inside a transaction", true
	}
	if v, at := g.checker.Check(s.rights, cmd, args); v != acl.Allowed {
		object := args[at]
		if v == acl.DeniedCommand {
			object = []byte(cmd.Name)
		}
		g.loop.srv.denials.add(s, v.Reason(), []byte(s.user), object)
		return v.Refusal(cmd), true
	}
	return g.admitPatterns(s, cmd, args), true
}

// admitPatterns refuses BY and GET of SORT, which may read any key, to users who may
// not (sort.c). Redis says so when it executes the command.
func (g *aclGuard) admitPatterns(s *session, cmd *command.Command, args [][]byte) (refusal string) {
	if cmd.Name != "sort" && cmd.Name != "sort_ro" {
		return ""
	}
	for i := 2; i < len(args); i++ {
		left := len(args) - i - 1
		switch {
		case equalFold(args[i], "LIMIT"):
			i += 2
		case equalFold(args[i], "STORE"):
			i++
		case equalFold(args[i], "BY") && left > 0 && hasStar(args[i+1]) && !g.checker.ReadsEverything(s.rights, cmd, args):
			return "ERR BY option of SORT denied due to insufficient ACL permissions."
		case equalFold(args[i], "GET") && left > 0 && !g.checker.ReadsEverything(s.rights, cmd, args):
			return "ERR GET option of SORT denied due to insufficient ACL permissions."
		case equalFold(args[i], "BY"), equalFold(args[i], "GET"):
			i++
		}
	}
	return ""
}

// hasStar: a pattern of BY without one sorts nothing and reads nothing.
func hasStar(pattern []byte) bool {
	for _, c := range pattern {
		if c == '*' {
			return true
		}
	}
	return false
}

func (g *aclGuard) recognise(*session) (refusal string, decided bool) { return "", true }

func (g *aclGuard) admitUpload(s *session, cmd *command.Command, args [][]byte) bool {
	return !s.stranger && g.checker.Foresee(s.rights, cmd, args)
}

func (g *aclGuard) login(s *session, _ bool, verb, user, password []byte) (refusal string, decided bool) {
	if user == nil {
		if g.users.Default().NoPass() {
			return errNeedlessPw, true
		}
		user = []byte(defaultUser)
	}
	u := g.users.Lookup(user)
	if u == nil || !u.Authenticate(password) {
		g.loop.srv.denials.add(s, "auth", user, verb)
		return errWrongPass, true
	}
	s.user, s.rights, s.stranger = u.Name, u, false
	return "", true
}

func (g *aclGuard) greet(s *session, _ bool) (refusal string, decided bool) {
	if s.stranger {
		return errNoAuthHello, true
	}
	return "", true
}

// denialLog is what ACL LOG shows: commands and logins that were refused, newest first.
type denialLog struct {
	mu      sync.Mutex
	entries []denial
	limit   int
}

type denial struct {
	count                              int64
	reason, context, object, user, who string
	at                                 int64 // last time (mono)
}

// How Redis groups denials (acl.c, ACLLogMatchEntry).
const (
	denialGroup = int64(60e9) // those within this time are one entry
	denialReach = 10          // if it is among so many newest ones
)

// maxDenialText is how many bytes are kept of what a client has chosen: a key may be as long as
// a request.
const maxDenialText = 4 << 10

func (dl *denialLog) add(s *session, reason string, user, object []byte) {
	now := mono.Now()
	kept := func(b []byte) string { return string(b[:min(len(b), maxDenialText)]) }
	d := denial{1, reason, "toplevel", kept(object), kept(user), kept(s.describe(nil, s.loop.now(), s.conn.Unconsumed())), now}
	if s.tx != nil && s.tx.queueing {
		d.context = "multi"
	}
	dl.mu.Lock()
	defer dl.mu.Unlock()
	for i, o := range dl.entries[:min(len(dl.entries), denialReach)] {
		if o.reason == d.reason && o.context == d.context && o.object == d.object && o.user == d.user && now-o.at <= denialGroup {
			d.count += o.count
			dl.entries = append(dl.entries[:i], dl.entries[i+1:]...)
			break
		}
	}
	dl.entries = append([]denial{d}, dl.entries...)
	dl.entries = dl.entries[:min(len(dl.entries), dl.limit)]
}

// newest returns up to n entries, which the caller may keep.
func (dl *denialLog) newest(n int64) []denial {
	dl.mu.Lock()
	defer dl.mu.Unlock()
	return append([]denial(nil), dl.entries[:max(0, min(n, int64(len(dl.entries))))]...)
}

func (dl *denialLog) clear() {
	dl.mu.Lock()
	defer dl.mu.Unlock()
	dl.entries = nil
}
