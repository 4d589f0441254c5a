package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cosky-proxy/conf"
	"cosky-proxy/nearcache"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/stats"
)

// fakeServer is a proxy that only waits for its end.
type fakeServer struct {
	listenErr error
	runErr    error
	running   chan struct{} // closed by Run
}

func (f *fakeServer) Listen() error   { return f.listenErr }
func (f *fakeServer) Addrs() []string { return []string{"127.0.0.1:7001", "unix:/run/p.sock"} }
func (f *fakeServer) Run(ctx context.Context) error {
	close(f.running)
	if f.runErr != nil {
		return f.runErr
	}
	<-ctx.Done()
	return nil
}
func (f *fakeServer) Ready() error                         { return nil }
func (f *fakeServer) Stats() stats.Snapshot                { return stats.Snapshot{Loops: 1} }
func (f *fakeServer) CacheStats() nearcache.Stats          { return nearcache.Stats{} }
func (f *fakeServer) HotKeys(int) []stats.HotKey           { return nil }
func (f *fakeServer) SlowCommands(int) []stats.SlowCommand { return nil }
func (f *fakeServer) CommandName(int) string               { return "" }

// start runs the program with a fake proxy and reports its exit code and output.
func start(f *fakeServer, args ...string) (exit chan int, stdout, stderr *bytes.Buffer, released *bool) {
	f.running = make(chan struct{})
	exit = make(chan int, 1)
	stdout, stderr, released = &bytes.Buffer{}, &bytes.Buffer{}, new(bool)
	go func() {
		exit <- run(args, nil, stdout, stderr, func(context.Context, *conf.Config, *slog.Logger) (server, func(), error) {
			return f, func() { *released = true }, nil
		})
	}()
	return exit, stdout, stderr, released
}

func noBuild(context.Context, *conf.Config, *slog.Logger) (server, func(), error) {
	panic("BUG: build must not be called")
}

func TestExitCodes(t *testing.T) {
	unreachable := func(context.Context, *conf.Config, *slog.Logger) (server, func(), error) {
		return nil, nil, errors.New("cannot reach 10.0.0.1:6379: connection refused")
	}
	placeless := func(context.Context, *conf.Config, *slog.Logger) (server, func(), error) {
		return &fakeServer{listenErr: fmt.Errorf("%w: set cluster_announce", proxy.ErrPlaceless)}, func() {}, nil
	}
	for _, c := range []struct {
		args           []string
		environ        []string
		build          builder
		code           int
		stdout, stderr string // parts; "" means nothing at all
	}{
		{args: []string{"--help"}, build: noBuild, stdout: "Usage:"},
		{args: []string{"--version"}, build: noBuild, stdout: "cosky-proxy development\n"},
		{args: []string{"--frobnicate"}, build: noBuild, code: 2, stderr: "cosky-proxy: unknown flag --frobnicate"},
		{args: []string{"--loops", "many"}, build: noBuild, code: 2, stderr: `cosky-proxy: cannot use "many" for loops (flag --loops)`},
		{environ: []string{"COSKY_PROXY_LOOPZ=1"}, build: noBuild, code: 2, stderr: "cosky-proxy: unknown environment variable COSKY_PROXY_LOOPZ"},
		{args: []string{"--clients.max=1"}, build: unreachable, code: 1, stderr: "cosky-proxy: cannot reach 10.0.0.1:6379: connection refused"},
		{args: []string{"--clients.max=1"}, build: placeless, code: 2, stderr: "cosky-proxy: cannot tell which address of cluster_facade is this proxy: set cluster_announce"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(c.args, c.environ, &stdout, &stderr, c.build); code != c.code {
			t.Errorf("%q: exit code %d, want %d", c.args, code, c.code)
		}
		for name, out := range map[string][2]string{"stdout": {stdout.String(), c.stdout}, "stderr": {stderr.String(), c.stderr}} {
			if got, want := out[0], out[1]; want == "" && got != "" || !strings.Contains(got, want) {
				t.Errorf("%q: %s %q, want %q", c.args, name, got, want)
			}
		}
		if strings.Count(stderr.String(), "\n") > 1 {
			t.Errorf("%q: more than one line: %q", c.args, stderr.String())
		}
	}
}

func TestGracefulStop(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		f := &fakeServer{}
		exit, stdout, stderr, released := start(f, "--admin", "127.0.0.1:0")
		<-f.running
		syscall.Kill(os.Getpid(), s)
		if code := <-exit; code != 0 {
			t.Errorf("%v: exit code %d, stderr %s", s, code, stderr)
		}
		if !*released {
			t.Errorf("%v: the backend was not released", s)
		}
		if !strings.Contains(stdout.String(), "127.0.0.1:7001, unix:/run/p.sock") {
			t.Errorf("%v: stdout %s", s, stdout)
		}
	}
}

