package proxy

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	"cosky-proxy/proxy/acl"
	"cosky-proxy/proxy/mono"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// The ACL commands of a proxy that has users of its own. Those that would change users
// get one error: the configuration is where they come from.

// setACLHandlers sets the handlers of ACL and its subcommands.
func setACLHandlers(set func(h handler, names ...string)) {
	set((*session).aclConfigured, "acl|setuser", "acl|deluser", "acl|load", "acl|save")
	set((*session).aclUsage, "acl", "acl|help")
	set((*session).aclWhoami, "acl|whoami")
	set((*session).aclUsers, "acl|users")
	set((*session).aclList, "acl|list")
	set((*session).aclGetuser, "acl|getuser")
	set((*session).aclCat, "acl|cat")
	set((*session).aclDryrun, "acl|dryrun")
	set((*session).aclGenpass, "acl|genpass")
	set((*session).aclLog, "acl|log")
}

func (s *session) aclConfigured(cmd *command.Command, _ [][]byte, _ []byte) bool {
	s.errorf("ERR '%s' cannot be done here: the users are those of cosky-proxy's configuration (auth.users, auth.file)", cmd.Name)
	return true
}

// aclHelp is what of Redis' help applies.
var aclHelp = []string{
	"ACL <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
	"CAT [<category>]",
	"    List all commands that belong to <category>, or all command categories",
	"    when no category is specified.",
	"DRYRUN <username> <command> [<arg> ...]",
	"    Returns whether the user can execute the given command without executing the command.",
	"GETUSER <username>",
	"    Get the user's details.",
	"GENPASS [<bits>]",
	"    Generate a secure 256-bit user password. The optional `bits` argument can",
	"    be used to specify a different size.",
	"LIST",
	"    Show users details in config file format.",
	"LOG [<count> | RESET]",
	"    Show the ACL log entries.",
	"USERS",
	"    List all the registered usernames.",
	"WHOAMI",
	"    Return the current connection username.",
	"HELP",
	"    Print this help.",
}

func (s *session) aclUsage(cmd *command.Command, _ [][]byte, _ []byte) bool {
	if cmd.Parent == nil {
		s.refuse(cmd.ArityError())
		return true
	}
	return s.answer(cmd, func(b []byte) []byte {
		b = resp.AppendArray(b, len(aclHelp))
		for _, line := range aclHelp {
			b = resp.AppendString(b, line)
		}
		return b
	})
}

func (s *session) aclWhoami(cmd *command.Command, _ [][]byte, _ []byte) bool {
	return s.answer(cmd, func(b []byte) []byte { return appendString(b, s.user) })
}

func (s *session) aclUsers(cmd *command.Command, _ [][]byte, _ []byte) bool {
	return s.answer(cmd, func(b []byte) []byte {
		all := s.users().All()
		b = resp.AppendArray(b, len(all))
		for _, u := range all {
			b = appendString(b, u.Name)
		}
		return b
	})
}

func (s *session) aclList(cmd *command.Command, _ [][]byte, _ []byte) bool {
	return s.answer(cmd, func(b []byte) []byte {
		all := s.users().All()
		b = resp.AppendArray(b, len(all))
		for _, u := range all {
			b = appendString(b, u.String())
		}
		return b
	})
}

func (s *session) users() *acl.Users { return s.loop.srv.opts.Auth.Users }

func (s *session) aclGetuser(cmd *command.Command, args [][]byte, _ []byte) bool {
	u := s.users().Lookup(args[2])
	if u == nil {
		return s.answer(cmd, s.appendNull)
	}
	return s.answer(cmd, func(b []byte) []byte {
		b = s.appendMap(b, 6)
		b = s.appendSet(appendString(b, "flags"), u.Flags())
		b = appendStrings(appendString(b, "passwords"), u.Passwords())
		b = appendPermissions(b, u.Root())
		selectors := u.Selectors()
		b = resp.AppendArray(appendString(b, "selectors"), len(selectors))
		for _, p := range selectors {
			b = appendPermissions(s.appendMap(b, 3), p)
		}
		return b
	})
}

func appendPermissions(b []byte, p acl.Permissions) []byte {
	b = appendPair(b, "commands", p.Commands)
	b = appendPair(b, "keys", p.Keys)
	return appendPair(b, "channels", p.Channels)
}

func appendStrings(b []byte, list []string) []byte {
	b = resp.AppendArray(b, len(list))
	for _, v := range list {
		b = appendString(b, v)
	}
	return b
}

// appendSet is appendStrings for what is a set in RESP3.
func (s *session) appendSet(b []byte, list []string) []byte {
	if !s.resp3 {
		return appendStrings(b, list)
	}
	b = resp.AppendSet(b, len(list))
	for _, v := range list {
		b = appendString(b, v)
	}
	return b
}

