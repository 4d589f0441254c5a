package proxy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

// titles lists the sections of an INFO reply.
func titles(reply string) (list []string) {
	for line := range strings.Lines(reply) {
		if title, is := strings.CutPrefix(strings.TrimPrefix(strings.TrimSpace(line), "txt:"), "# "); is {
			list = append(list, title)
		}
	}
	return list
}

// TestInfoSections: the proxy's section is one among the backend's, whichever are
// asked for.
func TestInfoSections(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	for _, proto := range []int{2, 3} {
		p := w.dial(t, proto)
		for _, sections := range []string{
			"", "default", "all", "everything", "server", "SERVER clients", "nosuch", "server nosuch", "proxy", "Proxy server", "nosuch proxy", "default commandstats", "all all",
		} {
			got := p.behind.Do(append([]string{"INFO"}, strings.Fields(sections)...)...)
			direct := p.direct.Do(append([]string{"INFO"}, strings.Fields(sections)...)...)
			want := titles(direct)
			if s := strings.ToLower(sections); s == "" || strings.Contains(s, "proxy") || strings.Contains(s, "default") || strings.Contains(s, "all") || strings.Contains(s, "everything") {
				want = append(want, "Proxy")
			}
			if !slices.Equal(titles(got), want) || got[0] != direct[0] {
				t.Errorf("RESP%d INFO %s: got %c with %q, want %c with %q", proto, sections, got[0], titles(got), direct[0], want)
			}
			// Inside MULTI it is the same.
			p.behind.Do("MULTI")
			p.behind.Do("SET", "k", "v")
			p.behind.Do(append([]string{"INFO"}, strings.Fields(sections)...)...)
			p.behind.Do("CLIENT", "SETNAME", "me")
			p.behind.Do("INFO", "proxy")
			inside := p.behind.Do("EXEC")
			if !slices.Equal(titles(inside), append(slices.Clone(want), "Proxy")) || !strings.HasPrefix(inside, fmt.Sprintf("*4\r\n+OK\r\n%c", got[0])) ||
				!strings.Contains(inside, "\r\n+OK\r\n"+got[:1]) {
				t.Errorf("RESP%d INFO %s inside MULTI: got %.100q with %q", proto, sections, inside, titles(inside))
			}
		}
		if got, want := p.behind.Do("INFO", "nosuch"), p.direct.Do("INFO", "nosuch"); got != want {
			t.Errorf("RESP%d INFO nosuch: got %q, want %q", proto, got, want)
		}
		if got, want := p.behind.Do("INFO", "proxy"), "nearcache_hits:"; !strings.Contains(got, want) {
			t.Errorf("RESP%d INFO proxy: got %q", proto, got)
		}
	}
}

// infoFields reads the fields of an INFO reply.
func infoFields(reply string) map[string]string {
	fields := make(map[string]string)
	for line := range strings.Lines(reply) {
		if name, value, is := strings.Cut(strings.TrimSpace(line), ":"); is {
			fields[name] = value
		}
	}
	return fields
}

func testClusterInfo(t *testing.T, c *shared, p *proxytest.Discovered) {
	conn := clustertest.Dial(t, p.Addr)
	defer conn.Do("FLUSHALL")
	conn.Do("FLUSHALL")
	conn.Do("CONFIG", "RESETSTAT")
	for i := range 6 {
		conn.Do("SET", keyOf("info", i%3)+fmt.Sprint(i), "v", "PX", "100000000")
		conn.Do("LPUSH", keyOf("info", i%3), "v")
	}
	got := conn.Do("INFO", "everything")
	if want := titles(clustertest.Dial(t, c.Nodes[0].Addr).Do("INFO", "everything")); !slices.Equal(titles(got), append(want, "Proxy")) {
		t.Errorf("got sections %q, want %q and Proxy", titles(got), want)
	}
	fields := infoFields(got)
	for name, want := range map[string]string{
		"redis_mode": "standalone", "cluster_enabled": "0", "role": "master", "connected_slaves": "3", "loading": "0",
		"proxy_masters_asked": "3", "proxy_masters_silent": "0",
	} {
		if fields[name] != want {
			t.Errorf("%s: got %q, want %q", name, fields[name], want)
		}
	}
	if !strings.HasPrefix(fields["db0"], "keys=9,expires=6,avg_ttl=") {
		t.Errorf("db0: got %q", fields["db0"])
	}
	for name, want := range map[string]string{"cmdstat_set": "calls=6,", "cmdstat_lpush": "calls=6,"} {
		if !strings.HasPrefix(fields[name], want) {
			t.Errorf("%s: got %q, want %q…", name, fields[name], want)
		}
	}
	for _, name := range []string{"redis_version", "run_id", "used_memory_human", "slave0", "slave2", "uptime_in_seconds"} {
		if fields[name] == "" {
			t.Errorf("there is no %s", name)
		}
	}
	if got := conn.Do("INFO", "nosuch"); got != "$0\r\n\r\n" {
		t.Errorf("INFO nosuch: got %q", got)
	}
	conn.Do("MULTI")
	conn.Do("SET", keyOf("info", 0), "v")
	conn.Do("INFO", "keyspace")
	if inside := conn.Do("EXEC"); !strings.HasPrefix(inside, "*2\r\n+OK\r\n$") || !strings.Contains(inside, "\r\n# Keyspace\r\ndb0:keys=9,expires=6,") {
		t.Errorf("INFO keyspace inside MULTI: got %q", inside)
	}
}

// A shard that is down is left out: the others are still served.
func TestInfoWithoutAShard(t *testing.T) {
	answer := func(_ *proxytest.FakeConn, args []string) string {
		if args[0] == "INFO" {
			return bulkOf("# Server\r\nredis_version:7.0.15\r\n\r\n# Keyspace\r\ndb0:keys=1,expires=0,avg_ttl=0\r\n")
		}
		return ""
	}
	a, b := proxytest.StartFake(t, answer), proxytest.StartFake(t, answer)
	down := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		return "-LOADING Redis is loading the dataset in memory\r\n"
	})
	_, addr, _ := startFakeCluster(t, nil, a, b, down)
	c := clustertest.Dial(t, addr)
	fields := infoFields(c.Do("INFO"))
	if fields["redis_version"] != "7.0.15" || fields["db0"] != "keys=2,expires=0,avg_ttl=0" || fields["proxy_masters_silent"] != "1" {
		t.Errorf("got %q", fields)
	}
	_, addr, _ = startFakeCluster(t, nil, down)
	expectReply(t, clustertest.Dial(t, addr), "INFO", "-LOADING Redis is loading the dataset in memory\r\n")
}
