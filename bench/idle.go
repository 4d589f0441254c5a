package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"cosky-proxy/bench/load"
)

const (
	idleConnections = 10_000
	idleTitle       = "idle connections"
	idleTime        = time.Second // that the CPU use of idle connections is watched for, after as much to come to rest

	maxIdleMemory = 25 << 20 // promised, see issue 6; bytes above those without connections
)

// holding is what connections cost a front end that say nothing.
type holding struct {
	front  string
	role   role
	before int64         // resident memory without them, bytes
	after  int64         // with them
	cpu    time.Duration // per second, with them
	err    error
}

// holdIdle measures each candidate in a process of its own: one that has worked before may
// have memory to spare.
func holdIdle(ctx context.Context, dir string, b *backend, candidates []candidate, progress io.Writer) []holding {
	redis := holding{front: "direct", role: reference}
	redis.err = redis.measure(ctx, b.nodes[0])
	all := []holding{redis}
	for _, c := range candidates {
		if !slices.Contains(c.serves, b.topology) {
			continue
		}
		h := holding{front: c.name, role: c.role}
		h.err = h.start(ctx, dir, b, c)
		if h.err != nil {
			fmt.Fprintf(progress, "%s: idle connections are not measured: %v\n", c.name, h.err)
		}
		all = append(all, h)
	}
	return all
}

func (h *holding) start(ctx context.Context, dir string, b *backend, c candidate) error {
	f, err := c.start(ctx, dir, b)
	if err != nil {
		return err
	}
	p := f.processes[0]
	defer p.stop()
	// It may listen before it has found its backend.
	err = poll(ctx, settleTime, func() error {
		release, err := load.Hold(ctx, p.addr(), 1)
		if err == nil {
			release()
		}
		return err
	})
	if err != nil {
		return err
	}
	return h.measure(ctx, p)
}

func (h *holding) measure(ctx context.Context, p *process) error {
	var err error
	if h.before, err = p.rss(); err != nil {
		return err
	}
	release, err := load.Hold(ctx, p.addr(), idleConnections)
	if err != nil {
		return err
	}
	defer release()
	var at [2]time.Duration
	for i := range at {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(idleTime):
		}
		if at[i], err = p.cpu(); err != nil {
			return err
		}
	}
	h.cpu = time.Duration(float64(at[1]-at[0]) / idleTime.Seconds())
	h.after, err = p.rss()
	return err
}

func (h *holding) verdict() verdict {
	const mib = 1 << 20
	v := verdict{about: fmt.Sprintf("%d idle connections", idleConnections), promise: fmt.Sprintf("RSS ≤ %d MiB over none", maxIdleMemory/mib)}
	if h.err != nil {
		v.why = h.err.Error()
		return v
	}
	more := h.after - h.before
	v.measured, v.met = fmt.Sprintf("%.1f MiB", float64(more)/mib), more <= maxIdleMemory
	return v
}

func idleTable(all []holding) string {
	var b strings.Builder
	fmt.Fprintf(&b, "### %d idle connections\n\n| front end | RSS MiB without | with | KiB per connection | CPU ms/s |\n|---|---|---|---|---|\n", idleConnections)
	for _, h := range all {
		if h.err != nil {
			fmt.Fprintf(&b, "| %s | not measured: %s | | | |\n", h.front, oneLine(h.err))
			continue
		}
		fmt.Fprintf(&b, "| %s | %.1f | %.1f | %.2f | %.1f |\n", h.front, float64(h.before)/(1<<20), float64(h.after)/(1<<20),
			float64(h.after-h.before)/(1<<10)/idleConnections, float64(h.cpu)/float64(time.Millisecond))
	}
	return b.String()
}
