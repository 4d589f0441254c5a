package soak

import (
	"testing"
	"time"
)

// TestLedgerIsNotBlind: what must not happen is noticed.
func TestLedgerIsNotBlind(t *testing.T) {
	counter := func(acked, unknown, loose, value int) func(*ledger) {
		return func(b *ledger) { b.audit(&counter{acked: acked, unknown: unknown, loose: loose}, value) }
	}
	// queued plays what has become of one element and audits the queue.
	queued := func(e element, pops int, unknown int, left ...string) func(*ledger) {
		return func(b *ledger) {
			q := newQueue("q", 0)
			q.elements["e1"], q.unknown = &e, unknown
			for range pops {
				q.pop(b, "e1", false)
			}
			q.audit(b, left)
		}
	}
	for name, c := range map[string]struct {
		play  func(*ledger)
		fault bool
	}{
		"all increments are there":             {counter(5, 0, 0, 5), false},
		"one is lost":                          {counter(5, 1, 0, 4), true},
		"one that Redis may lose is lost":      {counter(5, 0, 1, 4), false},
		"one has happened after all":           {counter(5, 1, 0, 6), false},
		"one has happened twice":               {counter(5, 1, 0, 7), true},
		"pushed and popped":                    {queued(element{acked: true}, 1, 0), false},
		"pushed and left":                      {queued(element{acked: true}, 0, 0, "e1"), false},
		"popped twice":                         {queued(element{acked: true}, 2, 0), true},
		"popped and left":                      {queued(element{acked: true}, 1, 0, "e1"), true},
		"popped twice, the first pop was lost": {queued(element{acked: true, loose: true}, 2, 0), false},
		"lost":                                 {queued(element{acked: true}, 0, 0), true},
		"taken by a pop of unknown fate":       {queued(element{acked: true}, 0, 1), false},
		"refused and popped":                   {queued(element{refused: true}, 1, 0), true},
		"of unknown fate and lost":             {queued(element{}, 0, 0), false},
		"from nowhere":                         {queued(element{acked: true}, 1, 0, "e2"), true},
	} {
		b := &ledger{}
		c.play(b)
		if b.failed() != c.fault {
			t.Errorf("%s: faults %q", name, b.faults)
		}
	}
}

// TestPipelineIsNotBlind: replies that show what they must not show are noticed.
func TestPipelineIsNotBlind(t *testing.T) {
	master, replicas := &front{}, &front{replicas: true}
	for name, c := range map[string]struct {
		front  *front
		storm  storm
		judge  func(*client) func(string) bool
		reply  string
		passes bool
	}{
		"the next number":                      {master, storm{}, func(c *client) func(string) bool { return c.counts(0) }, ":8\r\n", true},
		"a number again":                       {master, storm{}, func(c *client) func(string) bool { return c.counts(0) }, ":7\r\n", false},
		"a read as high as the last increment": {replicas, storm{}, func(c *client) func(string) bool { return c.reaches(0) }, "$1\r\n7\r\n", true},
		"a read below it":                      {replicas, storm{}, func(c *client) func(string) bool { return c.reaches(0) }, "$1\r\n6\r\n", false},
		"a read below what others know":        {master, storm{}, func(c *client) func(string) bool { return c.reaches(0) }, "$1\r\n8\r\n", false},
		"… for less than the lag":              {replicas, storm{}, func(c *client) func(string) bool { return c.reaches(0) }, "$1\r\n8\r\n", true},
		"a read of nothing":                    {replicas, storm{}, func(c *client) func(string) bool { return c.reaches(0) }, "$-1\r\n", false},
		"… of a key that moves":                {replicas, storm{moving: true}, func(c *client) func(string) bool { return c.reaches(0) }, "$-1\r\n", true},
		"… from its master":                    {master, storm{moving: true}, func(c *client) func(string) bool { return c.reaches(0) }, "_\r\n", false},
		"the own value":                        {replicas, storm{}, func(c *client) func(string) bool { return c.get(c.own[0]).check }, "$1\r\nb\r\n", true},
		"a value of unknown fate":              {replicas, storm{}, func(c *client) func(string) bool { return c.get(c.own[0]).check }, "$1\r\nc\r\n", true},
		"an older value":                       {replicas, storm{}, func(c *client) func(string) bool { return c.get(c.own[0]).check }, "$1\r\na\r\n", false},
	} {
		c1 := newClient(caller{crowd: &crowd{book: &ledger{counters: []*counter{{key: "k"}}}}, front: c.front}, 1)
		c1.floors[0], c1.own[0].value, c1.own[0].unknown = 7, "b", map[string]bool{"c": true}
		c1.crowd.book.setWeather(c.storm)
		c1.crowd.book.mark(c1.crowd.book.counters[0], 9)
		c1.sent = time.Now()
		if c.judge(c1)(c.reply) != c.passes {
			t.Errorf("%s: %q passes: %v", name, c.reply, !c.passes)
		}
	}
}
