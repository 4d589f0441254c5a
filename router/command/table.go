package command

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

//go:embed commands.tsv
var commandsTSV string

// builtin is the table of this release. It is never changed.
var builtin = mustBuiltin()

func mustBuiltin() *Table {
	cmds, err := parseRows(commandsTSV + newerRows)
	if err == nil {
		var t *Table
		if t, err = newTable(cmds); err == nil {
			return t
		}
	}
	panic("BUG: commands.tsv: " + err.Error())
}

// Table is an immutable set of commands. Most callers want the built-in one,
// through the functions of the package; a proxy that has read the COMMAND reply
// of its backend uses what Merge returned.
type Table struct {
	cmds []Command  // by ID
	all  []*Command // into cmds, by ID
	// index is an open-addressing hash table of top-level commands: ID+1, 0
	// for a free place. It is at most a quarter full, so probes are short.
	index []uint16
	shift uint // hash bits above the index's size
}

// newTable takes ownership of cmds, numbers them and links subcommands to their
// containers.
func newTable(cmds []Command) (*Table, error) {
	if len(cmds) >= 1<<16-1 {
		return nil, fmt.Errorf("cannot number %d commands", len(cmds))
	}
	size := 1 << bits.Len(uint(4*len(cmds)))
	t := &Table{
		cmds:  cmds,
		all:   make([]*Command, len(cmds)),
		index: make([]uint16, size),
		shift: uint(64 - bits.Len(uint(size-1))),
	}
	for i := range cmds {
		c := &cmds[i]
		c.ID, c.Parent, c.Subs = ID(i), nil, nil
		t.all[i] = c
		c.derive()
		c.overlay()
		if strings.Contains(c.Name, "|") {
			continue
		}
		if !t.insert(c) {
			return nil, fmt.Errorf("cannot add command %q twice", c.Name)
		}
	}
	for _, c := range t.all {
		container, sub, found := strings.Cut(c.Name, "|")
		if !found {
			continue
		}
		c.sub = sub
		if c.Parent = t.Lookup([]byte(container)); c.Parent == nil {
			return nil, fmt.Errorf("cannot find the container of %q", c.Name)
		}
		if c.Parent.Sub([]byte(sub)) != nil {
			return nil, fmt.Errorf("cannot add command %q twice", c.Name)
		}
		c.Parent.Subs = append(c.Parent.Subs, c)
	}
	return t, nil
}

// insert puts c into the index; false if the name is there already.
func (t *Table) insert(c *Command) bool {
	mask := len(t.index) - 1
	i := t.bucket([]byte(c.Name))
	for ; t.index[i] != 0; i = (i + 1) & mask {
		if t.cmds[t.index[i]-1].Name == c.Name {
			return false
		}
	}
	t.index[i] = uint16(c.ID) + 1
	return true
}

// bucket is where the search for name begins. The hash looks at the length and
// at the first and last eight bytes, with letters folded to lower case (other
// bytes are folded too, which only costs a probe).
func (t *Table) bucket(name []byte) int {
	const (
		fold = 0x2020202020202020
		mul  = 0x9E3779B97F4A7C15 // 2^64 / golden ratio
	)
	var head, tail uint64
	switch n := len(name); {
	case n >= 8:
		head, tail = binary.LittleEndian.Uint64(name), binary.LittleEndian.Uint64(name[n-8:])
	case n >= 4:
		head, tail = uint64(binary.LittleEndian.Uint32(name)), uint64(binary.LittleEndian.Uint32(name[n-4:]))
	case n > 0:
		head, tail = uint64(name[0])|uint64(name[n/2])<<8, uint64(name[n-1])
	}
	h := ((head|fold)*mul ^ (tail | fold) ^ uint64(len(name))) * mul
	return int(h >> t.shift)
}

// Lookup returns the command called name, in any letter case, or nil. It does
// not look for subcommands: "config|get" is not a command name.
func (t *Table) Lookup(name []byte) *Command {
	mask := len(t.index) - 1
	for i := t.bucket(name); t.index[i] != 0; i = (i + 1) & mask {
		if c := &t.cmds[t.index[i]-1]; equalFold(name, c.Name) {
			return c
		}
	}
	return nil
}

// LookupFull is Lookup for names as COMMAND INFO and ACL rules take them, in
// which "config|get" is the subcommand.
func (t *Table) LookupFull(name []byte) *Command {
	for i, b := range name {
		if b != '|' {
			continue
		}
		container := t.Lookup(name[:i])
		if container == nil {
			return nil
		}
		return container.Sub(name[i+1:])
	}
	return t.Lookup(name)
}

