package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseBenchmarkCSV(t *testing.T) {
	const good = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n" +
		"\"GET\",\"93240.09\",\"0.282\",\"0.072\",\"0.279\",\"0.351\",\"0.583\",\"4.591\"\n"
	got, err := parseBenchmarkCSV(good)
	if err != nil {
		t.Fatal(err)
	}
	want := loadResult{rate: 93240.09, p50: 279 * time.Microsecond, p99: 583 * time.Microsecond}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, bad := range []string{
		"",
		"\"GET\",\"1\"\n",
		"Error: Server closed the connection\n",
		"\"GET\",\"0.00\",\"0\",\"0\",\"0\",\"0\",\"0\",\"0\"\n",
		"\"GET\",\"many\",\"0\",\"0\",\"0\",\"0\",\"0\",\"0\"\n",
	} {
		if _, err := parseBenchmarkCSV(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestBurstSendsFullPipelines(t *testing.T) {
	for _, c := range []struct {
		clients, depth int
		wanted         float64
		want           int
	}{
		{50, 1, 0, 200},
		{50, 16, 0, 3200},
		{50, 1, 99_999, 100_000},
		{3, 7, 1000, 21 * 48},
	} {
		if got := burst(c.clients, c.depth, c.wanted); got != c.want {
			t.Errorf("burst(%d, %d, %v) = %d, want %d", c.clients, c.depth, c.wanted, got, c.want)
		}
	}
}

func TestLoadThreadsLeaveRoom(t *testing.T) {
	for processors, want := range map[int]int{1: 1, 2: 1, 4: 1, 6: 2, 8: 4, 16: 4} {
		if got := loadThreads(processors); got != want {
			t.Errorf("%d threads on %d processors, want %d", got, processors, want)
		}
	}
}

func TestFirstPrimaryKeysShareASlot(t *testing.T) {
	w := workload{commands: [][]string{{"GET", small.key()}, {"GET", medium.key()}, {"HGETALL", configKey(spreadTag)}}}
	want := [][]string{{"GET", "key:{06S}:__rand_int__"}, {"GET", "key:{06S}:4k:__rand_int__"}, {"HGETALL", "bench-{06S}:cfg:app"}}
	if got := w.onFirstPrimary().commands; !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Commands of several keys must not be compared with one key alone.
func TestProbesHaveKeysOfTheirOwn(t *testing.T) {
	w := workload{keys: 2, commands: [][]string{{"MGET", small.key(), small.key()}, {"GET", large.key()}}}
	want := [][]string{{"MGET", "key:000000000000", "key:000000000001"}, {"GET", "key:1m:000000000000"}}
	if got := w.probes(); !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What redis-benchmark cannot send is no failure of the proxy.
func TestSelectionFollowsTheGenerator(t *testing.T) {
	all := regexp.MustCompile("")
	for _, top := range []topology{standalone, cluster} {
		byGo := options{workload: all, generator: goGenerator}.selected(top)
		byBenchmark := options{workload: all, generator: benchGenerator}.selected(top)
		for _, w := range byBenchmark {
			if len(w.commands) > 1 || w.reconnect {
				t.Errorf("%s: redis-benchmark is to send %q", top, w.title())
			}
		}
		if len(byBenchmark) >= len(byGo) || len(byBenchmark) < len(byGo)/2 {
			t.Errorf("%s: %d workloads of %d are sent by redis-benchmark", top, len(byBenchmark), len(byGo))
		}
	}
}

// The title is what targets and -workload name a workload by.
func TestTitlesAreUnique(t *testing.T) {
	for _, top := range []topology{standalone, cluster} {
		seen := map[string]bool{}
		for _, w := range workloads() {
			if !w.isFor(top) {
				continue
			}
			if seen[w.title()] {
				t.Errorf("%s: %q comes twice", top, w.title())
			}
			seen[w.title()] = true
		}
	}
}

func TestFindPeers(t *testing.T) {
	missing := errors.New("not found")
	inPath := func(known ...string) func(string) (string, error) {
		return func(name string) (string, error) {
			if slices.Contains(known, name) {
				return "/usr/bin/" + strings.TrimPrefix(name, "/"), nil
			}
			return "", missing
		}
	}
	env := func(values map[string]string) func(string) string {
		return func(name string) string { return values[name] }
	}

	found, absent, err := findPeers(env(nil), inPath("nutcracker"))
	if err != nil || len(found) != 1 || found[0].name != "nutcracker" || found[0].role != peer {
		t.Errorf("got %+v, %v, want nutcracker from PATH alone", found, err)
	}
	if len(absent) != len(peerTable())-1 {
		t.Errorf("%d peers are missing, want all but one", len(absent))
	}
	found, _, err = findPeers(env(map[string]string{"REDIS_CLUSTER_PROXY": "/opt/rcp"}), inPath("/opt/rcp"))
	if err != nil || len(found) != 1 || found[0].name != "redis-cluster-proxy" {
		t.Errorf("got %+v, %v, want redis-cluster-proxy from its variable", found, err)
	}
	_, _, err = findPeers(env(map[string]string{"PREDIXY": "/nowhere"}), inPath())
	if !errors.Is(err, missing) || !strings.Contains(err.Error(), `PREDIXY="/nowhere"`) {
		t.Errorf("got error %v, want one that names the variable and its value", err)
	}
}

func TestParseFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-proxy", "none", "-topology", "ring"}, `topology "ring"`},
		{[]string{"-proxy", "none", "-rounds", "0"}, "must be positive"},
		{[]string{"-proxy", "none", "-workload", "("}, `-workload "("`},
		{[]string{"-proxy", "none", "-generator", "wrk"}, `generator "wrk"`},
		{[]string{"-proxy", "/nowhere/cosky-proxy"}, "make build"},
		{[]string{"-proxy", "none", "quick"}, `argument "quick"`},
	} {
		if _, err := parseFlags(c.args); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got error %v, want one with %s", c.args, err, c.want)
		}
	}

	o, err := parseFlags([]string{"-proxy", "none", "-quick", "-rounds", "2"})
	if err != nil {
		t.Fatal(err)
	}
	if o.rounds != 2 || o.budget != 100*time.Second || len(o.proxies) != 0 {
		t.Errorf("got %d rounds, budget %v, %d proxies; -quick must keep explicit -rounds and bound the rest",
			o.rounds, o.budget, len(o.proxies))
	}
	o, err = parseFlags([]string{"-proxy", "a=/bin/sh", "-proxy", "b=/bin/sh"})
	if err != nil || len(o.proxies) != 2 || o.proxies[0].name != "a" || o.proxies[1].name != "b" {
		t.Errorf("got %+v, %v, want builds a and b", o.proxies, err)
	}
}

func TestHelpIsNoError(t *testing.T) {
	if _, err := parseFlags([]string{"-h"}); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("got error %v, want %v", err, flag.ErrHelp)
	}
}

// The whole path on real servers, in miniature: every workload is answered directly, those that
// redis-benchmark can send by it, too, and leaves figures behind.
func TestExperimentMeasuresRedis(t *testing.T) {
	for _, tool := range []string{"redis-server", "redis-cli", "redis-benchmark"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("this test needs %s: %v", tool, err)
		}
	}
	for _, top := range []topology{standalone, cluster} {
		t.Run(string(top), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			b, err := startBackend(ctx, t.TempDir(), top)
			if err != nil {
				t.Fatal(err)
			}
			defer b.stop()
			e := newExperiment(plan{
				rounds: 1, roundTime: time.Millisecond, settle: time.Second, clients: 5,
				deadline: time.Now().Add(time.Minute), generator: goGenerator, progress: io.Discard,
			}, b, []*frontEnd{direct(b)}, options{workload: regexp.MustCompile("")}.selected(top))
			if err := e.run(ctx); err != nil {
				t.Fatal(err)
			}
			for _, r := range e.rows {
				c := r.cells[0]
				if c.err != nil {
					t.Fatalf("%s: %v", r.workload.title(), c.err)
				}
				if s := c.samples[0]; s.rate <= 0 || s.frontCPU <= 0 || s.backendCPU <= 0 || s.peak <= 0 {
					t.Errorf("%s: implausible sample %+v", r.workload.title(), s)
				}
			}
		})
	}
}

