package proxy_test

import (
	"crypto/sha1"
	"encoding/hex"
	"errors"
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
	"cosky-proxy/proxy/proxytest"
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
	t.Run("undisturbed", func(t *testing.T) { t.Parallel(); testViewsNeverGoBack(t, false) })
	t.Run("while connections break", func(t *testing.T) { t.Parallel(); testViewsNeverGoBack(t, true) })
}

func testViewsNeverGoBack(t *testing.T, disturbed bool) {
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
	var all sync.WaitGroup
	var over atomic.Bool
	all.Go(func() { // a busy machine needs longer to prove anything
		began := time.Now()
		for s := r.server.Stats(); !t.Failed() && (time.Since(began) < 1500*time.Millisecond || time.Since(began) < clustertest.Deadline && (s.Hits < 100 || s.ViewReads < 10)); s = r.server.Stats() {
			time.Sleep(20 * time.Millisecond)
		}
		over.Store(true)
	})
	work := func(c *clustertest.Conn, f func(rnd *rand.Rand)) {
		rnd := rand.New(rand.NewPCG(rand.Uint64(), 1))
		all.Go(func() {
			for !over.Load() && !t.Failed() {
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
	if disturbed {
		killer := clustertest.Dial(t, r.redis.Addr)
		work(killer, func(*rand.Rand) {
			for _, line := range strings.Split(killer.Do("CLIENT", "LIST"), "\n") {
				if id := strings.TrimPrefix(strings.Fields(line + " x")[0], "id="); strings.Contains(line, " flags=t ") {
					killer.Do("CLIENT", "KILL", "ID", id)
				}
			}
			time.Sleep(100 * time.Millisecond)
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

// The script finds an expired instance, removes and announces it, once, however many clients ask;
// none of them sees it.
func TestViewsNoticeExpiry(t *testing.T) {
	t.Parallel()
	for _, read := range viewReads[:4] {
		t.Run(lua.BySHA([]byte(read[1])).Name, func(t *testing.T) {
			t.Parallel()
			r := startViews(t)
			r.warm(read...)
			r.must(r.direct, "+OK\r\n", "DEBUG", "SET-ACTIVE-EXPIRE", "0") // nobody but the script notices
			listener := r.dial()
			listener.Do("SUBSCRIBE", "{n}:svc_itc:s@1")
			for range 2 { // the second time it has only just been fetched
				r.direct.Do("PEXPIRE", "{n}:svc_itc:s@1", "600")
				clustertest.Await(t, "the end of the instance", func() error {
					if r.shows(read, r.front[0].Do(read...)) {
						return errors.New("it is shown")
					}
					return nil
				})
				for range 3 {
					for _, c := range r.front {
						if reply := c.Do(read...); r.shows(read, reply) {
							t.Errorf("an expired instance is shown: %.300q", reply)
						}
					}
				}
				want := "*3\r\n$7\r\nmessage\r\n$15\r\n{n}:svc_itc:s@1\r\n$7\r\nexpired\r\n"
				if got := listener.ReadReply(); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
				r.must(r.direct, ":0\r\n", "SISMEMBER", "{n}:svc_itc_idx:s", "s@1")
				r.direct.Do(registration("s@1", 60, "s")...)
				if got, want := listener.ReadReply(), "register\r\n"; !strings.HasSuffix(got, want) {
					t.Errorf("got %q, want the message of a registration next", got)
				}
				r.warm(read...)
			}
		})
	}
}

// shows reports whether a reply shows instance s@1 of three.
func (r *nearRig) shows(read []string, reply string) bool {
	switch lua.BySHA([]byte(read[1])).Name {
	case "instance_count_stat":
		return reply == ":3\r\n"
	case "discovery_get_instance_ttl":
		return reply != ":-2\r\n"
	}
	return strings.Contains(reply, "s@1\r\n")
}

// Whoever is told of a change by a message and asks, sees it.
func TestViewsShowWhatWasAnnounced(t *testing.T) {
	t.Parallel()
	r := startViews(t)
	listener := r.dial()
	listener.Do("PSUBSCRIBE", "{n}:svc_itc:*")
	reads := [][]string{viewReads[0], viewReads[1], {"HGETALL", "{n}:svc_itc:s@1"}}
	for i := range 40 {
		for _, read := range reads {
			r.warm(read...)
		}
		r.direct.Do(scriptCall("registry_set_metadata", "s@1", "_v", fmt.Sprint(i))...)
		listener.ReadReply()
		for _, read := range reads {
			for _, c := range r.front {
				if got, want := c.Do(read...), fmt.Sprintf("_v\r\n$%d\r\n%d\r\n", len(fmt.Sprint(i)), i); !strings.Contains(got, want) {
					t.Fatalf("after the message, %.80q answers %.300q, want %q in it", read, got, want)
				}
			}
		}
	}
}

// Every form of a call is answered alike, and what is no plain question to a script of
// CoSky's goes through.
func TestFormsOfViews(t *testing.T) {
	t.Parallel()
	r := startViews(t)
	text := lua.ByName("discovery_get_instances").Text
	other := "-- of another client\n" + text
	sha := r.direct.Do("SCRIPT", "LOAD", other)[5:45]
	call := scriptCall("discovery_get_instances", "s")
	for _, form := range []struct {
		name string
		args []string
		hits bool
	}{
		{"EVAL", append([]string{"EVAL", text}, call[2:]...), true},
		{"EVALSHA_RO", append([]string{"EVALSHA_RO"}, call[1:]...), true},
		{"lower case", append([]string{"evalsha"}, call[1:]...), true},
		{"more arguments", append(slices.Clone(call), "ignored"), true},
		{"two keys", append([]string{"EVALSHA", call[1], "2", "{n}", "{n}x"}, "s"), false},
		{"no arguments", call[:4], false},
		{"no keys", append(slices.Clone(call[:2]), "0"), false},
		{"not a number of keys", []string{"EVALSHA", call[1], "one", "{n}", "s"}, false},
		{"another script", append([]string{"EVALSHA", sha}, call[2:]...), false},
		{"a namespace within a group", append(slices.Clone(call[:3]), "{n}:svc_itc:x", "s"), false},
		{"a service that looks like another key", append(slices.Clone(call[:4]), "s:svc_itc:x"), false},
	} {
		t.Run(form.name, func(t *testing.T) {
			want := r.direct.Do(form.args...)
			if form.hits {
				r.warm(form.args...)
			}
			hits := r.hits(func() {
				for range 3 {
					if got := r.front[0].Do(form.args...); !alike(got, want) {
						t.Errorf("got %.300q, want %.300q", got, want)
					}
				}
			})
			if form.hits != (hits == 3) {
				t.Errorf("%d of 3 calls answered from memory", hits)
			}
		})
	}
	c := r.front[1]
	c.Do("HELLO", "3")
	if got, want := r.warm(call...), r.direct.Do(call...); !alike(got, want) {
		t.Errorf("in RESP3 got %.300q, want %.300q", got, want)
	}
	r.must(c, "+OK\r\n", "SCRIPT", "FLUSH")
	r.must(c, "-NOSCRIPT No matching script. Please use EVAL.\r\n", call...)
}

// Scripts of the configuration are served, too, but not brought up to date: their words are not known.
func TestScriptsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	text := strings.ReplaceAll(lua.ByName("discovery_get_instances").Text, "ttl_at", "expires")
	var sha string
	r := startViews(t, func(o *proxy.Options) {
		sum := sha1.Sum([]byte(text))
		sha = hex.EncodeToString(sum[:])
		sc, err := lua.Alike(strings.ToUpper(sha), "discovery_get_instances")
		if err != nil {
			t.Fatal(err)
		}
		o.Cache.Scripts = append(o.Cache.Scripts, sc)
	})
	r.direct.Do("SCRIPT", "LOAD", text)
	fixed := registration("f@1", -1, "f")
	r.must(r.direct, ":1\r\n", fixed...)
	call := []string{"EVALSHA", sha, "1", "{n}", "f"}
	r.warm(call...)
	r.must(r.front[0], ":1\r\n", "HSET", "{n}:svc_itc:f@1", "x", "y")
	if got := r.front[1].Do(call...); !strings.Contains(got, "$1\r\nx\r\n$1\r\ny\r\n") {
		t.Errorf("after a change: %q", got)
	}
	r.warm(call...)
	r.direct.Do("HSET", "{n}:svc_itc:f@1", "x", "z")
	clustertest.Await(t, "the change made beside the proxy", func() error {
		if got := r.front[1].Do(call...); !strings.Contains(got, "$1\r\nz\r\n") {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
}

// A thousand renewals while clients read: nearly every read is answered from memory, and each
// renewal costs Redis one small read for all views together.
func TestRenewalsLeaveViewsInMemory(t *testing.T) {
	t.Parallel()
	r := startViews(t)
	const services, perService, renewals = 4, 10, 1000
	var ids []string
	for s := range services {
		for i := range perService {
			id := fmt.Sprintf("v%d@%d", s, i)
			ids = append(ids, id)
			r.must(r.direct, ":1\r\n", registration(id, 60, fmt.Sprint("v", s))...)
		}
		r.warm(scriptCall("discovery_get_instances", fmt.Sprint("v", s))...)
	}
	before := r.server.Stats()
	var renewing, reading sync.WaitGroup
	done := make(chan struct{})
	for w := range 2 {
		c := r.dial()
		renewing.Go(func() {
			for i := range renewals / 2 {
				if got := c.Do(scriptCall("registry_renew", ids[(i*2+w)%len(ids)], "60")...); got != ":1\r\n" {
					t.Errorf("a renewal is answered %q", got)
				}
			}
		})
	}
	for w := range 6 {
		c := r.dial()
		reading.Go(func() {
			for i := w; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				if got := c.Do(scriptCall("discovery_get_instances", fmt.Sprint("v", i%services))...); !strings.HasPrefix(got, "*10\r\n") {
					t.Errorf("a service of ten instances is %.100q", got)
					return
				}
			}
		})
	}
	renewing.Wait()
	close(done)
	reading.Wait()
	after := r.server.Stats()
	hits, misses, reads := after.Hits-before.Hits, after.Misses-before.Misses, after.ViewReads-before.ViewReads
	t.Logf("%d hits, %d misses, %d instances read anew", hits, misses, reads)
	if misses*100 > hits {
		t.Errorf("%d hits and %d misses, want at least 99 %% hits", hits, misses)
	}
	if reads > 2*renewals {
		t.Errorf("%d instances read anew after %d renewals", reads, renewals)
	}
}

// Views that nobody reads are not kept up to date.
func TestIdleViewsAreForgotten(t *testing.T) {
	t.Parallel()
	r := startViews(t, func(o *proxy.Options) { o.Cache.RefreshIdle = time.Nanosecond })
	read := viewReads[0]
	r.warm(read...)
	renew := scriptCall("registry_renew", "s@1", "60")
	r.must(r.front[0], ":1\r\n", renew...) // it has been read just now
	reads := r.server.Stats().ViewReads
	r.must(r.front[0], ":1\r\n", renew...)
	if n := r.server.Stats().ViewReads; n != reads {
		t.Errorf("%d reads for a view that nobody looks at", n-reads)
	}
	r.agreeAlike(true, read...)
}

// In a cluster the views of a namespace whose keys share a slot follow that slot; without a tag
// the script is called, with what the cluster says to that.
func testClusterViews(t *testing.T, c *shared, p *proxytest.Discovered) {
	conn := clustertest.Dial(t, p.Addr)
	for _, s := range lua.All() {
		conn.Do("SCRIPT", "LOAD", s.Text)
	}
	key := keyOf("views", 1)
	in := func(args []string) []string {
		args = slices.Clone(args)
		args[3] = "{" + key + "}"
		return args
	}
	awaitOwner(t, p, key, c.Nodes[1])
	conn.Do("DEL", "{"+key+"}:svc_itc_idx:s")
	for i := range 3 {
		conn.Do(in(registration(fmt.Sprint("s@", i), 60, "s"))...)
	}
	read, renew := in(viewReads[0]), in(scriptCall("registry_renew", "s@1", "600"))
	hit := func(when string) (reply string) {
		t.Helper()
		clustertest.Await(t, "a hit "+when, func() error {
			before := p.Stats().Hits
			if reply = conn.Do(read...); p.Stats().Hits == before {
				return fmt.Errorf("not from memory: %.100q", reply)
			}
			return nil
		})
		return reply
	}
	before := expiries(hit("at first"))
	if got := conn.Do(renew...); got != ":1\r\n" || len(before) != 3 {
		t.Fatalf("a renewal of one of %d instances: %q", len(before), got)
	}
	if latest := slices.Max(expiries(hit("after a renewal"))); latest < slices.Max(before)+500 {
		t.Errorf("after a renewal an instance lives until %d, before it was %d", latest, before)
	}
	c.MoveSlot(c.SlotOf(key), c.Nodes[2])
	conn.Do(in(scriptCall("registry_set_metadata", "s@1", "_moved", "yes"))...)
	if got := hit("at the new owner"); !strings.Contains(got, "_moved\r\n") {
		t.Errorf("after the slot has moved: %.300q", got)
	}
	c.MoveSlot(c.SlotOf(key), c.Nodes[1])
	untagged := slices.Clone(read)
	untagged[3] = "untagged"
	hits := p.Stats().Hits
	for range 3 {
		conn.Do(untagged...)
	}
	if p.Stats().Hits != hits {
		t.Error("a view of keys of several slots is answered from memory")
	}
}

// Without client tracking views are kept for as long as everything that only CoSky's messages cover.
func TestViewsWithoutTracking(t *testing.T) {
	t.Parallel()
	r := startViews(t, func(o *proxy.Options) {
		o.Backend.Tracking, o.Cache.Invalidation = false, proxy.InvalidationPubSub
		o.Cache.PubSubTTL, o.Cache.MaxStaleness = 10*time.Second, 10*time.Second
	})
	for _, read := range viewReads[:4] {
		for _, write := range [][]string{
			scriptCall("registry_renew", "s@1", "500"),
			scriptCall("registry_set_metadata", "s@1", "_a", "b"),
			scriptCall("registry_deregister", "s", "s@1"),
			registration("s@1", 60, "s"),
		} {
			r.warm(read...)
			r.must(r.front[0], ":1\r\n", write...)
			r.agreeAlike(true, read...)
		}
		r.warm(read...)
		r.must(r.direct, ":1\r\n", scriptCall("registry_set_metadata", "s@1", "_a", "c")...)
		r.agreeAlike(false, read...)
	}
}

// A field of an instance that expires by itself, which Redis does not announce, is not shown for longer than
// anything else that goes unannounced; hashes without such fields are kept.
func TestViewsOfFieldsThatExpire(t *testing.T) {
	t.Parallel()
	r := startViews(t, func(o *proxy.Options) { o.Backend.Version, o.Cache.MaxStaleness = "7.4.0", 300*time.Millisecond })
	read := viewReads[0]
	r.warm(read...)
	clustertest.Await(t, "twice max_staleness without a miss", func() error {
		before := r.server.Stats()
		for end := time.Now().Add(600 * time.Millisecond); time.Now().Before(end); {
			r.front[0].Do(read...)
		}
		if after := r.server.Stats(); after.Misses != before.Misses || after.Hits == before.Hits {
			return fmt.Errorf("%d misses", after.Misses-before.Misses)
		}
		return nil
	})
	if strings.HasPrefix(r.direct.Do("HPEXPIRE", "{n}:svc_itc:s@1", "600", "FIELDS", "1", "_zone"), "-ERR unknown command") {
		return // before Redis 7.4
	}
	clustertest.Await(t, "the end of a field", func() error {
		if got := r.front[0].Do(read...); strings.Count(got, "_zone") != 2 {
			return fmt.Errorf("got %.300q", got)
		}
		return nil
	})
}

// In one pipeline a client sees its own writes, whichever way they and its reads take.
func TestViewsInAPipeline(t *testing.T) {
	t.Parallel()
	r := startViews(t)
	reads := [][]string{viewReads[0], viewReads[1], {"HGETALL", "{n}:svc_itc:s@1"}, {"HGET", "{n}:svc_itc:s@1", "_v"}}
	for _, read := range reads[:3] {
		r.warm(read...)
	}
	const rounds = 60
	for _, c := range r.front {
		var cmds [][]string
		for i := range rounds {
			write := scriptCall("registry_set_metadata", "s@1", "_v", fmt.Sprint(i))
			if i%3 == 1 {
				write = []string{"HSET", "{n}:svc_itc:s@1", "_v", fmt.Sprint(i)}
			}
			cmds = append(cmds, write, scriptCall("registry_renew", "s@1", fmt.Sprint(1000*(i+1))), reads[i%4], reads[(i+i/4)%4])
		}
		now := int(time.Now().Unix())
		c.Send(oneWrite(cmds...))
		for i, cmd := range cmds {
			got := c.ReadReply()
			if i%4 < 2 {
				continue
			}
			want := fmt.Sprintf("$%d\r\n%d\r\n", len(fmt.Sprint(i/4)), i/4)
			if !strings.Contains(got, "_v\r\n"+want) && got != want {
				t.Fatalf("command %d, %.80q: got %.400q, want version %d in it", i, cmd, got, i/4)
			}
			if cmd[0] == "EVALSHA" && slices.Max(expiries(got))-now < 1000*(i/4+1)-100 {
				t.Fatalf("command %d, %.80q: shows expiries %d, want the renewal in it", i, cmd, expiries(got))
			}
		}
	}
}
