package proxy

import "cosky-proxy/router/command"

// defaultUser is whom a client is that has not logged in, as in Redis.
const defaultUser = "default"

// guard decides who a client is and what it may do. Every loop has its own.
type guard interface {
	// welcome makes s what a client is that has just connected, or has sent RESET.
	welcome(s *session)

	// admit decides on a command that exists and has a valid number of arguments,
	// where Redis' processCommand does: before it is queued or executed. refusal is
	// an error line, empty when the command may go on. When it cannot be decided
	// yet, admit has paused s, and the command comes again.
	admit(s *session, cmd *command.Command, args [][]byte) (refusal string, decided bool)
}

// credential is what a connection to the backend logs in with. Credentials are
// interned per loop, so that equal ones are one pointer and lanes can be found by it.
type credential struct {
	user     string // empty: AUTH with the password alone
	password string
	login    bool // false: no AUTH at all, the connection is what the backend makes of a new one
}
