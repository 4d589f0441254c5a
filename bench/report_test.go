package main

import (
	"encoding/xml"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{4}, 4},
		{[]float64{9, 1, 5}, 5},
		{[]float64{8, 2, 4, 6}, 5},
	} {
		if got := median(c.values); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.values, got, c.want)
		}
	}
}

// A machine that slows down by half from round to round must not show in ratios.
func TestRatioCancelsDrift(t *testing.T) {
	var a, b []sample
	for _, speed := range []float64{1, 0.5, 0.25} {
		a = append(a, sample{loadResult: loadResult{rate: 900 * speed}})
		b = append(b, sample{loadResult: loadResult{rate: 1000 * speed}})
	}
	got := ratio(a, b, rateOf)
	for _, quotient := range []float64{got.low, got.median, got.high} {
		if math.Abs(quotient-0.9) > 1e-9 {
			t.Errorf("got ratios %+v, want 0.9 in every round", got)
		}
	}
}

// Calibration gives a faster front end more requests; cost is per request.
func TestCostIsPerRequest(t *testing.T) {
	a := []sample{{requests: 1000, frontCPU: 2 * time.Millisecond}}
	b := []sample{{requests: 4000, frontCPU: 4 * time.Millisecond}}
	if got := ratio(a, b, costOf).median; got != 2 {
		t.Errorf("got ratio %v, want 2", got)
	}
}

