package command

import "math"

// Key is one key argument of a command.
type Key struct {
	Pos   int  // index into the arguments
	Write bool // the command may change or remove its value
}

// keysRule names how the keys of a command are found: by its key specs, or by
// a function for the few commands whose specs Redis marks as incomplete or that
// read them differently when they run.
type keysRule uint8

const (
	keysBySpecs keysRule = iota
	keysSort
	keysSortRO
	keysMigrate
	keysGeoRadius
	keysXRead
)

// numkeysRule names the errors that a command gives for a bad number of keys.
type numkeysRule uint8

const (
	numkeysUnknown  numkeysRule = iota
	numkeysScript               // EVAL…
	numkeysFunction             // FCALL…
	numkeysZSet                 // ZUNION…
	numkeysPop                  // LMPOP…
	numkeysSetCard              // SINTERCARD
)

const (
	errNoKeys       = "ERR Invalid arguments specified for command"
	errSyntax       = "ERR syntax error"
	errNotInteger   = "ERR value is not an integer or out of range"
	errKeysNegative = "ERR Number of keys can't be negative"
	errKeysTooMany  = "ERR Number of keys can't be greater than number of args"
	errKeysNone     = "ERR numkeys should be greater than 0"
	errMigrateKeys  = "ERR When using MIGRATE KEYS option, the key argument must be set to the empty string"
)

// keyList collects keys as positions, or with their access if rw is set. The
// two forms share one walk over the arguments.
type keyList struct {
	pos []int
	rw  []Key
	is  bool // collect into rw
}

func (l *keyList) add(pos int, write bool) {
	if l.is {
		l.rw = append(l.rw, Key{pos, write})
	} else {
		l.pos = append(l.pos, pos)
	}
}

// Keys appends to pos the indexes in args of all keys of the command. args is
// the whole command, the name first, and has passed Resolve. The positions are
// those in which COMMAND GETKEYS lists the keys; a command without keys adds
// none.
//
// If the keys cannot be told, errText is not empty and pos comes back as it was.
// Where the arguments alone decide it, the text is the one with which Redis 7.0
// itself refuses the command. Otherwise (a module that finds its keys with
// code, a new command with a bad number of keys) it is the one of COMMAND
// GETKEYS. No key of such a command is reached in Redis
// either, so a caller that wants the words of the very version behind it may
// send the command to any node instead; for a command that Has(Module) it should
// ask COMMAND GETKEYS.
//
// Keys allocates only if pos has to grow.
func (c *Command) Keys(args [][]byte, pos []int) (_ []int, errText string) {
	if c.SingleKey && c.KeyPos < len(args) {
		return append(pos, c.KeyPos), ""
	}
	list := keyList{pos: pos}
	if errText = c.collect(args, &list); errText != "" {
		return pos, errText
	}
	return list.pos, ""
}

// KeysRW is Keys that also tells which keys the command may change: of
// ZUNIONSTORE only the destination, of SORT only the key after STORE. When in
// doubt a key counts as changed (BITFIELD always does).
func (c *Command) KeysRW(args [][]byte, keys []Key) (_ []Key, errText string) {
	list := keyList{rw: keys, is: true}
	if errText = c.collect(args, &list); errText != "" {
		return keys, errText
	}
	return list.rw, ""
}

// Channels appends to pos the indexes in args of the channels that are routed
// by slot (SPUBLISH, SSUBSCRIBE, SUNSUBSCRIBE); other commands add none.
func (c *Command) Channels(args [][]byte, pos []int) []int {
	if !c.ShardChannels {
		return pos
	}
	list := keyList{pos: pos}
	if !c.KeySpecs[0].collect(args, &list, false) {
		return pos
	}
	return list.pos
}

