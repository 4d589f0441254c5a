package differential

import (
	"slices"
	"strings"

	"cosky-proxy/proxy/resp"
)

// A canon writes a reply so that two servers in the same state agree on it.
type canon func(v *resp.Value) string

// canons are the replies that differ between two servers on the same data, and what
// of them is compared.
var canons = map[string]canon{
	// The order of a hash table, which every server seeds at random.
	"smembers": anyOrder, "sunion": anyOrder, "sinter": anyOrder, "sdiff": anyOrder, "keys": anyOrder, "hkeys": anyOrder, "hvals": anyOrder,
	"spop": anyOrder, "sort": anyOrder, "sort_ro": anyOrder, "hgetall": anyOrderOfPairs, "command|list": anyOrder, "acl|cat": anyOrder,
	"config|get": anyOrderOfPairs, "function|list": deepAnyOrder, "pubsub|numsub": exact,
	"eval": deepAnyOrder, "eval_ro": deepAnyOrder, "evalsha": deepAnyOrder, "evalsha_ro": deepAnyOrder, // call HGETALL and LRANGE

	// Chance.
	"srandmember": size, "hrandfield": size, "zrandmember": size, "randomkey": kindOnly, "acl|genpass": size, "lolwut": kindOnly,
	"sscan": scanned, "hscan": scanned, "zscan": scanned, "scan": scanned,

	// Time.
	"ttl": sign, "pttl": sign, "expiretime": sign, "pexpiretime": sign, "object|idletime": sign, "time": size, "lastsave": sign,
	"xpending": agesGone, "xinfo|consumers": agesGone, "xinfo|stream": agesGone,

	// The inside of one process.
	"memory|usage": sign, "client|id": sign, "hello": helloFields, "dump": payload, "function|dump": exact,
}

func exact(v *resp.Value) string { return text(v) }

// text is a reply without its outer form, for the replies inside another.
func text(v *resp.Value) string {
	var b strings.Builder
	b.WriteByte(v.Kind)
	if v.Null {
		return b.String() + "null"
	}
	if v.Kind == ':' { // of which a canon may have changed Int
		b.WriteString(sprint(v.Int))
	} else {
		b.Write(v.Str)
	}
	for i := range v.Elems {
		b.WriteString("\n" + strings.ReplaceAll(text(&v.Elems[i]), "\n", "\n "))
	}
	return b.String()
}

func sprint(n int64) string { return string(resp.AppendInt(nil, n)) }

func sorted(v *resp.Value, elems []string) string {
	slices.Sort(elems)
	return string(v.Kind) + strings.Join(elems, "\n")
}

func anyOrder(v *resp.Value) string {
	elems := make([]string, len(v.Elems))
	for i := range v.Elems {
		elems[i] = text(&v.Elems[i])
	}
	return sorted(v, elems) + text(&resp.Value{Kind: v.Kind, Str: v.Str, Null: v.Null, Int: v.Int})
}

func deepAnyOrder(v *resp.Value) string {
	elems := make([]string, len(v.Elems))
	for i := range v.Elems {
		elems[i] = deepAnyOrder(&v.Elems[i])
	}
	return sorted(v, elems) + text(&resp.Value{Kind: v.Kind, Str: v.Str, Null: v.Null, Int: v.Int})
}

func anyOrderOfPairs(v *resp.Value) string {
	var pairs []string
	for i := 0; i+1 < len(v.Elems); i += 2 {
		pairs = append(pairs, text(&v.Elems[i])+"="+text(&v.Elems[i+1]))
	}
	return sorted(v, pairs) + text(&resp.Value{Kind: v.Kind, Str: v.Str, Null: v.Null, Int: v.Int})
}

// size: an error exactly; of anything else the form and the number of elements.
func size(v *resp.Value) string {
	if v.IsError() || v.Null {
		return text(v)
	}
	return string(v.Kind) + sprint(int64(len(v.Elems)))
}

func kindOnly(v *resp.Value) string {
	if v.IsError() || v.Null {
		return text(v)
	}
	return string(v.Kind)
}

