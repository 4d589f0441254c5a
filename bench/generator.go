package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"cosky-proxy/bench/load"
)

// loadSpec describes one burst of load.
type loadSpec struct {
	port      int
	clients   int
	depth     int
	requests  int
	commands  [][]string // sent in turn
	keys      int
	reconnect bool
}

// loadResult is what the load generator saw.
type loadResult struct {
	rate     float64 // requests per second
	p50, p99 time.Duration
	p999     time.Duration // 0: not known
	cpu      time.Duration // spent by the generator itself
}

// generator sends one burst and waits for its last reply.
type generator func(context.Context, loadSpec) (loadResult, error)

// generators are the sources of load by name.
func generators() map[string]generator {
	return map[string]generator{goGenerator: goLoad, benchGenerator: redisBenchmark}
}

// redisBenchmark is the generator everyone has.
func redisBenchmark(ctx context.Context, spec loadSpec) (loadResult, error) {
	if len(spec.commands) > 1 || spec.reconnect {
		return loadResult{}, errors.New("redis-benchmark sends one command, on lasting connections")
	}
	command := spec.commands[0]
	args := []string{
		"-p", strconv.Itoa(spec.port), "-c", strconv.Itoa(spec.clients), "-P", strconv.Itoa(spec.depth),
		"-n", strconv.Itoa(spec.requests), "-r", strconv.Itoa(spec.keys), "--csv", "--precision", "3",
	}
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, "redis-benchmark", append(args, command...)...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return loadResult{}, fmt.Errorf("cannot run redis-benchmark %q: %w: %.200s", command[0], err, stderr.String())
	}
	result, err := parseBenchmarkCSV(string(out))
	if err != nil {
		return loadResult{}, fmt.Errorf("cannot run redis-benchmark %q: %w: %.200s", command[0], err, stderr.String())
	}
	result.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return result, nil
}

// parseBenchmarkCSV reads the line of figures redis-benchmark --csv prints:
// test, rps, then the latency in milliseconds as avg, min, p50, p95, p99, max.
func parseBenchmarkCSV(text string) (loadResult, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	fields, err := csv.NewReader(strings.NewReader(lines[len(lines)-1])).Read()
	if err != nil {
		return loadResult{}, fmt.Errorf("cannot parse CSV %.100q: %w", text, err)
	}
	if len(fields) != 8 {
		return loadResult{}, fmt.Errorf("cannot parse CSV %.100q: want 8 fields, got %d", text, len(fields))
	}
	numbers := make([]float64, len(fields))
	for i, field := range fields[1:] {
		if numbers[i+1], err = strconv.ParseFloat(field, 64); err != nil {
			return loadResult{}, fmt.Errorf("cannot parse CSV field %q: %w", field, err)
		}
	}
	if numbers[1] <= 0 {
		return loadResult{}, fmt.Errorf("cannot use CSV %.100q: no requests per second", text)
	}
	return loadResult{rate: numbers[1], p50: milliseconds(numbers[4]), p99: milliseconds(numbers[6])}, nil
}

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// loadThreads is how many threads of package load are used: one, unless there are processors enough
// for two loops of the proxy, Redis and more of them. Otherwise fast front ends would be as fast as
// the one thread.
func loadThreads(processors int) int {
	const others, most = 4, 4
	return min(max(1, processors-others), most)
}

// goLoad is the generator of package load.
func goLoad(ctx context.Context, spec loadSpec) (loadResult, error) {
	result, err := load.Run(ctx, load.Spec{
		Addr: loopback(spec.port), Clients: spec.clients, Threads: loadThreads(processors()), Depth: spec.depth, Requests: spec.requests,
		Commands: spec.commands, Keys: spec.keys, Reconnect: spec.reconnect,
	})
	if err != nil {
		return loadResult{}, err
	}
	return loadResult{
		rate: float64(result.Requests) / result.Elapsed.Seconds(),
		p50:  result.P50, p99: result.P99, p999: result.P999, cpu: result.CPU,
	}, nil
}