func (c *Command) collect(args [][]byte, list *keyList) (errText string) {
	switch c.keys {
	case keysSort:
		collectSort(args, list)
		return ""
	case keysSortRO:
		list.add(1, false)
		return ""
	case keysMigrate:
		return collectMigrate(args, list)
	case keysGeoRadius:
		collectGeoRadius(args, list)
		return ""
	case keysXRead:
		return collectXRead(args, list, c.touch)
	}
	for i := range c.KeySpecs {
		s := &c.KeySpecs[i]
		if s.Flags&KeyNotKey != 0 {
			continue
		}
		if s.Flags&KeyIncomplete != 0 {
			return errNoKeys
		}
		if !s.collect(args, list, c.writes(s)) {
			if errText = c.keysError(args, s); errText != "" {
				return errText
			}
		}
	}
	// MSET and MSETNX check their pairs themselves, their arity cannot.
	if c.Step == 2 && c.LastKey == -1 && (len(args)-c.FirstKey)%2 != 0 {
		return c.ArityError()
	}
	if len(c.KeySpecs) == 0 && c.Flags&MovableKeys != 0 {
		return errNoKeys
	}
	return ""
}

// writes reports whether the command may change the keys of its key spec s. The
// older module API cannot say what happens to a key, so that Redis publishes RW
// even for read-only commands of modules.
func (c *Command) writes(s *KeySpec) bool {
	return s.Flags&(KeyRW|KeyOW|KeyRM) != 0 && !c.Has(Module|ReadOnly)
}

// collect adds the keys of one key spec; false if the spec does not fit the
// arguments. A keyword that is not there or an empty range that goes up to the
// end means no keys, not a misfit.
func (s *KeySpec) collect(args [][]byte, list *keyList, write bool) bool {
	first, ok := s.begin(args)
	if !ok || first == 0 {
		return ok
	}
	last := 0
	switch s.Find {
	case FindRange:
		last = s.rangeEnd(first, len(args))
		if s.LastKey < 0 && last < first {
			return true // PFMERGE with a destination only
		}
	case FindKeyNum:
		n, ok := s.keyCount(args, first)
		if !ok || n < 1 || n > int64(len(args)) {
			return false
		}
		first += s.FirstKey
		last = first + (int(n)-1)*s.KeyStep
	default:
		return false
	}
	if first < 1 || last < first || last >= len(args) || s.KeyStep < 1 {
		return false
	}
	for i := first; i <= last; i += s.KeyStep {
		list.add(i, write)
	}
	return true
}

// begin returns where the keys begin, 0 if there are none; false if the spec
// does not say.
func (s *KeySpec) begin(args [][]byte) (int, bool) {
	switch s.Begin {
	case BeginIndex:
		return s.Index, true
	case BeginKeyword:
		i, step := s.StartFrom, 1
		if i < 0 {
			i, step = len(args)+i, -1
		}
		for ; i >= 1 && i < len(args); i += step {
			if equalFoldUpper(args[i], s.Keyword) {
				return i + 1, true
			}
		}
		return 0, true
	}
	return 0, false
}

// rangeEnd is the position of the last key of a range that begins at first,
// among n arguments.
func (s *KeySpec) rangeEnd(first, n int) int {
	switch {
	case s.LastKey >= 0:
		return first + s.LastKey
	case s.Limit > 1:
		return first + (n-first)/s.Limit + s.LastKey
	}
	return n + s.LastKey
}

// keyCount reads the number of keys; false if there is no valid number.
func (s *KeySpec) keyCount(args [][]byte, first int) (int64, bool) {
	i := first + s.KeyNumIdx
	if i < 1 || i >= len(args) {
		return 0, false
	}
	return parseInteger(args[i])
}

// keysError is the text with which the command refuses arguments that its key
// spec s does not fit; "" if it may do without these keys and has none.
func (c *Command) keysError(args [][]byte, s *KeySpec) string {
	if s.Find != FindKeyNum {
		return errNoKeys
	}
	first, _ := s.begin(args)
	n, valid := s.keyCount(args, first)
	if valid && n == 0 && c.Flags&NoMandatoryKeys != 0 {
		return ""
	}
	switch c.numkeys {
	case numkeysUnknown:
		return errNoKeys
	case numkeysScript, numkeysFunction:
		switch {
		case !valid && c.numkeys == numkeysFunction:
			return "ERR Bad number of keys provided"
		case !valid:
			return errNotInteger
		case n < 0:
			return errKeysNegative
		}
		return errKeysTooMany
	case numkeysZSet:
		switch {
		case !valid:
			return errNotInteger
		case n < 1:
			return "ERR at least 1 input key is needed for '" + c.Name + "' command"
		}
		return errSyntax
	}
	switch {
	case !valid || n < 1:
		return errKeysNone
	case c.numkeys == numkeysSetCard:
		return errKeysTooMany
	}
	return errSyntax
}

