package command

import (
	"slices"
	"strings"
	"testing"
)

// keyLines are command lines, right and wrong ones, whose keys we find as the
// server does.
const keyLines = `
GET a
get a
GET
GET a b
SET a 1
SET a 1 GET
SET a 1 EX 10 NX GET
SET a
SETNX a 1
SETEX a 10 v
PSETEX a 10 v
GETSET a b
GETDEL a
GETEX a PERSIST
APPEND a b
STRLEN a
GETRANGE a 0 -1
SETRANGE a 0 x
SUBSTR a 0 1
INCR a
INCRBY a 2
INCRBYFLOAT a 1.5
DECR a
DECRBY a 3
MGET a
MGET a b c
MGET
MSET a 1
MSET a 1 b 2
MSET a 1 b
MSET a 1 b 2 c
MSETNX a 1 b 2
MSETNX a 1 b
LCS a b
LCS a b LEN
DEL a
DEL a b c
DEL
UNLINK a b
EXISTS a a b
TOUCH a b
COPY a b
COPY a b DB 1 REPLACE
RENAME a b
RENAMENX a b
RENAME a
MOVE a 1
DUMP a
RESTORE a 0 x
RESTORE-ASKING a 0 x
EXPIRE a 10
EXPIRE a 10 NX
PEXPIRE a 10
EXPIREAT a 1
PEXPIREAT a 1
EXPIRETIME a
PEXPIRETIME a
TTL a
PTTL a
PERSIST a
TYPE a
KEYS *
SCAN 0
SCAN 0 MATCH a
OBJECT ENCODING a
OBJECT FREQ a
OBJECT IDLETIME a
OBJECT REFCOUNT a
OBJECT HELP
OBJECT NOSUCH a
OBJECT ENCODING
OBJECT
MEMORY USAGE a
MEMORY USAGE a SAMPLES 5
MEMORY USAGE
MEMORY DOCTOR
MEMORY STATS
DEBUG OBJECT a
WAIT 0 0
SORT a
SORT a STORE b
SORT a BY w* LIMIT 0 5 GET # ASC ALPHA STORE b
SORT a STORE b STORE c
SORT a STORE
SORT a BY store STORE d
SORT a LIMIT store store STORE e
SORT a GET store
SORT a STORE get x
SORT a STORE store b
SORT_RO a
SORT_RO a BY w* GET #
MIGRATE h 1 a 0 100
MIGRATE h 1 '' 0 100
MIGRATE h 1 '' 0 100 KEYS a b c
MIGRATE h 1 '' 0 100 COPY REPLACE KEYS a
MIGRATE h 1 '' 0 100 AUTH keys KEYS a b
MIGRATE h 1 '' 0 100 AUTH2 keys keys KEYS a b
MIGRATE h 1 x 0 100 KEYS a b
MIGRATE h 1 a 0 100 COPY
HSET a f v
HSET a f v g w
HSETNX a f v
HGET a f
HMSET a f v
HMGET a f g
HGETALL a
HDEL a f
HLEN a
HSTRLEN a f
HEXISTS a f
HKEYS a
HVALS a
HINCRBY a f 1
HINCRBYFLOAT a f 1
HRANDFIELD a
HSCAN a 0
LPUSH a x
RPUSH a x y
LPUSHX a x
RPUSHX a x
LPOP a
RPOP a 2
LLEN a
LINDEX a 0
LSET a 0 x
LINSERT a BEFORE x y
LRANGE a 0 -1
LREM a 0 x
LTRIM a 0 1
LPOS a x
LMOVE a b LEFT RIGHT
RPOPLPUSH a b
BLPOP a 0
BLPOP a b c 0
BLPOP a
BRPOP a b 1
BLMOVE a b LEFT RIGHT 0
BRPOPLPUSH a b 0
LMPOP 1 a LEFT
LMPOP 2 a b LEFT COUNT 2
LMPOP 0 a LEFT
LMPOP 3 a LEFT
LMPOP x a LEFT
LMPOP -1 a LEFT
LMPOP 01 a LEFT
BLMPOP 0 1 a LEFT
BLMPOP 0 2 a b LEFT
BLMPOP 0 0 a LEFT
BLMPOP 0 5 a LEFT
SADD a x
SREM a x
SMEMBERS a
SISMEMBER a x
SMISMEMBER a x y
SCARD a
SPOP a
SRANDMEMBER a 2
SMOVE a b x
SSCAN a 0
SINTER a b c
SUNION a
SDIFF a b
SINTERSTORE d a b
SUNIONSTORE d a
SDIFFSTORE d a b
SINTERCARD 2 a b
SINTERCARD 2 a b LIMIT 1
SINTERCARD 0 a
SINTERCARD 3 a
SINTERCARD x a
ZADD a 1 m
ZADD a NX CH 1 m
ZINCRBY a 1 m
ZREM a m
ZCARD a
ZSCORE a m
ZMSCORE a m n
ZRANK a m
ZREVRANK a m
ZCOUNT a 0 1
ZLEXCOUNT a - +
ZRANGE a 0 -1
ZRANGE a 0 -1 BYSCORE WITHSCORES
ZRANGESTORE d a 0 -1
ZREVRANGE a 0 1
ZRANGEBYSCORE a 0 1
ZREVRANGEBYSCORE a 1 0
ZRANGEBYLEX a - +
ZREMRANGEBYRANK a 0 1
ZREMRANGEBYSCORE a 0 1
ZREMRANGEBYLEX a - +
ZPOPMIN a
ZPOPMAX a 2
BZPOPMIN a b 0
BZPOPMAX a 0
BZPOPMIN a
ZRANDMEMBER a
ZSCAN a 0
ZUNION 2 a b
ZUNION 2 a b WEIGHTS 1 2 WITHSCORES
ZINTER 1 a
ZDIFF 2 a b WITHSCORES
ZUNION 0 a
ZUNION 3 a
ZUNION x a
ZDIFF 3 a
ZINTER -1 a
ZUNIONSTORE d 2 a b
ZUNIONSTORE d 2 a b AGGREGATE MAX
ZINTERSTORE d 1 a WEIGHTS 5
ZDIFFSTORE d 2 a b
ZUNIONSTORE d 0 a
ZUNIONSTORE d 5 a
ZUNIONSTORE d x a
ZUNIONSTORE d 9223372036854775807 a
ZUNIONSTORE d 9223372036854775808 a
ZINTERCARD 2 a b
ZINTERCARD 0 a
ZINTERCARD 9 a
ZMPOP 1 a MIN
ZMPOP 2 a b MAX COUNT 3
ZMPOP 3 a MIN
BZMPOP 0 1 a MIN
BZMPOP 0 0 a MIN
GEOADD a 1 2 m
GEOPOS a m
GEODIST a m n
GEOHASH a m
GEOSEARCH a FROMMEMBER m BYRADIUS 1 km
GEOSEARCHSTORE d a FROMMEMBER m BYRADIUS 1 km
GEORADIUS a 0 0 1 km
GEORADIUS a 0 0 1 km STORE d
GEORADIUS a 0 0 1 km WITHDIST STOREDIST d
GEORADIUS a 0 0 1 km COUNT 3 ASC STORE d
GEORADIUS_RO a 0 0 1 km
GEORADIUSBYMEMBER a m 1 km STORE d
GEORADIUSBYMEMBER a store 1 km
GEORADIUSBYMEMBER_RO a m 1 km
PFADD a x
PFCOUNT a b
PFMERGE d a b
PFDEBUG ENCODING a
SETBIT a 0 1
GETBIT a 0
BITCOUNT a
BITCOUNT a 0 -1 BIT
BITPOS a 1
BITOP AND d a b
BITOP NOT d a
BITOP NOT d
BITFIELD a SET u8 0 1
BITFIELD_RO a GET u8 0
XADD a * f v
XADD a NOMKSTREAM MAXLEN 5 * f v
XLEN a
XRANGE a - +
XREVRANGE a + -
XDEL a 1-1
XTRIM a MAXLEN 1
XACK a g 1-1
XCLAIM a g c 0 1-1
XAUTOCLAIM a g c 0 0
XPENDING a g
XSETID a 1-1
XINFO STREAM a
XINFO STREAM a FULL
XINFO GROUPS a
XINFO CONSUMERS a g
XINFO HELP
XINFO
XGROUP CREATE a g $
XGROUP DESTROY a g
XGROUP SETID a g $
XGROUP CREATECONSUMER a g c
XGROUP DELCONSUMER a g c
XGROUP HELP
XREAD STREAMS a 0
XREAD STREAMS a b 0 0
XREAD COUNT 2 BLOCK 0 STREAMS a b c 0 0 0
XREAD COUNT 1 STREAMS streams 0
XREAD STREAMS a
XREAD STREAMS a b c
XREAD COUNT 1 a
XREAD COUNT 1 STREAMS
XREADGROUP GROUP g c STREAMS a >
XREADGROUP GROUP streams streams COUNT 1 NOACK STREAMS a b > >
XREADGROUP GROUP g c COUNT 1 x y
EVAL s 0
EVAL s 0 x y
EVAL s 1 a
EVAL s 2 a b c
EVAL s 3 a b
EVAL s x a
EVAL s -1 a
EVAL s 1.0 a
EVAL s +1 a
EVAL s 01 a
EVAL s '' a
EVAL s 99999999999999999999 a
EVAL s -9223372036854775808 a
EVAL s -9223372036854775809 a
EVAL_RO s 1 a
EVAL_RO s 9
EVALSHA ffffffffffffffffffffffffffffffffffffffff 1 a
EVALSHA ffffffffffffffffffffffffffffffffffffffff 0
EVALSHA ffffffffffffffffffffffffffffffffffffffff -5
EVALSHA_RO ffffffffffffffffffffffffffffffffffffffff 2 a b
EVALSHA_RO ffffffffffffffffffffffffffffffffffffffff 2 a
FCALL f 0
FCALL f 1 a b
FCALL f 2 a
FCALL f x a
FCALL f -1 a
FCALL_RO f 1 a
FCALL_RO f 3 a
FCALL f
SCRIPT LOAD x
SCRIPT EXISTS x
FUNCTION LIST
SUBSCRIBE c
PSUBSCRIBE c*
PUBLISH c m
SPUBLISH c m
SSUBSCRIBE c
SUNSUBSCRIBE c
PUBSUB CHANNELS
WATCH a b
WATCH
CONFIG GET maxmemory
CONFIG NOSUCH
CLIENT LIST
CLIENT NOSUCH a
CLIENT
COMMAND COUNT
COMMAND GETKEYS GET a
CLUSTER KEYSLOT a
CLUSTER COUNTKEYSINSLOT 1
LATENCY DOCTOR
SLOWLOG GET
ACL WHOAMI
MODULE LIST
PING x
ECHO x
SELECT 1
SWAPDB 0 1
HELLO 3
AUTH x
FLUSHDB ASYNC
NOSUCH a
NOSUCH
`

