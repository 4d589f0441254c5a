package main

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
)

const (
	hitTitle = "in-process cache hit"

	// Promised, see issue 6: processor time of a hit in nanoseconds, and how many times as much
	// as one processor each of all processors does.
	maxHitTime = 40
	minScaling = 0.9
)

// measureHits asks the near-cache's own benchmark what a hit takes, on one thread and on
// all processors at once.
func measureHits(ctx context.Context) []verdict {
	all := []verdict{
		{about: hitTitle + ", 100 keys", promise: fmt.Sprintf("CPU ≤ %d ns", maxHitTime)},
		{about: fmt.Sprintf("%s, 100 keys, on %d processors", hitTitle, runtime.NumCPU()), promise: fmt.Sprintf("scaling ≥ %.1f per processor", minScaling)},
	}
	out, err := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkHitPerCore$/^keys=100$", "-benchtime", "300ms", "./nearcache").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("cannot run the benchmark: %w: %.100s", err, out)
	}
	one, oneErr := hitTime(string(out), 1)
	each, eachErr := hitTime(string(out), runtime.NumCPU())
	for _, e := range []error{err, oneErr, eachErr} {
		if e != nil {
			all[0].why, all[1].why = oneLine(e), oneLine(e)
			return all
		}
	}
	all[0].measured, all[0].met = fmt.Sprintf("%.1f ns", one), one <= maxHitTime
	all[1].measured, all[1].met = fmt.Sprintf("%.2f", one/each), one/each >= minScaling
	return all
}

// hitTime finds the processor time of a hit with so many threads in the benchmark's output.
func hitTime(output string, threads int) (float64, error) {
	for line := range strings.Lines(output) {
		fields := strings.Fields(line)
		if len(fields) == 0 || !strings.Contains(fields[0]+"-", fmt.Sprintf("/threads=%d-", threads)) {
			continue
		}
		for i, unit := range fields {
			if unit == "cpu-ns/op" {
				return strconv.ParseFloat(fields[i-1], 64)
			}
		}
	}
	return 0, fmt.Errorf("cannot find a hit with %d threads in %.100q", threads, output)
}