// A front end that answers wrongly is left out, with the reason in the table.
func TestWrongAnswersAreNotMeasured(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	seeded, err := startBackend(ctx, t.TempDir(), standalone)
	if err != nil {
		t.Fatal(err)
	}
	defer seeded.stop()
	empty, err := startRedis(ctx, t.TempDir(), standalone, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer empty.stop()

	impostor := &frontEnd{name: "impostor", role: subject, port: empty.port, processes: []*process{empty}}
	reads := slices.DeleteFunc(workloads(), func(w workload) bool { return w.commands[0][0] != "GET" })
	e := newExperiment(plan{
		rounds: 1, roundTime: time.Millisecond, clients: 2,
		deadline: time.Now().Add(time.Minute), generator: goGenerator, progress: io.Discard,
	}, seeded, []*frontEnd{direct(seeded), impostor}, reads[:1])
	if err := e.run(ctx); err != nil {
		t.Fatal(err)
	}
	if err := e.subjectError(); err == nil || !strings.Contains(err.Error(), "wrong answer") {
		t.Errorf("got error %v, want a wrong answer reported", err)
	}
	if table := e.markdown(); !strings.Contains(table, "| impostor | not measured: wrong answer") {
		t.Errorf("the table hides the wrong answer:\n%s", table)
	}
}
