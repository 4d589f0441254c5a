package main

import (
	"errors"
	"math"
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
	if got := ratio(a, b, rateOf); math.Abs(got-0.9) > 1e-9 {
		t.Errorf("got ratio %v, want 0.9", got)
	}
}

// Calibration gives a faster front end more requests; cost is per request.
func TestCostIsPerRequest(t *testing.T) {
	a := []sample{{requests: 1000, frontCPU: 2 * time.Millisecond}}
	b := []sample{{requests: 4000, frontCPU: 4 * time.Millisecond}}
	if got := ratio(a, b, costOf); got != 2 {
		t.Errorf("got ratio %v, want 2", got)
	}
}

func TestMarkdown(t *testing.T) {
	one := func(rate float64, cpu time.Duration) []sample {
		return []sample{{
			loadResult: loadResult{rate: rate, p50: 500 * time.Microsecond, p99: 2 * time.Millisecond, cpu: 6 * time.Millisecond},
			requests:   1000, frontCPU: cpu, backendCPU: time.Millisecond, rss: 5 << 20,
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
			},
		}},
	}
	want := `### standalone (1 rounds, 50 connections)

| workload | front end | ops/s median (min–max) | ops vs direct | ops vs best peer | CPU µs/op | CPU vs best peer | Redis µs/op | load µs/op | p50 / p99 ms | RSS MiB |
|---|---|---|---|---|---|---|---|---|---|---|
| GET 64 B, P=16 | direct | 100.0 k (100.0 k–100.0 k) | – | – | 5.00 | – | 1.00 | 6.00 | 0.50 / 2.00 | 5.0 |
| GET 64 B, P=16 | cosky-proxy | 90.0 k (90.0 k–90.0 k) | 0.90 | 1.12 | 8.00 | 0.80 | 1.00 | 6.00 | 0.50 / 2.00 | 5.0 |
| GET 64 B, P=16 | slow | 40.0 k (40.0 k–40.0 k) | 0.40 | 0.50 | 20.00 | 2.00 | 1.00 | 6.00 | 0.50 / 2.00 | 5.0 |
| GET 64 B, P=16 | fast | 80.0 k (80.0 k–80.0 k) | 0.80 | – | 10.00 | – | 1.00 | 6.00 | 0.50 / 2.00 | 5.0 |
| GET 64 B, P=16 | broken | not measured: wrong / answer again | | | | | | | | |
`
	if got := e.markdown(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if err := e.subjectError(); err != nil {
		t.Errorf("a broken peer counts as our failure: %v", err)
	}
	e.rows[0].cells[1].err = errors.New("wrong answer")
	if err := e.subjectError(); err == nil || !strings.Contains(err.Error(), "cosky-proxy failed GET 64 B, P=16") {
		t.Errorf("got error %v, want the failed workload named", err)
	}
}
