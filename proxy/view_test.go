package proxy_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	for i, part := range strings.Split(reply, "$6\r\nttl_at\r\n") {
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

// alike reports whether two replies say the same, and expiries that are at most a second
// apart: Redis rounds them differently from one moment to the next.
func alike(a, b string) bool {
	x, y := expiries(a), expiries(b)
	if strings.HasPrefix(a, ":") && strings.HasPrefix(b, ":") {
		i, _ := strconv.Atoi(strings.TrimSpace(a[1:]))
		j, _ := strconv.Atoi(strings.TrimSpace(b[1:]))
		return i-j <= 1 && j-i <= 1 && (i > 1e9) == (j > 1e9) && (i > 1e9 || i == j)
	}
	for i := range x {
		if i < len(y) && x[i]-y[i] <= 1 && y[i]-x[i] <= 1 {
			b = strings.Replace(b, fmt.Sprintf("$6\r\nttl_at\r\n$10\r\n%d", y[i]), fmt.Sprintf("$6\r\nttl_at\r\n$10\r\n%d", x[i]), 1)
			b = strings.Replace(b, "$6\r\nttl_at", "$6\r\nTTL_AT", 1)
			a = strings.Replace(a, "$6\r\nttl_at", "$6\r\nTTL_AT", 1)
		}
	}
	return a == b
}

// changes alter what views show, in every way CoSky and other clients have.
var viewChanges = []struct {
	name  string
	write [][]string
}{
	{"register", [][]string{registration("s@9", 60, "s")}},
	{"register again", [][]string{registration("s@1", 30, "s")}},
	{"register what was not there", [][]string{registration("absent", 60, "s")}},
	{"register in another service", [][]string{registration("x@1", 60, "other")}},
	{"register the first of a service", [][]string{registration("absent@1", 60, "absent")}},
	{"renew, longer", [][]string{scriptCall("registry_renew", "s@1", "500")}},
	{"renew, shorter", [][]string{scriptCall("registry_renew", "s@1", "20")}},
	{"renew twice", [][]string{scriptCall("registry_renew", "s@1", "500"), scriptCall("registry_renew", "s@1", "100")}},
	{"renew all", [][]string{scriptCall("registry_renew", "s@0", "500"), scriptCall("registry_renew", "s@1", "300"), scriptCall("registry_renew", "s@2", "200")}},
	{"renew with a message", [][]string{scriptCall("registry_renew", "s@1", "3"), scriptCall("registry_renew", "s@1", "300")}},
	{"renew to death", [][]string{scriptCall("registry_renew", "s@1", "0")}},
	{"renew with an error", [][]string{{"HSET", "{n}:svc_itc:s@1", "__last_renew_pub_ttl_at", "x"}, scriptCall("registry_renew", "s@1", "300")}},
	{"renew in a transaction", [][]string{{"MULTI"}, scriptCall("registry_renew", "s@1", "500"), {"EXEC"}}},
	{"deregister", [][]string{scriptCall("registry_deregister", "s", "s@1")}},
	{"set_metadata", [][]string{scriptCall("registry_set_metadata", "s@1", "_zone", "b")}},
	{"remove_service", [][]string{scriptCall("registry_deregister", "s", "s@0"), scriptCall("registry_deregister", "s", "s@1"), scriptCall("registry_deregister", "s", "s@2"), scriptCall("registry_remove_service", "s")}},
	{"topology_add", [][]string{scriptCall("service_topology_add", "a", "c")}},
	{"topology_add of a consumer", [][]string{scriptCall("service_topology_add", "d", "e")}},
	{"HSET", [][]string{{"HSET", "{n}:svc_itc:s@1", "weight", "7"}}},
	{"HDEL of the id", [][]string{{"HDEL", "{n}:svc_itc:s@1", "instanceId"}}},
	{"HSET of the id", [][]string{{"HSET", "{n}:svc_itc:s@1", "instanceId", "s@2"}}},
	{"PERSIST", [][]string{{"PERSIST", "{n}:svc_itc:s@1"}}},
	{"EXPIRE", [][]string{{"EXPIRE", "{n}:svc_itc:s@1", "700"}}},
	{"DEL of an instance", [][]string{{"DEL", "{n}:svc_itc:s@1"}}},
	{"DEL of the index", [][]string{{"DEL", "{n}:svc_itc_idx:s"}}},
	{"SREM", [][]string{{"SREM", "{n}:svc_itc_idx:s", "s@1"}}},
	{"SADD", [][]string{{"SADD", "{n}:svc_itc_idx:s", "s@7"}}},
	{"RENAME", [][]string{{"RENAME", "{n}:svc_itc:s@1", "{n}:svc_itc:s@2"}}},
	{"a type that is wrong", [][]string{{"DEL", "{n}:svc_itc:s@1"}, {"SET", "{n}:svc_itc:s@1", "x"}}},
	{"an unknown script", [][]string{{"EVAL", "redis.call('HSET', KEYS[1], 'weight', '9') return redis.call('EXPIRE', KEYS[1], 800)", "1", "{n}:svc_itc:s@1"}}},
	{"a script that hides its keys", [][]string{{"EVAL", "return redis.call('EXPIRE', '{n}:svc_itc:s@1', 800)", "0"}}},
	{"FLUSHDB", [][]string{{"FLUSHDB"}}},
	{"service_stat", [][]string{{"DEL", "{n}:svc_itc:s@1"}, scriptCall("service_stat", "s")}},
}

// Whatever changes, through the proxy or beside it, shows in every view, at once or before long.
func TestViewsFollow(t *testing.T) {
	t.Parallel()
	for _, change := range viewChanges {
		t.Run(change.name, func(t *testing.T) {
			t.Parallel()
			for _, beside := range []bool{false, true} {
				r := startViews(t)
				r.direct.Do(scriptCall("service_topology_add", "a", "b")...)
				for _, read := range viewReads {
					r.warm(read...)
				}
				writer := r.dial()
				if beside {
					writer = r.direct
				}
				for _, w := range change.write {
					writer.Do(w...)
				}
				for _, read := range viewReads {
					r.agreeAlike(!beside, read...)
				}
			}
		})
	}
}

// agreeAlike is agree for replies with expiries.
func (r *nearRig) agreeAlike(atOnce bool, read ...string) {
	r.t.Helper()
	for i, c := range r.front {
		ask := func() error {
			got, want := c.Do(read...), r.direct.Do(read...)
			if !alike(got, want) {
				return fmt.Errorf("got %.400q, want %.400q", got, want)
			}
			return nil
		}
		if !atOnce {
			clustertest.Await(r.t, fmt.Sprintf("%.80q as Redis has it", read), ask)
		}
		for range 3 {
			if err := ask(); err != nil {
				r.t.Errorf("client %d: %s: %v", i, lua.BySHA([]byte(read[1])).Name, err)
			}
		}
	}
}

// Clients of both loops read instances in every way while others change and renew them, through
// the proxy and beside it. Nobody sees a version or an expiry older than what was
// acknowledged through the proxy, or seen by anybody, before he asked.
func TestViewsNeverGoBack(t *testing.T) {
	t.Parallel()
	r := startViews(t)
	const step = 1000 // seconds by which each renewal lengthens a life
	base := int(time.Now().Unix())
	var known [3]struct{ version, expiry atomic.Int64 }
	raise := func(p *atomic.Int64, n int64) {
		for {
			if o := p.Load(); o >= n || p.CompareAndSwap(o, n) {
				return
			}
		}
	}
	for i := range known {
		r.must(r.direct, ":1\r\n", scriptCall("registry_set_metadata", fmt.Sprint("s@", i), "_v", "0")...)
	}
	end := time.Now().Add(1500 * time.Millisecond)
	var all sync.WaitGroup
	work := func(c *clustertest.Conn, f func(rnd *rand.Rand)) {
		rnd := rand.New(rand.NewPCG(rand.Uint64(), 1))
		all.Go(func() {
			for time.Now().Before(end) && !t.Failed() {
				f(rnd)
			}
		})
	}
	for i := range known {
		id := fmt.Sprint("s@", i)
		through, beside := r.dial(), clustertest.Dial(t, r.redis.Addr)
		version, expiry := int64(0), int64(0)
		work(through, func(rnd *rand.Rand) {
			c := through
			if rnd.IntN(2) == 0 {
				c = beside
			}
			if rnd.IntN(8) == 0 {
				version++
				c.Do(scriptCall("registry_set_metadata", id, "_v", fmt.Sprint(version))...)
				if c == through {
					raise(&known[i].version, version)
				}
				return
			}
			expiry++
			c.Do(scriptCall("registry_renew", id, fmt.Sprint(expiry*step))...)
			if c == through {
				raise(&known[i].expiry, expiry)
			}
			time.Sleep(time.Duration(rnd.IntN(2000)) * time.Microsecond)
		})
	}
	for range 6 {
		c := r.dial()
		work(c, func(rnd *rand.Rand) {
			i := rnd.IntN(len(known))
			key, id := fmt.Sprint("{n}:svc_itc:s@", i), fmt.Sprint("s@", i)
			ways := [][]string{
				scriptCall("discovery_get_instances", "s"),
				scriptCall("discovery_get_instances", "s"),
				scriptCall("discovery_get_instance", "s", id),
				scriptCall("discovery_get_instance", "s", id),
				scriptCall("discovery_get_instance_ttl", "s", id),
				{"HGETALL", key},
				{"HGET", key, "_v"},
				{"TTL", key},
				{"EVAL", "return redis.call('TTL', KEYS[1])", "1", key},
			}
			way := ways[rnd.IntN(len(ways)-3)] // the last three void views
			if rnd.IntN(50) == 0 {
				way = ways[rnd.IntN(len(ways))]
			}
			var before [3][2]int64
			for j := range known {
				before[j] = [2]int64{known[j].version.Load(), known[j].expiry.Load()}
			}
			reply := c.Do(way...)
			for j := range known {
				if j != i && way[1] != lua.ByName("discovery_get_instances").SHA1 {
					continue
				}
				version, expiry := int64(-1), int64(-1)
				switch {
				case way[0] == "TTL", way[0] == "EVAL":
					n, _ := strconv.Atoi(strings.TrimSpace(reply[1:]))
					expiry = int64(n+step/2) / step
				case reply[0] == ':':
					n, _ := strconv.Atoi(strings.TrimSpace(reply[1:]))
					expiry = int64(n-base+step/2) / step
				case way[0] == "HGET":
					version = number(reply, 1)
				default:
					own := reply
					if way[1] == lua.ByName("discovery_get_instances").SHA1 {
						_, own, _ = strings.Cut(reply, fmt.Sprint("instanceId\r\n$3\r\ns@", j))
						own, _, _ = strings.Cut(own, "instanceId")
					}
					version = number(own, 2, "_v")
					if at := expiries(own); len(at) == 1 {
						expiry = int64(at[0]-base+step/2) / step
					} else if way[0] != "HGETALL" {
						t.Errorf("%.300q shows no expiry of instance %d", reply, j)
					}
				}
				if version >= 0 && version < before[j][0] || expiry >= 0 && expiry < before[j][1] {
					t.Errorf("%.60q: instance %d is at version %d, expiry %d; before it was at %d", way, j, version, expiry, before[j])
				}
				raise(&known[j].version, version)
				raise(&known[j].expiry, expiry)
			}
		})
	}
	all.Wait()
	s := r.server.Stats()
	t.Logf("%d hits, %d misses, %d bypasses, %d instances read anew", s.Hits, s.Misses, s.Bypasses, s.ViewReads)
	if s.Hits < 100 || s.ViewReads < 10 {
		t.Errorf("%d hits, %d instances read anew: views were not at work", s.Hits, s.ViewReads)
	}
}

// number is the number on the given line of a reply, counted from a line that says after.
func number(reply string, line int, after ...string) int64 {
	lines := strings.Split(reply, "\r\n")
	at := 0
	if len(after) > 0 {
		if at = slices.Index(lines, after[0]); at < 0 {
			return -1
		}
	}
	n, _ := strconv.ParseInt(lines[at+line], 10, 64)
	return n
}