func TestKeysLikeServer(t *testing.T) {
	s := startServer(t)
	// FCALL looks for its function before it looks at the number of keys.
	if reply, _ := s.do("FUNCTION", "LOAD", "#!lua name=l\nredis.register_function{function_name='f', callback=function() end, flags={'no-writes'}}"); reply != "l" {
		t.Fatalf("FUNCTION LOAD: %v", reply)
	}
	lines := strings.Split(strings.TrimSpace(keyLines), "\n")
	if len(lines) < 200 {
		t.Fatalf("only %d lines", len(lines))
	}
	for _, line := range lines {
		args := words(line)
		theirs, _ := s.do(append([]string{"COMMAND", "GETKEYS"}, args...)...)
		c, text := builtin.Resolve(bytesOf(args))
		var pos []int
		if text == "" {
			pos, text = c.Keys(bytesOf(args), nil)
		}
		if text != "" {
			// Whatever GETKEYS says, the command itself has to say the same.
			if reply, _ := s.do(args...); !isError(reply, text) {
				t.Errorf("%s: got error %q, server answers %v", line, text, reply)
			}
			continue
		}
		if got, want := keysAt(args, pos), serverKeys(theirs); !slices.Equal(got, want) {
			t.Errorf("%s: got keys %q, server %v", line, got, theirs)
		}
	}
}

