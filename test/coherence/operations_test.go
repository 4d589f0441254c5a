package coherence

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"cosky-proxy/lua"
	"cosky-proxy/proxy"
)

// client is one connection.
type client struct {
	*redis.Client
	ctx context.Context
}

// kind is a type of key with what can be done to it.
type kind struct {
	name  string
	key   string // with the register's id in place of %s
	reads []*operation
	other []*operation // reads that are never cached
	write []*operation

	dies *death       // nil: PEXPIRE of the key
	look []*operation // what shows whether anything is there; nil: EXISTS of the key
}

// death is how a key gets a time to live of some milliseconds, is looked at for as long as the
// answer is not negative, and ends.
type death struct{ begin, look, end *operation }

var ofKey = &death{expire, lifetime, expired}

// Keys share one hash tag: renames and scripts reach them all, and one slot moves them all.
const namespace = "{n}"

var kinds = []*kind{
	{
		name: "hash", key: namespace + ":cfg:%s",
		reads: []*operation{{name: "HGETALL", args: onKey("HGETALL"), parse: parseHash, step: stepContent}},
		other: []*operation{
			{name: "HGET", args: onKey("HGET", "data"), parse: parseNumber, step: stepData},
			{name: "HLEN", args: onKey("HLEN"), parse: parseNumber, step: stepFields},
			exists,
		},
		write: append([]*operation{
			{name: "HSET", way: writes, args: func(key string, v int) []any { return []any{"HSET", key, "data", v} }, parse: parseNumber, step: stepHSet},
			del, expireNow, scripted(hashPut, parseNumber, stepHSet),
			{name: "config_set", way: writes | opaque, do: configSet, step: stepConfigSet},
			{name: "config_remove", way: writes | opaque, do: configRemove, step: stepConfigRemove},
		}, puts(hashPut, stepHPut)...),
	},
	{
		name: "set", key: namespace + ":svc_itc_idx:%s",
		reads: []*operation{{name: "SMEMBERS", args: onKey("SMEMBERS"), parse: parseSet, step: stepContent}},
		other: []*operation{
			{name: "SCARD", args: onKey("SCARD"), parse: parseNumber, step: stepSize},
			{name: "SISMEMBER", args: func(key string, v int) []any { return []any{"SISMEMBER", key, member(v)} }, parse: parseNumber, step: stepHas},
			exists,
		},
		write: append([]*operation{
			{name: "SADD", way: writes, args: func(key string, v int) []any { return []any{"SADD", key, member(v)} }, parse: parseNumber, step: stepAdd},
			{name: "SREM", way: writes, args: func(key string, v int) []any { return []any{"SREM", key, member(v)} }, parse: parseNumber, step: stepRemove},
			del, expireNow, scripted(setPut, parseNumber, stepAdd),
			{name: "registry_register", way: writes | opaque, do: register_, step: stepRegister},
			{name: "registry_deregister", way: writes | opaque, do: deregister, step: stepDeregister},
		}, puts(setPut, stepSPut)...),
	},
	{
		// A set of keys that scripts find by themselves: no call names the one that is read.
		name: "history", key: namespace + ":cfg_htr:%s:1",
		reads: []*operation{{name: "HGETALL", args: onKey("HGETALL"), parse: parseHash, step: stepContent}},
		other: []*operation{
			{name: "HGET", args: onKey("HGET", "data"), parse: parseNumber, step: stepData},
			{name: "HLEN", args: onKey("HLEN"), parse: parseNumber, step: stepFields},
			exists,
		},
		write: []*operation{
			{name: "config_set", way: writes | opaque, args: archive, parse: parseNumber, step: stepArchive},
			{name: "DEL of all", way: writes | opaque, args: forget, parse: parseNumber, step: stepForget},
			del,
		},
	},
	{
		// What CoSky's clients ask: scripts that show many keys.
		name: "service", key: namespace + ":svc_itc_idx:%s",
		reads: []*operation{
			{name: "discovery_get_instances", way: notices, args: ofService("discovery_get_instances", nil), parse: parseInstances, step: stepInstances},
			{name: "discovery_get_instance", way: notices, args: ofService("discovery_get_instance", instanceID), parse: parseInstance, step: stepInstance},
			{name: "discovery_get_instance_ttl", way: notices, args: ofService("discovery_get_instance_ttl", instanceID), parse: parseLife, step: stepInstanceLife},
			{name: "SMEMBERS", way: partial, args: onKey("SMEMBERS"), parse: parseSet, step: stepIndex},
			{name: "HGETALL of an instance", way: partial, args: onInstance("HGETALL"), parse: parseFields, step: stepValue},
		},
		other: []*operation{{name: "PEXPIRETIME of an instance", args: onInstance("PEXPIRETIME"), parse: parseLives, step: stepInstanceLives}},
		write: []*operation{
			{name: "registry_register", way: writes | opaque, args: registerLife, parse: parseNumber, step: stepRegisterLife},
			{name: "registry_register", way: writes | opaque, args: registerLife, parse: parseNumber, step: stepRegisterLife},
			{name: "registry_renew", way: writes | opaque, args: renew, parse: parseNumber, step: stepRenew},
			{name: "registry_renew", way: writes | opaque, args: renew, parse: parseNumber, step: stepRenew},
			{name: "registry_set_metadata", way: writes | opaque, args: func(key string, v int) []any {
				return calling("registry_set_metadata", instanceID(key, v), "_v", v)
			}, parse: parseNumber, step: stepChange},
			{name: hiddenEval, way: writes | opaque, args: func(key string, v int) []any {
				return []any{"EVAL", hiddenChange, 0, instanceKey(key, v), v}
			}, parse: parseNumber, step: stepChange},
			{name: "registry_deregister", way: writes | opaque, args: ofService("registry_deregister", instanceID), parse: parseNumber, step: stepQuit},
			{name: "DEL of an instance", way: writes | opaque, args: onInstance("DEL"), parse: parseNumber, step: stepLose},
			{name: "SADD", way: writes | opaque, args: func(key string, v int) []any { return []any{"SADD", key, instanceID(key, v)} }, parse: parseNumber, step: stepList},
			{name: "SREM", way: writes | opaque, args: func(key string, v int) []any { return []any{"SREM", key, instanceID(key, v)} }, parse: parseNumber, step: stepUnlist},
			{name: "DEL", way: writes, args: onKey("DEL"), parse: parseNumber, step: stepUnlistAll},
		},
		dies: &death{
			&operation{name: "PEXPIRE of an instance", way: writes, args: onInstance("PEXPIRE", 3), parse: parseNumber, step: stepLastMoments},
			&operation{name: "PEXPIRETIME of an instance", args: onInstance("PEXPIRETIME"), parse: parseLives, step: stepInstanceLives},
			&operation{name: "expiry of an instance", step: stepLastMoment},
		},
		look: []*operation{
			{name: "EXISTS of the index", args: onKey("EXISTS"), parse: parseNumber, step: stepUnseen},
			{name: "PEXPIRETIME of an instance", args: onInstance("PEXPIRETIME"), parse: parseLives, step: stepInstanceLives},
		},
	},
	{
		name: "string", key: namespace + ":str:%s",
		reads: []*operation{
			{name: "GET", args: onKey("GET"), parse: parseNumber, step: stepData},
			{name: "MGET", args: onKey("MGET"), parse: parseFirst, step: stepData},
			{name: "STRLEN", args: onKey("STRLEN"), parse: parseNumber, step: stepDigits},
		},
		other: []*operation{exists, {name: "GETRANGE", args: onKey("GETRANGE", 0, -1), parse: parseNumber, step: stepData}},
		write: append([]*operation{
			{name: "SET", way: writes, args: stringPut, parse: parseOK, step: stepSet},
			del, expireNow, scripted(stringPut, parseOK, stepSet),
		}, puts(stringPut, stepSet)...),
	},
	{
		// One member; its score is the value. Replies differ between the protocol's versions.
		name: "sorted set", key: namespace + ":zset:%s",
		reads: []*operation{
			{name: "ZRANGE", args: onKey("ZRANGE", 0, -1, "WITHSCORES"), parse: parseScores, step: stepData},
			{name: "ZSCORE", args: onKey("ZSCORE", "m"), parse: parseNumber, step: stepData},
		},
		other: []*operation{exists, {name: "ZCARD", args: onKey("ZCARD"), parse: parseNumber, step: stepPresent}},
		write: append([]*operation{
			{name: "ZADD", way: writes, args: zsetPut, parse: parseNumber, step: stepZAdd},
			{name: "ZREM", way: writes, args: onKey("ZREM", "m"), parse: parseNumber, step: stepDel},
			del, expireNow, scripted(zsetPut, parseNumber, stepZAdd),
		}, puts(zsetPut, stepSet)...),
	},
}