// sign: a positive number is one.
func sign(v *resp.Value) string {
	if v.Kind == ':' && v.Int > 1 {
		return ":positive"
	}
	if v.Kind == ':' && (v.Int == 0 || v.Int == 1) {
		return ":positive" // an idle time of 0 or 1 s
	}
	return text(v)
}

// scanned: the elements of a complete iteration in any order.
func scanned(v *resp.Value) string {
	if len(v.Elems) != 2 {
		return text(v)
	}
	return anyOrder(&v.Elems[1])
}

// agesGone leaves out how long ago something was: after "idle", "inactive" and
// "seen-time", in the third place of a pending entry, and absolute times.
func agesGone(v *resp.Value) string {
	for i := range v.Elems {
		e := &v.Elems[i]
		if e.Kind == ':' && (e.Int > 1e12 || i > 0 && isAge(string(v.Elems[i-1].Str)) || i == 2 && len(v.Elems) == 4 && v.Elems[0].Kind == '$') {
			e.Int = 0
		}
		agesGone(e)
	}
	return text(v)
}

func isAge(name string) bool {
	return name == "idle" || name == "inactive" || name == "seen-time" || name == "active-time"
}

// helloFields leaves out who the client is, and that a cluster's node says so: the
// proxy is a standalone server.
func helloFields(v *resp.Value) string {
	for i := range v.Elems {
		switch e := &v.Elems[i]; {
		case i > 0 && string(v.Elems[i-1].Str) == "id":
			e.Int = 0
		case string(e.Str) == "cluster":
			e.Str = []byte("standalone")
		}
	}
	return text(v)
}

// payload: a hash table is saved in its own order, a stream with times.
func payload(v *resp.Value) string {
	const set, hash, stream1, stream2, stream3 = 2, 4, 15, 19, 21
	if len(v.Str) > 0 {
		switch v.Str[0] {
		case set, hash:
			return "$" + sprint(int64(len(v.Str)))
		case stream1, stream2, stream3:
			return "$stream"
		}
	}
	return text(v)
}

// comparison follows one connection's commands, because what EXEC answers depends
// on what was queued.
type comparison struct {
	queued []string // names
}

// agree reports whether two servers in the same state may answer like this.
func (q *comparison) agree(c []string, want, got string) bool {
	name := fullName(c)
	queued := q.queued
	switch {
	case want == "+QUEUED\r\n":
		q.queued = append(q.queued, name)
	case name == "exec", (name == "multi" || name == "discard") && want == "+OK\r\n":
		q.queued = nil
	}
	if want == got {
		return true
	}
	w, g := parsed(want), parsed(got)
	if w == nil || g == nil || w.Kind != g.Kind {
		return false
	}
	if name != "exec" {
		return same(name, w, g)
	}
	if len(w.Elems) != len(g.Elems) || len(w.Elems) != len(queued) || w.Kind != '*' {
		return false
	}
	for i := range queued {
		if !same(queued[i], &w.Elems[i], &g.Elems[i]) {
			return false
		}
	}
	return true
}

func parsed(reply string) *resp.Value {
	v, n, err := resp.Parse([]byte(reply))
	if err != nil || n != len(reply) {
		return nil
	}
	return &v
}

// same compares two replies to one command.
func same(name string, a, b *resp.Value) bool {
	if a.Kind != b.Kind {
		return false
	}
	if isScan(name) && len(a.Elems) == 2 && len(b.Elems) == 2 && (string(a.Elems[0].Str) != "0" || string(b.Elems[0].Str) != "0") {
		return true // parts of an iteration in the order of a hash table
	}
	return canonical(name, a) == canonical(name, b)
}

func isScan(name string) bool {
	return name == "scan" || name == "sscan" || name == "hscan" || name == "zscan"
}

func canonical(name string, v *resp.Value) string {
	if v.IsError() {
		return text(v)
	}
	if f := canons[name]; f != nil {
		return f(v)
	}
	return text(v)
}
