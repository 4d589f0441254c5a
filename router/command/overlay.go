package command

import "strings"

// This file is what we know about commands and Redis does not publish. Facts
// that COMMAND publishes belong into commands.tsv, which is generated.

// unseenRows are commands of servers that commands.tsv was not generated from: Redis
// 8.4, Valkey 8 and 9. What the generator finds later counts instead; TestUnseenRows says
// when a row can go. A backend that has still other commands tells us through Merge.
const unseenRows = `
delex	-2	write,fast	1	1	1	write,string,fast	-	8.4.0	string	RW,delete index 1 range 0 1 0
digest	2	readonly,fast	1	1	1	read,string,fast	-	8.4.0	string	RO,access index 1 range 0 1 0
msetex	-4	write,denyoom,movablekeys	0	0	0	write,string,slow	request_policy:multi_shard,response_policy:all_succeeded	8.4.0	string	OW,update index 1 keynum 0 1 2
cluster|migration	-4	admin,stale,no_async_loading	0	0	0	admin,slow,dangerous	-	8.4.0	cluster
script|show	3	noscript	0	0	0	slow,scripting	-	8.0.0	scripting
client|capa	-3	noscript,loading,stale	0	0	0	slow,connection	-	8.0.0	connection
client|import-source	3	noscript,loading,stale	0	0	0	slow,connection	-	8.1.0	connection
commandlog	-2	-	0	0	0	slow	-	8.1.0	server
commandlog|get	-4	admin,loading,stale	0	0	0	admin,slow,dangerous	request_policy:all_nodes,nondeterministic_output	8.1.0	server
commandlog|help	2	loading,stale	0	0	0	slow	-	8.1.0	server
commandlog|len	-3	admin,loading,stale	0	0	0	admin,slow,dangerous	request_policy:all_nodes,response_policy:agg_sum,nondeterministic_output	8.1.0	server
commandlog|reset	-3	admin,loading,stale	0	0	0	admin,slow,dangerous	request_policy:all_nodes,response_policy:all_succeeded	8.1.0	server
delifeq	3	write	1	1	1	write,string,slow	-	9.0.0	string	RM,access,delete index 1 range 0 1 0
cluster|cancelslotmigrations	2	admin,stale,no_async_loading	0	0	0	admin,slow,dangerous	-	9.0.0	cluster
cluster|flushslot	-3	write,admin,no_async_loading	0	0	0	keyspace,write,admin,slow,dangerous	-	9.0.0	cluster
cluster|getslotmigrations	2	admin,stale,no_async_loading	0	0	0	admin,slow,dangerous	-	9.0.0	cluster
cluster|migrateslots	-4	admin,stale,no_async_loading	0	0	0	admin,slow,dangerous	-	9.0.0	cluster
`

// ownRows are the commands that only the proxy has. A backend that lists a command of the same
// name keeps it: then the proxy's own is gone, see Merge.
const ownRows = `
proxy	-2	-	0	0	0	slow	-	-	server
proxy|help	2	loading,stale,no_multi,noscript	0	0	0	slow	-	-	server
proxy|hotkeys	-2	admin,noscript,loading,stale,no_multi	0	0	0	admin,slow,dangerous	-	-	server
proxy|slowlog	-3	admin,noscript,loading,stale,no_multi	0	0	0	admin,slow,dangerous	-	-	server
proxy|cache	-3	admin,noscript,loading,stale,no_multi	0	0	0	admin,slow,dangerous	-	-	server
cosky.sync	-1	noscript,no_multi	0	0	0	slow,connection	-	-	server
`

// ownName reports whether name, or the container of the subcommand name, is in ownRows.
func ownName(name string) bool {
	container, _, _ := strings.Cut(name, "|")
	return container == "proxy" || container == "cosky.sync"
}

// overlay sets what the data of c does not say.
func (c *Command) overlay() {
	switch c.Name {
	case "hello", "auth", "select", "ping", "echo", "quit", "reset",
		"client", "client|id", "client|setname", "client|getname", "client|setinfo":
		// With these clients begin, however old the server is.
		c.Local = true
	}

	switch c.Name {
	case "eval", "evalsha", "fcall":
		c.Script = true
		c.Flags |= MayReplicate
	case "eval_ro", "evalsha_ro", "fcall_ro":
		c.Script = true
	case "pfcount", "publish", "spublish":
		c.Flags |= MayReplicate
	case "xreadgroup":
		// The group remembers what it has handed out.
		c.touch = true
	case "msetnx":
		// Redis 7.0 publishes that it may be split, later ones do not: all or nothing it is.
		c.Split = 0
	}

	switch c.Name {
	case "sort":
		c.keys = keysSort
	case "sort_ro":
		c.keys = keysSortRO
	case "migrate":
		c.keys = keysMigrate
	case "georadius", "georadiusbymember":
		c.keys = keysGeoRadius
	case "xread", "xreadgroup":
		c.keys = keysXRead
	}

	switch c.Name {
	case "eval", "evalsha", "eval_ro", "evalsha_ro":
		c.numkeys = numkeysScript
	case "fcall", "fcall_ro":
		c.numkeys = numkeysFunction
	case "zunion", "zinter", "zdiff", "zunionstore", "zinterstore", "zdiffstore", "zintercard":
		c.numkeys = numkeysZSet
	case "lmpop", "blmpop", "zmpop", "bzmpop":
		c.numkeys = numkeysPop
	case "sintercard":
		c.numkeys = numkeysSetCard
	}
}