// rules make the proxy keep what CoSky's own keys do not stand for. Without tracking two commands may
// show two states of a key that somebody has changed beside the proxy, so only one question about
// it is kept then: MGET asks what GET does.
func rules(mode proxy.Invalidation) (all []proxy.Rule) {
	all = []proxy.Rule{
		{Match: namespace + ":str:*", Commands: []string{"get", "mget", "strlen"}},
		{Match: namespace + ":zset:*", Commands: []string{"zrange", "zscore", "zcard", "exists"}},
		{Match: namespace + ":svc_itc_idx:*", Commands: []string{"scard"}},
	}
	if mode == proxy.InvalidationPubSub {
		all = []proxy.Rule{
			{Match: namespace + ":str:*", Commands: []string{"get", "mget"}, Bare: true},
			{Match: namespace + ":zset:*", Commands: []string{"zrange"}, Bare: true},
		}
	}
	for i := range all {
		all[i].TTL, all[i].MaxValue = time.Minute, 1<<20
	}
	return all
}

// Operations on keys of every type.
var (
	exists    = &operation{name: "EXISTS", args: onKey("EXISTS"), parse: parseNumber, step: stepPresent}
	lifetime  = &operation{name: "PEXPIRETIME", args: onKey("PEXPIRETIME"), parse: parseNumber, step: stepLives}
	del       = &operation{name: "DEL", way: writes, args: onKey("DEL"), parse: parseNumber, step: stepDel}
	expireNow = &operation{name: "EXPIRE at once", way: writes, args: onKey("EXPIRE", 0), parse: parseNumber, step: stepDel}
	expire    = &operation{name: "PEXPIRE", way: writes, args: onKey("PEXPIRE", 3), parse: parseNumber, step: stepExpire}
	expired   = &operation{name: "expiry", step: stepExpired}
	flush     = &operation{name: "FLUSHDB", step: stepGone}
	crash     = &operation{name: "loss of all memory", step: stepGone}
)

