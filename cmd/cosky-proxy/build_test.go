package main

import (
	"bufio"
	"bytes"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/embedded"
	"cosky-proxy/conf"
	"cosky-proxy/lua"
	"cosky-proxy/proxy"
)

func TestMain(m *testing.M) {
	embedded.Main()
	if os.Getenv(fillVariable) != "" {
		fillAndReport()
		return
	}
	os.Exit(m.Run())
}

// everything is a configuration in which no option is zero.
func everything(t *testing.T) *conf.Config {
	t.Helper()
	cfg, _, err := conf.Load([]string{
		"--backend", "rediss-sentinel://me:pw@a:1,b:2/main/3", "--loops=1", "--transport=goroutine", "--clients.idle-timeout=1s", "--nearcache.on-backend-loss=serve_stale:30s", "--nearcache.warmup.namespaces=a",
		"--upstream.sentinel-user=su", "--upstream.sentinel-password=sp", "--cluster-facade=a:1", "--cluster-announce=a:1", "--nearcache.hot.keys=5", "--nearcache.rules={match: a, commands: [GET], coherence: ttl}",
		"--limits.rules={per: user, rate: 2}", "--upstream.read-from-commands=get=replica", "--upstream.read-your-writes=true", "--nearcache.hot.pinned=a", "--nearcache.hot.commands=GET",
		"--nearcache.scripts={sha: 0123456789abcdef0123456789abcdef01234567, effect: registry_renew}",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// An option that is not handed on leaves a field zero.
func TestEveryOptionIsHandedOn(t *testing.T) {
	cfg := everything(t)
	var zero []string
	var visit func(path string, v reflect.Value)
	visit = func(path string, v reflect.Value) {
		if v.Kind() == reflect.Struct {
			for i := range v.NumField() {
				if f := v.Type().Field(i); f.IsExported() {
					visit(path+"."+f.Name, v.Field(i))
				}
			}
			return
		}
		if v.IsZero() {
			zero = append(zero, path)
		}
	}
	visit("proxy", reflect.ValueOf(proxyOptions(cfg, slog.Default())))
	visit("backend", reflect.ValueOf(backendOf(cfg)))
	slices.Sort(zero)
	// What the backend tells and what build makes.
	if want := []string{"proxy.Auth.Users", "proxy.Backend.Commands", "proxy.Backend.Mode", "proxy.Backend.Tracking", "proxy.Backend.Version", "proxy.Cache.Cache", "proxy.TLS", "proxy.Topology", "proxy.Upstream.Dialer"}; !slices.Equal(zero, want) {
		t.Errorf("not set: %q\n   want: %q", zero, want)
	}
}

// What the configuration lets a rule name is what the proxy can keep.
func TestCacheableCommands(t *testing.T) {
	if c, p := conf.CacheableCommands(), proxy.CacheableCommands(); !slices.Equal(c, p) {
		t.Errorf("the configuration has %q\n the proxy has %q", c, p)
	}
}

// Every effect that the configuration lets a script have is known.
func TestScriptEffects(t *testing.T) {
	var names []string
	for _, s := range lua.All() {
		names = append(names, s.Name)
	}
	if c := conf.ScriptEffects(); !slices.Equal(c, names) {
		t.Errorf("the configuration has %q\n     the scripts are %q", c, names)
	}
}

func TestBackendOf(t *testing.T) {
	b := backendOf(everything(t))
	if b.Mode != cluster.Sentinel || !slices.Equal(b.Seeds, []string{"a:1", "b:2"}) || b.MasterName != "main" || b.DB != 3 ||
		b.User != "me" || b.Password != "pw" || b.SentinelUser != "su" || b.SentinelPassword != "sp" {
		t.Errorf("got %+v", b)
	}
}

// TestUsersAreRead: mistakes stop the start, with the line they stand on and no password.
func TestUsersAreRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users.acl")
	if err := os.WriteFile(file, []byte("user default off\nuser app on >hunter2 +nosuch\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--auth.users", "default off", "--auth.users", "app on >hunter2 %x~"}, "cannot use the users: auth.users:2: user 'app': Syntax error"},
		{[]string{"--auth.file", file}, "cannot use the users: " + file + ":2: user 'app': Error in applying operation '+nosuch': Unknown command or category name in ACL"},
		{[]string{"--auth.file", "/nosuch"}, "cannot read the users of auth.file: open /nosuch: no such file or directory"},
	} {
		cfg, _, err := conf.Load(append(c.args, "--auth.mode=proxy"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := build(t.Context(), cfg, slog.Default()); err == nil || err.Error() != c.want {
			t.Errorf("%q:\ngot  %v\nwant %s", c.args, err, c.want)
		}
	}
	var log bytes.Buffer
	cfg, _, err := conf.Load([]string{"--auth.mode=proxy", "--auth.users=app on nopass"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	opts := proxyOptions(cfg, slog.New(slog.NewTextHandler(&log, nil)))
	if err := readUsers(cfg, &opts); err != nil || opts.Auth.Users.Lookup([]byte("app")) == nil || !strings.Contains(log.String(), "clients need no password") {
		t.Errorf("error %v, log %q", err, log.String())
	}
}

func TestZeroLoopsAreOnePerCPU(t *testing.T) {
	if o := proxyOptions(conf.Default(), slog.Default()); o.Loops < 1 {
		t.Errorf("%d loops", o.Loops)
	}
}

// The whole program, in this process, on an embedded backend.
func TestServesAnEmbeddedBackend(t *testing.T) {
	out, stdout := io.Pipe()
	var stderr bytes.Buffer
	exit := make(chan int, 1)
	go func() {
		exit <- run([]string{"--listen=127.0.0.1:0", "--admin=off", "--loops=1", "--clients.max=10", "--upstream.max-pins=1"}, nil, stdout, &stderr, build)
		stdout.Close()
	}()
	lines := bufio.NewReader(out)
	var addr string
	for addr == "" {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("no address on stdout: %v; exit code %d, stderr %s", err, <-exit, &stderr)
		}
		if rest, ok := strings.CutPrefix(line, "  clients  "); ok {
			addr = strings.TrimSpace(rest)
		}
	}
	go io.Copy(io.Discard, lines)

	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"); err != nil {
		t.Fatal(err)
	}
	const want = "+OK\r\n$1\r\nv\r\n"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Errorf("got %q, %v", got, err)
	}
	c.Close()
	syscall.Kill(os.Getpid(), syscall.SIGTERM)
	if code := <-exit; code != 0 {
		t.Errorf("exit code %d, stderr %s", code, &stderr)
	}
}
