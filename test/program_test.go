package test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/test/harness"
)

func TestHelpAndVersion(t *testing.T) {
	t.Parallel()
	if code, stdout, stderr := binary.Run(t, nil, "--version"); code != 0 || stdout != "cosky-proxy "+harness.Version+"\n" || stderr != "" {
		t.Errorf("--version: code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	code, stdout, stderr := binary.Run(t, nil, "--help")
	if code != 0 || stderr != "" {
		t.Errorf("--help: code %d, stderr %q", code, stderr)
	}
	for _, want := range []string{"Usage:", "--config", "--listen", "--backend", "--admin", "--loops", "--log-level", "redis-sentinel://"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("--help does not mention %s:\n%s", want, stdout)
		}
	}
}

// What is wrong with a command line is said in one line.
func TestMistakes(t *testing.T) {
	t.Parallel()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { busy.Close() })
	redis := "redis://" + clustertest.StartRedis(t).Addr
	locked := clustertest.StartRedis(t, "--requirepass", "hunter2")
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "proxy.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		what    string
		args    []string
		environ string
		code    int
		says    []string // parts of the line
	}{
		{"unknown key in the file", []string{"--config", file("nearcache:\n  max_byte: 1GB\n")}, "", 2, []string{"max_byte", "max_bytes"}},
		{"bad value in the file", []string{"--config", file("loops: many\n")}, "", 2, []string{"many", "loops"}},
		{"not YAML", []string{"--config", file("{")}, "", 2, []string{"proxy.yaml"}},
		{"no file", []string{"--config", "/nonexistent/proxy.yaml"}, "", 2, []string{"/nonexistent/proxy.yaml", "no such file"}},
		{"unknown flag", []string{"--frobnicate"}, "", 2, []string{"--frobnicate"}},
		{"bad flag", []string{"--loops", "-1"}, "", 2, []string{"-1", "loops"}},
		{"bad size", []string{"--nearcache.max-bytes", "1XB"}, "", 2, []string{"1XB", "max_bytes"}},
		{"argument", []string{"start"}, "", 2, []string{"start"}},
		{"unknown variable", nil, "COSKY_PROXY_LOOPZ=1", 2, []string{"COSKY_PROXY_LOOPZ"}},
		{"bad variable", nil, "COSKY_PROXY_LOOPS=x", 2, []string{"COSKY_PROXY_LOOPS", `"x"`}},
		{"TLS without a certificate", []string{"--listen", "tls:127.0.0.1:0"}, "", 2, []string{"tls.cert", "tls.key"}},
		{"no such certificate", []string{"--listen", "tls:127.0.0.1:0", "--tls.cert", "/nonexistent", "--tls.key", "/nonexistent", "--tls.client-auth", "off"}, "", 2, []string{"/nonexistent", "no such file"}},
		{"unknown scheme", []string{"--backend", "memcached://127.0.0.1"}, "", 2, []string{"memcached"}},
		{"not a cluster", []string{"--backend", strings.Replace(redis, "redis:", "redis-cluster:", 1)}, "", 1, []string{"cluster"}},
		{"no password", []string{"--backend", "redis://" + locked.Addr}, "", 1, []string{"it needs a password", "upstream.password"}},
		{"wrong password", []string{"--backend", "redis://:hunter3@" + locked.Addr}, "", 1, []string{"WRONGPASS"}},
		{"not a Sentinel", []string{"--backend", strings.Replace(redis, "redis:", "redis-sentinel:", 1) + "/mymaster"}, "", 1, []string{"not a Sentinel, use " + redis}},
		{"busy port", []string{"--backend", redis, "--listen", busy.Addr().String()}, "", 1, []string{fmt.Sprintf("cannot listen on %q: address already in use", busy.Addr())}},
		{"busy port, embedded backend", []string{"--listen", busy.Addr().String()}, "", 1, []string{busy.Addr().String(), "in use"}},
		{"busy admin port", []string{"--backend", redis, "--listen", "127.0.0.1:0", "--admin", busy.Addr().String()}, "", 1, []string{busy.Addr().String(), "in use"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			code, stdout, stderr := binary.Run(t, []string{"COSKY_PROXY_CLIENTS_MAX=1", "COSKY_PROXY_UPSTREAM_MAX_PINS=1", c.environ}, c.args...)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if stdout != "" {
				t.Errorf("stdout %q", stdout)
			}
			if strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "cosky-proxy: ") {
				t.Errorf("not a line for a human: %q", stderr)
			}
			for _, part := range c.says {
				if !strings.Contains(stderr, part) {
					t.Errorf("%q does not mention %q", stderr, part)
				}
			}
			if strings.Contains(stderr, "hunter") {
				t.Errorf("%q shows a password", stderr)
			}
		})
	}
}