func onKey(name string, more ...any) func(string, int) []any {
	return func(key string, _ int) []any { return append([]any{name, key}, more...) }
}

// put is the command that makes v the content of an absent key.
type put func(key string, v int) []any

func hashPut(key string, v int) []any   { return []any{"HSET", key, "data", v} }
func setPut(key string, v int) []any    { return []any{"SADD", key, member(v)} }
func stringPut(key string, v int) []any { return []any{"SET", key, v} }
func zsetPut(key string, v int) []any   { return []any{"ZADD", key, v, "m"} }

// putScript replaces the key by what the command in ARGV makes of it. While a slot moves, Redis may
// end it in the middle: the key that it has deleted is the other node's.
const putScript = `redis.call('DEL', KEYS[1]) return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))`

// scripted is a command within a script that declares its key.
func scripted(p put, parse func(any) (output, error), step func(state, int, output) (state, bool)) *operation {
	return &operation{name: "EVAL of one command", way: writes, parse: parse, step: step, args: func(key string, v int) []any {
		cmd := p(key, v)
		return append([]any{"EVAL", "return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))", 1, key, cmd[0]}, cmd[2:]...)
	}}
}

// hiddenPut does the same to a key that it does not declare.
const hiddenPut = `redis.call('DEL', ARGV[1]) return redis.call(ARGV[2], ARGV[1], unpack(ARGV, 3))`