// Count is the number of commands, subcommands included; every ID is below it.
func (t *Table) Count() int { return len(t.cmds) }

// All returns all commands by ID. The caller must not change the slice.
func (t *Table) All() []*Command { return t.all }

// Merge returns a table that also has the commands that only the backend's
// COMMAND reply has (see ParseReply for its form). Commands known before keep
// their ID and their data: the overlay goes with them. The pointers of the two
// tables differ.
func (t *Table) Merge(reply any) (*Table, error) {
	theirs, err := ParseReply(reply)
	if err != nil {
		return nil, err
	}
	cmds := slices.Clone(t.cmds)
	for _, c := range theirs {
		if t.LookupFull([]byte(c.Name)) == nil {
			cmds = append(cmds, c)
		}
	}
	return newTable(cmds)
}

// Resolve finds the command that args call and checks its arity, in the way and
// with the words of Redis (server.c: lookupCommand, commandCheckExistence,
// commandCheckArity). If there is an error, err is its text: one line without
// '-' and CRLF, and cmd is nil. args must hold at least the command's name.
//
// Only the error path allocates.
func (t *Table) Resolve(args [][]byte) (cmd *Command, err string) {
	c := t.Lookup(args[0])
	if c == nil {
		return nil, unknownCommand(args)
	}
	if len(c.Subs) > 0 && len(args) > 1 {
		s := c.Sub(args[1])
		if s == nil {
			return nil, unknownSubcommand(args)
		}
		c = s
	}
	if !c.AcceptsCount(len(args)) {
		return nil, c.ArityError()
	}
	return c, ""
}

// AcceptsCount reports whether n arguments, the name(s) included, satisfy the
// command's arity.
func (c *Command) AcceptsCount(n int) bool {
	if c.Arity > 0 {
		return n == c.Arity
	}
	return n >= -c.Arity
}

// ArityError is the error text for a wrong number of arguments.
func (c *Command) ArityError() string {
	return "ERR wrong number of arguments for '" + c.Name + "' command"
}

// maxEcho is how many bytes of a name, and of all arguments together, Redis
// repeats in the errors about unknown commands.
const maxEcho = 128

func unknownCommand(args [][]byte) string {
	var echo []byte
	for _, arg := range args[1:] {
		if len(echo) >= maxEcho {
			break
		}
		echo = append(append(append(echo, '\''), cString(arg, maxEcho-len(echo))...), "' "...)
	}
	return oneLine("ERR unknown command '" + string(cString(args[0], maxEcho)) + "', with args beginning with: " + string(echo))
}

func unknownSubcommand(args [][]byte) string {
	return oneLine("ERR unknown subcommand '" + string(cString(args[1], maxEcho)) + "'. Try " + strings.ToUpper(string(args[0])) + " HELP.")
}

// cString is what C's "%.*s" prints of b: at most max bytes, and nothing from
// the first NUL on.
func cString(b []byte, max int) []byte {
	b = b[:min(len(b), max)]
	if i := slices.Index(b, 0); i >= 0 {
		b = b[:i]
	}
	return b
}

// oneLine replaces what would end the error line too early, like Redis does.
func oneLine(s string) string {
	return strings.NewReplacer("\r", " ", "\n", " ").Replace(s)
}

// equalFold reports whether name is lower, which is in lower case, in any case.
func equalFold(name []byte, lower string) bool {
	if len(name) != len(lower) {
		return false
	}
	for i, b := range name {
		if b-'A' < 26 {
			b |= 0x20
		}
		if b != lower[i] {
			return false
		}
	}
	return true
}

// Lookup is Table.Lookup of the built-in table.
func Lookup(name []byte) *Command { return builtin.Lookup(name) }

// LookupFull is Table.LookupFull of the built-in table.
func LookupFull(name []byte) *Command { return builtin.LookupFull(name) }

// Resolve is Table.Resolve of the built-in table.
func Resolve(args [][]byte) (cmd *Command, err string) { return builtin.Resolve(args) }

// All is Table.All of the built-in table.
func All() []*Command { return builtin.All() }

// Count is Table.Count of the built-in table.
func Count() int { return builtin.Count() }

// Builtin returns the built-in table, to Merge with.
func Builtin() *Table { return builtin }
