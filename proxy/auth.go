package proxy

import (
	"time"

	"cosky-proxy/proxy/acl"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// AuthMode says who decides what a client may do.
type AuthMode string

// The values of auth.mode.
const (
	AuthOff         AuthMode = "off"         // nobody: like a Redis without passwords
	AuthProxy       AuthMode = "proxy"       // the proxy, by users of its own
	AuthPassthrough AuthMode = "passthrough" // the backend, by its users
)

// AuthOptions govern who may do what.
type AuthOptions struct {
	Mode           AuthMode      // empty: AuthOff
	Users          *acl.Users    // of AuthProxy
	LogLength      int           // of AuthProxy: entries of ACL LOG
	MaxCredentials int           // of AuthPassthrough: different logins per loop
	IdleTimeout    time.Duration // of AuthPassthrough: how long the connections of a login that nobody uses are kept
}

// guard decides who a client is and what it may do. Every loop has its own; there is
// none when everybody may do everything.
//
// What cannot be decided yet is not decided: the guard has paused the session then,
// and the command comes again.
type guard interface {
	// welcome makes s what a client is that has just connected, or has sent RESET.
	welcome(s *session)

	// leave: s is gone.
	leave(s *session)

	// admit decides on a command that exists and has a valid number of arguments,
	// where Redis' processCommand does: before it is queued or executed. refusal is
	// an error line, empty when the command may go on.
	admit(s *session, cmd *command.Command, args [][]byte) (refusal string, decided bool)

	// admitUpload decides on a command of which only the first arguments are there.
	// False: the whole of it has to be seen.
	admitUpload(s *session, cmd *command.Command, args [][]byte) bool

	// recognise finds out whether s has to log in, if that is not certain: it sends more than
	// a stranger may. refusal is why that cannot be found out.
	recognise(s *session) (refusal string, decided bool)

	// login logs s in; nothing changes when it is refused. verb is the command that
	// asks for it, resp3 the protocol that s is going to speak, a nil user the default one
	// in the old form of AUTH.
	login(s *session, resp3 bool, verb, user, password []byte) (refusal string, decided bool)

	// vouches reports whether s may have a cached answer to a read that was admitted.
	vouches(s *session, cmd *command.Command, args [][]byte) bool

	// vouched reports whether it would have, going by what it knew when the backend was last within reach.
	vouched(s *session, cmd *command.Command, args [][]byte) bool

	// greet decides whether s may speak RESP3, or RESP2, with HELLO.
	greet(s *session, resp3 bool) (refusal string, decided bool)

	// tick is called now and then.
	tick(now int64)
}

func (l *loop) newGuard() guard {
	switch l.srv.opts.Auth.Mode {
	case AuthProxy:
		return &aclGuard{loop: l, users: l.srv.opts.Auth.Users}
	case AuthPassthrough:
		return newPassGuard(l)
	}
	return nil
}

// Error lines in Redis' words (acl.c, server.c, networking.c).
const (
	errNoAuth      = "NOAUTH Authentication required."
	errNoAuthHello = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time"
	errWrongPass   = "WRONGPASS invalid username-password pair or user is disabled."
	errNeedlessPw  = "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?"
)

// protocolLimits are what the session's client may send. One that has to log in first may send
// little.
func (s *session) protocolLimits() *resp.Limits {
	if s.stranger {
		return &resp.Unauthenticated
	}
	return &s.loop.srv.opts.Protocol
}

func (s *session) auth(cmd *command.Command, args [][]byte, _ []byte) bool {
	var refusal string
	decided := true
	switch len(args) {
	case 2:
		refusal, decided = s.login(s.resp3, args[0], nil, args[1])
	case 3:
		refusal, decided = s.login(s.resp3, args[0], args[1], args[2])
	default:
		refusal = "ERR syntax error"
	}
	switch {
	case !decided:
		return false
	case refusal != "":
		s.refuse(refusal)
		return true
	}
	return s.ok(cmd)
}

// login logs the client in. Without a guard it does what a Redis without passwords does:
// the default user may come with any.
func (s *session) login(resp3 bool, verb, user, password []byte) (refusal string, decided bool) {
	switch {
	case s.loop.guard != nil:
		return s.loop.guard.login(s, resp3, verb, user, password)
	case user == nil:
		return errNeedlessPw, true
	case string(user) == defaultUser:
		return "", true
	}
	return errWrongPass, true
}

// defaultUser is whom a client is that has not logged in, as in Redis.
const defaultUser = acl.DefaultName

// credential is what a connection to the backend logs in with. Credentials are
// interned per loop, so that equal ones are one pointer and lanes can be found by it.
type credential struct {
	// static
	user     string
	password string
	named    bool // AUTH user password, not AUTH password
	login    bool // false: no AUTH at all, the connection is what the backend makes of a new one

	// loop-owned
	users     int   // sessions that have it or ask for it
	idleSince int64 // since when there are none (mono)
	accepted  bool  // the backend has taken it once

	// loop-owned: without a login
	guarded    bool   // the connections are from a time when the backend asked for one
	shut       bool   // it did when last asked
	askedUntil int64  // so long that is believed (mono)
	askedRules uint64 // Server.rules when it was asked
}

// name is the user whom the credential logs in.
func (c *credential) name() string {
	if c.named {
		return c.user
	}
	return defaultUser
}

// auth is the command that logs in.
func (c *credential) auth() []string {
	if c.named {
		return []string{"AUTH", c.user, c.password}
	}
	return []string{"AUTH", c.password}
}