// collectSort finds the keys of SORT: the key, and what follows the last STORE.
// BY and GET patterns may reach further keys, which no argument names.
// Options that take arguments are skipped, as Redis does.
func collectSort(args [][]byte, list *keyList) {
	list.add(1, false)
	store := 0
	for i := 2; i < len(args); i++ {
		switch arg := args[i]; {
		case equalFold(arg, "limit"):
			i += 2
		case equalFold(arg, "get"), equalFold(arg, "by"):
			i++
		case equalFold(arg, "store") && i+1 < len(args):
			store = i + 1
		}
	}
	if store > 0 {
		list.add(store, true)
	}
}

// collectMigrate finds the keys of MIGRATE: argument 3, or if that is empty all
// arguments after KEYS.
func collectMigrate(args [][]byte, list *keyList) string {
	for i := 6; i < len(args); i++ {
		switch arg := args[i]; {
		case equalFold(arg, "auth"):
			i++
		case equalFold(arg, "auth2"):
			i += 2
		case equalFold(arg, "keys"):
			if len(args[3]) > 0 {
				return errMigrateKeys
			}
			for i++; i < len(args); i++ {
				list.add(i, true)
			}
			return ""
		}
	}
	list.add(3, true)
	return ""
}

// collectGeoRadius finds the keys of GEORADIUS and GEORADIUSBYMEMBER. With both
// STORE and STOREDIST the later one is the destination; the key specs would
// name both.
func collectGeoRadius(args [][]byte, list *keyList) {
	list.add(1, false)
	store := 0
	for i := 5; i+1 < len(args); i++ {
		if equalFold(args[i], "store") || equalFold(args[i], "storedist") {
			i++
			store = i
		}
	}
	if store > 0 {
		list.add(store, true)
	}
}

// collectXRead finds the keys of XREAD and XREADGROUP: the first half of what
// follows STREAMS. The word may also be a group, a consumer or a key, so the
// options before it have to be read.
func collectXRead(args [][]byte, list *keyList, write bool) string {
	i := 1
options:
	for ; i < len(args); i++ {
		switch arg := args[i]; {
		case equalFold(arg, "block"), equalFold(arg, "count"), equalFold(arg, "claim"):
			i++
		case equalFold(arg, "group"):
			i += 2
		case equalFold(arg, "noack"):
		default:
			break options
		}
	}
	if i >= len(args)-1 || !equalFold(args[i], "streams") {
		return errSyntax
	}
	first := i + 1
	n := len(args) - first
	if n%2 != 0 {
		return "ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified."
	}
	for i := range n / 2 {
		list.add(first+i, write)
	}
	return ""
}

// parseInteger reads a decimal the way Redis does (util.c, string2ll): no sign
// but '-', no leading zeros, no spaces, within 64 bits.
func parseInteger(b []byte) (int64, bool) {
	if len(b) == 1 && b[0] == '0' {
		return 0, true
	}
	negative := len(b) > 0 && b[0] == '-'
	if negative {
		b = b[1:]
	}
	if len(b) == 0 || len(b) > 19 || b[0] == '0' {
		return 0, false
	}
	var n uint64
	for _, d := range b {
		if d < '0' || d > '9' {
			return 0, false
		}
		n = n*10 + uint64(d-'0')
	}
	switch {
	case negative && n <= -math.MinInt64:
		return -int64(n), true
	case !negative && n <= math.MaxInt64:
		return int64(n), true
	}
	return 0, false
}

// equalFoldUpper reports whether arg is upper, which is in upper case, in any
// case.
func equalFoldUpper(arg []byte, upper string) bool {
	if len(arg) != len(upper) {
		return false
	}
	for i, b := range arg {
		if b-'a' < 26 {
			b -= 'a' - 'A'
		}
		if b != upper[i] {
			return false
		}
	}
	return true
}