// hiddenEval is the operation that does so.
const hiddenEval = "EVAL of a key it does not declare"

const putFunction = "#!lua name=coherence\nredis.register_function('put', function(keys, args) redis.call('DEL', keys[1]) return redis.call(args[1], keys[1], unpack(args, 2)) end)"

// puts are all the ways to replace a key's whole content.
func puts(p put, step func(state, int, output) (state, bool)) []*operation {
	declared := func(how string, what string) func(*client, *register, int) (output, error) {
		return func(c *client, r *register, v int) (output, error) {
			cmd := p(r.key, v)
			args := append([]any{how, what, 1, r.key, cmd[0]}, cmd[2:]...)
			return output{}, c.Do(c.ctx, args...).Err()
		}
	}
	hidden := func(r *register, v int) []any {
		cmd := p(r.key, v)
		return append([]any{"EVAL", hiddenPut, 0, r.key, cmd[0]}, cmd[2:]...)
	}
	inMulti := func(args func(r *register, v int) [][]any) func(*client, *register, int) (output, error) {
		return func(c *client, r *register, v int) (output, error) {
			_, err := c.TxPipelined(c.ctx, func(tx redis.Pipeliner) error {
				for _, a := range args(r, v) {
					tx.Do(c.ctx, a...)
				}
				return nil
			})
			return output{}, err
		}
	}
	return []*operation{
		{name: "MULTI", way: writes, step: step, do: inMulti(func(r *register, v int) [][]any { return [][]any{{"DEL", r.key}, p(r.key, v)} })},
		{name: "EVAL", way: writes | opaque, step: step, do: declared("EVAL", putScript)},
		{name: "EVALSHA", way: writes | opaque, step: step, do: evalSHA(declared("EVALSHA", sha1Of(putScript)), declared("EVAL", putScript))},
		{name: "FCALL", way: writes | opaque, step: step, do: declared("FCALL", "put")},
		{name: hiddenEval, way: writes | opaque, step: step, do: func(c *client, r *register, v int) (output, error) {
			return output{}, c.Do(c.ctx, hidden(r, v)...).Err()
		}},
		{name: "MULTI with EVAL of a key it does not declare", way: writes | opaque, step: step, do: inMulti(func(r *register, v int) [][]any { return [][]any{hidden(r, v)} })},
		{name: "RENAME", way: writes | opaque, step: step, do: func(c *client, r *register, v int) (output, error) {
			other := fmt.Sprintf("%s:other:%s:%d", namespace, r.id, v)
			if err := c.Do(c.ctx, p(other, v)...).Err(); err != nil {
				return output{}, errUndone{err}
			}
			return output{}, c.Do(c.ctx, "RENAME", other, r.key).Err()
		}},
	}
}

// evalSHA runs a script by its digest, and by its text where the server does not know it.
func evalSHA(byDigest, byText func(*client, *register, int) (output, error)) func(*client, *register, int) (output, error) {
	return func(c *client, r *register, v int) (output, error) {
		o, err := byDigest(c, r, v)
		if err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
			return byText(c, r, v)
		}
		return o, err
	}
}

func configSet(c *client, r *register, v int) (output, error) {
	return c.cosky("config_set", r.id, v, v)
}

// idOf is the config of a history.
func idOf(key string) string {
	return strings.TrimSuffix(strings.TrimPrefix(key, namespace+":cfg_htr:"), ":1")
}

func archive(key string, v int) []any {
	return []any{"EVAL", lua.ByName("config_set").Text, 1, namespace, idOf(key), v, v}
}

func forget(key string, _ int) []any {
	id := idOf(key)
	return []any{"DEL", namespace + ":cfg:" + id, namespace + ":cfg_htr_idx:" + id, key}
}

// calling is a call of one of CoSky's scripts, which everybody has loaded.
func calling(script string, args ...any) []any {
	return append([]any{"EVALSHA", lua.ByName(script).SHA1, 1, namespace}, args...)
}

