package command

import "strings"

// ID is the dense index of a command in its table, for per-command counters:
// 0 <= ID < Count(). It is stable across Merge, not across releases.
type ID uint16

// Flags are the command flags, in the order in which Redis lists them in
// COMMAND INFO (server.c, addReplyFlagsForCommand). Flags that Redis keeps to
// itself follow after AllowBusy; overlay.go sets them.
type Flags uint64

const (
	Write           Flags = 1 << iota // refused by read-only replicas
	ReadOnly                          // may be served by a replica
	DenyOOM                           // refused when the memory limit is reached
	Module                            // comes from a module
	Admin                             //
	PubSub                            //
	NoScript                          // not callable from a script
	Blocking                          // may block its connection
	Loading                           // allowed while the data set is loading
	Stale                             // allowed on a replica with stale data
	SkipMonitor                       // not shown to MONITOR
	SkipSlowlog                       // never in the slow log
	Asking                            // implies ASKING (RESTORE-ASKING)
	Fast                              //
	NoAuth                            // allowed before authentication
	NoMandatoryKeys                   // may have no key although it has key specs
	NoAsyncLoading                    // refused during a diskless swap load
	NoMulti                           // refused inside MULTI
	MovableKeys                       // the legacy triple does not find all keys
	AllowBusy                         // allowed while a script is timed out

	MayReplicate // may send a write to replicas without being Write
)

// flagNames are the names of Flags by bit, as COMMAND INFO spells them.
var flagNames = [...]string{
	"write", "readonly", "denyoom", "module", "admin", "pubsub", "noscript", "blocking", "loading", "stale",
	"skip_monitor", "skip_slowlog", "asking", "fast", "no_auth", "no_mandatory_keys", "no_async_loading",
	"no_multi", "movablekeys", "allow_busy",
}

// Categories are the ACL categories, in the order of Redis' acl.c.
type Categories uint32

var categoryNames = [...]string{
	"keyspace", "read", "write", "set", "sortedset", "list", "hash", "string", "bitmap", "hyperloglog", "geo",
	"stream", "pubsub", "admin", "fast", "slow", "blocking", "dangerous", "connection", "transaction", "scripting",
}

// KeyFlags say what a command does to the keys of one key spec. Exactly one of
// KeyRO, KeyRW, KeyOW and KeyRM is set, unless the spec is KeyNotKey.
type KeyFlags uint16

const (
	KeyRO            KeyFlags = 1 << iota // reads the value only
	KeyRW                                 // reads and changes the value
	KeyOW                                 // overwrites the value without reading it
	KeyRM                                 // removes the key
	KeyAccess                             // the reply reveals user data
	KeyUpdate                             // changes user data in the value
	KeyInsert                             // adds to the value, leaves the rest
	KeyDelete                             // may remove part of the value or all of it
	KeyNotKey                             // not a key, though it is routed like one
	KeyIncomplete                         // the spec may miss keys
	KeyVariableFlags                      // the flags depend on the arguments
)

var keyFlagNames = [...]string{
	"RO", "RW", "OW", "RM", "access", "update", "insert", "delete", "not_key", "incomplete", "variable_flags",
}

// BeginSearch is how a KeySpec finds the argument where its keys begin.
type BeginSearch uint8

const (
	BeginUnknown BeginSearch = iota
	BeginIndex               // at the argument Index
	BeginKeyword             // after the first argument equal to Keyword, looking from StartFrom
)

// FindKeys is how a KeySpec goes on from where its keys begin.
type FindKeys uint8

const (
	FindUnknown FindKeys = iota
	FindRange            // up to LastKey, every KeyStep arguments
	FindKeyNum           // as many as the argument KeyNumIdx says
)

// KeySpec describes one group of keys of a command. The rules are those of
// https://redis.io/docs/latest/develop/reference/key-specs/.
type KeySpec struct {
	Notes string
	Flags KeyFlags

	Begin     BeginSearch
	Index     int    // BeginIndex: position in the arguments, the name being 0
	Keyword   string // BeginKeyword, in upper case
	StartFrom int    // BeginKeyword: first position to look at; negative counts from the end, and looks backwards

	Find      FindKeys
	LastKey   int // FindRange: relative to the begin; negative counts from the end of the arguments
	Limit     int // FindRange with LastKey -1: stop after 1/Limit of the arguments (0 and 1: no limit)
	KeyNumIdx int // FindKeyNum: where the number of keys is, relative to the begin
	FirstKey  int // FindKeyNum: where the first key is, relative to the begin
	KeyStep   int // FindRange and FindKeyNum: distance from one key to the next
}

// RequestPolicy says to which shards a command without a key goes, or what to
// do with one whose keys live on several (tip request_policy).
type RequestPolicy uint8

const (
	RequestDefault    RequestPolicy = iota // any shard; with keys: their shard
	RequestAllNodes                        // every node, replicas too
	RequestAllShards                       // every primary
	RequestMultiShard                      // one part per shard
	RequestSpecial                         // a rule of its own
)

