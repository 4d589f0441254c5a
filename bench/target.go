package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// figure is something measured that targets speak of.
type figure struct {
	name string
	of   func(sample) float64
}

var (
	throughput = figure{"ops/s", rateOf}
	cpuPerOp   = figure{"CPU/op", costOf}
	p99        = figure{"p99", p99Of}
	memory     = figure{"peak RSS", peakMemory}
)

// Names of front ends that targets compare with.
const (
	ours    = "" // the first build of cosky-proxy, whatever its name
	itself  = "direct"
	predixy = "predixy"
)

// target is a figure of the proxy that is promised, as a multiple of another one in
// the same round.
type target struct {
	topology topology
	workload string // its title
	figure   figure
	of       string  // front end; ours in most cases
	than     string  // front end that it is compared with
	base     string  // title of the workload that it is compared with; empty: the same
	factor   float64 // what the ratio is multiplied by; 0: 1
	bound    float64
	atMost   bool // bound is the most, not the least
	note     string
}

// targets are what the project promises, see issue 6.
func targets() []target {
	var all []target
	add := func(t target, titles ...string) {
		for _, t.workload = range titles {
			all = append(all, t)
		}
	}
	both := func(form string) []string { return []string{fmt.Sprintf(form, "GET"), fmt.Sprintf(form, "SET")} }

	for _, top := range []topology{standalone, cluster} {
		plain := both("%s 64 B, P=1")
		add(target{topology: top, figure: throughput, than: predixy, bound: 1.05}, plain...)
		add(target{topology: top, figure: cpuPerOp, than: predixy, bound: 1, atMost: true}, plain...)
		add(target{topology: top, figure: p99, than: predixy, bound: 1, atMost: true}, plain...)
	}
	deep := append(both("%s 64 B, P=16"), both("%s 64 B, P=100")...)
	add(target{topology: standalone, figure: throughput, than: predixy, bound: 1.1}, deep...)
	add(target{topology: standalone, figure: throughput, than: "nutcracker", bound: 1.6}, deep...)
	add(target{topology: cluster, figure: throughput, than: predixy, bound: 1.2}, both("%s 64 B, P=16")...)
	add(target{topology: cluster, figure: throughput, than: "redis-cluster-proxy", bound: 3}, both("%s 64 B, P=16")...)
	split := append(both("M%s of 10 across shards, P=1"), both("M%s of 10 across shards, P=16")...)
	add(target{topology: cluster, figure: throughput, than: predixy, bound: 1.3}, split...)
	for _, top := range []topology{standalone, cluster} {
		add(target{topology: top, figure: throughput, than: predixy, bound: 1.1}, both("%s 4 KB, P=1")...)
		add(target{topology: top, figure: throughput, than: predixy, bound: 1.1}, both("%s 4 KB, P=16")...)
		add(target{topology: top, figure: throughput, than: predixy, bound: 1.1}, both("%s 1 MB, P=1")...)
		add(target{topology: top, figure: memory, than: ours, base: "GET 64 B, P=1", bound: 1.5, atMost: true, note: "flat"}, "GET 1 MB, P=1")
	}
	add(target{topology: standalone, figure: throughput, than: itself, bound: 1}, "HGETALL cached, 10 fields, P=1")
	add(target{topology: standalone, figure: throughput, than: itself, bound: 2.5}, "HGETALL cached, 10 fields, P=16")
	add(target{topology: standalone, figure: cpuPerOp, than: itself, bound: 1. / 5, atMost: true}, "SMEMBERS cached, 100, P=16")
	add(target{topology: standalone, figure: cpuPerOp, than: itself, bound: 1. / 10, atMost: true}, "SMEMBERS cached, 1,000, P=16")
	add(target{topology: standalone, figure: cpuPerOp, than: ours, base: "PING, P=16", bound: 1.15, atMost: true}, "HGETALL cached, 10 fields, P=16")
	counted := append(both("%s 64 B, P=16"), "HGETALL cached, 10 fields, P=16")
	add(target{topology: standalone, figure: throughput, than: uncounted, bound: 0.97, note: "metrics, slow log and hot-key counting, as by default, against none of them"}, counted...)
	add(secondLoop(), counted...)
	return all
}