// ofService calls a script with a service and, perhaps, one of its instances.
func ofService(script string, instance func(key string, v int) string) func(string, int) []any {
	return func(key string, v int) []any {
		args := calling(script, serviceOf(key))
		if instance != nil {
			args = append(args, instance(key, v))
		}
		return args
	}
}

func onInstance(name string, more ...any) func(string, int) []any {
	return func(key string, v int) []any { return append([]any{name, instanceKey(key, v)}, more...) }
}

// hiddenChange changes an instance, if it is there, without saying which.
const hiddenChange = `if redis.call('EXISTS', ARGV[1]) == 0 then return 0 end redis.call('HSET', ARGV[1], '_v', ARGV[2]) return 1`

func registerLife(key string, v int) []any {
	return calling("registry_register", lives[lifeFor(v)], serviceOf(key), instanceID(key, v), "http", "10.0.0.1", 1, 1, "_v", v)
}

func renew(key string, v int) []any {
	return calling("registry_renew", instanceID(key, v), lives[max(lifeFor(v), 1)])
}

func serviceOf(key string) string { return strings.TrimPrefix(key, namespace+":svc_itc_idx:") }

func instanceID(key string, v int) string {
	return fmt.Sprintf("%s@http#10.0.0.1#%d", serviceOf(key), v%instances)
}

func instanceKey(key string, v int) string { return namespace + ":svc_itc:" + instanceID(key, v) }

func configRemove(c *client, r *register, _ int) (output, error) {
	return c.cosky("config_remove", r.id)
}

func register_(c *client, r *register, v int) (output, error) {
	return c.cosky("registry_register", -1, r.id, member(v), "http", "10.0.0.1", 1, 1)
}

func deregister(c *client, r *register, v int) (output, error) {
	return c.cosky("registry_deregister", r.id, member(v))
}

// cosky calls a script as CoSky's SDK does.
func (c *client) cosky(name string, args ...any) (output, error) {
	script := lua.ByName(name)
	call := func(how, what string) (output, error) {
		reply, err := c.Do(c.ctx, append([]any{how, what, 1, namespace}, args...)...).Result()
		if err != nil {
			return output{}, err
		}
		return parseNumber(reply)
	}
	o, err := call("EVALSHA", script.SHA1)
	if err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
		return call("EVAL", script.Text)
	}
	return o, err
}

// member is the name of member v%64, an instance id of CoSky.
func member(v int) string { return fmt.Sprintf("s@http#10.0.0.1#%d", v%64) }

var errReply = errors.New("an unexpected reply")

func parseNumber(reply any) (output, error) {
	switch x := reply.(type) {
	case nil:
		return output{}, nil
	case int64:
		return output{n: int(x)}, nil
	case float64:
		return output{n: int(x)}, nil
	case string:
		if x == "" {
			return output{}, nil
		}
		n, err := strconv.Atoi(x)
		return output{n: n}, err
	}
	return output{}, fmt.Errorf("%w: %v", errReply, reply)
}

// parseFirst reads the number that is an array's only element.
func parseFirst(reply any) (output, error) {
	if x, ok := reply.([]any); ok && len(x) == 1 {
		return parseNumber(x[0])
	}
	return output{}, fmt.Errorf("%w: %v", errReply, reply)
}

// parseScores reads a score, which follows its member flat or in a pair.
func parseScores(reply any) (output, error) {
	switch x, ok := reply.([]any); {
	case !ok:
	case len(x) == 0:
		return output{}, nil
	case len(x) == 1:
		return parseScores(x[0])
	case len(x) == 2 && x[0] == "m":
		return parseNumber(x[1])
	}
	return output{}, fmt.Errorf("%w: %v", errReply, reply)
}

func parseInstances(reply any) (o output, err error) {
	all, ok := reply.([]any)
	if !ok {
		return o, fmt.Errorf("%w: %v", errReply, reply)
	}
	for _, one := range all {
		if err := o.addInstance(one); err != nil {
			return o, err
		}
	}
	return o, nil
}

