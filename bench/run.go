package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
)

// plan says what to measure and for how long.
type plan struct {
	rounds    int
	roundTime time.Duration // aimed at for one burst of load
	settle    time.Duration // a front end may take this long from its start to give right answers
	clients   int
	deadline  time.Time // no round but the first starts that would probably pass it
	generator string
	progress  io.Writer
}

// sample is one burst of load against one front end.
type sample struct {
	loadResult
	requests   int
	frontCPU   time.Duration // of the front end
	backendCPU time.Duration // of all redis-servers
	peak       int64         // of the front end's resident memory, bytes
}

// each is a processor time in microseconds per request.
func (s sample) each(cpu time.Duration) float64 {
	return float64(cpu.Nanoseconds()) / 1e3 / float64(s.requests)
}

// cell collects one front end's samples of one workload, one per round.
type cell struct {
	front    *frontEnd
	requests int // per burst, fixed by calibration
	samples  []sample
	err      error // why the front end is left out of this workload
}

// row is one workload with a cell for each front end.
type row struct {
	workload workload
	cells    []*cell
}

// experiment measures several front ends before one backend.
type experiment struct {
	plan    plan
	backend *backend
	rows    []row
	rounds  int // completed
}

func newExperiment(p plan, b *backend, fronts []*frontEnd, works []workload) *experiment {
	e := &experiment{plan: p, backend: b}
	for _, w := range works {
		r := row{workload: w}
		for _, f := range fronts {
			if f.takesPart(w) {
				r.cells = append(r.cells, &cell{front: f})
			}
		}
		e.rows = append(e.rows, r)
	}
	return e
}

// run checks and calibrates every cell, then fills rounds until the plan or the
// time is exhausted; one in any case. It fails only when ctx ends.
func (e *experiment) run(ctx context.Context) error {
	for _, r := range e.rows {
		want, err := e.answers(ctx, r.workload)
		for _, c := range r.cells {
			if c.err = err; err == nil {
				c.err = e.prepare(ctx, r.workload, c, want)
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if c.err != nil {
				fmt.Fprintf(e.plan.progress, "%s: left out of %s: %v\n", c.front.name, r.workload.title(), c.err)
			}
		}
	}
	var longest time.Duration
	for round := range e.plan.rounds {
		if round > 0 && time.Now().Add(longest).After(e.plan.deadline) {
			fmt.Fprintf(e.plan.progress, "time budget reached after %d of %d rounds\n", round, e.plan.rounds)
			break
		}
		began := time.Now()
		e.round(ctx, round)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		e.rounds++
		took := time.Since(began)
		longest = max(longest, took)
		fmt.Fprintf(e.plan.progress, "%s round %d/%d took %.1f s\n", e.backend.topology, round+1, e.plan.rounds, took.Seconds())
	}
	return nil
}

// answers are Redis' own to the workload's commands. The keys of the first primary have the same
// values as the others.
func (e *experiment) answers(ctx context.Context, w workload) ([]string, error) {
	ctx, cancel := e.patience(ctx)
	defer cancel()
	var all []string
	for _, probe := range direct(e.backend).share(w).probes() {
		answer, err := askCLI(ctx, e.backend.nodes[0].port, probe)
		if err != nil {
			return nil, err
		}
		all = append(all, answer)
	}
	return all, nil
}

// patience bounds how long a front end is waited for: one that hangs costs one workload, not the run.
func (e *experiment) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, e.plan.settle+20*e.plan.roundTime+10*time.Second)
}

// prepare compares the front end's answers with those wanted and finds out how many
// requests last about one round.
func (e *experiment) prepare(ctx context.Context, w workload, c *cell, want []string) error {
	if c.front.role != reference {
		for i, probe := range w.probes() {
			if err := e.compare(ctx, c.front, probe, want[i]); err != nil {
				return err
			}
		}
	}
	// Workloads differ by a factor of ten thousand, so the first guess is low.
	c.requests = burst(e.clients(w), w.depth, 0)
	for {
		s, err := e.measure(ctx, w, c)
		if err != nil {
			return err
		}
		took := float64(s.requests) / s.rate
		enough := took > e.plan.roundTime.Seconds()/8
		c.requests = burst(e.clients(w), w.depth, min(s.rate*e.plan.roundTime.Seconds(), float64(16*s.requests)))
		if enough {
			return nil
		}
	}
}

