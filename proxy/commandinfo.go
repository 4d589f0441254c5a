package proxy

import (
	"strings"

	"cosky-proxy/proxy/glob"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// command answers COMMAND and its subcommands from the proxy's own table, for a
// backend that cannot, as Redis' server.c does.
func (s *session) command(cmd *command.Command, args [][]byte, _ []byte) bool {
	t := s.loop.table
	switch cmd.Name {
	case "command|count":
		return s.answer(cmd, func(b []byte) []byte { return resp.AppendInt(b, int64(len(topLevel(t)))) })
	case "command|list":
		return s.commandList(cmd, args[2:])
	case "command|docs":
		return s.answer(cmd, func(b []byte) []byte { return s.appendDocs(b, args[2:]) })
	case "command|getkeys", "command|getkeysandflags":
		return s.commandGetKeys(cmd, args[2:])
	case "command|info":
		if len(args) > 2 {
			return s.answer(cmd, func(b []byte) []byte {
				b = resp.AppendArray(b, len(args)-2)
				for _, name := range args[2:] {
					b = command.AppendInfo(b, t.LookupFull(name), s.resp3)
				}
				return b
			})
		}
	}
	return s.answer(cmd, func(b []byte) []byte {
		all := topLevel(t)
		b = resp.AppendArray(b, len(all))
		for _, c := range all {
			b = command.AppendInfo(b, c, s.resp3)
		}
		return b
	})
}

// topLevel is every command that is not a subcommand.
func topLevel(t *command.Table) []*command.Command {
	var top []*command.Command
	for _, c := range t.All() {
		if c.Parent == nil && t.Lookup([]byte(c.Name)) == c {
			top = append(top, c)
		}
	}
	return top
}

// commandList answers COMMAND LIST; options are what follows.
func (s *session) commandList(cmd *command.Command, options [][]byte) bool {
	keep := func(*command.Command) bool { return true }
	if len(options) > 0 {
		if keep = listFilter(options); keep == nil {
			s.refuse("ERR syntax error")
			return true
		}
	}
	var names []string
	for _, c := range topLevel(s.loop.table) {
		for _, c := range append([]*command.Command{c}, c.Subs...) {
			if keep(c) {
				names = append(names, c.Name)
			}
		}
	}
	return s.answer(cmd, func(b []byte) []byte {
		b = resp.AppendArray(b, len(names))
		for _, name := range names {
			b = appendString(b, name)
		}
		return b
	})
}

// listFilter reads FILTERBY MODULE name, ACLCAT category or PATTERN pattern; nil if it
// is something else.
func listFilter(options [][]byte) func(*command.Command) bool {
	if len(options) != 3 || !equalFold(options[0], "FILTERBY") {
		return nil
	}
	arg := string(options[2])
	switch {
	case equalFold(options[1], "MODULE"):
		return func(c *command.Command) bool { // of no module the table has a name
			return c.Has(command.Module) && strings.HasPrefix(c.Name, strings.ToLower(arg)+".")
		}
	case equalFold(options[1], "ACLCAT"):
		category := command.Category(arg)
		return func(c *command.Command) bool { return c.Categories&category != 0 }
	case equalFold(options[1], "PATTERN"):
		pattern := strings.ToLower(arg)
		return func(c *command.Command) bool { return glob.Match(pattern, []byte(c.Name)) }
	}
	return nil
}

// appendDocs leaves out names it does not know, as Redis does.
func (s *session) appendDocs(b []byte, names [][]byte) []byte {
	t := s.loop.table
	var found []*command.Command
	for _, name := range names {
		if c := t.LookupFull(name); c != nil {
			found = append(found, c)
		}
	}
	if len(names) == 0 {
		found = topLevel(t)
	}
	b = command.AppendMapHeader(b, len(found), s.resp3)
	for _, c := range found {
		b = command.AppendDocs(b, c, s.resp3)
	}
	return b
}

// commandGetKeys answers COMMAND GETKEYS and GETKEYSANDFLAGS for the command args.
func (s *session) commandGetKeys(cmd *command.Command, args [][]byte) bool {
	called := s.loop.table.Called(args)
	switch {
	case called == nil:
		s.refuse("ERR Invalid command specified")
		return true
	case !called.MayHaveKeys():
		s.refuse("ERR The command has no key arguments")
		return true
	case !called.AcceptsCount(len(args)):
		s.refuse("ERR Invalid number of arguments specified for command")
		return true
	}
	var list command.AccessList
	if !list.Find(called, args) || len(list.Keys) == 0 && !called.Has(command.NoMandatoryKeys) {
		s.refuse("ERR Invalid arguments specified for command")
		return true
	}
	return s.answer(cmd, func(b []byte) []byte {
		b = resp.AppendArray(b, len(list.Keys))
		for _, k := range list.Keys {
			if cmd.Name == "command|getkeys" {
				b = resp.AppendBulk(b, args[k.Pos])
				continue
			}
			b = resp.AppendBulk(resp.AppendArray(b, 2), args[k.Pos])
			b = command.AppendKeyFlags(b, k.Flags, s.resp3)
		}
		return b
	})
}

// help answers HELP of a container from the documentation in the table, for a backend
// that has none.
func (s *session) help(cmd *command.Command, args [][]byte, _ []byte) bool {
	lines := command.Help(cmd.Parent, string(args[0]))
	return s.answer(cmd, func(b []byte) []byte {
		b = resp.AppendArray(b, len(lines))
		for _, line := range lines {
			b = append(append(append(b, '+'), line...), "\r\n"...)
		}
		return b
	})
}
