package lua

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
)

//go:embed *.lua
var texts embed.FS

// Access says whether a script writes.
type Access uint8

const (
	// ReadOnly scripts never write.
	ReadOnly Access = iota
	// Noticing scripts answer a question, but remove and announce an expired instance
	// when they meet one. As EVALSHA_RO they fail at that point.
	Noticing
	// ReadWrite scripts are meant to write.
	ReadWrite
)

// Answer says what the reply of a script that only asks is made of, and with that how it
// can be kept up to date.
type Answer uint8

const (
	NoAnswer       Answer = iota // it is there for what it does
	Instances                    // ARGV service: a list of fields for each instance, ttl_at last
	Instance                     // ARGV service, instance: its fields
	InstanceExpiry               // ARGV service, instance: the second at which it expires
	InstanceCount                // the number of instances
	Topology                     // consumers and their producers
)

// Args returns how many arguments a call must have to be answered.
func (a Answer) Args() int {
	switch a {
	case Instances:
		return 1
	case Instance, InstanceExpiry:
		return 2
	}
	return 0
}

// Script is one script of CoSky in one wording. All fields are static.
type Script struct {
	Name    string // e.g. "config_set"
	Text    string // the project's own wording; empty for CoSky's, of which only digests are known
	SHA1    string // of the text, lower-case hex
	Release string // releases of CoSky that send this wording, e.g. "4.0-5.7"; empty for the project's own
	Access  Access
	Answer  Answer
	Foreign bool // not of CoSky: somebody says that it has the effect of Name

	effect func(*Effect, call)
}

// library finds scripts. It is immutable once built.
type library struct {
	own    []*Script // by name
	bySHA1 map[[sha1.Size]byte]*Script
}

// scripts builds the library on first use.
var scripts = sync.OnceValue(newLibrary)

func newLibrary() *library {
	l := &library{bySHA1: make(map[[sha1.Size]byte]*Script)}
	for _, d := range definitions {
		text, err := texts.ReadFile(d.name + ".lua")
		if err != nil {
			panic("BUG: script without text: " + err.Error())
		}
		digest := sha1.Sum(text)
		own := &Script{Name: d.name, Text: string(text), SHA1: hex.EncodeToString(digest[:]), Access: d.access, Answer: d.answer, effect: d.effect}
		l.own = append(l.own, own)
		l.bySHA1[digest] = own
		for _, r := range d.released {
			s := &Script{Name: d.name, SHA1: r.sha1, Release: r.release, Access: d.access, Answer: d.answer, effect: d.effect}
			l.bySHA1[mustDecode(r.sha1)] = s
		}
	}
	slices.SortFunc(l.own, func(a, b *Script) int { return strings.Compare(a.Name, b.Name) })
	return l
}

func mustDecode(s string) (digest [sha1.Size]byte) {
	if n, err := hex.Decode(digest[:], []byte(s)); err != nil || n != sha1.Size {
		panic("BUG: malformed digest " + s)
	}
	return digest
}

// Alike returns a script of somebody else's that has the effect, and if it only asks the kind
// of reply, of the one with the given name.
func Alike(sha, name string) (*Script, error) {
	if _, err := hex.DecodeString(sha); err != nil || len(sha) != hex.EncodedLen(sha1.Size) {
		return nil, fmt.Errorf("cannot use %q as the digest of a script: not a SHA-1 of 40 hexadecimal digits", sha)
	}
	like := ByName(name)
	if like == nil {
		return nil, fmt.Errorf("cannot give a script the effect %q: there is none of that name", name)
	}
	s := *like
	s.Text, s.SHA1, s.Foreign = "", strings.ToLower(sha), true
	return &s, nil
}

// Known returns every script of CoSky by the digest of its wording in lower-case hex.
func Known() map[string]*Script {
	known := make(map[string]*Script)
	for _, s := range scripts().bySHA1 {
		known[s.SHA1] = s
	}
	return known
}

// All returns the project's own scripts by name.
func All() []*Script { return slices.Clone(scripts().own) }

// ByName returns the project's own wording of a script, or nil.
func ByName(name string) *Script {
	own := scripts().own
	i, found := slices.BinarySearchFunc(own, name, func(s *Script, name string) int { return strings.Compare(s.Name, name) })
	if !found {
		return nil
	}
	return own[i]
}

// BySHA returns the script with the given SHA-1 in hex, in any letter case as Redis takes
// it: one of the project's own or one that CoSky releases send. It returns nil for all others.
func BySHA(sha []byte) *Script {
	var digest [sha1.Size]byte
	if len(sha) != hex.EncodedLen(sha1.Size) {
		return nil
	}
	if _, err := hex.Decode(digest[:], sha); err != nil {
		return nil
	}
	return scripts().bySHA1[digest]
}