// freeze makes a command of a client wait: the proxy has sent it to a server that does
// not answer until the returned function is called.
func freeze(t *testing.T, args ...string) (p *harness.Proxy, client *clustertest.Conn, thaw func()) {
	t.Helper()
	server := clustertest.StartRedis(t)
	p = binary.Start(t, append([]string{"--backend", "redis://" + server.Addr}, args...)...)
	client = clustertest.Dial(t, p.Addr)
	if got := client.Do("SET", "k", "v"); got != "+OK\r\n" {
		t.Fatalf("SET: got %q", got)
	}
	server.Freeze()
	const received = "cosky_proxy_client_received_bytes_total"
	before := p.Metric(received)
	client.Cmd("GET", "k")
	p.Await("the command to arrive", func() error {
		if p.Metric(received) == before {
			return errors.New("nothing was received")
		}
		return nil
	})
	return p, client, server.Thaw
}

func awaitLog(p *harness.Proxy, text string) {
	p.Await(fmt.Sprintf("%q in the log", text), func() error {
		if !strings.Contains(p.Log(), text) {
			return errors.New("not yet")
		}
		return nil
	})
}

func TestGracefulStop(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			p, client, thaw := freeze(t, "--drain-timeout", "5m", "--upstream.timeout", "5m")
			p.Signal(sig)
			awaitLog(p, "stopping gracefully")
			thaw()
			client.Expect("$1\r\nv\r\n")
			client.ExpectClosed()
			if code := p.Exit(); code != 0 {
				t.Errorf("exit code %d\n%s", code, p.Log())
			}
			if nc, err := net.Dial("tcp", p.Addr); err == nil {
				nc.Close()
				t.Error("it still listens")
			}
		})
	}
}

// A client that blocks gets its answer, and after it nothing more: it must not be cut off in the
// middle of a later command because it goes on until the time to drain is over.
func TestGracefulStopOfBlockedClients(t *testing.T) {
	t.Parallel()
	server := clustertest.StartRedis(t)
	p := binary.Start(t, "--backend", "redis://"+server.Addr, "--drain-timeout", "5m")
	worker, leaver := clustertest.Dial(t, p.Addr), clustertest.Dial(t, p.Addr)
	worker.Cmd("BLPOP", "work", "0")
	leaver.Cmd("BLPOP", "left", "0")
	blocked := func(n string) {
		p.Await(n+" blocked clients", func() error {
			if got := server.InfoField("clients", "blocked_clients"); got != n {
				return errors.New(got)
			}
			return nil
		})
	}
	blocked("2")
	p.Signal(syscall.SIGTERM)
	awaitLog(p, "stopping gracefully")
	leaver.Close() // is missed also now
	blocked("1")
	worker.Cmd("BLPOP", "work", "0")
	server.Do("RPUSH", "work", "1", "2")
	worker.Expect("*2\r\n$4\r\nwork\r\n$1\r\n1\r\n")
	worker.ExpectClosed()
	if code := p.Exit(); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.Log())
	}
	if got := server.Do("LLEN", "work"); got != int64(1) {
		t.Errorf("%v elements are left, want 1", got)
	}
}

func TestSecondSignalStopsAtOnce(t *testing.T) {
	t.Parallel()
	p, client, thaw := freeze(t, "--drain-timeout", "1h", "--upstream.timeout", "1h")
	defer thaw()
	p.Signal(syscall.SIGTERM)
	awaitLog(p, "stopping gracefully")
	p.Signal(syscall.SIGTERM)
	if code := p.Exit(); code != 1 {
		t.Errorf("exit code %d\n%s", code, p.Log())
	}
	client.ExpectClosed()
}

// The time to drain is bounded, and a stop that runs out of it is still a graceful one.
func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	p, client, thaw := freeze(t, "--drain-timeout", "100ms", "--upstream.timeout", "1h")
	defer thaw()
	p.Signal(syscall.SIGTERM)
	if code := p.Exit(); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.Log())
	}
	if reply, err := client.TryReply(harness.Deadline); err == nil && !strings.HasPrefix(reply, "-") {
		t.Errorf("got reply %q", reply)
	}
}

func TestConfigurationFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "proxy.yaml")
	text := fmt.Sprintf("backend: %s\nloops: 1\nlog_format: json\nclients: {max: 2}\n", standalone(t).url)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := binary.Start(t, "--config", path)
	if got := p.Metric("cosky_proxy_loops"); got != 1 {
		t.Errorf("%v loops, want 1", got)
	}
	if log := p.Log(); log != "" && !strings.HasPrefix(log, "{") {
		t.Errorf("the log is not JSON: %q", log)
	}
	// The harness' own connection is the first of two.
	if got := clustertest.Dial(t, p.Addr).Do("PING"); got != "+PONG\r\n" {
		t.Errorf("the second client got %q", got)
	}
	third := clustertest.Dial(t, p.Addr)
	third.Expect("-ERR max number of clients reached\r\n")
	third.ExpectClosed()
}

func TestAdminPages(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		p := binary.Start(t, "--backend", b.url)
		if code, body := p.Get("/healthz"); code != 200 || body != "ok\n" {
			t.Errorf("/healthz: %d %q", code, body)
		}
		if code, body := p.Get("/readyz"); code != 200 || body != "ready\n" {
			t.Errorf("/readyz: %d %q", code, body)
		}
		conn := clustertest.Dial(t, p.Addr)
		conn.Do("HSET", "demo-{x}:cfg:c", "data", "d")
		p.Await("a hit in the near-cache", func() error {
			conn.Do("HGETALL", "demo-{x}:cfg:c")
			if p.Metric("cosky_proxy_nearcache_hits_total") == 0 {
				return errors.New("none yet")
			}
			return nil
		})
		conn.Do("INCR", "demo-{x}:cfg:c") // an error
		for _, series := range []string{
			`cosky_proxy_commands_total{command="hgetall"}`,
			`cosky_proxy_command_duration_seconds_count{command="hset"}`,
			`cosky_proxy_command_errors_total{command="incr"}`,
			"cosky_proxy_nearcache_misses_total",
			"cosky_proxy_nearcache_fills_total",
			"cosky_proxy_nearcache_entries",
			"cosky_proxy_nearcache_bytes",
			"cosky_proxy_clients",
			"cosky_proxy_lanes",
			"process_resident_memory_bytes",
		} {
			if p.Metric(series) < 1 {
				t.Errorf("%s is %v", series, p.Metric(series))
			}
		}
		_, page := p.Get("/metrics")
		for _, addr := range b.servers {
			if !strings.Contains(page, fmt.Sprintf("cosky_proxy_node_connections{node=%q}", addr)) {
				t.Errorf("no figures about node %s", addr)
			}
		}
	})
}

// A write that goes around the proxy shows in its figures, because the backend told of it.
func TestInvalidationsAreCounted(t *testing.T) {
	t.Parallel()
	b := standalone(t)
	p := binary.Start(t, "--backend", b.url)
	conn, around := clustertest.Dial(t, p.Addr), clustertest.Dial(t, b.servers[0])
	p.Await("an invalidation", func() error {
		conn.Do("HGETALL", "demo-{x}:cfg:c")
		around.Do("HINCRBY", "demo-{x}:cfg:c", "version", "1")
		if p.Metric("cosky_proxy_nearcache_invalidations_total") == 0 {
			return errors.New("none yet")
		}
		return nil
	})
}

// A proxy whose backend went away says so, and recovers with it.
func TestReadinessFollowsTheBackend(t *testing.T) {
	t.Parallel()
	server := clustertest.StartRedis(t)
	p := binary.Start(t, "--backend", "redis://"+server.Addr)
	await := func(status int) {
		t.Helper()
		p.Await(fmt.Sprintf("status %d", status), func() error {
			if got, body := p.Get("/readyz"); got != status {
				return fmt.Errorf("%d %q", got, body)
			}
			return nil
		})
	}
	await(200)
	server.Stop()
	if got := clustertest.Dial(t, p.Addr).Do("GET", "k"); !strings.HasPrefix(got, "-") {
		t.Errorf("GET without a backend: got %q", got)
	}
	await(503)
	// Recovery must not depend on commands: a proxy that is not ready is sent none.
	server.Restart()
	await(200)
	if code, _ := p.Get("/healthz"); code != 200 {
		t.Errorf("/healthz: %d", code)
	}
	if got := clustertest.Dial(t, p.Addr).Do("SET", "k", "v"); got != "+OK\r\n" {
		t.Errorf("SET: got %q", got)
	}
}

