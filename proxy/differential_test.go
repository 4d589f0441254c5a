package proxy_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
	"cosky-proxy/router/command"
)

// transports are the two ways a loop can drive its sockets; a client must not be
// able to tell them apart.
var transports = []netloop.Transport{netloop.DefaultTransport, netloop.Goroutine}

// onTransports runs f once per transport, as a sub-test.
func onTransports(t *testing.T, f func(t *testing.T, transport netloop.Transport)) {
	for _, transport := range transports {
		t.Run(transport.String(), func(t *testing.T) { f(t, transport) })
	}
}

// twins is a Redis that is talked to directly and a second one behind a proxy.
// Whatever is done to both must be answered with the same bytes.
type twins struct {
	direct, behind *clustertest.Redis
	proxy          string // address
}

func startTwins(t *testing.T, transport netloop.Transport) *twins {
	t.Helper()
	w := &twins{direct: clustertest.StartRedis(t), behind: clustertest.StartRedis(t)}
	_, w.proxy = proxytest.Start(t, strict(t, w.behind, transport))
	return w
}

// strict are the options of a proxy in front of behind that fails the test when
// it logs a panic: a loop survives one, but whoever caused it is stuck or cut off.
func strict(t *testing.T, behind *clustertest.Redis, transport netloop.Transport) proxy.Options {
	t.Helper()
	o := proxytest.Options(t, proxytest.Single(behind.Addr))
	o.Transport = transport
	o.Logger = slog.New(slog.NewTextHandler(panicAlarm{t}, nil))
	return o
}

// panicAlarm is a log that is read by the test alone.
type panicAlarm struct{ t *testing.T }

func (a panicAlarm) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("panic")) {
		a.t.Errorf("the proxy logged %s", line)
	}
	return len(line), nil
}

// pair is one connection to each of the twins, in the same protocol.
type pair struct {
	t              *testing.T
	direct, behind *clustertest.Conn
}

func (w *twins) dial(t *testing.T, proto int) *pair {
	t.Helper()
	p := &pair{t, clustertest.Dial(t, w.direct.Addr), clustertest.Dial(t, w.proxy)}
	if proto == 3 {
		p.direct.Do("HELLO", "3")
		p.behind.Do("HELLO", "3")
	}
	return p
}

// do sends the same commands to both in one write each and compares the replies,
// one per command. It returns the last one.
func (p *pair) do(commands ...[]string) string {
	p.t.Helper()
	var raw strings.Builder
	for _, c := range commands {
		raw.WriteString(clustertest.Encode(c...))
	}
	p.direct.Send(raw.String())
	p.behind.Send(raw.String())
	var got string
	for i, c := range commands {
		want := p.direct.ReadReply()
		got = p.behind.ReadReply()
		if got == want || unordered[strings.ToLower(c[0])] && sortedReply(got) == sortedReply(want) {
			continue
		}
		p.t.Errorf("%.300q: got %.600q, a direct connection gets %.600q (before: %.300q)", c, got, want, commands[max(0, i-4):i])
	}
	return got
}

// unordered commands answer in the order of a hash table, which Redis seeds at
// random.
var unordered = map[string]bool{
	"smembers": true, "sunion": true, "sinter": true, "sdiff": true, "keys": true, "sscan": true,
	"hgetall": true, "hkeys": true, "hvals": true, "hscan": true, "zscan": true, "scan": true, "pubsub": true,
}

// sortedReply is a reply with its lines in order: equal for equal elements in any
// order.
func sortedReply(reply string) string {
	lines := strings.Split(reply, "\r\n")
	slices.Sort(lines)
	return strings.Join(lines, "\r\n")
}

// excluded commands have answers that differ between any two servers, change the
// server itself, or never answer.
var excluded = strings.Fields(`
	acl auth bgrewriteaof bgsave client cluster command config debug eval eval_ro evalsha evalsha_ro failover
	fcall fcall_ro function hello info lastsave latency lolwut memory migrate module monitor psync quit randomkey scan sscan hscan zscan
	replconf replicaof reset role save script shutdown slaveof slowlog srandmember spop hrandfield zrandmember
	subscribe psubscribe ssubscribe unsubscribe punsubscribe sunsubscribe sync time wait pfdebug pfselftest
	blpop brpop brpoplpush blmove blmpop bzpopmin bzpopmax bzmpop swapdb flushall flushdb move
	expire pexpire setex psetex getex ttl pttl restore restore-asking object|freq object|idletime xinfo xclaim xautoclaim xpending
	multi exec discard watch unwatch select asking readonly readwrite publish spublish dump`)

// random makes commands and arguments out of one deterministic stream.
type random struct {
	*rand.Rand
	names []string // commands that may be called with anything
	arity map[string]int
}

func newRandom(t *testing.T, w *twins, seed uint64) *random {
	r := &random{Rand: rand.New(rand.NewPCG(seed, 17))}
	r.arity = make(map[string]int)
	r.learn(t, w.direct.Do("COMMAND").([]any))
	slices.Sort(r.names)
	return r
}

