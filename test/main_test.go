package test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/test/harness"
)

// binary is built once, by TestMain.
var binary harness.Binary

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	scope := clustertest.NewScope()
	defer scope.Close()
	var err error
	if binary, err = harness.Build(scope.TempDir()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	sharedCluster.scope = scope
	return m.Run()
}

// backend is what a proxy under test stands in front of.
type backend struct {
	url     string
	servers []string // all primaries behind the proxy; none: embedded, which only the proxy can reach
}

var embedded = backend{url: "embedded:"}

func standalone(t testing.TB) backend {
	t.Helper()
	r := clustertest.StartRedis(t)
	return backend{url: "redis://" + r.Addr, servers: []string{r.Addr}}
}

// sharedCluster is the one cluster of this package, started by the first test that
// needs it and used by one test at a time.
var sharedCluster struct {
	scope *clustertest.Scope // set before any test runs

	mu    sync.Mutex
	nodes *clustertest.Cluster // guarded by mu
}

// clustered returns an empty cluster of three primaries with a replica each. It
// belongs to t until t ends.
func clustered(t testing.TB) backend {
	t.Helper()
	sharedCluster.mu.Lock()
	t.Cleanup(sharedCluster.mu.Unlock)
	if sharedCluster.nodes == nil {
		sharedCluster.nodes = clustertest.StartCluster(sharedCluster.scope, 3, 1)
	}
	var b backend
	for _, r := range sharedCluster.nodes.Nodes[:3] {
		r.Do("FLUSHALL")
		r.Do("SCRIPT", "FLUSH")
		b.servers = append(b.servers, r.Addr)
	}
	b.url = "redis-cluster://" + strings.Join(b.servers, ",")
	return b
}

// onEach runs f as a subtest in front of each kind of backend, the three in parallel.
func onEach(t *testing.T, f func(t *testing.T, b backend)) {
	for name, start := range map[string]func(testing.TB) backend{
		"standalone": standalone,
		"cluster":    clustered,
		"embedded":   func(testing.TB) backend { return embedded },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, start(t))
		})
	}
}

// output runs a program that has to succeed and returns all it prints.
func output(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", cmd.Args, err, tail(out))
	}
	return string(out)
}

// tail is the end of a program's output, for an error message.
func tail(out []byte) []byte { return out[max(0, len(out)-4000):] }

// port is the port of a loopback address.
func port(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }
