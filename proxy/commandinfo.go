package proxy

import (
	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// command answers COMMAND and its subcommands from the proxy's own table, for a
// backend that cannot.
func (s *session) command(cmd *command.Command, args [][]byte, _ []byte) bool {
	switch cmd.Name {
	case "command":
		return s.answer(cmd, func(b []byte) []byte { return s.appendInfos(b, s.loop.table.All()) })
	case "command|count":
		return s.answer(cmd, func(b []byte) []byte { return resp.AppendInt(b, int64(len(s.loop.topLevel()))) })
	case "command|list":
		if len(args) > 2 {
			s.refuse("ERR 'COMMAND LIST' with a filter is not supported by cosky-proxy on the embedded backend")
			return true
		}
		return s.answer(cmd, func(b []byte) []byte {
			all := s.loop.topLevel()
			b = resp.AppendArray(b, len(all))
			for _, c := range all {
				b = appendString(b, c.Name)
			}
			return b
		})
	case "command|info":
		return s.answer(cmd, func(b []byte) []byte {
			if len(args) == 2 {
				return s.appendInfos(b, s.loop.table.All())
			}
			b = resp.AppendArray(b, len(args)-2)
			for _, name := range args[2:] {
				b = command.AppendInfo(b, s.loop.table.LookupFull(name), s.resp3)
			}
			return b
		})
	case "command|docs":
		return s.answer(cmd, func(b []byte) []byte { return s.appendDocs(b, args[2:]) })
	case "command|getkeys":
		return s.commandGetKeys(cmd, args[2:])
	}
	s.errorf("ERR '%s' is not supported by cosky-proxy on the embedded backend", cmd.Name)
	return true
}

// topLevel is every command that is not a subcommand.
func (l *loop) topLevel() []*command.Command {
	var top []*command.Command
	for _, c := range l.table.All() {
		if c.Parent == nil {
			top = append(top, c)
		}
	}
	return top
}

func (s *session) appendInfos(b []byte, all []*command.Command) []byte {
	n := 0
	for _, c := range all {
		if c.Parent == nil {
			n++
		}
	}
	b = resp.AppendArray(b, n)
	for _, c := range all {
		if c.Parent == nil {
			b = command.AppendInfo(b, c, s.resp3)
		}
	}
	return b
}

// appendDocs leaves out names it does not know, as Redis does.
func (s *session) appendDocs(b []byte, names [][]byte) []byte {
	var found []*command.Command
	for _, name := range names {
		if c := s.loop.table.LookupFull(name); c != nil {
			found = append(found, c)
		}
	}
	if len(names) == 0 {
		found = s.loop.topLevel()
	}
	b = command.AppendMapHeader(b, len(found), s.resp3)
	for _, c := range found {
		b = command.AppendDocs(b, c, s.resp3)
	}
	return b
}

func (s *session) commandGetKeys(cmd *command.Command, args [][]byte) bool {
	target, problem := s.loop.table.Resolve(args)
	if problem != "" {
		s.refuse("ERR Invalid command specified")
		return true
	}
	keys, problem := target.Keys(args, nil)
	if problem != "" {
		s.refuse(problem)
		return true
	}
	if len(keys) == 0 {
		s.refuse("ERR The command has no key arguments")
		return true
	}
	return s.answer(cmd, func(b []byte) []byte {
		b = resp.AppendArray(b, len(keys))
		for _, k := range keys {
			b = resp.AppendBulk(b, args[k])
		}
		return b
	})
}