// learn takes names and arities from a COMMAND reply.
func (r *random) learn(t *testing.T, rows []any) {
	for _, row := range rows {
		row := row.([]any)
		name := row[0].(string)
		top, _, _ := strings.Cut(name, "|")
		if slices.Contains(excluded, name) || slices.Contains(excluded, top) {
			continue
		}
		if command.LookupFull([]byte(name)) == nil {
			t.Errorf("the proxy does not know %q", name)
			continue
		}
		r.arity[name] = int(row[1].(int64))
		r.names = append(r.names, name)
		r.learn(t, row[9].([]any))
	}
}

func pick[T any](r *random, from []T) T { return from[r.IntN(len(from))] }

var (
	diffKeys = []string{
		"str", "num", "list", "set", "ints", "zset", "hash", "stream", "hll", "geo", "bits", "none", "", "k\x00\r\n$3\r\n",
		"ns:svc_idx", "ns:svc_itc:a", "ns:svc_itc_idx:a", "ns:cfg:app", "ns:cfg_idx", "cosky-{system}:ns_idx",
	}
	diffNumbers = []string{
		"0", "1", "-1", "2", "3", "10", "-100", "1000", "9223372036854775807", "-9223372036854775808", "9223372036854775808",
		"1.5", "-0", "+1", "01", " 1", "1 ", "0x10", "1e3", "inf", "-inf", "nan", "1e400", "(1", "[a", "+", "-",
	}
	diffValues = []string{"a", "b", "c", "", "m1", "m2", "\x00\xff\r\n", "hello world", strings.Repeat("x", 100), "0-1", "5-5", "$", ">", "g"}
	diffWords  = strings.Fields(`NX XX GT LT CH INCR GET SET ABSTTL REPLACE COUNT LIMIT WITHSCORES WITHCOORD WITHDIST ASC DESC BYSCORE BYLEX
		REV ALPHA BY STORE AGGREGATE SUM MIN MAX WEIGHTS MATCH a* BEFORE AFTER LEFT RIGHT KEEPTTL PERSIST ANY FROMMEMBER FROMLONLAT BYRADIUS BYBOX km m
		STREAMS GROUP NOACK MKSTREAM ID MAXLEN MINID ~ = AND OR XOR NOT BIT BYTE OVERFLOW WRAP SAT u8 i5 RANK LEN IDX INCRBY ENCODING CREATE DESTROY EXAT PXAT DB`)
)

func (r *random) arg() string {
	switch n := r.IntN(100); {
	case n < 40:
		return pick(r, diffKeys)
	case n < 60:
		return pick(r, diffNumbers)
	case n < 80:
		return pick(r, diffValues)
	}
	return pick(r, diffWords)
}

// anything is a command with random arguments, mostly of a plausible number.
func (r *random) anything() []string {
	name := pick(r, r.names)
	args := strings.Split(name, "|")
	arity := r.arity[name]
	n := max(arity, -arity) - len(args)
	switch r.IntN(8) {
	case 0:
		n--
	case 1, 2:
		n++
	case 3, 4:
		n += 2
	case 5:
		n += r.IntN(8)
	}
	for range n {
		args = append(args, r.arg())
	}
	if r.IntN(6) == 0 {
		args[0] = strings.ToUpper(args[0])
	}
	return args
}