func TestSIGHUPIsExplained(t *testing.T) {
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(context.Background())
	handleSignal(syscall.SIGHUP, ctx, cancel, slog.New(slog.NewTextHandler(&log, nil)))
	if ctx.Err() != nil || !strings.Contains(log.String(), "not supported yet") {
		t.Errorf("stopped: %v, log %q", ctx.Err(), log.String())
	}
	handleSignal(syscall.SIGTERM, ctx, cancel, slog.New(slog.DiscardHandler))
	if ctx.Err() == nil {
		t.Error("SIGTERM did not stop")
	}
}

func TestFailuresToRunReleaseTheBackend(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	for want, c := range map[string]struct {
		fake *fakeServer
		args []string
	}{
		"cannot listen on 127.0.0.1:6380": {&fakeServer{listenErr: errors.New("cannot listen on 127.0.0.1:6380: in use")}, []string{"--admin=off"}},
		"loop failed":                     {&fakeServer{runErr: errors.New("loop failed")}, []string{"--admin=off"}},
		busy.Addr().String():              {&fakeServer{}, []string{"--admin", busy.Addr().String()}},
	} {
		exit, _, stderr, released := start(c.fake, append(c.args, "--clients.max=1", "--log-level=error")...)
		if code := <-exit; code != 1 || !*released || !strings.Contains(stderr.String(), want) || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("exit code %d, released %v, stderr %q, want %q", code, *released, stderr, want)
		}
	}
}

