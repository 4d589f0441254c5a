package router

import (
	"bytes"

	"cosky-proxy/router/command"
)

// Scope is which servers of a cluster a command that names no key concerns.
type Scope uint8

const (
	AnyShard  Scope = iota // one will do: all would say the same, or the matter is a single server's
	AllShards              // every master
	AllNodes               // every master and replica: settings that a failover must not change
	Nowhere                // there is no sensible way to send it to a cluster
)

// ScopeOf says where a keyless command goes: by the request policy that Redis publishes, and by
// hand where it publishes none or means clients that know every node.
//
// all_nodes is not taken at its word in general. What the proxy's clients do leaves no trace on a
// replica, and a replica that is down must not make SCRIPT LOAD or SLOWLOG fail.
func ScopeOf(cmd *command.Command) Scope {
	switch cmd.Name {
	case "config|set", "config|rewrite", "config|resetstat",
		"acl|setuser", "acl|deluser", "acl|save", "acl|load",
		"module|load", "module|loadex", "module|unload":
		return AllNodes
	case "save", "bgsave", "bgrewriteaof", "lastsave", "acl|log":
		return AllShards
	case "shutdown":
		return Nowhere
	}
	switch cmd.Request {
	case command.RequestDefault:
		return AnyShard
	case command.RequestAllShards, command.RequestAllNodes:
		return AllShards
	}
	return Nowhere
}

// FixedTag returns a key that has the slot of everything that a glob-style pattern matches, nil if matching
// keys may have several: the pattern then is a key itself, or begins with a hash tag that nothing in it can vary.
func FixedTag(pattern []byte) []byte {
	varies := bytes.IndexAny(pattern, `*?[\`)
	if varies < 0 {
		return pattern
	}
	fixed := pattern[:varies]
	open := bytes.IndexByte(fixed, '{')
	if open < 0 {
		return nil
	}
	if n := bytes.IndexByte(fixed[open:], '}'); n > 1 {
		return fixed[:open+n+1]
	}
	return nil
}
