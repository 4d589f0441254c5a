package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// report is everything that was measured.
type report struct {
	header   string // in Markdown
	verdicts []verdict
	tables   []string          // in Markdown, one for each topology
	files    map[string]string // charts and samples by file name
	idle     []holding
	idleNote string // what kept it from being measured with more connections
}

// add takes the results of one topology.
func (r *report) add(e *experiment) {
	r.verdicts = append(r.verdicts, e.judge(targets())...)
	table := e.markdown() + "\n"
	for _, c := range charts() {
		file := fmt.Sprintf("%s-%s.svg", e.backend.topology, c.name)
		r.files[file] = c.svg(e)
		table += fmt.Sprintf("![%s](%s)\n", c.title, file)
	}
	samples := fmt.Sprintf("%s-samples.csv", e.backend.topology)
	r.files[samples] = e.csv()
	r.tables = append(r.tables, table+fmt.Sprintf("\n[Every round](%s). Load average afterwards: %s.\n", samples, loadAverage()))
}

func (r *report) markdown() string {
	all := r.verdicts
	for i := range r.idle {
		if r.idle[i].role == subject {
			all = append(all, r.idle[i].verdicts()...)
			break
		}
	}
	parts := append([]string{r.header, "### Targets\n\n" + verdicts(all)}, r.tables...)
	if len(r.idle) > 0 {
		parts = append(parts, idleTable(r.idle, r.idleNote))
	}
	return strings.Join(parts, "\n")
}

// write puts the report, its charts and samples into a directory.
func (r *report) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cannot write the report: %w", err)
	}
	files := maps.Clone(r.files)
	files["README.md"] = r.markdown()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("cannot write the report: %w", err)
		}
	}
	return nil
}

// summary is a cell boiled down to what the table shows.
type summary struct {
	rate             spread  // requests per second
	frontCPU         spread  // microseconds per request
	backendCPU, load float64 // the same, median
	p50, p99, p999   time.Duration
	peak             int64 // of the resident memory, bytes
}

func summarize(samples []sample) summary {
	sum := summary{
		rate:       spreadOf(pick(samples, rateOf)),
		frontCPU:   spreadOf(pick(samples, costOf)),
		backendCPU: median(pick(samples, func(s sample) float64 { return s.each(s.backendCPU) })),
		load:       median(pick(samples, func(s sample) float64 { return s.each(s.cpu) })),
		p50:        time.Duration(median(pick(samples, func(s sample) float64 { return float64(s.p50) }))),
		p99:        time.Duration(median(pick(samples, p99Of))),
		p999:       time.Duration(median(pick(samples, func(s sample) float64 { return float64(s.p999) }))),
	}
	for _, s := range samples {
		sum.peak = max(sum.peak, s.peak)
	}
	return sum
}

// spread is a figure over the rounds.
type spread struct{ median, low, high float64 }

func spreadOf(values []float64) spread {
	return spread{median(values), slices.Min(values), slices.Max(values)}
}

func (s spread) times(factor float64) spread {
	return spread{s.median * factor, s.low * factor, s.high * factor}
}

// text is the median with the least and the greatest.
func (s spread) text(of func(float64) string) string {
	return fmt.Sprintf("%s (%s–%s)", of(s.median), of(s.low), of(s.high))
}

// ratio is a's figure divided by b's in the same round: what both suffered together
// cancels out.
func ratio(a, b []sample, figure func(sample) float64) spread {
	quotients := make([]float64, min(len(a), len(b)))
	for i := range quotients {
		quotients[i] = figure(a[i]) / figure(b[i])
	}
	return spreadOf(quotients)
}

func rateOf(s sample) float64     { return s.rate }
func p99Of(s sample) float64      { return float64(s.p99) }
func peakMemory(s sample) float64 { return float64(s.peak) }