func isError(reply any, text string) bool {
	err, ok := reply.(error)
	return ok && err.Error() == text
}

func keysAt(args []string, pos []int) []string {
	keys := []string{}
	for _, i := range pos {
		keys = append(keys, args[i])
	}
	return keys
}

// serverKeys turns the reply of COMMAND GETKEYS into keys; nil, which equals no
// keys, only if the server says that there are none.
func serverKeys(reply any) []string {
	if isError(reply, "ERR The command has no key arguments") {
		return nil
	}
	list, ok := reply.([]any)
	if !ok {
		return []string{"no keys in reply"}
	}
	return stringsOf(list)
}

func TestKeysRWLikeServer(t *testing.T) {
	s := startServer(t)
	for _, line := range strings.Split(strings.TrimSpace(keyLines), "\n") {
		args := words(line)
		reply, _ := s.do(append([]string{"COMMAND", "GETKEYSANDFLAGS"}, args...)...)
		theirs, ok := reply.([]any)
		c, text := builtin.Resolve(bytesOf(args))
		if !ok || text != "" {
			continue
		}
		keys, text := c.KeysRW(bytesOf(args), nil)
		if text != "" {
			continue
		}
		if len(keys) != len(theirs) {
			t.Errorf("%s: got %v, server %v", line, keys, theirs)
			continue
		}
		for i, e := range theirs {
			pair := e.([]any)
			flags := KeyFlags(bitsOf(pair[1], keyFlagNames[:]))
			want := flags&(KeyRW|KeyOW|KeyRM) != 0 || c.Name == "xreadgroup"
			if args[keys[i].Pos] != pair[0] || keys[i].Write != want {
				t.Errorf("%s: got %v, server %v", line, keys[i], pair)
			}
		}
	}
}

