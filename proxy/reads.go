package proxy

import (
	"bytes"

	"cosky-proxy/nearcache"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// read is a command whose replies the near-cache can keep: it reads one key, and its
// reply depends on nothing but the key's content and the arguments, not on the time, on
// chance or on who asks.
type read struct {
	shape  nearcache.Shape
	scored bool    // WITHSCORES makes the reply pairs
	whole  bool    // the reply is the whole value: see nearcache.Question
	fields fields  // of a hash it shows
	args   int     // how many arguments it must have to be kept; 0: any number
	absent absence // its reply when the key does not exist
	bit    uint64  // stands for the command in a rule
}

// absence is the reply to a read of a key that does not exist.
type absence uint8

const (
	absentNull  absence = iota // $-1, *-1 or _
	absentZero                 // :0
	absentEmpty                // an empty string or aggregate
	absentNone                 // +none
	absentEach                 // an array of nulls or zeros
)

// allReads are the commands whose replies can be kept, by name.
//
// Not among them are commands whose answer changes with time alone (TTL, OBJECT IDLETIME)
// or by chance (SRANDMEMBER), that change something (GETEX), that read several keys (SINTER),
// or whose nulls in RESP2 cannot be told from RESP3 (ZRANK … WITHSCORE).
func allReads() map[string]*read {
	reads := make(map[string]*read)
	add := func(rd read, names ...string) {
		for _, name := range names {
			one := rd
			one.bit = 1 << len(reads)
			reads[name] = &one
		}
	}
	add(read{shape: nearcache.Map, whole: true, fields: fieldsAndValues, absent: absentEmpty}, "hgetall")
	add(read{shape: nearcache.Set, whole: true, absent: absentEmpty}, "smembers")
	add(read{whole: true}, "get")
	add(read{absent: absentZero}, "strlen", "bitcount", "getbit", "sismember", "scard", "llen", "zcard", "zcount", "zlexcount", "xlen")
	add(read{absent: absentZero, args: 2}, "exists")
	add(read{absent: absentNone}, "type")
	add(read{absent: absentEmpty}, "getrange", "substr", "lrange")
	add(read{shape: nearcache.Rows, absent: absentEmpty}, "xrange", "xrevrange")
	add(read{}, "lindex")
	add(read{fields: fieldsNamed}, "hget")
	add(read{fields: fieldsNamed, absent: absentEach}, "hmget")
	add(read{fields: fieldsNamed, absent: absentZero}, "hexists", "hstrlen")
	add(read{fields: fieldsAlone, absent: absentEmpty}, "hkeys")
	add(read{fields: valuesAlone, absent: absentEmpty}, "hvals")
	add(read{absent: absentZero}, "hlen") // counts what has expired until it is removed, which is announced
	add(read{absent: absentEach}, "smismember")
	add(read{shape: nearcache.Scores}, "zscore")
	add(read{shape: nearcache.Scores, absent: absentEach}, "zmscore")
	add(read{args: 3}, "zrank", "zrevrank")
	add(read{scored: true, absent: absentEmpty}, "zrange", "zrevrange", "zrangebyscore", "zrevrangebyscore", "zrangebylex", "zrevrangebylex")
	return reads
}

// Bits of reads.
const (
	ownBits = 1<<0 | 1<<1 // of hgetall and smembers, the first two: CoSky's keys need no rule for them
	mgetBit = 1 << 63     // of MGET, which is answered from what GET would have been
)

// newReads returns what is to be known about the commands of t, by ID; nil: nothing.
func newReads(t *command.Table) []*read {
	reads := make([]*read, t.Count())
	for name, rd := range allReads() {
		if cmd := t.Named(name); cmd != nil {
			reads[cmd.ID] = rd
		}
	}
	return reads
}

// keeps reports whether a reply to these arguments can be kept.
func (rd *read) keeps(args [][]byte) bool { return rd.args == 0 || len(args) == rd.args }

// shapeOf is the shape of the reply to these arguments.
func (rd *read) shapeOf(args [][]byte) nearcache.Shape {
	if rd.scored {
		for _, a := range args[min(4, len(args)):] {
			if equalFold(a, "WITHSCORES") {
				return nearcache.Pairs
			}
		}
	}
	return rd.shape
}

// showsAbsence reports whether the reply is that to a key that does not exist.
func (rd *read) showsAbsence(reply []byte) bool {
	switch rd.absent {
	case absentNull:
		return isNull(reply)
	case absentZero:
		return string(reply) == ":0\r\n"
	case absentEmpty:
		_, n, size := resp.ReadHeader(reply)
		return size > 0 && n == 0
	case absentNone:
		return string(reply) == "+none\r\n"
	}
	_, _, size := resp.ReadHeader(reply)
	for rest := reply[size:]; len(rest) > 0; {
		line, after, _ := bytes.Cut(rest, []byte("\r\n"))
		if string(line) != ":0" && string(line) != "_" && string(line) != "$-1" {
			return false
		}
		rest = after
	}
	return true
}

func isNull(reply []byte) bool {
	switch string(reply) {
	case "_\r\n", "$-1\r\n", "*-1\r\n":
		return true
	}
	return false
}

// ask makes the question of a read. It is valid until the next one is made.
func (l *loop) ask(db int32, cmd *command.Command, rd *read, args [][]byte) nearcache.Question {
	return l.cache.Ask(db, nearcache.Kind(cmd.ID), args[1], l.restOf(rd, args))
}

// restOf is what a read asks besides its key; see ask.
func (l *loop) restOf(rd *read, args [][]byte) []byte {
	if rd.whole {
		return nil
	}
	l.rest = nearcache.AppendRest(l.rest[:0], args[2:])
	return l.rest
}