// secondLoop compares two loops with one, if the load comes from more than one thread. Where there
// are fewer processors, what is compared is how much two of them could carry, by the CPU that one
// command takes.
func secondLoop() target {
	if loadThreads(processors()) > 1 {
		return target{topology: standalone, figure: throughput, of: twoLoops, than: ours, bound: 1.7}
	}
	return target{
		topology: standalone, of: twoLoops, than: ours, factor: 2, bound: 1.7,
		figure: figure{"ops per CPU second", func(s sample) float64 { return 1 / costOf(s) }},
		note:   fmt.Sprintf("%d processors are too few for both loops, Redis and the load: two processors' worth, by CPU/op", processors()),
	}
}

// promise is the target in a few words, without the workload.
func (t target) promise() string {
	than := t.than
	if than == ours {
		than = "one loop"
	}
	if t.base != "" {
		than = t.base
	}
	relation := "≥"
	if t.atMost {
		relation = "≤"
	}
	promise := fmt.Sprintf("%s %s %.3g × %s", t.figure.name, relation, t.bound, than)
	if t.note != "" {
		promise += " (" + t.note + ")"
	}
	return promise
}

// verdict is the state of a target.
type verdict struct {
	about    string // workload and backend
	promise  string
	measured string // empty: it was not
	met      bool
	why      string // it was not measured
}

// judge compares with what was measured the targets that the experiment is about.
func (e *experiment) judge(all []target) []verdict {
	var out []verdict
	for _, t := range all {
		if t.topology == e.backend.topology && e.has(t.workload) && e.has(t.base) {
			out = append(out, t.judge(e))
		}
	}
	return out
}

// has reports whether a workload is part of the experiment; none always is.
func (e *experiment) has(title string) bool {
	return title == "" || slices.ContainsFunc(e.rows, func(r row) bool { return r.workload.title() == title })
}

func (t target) judge(e *experiment) verdict {
	v := verdict{about: fmt.Sprintf("%s, %s", t.workload, t.topology), promise: t.promise()}
	if t.of != ours {
		v.about += ", " + t.of
	}
	a, b := e.cell(t.workload, t.of), e.cell(cmp.Or(t.base, t.workload), t.than)
	switch {
	case a == nil:
		v.why = "no figures of cosky-proxy"
		return v
	case b == nil:
		v.why = "no " + t.than
		return v
	}
	r := ratio(a.samples, b.samples, t.figure.of).times(cmp.Or(t.factor, 1))
	v.measured = fmt.Sprintf("%.2f (%.2f–%.2f)", r.median, r.low, r.high)
	v.met = r.median >= t.bound
	if t.atMost {
		v.met = r.median <= t.bound
	}
	return v
}

// cell finds what was measured of a front end: by its name, a variant's, or ours.
func (e *experiment) cell(title, front string) *cell {
	for _, r := range e.rows {
		if r.workload.title() != title {
			continue
		}
		for _, c := range r.cells {
			known := c.front.name == front || c.front.variant != "" && c.front.variant == front || front == ours && c.front.role == subject
			if known && c.err == nil && len(c.samples) > 0 {
				return c
			}
		}
	}
	return nil
}

// verdicts renders the table of targets.
func verdicts(all []verdict) string {
	var b strings.Builder
	b.WriteString("| workload | target | measured (min–max of the rounds) | |\n|---|---|---|---|\n")
	for _, v := range all {
		state := "**missed**"
		switch {
		case v.measured == "":
			v.measured, state = "–", "not measured: "+v.why
		case v.met:
			state = "met"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", v.about, v.promise, v.measured, state)
	}
	return b.String()
}