func TestMarkdown(t *testing.T) {
	one := func(rate float64, cpu time.Duration) []sample {
		return []sample{{
			loadResult: loadResult{rate: rate, p50: 500 * time.Microsecond, p99: 2 * time.Millisecond, p999: 3 * time.Millisecond, cpu: 6 * time.Millisecond},
			requests:   1000, frontCPU: cpu, backendCPU: time.Millisecond, peak: 5 << 20,
		}}
	}
	e := &experiment{
		plan: plan{clients: 50}, backend: &backend{topology: standalone}, rounds: 1,
		rows: []row{{
			workload: workload{name: "GET 64 B", depth: 16},
			cells: []*cell{
				{front: &frontEnd{name: "direct", role: reference}, samples: one(100_000, 5*time.Millisecond)},
				{front: &frontEnd{name: "cosky-proxy", role: subject}, samples: one(90_000, 8*time.Millisecond)},
				{front: &frontEnd{name: "slow", role: peer}, samples: one(40_000, 20*time.Millisecond)},
				{front: &frontEnd{name: "fast", role: peer}, samples: one(80_000, 10*time.Millisecond)},
				{front: &frontEnd{name: "broken", role: peer}, err: errors.New("wrong | answer\nagain")},
				{front: &frontEnd{name: "simple", role: peer}, err: refusal("ERR unknown command")},
			},
		}},
	}
	want := `### standalone (1 rounds, 50 connections)

| workload | front end | ops/s median (min–max) | ops vs direct | ops vs best peer | CPU µs/op median (min–max) | CPU vs best peer | Redis µs/op | load µs/op | p50 / p99 / p99.9 ms | RSS MiB |
|---|---|---|---|---|---|---|---|---|---|---|
| GET 64 B, P=16 | direct | 100.0 k (100.0 k–100.0 k) | – | – | 5.00 (5.00–5.00) | – | 1.00 | 6.00 | 0.50 / 2.00 / 3.00 | 5.0 |
| GET 64 B, P=16 | cosky-proxy | 90.0 k (90.0 k–90.0 k) | 0.90 | 1.12 | 8.00 (8.00–8.00) | 0.80 | 1.00 | 6.00 | 0.50 / 2.00 / 3.00 | 5.0 |
| GET 64 B, P=16 | slow | 40.0 k (40.0 k–40.0 k) | 0.40 | 0.50 | 20.0 (20.0–20.0) | 2.00 | 1.00 | 6.00 | 0.50 / 2.00 / 3.00 | 5.0 |
| GET 64 B, P=16 | fast | 80.0 k (80.0 k–80.0 k) | 0.80 | – | 10.0 (10.0–10.0) | – | 1.00 | 6.00 | 0.50 / 2.00 / 3.00 | 5.0 |
| GET 64 B, P=16 | broken | not measured: wrong / answer again | | | | | | | | |
| GET 64 B, P=16 | simple | not supported: ERR unknown command | | | | | | | | |
`
	if got := e.markdown(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := e.csv(); !strings.Contains(got, "\n\"GET 64 B, P=16\",slow,1,1000,40000,20.0,1.00,6.00,0.500,2.000,3.000,5242880\n") || strings.Contains(got, "broken") {
		t.Errorf("got samples\n%s", got)
	}
	if err := e.subjectError(); err != nil {
		t.Errorf("a broken peer counts as our failure: %v", err)
	}
	e.rows[0].cells[1].err = errors.New("wrong answer")
	if err := e.subjectError(); err == nil || !strings.Contains(err.Error(), "cosky-proxy failed GET 64 B, P=16") {
		t.Errorf("got error %v, want the failed workload named", err)
	}
}

func TestTargets(t *testing.T) {
	const title = "GET 64 B, P=1"
	rates := func(rates ...float64) (out []sample) {
		for _, r := range rates {
			out = append(out, sample{loadResult: loadResult{rate: r}, requests: 1000, frontCPU: time.Millisecond})
		}
		return out
	}
	e := &experiment{
		backend: &backend{topology: standalone},
		rows: []row{{
			workload: workload{name: "GET 64 B", depth: 1},
			cells: []*cell{
				{front: &frontEnd{name: "direct", role: reference}, samples: rates(200, 200, 200)},
				{front: &frontEnd{name: "new", role: subject}, samples: rates(90, 110, 120)},
				{front: &frontEnd{name: "new, two loops", role: variant, variant: twoLoops}, samples: rates(180, 220, 240)},
				{front: &frontEnd{name: predixy, role: peer}, samples: rates(100, 100, 100)},
				{front: &frontEnd{name: "broken", role: peer}, err: errors.New("wrong answer")},
			},
		}},
	}
	for _, c := range []struct {
		target   target
		measured string
		met      bool
	}{
		{target{than: predixy, bound: 1.1, figure: throughput}, "1.10 (0.90–1.20)", true},
		{target{than: predixy, bound: 1.11, figure: throughput}, "1.10 (0.90–1.20)", false},
		{target{than: predixy, bound: 1.09, figure: throughput, atMost: true}, "1.10 (0.90–1.20)", false},
		{target{than: itself, bound: 1, figure: cpuPerOp, atMost: true}, "1.00 (1.00–1.00)", true},
		{target{of: twoLoops, than: ours, bound: 1.7, figure: throughput}, "2.00 (2.00–2.00)", true},
		{target{of: twoLoops, than: ours, bound: 1.7, figure: throughput, factor: 0.5}, "1.00 (1.00–1.00)", false},
		{target{than: "broken", bound: 1, figure: throughput}, "", false},
		{target{than: "nutcracker", bound: 1, figure: throughput}, "", false},
	} {
		c.target.topology, c.target.workload = standalone, title
		v := e.judge([]target{c.target})[0]
		if v.measured != c.measured || v.met != c.met {
			t.Errorf("%s: got %q, met %v; want %q, %v", c.target.promise(), v.measured, v.met, c.measured, c.met)
		}
	}
	for _, foreign := range []target{{topology: cluster, workload: title}, {topology: standalone, workload: "PING, P=1"}, {topology: standalone, workload: title, base: "PING, P=1"}} {
		if v := e.judge([]target{foreign}); len(v) != 0 {
			t.Errorf("a target that the experiment is not about was judged: %+v", v)
		}
	}
}

// A target that names a workload that there is not would never be measured.
func TestTargetsNameWorkloads(t *testing.T) {
	titles := map[topology]map[string]bool{standalone: {}, cluster: {}}
	for _, w := range workloads() {
		for top, known := range titles {
			if w.isFor(top) {
				known[w.title()] = true
			}
		}
	}
	for _, tg := range targets() {
		if !titles[tg.topology][tg.workload] || tg.base != "" && !titles[tg.topology][tg.base] {
			t.Errorf("%q: %q is about a workload that there is not", tg.workload, tg.promise())
		}
	}
}

func TestReportIsWritten(t *testing.T) {
	e := &experiment{
		backend: &backend{topology: standalone},
		rows: []row{{
			workload: workload{name: "GET <64 B>", depth: 1},
			cells: []*cell{
				{front: &frontEnd{name: "direct", role: reference}, samples: []sample{{loadResult: loadResult{rate: 100}, requests: 10, frontCPU: 100}}},
				{front: &frontEnd{name: "new", role: subject}, samples: []sample{{loadResult: loadResult{rate: 500}, requests: 10, frontCPU: 200}}},
			},
		}},
	}
	r := &report{header: "## here\n", files: map[string]string{}, idle: []holding{{front: "new", role: subject, steps: []footprint{{connections: someIdle, rss: 26 << 20}}}}}
	r.add(e)
	dir := filepath.Join(t.TempDir(), "results")
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"## here", "RSS ≤ 25 MiB over none | 26.0 MiB | **missed** |", "(standalone-cpu.svg)", "(standalone-samples.csv)", "| new | 10000 | 0.0 | 26.0 | 2.66 |"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
	for _, c := range charts() {
		drawn, err := os.ReadFile(filepath.Join(dir, "standalone-"+c.name+".svg"))
		if err != nil {
			t.Fatal(err)
		}
		var any struct{}
		if err := xml.Unmarshal(drawn, &any); err != nil {
			t.Errorf("%s is not XML: %v", c.name, err)
		}
	}
	// Five times Redis is beyond the axis, so its value is written.
	if drawn := r.files["standalone-throughput.svg"]; !strings.Contains(drawn, ">5</text>") || !strings.Contains(drawn, "GET &lt;64 B&gt;, P=1") {
		t.Errorf("the chart lacks a value beyond its axis or a label:\n%s", drawn)
	}
}

func TestHitTime(t *testing.T) {
	const output = "goos: linux\nBenchmarkHitPerCore/keys=100/threads=1-16 \t 24183741\t 14.9 ns/op\t 14.8 cpu-ns/op\t 0 B/op\n" +
		"BenchmarkHitPerCore/keys=100/threads=16-16 \t 24183741\t 7.5 ns/op\t 15.25 cpu-ns/op\nPASS\n"
	for threads, want := range map[int]float64{1: 14.8, 16: 15.25} {
		if got, err := hitTime(output, threads); err != nil || got != want {
			t.Errorf("%d threads: got %v, %v, want %v", threads, got, err, want)
		}
	}
	if _, err := hitTime("FAIL\n", 1); err == nil {
		t.Error("no figure was found where there is none")
	}
	if v := measureHits(t.Context()); v[0].measured != "" || v[0].why == "" {
		t.Errorf("outside the repository's root there is nothing to measure, got %+v", v)
	}
}
