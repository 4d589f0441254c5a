package proxy

// Traffic. One client may have many thousands of parts of commands on their way. What is to be sent again has to be compared with
// them (again.go), and they with what waits; to compare each with all others would stop the loop for many seconds. Nearly
// all of them are for other slots, so both are sorted by slot.

// delays are counts of what waits to be sent again. They tell for most replies at once that nothing waits which they clash with.
type delays struct {
	slots  map[uint16]int // how many of those that wait are for the slot
	rest   int            // how many may be for any
	writes int            // how many of all may do more than read
}

func (d *delays) count(r *request, n int) {
	if r.keyed {
		d.slots[r.slot] += n
	} else {
		d.rest += n
	}
	if !r.again.reads {
		d.writes += n
	}
}

// none reports whether none of those that wait can clash with r.
func (d *delays) none(l *loop, r *request) bool {
	return r.keyed && d.rest == 0 && d.slots[r.slot] == 0 || d.writes == 0 && l.onlyReads(r)
}

// traffic is what a session has in flight, and what waits to be sent again, at one moment.
type traffic struct {
	waiting []flight // in their order
	all     []flight // in flight
	keyed   map[uint16][]flight
	rest    []flight // those of all that may be for any slot
}

// flight is a request with the number of its place in the reply queue.
type flight struct {
	r  *request
	at int
}

// survey looks at all that the session waits for.
func (s *session) survey() *traffic {
	t := &traffic{keyed: make(map[uint16][]flight)}
	var last *request
	at := 0
	for place, o := range s.flights {
		if place != last {
			last = place
			at++
		}
		switch {
		case o.again != nil:
			t.waiting = append(t.waiting, flight{o, at})
		case o.lane != nil:
			t.add(flight{o, at})
		}
	}
	return t
}

func (t *traffic) add(f flight) {
	t.all = append(t.all, f)
	if f.r.keyed {
		t.keyed[f.r.slot] = append(t.keyed[f.r.slot], f)
	} else {
		t.rest = append(t.rest, f)
	}
}

// without takes the first that waits out. False: what waits is not what it was, but another request, or the same one for another time.
func (t *traffic) without(s *session, before int) bool {
	t.waiting = t.waiting[1:]
	if s.delayed > 0 && s.delayed != before-1 {
		s.loop.chase(s)
		return false
	}
	return true
}

// inTheWay is a request in flight that the one at f, which is to go by ln, has to wait for; nil: there is none. behind: the client has
// sent it behind that one.
func (l *loop) inTheWay(t *traffic, f flight, ln *lane) (o *request, behind bool) {
	lists := [][]flight{t.keyed[f.r.slot], t.rest}
	if !f.r.keyed {
		lists = [][]flight{t.all}
	}
	for _, list := range lists {
		for _, g := range list {
			switch o, behind := g.r, g.at > f.at; {
			case g.at == f.at, o.lane == nil, !behind && o.lane == ln && !o.mayBeRefused():
			case l.clash(f.r, o):
				return o, behind
			}
		}
	}
	return nil, false
}
