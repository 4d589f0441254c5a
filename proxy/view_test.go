package proxy_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/lua"
	"cosky-proxy/proxy"
)

// scriptCall is the command that calls a script in the namespace of these tests.
func scriptCall(name string, args ...string) []string {
	return append([]string{"EVALSHA", lua.ByName(name).SHA1, "1", "{n}"}, args...)
}

func registration(id string, ttl int, service string) []string {
	return scriptCall("registry_register", strconv.Itoa(ttl), service, id, "http", "h", "80", "1", "_zone", "a")
}

// viewRig is a nearRig whose Redis knows all scripts and has three instances of service s.
func startViews(t *testing.T, change ...func(*proxy.Options)) *nearRig {
	r := startNear(t, change...)
	r.load()
	for i := range 3 {
		r.must(r.direct, ":1\r\n", registration(fmt.Sprint("s@", i), 60, "s")...)
	}
	return r
}

func (r *nearRig) load() {
	for _, s := range lua.All() {
		r.direct.Do("SCRIPT", "LOAD", s.Text)
	}
}

func (r *nearRig) must(c *clustertest.Conn, want string, args ...string) {
	r.t.Helper()
	if got := c.Do(args...); got != want {
		r.t.Fatalf("%.80q: %.200q, want %q", args, got, want)
	}
}

// expiries are the values of ttl_at in a reply.
func expiries(reply string) (at []int) {
	for i, part := range strings.Split(reply, "ttl_at\r\n") {
		if i > 0 {
			line := strings.Split(part, "\r\n")[1]
			n, _ := strconv.Atoi(line)
			at = append(at, n)
		}
	}
	return at
}

// hits reports how many reads f made from memory.
func (r *nearRig) hits(f func()) uint64 {
	before := r.server.Stats().Hits
	f()
	return r.server.Stats().Hits - before
}

var viewReads = [][]string{
	scriptCall("discovery_get_instances", "s"),
	scriptCall("discovery_get_instance", "s", "s@1"),
	scriptCall("discovery_get_instance_ttl", "s", "s@1"),
	scriptCall("instance_count_stat"),
	scriptCall("service_topology_get"),
	scriptCall("discovery_get_instances", "absent"),
	scriptCall("discovery_get_instance", "s", "absent"),
	scriptCall("discovery_get_instance_ttl", "s", "absent"),
}

// Views are what Redis answers, from memory.
func TestViews(t *testing.T) {
	t.Parallel()
	r := startViews(t)
	r.must(r.direct, "$-1\r\n", scriptCall("service_topology_add", "a", "b")...)
	for _, read := range viewReads {
		t.Run(lua.BySHA([]byte(read[1])).Name, func(t *testing.T) {
			r.warm(read...)
			got := r.front[0].Do(read...)
			if want := r.direct.Do(read...); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
