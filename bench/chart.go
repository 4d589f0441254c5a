package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// Geometry of a chart, in pixels.
const (
	labelWidth = 270
	plotWidth  = 560
	rowHeight  = 22
	headHeight = 64
	footHeight = 26
	rightSpace = 50
	dotRadius  = 4.5
)

// maxMultiple is where the axis ends; what is beyond is drawn there, with its value.
const maxMultiple = 4

// colourOf is the same for a peer in all charts. Readers who do not see every colour can tell them apart
// (Okabe and Ito).
func colourOf(f *frontEnd) string {
	for i, c := range peerTable() {
		if c.name == f.name {
			return []string{"#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"}[i]
		}
	}
	return []string{"#0072B2", "#000000"}[f.build%2]
}

// chart shows one figure of every front end as a multiple of Redis' own, a line for each
// workload.
type chart struct {
	name   string // of its file
	title  string
	figure func(sample) float64
}

func charts() []chart {
	return []chart{
		{"throughput", "Throughput, as a multiple of Redis asked directly (more is better)", rateOf},
		{"cpu", "CPU of the front end per command, as a multiple of Redis' own (less is better)", costOf},
		{"p99", "p99 latency, as a multiple of Redis asked directly (less is better)", p99Of},
	}
}

// svg draws the experiment's workloads.
func (c chart) svg(e *experiment) string {
	var rows []row
	for _, r := range e.rows {
		if r.find(reference) != nil {
			rows = append(rows, r)
		}
	}
	fronts := frontsOf(rows)
	width, height := labelWidth+plotWidth+rightSpace, headHeight+len(rows)*rowHeight+footHeight
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="system-ui, sans-serif" font-size="12" role="img">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="#fff"/><text x="12" y="22" font-size="15" font-weight="600" fill="#222">%s</text>`+"\n", html.EscapeString(fmt.Sprintf("%s, %s", c.title, e.backend.topology)))
	legend(&b, fronts)
	axis(&b, headHeight+len(rows)*rowHeight)
	for i, r := range rows {
		y := headHeight + i*rowHeight + rowHeight/2
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end" fill="#222">%s</text>`+"\n", labelWidth-12, y+4, html.EscapeString(r.workload.title()))
		c.dots(&b, r, fronts, y)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// dots draws a row: a dot for each median, a line from the least round to the greatest.
func (c chart) dots(b *strings.Builder, r row, fronts []*frontEnd, y int) {
	base := r.find(reference)
	for _, front := range fronts {
		cell := r.of(front)
		if cell == nil {
			continue
		}
		colour := colourOf(front)
		s := ratio(cell.samples, base.samples, c.figure)
		x := xOf(s.median)
		fmt.Fprintf(b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="%s" stroke-opacity=".5" stroke-width="2"/>`, xOf(s.low), xOf(s.high), y, y, colour)
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%d" r="%.1f" fill="%s" fill-opacity=".85"><title>%s: %.2f (%.2f–%.2f)</title></circle>`, x, y, dotRadius, colour, html.EscapeString(front.name), s.median, s.low, s.high)
		if s.median > maxMultiple {
			fmt.Fprintf(b, `<text x="%.1f" y="%d" fill="%s">%.3g</text>`, x+8, y+4, colour, s.median)
		}
		b.WriteByte('\n')
	}
}

func legend(b *strings.Builder, fronts []*frontEnd) {
	x := 12.
	for _, front := range fronts {
		fmt.Fprintf(b, `<circle cx="%.0f" cy="42" r="%.1f" fill="%s"/><text x="%.0f" y="46" fill="#222">%s</text>`+"\n", x+5, dotRadius, colourOf(front), x+14, html.EscapeString(front.name))
		x += 30 + 7*float64(len(front.name))
	}
}

func axis(b *strings.Builder, bottom int) {
	for at := 0.; at <= maxMultiple; at += 0.5 {
		stroke := "#e4e4e4"
		if at == 1 {
			stroke = "#888"
		}
		x := xOf(at)
		fmt.Fprintf(b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="%s"/><text x="%.1f" y="%d" text-anchor="middle" fill="#666">%g</text>`+"\n", x, x, headHeight, bottom, stroke, x, bottom+16, at)
	}
}

func xOf(multiple float64) float64 {
	return labelWidth + plotWidth*math.Min(multiple, maxMultiple)/maxMultiple
}

// frontsOf lists all front ends but Redis itself, in the order in which they are measured.
func frontsOf(rows []row) []*frontEnd {
	var fronts []*frontEnd
	for _, r := range rows {
		for _, c := range r.cells {
			if (c.front.role == subject || c.front.role == peer) && !slices.Contains(fronts, c.front) {
				fronts = append(fronts, c.front)
			}
		}
	}
	return fronts
}
