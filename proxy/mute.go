package proxy

import "cosky-proxy/router/command"

// muting is CLIENT REPLY: replies that the client does not want are dropped when
// their turn comes, so that order and backpressure stay what they are. Messages and
// other pushes are no replies.
type muting struct {
	on   bool // the reply of the next command is dropped
	off  bool // CLIENT REPLY OFF is in force
	skip bool // CLIENT REPLY SKIP is being executed: the next reply is dropped
}

func (s *session) clientReply(cmd *command.Command, args [][]byte, _ []byte) bool {
	m := &s.mute
	switch mode := args[2]; {
	case equalFold(mode, "ON"):
		*m = muting{}
		return s.ok(cmd)
	case equalFold(mode, "OFF"):
		*m = muting{on: true, off: true}
	case equalFold(mode, "SKIP"):
		m.skip = !m.off
		s.fleeting = s.fleeting || m.skip
	default:
		s.refuse("ERR syntax error")
		return true
	}
	s.loop.stats.Commands[cmd.ID].Calls++
	return true
}

// muted reports whether the present command's reply is dropped. Confirmations of
// subscriptions count as messages (addReplyPubsubSubscribed).
func (s *session) muted() bool {
	if !s.mute.on {
		return false
	}
	if s.lastCmd == nil {
		return true
	}
	switch s.lastCmd.Name {
	case "subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe":
		return false
	}
	return true
}

// fade ends what was to last for one command only (Redis' resetClient).
func (s *session) fade() {
	s.questions, s.heldUp = questions{}, nil
	if s.permit != nil {
		s.surrender()
	}
	m := &s.mute
	m.on, m.skip = m.off || m.skip, false
	s.fleeting = m.on && !m.off
	if t := s.tracking(); t != nil && t.caching != "" {
		t.fade(s)
		s.fleeting = s.fleeting || t.caching != ""
	}
}