// costOf must be the same measure on both sides even if calibration gave them
// different numbers of requests.
func costOf(s sample) float64 { return s.each(s.frontCPU) }

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
		if best == nil || summarize(c.samples).rate.median > summarize(best.samples).rate.median {
			best = c
		}
	}
	return best
}

// of returns the measured cell of a front end, or nil.
func (r row) of(front *frontEnd) *cell {
	for _, c := range r.cells {
		if c.front == front && c.err == nil {
			return c
		}
	}
	return nil
}

// markdown renders the whole experiment as one table.
func (e *experiment) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s (%d rounds, %d connections)\n\n", e.backend.topology, e.rounds, e.plan.clients)
	b.WriteString("| workload | front end | ops/s median (min–max) | ops vs direct | ops vs best peer | CPU µs/op median (min–max) | CPU vs best peer | Redis µs/op | load µs/op | p50 / p99 / p99.9 ms | RSS MiB |\n")
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
			fmt.Fprintf(b, "| %s | %s | %s | | | | | | | | |\n", r.workload.title(), c.front.name, gap(c.err))
			continue
		}
		s := summarize(c.samples)
		toDirect, toPeer, cpuToPeer := "–", "–", "–"
		if base != nil && base != c {
			toDirect = fmt.Sprintf("%.2f", ratio(c.samples, base.samples, rateOf).median)
		}
		if rival != nil && rival != c && c.front.role != reference {
			toPeer = fmt.Sprintf("%.2f", ratio(c.samples, rival.samples, rateOf).median)
			cpuToPeer = fmt.Sprintf("%.2f", ratio(c.samples, rival.samples, costOf).median)
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s / %s / %s | %.1f |\n",
			r.workload.title(), c.front.name, s.rate.text(thousands),
			toDirect, toPeer, s.frontCPU.text(micros), cpuToPeer, micros(s.backendCPU), micros(s.load),
			inMilliseconds(s.p50), inMilliseconds(s.p99), inMilliseconds(s.p999), float64(s.peak)/(1<<20))
	}
}

func thousands(rate float64) string { return fmt.Sprintf("%.1f k", rate/1e3) }

// csv lists what each round has measured, for whoever wants other figures than the table's.
func (e *experiment) csv() string {
	ms := func(d time.Duration) string {
		if d == 0 {
			return "" // not known
		}
		return fmt.Sprintf("%.3f", float64(d)/float64(time.Millisecond))
	}
	var b strings.Builder
	w := csv.NewWriter(&b)
	_ = w.Write([]string{"workload", "front end", "round", "requests", "ops/s", "CPU us/op", "Redis us/op", "load us/op", "p50 ms", "p99 ms", "p99.9 ms", "peak RSS bytes"})
	for _, r := range e.rows {
		for _, c := range r.cells {
			for round, s := range c.samples {
				_ = w.Write([]string{r.workload.title(), c.front.name, strconv.Itoa(round + 1), strconv.Itoa(s.requests), fmt.Sprintf("%.0f", s.rate),
					micros(s.each(s.frontCPU)), micros(s.each(s.backendCPU)), micros(s.each(s.cpu)),
					ms(s.p50), ms(s.p99), ms(s.p999), strconv.FormatInt(s.peak, 10)})
			}
		}
	}
	w.Flush() // into memory, which does not fail
	return b.String()
}

// micros keeps three digits of what is small.
func micros(us float64) string {
	if us >= 10 {
		return fmt.Sprintf("%.1f", us)
	}
	return fmt.Sprintf("%.2f", us)
}

func inMilliseconds(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond))
}

// gap says in a table why there are no figures.
func gap(err error) string {
	if errors.As(err, new(refusal)) {
		return "not supported: " + oneLine(err)
	}
	return "not measured: " + oneLine(err)
}

// oneLine keeps an error from breaking the table.
func oneLine(err error) string {
	return strings.NewReplacer("\n", " ", "|", "/").Replace(fmt.Sprintf("%.160s", err.Error()))
}