// refusal is an error reply to what Redis does.
type refusal string

func (r refusal) Error() string { return string(r) }

// compare polls at first, because a proxy may listen before it has found its backend.
func (e *experiment) compare(ctx context.Context, f *frontEnd, probe []string, want string) error {
	ctx, cancel := e.patience(ctx)
	defer cancel()
	return poll(ctx, time.Until(f.started.Add(e.plan.settle)), func() error {
		got, err := askCLI(ctx, f.port, probe)
		switch {
		case err != nil || got == want:
			return err
		case errorReply.MatchString(got):
			return refusal(strings.TrimSpace(got))
		}
		return fmt.Errorf("wrong answer %.80q", strings.TrimSpace(got))
	})
}

// errorReply is what redis-cli prints of one: a code in capitals and a text.
var errorReply = regexp.MustCompile(`^[A-Z]{3,} `)

// clients is the number of connections that w is measured with.
func (e *experiment) clients(w workload) int {
	if w.clients > 0 {
		return w.clients
	}
	return e.plan.clients
}

// burst rounds a number of requests up so that every client sends full
// pipelines, and at least enough of them to be worth timing.
func burst(clients, depth int, wanted float64) int {
	const minPipelines = 4
	batch := clients * depth
	return batch * max(minPipelines, int(wanted)/batch+1)
}

// round takes one sample of every cell. The front ends take turns at going first,
// so that none of them always inherits the same neighbour's after-effects.
func (e *experiment) round(ctx context.Context, round int) {
	for _, r := range e.rows {
		for i := range r.cells {
			c := r.cells[(i+round)%len(r.cells)]
			if c.err != nil {
				continue
			}
			s, err := e.measure(ctx, r.workload, c)
			if err != nil {
				c.err = err
				continue
			}
			c.samples = append(c.samples, s)
		}
	}
}

func (e *experiment) measure(ctx context.Context, w workload, c *cell) (sample, error) {
	ctx, cancel := e.patience(ctx)
	defer cancel()

	send := c.front.share(w)
	spec := loadSpec{
		port: c.front.port, clients: e.clients(w), depth: w.depth, requests: c.requests,
		commands: send.commands, keys: w.keyCount(), reconnect: w.reconnect,
	}
	generate := generators()[cmp.Or(w.generator, e.plan.generator)]
	for _, p := range c.front.processes {
		if err := p.forgetPeak(); err != nil {
			return sample{}, err
		}
	}
	frontBefore, err := cpuOf(c.front.processes)
	if err != nil {
		return sample{}, err
	}
	backendBefore, err := cpuOf(e.backend.nodes)
	if err != nil {
		return sample{}, err
	}
	result, err := generate(ctx, spec)
	if err != nil {
		return sample{}, err
	}
	frontAfter, err := cpuOf(c.front.processes)
	if err != nil {
		return sample{}, err
	}
	backendAfter, err := cpuOf(e.backend.nodes)
	if err != nil {
		return sample{}, err
	}
	peak, err := peakOf(c.front.processes)
	return sample{
		loadResult: result, requests: c.requests,
		frontCPU: frontAfter - frontBefore, backendCPU: backendAfter - backendBefore, peak: peak,
	}, err
}

func cpuOf(processes []*process) (time.Duration, error) {
	var total time.Duration
	for _, p := range processes {
		used, err := p.cpu()
		if err != nil {
			return 0, err
		}
		total += used
	}
	return total, nil
}

func peakOf(processes []*process) (int64, error) {
	var total int64
	for _, p := range processes {
		used, err := p.peak()
		if err != nil {
			return 0, err
		}
		total += used
	}
	return total, nil
}

// subjectError says where cosky-proxy could not be measured: a defect of ours,
// whereas a peer that lacks a command is only a gap in the table.
func (e *experiment) subjectError() error {
	var failed []error
	for _, r := range e.rows {
		for _, c := range r.cells {
			if (c.front.role == subject || c.front.role == variant) && c.err != nil {
				failed = append(failed, fmt.Errorf("%s failed %s: %w", c.front.name, r.workload.title(), c.err))
			}
		}
	}
	return errors.Join(failed...)
}
