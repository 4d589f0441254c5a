package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"cosky-proxy/bench/load"
)

const (
	idleTitle = "idle connections"
	idleTime  = time.Second // that the CPU use of idle connections is watched for, after as much to come to rest

	someIdle = 10_000
	mostIdle = 50_000
	// spareFiles is how many open files both ends of the connections need for other things.
	spareFiles = 500

	// Promised, see issues 5 and 6: bytes of resident memory above those without connections, and
	// bytes of heap for each of them.
	maxIdleMemory = 25 << 20 // of someIdle connections
	maxIdleHeap   = 2 << 10
)

// idleSteps are the numbers of connections to measure, as far as the limit of open files
// allows, and what it forbids.
func idleSteps(quick bool, limit int) (steps []int, note string) {
	wanted := []int{someIdle, mostIdle}
	if quick {
		wanted = wanted[:1]
	}
	for _, n := range wanted {
		steps = append(steps, max(1, min(n, limit-spareFiles)))
	}
	most := steps[len(steps)-1]
	if wanted := wanted[len(wanted)-1]; most < wanted {
		note = fmt.Sprintf("%d connections were wanted; the limit of open files (ulimit -Hn: %d) leaves %d.", wanted, limit, most)
	}
	return slices.Compact(steps), note
}

// footprint is what a front end takes while it has connections that say nothing.
type footprint struct {
	connections int
	rss         int64         // resident memory, bytes
	heap        int64         // Go's heap and stacks after a collection, bytes; 0: not known
	cpu         time.Duration // per second
}

// holding is what idle connections cost a front end.
type holding struct {
	front string
	role  role
	none  footprint // without connections
	steps []footprint
	err   error // why there are no more steps
}

// holdIdle measures each candidate in a process of its own: one that has worked before may
// have memory to spare.
func holdIdle(ctx context.Context, dir string, b *backend, candidates []candidate, steps []int, progress io.Writer) []holding {
	all := []holding{holdIdleOf(ctx, direct(b), steps)}
	for _, c := range candidates {
		if !slices.Contains(c.serves, b.topology) {
			continue
		}
		h := holding{front: c.name, role: c.role}
		f, err := c.start(ctx, dir, b)
		if err != nil {
			h.err = err
		} else {
			h = holdIdleOf(ctx, f, steps)
			f.processes[0].stop()
		}
		if h.err != nil {
			fmt.Fprintf(progress, "%s: idle connections are not measured: %v\n", c.name, h.err)
		}
		all = append(all, h)
	}
	return all
}

func holdIdleOf(ctx context.Context, f *frontEnd, steps []int) holding {
	h := holding{front: f.name, role: f.role}
	h.err = h.measure(ctx, f, steps)
	return h
}

func (h *holding) measure(ctx context.Context, f *frontEnd, steps []int) error {
	p := f.processes[0]
	// It may listen before it has found its backend.
	err := poll(ctx, settleTime, func() error {
		release, err := load.Hold(ctx, p.addr(), 1)
		if err == nil {
			release()
		}
		return err
	})
	if err != nil {
		return err
	}
	if h.none, err = footprintOf(ctx, f); err != nil {
		return err
	}
	held := 0
	for _, n := range steps {
		release, err := load.Hold(ctx, p.addr(), n-held)
		if err != nil {
			return fmt.Errorf("with %d connections: %w", held, err)
		}
		defer release()
		held = n
		with, err := footprintOf(ctx, f)
		if err != nil {
			return err
		}
		with.connections = held
		h.steps = append(h.steps, with)
	}
	return nil
}

