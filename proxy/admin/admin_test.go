package admin

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"cosky-proxy/nearcache"
	"cosky-proxy/proxy/stats"
)

func sample() stats.Snapshot {
	s := stats.Snapshot{
		Loops:    2,
		Counters: stats.Counters{Clients: 3, Hits: 40, Misses: 5, BytesIn: 6},
		Commands: make([]stats.Command, 3),
		Nodes:    []stats.Node{{Addr: "10.0.0.1:6379", Calls: 7, Connections: 2}},
		Rules:    []stats.Rule{{Match: "item:*", Hits: 8, Misses: 9}, {Match: "item:*", Hits: 1}, {Match: "\xff"}},
	}
	get := &s.Commands[1]
	get.Calls, get.Errors = 3, 1
	for _, d := range []time.Duration{time.Microsecond, 3 * time.Microsecond, time.Minute} {
		get.Latency.Observe(int64(d))
	}
	return s
}

func options() Options {
	return Options{
		Addr:    "127.0.0.1:0",
		Version: "v1",
		Stats:   sample,
		Cache:   func() nearcache.Stats { return nearcache.Stats{Entries: 11, Bytes: 12, Fills: 13} },
		HotKeys: func(n int) []stats.HotKey {
			return []stats.HotKey{
				{Key: "item:1", Command: "get", Reads: 1234.56, Cached: "hot"},
				{Key: "é \\ \"\n\xff\u200b", DB: 3, Command: "hgetall", Reads: 2},
				{Key: "", Command: "get", Reads: 1},
			}[:min(n, 3)]
		},
		Slow: func(n int) []stats.SlowCommand {
			return []stats.SlowCommand{
				{ID: 7, At: time.Date(2026, 1, 2, 3, 4, 5, 678_000, time.UTC), Took: 1500 * time.Microsecond, Command: "set", Keyed: true, Key: "k\xff",
					KeySize: 200, Args: 3, Size: 1000, DB: 2, Addr: "10.0.0.2:5", Name: "worker", User: "app", From: "10.0.0.1:6379", Retries: 1, Error: "MOVED"},
				{ID: 6, Command: "config|get"},
			}[:min(uint(n), 2)]
		},
		CommandName: func(id int) string { return []string{"set", "get", "del"}[id] },
		Ready:       func() error { return nil },
		Logger:      slog.New(slog.DiscardHandler),
	}
}

func TestCollector(t *testing.T) {
	const want = `
# HELP cosky_proxy_clients Client connections open now.
# TYPE cosky_proxy_clients gauge
cosky_proxy_clients 3
# HELP cosky_proxy_commands_total Replies sent to clients.
# TYPE cosky_proxy_commands_total counter
cosky_proxy_commands_total{command="get"} 3
# HELP cosky_proxy_command_errors_total Error replies sent to clients.
# TYPE cosky_proxy_command_errors_total counter
cosky_proxy_command_errors_total{command="get"} 1
# HELP cosky_proxy_hot_key_reads_per_second Reads of the keys that are read most, at present.
# TYPE cosky_proxy_hot_key_reads_per_second gauge
cosky_proxy_hot_key_reads_per_second{db="0",key=""} 1
cosky_proxy_hot_key_reads_per_second{db="0",key="item:1"} 1234.56
cosky_proxy_hot_key_reads_per_second{db="3",key="é \\\\ \"\\n\\xff\\u200b"} 2
# HELP cosky_proxy_nearcache_entries Replies held in the near-cache now, void ones included.
# TYPE cosky_proxy_nearcache_entries gauge
cosky_proxy_nearcache_entries 11
# HELP cosky_proxy_nearcache_hits_total Reads answered from the near-cache.
# TYPE cosky_proxy_nearcache_hits_total counter
cosky_proxy_nearcache_hits_total 40
# HELP cosky_proxy_nearcache_rule_hits_total Reads that a rule lets be kept, answered from the near-cache.
# TYPE cosky_proxy_nearcache_rule_hits_total counter
cosky_proxy_nearcache_rule_hits_total{match="item:*",rule="1"} 8
cosky_proxy_nearcache_rule_hits_total{match="item:*",rule="2"} 1
cosky_proxy_nearcache_rule_hits_total{match="�",rule="3"} 0
# HELP cosky_proxy_node_commands_total Commands sent to the node.
# TYPE cosky_proxy_node_commands_total counter
cosky_proxy_node_commands_total{node="10.0.0.1:6379"} 7
`
	if err := testutil.CollectAndCompare(newCollector(options()), strings.NewReader(want),
		"cosky_proxy_clients", "cosky_proxy_commands_total", "cosky_proxy_command_errors_total", "cosky_proxy_hot_key_reads_per_second",
		"cosky_proxy_nearcache_entries", "cosky_proxy_nearcache_hits_total", "cosky_proxy_nearcache_rule_hits_total", "cosky_proxy_node_commands_total"); err != nil {
		t.Error(err)
	}
}

