package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// summary is a cell boiled down to what the table shows.
type summary struct {
	rate, slowest, fastest     float64 // requests per second
	frontCPU, backendCPU, load float64 // microseconds per request
	p50, p99                   time.Duration
	rss                        int64 // bytes
}

func summarize(samples []sample) summary {
	rates := pick(samples, func(s sample) float64 { return s.rate })
	perRequest := func(cpu func(sample) time.Duration) float64 {
		return median(pick(samples, func(s sample) float64 {
			return float64(cpu(s).Nanoseconds()) / 1e3 / float64(s.requests)
		}))
	}
	sum := summary{
		rate: median(rates), slowest: slices.Min(rates), fastest: slices.Max(rates),
		frontCPU:   perRequest(func(s sample) time.Duration { return s.frontCPU }),
		backendCPU: perRequest(func(s sample) time.Duration { return s.backendCPU }),
		load:       perRequest(func(s sample) time.Duration { return s.cpu }),
		p50:        time.Duration(median(pick(samples, func(s sample) float64 { return float64(s.p50) }))),
		p99:        time.Duration(median(pick(samples, func(s sample) float64 { return float64(s.p99) }))),
	}
	for _, s := range samples {
		sum.rss = max(sum.rss, s.rss)
	}
	return sum
}

// ratio is the median over the rounds of a's figure divided by b's in the same
// round: what both suffered together cancels out.
func ratio(a, b []sample, figure func(sample) float64) float64 {
	quotients := make([]float64, min(len(a), len(b)))
	for i := range quotients {
		quotients[i] = figure(a[i]) / figure(b[i])
	}
	return median(quotients)
}

func rateOf(s sample) float64 { return s.rate }

// costOf must be the same measure on both sides even if calibration gave them
// different numbers of requests.
func costOf(s sample) float64 { return float64(s.frontCPU) / float64(s.requests) }

func pick(samples []sample, figure func(sample) float64) []float64 {
	out := make([]float64, len(samples))
	for i, s := range samples {
		out[i] = figure(s)
	}
	return out
}

// median returns the middle value, or the mean of the two middle ones.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// find returns the cell of the given role with the highest median rate, or nil.
func (r row) find(want role) *cell {
	var best *cell
	for _, c := range r.cells {
		if c.front.role != want || c.err != nil {
			continue
		}
		if best == nil || summarize(c.samples).rate > summarize(best.samples).rate {
			best = c
		}
	}
	return best
}

// markdown renders the whole experiment as one table.
func (e *experiment) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s (%d rounds, %d connections)\n\n", e.backend.topology, e.rounds, e.plan.clients)
	b.WriteString("| workload | front end | ops/s median (min–max) | ops vs direct | ops vs best peer | CPU µs/op | CPU vs best peer | Redis µs/op | load µs/op | p50 / p99 ms | RSS MiB |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range e.rows {
		r.render(&b)
	}
	return b.String()
}

func (r row) render(b *strings.Builder) {
	base, rival := r.find(reference), r.find(peer)
	for _, c := range r.cells {
		if c.err != nil {
			fmt.Fprintf(b, "| %s | %s | not measured: %s | | | | | | | | |\n", r.workload.title(), c.front.name, oneLine(c.err))
			continue
		}
		s := summarize(c.samples)
		toDirect, toPeer, cpuToPeer := "–", "–", "–"
		if base != nil && base != c {
			toDirect = fmt.Sprintf("%.2f", ratio(c.samples, base.samples, rateOf))
		}
		if rival != nil && rival != c && c.front.role != reference {
			toPeer = fmt.Sprintf("%.2f", ratio(c.samples, rival.samples, rateOf))
			cpuToPeer = fmt.Sprintf("%.2f", ratio(c.samples, rival.samples, costOf))
		}
		fmt.Fprintf(b, "| %s | %s | %s (%s–%s) | %s | %s | %.2f | %s | %.2f | %.2f | %s / %s | %.1f |\n",
			r.workload.title(), c.front.name, thousands(s.rate), thousands(s.slowest), thousands(s.fastest),
			toDirect, toPeer, s.frontCPU, cpuToPeer, s.backendCPU, s.load,
			inMilliseconds(s.p50), inMilliseconds(s.p99), float64(s.rss)/(1<<20))
	}
}

func thousands(rate float64) string { return fmt.Sprintf("%.1f k", rate/1e3) }

func inMilliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond))
}

// oneLine keeps an error from breaking the table.
func oneLine(err error) string {
	return strings.NewReplacer("\n", " ", "|", "/").Replace(fmt.Sprintf("%.160s", err.Error()))
}
