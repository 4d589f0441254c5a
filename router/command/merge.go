package command

import (
	"slices"
	"strings"
)

// Merge returns the table of a backend that lists its commands as theirs, which
// ParseReply has read from the reply of COMMAND or COMMAND INFO.
//
//   - A command known before keeps its ID and what overlay.go says of it; about the
//     rest the backend is right, see update.
//   - A command not known before gets the next ID, its subcommands too.
//   - A command that is not in the list is not found any more, unless the proxy
//     answers it whatever the backend has (Local).
//   - A command of the proxy's own stays, unless the backend has one of that name.
//
// The pointers of the two tables differ. Names that Rename has added are dropped.
func (t *Table) Merge(theirs []Command) (*Table, error) {
	cmds, listed := t.learn(theirs)
	for i := range cmds {
		c := &cmds[i]
		container, _, isSub := strings.Cut(c.Name, "|")
		c.Own = ownName(c.Name) && listed[container] == nil
		switch {
		case listed[c.Name] != nil, c.Local, c.Own:
			c.absent = false
		case isSub && !ownName(container) && listed[container] != nil && listed[container].legacy:
			c.absent = false // servers before 7.0 list no subcommands
		default:
			c.absent = true
		}
	}
	return newTable(cmds, nil)
}

// Rename returns a table in which name, in lower case, calls the command that
// theirs begins with: what the backend answers to COMMAND INFO name. Their names
// differ where the backend's configuration has renamed the command.
func (t *Table) Rename(name string, theirs []Command) (*Table, error) {
	cmds, listed := t.learn(theirs)
	own := theirs[0].Name
	for i := range cmds {
		c := &cmds[i]
		if listed[c.Name] != nil && (c.Name != own || own == name) {
			c.absent = false
		}
	}
	aliases := append(t.aliases(), callable{name: name, cmd: &theirs[0]})
	return newTable(cmds, aliases)
}

// aliases are the names that are not their command's own.
func (t *Table) aliases() []callable {
	var aliases []callable
	for _, n := range t.names {
		if n.name != n.cmd.Name {
			aliases = append(aliases, n)
		}
	}
	return aliases
}

// learn returns the commands of t, changed and completed by theirs. New ones are
// absent at first.
func (t *Table) learn(theirs []Command) (cmds []Command, listed map[string]*Command) {
	cmds = slices.Clone(t.cmds)
	listed = make(map[string]*Command, len(theirs))
	for i := range theirs {
		c := &theirs[i]
		if listed[c.Name] != nil {
			continue
		}
		listed[c.Name] = c
		if known := t.named[c.Name]; known != nil {
			if ownName(c.Name) {
				cmds[known.ID] = *c
			} else {
				cmds[known.ID].update(c)
			}
			continue
		}
		added := *c
		added.absent = true
		cmds = append(cmds, added)
	}
	return cmds, listed
}

// update takes over what a backend says of c.
//
// What it leaves out is not taken for a denial: older servers do not publish which
// shards a command concerns, nor that WAIT blocks, and before 7.0 they publish next
// to nothing.
func (c *Command) update(live *Command) {
	if live.legacy {
		if len(c.Subs) == 0 {
			c.Arity = live.Arity
		}
		return
	}
	c.Arity = live.Arity
	c.Flags = live.Flags | c.Flags&Blocking
	c.FirstKey, c.LastKey, c.Step = live.FirstKey, live.LastKey, live.Step
	c.Categories = live.Categories
	c.Tips = withTips(live.Tips, c.Tips)
	if len(live.KeySpecs) > 0 {
		c.KeySpecs = live.KeySpecs
	}
}

// withTips returns tips and those of more that say something tips do not mention.
func withTips(tips, more []string) []string {
	kind := func(tip string) string {
		name, _, _ := strings.Cut(tip, ":")
		return name
	}
	out := slices.Clone(tips)
	for _, m := range more {
		if !slices.ContainsFunc(tips, func(tip string) bool { return kind(tip) == kind(m) }) {
			out = append(out, m)
		}
	}
	return out
}
