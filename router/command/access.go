package command

// Access is one key argument of a command with what the command does to it.
type Access struct {
	Pos   int // index into the arguments
	Flags KeyFlags
}

// AccessList finds the keys that Redis checks against the key patterns of a user
// (db.c, getKeysFromCommandWithSpecs). Its zero value is ready; it can be used again
// and again without allocating.
type AccessList struct {
	Keys []Access
	pos  []int
}

// Find fills Keys for args, which have passed Resolve. The published key specs decide,
// except where their flags depend on the arguments or they are incomplete. Arguments
// that make no sense have no keys: the server refuses them before it touches any. Find
// returns false when keys may exist that cannot be told.
func (l *AccessList) Find(c *Command, args [][]byte) bool {
	l.Keys = l.Keys[:0]
	if len(c.KeySpecs) == 0 && c.Flags&MovableKeys == 0 {
		return true
	}
	var all KeyFlags
	for i := range c.KeySpecs {
		all |= c.KeySpecs[i].Flags
	}
	if all&KeyVariableFlags == 0 && len(c.KeySpecs) > 0 && l.bySpecs(c, args) {
		return true
	}
	return l.byRule(c, args)
}

// bySpecs follows the key specs; false if one is incomplete or does not fit.
func (l *AccessList) bySpecs(c *Command, args [][]byte) bool {
	list := keyList{pos: l.pos[:0]}
	for i := range c.KeySpecs {
		s := &c.KeySpecs[i]
		if s.Flags&KeyNotKey != 0 {
			continue
		}
		from := len(list.pos)
		if s.Flags&KeyIncomplete != 0 || !s.collect(args, &list, false) {
			l.Keys, l.pos = l.Keys[:0], list.pos
			return false
		}
		for _, at := range list.pos[from:] {
			l.Keys = append(l.Keys, Access{at, s.Flags})
		}
	}
	l.pos = list.pos
	return true
}

// byRule finds the keys as the command itself does.
func (l *AccessList) byRule(c *Command, args [][]byte) bool {
	list := keyList{pos: l.pos[:0]}
	problem := c.collect(args, &list)
	l.pos = list.pos
	if problem != "" {
		return !c.Has(Module)
	}
	for i, at := range list.pos {
		l.Keys = append(l.Keys, Access{at, c.ruleFlags(args, i)})
	}
	return true
}

// ruleFlags is what the command does to the i-th of its keys, for commands whose key
// specs do not say. When in doubt it reads and changes it.
func (c *Command) ruleFlags(args [][]byte, i int) KeyFlags {
	const changed = KeyRW | KeyAccess | KeyUpdate
	switch c.Name {
	case "set": // SET … GET reads what it replaces
		for _, arg := range args[min(3, len(args)):] {
			if equalFold(arg, "get") {
				return changed
			}
		}
		return KeyOW | KeyUpdate
	case "bitfield":
		if bitfieldReads(args) {
			return KeyRO | KeyAccess
		}
	case "sort", "sort_ro":
		if i == 0 {
			return KeyRO | KeyAccess
		}
		return KeyOW | KeyUpdate
	case "migrate":
		return KeyRW | KeyAccess | KeyDelete
	}
	if c.Has(ReadOnly) {
		return KeyRO | KeyAccess
	}
	return changed
}

// bitfieldReads reports whether every subcommand of a BITFIELD is a GET.
func bitfieldReads(args [][]byte) bool {
	for i := 2; i < len(args); i++ {
		left := len(args) - i - 1
		switch {
		case equalFold(args[i], "get") && left >= 2:
			i += 2
		case equalFold(args[i], "overflow") && left >= 1:
			i++
		default:
			return false
		}
	}
	return true
}

// CategoryNames are the names of the ACL categories by bit, as ACL CAT lists them.
func CategoryNames() []string { return categoryNames[:] }

// Category returns the category called name, in any letter case; 0 if there is none.
func Category(name string) Categories {
	for i, n := range categoryNames {
		if equalFold([]byte(name), n) {
			return 1 << i
		}
	}
	return 0
}
