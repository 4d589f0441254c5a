package proxy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/discovery"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
)

// TestCommandFromTheTable: where the backend cannot, the proxy answers COMMAND as a
// Redis with the same commands does.
func TestCommandFromTheTable(t *testing.T) {
	r := clustertest.StartRedis(t)
	known := proxytest.StartDiscovered(t, discovery.Backend{Mode: cluster.Standalone, Seeds: []string{r.Addr}}, nil)
	o := embeddedOptions(t, r)
	o.Backend.Commands = known.Discovery.Commands()
	_, addr := proxytest.Start(t, o)
	for _, proto := range []string{"2", "3"} {
		behind, direct := clustertest.Dial(t, addr), clustertest.Dial(t, r.Addr)
		behind.Do("HELLO", proto)
		direct.Do("HELLO", proto)
		for _, line := range []string{
			"COMMAND COUNT x", "COMMAND NOSUCH", "COMMAND INFO get nosuch SET", "COMMAND INFO xgroup|create nosuch|get",
			"COMMAND DOCS nosuch", "COMMAND LIST x", "COMMAND LIST FILTERBY", "COMMAND LIST FILTERBY x y", "COMMAND LIST FILTERBY PATTERN",
			"COMMAND LIST FILTERBY PATTERN xgroup|del*", "COMMAND LIST FILTERBY MODULE nosuch", "COMMAND LIST FILTERBY ACLCAT nosuch",
			"COMMAND GETKEYS", "COMMAND GETKEYS nosuch", "COMMAND GETKEYS config", "COMMAND GETKEYS config nosuch", "COMMAND GETKEYS ping", "COMMAND GETKEYS spublish a b", "COMMAND GETKEYS get",
			"COMMAND GETKEYS get k", "COMMAND GETKEYS mset a 1 b 2", "COMMAND GETKEYS eval s 0", "COMMAND GETKEYS eval s 2 a b c", "COMMAND GETKEYS eval s x", "COMMAND GETKEYS zunion 0 a",
			"COMMAND GETKEYS xgroup create k g $", "COMMAND GETKEYS sort a by x store d", "COMMAND GETKEYSANDFLAGS sort a by x store d", "COMMAND GETKEYSANDFLAGS set k v",
			"COMMAND GETKEYSANDFLAGS set k v get", "COMMAND GETKEYSANDFLAGS lmove a b left right", "COMMAND GETKEYSANDFLAGS georadius a 0 0 1 km STORE d STOREDIST e",
			"COMMAND GETKEYSANDFLAGS nosuch", "COMMAND GETKEYSANDFLAGS",
		} {
			got, want := behind.Do(words(line)...), direct.Do(words(line)...)
			if got != want {
				t.Errorf("RESP%s %s:\n got %.600q\nwant %.600q", proto, line, got, want)
			}
			behind.Do("MULTI")
			queued := behind.Do(words(line)...)
			if inside := behind.Do("EXEC"); queued == "+QUEUED\r\n" && inside != "*1\r\n"+want {
				t.Errorf("RESP%s %s inside MULTI: got %.300q", proto, line, inside)
			}
		}
		for _, line := range []string{"COMMAND LIST", "COMMAND LIST FILTERBY ACLCAT stream", "COMMAND LIST FILTERBY PATTERN *S*T*", "COMMAND LIST filterby pattern X[a-i]*"} {
			got, want := names(behind.Do(words(line)...)), names(direct.Do(words(line)...))
			// The proxy answers these whatever the backend has.
			if got = slices.DeleteFunc(got, func(name string) bool {
				return name == "client|setinfo" || name == "cosky.sync" || strings.HasPrefix(name, "proxy")
			}); !slices.Equal(got, want) {
				t.Errorf("RESP%s %s: got %d names, want %d; the last ones are %q and %q", proto, line, len(got), len(want), got[max(len(got)-3, 0):], want[max(len(want)-3, 0):])
			}
		}
		const own = 2 // PROXY and COSKY.SYNC
		count := func(c *clustertest.Conn) (n int) {
			fmt.Sscanf(c.Do("COMMAND", "COUNT"), ":%d\r\n", &n)
			return n
		}
		if got, want := count(behind), count(direct)+own; got != want {
			t.Errorf("RESP%s COMMAND COUNT: %d, want %d", proto, got, want)
		}
		docs := behind.Do("COMMAND", "DOCS")
		if want := map[string]string{"2": fmt.Sprintf("*%d\r\n", 2*count(behind)), "3": fmt.Sprintf("%%%d\r\n", count(behind))}[proto]; !strings.HasPrefix(docs, want) {
			t.Errorf("RESP%s COMMAND DOCS: %.20q, want %q", proto, docs, want)
		}
		if got := behind.Do("COMMAND", "DOCS", "config|get"); !strings.Contains(got, "\r\n$10\r\nconfig|get\r\n") || !strings.Contains(got, "\r\nO(N) when N is") {
			t.Errorf("RESP%s COMMAND DOCS config|get: got %q", proto, got)
		}
	}
}

