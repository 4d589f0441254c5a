package differential

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"cosky-proxy/cluster/slot"
	"cosky-proxy/router/command"
)

// random makes commands out of one deterministic stream.
type random struct {
	*rand.Rand
	syntaxes []*syntax
	names    map[string]*syntax
	cluster  bool
	tags     []string // hash tags for the keys of the present command
	dumps    []string // payloads of DUMP seen so far
	calm     bool     // no mutations: they make keys without a tag
}

// newRandom makes a source of commands with the given syntax. For a cluster keys have
// hash tags.
func newRandom(docs map[string]*syntax, seed uint64, cluster bool) *random {
	r := &random{Rand: rand.New(rand.NewPCG(seed, 17)), names: docs, cluster: cluster}
	for _, name := range exercised {
		if s := docs[name]; s != nil && !slices.Contains(transactional, name) && (!cluster || notOnCluster[name] == "") {
			r.syntaxes = append(r.syntaxes, s)
		}
	}
	return r
}

// transactional commands are not called anywhere: transaction makes blocks of them.
var transactional = []string{"multi", "exec", "discard", "watch"}

func pick[T any](r *random, from []T) T { return from[r.IntN(len(from))] }

func digest(text string) string {
	sum := sha1.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

// keysByGroup are names of keys that mostly hold a value of the group's type. Some
// have the shape of CoSky's, which the near-cache keeps.
var keysByGroup = map[string][]string{
	"string": {"str", "num", "none"}, "bitmap": {"bits", "str"}, "list": {"list", "list2"}, "set": {"set", "ints", "NS:svc_idx", "NS:cfg_idx"},
	"sorted-set": {"zset", "zset2", "geo"}, "hash": {"hash", "NS:cfg:app", "NS:svc_itc:a"}, "stream": {"stream", "stream2"}, "geo": {"geo"}, "hyperloglog": {"hll", "hll2"},
}

var anyKeys = []string{
	"str", "num", "none", "bits", "list", "list2", "set", "ints", "zset", "zset2", "hash", "stream", "geo", "hll", "NS:svc_idx", "NS:cfg_idx", "NS:cfg:app", "NS:svc_itc:a", "NS:svc_itc_idx:a",
	"", "k\x00\r\n$3\r\n", "w_a",
}

// begin chooses the slots that the next command's keys are in.
func (r *random) begin() {
	switch {
	case !r.cluster:
		r.tags = []string{""}
	case r.IntN(12) == 0:
		r.tags = []string{"{a}", "{b}", "{c}"}
	default:
		r.tags = []string{pick(r, []string{"{a}", "{b}", "{c}"})}
	}
}

func (r *random) key(group string) string {
	names := keysByGroup[group]
	if names == nil || r.IntN(5) == 0 {
		names = anyKeys
	}
	name, tag := pick(r, names), pick(r, r.tags)
	if rest, ours := strings.CutPrefix(name, "NS:"); ours {
		return "ns" + tag + ":" + rest
	}
	return name + tag
}

func (r *random) dump() string {
	if len(r.dumps) == 0 || r.IntN(8) == 0 {
		return "junk"
	}
	return pick(r, r.dumps)
}

// learn keeps the payload of a DUMP for RESTORE.
func (r *random) learn(c []string, reply string) {
	name := strings.ToLower(c[0])
	if name != "dump" && name != "function" || reply[0] != '$' || reply[1] == '-' {
		return
	}
	_, body, _ := strings.Cut(reply, "\r\n")
	r.dumps = append(r.dumps, strings.TrimSuffix(body, "\r\n"))
	if len(r.dumps) > 8 {
		r.dumps = r.dumps[1:]
	}
}

// command is any command: mostly right, sometimes wrong.
func (r *random) command() []string { return r.variant(pick(r, r.syntaxes)) }

func (r *random) variant(s *syntax) []string {
	for {
		r.begin()
		c := r.call(s)
		// The releases differ in what a HELLO that fails half-way has changed.
		if !r.calm && r.IntN(4) == 0 && s.name != "hello" {
			c = r.mutate(c)
		}
		r.tame(c)
		if r.playable(c) {
			return c
		}
	}
}

var junk = []string{
	"", "0", "-1", "1", "2", "-0", "+1", "01", " 1", "1 ", "0x10", "1e3", "1.5", "inf", "-inf", "nan", "9223372036854775807", "-9223372036854775808",
	"9223372036854775808", "18446744073709551616", "(1", "[a", "+", "-", "$", ">", "*", "NX", "XX", "GT", "LT", "COUNT", "LIMIT", "GET", "WITHSCORES", "STORE", "BY", "DESC",
	"\x00\xff\r\n", "a", "none", "REV", "CH", "ANY", "KEEPTTL", "REPLACE", "MATCH", "STREAMS", "GROUP", "ASC",
}

// mutate makes a call wrong, or right in another way.
func (r *random) mutate(c []string) []string {
	c = slices.Clone(c)
	for range 1 + r.IntN(2) {
		i := r.IntN(len(c))
		switch r.IntN(6) {
		case 0: // another case
			c[i] = otherCase(c[i])
		case 1: // too few
			if len(c) > 1 && i > 0 {
				c = slices.Delete(c, i, i+1)
			}
		case 2: // something twice
			if i > 0 {
				c = slices.Insert(c, i, c[i])
			}
		case 3: // too many
			c = append(c, pick(r, junk))
		default:
			if i > 0 && !isSubcommand(c, i) {
				c[i] = pick(r, junk)
			}
		}
	}
	return c
}

func isSubcommand(c []string, i int) bool {
	cmd := command.Lookup([]byte(strings.ToLower(c[0])))
	return i == 1 && cmd != nil && len(cmd.Subs) > 0
}

func otherCase(s string) string {
	if up := strings.ToUpper(s); up != s {
		return up
	}
	return strings.ToLower(s)
}

// fullName is the table's name of the called command, "" when there is none.
func fullName(c []string) string {
	cmd := command.Lookup([]byte(c[0]))
	if cmd == nil {
		return ""
	}
	if len(c) > 1 && len(cmd.Subs) > 0 {
		if cmd = cmd.Sub([]byte(c[1])); cmd == nil {
			return ""
		}
	}
	return cmd.Name
}

// tame keeps a mutated call from doing what cannot be compared: waiting for long,
// setting an end of life that is near, leaving something to chance.
func (r *random) tame(c []string) {
	name := fullName(c)
	last := len(c) - 1
	at := func(i int, unless func(string) bool, value string) {
		if i > 0 && i <= last && !unless(c[i]) {
			c[i] = value
		}
	}
	after := func(token string, unless func(string) bool, value string) {
		for i := 1; i < last; i++ {
			if strings.EqualFold(c[i], token) {
				at(i+1, unless, value)
			}
		}
	}
	switch name {
	case "blpop", "brpop", "bzpopmin", "bzpopmax", "blmove", "brpoplpush":
		at(last, isShort, "0.01")
	case "blmpop", "bzmpop":
		at(1, isShort, "0.01")
	case "xread", "xreadgroup":
		after("BLOCK", isShortMillis, "5")
	case "expire", "pexpire", "setex", "psetex", "restore", "getex", "set":
		if name != "set" && name != "getex" {
			at(2, isFar, "100000000")
		}
		after("EX", isFar, "100000000")
		after("PX", isFar, "100000000")
		if name == "set" { // what SET has made expire already is counted by DBSIZE until the server comes round to it
			after("EXAT", isFarAt, "99999999999")
			after("PXAT", isFarAt, "99999999999000")
		}
	case "xclaim", "xautoclaim":
		at(4, isFar, "0")
		after("IDLE", isFar, "0")
		after("TIME", isFar, "1")
	case "xpending":
		after("IDLE", isFar, "0")
	case "xadd":
		for i, a := range c {
			if a == "*" {
				c[i] = "50-*"
			}
		}
	case "spop":
		at(2, func(n string) bool { return n != "1" && n != "2" && n != "3" }, "1000")
	case "scan":
		at(1, isNoNumber, "0") // a place in the middle of a hash table is another at every server
	case "sscan", "hscan", "zscan":
		at(2, isNoNumber, "0")
	case "setrange", "setbit":
		at(2, func(n string) bool { return len(n) < 5 || len(n) > 12 }, "100")
	}
}

func number(s string) (float64, bool) {
	v, err := strconv.ParseFloat(s, 64)
	return v, err == nil
}

func isNoNumber(s string) bool {
	_, ok := number(s)
	return !ok
}

// isShort reports whether a timeout in seconds is refused or over at once.
func isShort(s string) bool {
	v, ok := number(s)
	return !ok || v < 0 && s != "-0" || v > 0 && v < 0.05
}

func isShortMillis(s string) bool {
	v, ok := number(s)
	return !ok || v < 0 && s != "-0" || v > 0 && v < 50
}

// isFar reports whether a time to live is refused, over, or of years.
func isFar(s string) bool {
	v, ok := number(s)
	return !ok || v <= 0 || v >= 1e8
}

// isFarAt is isFar for points in time, in any unit.
func isFarAt(s string) bool {
	v, ok := number(s)
	return !ok || v <= 0 || v > 9e9
}

// playable reports whether the call can be compared at all.
func (r *random) playable(c []string) bool {
	switch name := fullName(c); name {
	case "spop":
		return len(c) != 2 // a random member
	case "debug":
		return !strings.EqualFold(c[len(c)-1], "help") // refused by default, but who knows
	case "config|get":
		return !slices.Contains(c, "*") // shows ports and directories
	default:
		if isExcluded(name) || slices.Contains(transactional, name) {
			return false
		}
	}
	return !r.cluster || r.sameWay(c)
}

// sameWay reports whether a cluster's node and the proxy treat the keys alike: the
// proxy splits some commands whose keys are in several slots, where a node refuses.
func (r *random) sameWay(c []string) bool {
	args := make([][]byte, len(c))
	for i := range c {
		args[i] = []byte(c[i])
	}
	cmd, problem := command.Builtin().Resolve(args)
	switch {
	case problem != "":
		return true
	case cmd.Step == 2 && len(c)%2 == 0: // MSET with half a pair: a node looks at the slots first
		return false
	case cmd.Split == 0:
		return true
	}
	keys, _ := cmd.Keys(args, nil)
	for _, k := range keys {
		if slot.Of(args[k]) != slot.Of(args[keys[0]]) {
			return false
		}
	}
	return true
}

// transaction is a MULTI block with an end, and now and then something refused
// in it.
func (r *random) transaction() [][]string {
	cs := [][]string{{"MULTI"}}
	if r.IntN(3) == 0 {
		r.begin()
		cs = [][]string{{"WATCH", r.key("")}, {"MULTI"}}
	}
	one := strings.NewReplacer()
	if r.cluster { // of one slot: the proxy refuses others when they are queued, a node at EXEC
		tag := pick(r, []string{"{a}", "{b}", "{c}"})
		one = strings.NewReplacer("{a}", tag, "{b}", tag, "{c}", tag)
		cs[0] = replaced(cs[0], one)
	}
	r.calm = r.cluster
	for range r.IntN(5) {
		c := r.command()
		for slices.Contains(outsideMulti, fullName(c)) || r.cluster && concernsAll(c) {
			c = r.command()
		}
		cs = append(cs, replaced(c, one))
	}
	r.calm = false
	switch r.IntN(8) {
	case 0:
		cs = append(cs, []string{"NOSUCH", "a"})
	case 1:
		cs = append(cs, []string{"GET"})
	case 2:
		cs = append(cs, []string{"MULTI"}, []string{"WATCH", "x"})
	}
	return append(cs, []string{pick(r, []string{"EXEC", "EXEC", "EXEC", "DISCARD"})})
}

// concernsAll reports whether a command may be refused in a transaction because a
// cluster's shards would all have to take part.
func concernsAll(c []string) bool {
	cmd := command.LookupFull([]byte(fullName(c)))
	switch {
	case cmd == nil, cmd.Script, len(cmd.KeySpecs) > 0, cmd.Name == "ping", cmd.Name == "echo":
		return false
	}
	return true
}

func replaced(c []string, by *strings.Replacer) []string {
	c = slices.Clone(c)
	for i := range c {
		c[i] = by.Replace(c[i])
	}
	return c
}

// batch is what is sent in one write, and on which of the two connections.
type batch struct {
	conn     int
	commands [][]string
}

func (r *random) batch() batch {
	b := batch{conn: r.IntN(2)}
	n := 1
	if r.IntN(3) > 0 {
		n += r.IntN(40)
	}
	for range n {
		switch r.IntN(30) {
		case 0:
			b.commands = append(b.commands, r.transaction()...)
		case 1:
			b.commands = append(b.commands, []string{fmt.Sprint("NOSUCH", r.IntN(3)), pick(r, plainValues), strings.Repeat("y", r.IntN(200))})
		default:
			b.commands = append(b.commands, r.command())
		}
	}
	return b
}
