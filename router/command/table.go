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
	cmds, err := builtinRows()
	if err == nil {
		var t *Table
		if t, err = newTable(cmds, nil); err == nil {
			return t
		}
	}
	panic("BUG: commands.tsv: " + err.Error())
}

// builtinRows are the generated rows, those written by hand of commands that the
// generator has not met, and the proxy's own.
func builtinRows() ([]Command, error) {
	cmds, err := ParseRows(commandsTSV)
	if err != nil {
		return nil, err
	}
	unseen, err := ParseRows(unseenRows)
	if err != nil {
		return nil, err
	}
	seen := make(map[string]bool, len(cmds))
	for i := range cmds {
		seen[cmds[i].Name] = true
	}
	for _, c := range unseen {
		if !seen[c.Name] {
			cmds = append(cmds, c)
		}
	}
	own, err := ParseRows(ownRows)
	if err != nil {
		return nil, err
	}
	for _, c := range own {
		c.Own = true
		cmds = append(cmds, c)
	}
	return cmds, nil
}

// Table is an immutable set of commands. The built-in one knows every command of
// every version; the one that Merge makes of it answers as the backend does.
type Table struct {
	cmds  []Command           // by ID
	all   []*Command          // into cmds, by ID
	named map[string]*Command // by full name, whether the backend has it or not

	// index is an open-addressing hash table of the names that can be called:
	// position in names + 1, 0 for a free place. It is at most a quarter full, so
	// probes are short.
	index []uint16
	names []callable
	shift uint // hash bits above the index's size
}

// callable is a name that leads to a top-level command: the command's own, or the
// one that the backend's rename-command gave it.
type callable struct {
	name string
	cmd  *Command

	spelling spelling
	spelled  bool // two names of this length with the same spelling are the same
}

// newTable takes ownership of cmds, numbers them and links subcommands to their
// containers. aliases are further names, by the command's own.
func newTable(cmds []Command, aliases []callable) (*Table, error) {
	if len(cmds)+len(aliases) >= 1<<16-1 {
		return nil, fmt.Errorf("cannot number %d commands", len(cmds))
	}
	size := 1 << bits.Len(uint(4*(len(cmds)+len(aliases))))
	t := &Table{
		cmds:  cmds,
		all:   make([]*Command, len(cmds)),
		named: make(map[string]*Command, len(cmds)),
		index: make([]uint16, size),
		shift: uint(64 - bits.Len(uint(size-1))),
	}
	for i := range cmds {
		c := &cmds[i]
		c.ID, c.Parent, c.Subs = ID(i), nil, nil
		t.all[i] = c
		if t.named[c.Name] != nil {
			return nil, fmt.Errorf("cannot add command %q twice", c.Name)
		}
		t.named[c.Name] = c
		c.derive()
		c.overlay()
		if !c.absent && !strings.Contains(c.Name, "|") {
			t.insert(c.Name, c)
		}
	}
	for _, a := range aliases {
		if t.Lookup([]byte(a.name)) == nil {
			t.insert(a.name, t.named[a.cmd.Name])
		}
	}
	for _, c := range t.all {
		container, sub, found := strings.Cut(c.Name, "|")
		if !found {
			continue
		}
		c.sub = sub
		if c.Parent = t.named[container]; c.Parent == nil {
			return nil, fmt.Errorf("cannot find the container of %q", c.Name)
		}
		if !c.absent {
			c.Parent.Subs = append(c.Parent.Subs, c)
		}
	}
	return t, nil
}

// insert makes name lead to c.
func (t *Table) insert(name string, c *Command) {
	mask := len(t.index) - 1
	sp := spell([]byte(name))
	i := t.bucket(sp, len(name))
	for t.index[i] != 0 {
		i = (i + 1) & mask
	}
	t.names = append(t.names, callable{name, c, sp, len(name) <= 16 && onlyLetters(name)})
	t.index[i] = uint16(len(t.names))
}

// spelling is the first and the last eight bytes of a name, with letters folded to lower case (and
// other bytes to something). With the length it says everything about a name of up to 16 letters.
type spelling struct{ head, tail uint64 }

func spell(name []byte) spelling {
	const fold = 0x2020202020202020
	switch n := len(name); {
	case n >= 8:
		return spelling{binary.LittleEndian.Uint64(name) | fold, binary.LittleEndian.Uint64(name[n-8:]) | fold}
	case n >= 4:
		return spelling{uint64(binary.LittleEndian.Uint32(name)) | fold, uint64(binary.LittleEndian.Uint32(name[n-4:])) | fold}
	case n > 0:
		return spelling{uint64(name[0]) | uint64(name[n/2])<<8 | fold, uint64(name[n-1]) | fold}
	}
	return spelling{fold, fold}
}

func onlyLetters(lower string) bool {
	for _, b := range []byte(lower) {
		if b < 'a' || b > 'z' {
			return false
		}
	}
	return true
}

// bucket is where the search for a name begins.
func (t *Table) bucket(sp spelling, length int) int {
	const mul = 0x9E3779B97F4A7C15 // 2^64 / golden ratio
	return int((sp.head*mul ^ sp.tail ^ uint64(length)) * mul >> t.shift)
}

// Lookup returns the command that name calls, in any letter case, or nil. It does
// not look for subcommands: "config|get" is not a command name.
func (t *Table) Lookup(name []byte) *Command {
	mask, sp := len(t.index)-1, spell(name)
	for i := t.bucket(sp, len(name)); t.index[i] != 0; i = (i + 1) & mask {
		n := &t.names[t.index[i]-1]
		if n.spelling == sp && len(n.name) == len(name) && (n.spelled || equalFold(name, n.name)) {
			return n.cmd
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

// Named returns the command with that full name in lower case, or nil. Unlike
// LookupFull it also finds what the backend does not have, and by its own name
// what the backend has renamed.
func (t *Table) Named(name string) *Command { return t.named[name] }

// Count is the number of commands, subcommands included; every ID is below it.
func (t *Table) Count() int { return len(t.cmds) }

// All returns all commands by ID. The caller must not change the slice.
func (t *Table) All() []*Command { return t.all }

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

// Called returns the command or subcommand that args call, whatever their number; nil if
// there is none.
func (t *Table) Called(args [][]byte) *Command {
	c := t.Lookup(args[0])
	if c == nil || len(c.Subs) == 0 || len(args) == 1 {
		return c
	}
	return c.Sub(args[1])
}

// MayHaveKeys reports whether COMMAND GETKEYS looks for keys of the command at all.
func (c *Command) MayHaveKeys() bool {
	for i := range c.KeySpecs {
		if c.KeySpecs[i].Flags&KeyNotKey == 0 {
			return true
		}
	}
	return c.Has(MovableKeys)
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

// All is Table.All of the built-in table.
func All() []*Command { return builtin.All() }

// Count is Table.Count of the built-in table.
func Count() int { return builtin.Count() }

// Builtin returns the built-in table, to Merge with.
func Builtin() *Table { return builtin }