func footprintOf(ctx context.Context, f *frontEnd) (is footprint, err error) {
	p := f.processes[0]
	var at [2]time.Duration
	for i := range at {
		select {
		case <-ctx.Done():
			return is, ctx.Err()
		case <-time.After(idleTime):
		}
		if at[i], err = p.cpu(); err != nil {
			return is, err
		}
	}
	is.cpu = time.Duration(float64(at[1]-at[0]) / idleTime.Seconds())
	if is.rss, err = p.rss(); err != nil || f.admin == "" {
		return is, err
	}
	// Last, because the collection may change the others.
	is.heap, err = heapOf(ctx, f.admin)
	return is, err
}

// heapOf asks the proxy's admin address how much its heap and stacks take after a collection.
func heapOf(ctx context.Context, admin string) (int64, error) {
	if _, err := fetch(ctx, "http://"+admin+"/debug/pprof/heap?gc=1"); err != nil {
		return 0, err
	}
	metrics, err := fetch(ctx, "http://"+admin+"/metrics")
	if err != nil {
		return 0, err
	}
	return parseHeap(metrics)
}

// parseHeap adds up what the metrics say of heap and stacks.
func parseHeap(metrics string) (int64, error) {
	total := 0.
	for _, name := range []string{"go_memstats_heap_inuse_bytes", "go_memstats_stack_inuse_bytes"} {
		_, after, found := strings.Cut(metrics, "\n"+name+" ")
		if !found {
			return 0, fmt.Errorf("cannot find %s in the metrics", name)
		}
		value, _, _ := strings.Cut(after, "\n")
		bytes, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("cannot parse %s: %w", name, err)
		}
		total += bytes
	}
	return int64(total), nil
}

func fetch(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", fmt.Errorf("cannot fetch %q: %w", url, err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", fmt.Errorf("cannot fetch %q: %w", url, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", fmt.Errorf("cannot fetch %q: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("cannot fetch %q: %s", url, response.Status)
	}
	return string(body), nil
}

// verdicts judges memory with some connections, and heap with the most.
func (h *holding) verdicts() []verdict {
	const mib = 1 << 20
	memory := verdict{about: fmt.Sprintf("%d %s", someIdle, idleTitle), promise: fmt.Sprintf("RSS ≤ %d MiB over none", maxIdleMemory/mib)}
	heap := verdict{about: idleTitle, promise: fmt.Sprintf("heap ≤ %d B each", maxIdleHeap)}
	memory.why = "fewer could be opened"
	if h.err != nil {
		memory.why = oneLine(h.err)
	}
	heap.why = memory.why
	for _, with := range h.steps {
		if with.connections == someIdle {
			more := with.rss - h.none.rss
			memory.measured, memory.met = fmt.Sprintf("%.1f MiB", float64(more)/mib), more <= maxIdleMemory
		}
		each := (with.heap - h.none.heap) / int64(with.connections)
		heap.about = fmt.Sprintf("%d %s", with.connections, idleTitle)
		heap.measured, heap.met = fmt.Sprintf("%d B", each), each <= maxIdleHeap
	}
	return []verdict{memory, heap}
}

func idleTable(all []holding, note string) string {
	var b strings.Builder
	b.WriteString("### Idle connections\n\n| front end | connections | RSS MiB without | with | KiB per connection | heap B per connection | CPU ms/s |\n|---|---|---|---|---|---|---|\n")
	for _, h := range all {
		for _, with := range h.steps {
			heap := "–"
			if with.heap > 0 {
				heap = fmt.Sprint((with.heap - h.none.heap) / int64(with.connections))
			}
			fmt.Fprintf(&b, "| %s | %d | %.1f | %.1f | %.2f | %s | %.1f |\n", h.front, with.connections, float64(h.none.rss)/(1<<20), float64(with.rss)/(1<<20),
				float64(with.rss-h.none.rss)/(1<<10)/float64(with.connections), heap, float64(with.cpu)/float64(time.Millisecond))
		}
		if h.err != nil {
			fmt.Fprintf(&b, "| %s | %s | | | | | |\n", h.front, gap(h.err))
		}
	}
	if note != "" {
		b.WriteString("\n" + note + "\n")
	}
	return b.String()
}