func (s *session) aclCat(cmd *command.Command, args [][]byte, _ []byte) bool {
	if len(args) == 2 {
		return s.answer(cmd, func(b []byte) []byte { return appendStrings(b, command.CategoryNames()) })
	}
	category := command.Category(string(args[2]))
	switch {
	case len(args) > 3:
		s.refuse(subcommandSyntax(cmd, args))
		return true
	case category == 0:
		s.errorf("ERR Unknown category '%.128s'", args[2])
		return true
	}
	var names []string
	for _, c := range s.loop.table.All() {
		if c.Categories&category != 0 && !c.Has(command.Module) {
			names = append(names, c.Name)
		}
	}
	return s.answer(cmd, func(b []byte) []byte { return appendStrings(b, names) })
}

// subcommandSyntax is Redis' addReplySubcommandSyntaxError.
func subcommandSyntax(cmd *command.Command, args [][]byte) string {
	return fmt.Sprintf("ERR unknown subcommand or wrong number of arguments for '%.128s'. Try %s HELP.", args[1], strings.ToUpper(cmd.Parent.Name))
}

func (s *session) aclDryrun(cmd *command.Command, args [][]byte, _ []byte) bool {
	u, call := s.users().Lookup(args[2]), args[3:]
	if u == nil {
		s.errorf("ERR User '%s' not found", args[2])
		return true
	}
	c := s.loop.table.Lookup(call[0])
	if c != nil && len(c.Subs) > 0 && len(call) > 1 {
		c = c.Sub(call[1])
	}
	switch {
	case c == nil:
		s.errorf("ERR Command '%s' not found", call[0])
		return true
	case !c.AcceptsCount(len(call)):
		s.refuse(c.ArityError())
		return true
	}
	var ck acl.Checker
	v, at := ck.Check(u, c, call)
	if v == acl.Allowed {
		return s.ok(cmd)
	}
	return s.answer(cmd, func(b []byte) []byte { return appendString(b, v.Forecast(c, call[at])) })
}

// maxGenpassBits bounds ACL GENPASS as Redis does.
const maxGenpassBits = 4096

func (s *session) aclGenpass(cmd *command.Command, args [][]byte, _ []byte) bool {
	bits, ok := int64(256), true
	if len(args) > 2 {
		bits, ok = integer(args[2])
	}
	switch {
	case len(args) > 3:
		s.refuse(subcommandSyntax(cmd, args))
		return true
	case !ok:
		s.refuse("ERR value is not an integer or out of range")
		return true
	case bits <= 0 || bits > maxGenpassBits:
		s.errorf("ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to %d", maxGenpassBits)
		return true
	}
	digits := int(bits+3) / 4
	raw := make([]byte, (digits+1)/2)
	rand.Read(raw) // never fails
	return s.answer(cmd, func(b []byte) []byte { return appendString(b, hex.EncodeToString(raw)[:digits]) })
}

func (s *session) aclLog(cmd *command.Command, args [][]byte, _ []byte) bool {
	log := &s.loop.srv.denials
	n, ok := int64(10), true
	switch {
	case len(args) > 3:
		s.refuse(subcommandSyntax(cmd, args))
		return true
	case len(args) == 3 && equalFold(args[2], "RESET"):
		log.clear()
		return s.ok(cmd)
	case len(args) == 3:
		if n, ok = integer(args[2]); !ok {
			s.refuse("ERR value is not an integer or out of range")
			return true
		}
	}
	entries, now := log.newest(n), mono.Now()
	return s.answer(cmd, func(b []byte) []byte {
		b = resp.AppendArray(b, len(entries))
		for i := range entries {
			b = s.appendDenial(b, &entries[i], now)
		}
		return b
	})
}

func (s *session) appendDenial(b []byte, d *denial, now int64) []byte {
	b = resp.AppendInt(appendString(s.appendMap(b, 7), "count"), d.count)
	b = appendPair(b, "reason", d.reason)
	b = appendPair(b, "context", d.context)
	b = appendPair(b, "object", d.object)
	b = appendPair(b, "username", d.user)
	b = s.appendDouble(appendString(b, "age-seconds"), math.Floor(float64(now-d.at)/1e6)/1e3)
	return appendPair(b, "client-info", strings.TrimSuffix(d.who, "\n"))
}

// appendDouble appends a number as Redis 7.0 does: with 17 digits in RESP2.
func (s *session) appendDouble(b []byte, f float64) []byte {
	if s.resp3 {
		return resp.AppendDouble(b, f)
	}
	return appendString(b, strconv.FormatFloat(f, 'g', 17, 64))
}