func parseInstance(reply any) (o output, err error) { return o, o.addInstance(reply) }

// parseFields reads the value of an instance.
func parseFields(reply any) (o output, err error) {
	var flat []any
	switch x := reply.(type) {
	case []any:
		flat = x
	case map[any]any:
		for name, value := range x {
			flat = append(flat, name, value)
		}
	default:
		return o, fmt.Errorf("%w: %v", errReply, reply)
	}
	for i := 0; i+1 < len(flat); i += 2 {
		if flat[i] == "_v" {
			o.n, err = strconv.Atoi(fmt.Sprint(flat[i+1]))
		}
	}
	return o, err
}

// addInstance takes a flat list of fields and values; an empty one is no instance.
func (o *output) addInstance(reply any) (err error) {
	fields, ok := reply.([]any)
	if !ok {
		return fmt.Errorf("%w: %v", errReply, reply)
	}
	var x instance
	i := 0
	for at := 0; at+1 < len(fields) && err == nil; at += 2 {
		value := fmt.Sprint(fields[at+1])
		switch fields[at] {
		case "instanceId":
			i, err = strconv.Atoi(value[strings.LastIndexByte(value, '#')+1:])
		case "_v":
			x.v, err = strconv.Atoi(value)
		case "ttl_at":
			var second int64
			second, err = strconv.ParseInt(value, 10, 64)
			x.life = lifeOf(int(second - time.Now().Unix()))
		}
	}
	if err == nil && len(fields) > 0 {
		o.content.inst[i] = x
	}
	return err
}

// parseLives reads the millisecond at which an instance expires: what has a life is as far from its end
// as what has none.
func parseLives(reply any) (output, error) {
	o, err := parseNumber(reply)
	if o.n >= 0 {
		if life := lifeOf((o.n - int(time.Now().UnixMilli())) / 1000); life == dying {
			o.n = dying
		} else {
			o.n = lived - int(life)
		}
	}
	return o, err
}

// lived is what parseLives makes of a life, less its number.
const lived = -10

// parseLife reads the second at which an instance expires.
func parseLife(reply any) (output, error) {
	o, err := parseNumber(reply)
	switch {
	case o.n == -2:
		o.n = -1
	case o.n == -1:
		o.n = fixed
	default:
		o.n = int(lifeOf(o.n - int(time.Now().Unix())))
	}
	return o, err
}

func parseOK(reply any) (output, error) {
	if reply != "OK" {
		return output{}, fmt.Errorf("%w: %v", errReply, reply)
	}
	return output{}, nil
}

func parseHash(reply any) (o output, err error) {
	fields := make(map[any]any)
	switch x := reply.(type) {
	case map[any]any:
		fields = x
	case []any:
		for i := 0; i+1 < len(x); i += 2 {
			fields[x[i]] = x[i+1]
		}
	}
	o.content.fields = len(fields)
	if len(fields) > 0 {
		o.content.data, err = strconv.Atoi(fmt.Sprint(fields["data"]))
	}
	return o, err
}

func parseSet(reply any) (o output, err error) {
	members, ok := reply.([]any)
	if !ok {
		return o, fmt.Errorf("%w: %v", errReply, reply)
	}
	for _, m := range members {
		text := fmt.Sprint(m)
		v, err := strconv.Atoi(text[strings.LastIndexByte(text, '#')+1:])
		if err != nil {
			return o, err
		}
		o.content.set |= bit(v)
	}
	return o, nil
}

// errUndone is the error of an operation that has not happened.
type errUndone struct{ error }

// undone reports whether err proves that the command was not executed.
func undone(err error) bool {
	var certain errUndone
	if errors.As(err, &certain) {
		return true
	}
	for _, p := range []string{"NOSCRIPT", "LOADING", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "EXECABORT", "BUSY ", "ERR no such key", "ERR Function not found", "ERR cosky-proxy cannot reach"} {
		if strings.HasPrefix(err.Error(), p) {
			return true
		}
	}
	return false
}
