package router

import (
	"bytes"
	"regexp"
	"strconv"

	"cosky-proxy/router/command"
)

// ScriptKey is where a script that declares no keys will look for its first one, as far as its text shows: at a
// literal, or at an argument. A script may declare none only if all it touches lies on the shard
// that executes it, so the shard of the first key is the one that can.
type ScriptKey struct {
	Literal []byte // nil: none
	Arg     int    // ARGV[Arg], counted from 1; 0: none
}

// Of returns the key itself, nil if there is none; argv are the arguments of the call.
func (k ScriptKey) Of(argv [][]byte) []byte {
	if k.Arg > 0 && k.Arg <= len(argv) {
		return argv[k.Arg-1]
	}
	return k.Literal
}

// calls finds calls of commands whose first argument is a literal or an argument of the script.
var calls = regexp.MustCompile(`\b(?:redis|server)\s*\.\s*p?call\s*\(\s*['"]([\w.]+)['"]\s*,\s*(?:'([^'\\]*)'|"([^"\\]*)"|(?:ARGV|argv|args)\s*\[\s*(\d+)\s*\])\s*(\.\.)?`)

// registrations finds the functions of a library.
var registrations = regexp.MustCompile(`\bregister_function\s*[({]?[^'"]*['"]([\w]+)['"]`)

// OnlyFunction is the name of the one function that a library registers, nil if there are several: then its text does not
// tell which code belongs to which.
func OnlyFunction(library []byte) []byte {
	found := registrations.FindAllSubmatch(library, 2)
	if len(found) != 1 {
		return nil
	}
	return found[0][1]
}

// KeyOfScript looks for the first call in a script's text whose first argument is a key. find knows
// commands by name.
func KeyOfScript(text []byte, find func(name []byte) *command.Command) ScriptKey {
	for _, m := range calls.FindAllSubmatch(text, -1) {
		cmd := find(bytes.ToLower(m[1]))
		if cmd == nil || cmd.FirstKey != 1 || len(m[5]) > 0 { // what is put together is not known
			continue
		}
		switch {
		case m[4] != nil:
			n, _ := strconv.Atoi(string(m[4]))
			return ScriptKey{Arg: n}
		case m[3] != nil:
			return ScriptKey{Literal: bytes.Clone(m[3])}
		default:
			return ScriptKey{Literal: bytes.Clone(m[2])}
		}
	}
	return ScriptKey{}
}
