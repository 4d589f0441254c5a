package differential

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// argument is one node of a command's syntax, as COMMAND DOCS publishes it.
type argument struct {
	name, kind, token               string
	optional, multiple, tokenRepeat bool
	args                            []argument
}

// syntax is the form of one command.
type syntax struct {
	name  string // "xgroup|create"
	group string
	args  []argument
}

// parseDocs reads a COMMAND DOCS reply in RESP3.
func parseDocs(reply any) map[string]*syntax {
	all := make(map[string]*syntax)
	for name, doc := range reply.(map[any]any) {
		parseDoc(all, name.(string), doc.(map[any]any))
	}
	return all
}

func parseDoc(all map[string]*syntax, name string, doc map[any]any) {
	s := &syntax{name: name, group: doc["group"].(string)}
	s.args = parseArguments(doc["arguments"])
	all[name] = s
	subs, _ := doc["subcommands"].(map[any]any)
	for sub, doc := range subs {
		parseDoc(all, sub.(string), doc.(map[any]any))
	}
}

func parseArguments(list any) []argument {
	items, _ := list.([]any)
	var args []argument
	for _, item := range items {
		m := item.(map[any]any)
		a := argument{name: m["name"].(string), kind: m["type"].(string), args: parseArguments(m["arguments"])}
		a.token, _ = m["token"].(string)
		flags := fmt.Sprint(m["flags"])
		a.optional = strings.Contains(flags, "optional")
		a.multiple = strings.Contains(flags, "multiple")
		a.tokenRepeat = strings.Contains(flags, "multiple_token")
		args = append(args, a)
	}
	return args
}

// call is one well-formed call being made.
type call struct {
	r       *random
	s       *syntax
	out     []string
	numkeys int // where the number of keys stands, 0 when there is none
	keys    int // keys so far behind it
}

// call makes a well-formed call of s.
func (r *random) call(s *syntax) []string {
	c := &call{r: r, s: s, out: strings.Split(s.name, "|")}
	if own := undocumented[s.name]; own != nil {
		c.out = append(c.out, pick(r, own)...)
	}
	c.all(s.args)
	if c.numkeys > 0 {
		c.out[c.numkeys] = strconv.Itoa(c.keys)
	}
	return c.out
}

func (c *call) all(args []argument) {
	for i := range args {
		c.add(&args[i])
	}
}

func (c *call) add(a *argument) {
	if a.optional && c.r.IntN(2) == 0 {
		return
	}
	n := 1
	if a.multiple {
		n += c.r.IntN(3)
		if c.keys > 0 && (a.name == "weight" || a.name == "id") {
			n = c.keys
		}
	}
	for i := range n {
		if a.token != "" && (i == 0 || a.tokenRepeat) {
			c.out = append(c.out, a.token)
		}
		c.one(a)
	}
}

func (c *call) one(a *argument) {
	switch a.kind {
	case "pure-token":
	case "block":
		c.all(a.args)
	case "oneof":
		if len(a.args) > 0 {
			one := a.args[c.r.IntN(len(a.args))]
			one.optional = false
			c.add(&one)
		}
	case "key":
		c.keys++
		c.out = append(c.out, c.r.key(c.s.group))
	default:
		if a.name == "numkeys" {
			c.numkeys, c.keys = len(c.out), 0
		}
		c.out = append(c.out, c.r.value(c.s, a))
	}
}

// undocumented are the arguments of commands whose syntax is not published.
var undocumented = map[string][][]string{
	"command|getkeys":         {{"get", "a"}, {"MSET", "a", "1", "b", "2"}, {"eval", "x", "2", "a", "b"}, {"ping", "a"}, {"nosuch", "a"}, {"sort", "a", "STORE", "b"}, {"get"}},
	"command|getkeysandflags": {{"get", "a"}, {"zunionstore", "d", "1", "a"}, {"xreadgroup", "GROUP", "g", "c", "STREAMS", "a", "0"}, {"nosuch", "a"}},
	"debug":                   {{"sleep", "0"}, {"stringmatch-len", "10", "*"}, {"nosuch"}},
}

