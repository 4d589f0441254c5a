package differential

import (
	"slices"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/router/command"
)

// exercised commands are called at random. That a command belongs here takes a
// thought: its reply must follow from what was sent before (compare_test.go says
// what may differ nevertheless), and it must do no harm.
var exercised = strings.Fields(`
	append decr decrby get getdel getex getrange getset incr incrby incrbyfloat lcs mget mset msetnx psetex set setex setnx setrange strlen substr
	bitcount bitfield bitfield_ro bitop bitpos getbit setbit
	lindex linsert llen lmove lmpop lpop lpos lpush lpushx lrange lrem lset ltrim rpop rpoplpush rpush rpushx
	blmove blmpop blpop brpop brpoplpush bzmpop bzpopmax bzpopmin
	sadd scard sdiff sdiffstore sinter sintercard sinterstore sismember smembers smismember smove spop srandmember srem sscan sunion sunionstore
	zadd zcard zcount zdiff zdiffstore zincrby zinter zintercard zinterstore zlexcount zmpop zmscore zpopmax zpopmin zrandmember zrange zrangebylex
	zrangebyscore zrangestore zrank zrem zremrangebylex zremrangebyrank zremrangebyscore zrevrange zrevrangebylex zrevrangebyscore zrevrank zscan
	zscore zunion zunionstore
	hdel hexists hget hgetall hincrby hincrbyfloat hkeys hlen hmget hmset hrandfield hscan hset hsetnx hstrlen hvals
	xack xadd xautoclaim xclaim xdel xgroup xgroup|create xgroup|createconsumer xgroup|delconsumer xgroup|destroy xgroup|help xgroup|setid
	xinfo xinfo|consumers xinfo|groups xinfo|help xinfo|stream xlen xpending xrange xread xreadgroup xrevrange xsetid xtrim
	geoadd geodist geohash geopos georadius georadius_ro georadiusbymember georadiusbymember_ro geosearch geosearchstore
	pfadd pfcount pfmerge
	copy del dump exists expire expireat expiretime keys move object object|encoding object|freq object|help object|idletime object|refcount
	persist pexpire pexpireat pexpiretime pttl randomkey rename renamenx restore scan sort sort_ro touch ttl type unlink
	eval eval_ro evalsha evalsha_ro fcall fcall_ro script script|exists script|flush script|help script|load
	function function|delete function|dump function|flush function|help function|list function|load function|restore
	multi exec discard watch unwatch
	hello echo ping select client client|getname client|id client|setname client|getredir client|trackinginfo client|no-evict
	publish spublish pubsub pubsub|channels pubsub|help pubsub|numpat pubsub|numsub pubsub|shardchannels pubsub|shardnumsub
	command|getkeys command|getkeysandflags command|help command|count command|list
	dbsize flushall flushdb swapdb config config|get config|help lolwut memory memory|help memory|usage latency latency|help
	slowlog slowlog|help time lastsave debug
	acl acl|cat acl|help acl|whoami acl|dryrun acl|genpass
	module module|help module|list`)

// excluded commands are not called, for the reason given. A container's reason
// holds for those of its subcommands that have none of their own.
var excluded = map[string]string{
	"acl|deluser": "changes who may connect", "acl|setuser": "changes who may connect",
	"acl|load": "needs a file", "acl|save": "needs a file",
	"acl|getuser": "shows a selector order that depends on the release", "acl|list": "as acl|getuser", "acl|users": "as acl|getuser", "acl|log": "speaks of connections",
	"asking": "the proxy is a standalone server to its clients", "readonly": "as asking", "readwrite": "as asking", "cluster": "as asking",
	"auth":  "tested with users and passwords",
	"proxy": "the proxy's own", "cosky.sync": "the proxy's own",
	"bgrewriteaof": "writes files in the background", "bgsave": "as bgrewriteaof", "save": "as bgrewriteaof",
	"client|help":    "the proxy's own words",
	"client|caching": "needs tracking", "client|tracking": "its pushes come at any time",
	"client|info": "speaks of one connection", "client|list": "speaks of all connections",
	"client|kill": "ends connections", "client|pause": "stops all clients", "client|unpause": "as client|pause", "client|unblock": "needs a blocked client",
	"client|reply":    "takes away the replies to compare",
	"client|no-touch": "answered for every backend", "client|setinfo": "answered for every backend",
	"command": "the order of a hash table, 200 kB at a time; see TestCommandTable", "command|info": "flags of replies in the order of a hash table; see TestCommandTable",
	"command|docs":     "the order of a hash table; see TestCommandTable",
	"config|resetstat": "statistics are not compared", "config|rewrite": "writes a file", "config|set": "changes the server under other tests",
	"failover": "a command of replication", "psync": "a command of replication", "replconf": "a command of replication", "replicaof": "a command of replication",
	"slaveof": "a command of replication", "sync": "a command of replication", "role": "shows the replication offset",
	"function|kill": "needs a script that runs", "script|kill": "needs a script that runs", "script|debug": "the debugger takes the connection over",
	"function|stats": "in RESP2 the order of a hash table of engines, and of a running script",
	"info":           "statistics", "latency|doctor": "prose", "latency|graph": "prose", "latency|histogram": "times", "latency|history": "times", "latency|latest": "times", "latency|reset": "times",
	"memory|doctor": "speaks of the process", "memory|malloc-stats": "speaks of the process", "memory|purge": "speaks of the process", "memory|stats": "speaks of the process",
	"migrate": "needs a third server", "monitor": "turns the connection into a feed",
	"module|load": "needs a module", "module|loadex": "needs a module", "module|unload": "needs a module",
	"pfdebug": "internal, changes encodings", "pfselftest": "takes seconds",
	"quit": "ends the connection", "reset": "ends the protocol under test", "shutdown": "ends the server",
	"restore-asking": "internal to clusters",
	"slowlog|get":    "times", "slowlog|len": "times", "slowlog|reset": "times",
	"subscribe": "turns the connection into a feed", "psubscribe": "as subscribe", "ssubscribe": "as subscribe",
	"unsubscribe": "as subscribe", "punsubscribe": "as subscribe", "sunsubscribe": "as subscribe",
	"wait": "waits for replicas that do not exist", "waitaof": "as wait",
}

