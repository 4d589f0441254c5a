package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// plan says what to measure and for how long.
type plan struct {
	rounds    int
	roundTime time.Duration // aimed at for one burst of load
	settle    time.Duration // a front end may take this long to give right answers
	clients   int
	deadline  time.Time // no round starts that would probably pass it
	generate  generator
	progress  io.Writer
}

// sample is one burst of load against one front end.
type sample struct {
	loadResult
	requests   int
	frontCPU   time.Duration // of the front end
	backendCPU time.Duration // of all redis-servers
	rss        int64         // of the front end, bytes, after the burst
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
			r.cells = append(r.cells, &cell{front: f})
		}
		e.rows = append(e.rows, r)
	}
	return e
}

// run checks and calibrates every cell, then fills rounds until the plan or the
// time is exhausted. It fails only when ctx ends or not one round was finished.
func (e *experiment) run(ctx context.Context) error {
	for _, r := range e.rows {
		for _, c := range r.cells {
			c.err = e.prepare(ctx, r.workload, c)
			if c.err != nil {
				fmt.Fprintf(e.plan.progress, "%s: left out of %s: %v\n", c.front.name, r.workload.title(), c.err)
			}
		}
	}
	var longest time.Duration
	for round := range e.plan.rounds {
		if time.Now().Add(longest).After(e.plan.deadline) {
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
	if e.rounds == 0 {
		return errors.New("cannot finish a single round within the time budget")
	}
	return nil
}

// prepare compares the front end's answer with Redis' own and finds out how many
// requests last about one round.
func (e *experiment) prepare(ctx context.Context, w workload, c *cell) error {
	want, err := redisCLI(ctx, e.backend.nodes[0].port, "", append([]string{"-c"}, w.probe()...)...)
	if err != nil {
		return err
	}
	if c.front.role != reference {
		// Polled, because a proxy may listen before it has found its backend.
		err := poll(ctx, e.plan.settle, func() error {
			got, err := redisCLI(ctx, c.front.port, "", w.probe()...)
			if err == nil && got != want {
				err = fmt.Errorf("wrong answer %.80q", strings.TrimSpace(got))
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	c.requests = burst(e.plan.clients, w.depth, 0)
	s, err := e.measure(ctx, w, c)
	if err != nil {
		return err
	}
	c.requests = burst(e.plan.clients, w.depth, s.rate*e.plan.roundTime.Seconds())
	return nil
}

// burst rounds a number of requests up so that every client sends full
// pipelines, and at least enough of them to be worth timing.
func burst(clients, depth int, wanted float64) int {
	const minPipelines = 40
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
	// A front end that hangs costs one workload, not the run.
	ctx, cancel := context.WithTimeout(ctx, 20*e.plan.roundTime+10*time.Second)
	defer cancel()

	spec := loadSpec{
		port: c.front.port, clients: e.plan.clients, depth: w.depth, requests: c.requests,
		command: w.command,
	}
	if c.front.oneNode {
		spec.command = w.onFirstPrimary()
	}
	frontBefore, err := cpuOf(c.front.processes)
	if err != nil {
		return sample{}, err
	}
	backendBefore, err := cpuOf(e.backend.nodes)
	if err != nil {
		return sample{}, err
	}
	result, err := e.plan.generate(ctx, spec)
	if err != nil {
		return sample{}, err
	}
	s := sample{loadResult: result, requests: c.requests}
	frontAfter, err := cpuOf(c.front.processes)
	if err != nil {
		return sample{}, err
	}
	backendAfter, err := cpuOf(e.backend.nodes)
	if err != nil {
		return sample{}, err
	}
	s.frontCPU, s.backendCPU = frontAfter-frontBefore, backendAfter-backendBefore
	s.rss, err = rssOf(c.front.processes)
	return s, err
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

func rssOf(processes []*process) (int64, error) {
	var total int64
	for _, p := range processes {
		used, err := p.rss()
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
			if c.front.role == subject && c.err != nil {
				failed = append(failed, fmt.Errorf("%s failed %s: %w", c.front.name, r.workload.title(), c.err))
			}
		}
	}
	return errors.Join(failed...)
}