// values by the name of an argument, before its type is looked at.
var valuesByName = map[string][]string{
	"seconds": {"100000000", "200000000", "0", "-1", "9223372036854775807", "x"}, "milliseconds": {"100000000000", "0", "-1", "x"},
	"ttl": {"0", "100000000000", "-1"}, "unix-time-seconds": {"99999999999", "1", "0", "-5", "9223372036854775807"},
	"unix-time-milliseconds": {"99999999999000", "1", "-5"},
	"timeout":                {"0.01", "0.001", "-1", "x"}, "min-idle-time": {"0", "100000000000", "-1"}, "ms": {"0", "1000"},
	"serialized-value": nil, "script": nil, "sha1": nil, "function": {"get", "put", "ro", "nosuch"}, "function-code": nil, "library-name": {"lib", "nosuch"},
	"library-name-pattern": {"*", "lib", "x*"},
	"destination-db":       {"1", "0", "2", "16", "-1", "x"}, "db": {"1", "0", "2", "16", "-1", "x"}, "index1": {"0", "1", "2", "99"}, "index2": {"0", "1", "2", "99"},
	"cursor": {"0", "0", "0", "x"}, "group": {"g", "g", "g2", ""}, "groupname": {"g", "g", "g2", ""}, "consumer": {"c1", "c2"}, "consumername": {"c1", "c2"},
	"type": {"string", "list", "set", "zset", "hash", "stream", "nosuch"}, "encoding": {"u4", "i8", "i64", "u63", "u64", "i1", "x"},
	"longitude": {"13.361389", "15.087269", "-200", "0"}, "latitude": {"38.115556", "37.502669", "90", "0"}, "unit": {"km"},
	"operation": {"AND", "OR", "XOR", "NOT"}, "threshold": {"0", "1", "3", "5-1", "x"}, "channel": {"ch", "ch2"}, "shardchannel": {"ch"},
	"parameter":    {"maxmemory", "databases", "hash-max-*", "proto-max-bulk-len", "nosuch", "SAVE"},
	"categoryname": {"read", "STRING", "nosuch"}, "username": {"default", "nobody"}, "command": {"get", "SET", "append", "nosuch", "xgroup"},
	"command-name": {"get", "SET", "append", "mset", "eval", "nosuch"}, "connection-name": {"me", "", "a b"}, "protover": {"2", "3"}, "clientname": {"me"}, "password": {"x"},
	"subcommand": {"SLEEP"}, "version": {"5"}, "module-name": {"x"}, "category": {"read"}, "bits": {"8", "60", "1", "0"}, "weight": {"1", "2", "-1", "0.5", "inf"},
	"width": {"400", "0", "-1"}, "height": {"400", "0"}, "radius": {"200", "0", "-1"}, "frequency": {"1"}, "rank": {"1", "-1", "2", "0"},
	"increment": {"1", "-3", "9223372036854775807", "0", "2"},
}

var (
	smallNumbers  = []string{"0", "1", "-1", "2", "3", "5", "10", "-100", "1000"}
	scores        = []string{"0", "1", "-1.5", "3.0", "1e20", "inf", "-inf", "0.1", "(1", "nan"}
	lexes         = []string{"-", "+", "[a", "(b", "[m1", "a"}
	streamIDs     = []string{"0", "0-1", "1-1", "5-5", "7-0", "12", "49-2", "-", "+", "(5-5", "$", ">", "18446744073709551615-18446744073709551615", "x"}
	patterns      = []string{"*", "s*", "*{a}", "[lz]*", "h?sh", "nosuch", "m*", "\\*", "w_*", "w_*->f", "nosort", "#"}
	scriptTexts   = []string{"return redis.call('LRANGE', KEYS[1], 0, -1)", "redis.call('HSET', KEYS[1], 'f', ARGV[1]); return {1, false, 'x', {2, {}}}", "return {KEYS, ARGV}", "return redis.call('GET', KEYS[1])", "redis.setresp(3); return redis.call('HGETALL', KEYS[1])", "return nosuch(", "return {err='MY error'}", "return {3.7, 'a', nil, 4}"}
	library       = "#!lua name=lib\nredis.register_function('get', function(k, a) return redis.call('GET', k[1]) end)\nredis.register_function('put', function(k, a) return redis.call('HSET', k[1], 'f', a[1] or '') end)\nredis.register_function{function_name='ro', callback=function(k, a) return {#k, a} end, flags={'no-writes'}}"
	functionCodes = []string{library, "#!lua name=lib\nredis.register_function('two', function() return 2 end)", "#!lua name=bad\nx(", "return 1"}
	plainValues   = []string{"a", "b", "c", "", "m1", "m2", "f", "\x00\xff\r\n", "hello world", strings.Repeat("x", 100), "1", "7", "2.5"}
)

// value is a word for a.
func (r *random) value(s *syntax, a *argument) string {
	switch a.name {
	case "serialized-value":
		return r.dump()
	case "script":
		return pick(r, scriptTexts)
	case "sha1":
		return digest(pick(r, scriptTexts))
	case "function-code":
		return pick(r, functionCodes)
	case "count", "limit", "num-matches", "len":
		return pick(r, []string{"1", "2", "3", "1000", "0", "-1"})
	}
	if vs := valuesByName[a.name]; vs != nil && (a.name != "group" || s.group == "stream") {
		return pick(r, vs)
	}
	stream := s.group == "stream"
	switch a.kind {
	case "integer":
		return pick(r, smallNumbers)
	case "double":
		return pick(r, scores)
	case "pattern":
		return pick(r, patterns)
	case "unix-time":
		return "99999999999"
	}
	switch {
	case stream && slices.Contains([]string{"id", "start", "end", "last-id", "max_deleted_entry_id", "lastid"}, a.name):
		return pick(r, streamIDs)
	case s.group == "sorted-set" && slices.Contains([]string{"min", "max", "start", "stop"}, a.name):
		if strings.Contains(s.name, "lex") {
			return pick(r, lexes)
		}
		return pick(r, slices.Concat(smallNumbers, lexes))
	}
	return pick(r, plainValues)
}