// sensible is a command that fits its key, so that there is data to work on.
func (r *random) sensible() []string {
	v, n := pick(r, diffValues), strconv.Itoa(r.IntN(20)-5)
	switch r.IntN(39) {
	case 0:
		return []string{"SET", "str", v}
	case 1:
		return []string{"SET", "str", v, pick(r, []string{"NX", "XX", "GET", "KEEPTTL", "EXAT", "EX"})}
	case 2:
		return []string{"SET", "num", n}
	case 3:
		return []string{"INCRBY", "num", n}
	case 4:
		return []string{"INCRBYFLOAT", "num", "1.25"}
	case 5:
		return []string{"RPUSH", "list", v, n}
	case 6:
		return []string{"LRANGE", "list", "-20", "-1"}
	case 7:
		return []string{"LPOP", "list", strconv.Itoa(r.IntN(3))}
	case 8:
		return []string{"SADD", pick(r, []string{"set", "ns:svc_idx", "ns:cfg_idx"}), v}
	case 9:
		return []string{"SADD", "ints", n}
	case 10:
		return []string{"SMEMBERS", pick(r, []string{"set", "ints", "ns:svc_idx", "ns:cfg_idx", "none"})}
	case 11:
		return []string{"ZADD", "zset", pick(r, []string{"1", "2.5", "-inf", "1e20"}), v}
	case 12:
		return []string{"ZRANGE", "zset", "0", "-1", "WITHSCORES"}
	case 13:
		return []string{"ZRANGEBYSCORE", "zset", "(1", "+inf", "WITHSCORES", "LIMIT", "0", "2"}
	case 14:
		return []string{"HSET", pick(r, []string{"hash", "ns:svc_itc:a", "ns:cfg:app"}), v, n}
	case 15:
		return []string{"HGETALL", pick(r, []string{"hash", "ns:svc_itc:a", "ns:cfg:app", "none"})}
	case 16:
		return []string{"HINCRBYFLOAT", "hash", "f", "0.5"}
	case 17:
		return []string{"XADD", "stream", "5-*", "f", v}
	case 18:
		return []string{"XADD", "stream", fmt.Sprintf("%d-%d", r.IntN(50), r.IntN(3)), "f", v}
	case 19:
		return []string{"XRANGE", "stream", "-", "+"}
	case 20:
		return []string{"XREAD", "COUNT", "3", "STREAMS", "stream", "none", "0", "0"}
	case 21:
		return []string{"GEOADD", "geo", "13.361389", "38.115556", v}
	case 22:
		return []string{"GEOSEARCH", "geo", "FROMLONLAT", "15", "37", "BYRADIUS", "200", "km", "ASC", "WITHCOORD", "WITHDIST"}
	case 23:
		return []string{"PFADD", "hll", v}
	case 24:
		return []string{"EVAL", "return redis.call('LRANGE', KEYS[1], 0, -1)", "1", pick(r, []string{"list", "str"})}
	case 25:
		return []string{"EVAL", "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]); return {1, false, 'x', {2, {}}}", "1", "ns:cfg:app", v, n}
	case 26:
		return []string{"EXPIREAT", pick(r, diffKeys), pick(r, []string{"1", "99999999999"})}
	case 27:
		return []string{"EXPIRETIME", pick(r, diffKeys)}
	case 28:
		return []string{"MGET", "str", "num", "none", "list", "str"}
	case 29:
		return []string{"MSET", "str", v, "num", n}
	case 30:
		return []string{"NOSUCH" + v, v, n, strings.Repeat("y", r.IntN(200))}
	case 31:
		return []string{"OBJECT", "ENCODING", pick(r, diffKeys)}
	case 32:
		return []string{"PUBLISH", "ch", v}
	case 33:
		return []string{pick(r, []string{"SSCAN", "HSCAN", "ZSCAN"}), pick(r, diffKeys), "0", "COUNT", "1000"}
	case 34:
		return []string{"SCAN", "0", "COUNT", "1000"}
	case 35:
		return []string{"SELECT", pick(r, []string{"0", "1", "01", "+1", "16", "-1", "x", "9999999999"})}
	case 36:
		return []string{"CLIENT", "SETNAME", v}
	case 37:
		return []string{"CLIENT", "GETNAME"}
	}
	return []string{"DEL", pick(r, diffKeys)}
}

func (r *random) command() []string {
	if r.IntN(3) == 0 {
		return r.sensible()
	}
	return r.anything()
}

// newer reports whether releases after this server's changed the number of
// arguments: in MULTI, only EXEC tells then that the server takes fewer.
func (r *random) newer(c []string) bool {
	name := strings.ToLower(c[0])
	cmd := command.LookupFull([]byte(name))
	arity, known := r.arity[name]
	return known && cmd != nil && cmd.Arity != arity
}

// transaction is a MULTI block with an end, and now and then something refused
// in it.
func (r *random) transaction() [][]string {
	cs := [][]string{{"MULTI"}}
	if r.IntN(3) == 0 {
		cs = [][]string{{"WATCH", pick(r, diffKeys)}, {"MULTI"}}
	}
	for range r.IntN(5) {
		c := r.command()
		for unordered[strings.ToLower(c[0])] || r.newer(c) {
			c = r.command()
		}
		cs = append(cs, c)
	}
	return append(cs, []string{pick(r, []string{"EXEC", "EXEC", "EXEC", "DISCARD"})})
}

// TestDifferential plays random command sequences to both twins: all types, wrong
// types, wrong numbers of arguments, edge values, transactions, pipelines of
// different lengths.
func TestDifferential(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		for seed := range uint64(4) {
			for _, proto := range []int{2, 3} {
				t.Run(fmt.Sprintf("seed %d RESP%d", seed, proto), func(t *testing.T) {
					r, p := newRandom(t, w, seed+uint64(transport)*100), w.dial(t, proto)
					p.do([]string{"FLUSHALL"})
					for range 60 {
						var batch [][]string
						for range 1 + r.IntN(50) {
							if r.IntN(25) == 0 {
								batch = append(batch, r.transaction()...)
								continue
							}
							batch = append(batch, r.command())
						}
						p.do(batch...)
						if t.Failed() {
							return
						}
					}
				})
			}
		}
	})
}

// TestDifferentialArity calls every command Redis has with every small number of
// arguments: none may be answered otherwise than by Redis, or not at all.
func TestDifferentialArity(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	r := newRandom(t, w, 1)
	for _, proto := range []int{2, 3} {
		p := w.dial(t, proto)
		var batch [][]string
		for _, name := range r.names {
			for n := range 5 {
				c := strings.Split(name, "|")
				for i := range n {
					c = append(c, []string{"none", "0", "1", "a"}[i])
				}
				batch = append(batch, c)
			}
			if container, sub, ok := strings.Cut(name, "|"); ok {
				batch = append(batch, []string{container, sub + "x"}, []string{strings.ToUpper(container), strings.Repeat("long", 100)})
			}
		}
		p.do(batch...)
	}
}
