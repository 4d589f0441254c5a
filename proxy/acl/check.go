package acl

import (
	"strings"

	"cosky-proxy/router/command"
)

// Verdict says what of a command a user may not do. A later one is the more telling.
type Verdict uint8

// The verdicts, with the reasons in ACL LOG.
const (
	Allowed Verdict = iota
	DeniedCommand
	DeniedKey
	DeniedChannel
)

// Reason is the verdict in ACL LOG.
func (v Verdict) Reason() string { return [...]string{"", "command", "key", "channel"}[v] }

// Refusal is the error line for a command that is not allowed (server.c, processCommand).
func (v Verdict) Refusal(cmd *command.Command) string {
	switch v {
	case DeniedCommand:
		return "NOPERM this user has no permissions to run the '" + cmd.Name + "' command"
	case DeniedKey:
		return "NOPERM this user has no permissions to access one of the keys used as arguments"
	default:
		return "NOPERM this user has no permissions to access one of the channels used as arguments"
	}
}

// Forecast is what ACL DRYRUN says of a command that is not allowed because of arg.
func (v Verdict) Forecast(cmd *command.Command, arg []byte) string {
	switch v {
	case DeniedCommand:
		return "This user has no permissions to run the '" + cmd.Name + "' command"
	case DeniedKey:
		return "This user has no permissions to access the '" + string(arg) + "' key"
	default:
		return "This user has no permissions to access the '" + string(arg) + "' channel"
	}
}

// Checker decides on commands. It belongs to one goroutine; deciding allocates nothing.
type Checker struct {
	keys  command.AccessList
	found bool // keys are those of the command being decided on
	known bool // and complete
}

// Check decides whether u may run the command args, which have passed Resolve. at is
// the argument that is to blame: of several selectors that allow the command but not
// its arguments, that of the one that got furthest.
func (c *Checker) Check(u *User, cmd *command.Command, args [][]byte) (v Verdict, at int) {
	c.found = false
	v = DeniedCommand
	for _, s := range u.selectors {
		w, i := c.checkSelector(s, cmd, args)
		if w == Allowed {
			return Allowed, 0
		}
		if w > v || w == v && i > at {
			v, at = w, i
		}
	}
	return v, at
}

func (c *Checker) checkSelector(s *selector, cmd *command.Command, args [][]byte) (v Verdict, at int) {
	if !s.runs(cmd, args) {
		return DeniedCommand, 0
	}
	if !s.allKeys {
		if !c.found {
			c.known, c.found = c.keys.Find(cmd, args), true
		}
		if !c.known { // a module that finds its keys with code: they may be any
			return DeniedKey, 0
		}
		for _, k := range c.keys.Keys {
			if !s.opens(args[k.Pos], k.Flags) {
				return DeniedKey, k.Pos
			}
		}
	}
	if !s.allChannels {
		return s.checkChannels(cmd, args)
	}
	return Allowed, 0
}

// runs reports whether the selector allows the command as such.
func (s *selector) runs(cmd *command.Command, args [][]byte) bool {
	if s.allCommands || cmd.Has(command.NoAuth) || s.has(cmd) {
		return true
	}
	at := 1
	if cmd.Parent != nil {
		at = 2
	}
	if at >= len(args) {
		return false
	}
	for _, first := range s.firstArgs[cmd.ID] {
		if len(first) == len(args[at]) && strings.EqualFold(first, string(args[at])) {
			return true
		}
	}
	return false
}

// has reports whether the command's bit is set. Commands that a backend has beyond the
// built-in table are what Redis calls future ones, unless a rule names them.
func (s *selector) has(cmd *command.Command) bool {
	id := cmd.ID
	if int(id) < command.Count() {
		return s.allowed[id/64]>>(id%64)&1 == 1
	}
	if allowed, named := s.named[cmd.Name]; named {
		return allowed
	}
	return s.future
}

// opens reports whether a pattern allows what flags say is done to the key.
func (s *selector) opens(key []byte, flags command.KeyFlags) bool {
	reads := flags&command.KeyAccess != 0
	writes := flags&(command.KeyInsert|command.KeyDelete|command.KeyUpdate) != 0
	for _, k := range s.keys {
		if (k.read || !reads) && (k.write || !writes) && Match(k.pattern, key) {
			return true
		}
	}
	return false
}

// checkChannels checks the channels that a command publishes or subscribes to (db.c,
// commands_with_channels). A pattern of PSUBSCRIBE must literally be one that is allowed.
func (s *selector) checkChannels(cmd *command.Command, args [][]byte) (v Verdict, at int) {
	first, last, literal := 1, len(args)-1, false
	switch cmd.Name {
	case "subscribe", "ssubscribe":
	case "psubscribe":
		literal = true
	case "publish", "spublish":
		last = 1
	default:
		return Allowed, 0
	}
	for i := first; i <= last; i++ {
		if !s.hears(args[i], literal) {
			return DeniedChannel, i
		}
	}
	return Allowed, 0
}

func (s *selector) hears(channel []byte, literal bool) bool {
	for _, c := range s.channels {
		if literal && c == string(channel) || !literal && Match(c, channel) {
			return true
		}
	}
	return false
}

// ReadsEverything reports whether u may run the command and read every key there is.
// SORT asks this for BY and GET, whose patterns may reach any key (sort.c).
func (c *Checker) ReadsEverything(u *User, cmd *command.Command, args [][]byte) bool {
	c.found = false
	for _, s := range u.selectors {
		if v, _ := c.checkSelector(s, cmd, args); v == Allowed && s.readsAll() {
			return true
		}
	}
	return false
}

func (s *selector) readsAll() bool {
	if s.allKeys {
		return true
	}
	for _, k := range s.keys {
		if k.read && k.pattern == "*" {
			return true
		}
	}
	return false
}

// Foresee reports whether u may run the command whatever arguments follow those that
// are there: everything of its kind is allowed, or it has a single key, which is there
// and open to anything.
func (c *Checker) Foresee(u *User, cmd *command.Command, args [][]byte) bool {
	const anything = command.KeyAccess | command.KeyInsert | command.KeyUpdate | command.KeyDelete
	for _, s := range u.selectors {
		if !s.allCommands && !s.has(cmd) || !s.allChannels && len(cmd.KeySpecs) == 0 {
			continue
		}
		if s.allKeys || cmd.SingleKey && cmd.KeyPos < len(args) && s.opens(args[cmd.KeyPos], anything) {
			return true
		}
	}
	return false
}
