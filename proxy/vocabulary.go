package proxy

import "cosky-proxy/router/command"

// vocabulary is the commands of the backend with what the proxy does about each. It
// is immutable; every loop has a reference to the newest one.
type vocabulary struct {
	table    *command.Table
	handlers []handler // by command ID
	reads    []*read   // by command ID
	sources  []source  // by command ID; nil: the owner answers everything
}

func newVocabulary(o *Options, t *command.Table) *vocabulary {
	return &vocabulary{t, newHandlers(o, t), newReads(t), newReadSources(&o.Reads, t)}
}

// AdoptCommands tells every loop which commands the backend has, as it listed them
// itself (command.ParseReply). Any goroutine.
func (s *Server) AdoptCommands(theirs []command.Command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.commands.Load().table.Merge(theirs)
	if err != nil {
		s.log.Warn("the backend's list of commands makes no sense, going on with the last one", "cause", err)
		return
	}
	s.setCommandsLocked(t)
}

// setCommandsLocked makes t the table of every loop.
func (s *Server) setCommandsLocked(t *command.Table) {
	v := newVocabulary(&s.opts, t)
	s.commands.Store(v)
	for _, l := range s.loops {
		l.nl.Post(func() { l.learn(v) })
	}
}

// learn makes v the loop's vocabulary. Requests in flight keep the commands they
// were resolved to: IDs are the same in every table of one server.
func (l *loop) learn(v *vocabulary) {
	l.table, l.handlers, l.reads, l.readSources = v.table, v.handlers, v.reads, v.sources
	l.stats.Grow(v.table.Count())
}

// CommandName names the counters that stats.Snapshot.Commands has at id.
func (s *Server) CommandName(id int) string {
	if all := s.commands.Load().table.All(); id < len(all) {
		return all[id].Name
	}
	return ""
}

// learnName makes name call the command that theirs begins with, for every loop. Any
// goroutine.
func (s *Server) learnName(name string, theirs []command.Command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.commands.Load().table
	if t.Lookup([]byte(name)) != nil {
		return // two clients asked
	}
	t, err := t.Rename(name, theirs)
	if err != nil {
		s.log.Warn("the backend's description of a command makes no sense", "command", name, "cause", err)
		return
	}
	s.setCommandsLocked(t)
}
