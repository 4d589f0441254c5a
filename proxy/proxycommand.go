package proxy

import (
	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// PROXY is about this proxy, not about the data behind it. It is the proxy's own command: a
// backend that has one of that name keeps it (command.Table.Merge).

// setOwnHandlers adds the commands that only the proxy has.
func setOwnHandlers(t *command.Table, set func(h handler, names ...string)) {
	for name, h := range map[string]handler{
		"proxy|help":    (*session).proxyHelp,
		"proxy|cache":   (*session).proxyCache,
		"proxy|hotkeys": (*session).proxyHotKeys,
		"proxy|slowlog": (*session).proxySlowLog,
		"cosky.sync":    (*session).synchroniseAll,
	} {
		if cmd := t.Named(name); cmd != nil && cmd.Own {
			set(h, name)
		}
	}
}

var proxyHelpLines = []string{
	"PROXY <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
	"CACHE FLUSH [<pattern>]",
	"    Drop what is cached: everything, or of the keys that match the pattern.",
	"CACHE INSPECT <key>",
	"    Return what is known here about a key.",
	"CACHE STATS",
	"    Return what the near-cache has done so far.",
	"HOTKEYS [<count>]",
	"    Return the keys that are read most at present. 20 by default.",
	"SLOWLOG GET [<count>]",
	"    Return the last commands that clients waited for long. 10 by default, -1 for all.",
	"SLOWLOG LEN",
	"    Return how many there are.",
	"SLOWLOG RESET",
	"    Forget them.",
	"HELP",
	"    Print this help.",
}

func (s *session) proxyHelp(cmd *command.Command, _ [][]byte, _ []byte) bool {
	return s.answer(cmd, func(b []byte) []byte {
		b = resp.AppendArray(b, len(proxyHelpLines))
		for _, line := range proxyHelpLines {
			b = resp.AppendString(b, line)
		}
		return b
	})
}
