package main

import (
	"fmt"
	"strconv"
	"strings"

	"cosky-proxy/lua"
)

const (
	keyCount   = 1000 // keys that GET and SET spread over
	valueBytes = 64
	hashFields = 10
	smallSet   = 100
	largeSet   = 1000
	instances  = 50 // of the service that scripts read

	spreadTag = "{x}"   // hash tag of the namespaced keys
	firstTag  = "{06S}" // a hash tag of slot 0, which the first primary owns
)

var value = strings.Repeat("x", valueBytes)

// workload is one command, sent over and over at one pipeline depth.
type workload struct {
	name  string
	depth int // requests a connection sends before it reads the replies
	// command is what the load generator sends; __rand_int__ becomes a number below
	// keyCount.
	command []string
	quick   bool // part of a -quick run
	cluster bool // measured in front of a cluster too
}

// title tells workloads of different depths apart.
func (w workload) title() string { return fmt.Sprintf("%s, P=%d", w.name, w.depth) }

// probe is the command as one plain request, to compare answers with.
func (w workload) probe() []string {
	return replaceAll(w.command, "__rand_int__", fmt.Sprintf("%012d", 1))
}

// onFirstPrimary is the command with all its keys in slot 0, for a client that
// talks to one primary of a cluster and follows no redirects.
func (w workload) onFirstPrimary() []string {
	return replaceAll(replaceAll(w.command, spreadTag, firstTag), "key:", "key:"+firstTag+":")
}

func replaceAll(args []string, old, with string) []string {
	out := make([]string, len(args))
	for i, arg := range args {
		out[i] = strings.ReplaceAll(arg, old, with)
	}
	return out
}

// workloads lists everything a full run measures. The HGETALL and SMEMBERS keys
// are CoSky's (a config, the service index), which a near-cache may serve; the
// plain hash has the same content under a name that no cache rule knows.
func workloads() []workload {
	var all []workload
	add := func(w workload) {
		for _, depth := range []int{1, 16} {
			w.depth = depth
			all = append(all, w)
		}
	}
	add(workload{name: "PING", command: []string{"PING"}})
	add(workload{name: "GET 64 B", command: []string{"GET", "key:__rand_int__"}, quick: true, cluster: true})
	add(workload{name: "SET 64 B", command: []string{"SET", "key:__rand_int__", value}, quick: true, cluster: true})
	add(workload{name: "HGETALL config, 10 fields", command: []string{"HGETALL", configKey(spreadTag)}, quick: true, cluster: true})
	add(workload{name: "HGETALL plain, 10 fields", command: []string{"HGETALL", plainKey(spreadTag)}})
	add(workload{name: "SMEMBERS 100", command: []string{"SMEMBERS", indexKey(spreadTag, smallSet)}})
	add(workload{name: "SMEMBERS 1,000", command: []string{"SMEMBERS", indexKey(spreadTag, largeSet)}})
	add(workload{name: "discovery_get_instances of 50", command: getInstances(spreadTag)})
	return all
}

// getInstances reads a service as CoSky's clients do.
func getInstances(tag string) []string {
	return []string{"EVALSHA", lua.ByName("discovery_get_instances").SHA1, "1", "bench-" + tag, "order"}
}

// seedInstances registers them without an expiry, so that all front ends give the same answer
// at any time, and loads the script.
func seedInstances(tag string) [][]string {
	commands := [][]string{{"SCRIPT", "LOAD", strconv.Quote(lua.ByName("discovery_get_instances").Text)}}
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

// seedScript is the whole data set as lines for redis-cli.
func seedScript() string {
	var b strings.Builder
	for i := range keyCount {
		fmt.Fprintf(&b, "SET key:%012d %s\nSET key:%s:%012d %s\n", i, value, firstTag, i, value)
	}
	for _, command := range append(seedCommands(spreadTag), seedCommands(firstTag)...) {
		b.WriteString(strings.Join(command, " "))
		b.WriteByte('\n')
	}
	return b.String()
}