func TestAdminPagesReachTheServer(t *testing.T) {
	cfg := conf.Default()
	cfg.Admin = "127.0.0.1:0"
	addr, stop, err := startAdmin(cfg, &fakeServer{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	r, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if body, err := io.ReadAll(r.Body); err != nil || !strings.Contains(string(body), "\ncosky_proxy_loops 1\n") {
		t.Errorf("%v %.300s", err, body)
	}
}

func TestBanner(t *testing.T) {
	var out bytes.Buffer
	cfg := conf.Default()
	cfg.Backend, _ = conf.ParseBackend("redis://u:hunter2@h:1")
	printBanner(&out, cfg, []string{"0.0.0.0:7"}, "")
	for _, want := range []string{"0.0.0.0:7\n", "redis://u:***@h:1", "admin    off", "watch nearcache_hits grow:\n", "redis-cli -p 7 HGETALL 'demo-{x}:cfg:hello'", "redis-cli -p 7 INFO proxy"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("lacks %q:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "hunter2") {
		t.Errorf("prints the password:\n%s", &out)
	}
	out.Reset()
	cfg.NearCache.Invalidation = "off"
	printBanner(&out, cfg, []string{"0.0.0.0:7"}, "")
	const plain = "Try it:\n  redis-cli -p 7 SET hello world\n  redis-cli -p 7 GET hello\n  redis-cli -p 7 INFO proxy\n\n"
	if !strings.HasSuffix(out.String(), "\n\n"+plain) || strings.Contains(out.String(), "nearcache") {
		t.Errorf("without a near-cache:\n%s", &out)
	}
	for addr, want := range map[string]string{
		"127.0.0.1:1": "redis-cli -p 1", "[::]:2": "redis-cli -p 2", ":3": "redis-cli -p 3", "10.0.0.1:4": "redis-cli -h 10.0.0.1 -p 4",
		"[::1]:5": "redis-cli -h ::1 -p 5", "unix:/a/b": "redis-cli -s /a/b",
	} {
		if got := cliFor(addr); got != want {
			t.Errorf("cliFor(%q) = %q, want %q", addr, got, want)
		}
	}
}

// The banner names an address as the configuration does, and a call that reaches it.
func TestBannerOfBoundAddresses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.sock")
	listen := func(addr string) string {
		ln, err := netloop.Listen(addr, netloop.ListenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		return ln.Addr()
	}
	socket, tcp := listen("unix:"+path), listen("127.0.0.1:0")
	_, port, err := net.SplitHostPort(tcp)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		addrs         []string
		clients, call string
	}{
		{[]string{socket, tcp}, "  clients  unix:" + path + ", " + tcp + "\n", "  redis-cli -s " + path + " INFO proxy\n"},
		{[]string{tcp}, "  clients  " + tcp + "\n", "  redis-cli -p " + port + " INFO proxy\n"},
	} {
		var out bytes.Buffer
		printBanner(&out, conf.Default(), c.addrs, "")
		if !strings.Contains(out.String(), c.clients) || !strings.Contains(out.String(), c.call) {
			t.Errorf("lacks %q or %q:\n%s", c.clients, c.call, &out)
		}
	}
}

func TestLimitsFollowTheConfiguration(t *testing.T) {
	cfg := conf.Default()
	if got, want := memoryLimit(cfg), int64(288<<20); got != want {
		t.Errorf("memory limit %d, want %d", got, want)
	}
	cfg.NearCache.MaxBytes += conf.GB
	if got, want := memoryLimit(cfg), int64(288<<20+1<<30); got != want {
		t.Errorf("memory limit %d, want %d", got, want)
	}
	cfg.NearCache.MaxBytes = 1 * conf.GB
	for live, want := range map[conf.Bytes]int{0: 50, 64 * conf.MB: 50, 512 * conf.MB: 25, 1 * conf.GB: 12} {
		if got := gcPercent(cfg, live); got != want {
			t.Errorf("%v in use: %d percent garbage, want %d", live, got, want)
		}
	}
	cfg.Loops, cfg.Clients.Max, cfg.Upstream.MaxPins = 4, 1000, 10
	if got := filesNeeded(cfg); got != 1000+4*10+256 {
		t.Errorf("files needed: %d", got)
	}
	for limit, want := range map[uint64]int64{20_000: 19_744, 100: 50, 1: 1, math.MaxUint64: math.MaxInt64 - 256} {
		if got := clientFiles(limit); got != want {
			t.Errorf("clients may have %d of %d files, want %d", got, limit, want)
		}
	}
	if !isSet([]string{"A=1", "GOGC="}, "GOGC") || isSet([]string{"GOGCX=1"}, "GOGC") {
		t.Error("isSet is wrong")
	}
}

func TestTooFewFilesAreReported(t *testing.T) {
	var log bytes.Buffer
	cfg := conf.Default()
	cfg.Clients.Max = 1 << 40
	logger := slog.New(slog.NewTextHandler(&log, nil))
	checkFileLimit(cfg, raiseFileLimit(logger), logger)
	if !strings.Contains(log.String(), "too low") {
		t.Errorf("log %q", log.String())
	}
}

func TestLogger(t *testing.T) {
	cfg := conf.Default()
	var text, json bytes.Buffer
	newLogger(cfg, &text).Info("hello", "after", time.Second)
	newLogger(cfg, &text).Debug("hidden")
	cfg.LogFormat = "json"
	newLogger(cfg, &json).Info("hello")
	if !strings.Contains(text.String(), "msg=hello after=1s") || strings.Contains(text.String(), "hidden") || !strings.Contains(json.String(), `"msg":"hello"`) {
		t.Errorf("text %q, json %q", text.String(), json.String())
	}
}