var requestNames = [...]string{"", "all_nodes", "all_shards", "multi_shard", "special"}

// ResponsePolicy says how the replies of several shards become one (tip
// response_policy).
type ResponsePolicy uint8

const (
	ResponseDefault       ResponsePolicy = iota // concatenate; keep the order of the keys, if any
	ResponseOneSucceeded                        // the first reply that is no error
	ResponseAllSucceeded                        // an error if there is one
	ResponseAggLogicalAnd                       //
	ResponseAggLogicalOr                        //
	ResponseAggMin                              //
	ResponseAggMax                              //
	ResponseAggSum                              //
	ResponseSpecial                             // a rule of its own
)

var responseNames = [...]string{
	"", "one_succeeded", "all_succeeded", "agg_logical_and", "agg_logical_or", "agg_min", "agg_max", "agg_sum", "special",
}

// Command is what the table knows about one command or subcommand.
type Command struct {
	// Data, as Redis publishes it.

	Name       string // in lower case; a subcommand is "config|get"
	Arity      int    // number of arguments with the name(s); -n means at least n
	Flags      Flags
	FirstKey   int // legacy triple: position of the first key, 0 if there is none
	LastKey    int // legacy triple: position of the last key; negative counts from the end
	Step       int // legacy triple: distance from one key to the next
	Categories Categories
	Tips       []string
	Since      string // first version of Redis that has it, "" if not published
	Group      string
	KeySpecs   []KeySpec

	// Derived from the data and the overlay when the table is built.

	ID                    ID
	Request               RequestPolicy
	Response              ResponsePolicy
	Nondeterministic      bool // the same call may answer differently on the same data
	NondeterministicOrder bool // only the order of the reply's elements may differ
	SingleKey             bool // has exactly one key, always at KeyPos
	KeyPos                int
	Split                 int         // > 0: the proxy may split it by slot into parts of Split arguments (key first), starting at argument 1
	Local                 bool        // the proxy answers it itself, whatever the backend has
	Own                   bool        // only the proxy has it
	Script                bool        // runs a script or function: may touch any key it likes, not only the declared ones
	ShardChannels         bool        // its channels hash to slots, see Channels
	Parent                *Command    // the container of a subcommand
	Subs                  []*Command  // the subcommands of a container
	sub                   string      // a subcommand's own name
	keys                  keysRule    // how Keys finds the keys
	numkeys               numkeysRule // what Keys answers to a bad number of keys
	touch                 bool        // writes to the keys that its key specs call read-only
	legacy                bool        // listed by a server before 7.0, which says little about it
	absent                bool        // the backend does not have it: no name leads here
}

// Has reports whether all flags of f are set.
func (c *Command) Has(f Flags) bool { return c.Flags&f == f }

// MayWrite reports whether running the command may change the data set or send
// anything to replicas.
func (c *Command) MayWrite() bool { return c.Flags&(Write|MayReplicate) != 0 }

// Sub returns the subcommand called name, in any letter case, or nil.
func (c *Command) Sub(name []byte) *Command {
	for _, s := range c.Subs {
		if equalFold(name, s.sub) {
			return s
		}
	}
	return nil
}

// derive fills the fields that follow from the data alone.
func (c *Command) derive() {
	c.Request, c.Response, c.Nondeterministic, c.NondeterministicOrder = RequestDefault, ResponseDefault, false, false
	c.SingleKey, c.KeyPos, c.Split, c.ShardChannels = false, 0, 0, false
	for _, tip := range c.Tips {
		switch key, value, _ := strings.Cut(tip, ":"); key {
		case "request_policy":
			c.Request = RequestPolicy(indexOf(requestNames[:], value))
		case "response_policy":
			c.Response = ResponsePolicy(indexOf(responseNames[:], value))
		case "nondeterministic_output":
			c.Nondeterministic = true
		case "nondeterministic_output_order":
			c.NondeterministicOrder = true
		}
	}
	if len(c.KeySpecs) != 1 {
		return
	}
	s := &c.KeySpecs[0]
	c.ShardChannels = s.Flags&KeyNotKey != 0
	if s.Begin != BeginIndex || s.Index < 1 || s.Find != FindRange || s.KeyStep < 1 || s.Flags&(KeyNotKey|KeyIncomplete) != 0 {
		return
	}
	// What else a module's command touches, or how its answers are put together, nobody says:
	// it never takes the short way, nor is it split.
	if c.Flags&Module != 0 {
		return
	}
	if s.LastKey == 0 {
		c.SingleKey, c.KeyPos = true, s.Index
	}
	if c.Request == RequestMultiShard && s.Index == 1 && s.LastKey == -1 && s.Limit == 0 {
		c.Split = s.KeyStep
	}
}

// indexOf returns the position of s in names, 0 (the default policy) if it is
// not there: a policy invented later must not break an old proxy.
func indexOf(names []string, s string) int {
	for i, name := range names {
		if name == s {
			return i
		}
	}
	return 0
}
