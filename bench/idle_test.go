package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestIdleStepsFollowTheLimit(t *testing.T) {
	for _, c := range []struct {
		quick bool
		limit int
		want  []int
		note  string // a part of it
	}{
		{false, 1 << 20, []int{10_000, 50_000}, ""},
		{true, 1 << 20, []int{10_000}, ""},
		{false, 20_000, []int{10_000, 19_500}, "(ulimit -Hn: 20000) leaves 19500"},
		{false, 4096, []int{3596}, "50000 connections were wanted"},
		{true, 4096, []int{3596}, "10000 connections were wanted"},
		{true, 100, []int{1}, "leaves 1."},
	} {
		steps, note := idleSteps(c.quick, c.limit)
		if !slices.Equal(steps, c.want) || !strings.Contains(note, c.note) || (c.note == "") != (note == "") {
			t.Errorf("quick %v, limit %d: got %v, %q; want %v, %q", c.quick, c.limit, steps, note, c.want, c.note)
		}
	}
}

func TestParseHeap(t *testing.T) {
	const metrics = "# TYPE go_memstats_heap_inuse_bytes gauge\ngo_memstats_heap_inuse_bytes 9.5e+06\ngo_memstats_stack_inuse_bytes 500000\n"
	if got, err := parseHeap(metrics); err != nil || got != 10_000_000 {
		t.Errorf("got %d, %v, want the sum of heap and stacks", got, err)
	}
	for _, bad := range []string{"", "\ngo_memstats_heap_inuse_bytes 1\n", "\ngo_memstats_heap_inuse_bytes much\n"} {
		if _, err := parseHeap(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestIdleTableAndVerdicts(t *testing.T) {
	const mib, kib = 1 << 20, 1 << 10
	ours := holding{front: "new", role: subject, none: footprint{rss: 20 * mib, heap: 5 * mib}, steps: []footprint{
		{connections: 10_000, rss: 46 * mib, heap: 5*mib + 10_000*1200, cpu: 2 * time.Millisecond},
		{connections: 20_000, rss: 60 * mib, heap: 5*mib + 20_000*3*kib},
	}}
	few := holding{front: "few", role: peer, none: footprint{rss: mib}, steps: []footprint{{connections: 10_000, rss: 2 * mib}}, err: errors.New("with 10000 connections: no more")}
	table := idleTable([]holding{ours, few}, "Not more.")
	for _, want := range []string{
		"| new | 10000 | 20.0 | 46.0 | 2.66 | 1200 | 2.0 |\n", "| new | 20000 | 20.0 | 60.0 | 2.05 | 3072 | 0.0 |\n",
		"| few | 10000 | 1.0 | 2.0 | 0.10 | – | 0.0 |\n| few | not measured: with 10000 connections: no more | | | | | |\n", "\nNot more.\n",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	got := ours.verdicts()
	if v := got[0]; v.about != "10000 idle connections" || v.measured != "26.0 MiB" || v.met {
		t.Errorf("memory: got %+v, want 26.0 MiB, missed", v)
	}
	if v := got[1]; v.about != "20000 idle connections" || v.measured != "3072 B" || v.met {
		t.Errorf("heap: got %+v, want 3072 B, missed", v)
	}
	for _, v := range (&holding{err: errors.New("refused")}).verdicts() {
		if v.measured != "" || v.why != "refused" {
			t.Errorf("got %+v, want the reason why it was not measured", v)
		}
	}
}