// names are the bulk strings of an array, sorted.
func names(reply string) (list []string) {
	for line := range strings.SplitSeq(reply, "\r\n") {
		if line != "" && line[0] != '*' && line[0] != '$' {
			list = append(list, line)
		}
	}
	slices.Sort(list)
	return list
}

// TestHelp: the subcommand HELP is the backend's, and so are the errors about
// subcommands that are missing or unknown. The embedded backend has none.
func TestHelp(t *testing.T) {
	r := clustertest.StartRedis(t)
	p := proxytest.StartDiscovered(t, discovery.Backend{Mode: cluster.Standalone, Seeds: []string{r.Addr}}, nil)
	_, embedded := proxytest.Start(t, embeddedOptions(t, r))
	behind, direct, demo := clustertest.Dial(t, p.Addr), clustertest.Dial(t, r.Addr), clustertest.Dial(t, embedded)
	for _, container := range []string{"ACL", "COMMAND", "CONFIG", "DEBUG", "FUNCTION", "LATENCY", "MEMORY", "MODULE", "OBJECT", "PUBSUB", "SCRIPT", "SLOWLOG", "XGROUP", "XINFO"} {
		for _, line := range []string{container + " HELP", strings.ToLower(container) + " help", container + " HELP x", container + " NOSUCH", container + " NOSUCH x y"} {
			if got, want := behind.Do(words(line)...), direct.Do(words(line)...); got != want {
				t.Errorf("%s:\n got %.300q\nwant %.300q", line, got, want)
			}
		}
		if container != "COMMAND" { // without a subcommand it lists everything
			if got, want := behind.Do(container), direct.Do(container); got != want {
				t.Errorf("%s: got %q, want %q", container, got, want)
			}
		}
		if container == "DEBUG" { // has no subcommands in the table
			continue
		}
		got := demo.Do(container, "HELP")
		if !strings.Contains(got, "\r\n+"+container+" <subcommand> [<arg> [value] [opt] ...]. Subcommands are:\r\n") || !strings.HasSuffix(got, "\r\n+HELP\r\n+    Prints this help.\r\n") {
			t.Errorf("%s HELP of the embedded backend: got %q", container, got)
		}
	}
	const want = "+GET <parameter> [<parameter> ...]\r\n+    Returns the effective values of configuration parameters.\r\n"
	if got := demo.Do("CONFIG", "HELP"); !strings.Contains(got, want) {
		t.Errorf("CONFIG HELP of the embedded backend: got %q", got)
	}
}

func embeddedOptions(t *testing.T, r *clustertest.Redis) proxy.Options {
	t.Helper()
	o := proxytest.Options(t, proxytest.Single(r.Addr))
	o.Backend.Mode = cluster.Embedded
	return o
}