func TestMetricNamesAreWellFormed(t *testing.T) {
	problems, err := testutil.CollectAndLint(newCollector(options()))
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

// What is collected must have been described, with nothing twice: a pedantic registry checks.
func TestCollectorIsConsistent(t *testing.T) {
	for name, opts := range map[string]Options{"all": options(), "no near-cache": func() Options { o := options(); o.Cache = nil; return o }()} {
		r := prometheus.NewPedanticRegistry()
		r.MustRegister(newCollector(opts))
		if _, err := r.Gather(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func startServer(t *testing.T, opts Options) (get func(path string) (int, string)) {
	t.Helper()
	s := New(opts)
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return func(path string) (int, string) {
		t.Helper()
		r, err := http.Get("http://" + s.Addr() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(body)
	}
}

func TestPages(t *testing.T) {
	get := startServer(t, options())
	for path, want := range map[string]string{
		"/":            "/metrics",
		"/hotkeys?n=1": "[\n  {\n    \"key\": \"item:1\",\n    \"db\": 0,\n    \"command\": \"get\",\n    \"reads_per_second\": 1234.56,\n    \"cached\": \"hot\"\n  }\n]\n",
		"/hotkeys":     `"raw": "w6kgXCAiCv/igIs=",`,
		"/slowlog?n=1": `[
  {
    "id": 7,
    "time": "2026-01-02T03:04:05.000678Z",
    "duration_us": 1500,
    "command": "set",
    "key": "k\\xff",
    "raw": "a/8=",
    "key_bytes": 200,
    "arguments": 3,
    "bytes": 1000,
    "db": 2,
    "client": "10.0.0.2:5",
    "name": "worker",
    "user": "app",
    "answered_by": "10.0.0.1:6379",
    "retries": 1,
    "error": "MOVED"
  }
]
`,
		"/slowlog":                  `"command": "config|get",` + "\n    \"arguments\": 0,",
		"/healthz":                  "ok",
		"/readyz":                   "ready",
		"/debug/pprof/":             "goroutine",
		"/debug/pprof/heap?debug=1": "heap profile",
	} {
		if code, body := get(path); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %.200q, want %q", path, code, body, want)
		}
	}
	// The command line may hold the backend's password.
	for _, path := range []string{"/nothing", "/debug/pprof/cmdline"} {
		if code, body := get(path); code != 404 {
			t.Errorf("%s: %d %.200q", path, code, body)
		}
	}
	for _, n := range []string{"0", "x", "1001"} {
		if code, body := get("/hotkeys?n=" + n); code != 400 || body != "n must be a number from 1 to 1000\n" {
			t.Errorf("n=%s: %d %q", n, code, body)
		}
	}
	_, metrics := get("/metrics")
	for _, want := range []string{
		`cosky_proxy_build_info{go="go1.`,
		"cosky_proxy_loops 2\n",
		"cosky_proxy_client_received_bytes_total 6\n",
		`cosky_proxy_command_duration_seconds_bucket{command="get",le="1e-06"} 1` + "\n",
		`cosky_proxy_command_duration_seconds_bucket{command="get",le="2e-06"} 1` + "\n",
		`cosky_proxy_command_duration_seconds_bucket{command="get",le="4e-06"} 2` + "\n",
		`cosky_proxy_command_duration_seconds_bucket{command="get",le="+Inf"} 3` + "\n",
		`cosky_proxy_command_duration_seconds_sum{command="get"} 60.000004` + "\n",
		`cosky_proxy_command_duration_seconds_count{command="get"} 3` + "\n",
		`cosky_proxy_node_connections{node="10.0.0.1:6379"} 2` + "\n",
		"\ngo_goroutines ",
		"\nprocess_open_fds ",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics lacks %q", want)
		}
	}
	if strings.Contains(metrics, `command="set"`) {
		t.Error("/metrics lists a command that was never called")
	}
}

func TestReadiness(t *testing.T) {
	var down atomic.Bool
	opts := options()
	opts.Ready = func() error {
		if down.Load() {
			return errors.New("no primary for slot 7")
		}
		return nil
	}
	get := startServer(t, opts)
	if code, _ := get("/readyz"); code != 200 {
		t.Errorf("ready: %d", code)
	}
	down.Store(true)
	if code, body := get("/readyz"); code != 503 || !strings.Contains(body, "no primary for slot 7") {
		t.Errorf("not ready: %d %q", code, body)
	}
	if code, _ := get("/healthz"); code != 200 {
		t.Error("not ready is not unhealthy")
	}
}

func TestBusyPort(t *testing.T) {
	first := New(options())
	if err := first.Listen(); err != nil {
		t.Fatal(err)
	}
	defer first.listener.Close()
	opts := options()
	opts.Addr = first.Addr()
	if err := New(opts).Listen(); err == nil || !strings.Contains(err.Error(), opts.Addr) {
		t.Errorf("got %v", err)
	}
}
