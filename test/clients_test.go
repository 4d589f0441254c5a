//go:build !race

package test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/test/harness"
)

// Client libraries connect with their default settings: what they send at connect time
// (HELLO, CLIENT SETINFO, INFO, …) differs, and is where proxies fail them.
//
// Not under the race detector, which sees nothing of a program under test.

// features are what every client shows, in each protocol it speaks and on each target.
var features = []string{"strings", "hashes", "pipeline", "transaction", "watch", "blocking", "pubsub", "scripts", "scan"}

// target is where clients connect to.
type target struct {
	name  string
	kind  string // single, or cluster for the library's cluster client
	addrs []string
}

func (t target) String() string { return t.name + "=" + t.kind + "@" + strings.Join(t.addrs, ",") }

// startTargets starts every combination that clients meet, each once.
func startTargets(t *testing.T) []target {
	// A cluster of its own: the shared one is locked while a test has it, and the programs
	// would wait for their turn behind tests that wait for the lock.
	single, many := standalone(t).url, "redis-cluster://"+clustertest.StartCluster(t, 3, 0).Nodes[0].Addr
	return []target{
		{"standalone", "single", []string{binary.Start(t, "--backend", single).Addr}},
		{"cluster", "single", []string{binary.Start(t, "--backend", many).Addr}},
		{"facade", "cluster", startFacade(t, single, 2, "127.0.0.1")},
		{"facade-on-cluster", "cluster", startFacade(t, many, 1, "localhost")}, // known by name
	}
}

// startFacade starts n proxies in front of one backend, which clients see as a cluster
// whose nodes are at host.
func startFacade(t *testing.T, backend string, n int, host string) []string {
	t.Helper()
	var addrs, args []string
	for len(addrs) < n {
		addr := fmt.Sprintf("%s:%d", host, clustertest.FreePort(t))
		if !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
			args = append(args, "--cluster-facade", addr)
		}
	}
	for _, addr := range addrs {
		binary.Start(t, append(args, "--listen", "127.0.0.1:"+port(addr), "--backend", backend)...)
	}
	return addrs
}

// program is one client library. It takes targets and prints a line "TARGET RESPn FEATURE"
// for everything that works.
type program struct {
	argv      func(t *testing.T) []string
	protocols []string
	lacks     []string // "TARGET FEATURE": what the library itself does not have
}

func programs() map[string]program {
	both := []string{"RESP2", "RESP3"}
	return map[string]program{
		"redis-cli":  {argv: func(*testing.T) []string { return []string{"bash", "clients/cli/redis-cli.sh"} }, protocols: both},
		"go-redis":   {argv: goProgram, protocols: both},
		"redis-py":   {argv: pythonProgram, protocols: both},
		"Jedis":      {argv: javaProgram("JedisProgram"), protocols: both},
		"Lettuce":    {argv: javaProgram("LettuceProgram"), protocols: both},
		"ioredis":    {argv: nodeProgram("ioredis.mjs"), protocols: both[:1]},
		"node-redis": {argv: nodeProgram("node-redis.mjs"), protocols: both, lacks: []string{"facade watch", "facade-on-cluster watch"}},
	}
}

func TestClients(t *testing.T) {
	t.Parallel()
	targets := startTargets(t)
	for name, p := range programs() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			argv := p.argv(t)
			for _, target := range targets {
				argv = append(argv, target.String())
			}
			out := runProgram(t, argv)
			missing := map[string]bool{}
			for _, target := range targets {
				for _, protocol := range p.protocols {
					for _, feature := range features {
						if !slices.Contains(p.lacks, target.name+" "+feature) {
							missing[target.name+" "+protocol+" "+feature] = true
						}
					}
				}
			}
			for line := range strings.Lines(out) {
				line = strings.TrimSpace(line)
				if missing[line] {
					delete(missing, line)
				} else {
					t.Errorf("%s says %s", name, line)
				}
			}
			if len(missing) > 0 {
				t.Errorf("%s does not say %q", name, slices.Sorted(maps.Keys(missing)))
			}
		})
	}
}

