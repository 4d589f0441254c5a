package main

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"cosky-proxy/bench/load"
	"cosky-proxy/cluster/slot"
	"cosky-proxy/lua"
)

const (
	keyCount   = 1000 // keys that GET and SET spread over
	hashFields = 10
	smallSet   = 100
	largeSet   = 1000
	instances  = 50 // of the service that scripts read
	manyKeys   = 10 // of one MGET or MSET

	spreadTag = "{x}"   // hash tag of the namespaced keys
	firstTag  = "{06S}" // a hash tag of slot 0, which the first primary owns

	readScript = "return redis.call('GET', KEYS[1])"
)

// size is a length of values, with keys of its own.
type size struct {
	name   string
	prefix string // of the keys
	bytes  int
	keys   int
}

var (
	small  = size{"64 B", "key:", 64, keyCount}
	medium = size{"4 KB", "key:4k:", 4 << 10, keyCount}
	large  = size{"1 MB", "key:1m:", 1 << 20, 4}
)

func (s size) value() string { return strings.Repeat("x", s.bytes) }
func (s size) key() string   { return s.prefix + load.Placeholder }

// workload is a few commands, sent over and over at one pipeline depth.
type workload struct {
	name    string
	depth   int // requests a connection sends before it reads the replies
	clients int // connections; 0: as many as the plan says
	// commands are what the load generator sends in turn; load.Placeholder becomes a number
	// below keys.
	commands  [][]string
	keys      int      // 0: keyCount
	reconnect bool     // each pipeline on a connection of its own
	generator string   // the only one that sends it; empty: the plan's
	quick     bool     // part of a -quick run
	topology  topology // the only backend it is measured in front of; empty: both
	variants  []string // of the proxy that are measured, too
}

// title tells workloads apart.
func (w workload) title() string {
	title := fmt.Sprintf("%s, P=%d", w.name, w.depth)
	if w.clients > 0 {
		title += fmt.Sprintf(", c=%d", w.clients)
	}
	if w.generator != "" {
		title += ", " + w.generator
	}
	return title
}

// probes are the commands as plain requests, to compare answers with. Commands with several keys
// get different ones.
func (w workload) probes() [][]string {
	number := 0
	return each(w.commands, func(arg string) string {
		for strings.Contains(arg, load.Placeholder) {
			arg = strings.Replace(arg, load.Placeholder, fmt.Sprintf("%012d", number%w.keyCount()), 1)
			number++
		}
		return arg
	})
}

func (w workload) isFor(t topology) bool { return w.topology == "" || w.topology == t }

// isSentBy reports whether a generator can send the commands, as the workload's only one or as the plan's.
func (w workload) isSentBy(generator string) bool {
	return w.generator != "" || generator != benchGenerator || len(w.commands) == 1 && !w.reconnect
}

// keyCount is how many keys the commands spread over.
func (w workload) keyCount() int { return cmp.Or(w.keys, keyCount) }

// onFirstPrimary is the workload with all its keys in slot 0, for a client that
// talks to one primary of a cluster and follows no redirects.
func (w workload) onFirstPrimary() workload {
	w.commands = each(w.commands, strings.NewReplacer(spreadTag, firstTag, "key:", "key:"+firstTag+":").Replace)
	return w
}

// each replaces every argument.
func each(commands [][]string, replace func(string) string) [][]string {
	out := make([][]string, len(commands))
	for i, args := range commands {
		for _, arg := range args {
			out[i] = append(out[i], replace(arg))
		}
	}
	return out
}

// list gathers workloads.
type list struct{ all []workload }

// add lists w with one command, once for each depth.
func (l *list) add(w workload, command []string, depths ...int) {
	w.commands = [][]string{command}
	for _, w.depth = range depths {
		l.all = append(l.all, w)
	}
}

// workloads lists everything a full run measures.
func workloads() []workload {
	l := new(list)
	l.reads()
	l.values("GET", func(s size) []string { return []string{"GET", s.key()} })
	l.values("SET", func(s size) []string { return []string{"SET", s.key(), s.value()} })
	l.others()
	return l.all
}

// reads are those of whole collections. The HGETALL and SMEMBERS keys are CoSky's (a config,
// the service index), which a near-cache may serve; the plain hash has the same content under a
// name that no cache rule knows.
func (l *list) reads() {
	config := []string{"HGETALL", configKey(spreadTag)}
	l.add(workload{name: "PING", topology: standalone}, []string{"PING"}, 1)
	// The next two stand together, because one is the measure of the other.
	l.add(workload{name: "PING", topology: standalone, quick: true}, []string{"PING"}, 16)
	l.add(workload{name: "HGETALL cached, 10 fields", topology: standalone, quick: true, variants: []string{twoLoops, uncounted}}, config, 16)
	l.add(workload{name: "HGETALL cached, 10 fields", topology: cluster}, config, 16)
	l.add(workload{name: "HGETALL cached, 10 fields"}, config, 1)
	l.add(workload{name: "HGETALL plain, 10 fields", topology: standalone}, []string{"HGETALL", plainKey(spreadTag)}, 1, 16)
	l.add(workload{name: "SMEMBERS cached, 100", topology: standalone}, []string{"SMEMBERS", indexKey(spreadTag, smallSet)}, 1)
	l.add(workload{name: "SMEMBERS cached, 100", topology: standalone, quick: true}, []string{"SMEMBERS", indexKey(spreadTag, smallSet)}, 16)
	l.add(workload{name: "SMEMBERS cached, 1,000", topology: standalone}, []string{"SMEMBERS", indexKey(spreadTag, largeSet)}, 1, 16)
	l.add(workload{name: "discovery_get_instances of 50", topology: standalone}, getInstances(spreadTag), 1, 16)
}

// values are a command on values of all sizes, at all depths and numbers of connections.
func (l *list) values(name string, command func(size) []string) {
	title := name + " " + small.name
	l.add(workload{name: title, quick: true}, command(small), 1)
	l.add(workload{name: title, topology: standalone, quick: true, variants: []string{twoLoops, uncounted}}, command(small), 16)
	l.add(workload{name: title, topology: cluster, quick: true}, command(small), 16)
	l.add(workload{name: title}, command(small), 100)
	l.add(workload{name: title, clients: 1}, command(small), 1)
	l.add(workload{name: title, clients: 1000}, command(small), 1)
	l.add(workload{name: title, generator: benchGenerator}, command(small), 1, 16)
	l.add(workload{name: name + " " + medium.name}, command(medium), 1, 16)
	l.add(workload{name: name + " " + large.name, keys: large.keys}, command(large), 1)
}

// others are commands on several keys, scripts, mixtures and connections that come and go.
func (l *list) others() {
	mget, mset := []string{"MGET"}, []string{"MSET"}
	for range manyKeys {
		mget = append(mget, small.key())
		mset = append(mset, small.key(), small.value())
	}
	l.add(workload{name: "MGET of 10", topology: standalone}, mget, 1, 16)
	l.add(workload{name: "MSET of 10", topology: standalone}, mset, 1, 16)
	l.add(workload{name: "MGET of 10 across shards", topology: cluster, quick: true}, mget, 1, 16)
	l.add(workload{name: "MSET of 10 across shards", topology: cluster, quick: true}, mset, 1, 16)
	l.add(workload{name: "EVALSHA, one GET"}, []string{"EVALSHA", digest(readScript), "1", small.key()}, 1, 16)
	mixed := workload{name: "90 % GET, 10 % SET", commands: [][]string{{"SET", small.key(), small.value()}}}
	for range 9 {
		mixed.commands = append(mixed.commands, []string{"GET", small.key()})
	}
	for _, mixed.depth = range []int{1, 16} {
		l.all = append(l.all, mixed)
	}
	l.add(workload{name: "GET 64 B, each on a new connection", reconnect: true}, []string{"GET", small.key()}, 1)
}

func digest(script string) string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}

// getInstances reads a service as CoSky's clients do.
func getInstances(tag string) []string {
	return []string{"EVALSHA", lua.ByName("discovery_get_instances").SHA1, "1", "bench-" + tag, "order"}
}

// scripts are what every server has to know.
func scripts() []string {
	return []string{readScript, lua.ByName("discovery_get_instances").Text}
}

// seedInstances registers them without an expiry, so that all front ends give the same answer
// at any time.
func seedInstances(tag string) [][]string {
	var commands [][]string
	for i := range instances {
		host := fmt.Sprintf("10.0.0.%d", i+1)
		id := "order@http#" + host + "#8080"
		commands = append(commands,
			[]string{"SADD", "bench-" + tag + ":svc_itc_idx:order", id},
			[]string{"HSET", "bench-" + tag + ":svc_itc:" + id, "instanceId", id, "serviceId", "order", "schema", "http", "host", host,
				"port", "8080", "weight", "1", "ephemeral", "false", "_instance_status", "UP"})
	}
	return commands
}

func configKey(tag string) string { return "bench-" + tag + ":cfg:app" }
func plainKey(tag string) string  { return "plain-" + tag + ":hash" }

// indexKey names the service index of a namespace that has so many services.
func indexKey(tag string, services int) string {
	return fmt.Sprintf("bench-%s-%d:svc_idx", tag, services)
}

// seedCommands writes the keys that carry a hash tag.
func seedCommands(tag string) [][]string {
	hash := make([]string, 0, 2*hashFields)
	for i := range hashFields {
		hash = append(hash, fmt.Sprintf("field-%d", i), fmt.Sprintf("value-%024d", i))
	}
	commands := [][]string{
		append([]string{"HSET", configKey(tag)}, hash...),
		append([]string{"HSET", plainKey(tag)}, hash...),
	}
	for _, services := range []int{smallSet, largeSet} {
		command := []string{"SADD", indexKey(tag, services)}
		for i := range services {
			command = append(command, fmt.Sprintf("service-%08d", i))
		}
		commands = append(commands, command)
	}
	return append(commands, seedInstances(tag)...)
}

// seedScript is the whole data set as lines for redis-cli, in the order of their slots, so that
// few of them are redirected.
func seedScript() string {
	var commands [][]string
	for _, s := range []size{small, medium, large} {
		value := s.value()
		for i := range s.keys {
			key := strings.ReplaceAll(s.key(), load.Placeholder, fmt.Sprintf("%012d", i))
			commands = append(commands, []string{"SET", key, value},
				[]string{"SET", "key:" + firstTag + ":" + strings.TrimPrefix(key, "key:"), value})
		}
	}
	commands = slices.Concat(commands, seedCommands(spreadTag), seedCommands(firstTag))
	slices.SortStableFunc(commands, func(a, b []string) int {
		return cmp.Compare(slot.Of([]byte(a[1])), slot.Of([]byte(b[1])))
	})
	var b strings.Builder
	for _, command := range commands {
		b.WriteString(strings.Join(command, " "))
		b.WriteByte('\n')
	}
	return b.String()
}