// newer commands came after the oldest server that the tests run with, or with Valkey;
// that server does not know them.
var newer = strings.Fields(`
	script|show client|capa client|import-source commandlog commandlog|get commandlog|help commandlog|len commandlog|reset delifeq
	cluster|myshardid cluster|slot-stats cluster|migration delex digest msetex
	hexpire hexpireat hexpiretime hgetdel hgetex hpersist hpexpire hpexpireat hpexpiretime hpttl hsetex httl
	vadd vcard vdim vemb vgetattr vinfo vismember vlinks vrandmember vrem vsetattr vsim xackdel xdelex`)

// outsideMulti commands cannot be compared inside a transaction: the reply of EXEC
// is one, and theirs have no order.
var outsideMulti = strings.Fields(``)

// notOnCluster commands answer otherwise than a cluster's node does: what the proxy
// shows is not a cluster.
var notOnCluster = map[string]string{
	"scan":   "its cursors are those of all shards",
	"dbsize": "a sum that a transaction cannot have; compared outside it by its own test",
	"lolwut": "shows the version only, the same everywhere",
	"pubsub": "as publish", "pubsub|help": "as publish", "pubsub|channels": "as publish", "pubsub|numpat": "as publish", "pubsub|numsub": "as publish",
	"pubsub|shardchannels": "as publish", "pubsub|shardnumsub": "as publish", "move": "one database", "swapdb": "one database",
	"debug":   "concerns one server",
	"publish": "counts one node's subscribers", "spublish": "counts one node's subscribers",
}

func isExcluded(name string) bool {
	if excluded[name] != "" {
		return true
	}
	container, _, isSub := strings.Cut(name, "|")
	return isSub && excluded[container] != "" && !slices.Contains(exercised, name)
}

// TestEveryCommandIsClassified: a command that the table gains is compared or has a
// reason not to be.
func TestEveryCommandIsClassified(t *testing.T) {
	known := make(map[string]bool)
	for _, cmd := range command.All() {
		name := cmd.Name
		known[name] = true
		n := 0
		for _, in := range []bool{slices.Contains(exercised, name), isExcluded(name), slices.Contains(newer, name)} {
			if in {
				n++
			}
		}
		if n == 0 || n > 1 && !slices.Contains(newer, name) {
			t.Errorf("%q stands in %d of the lists exercised, excluded, newer", name, n)
		}
	}
	for _, name := range slices.Concat(exercised, newer) {
		if !known[name] {
			t.Errorf("%q is listed, but no command", name)
		}
	}
	for name, reason := range excluded {
		if !known[name] || reason == "" {
			t.Errorf("%q is excluded (%q), but no command", name, reason)
		}
	}
}

// TestExercisedCommandsExist: the server at hand knows everything that is to be compared
// with it.
func TestExercisedCommandsExist(t *testing.T) {
	r := clustertest.StartRedis(t)
	for _, name := range exercised {
		if info := r.Do("COMMAND", "INFO", name).([]any); info[0] == nil {
			t.Errorf("the server does not know %q", name)
		}
	}
}
