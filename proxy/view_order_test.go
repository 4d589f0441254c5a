package proxy_test

import (
	"fmt"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/lua"
	"cosky-proxy/proxy/proxytest"
)

// TestReadBehindAViewIsNotOlder: a client asks a script, which has to be fetched, and reads one of
// the keys that it shows, which is in memory, without waiting for the first answer.
func TestReadBehindAViewIsNotOlder(t *testing.T) {
	r, wire := startRelayed(t)
	r.load()
	r.must(r.direct, ":1\r\n", registration("s@0", 60, "s")...)
	reads := [][]string{{"SMEMBERS", setKey}, {"HGETALL", "{n}:svc_itc:s@0"}}
	for i, read := range reads {
		r.warm(read...)
		asked := r.redis.InfoField("commandstats", "cmdstat_smembers")
		wire.Mute(proxytest.Fetch)
		r.front[0].Cmd(scriptCall("discovery_get_instances", "s")...)
		r.front[0].Cmd(read...)
		clustertest.Await(t, "the fetch of the view to reach Redis", func() error {
			if r.redis.InfoField("commandstats", "cmdstat_smembers") == asked {
				return fmt.Errorf("not yet")
			}
			return nil
		})
		// The view cannot be answered before this write is executed.
		zone := fmt.Sprintf("zone-%d", i)
		r.must(r.front[1], ":1\r\n", scriptCall("registry_register", "60", "s", "s@0", "http", "h", "80", "1", "_zone", zone)...)
		r.must(r.front[1], ":1\r\n", registration(fmt.Sprintf("s@new%d", i), 60, "s")...)
		wire.Unmute(proxytest.Fetch)
		view, behind := r.front[0].ReadReply(), r.front[0].ReadReply()
		for _, what := range []string{zone, fmt.Sprintf("s@new%d\r\n", i)} {
			shown := strings.Contains(r.direct.Do(read...), what)
			if shown && strings.Contains(view, what) && !strings.Contains(behind, what) {
				t.Errorf("%q behind a view that shows %q answers %q", read, what, behind)
			}
		}
	}
}

// TestReadBehindAScriptIsNotOlder: the same behind a script that Redis has to answer, and that reads
// keys which its call does not name. Redis executes first somebody else's change of the key, then
// the script, which shows it.
func TestReadBehindAScriptIsNotOlder(t *testing.T) {
	r := startNear(t)
	r.load()
	r.must(r.direct, ":1\r\n", registration("s@0", 60, "s")...)
	const instance = "{n}:svc_itc:s@0"
	blocked := func(n string) {
		clustertest.Await(t, n+" commands to be held", func() error {
			if got := r.redis.InfoField("clients", "blocked_clients"); got != n {
				return fmt.Errorf("%s are", got)
			}
			return nil
		})
	}
	r.warm("HGETALL", instance)
	r.redis.Do("CLIENT", "PAUSE", clustertest.Deadline.Milliseconds(), "WRITE")
	r.direct.Cmd("HSET", instance, "_zone", "new")
	blocked("1")
	// With two keys it is none of the calls that are answered from memory.
	r.front[0].Cmd("EVALSHA", lua.ByName("discovery_get_instances").SHA1, "2", "{n}", "{n}", "s")
	r.front[0].Cmd("HGETALL", instance)
	blocked("2")
	r.redis.Do("CLIENT", "UNPAUSE")
	script, behind := r.front[0].ReadReply(), r.front[0].ReadReply()
	if !strings.Contains(script, "new") {
		t.Fatalf("the script did not show the change: %q", script)
	}
	if !strings.Contains(behind, "new") {
		t.Errorf("a read behind it answered %q", behind)
	}
}