// runProgram returns what a client's program prints. What it writes to standard error
// explains failures.
func runProgram(t *testing.T, argv []string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*harness.Deadline)
	defer cancel()
	var noise strings.Builder
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stderr = &noise
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%q: %v", argv, err)
	}
	t.Logf("standard error:\n%s", tail([]byte(noise.String())))
	return string(out)
}

func goProgram(t *testing.T) []string {
	path := filepath.Join(t.TempDir(), "goredis")
	output(t, exec.Command("go", "build", "-o", path, "./clients/goredis"))
	return []string{path}
}

func pythonProgram(t *testing.T) []string {
	dir := install(t, "python", "clients/python/requirements.txt", func(dir string) []string {
		return []string{"/usr/bin/python3", "-m", "pip", "install", "--quiet", "--no-input", "--no-deps", "--target", dir,
			"--require-hashes", "-r", "clients/python/requirements.txt"}
	})
	return []string{"env", "PYTHONPATH=" + dir, "/usr/bin/python3", "clients/python/redis_py.py"}
}

func nodeProgram(script string) func(t *testing.T) []string {
	return func(t *testing.T) []string {
		dir := install(t, "node", "clients/node/package-lock.json", func(dir string) []string {
			return []string{"bash", "-c", `cp clients/node/package*.json "$0" && cd "$0" && exec npm ci --no-audit --no-fund --fetch-retries=1`, dir}
		})
		// Modules are looked for beside the script.
		work := t.TempDir()
		output(t, exec.Command("cp", "clients/node/"+script, "clients/node/targets.mjs", work))
		if err := os.Symlink(filepath.Join(dir, "node_modules"), filepath.Join(work, "node_modules")); err != nil {
			t.Fatal(err)
		}
		return []string{"node", filepath.Join(work, script)}
	}
}

func javaProgram(class string) func(t *testing.T) []string {
	return func(t *testing.T) []string {
		jars := filepath.Join(install(t, "java", "clients/java/jars.sha256", func(dir string) []string {
			return []string{"clients/java/fetch.sh", dir}
		}), "*")
		classes := t.TempDir()
		output(t, exec.Command("javac", "-Xlint:all,-processing", "-Werror", "-cp", jars, "-d", classes, "clients/java/Targets.java", "clients/java/"+class+".java"))
		return []string{"java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", jars + ":" + classes, class}
	}
}

// installTimeout bounds a download. Without a way to the registries it fails much
// sooner, or else here.
const installTimeout = 5 * time.Minute

// install returns a directory outside of the repository with the packages that lock
// pins; command puts them there unless that has been done.
func install(t *testing.T, name, lock string, command func(dir string) []string) string {
	t.Helper()
	pinned, err := os.ReadFile(lock)
	if err != nil {
		t.Fatal(err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "cosky-proxy-test", fmt.Sprintf("%s-%.8x", name, sha256.Sum256(pinned)))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	// Complete or absent: others may be about the same thing at this moment.
	fresh, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(fresh)
	ctx, cancel := context.WithTimeout(context.Background(), installTimeout)
	defer cancel()
	argv := command(fresh)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot install the %s clients that %s pins: %v; this needs the package registry to be reachable\n%s", name, lock, err, tail(out))
	}
	if err := os.Rename(fresh, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	return dir
}

// The README's table names the versions that are tested.
func TestReadmeNamesClientVersions(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ client, file, pattern string }{
		{"go-redis", "../go.mod", `github.com/redis/go-redis/v9 v(\S+)`},
		{"redis-py", "clients/python/requirements.txt", `(?m)^redis==(\S+)`},
		{"Jedis", "clients/java/pom.xml", `<artifactId>jedis</artifactId>\s*<version>([^<]+)`},
		{"Lettuce", "clients/java/pom.xml", `<artifactId>lettuce-core</artifactId>\s*<version>([^<]+)\.RELEASE`},
		{"ioredis", "clients/node/package.json", `"ioredis": "([^"]+)"`},
		{"node-redis", "clients/node/package.json", `"redis": "([^"]+)"`},
	} {
		text, err := os.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(c.pattern).FindSubmatch(text)
		if m == nil {
			t.Fatalf("%s: nothing matches %s", c.file, c.pattern)
		}
		if want := c.client + " " + string(m[1]); !strings.Contains(string(readme), want) {
			t.Errorf("README.md does not mention %s", want)
		}
	}
}