// TestKeysBeyondServer has what 7.0 does not know, or tells in another way than
// it acts.
func TestKeysBeyondServer(t *testing.T) {
	for line, want := range map[string]string{
		// GETKEYS follows the key specs and lists a, d and e; the command and
		// the cluster code take the last one.
		"GEORADIUS a 0 0 1 km STORE d STOREDIST e":             "a e!",
		"GEORADIUS a 0 0 1 km STORE":                           "a",
		"XREADGROUP GROUP g c CLAIM 5 COUNT 1 STREAMS a b > >": "a! b!",
		"XREAD STREAMS a +":                                    "a",
		"MSETEX 2 a 1 b 2 EX 10":                               "a! b!",
		"MSETEX 1 a 1":                                         "a!",
		"MSETEX 3 a 1 b 2":                                     errNoKeys,
		"MSETEX 0 a 1":                                         errNoKeys,
		"DELEX a IFEQ x":                                       "a!",
		"DIGEST a":                                             "a",
		"HGETEX a EX 1 FIELDS 1 f":                             "a!",
		"VSIM a ELE x":                                         "a",
		"VADD a VALUES 1 1 x":                                  "a!",
		"VADD":                                                 errNoKeys,
		"SORT a STORE d":                                       "a d!",
		"ZUNIONSTORE d 2 a b":                                  "d! a b",
		"PFCOUNT a":                                            "a!",
		"BITFIELD a GET u8 0":                                  "a!",
		"EVAL_RO s 1 a":                                        "a",
		"EVAL s 1 a":                                           "a!",
		"LMOVE a b LEFT LEFT":                                  "a! b!",
		"COPY a b":                                             "a b!",
		"CLUSTER MIGRATION IMPORT 0 1":                         "",
		"SPUBLISH c m":                                         "",
		"PFMERGE d":                                            "d!",
		"MIGRATE h 1 '' 0 100 AUTH2 keys keys COPY KEYS a b keys": "a! b! keys!",
	} {
		args := words(line)
		c, text := builtin.Resolve(bytesOf(args))
		if text != "" {
			t.Errorf("%s: %s", line, text)
			continue
		}
		keys, got := c.KeysRW(bytesOf(args), nil)
		for i, k := range keys {
			if i > 0 {
				got += " "
			}
			got += args[k.Pos]
			if k.Write {
				got += "!"
			}
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}

// COMMAND GETKEYS takes no command without arguments.
func TestKeysOfBareCommands(t *testing.T) {
	for _, c := range All() {
		if c.Parent != nil || !c.AcceptsCount(1) || c.Has(Module) {
			continue
		}
		if pos, text := c.Keys([][]byte{[]byte(c.Name)}, nil); len(pos) != 0 || text != "" {
			t.Errorf("%s: got %v, %q", c.Name, pos, text)
		}
	}
}

func TestKeysLeavesPositions(t *testing.T) {
	args := bytesOf(words("EVAL s 1 a"))
	c := Lookup(args[0])
	if got, _ := c.Keys(args, []int{7}); !slices.Equal(got, []int{7, 3}) {
		t.Errorf("got %v, want the key after what was there", got)
	}
	args = bytesOf(words("ZUNIONSTORE d 5 a"))
	if got, text := Lookup(args[0]).Keys(args, []int{7}); text == "" || !slices.Equal(got, []int{7}) {
		t.Errorf("got %v, %q, want what was there and an error", got, text)
	}
}

func TestChannels(t *testing.T) {
	for line, want := range map[string]string{
		"SPUBLISH c m":     "c",
		"SSUBSCRIBE c d":   "c d",
		"SUNSUBSCRIBE c":   "c",
		"SUNSUBSCRIBE":     "",
		"SUBSCRIBE c":      "",
		"PUBLISH c m":      "",
		"GET a":            "",
		"UNSUBSCRIBE c d":  "",
		"PSUBSCRIBE c* d*": "",
	} {
		args := words(line)
		c := Lookup([]byte(args[0]))
		if got := strings.Join(keysAt(args, c.Channels(bytesOf(args), nil)), " "); got != want {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}

func TestParseInteger(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "1": 1, "-1": -1, "19": 19, "9223372036854775807": 1<<63 - 1, "-9223372036854775808": -1 << 63,
	} {
		if got, ok := parseInteger([]byte(in)); !ok || got != want {
			t.Errorf("%q: got %d, %t", in, got, ok)
		}
	}
	for _, in := range []string{
		"", "-", "+1", "-0", "00", "01", "1 ", " 1", "1.0", "x", "9223372036854775808", "-9223372036854775809", "18446744073709551617",
	} {
		if got, ok := parseInteger([]byte(in)); ok {
			t.Errorf("%q: got %d, want none", in, got)
		}
	}
}

func TestKeysAllocateNothing(t *testing.T) {
	pos, keys := make([]int, 0, 16), make([]Key, 0, 16)
	for _, line := range []string{
		"GET a", "SET a 1 EX 10", "MGET a b c d", "MSET a 1 b 2", "EVAL s 2 a b c", "SORT a STORE b", "XREAD STREAMS a b 0 0",
		"ZUNIONSTORE d 2 a b", "PING", "OBJECT ENCODING a",
	} {
		args := bytesOf(words(line))
		if n := testing.AllocsPerRun(100, func() {
			c, _ := builtin.Resolve(args)
			if _, text := c.Keys(args, pos); text != "" {
				t.Error(text)
			}
			if _, text := c.KeysRW(args, keys); text != "" {
				t.Error(text)
			}
		}); n != 0 {
			t.Errorf("%s: %g allocations", line, n)
		}
	}
}