// FO-07: a proxy that is started before its backend says so once, tells clients to try again,
// is not ready, and serves as soon as the backend does, the near-cache included.
func TestStartsBeforeItsBackend(t *testing.T) {
	t.Parallel()
	server := clustertest.StartRedis(t, "--requirepass", "hunter2")
	node := clustertest.StartCluster(t, 1, 0)
	for _, backend := range []struct {
		url    string
		server *clustertest.Redis
	}{
		{"redis://:hunter2@" + server.Addr, server},
		{"redis-cluster://nosuch.invalid:7000," + node.Nodes[0].Addr, node.Nodes[0]},
	} {
		backend.server.Stop()
		p := binary.StartEarly(t, "--backend", backend.url)
		c := clustertest.Dial(t, p.Addr)
		const notYet = "-LOADING cosky-proxy has not reached its backend yet; its log says why\r\n"
		for _, command := range []string{"PING", "GET k", "MGET a b", "DBSIZE", "FLUSHALL", "EVAL x 0", "CONFIG GET save", "INFO", "SUBSCRIBE ch", "BLPOP q 0", "WATCH k", "SCRIPT FLUSH", "KEYS *", "PUBLISH a b"} {
			if got := c.Do(strings.Fields(command)...); got != notYet {
				t.Errorf("%s before the backend: got %q, want %q", command, got, notYet)
			}
		}
		c.Send("HELLO 3\r\n")
		if got := c.ReadReply(); !strings.HasPrefix(got, "%7\r\n") {
			t.Errorf("HELLO before the backend: got %q", got)
		}
		if status, body := p.Get("/readyz"); status != 503 {
			t.Errorf("/readyz: %d %q", status, body)
		}
		backend.server.Restart()
		p.Await("the backend to be found", func() error {
			if got := c.Do("HSET", "ns:cfg:app", "f", "v"); got != ":1\r\n" && got != ":0\r\n" {
				return fmt.Errorf("HSET: got %q", got)
			}
			if status, body := p.Get("/readyz"); status != 200 {
				return fmt.Errorf("/readyz: %d %q", status, body)
			}
			return nil
		})
		p.Await("a hit of the near-cache", func() error {
			if got, want := c.Do("HGETALL", "ns:cfg:app"), "%1\r\n$1\r\nf\r\n$1\r\nv\r\n"; got != want {
				t.Errorf("HGETALL: got %q, want %q", got, want)
			}
			if info := c.Do("INFO", "proxy"); strings.Contains(info, "nearcache_hits:0\r\n") {
				return fmt.Errorf("no hit yet")
			}
			return nil
		})
		if got := c.Do("INFO", "server"); !strings.Contains(got, "redis_version:"+backend.server.InfoField("server", "redis_version")) {
			t.Errorf("INFO server: got %.300q", got)
		}
		if log := p.Log(); strings.Count(log, "cannot be reached") != 1 || strings.Contains(log, "cannot refresh") || strings.Contains(log, "hunter2") {
			t.Errorf("one warning is enough, and the password is nobody's business:\n%s", log)
		}
	}
}

// A backend that comes up late and wants another password is as wrong as one that does so
// at the start: the log says it, once.
func TestLateBackendRefuses(t *testing.T) {
	t.Parallel()
	server := clustertest.StartRedis(t, "--requirepass", "right")
	server.Stop()
	p := binary.StartEarly(t, "--backend", "redis://:hunter2@"+server.Addr)
	server.Restart()
	const cause = "can be reached, but not used"
	p.Await("the log to say why", func() error {
		if log := p.Log(); !strings.Contains(log, cause) || !strings.Contains(log, "WRONGPASS") {
			return fmt.Errorf("it says %s", log)
		}
		return nil
	})
	server.Do("CONFIG", "SET", "requirepass", "hunter2")
	c := clustertest.Dial(t, p.Addr)
	p.Await("the right password to be accepted", func() error {
		if got := c.Do("PING"); got != "+PONG\r\n" {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	if log := p.Log(); strings.Count(log, cause) != 1 || strings.Contains(log, "hunter2") {
		t.Errorf("the log says %s", log)
	}
}

// Without any option the proxy demonstrates itself, and takes its server along when it goes.
func TestEmbeddedBackend(t *testing.T) {
	t.Parallel()
	p := binary.Start(t, "--backend", embedded.url, "--log-level=debug")
	conn := clustertest.Dial(t, p.Addr)
	if got := conn.Do("SET", "k", "v"); got != "+OK\r\n" {
		t.Errorf("SET: got %q", got)
	}
	_, socket, ok := strings.Cut(p.Log(), "addr=unix:")
	socket, _, _ = strings.Cut(socket, " ")
	if !ok {
		t.Fatalf("the log names no socket:\n%s", p.Log())
	}
	p.Signal(syscall.SIGKILL)
	p.Exit()
	clustertest.Await(t, "the embedded server to go", func() error {
		if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s: %v", socket, err)
		}
		return nil
	})
}
