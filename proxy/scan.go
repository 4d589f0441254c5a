package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"cosky-proxy/proxy/resp"
	"cosky-proxy/router"
	"cosky-proxy/router/command"
)

// censuses remembers the last censuses of sweeps, for all loops. A sweep whose census is forgotten
// still is complete: another one is taken, and it goes on if nothing has changed or starts over.
type censuses struct {
	// guarded by mu
	mu       sync.Mutex
	byDigest map[uint16]*router.Census
	order    []uint16 // oldest first
}

// maxCensuses bounds them; each takes a few kilobytes per master.
const maxCensuses = 16

func (cs *censuses) add(c *router.Census) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.byDigest == nil {
		cs.byDigest = make(map[uint16]*router.Census)
	}
	if _, known := cs.byDigest[c.Digest]; !known {
		cs.order = append(cs.order, c.Digest)
	}
	cs.byDigest[c.Digest] = c
	if len(cs.order) > maxCensuses {
		delete(cs.byDigest, cs.order[0])
		cs.order = slices.Delete(cs.order, 0, 1)
	}
}

func (cs *censuses) get(digest uint16) *router.Census {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.byDigest[digest]
}

// sweep is one call of SCAN in front of a cluster: it asks one master, or a few as long as they are
// done with at once and the client wants more. What is known about completeness stands in router/sweep.go.
type sweep struct {
	parent   *request // the client's; its session is nil once the client has gone
	args     [][]byte // of the command, after the cursor
	census   *router.Census
	at       router.Cursor
	node     *node // the master asked at the moment
	want     int   // COUNT: enough for one call
	visits   int   // masters asked
	keys     []byte
	found    int
	deadline int64 // for the cluster to agree with itself (mono)
}

// defaultCount is Redis' COUNT of SCAN.
const defaultCount = 10

// maxVisits bounds how many masters one call asks.
const maxVisits = 8

// scan answers SCAN in front of a cluster. The steps of a call follow from each other, so nothing of the
// session may be under way before it nor follow it.
func (s *session) scan(cmd *command.Command, args [][]byte, _ []byte) bool {
	l := s.loop
	number, err := strconv.ParseUint(string(args[1]), 10, 64)
	switch {
	case err != nil:
		s.refuse("ERR invalid cursor")
		return true
	case l.topo.Uncovered() > 0: // what is not served cannot be found
		return s.unowned()
	case s.drain():
		return false
	}
	s.exclusive = true
	e := l.effect.reset()
	l.concernUnknown(e, cmd)
	sw := &sweep{parent: s.openParent(cmd, e), at: router.ParseCursor(number), want: countOf(args[2:])}
	sw.deadline = l.lastTry(sw.parent)
	for _, a := range args[2:] {
		sw.args = append(sw.args, bytes.Clone(a))
	}
	switch {
	case number == 0:
		sw.takeCensus(l, func(c *router.Census) { sw.goOn(l, c, 0) })
	default:
		sw.census = l.srv.censuses.get(sw.at.Digest)
		if sw.census != nil && sw.at.Step < len(sw.census.Steps) {
			sw.visit(l)
			return true
		}
		sw.takeCensus(l, func(c *router.Census) {
			if c.Digest != sw.at.Digest || sw.at.Step >= len(c.Steps) {
				sw.goOn(l, c, 0)
				return
			}
			sw.census = c
			sw.visit(l)
		})
	}
	return true
}

// countOf is the COUNT among the options of SCAN. One that makes no sense the masters will refuse.
func countOf(options [][]byte) int {
	for i := 0; i+1 < len(options); i += 2 {
		if equalFold(options[i], "COUNT") {
			n, _ := integer(options[i+1])
			return int(n)
		}
	}
	return defaultCount
}

// goOn visits the step of a census that has just been taken, or ends the sweep behind the last one.
func (sw *sweep) goOn(l *loop, c *router.Census, step int) {
	sw.census, sw.at = c, router.Cursor{Digest: c.Digest, Step: step}
	switch {
	case step == len(c.Steps):
		sw.answer(l, 0)
	case sw.visits > 0 && (sw.found >= sw.want || sw.visits >= maxVisits):
		sw.answerCursor(l)
	default:
		sw.visit(l)
	}
}

// visit asks the master of the present step.
func (sw *sweep) visit(l *loop) {
	p := sw.parent
	if p.sess == nil {
		l.finish(p, nil)
		return
	}
	master := &sw.census.Steps[sw.at.Step]
	if !l.leads(master) { // replaced, perhaps by one that knows nothing of this cursor
		sw.findMaster(l)
		return
	}
	sw.visits++
	sw.node = l.node(master.Addr)
	words := [][]byte{[]byte("SCAN"), strconv.AppendUint(nil, sw.at.Node, 10)}
	l.enc = resp.AppendCommandBytes(l.enc[:0], append(words, sw.args...))
	sw.ask(l, sw.node, l.enc, sw, false)
}

// findMaster goes on after the master of the present step has been replaced or has moved.
func (sw *sweep) findMaster(l *loop) {
	before, at := sw.census, sw.at.Step
	if l.now() >= sw.deadline {
		sw.fail(l, "ERR cosky-proxy cannot find backend "+before.Steps[at].Addr+", which was to be scanned next, any more")
		return
	}
	sw.takeCensus(l, func(c *router.Census) {
		if c.Digest == before.Digest {
			sw.census = c
			sw.visit(l)
			return
		}
		sw.goOn(l, c, before.Resume(at, false, c))
	})
}

// leads reports whether the loop's topology knows the master at that address, or knows nothing of
// it because it owns no slot.
func (l *loop) leads(m *router.Master) bool {
	for i := range l.topo.Shards {
		if p := l.topo.Shards[i].Primary; p.ID == m.ID {
			return p.Addr == m.Addr
		}
	}
	return len(m.Ranges) == 0
}

// ask sends a question of the sweep to n: its own ones, which are no matter of what the client may do, on the
// proxy's own login.
func (sw *sweep) ask(l *loop, n *node, raw []byte, to sink, own bool) {
	p := sw.parent
	r := l.newRequest(nil, nil)
	r.sink, r.limit = to, max(l.srv.opts.Clients.MaxRequest-len(sw.keys), 1)
	var ln *lane
	var cause string
	if own {
		ln, cause = n.lane(laneKey{})
	} else {
		r.takeKey(p.laneKey())
		ln, cause = p.sess.lane(n)
	}
	if cause != "" {
		l.abort(r, cause)
		return
	}
	ln.send(r, raw)
	p.seq = r.seq
}

// deliver takes a master's answer.
func (sw *sweep) deliver(l *loop, r *request, reply []byte) {
	switch overrun := r.overrun; {
	case overrun:
		reply = fmt.Appendf(nil, "-ERR the reply would exceed clients.max_request (%d bytes); ask for fewer keys at once\r\n", l.srv.opts.Clients.MaxRequest)
		fallthrough
	case reply[0] == '-':
		line := bytes.Clone(reply)
		l.release(r)
		sw.end(l, line)
		return
	}
	_, _, size := resp.ReadHeader(reply)
	number, n := resp.ReadBulk(reply[size:])
	cursor, err := strconv.ParseUint(string(number), 10, 64)
	_, found, header := resp.ReadHeader(reply[size+n:])
	if err != nil || header == 0 {
		l.release(r)
		sw.fail(l, fmt.Sprintf("ERR cosky-proxy cannot read the SCAN reply of backend %s", sw.node.addr))
		return
	}
	sw.found += int(found)
	sw.keys = append(sw.keys, reply[size+n+header:]...)
	l.release(r)
	sw.at.Node = cursor
	if cursor != 0 {
		sw.answerCursor(l)
		return
	}
	before, at := sw.census, sw.at.Step
	sw.takeCensus(l, func(c *router.Census) {
		if c.Digest == before.Digest {
			sw.goOn(l, c, at+1)
			return
		}
		sw.goOn(l, c, before.Resume(at, true, c))
	})
}

func (sw *sweep) answerCursor(l *loop) {
	number, ok := sw.at.Number()
	if !ok {
		sw.fail(l, fmt.Sprintf("ERR cosky-proxy cannot put the cursor %d of backend %s into its own", sw.at.Node, sw.node.addr))
		return
	}
	sw.answer(l, number)
}

func (sw *sweep) answer(l *loop, cursor uint64) {
	out := resp.AppendArray(make([]byte, 0, len(sw.keys)+64), 2)
	out = resp.AppendBulk(out, strconv.AppendUint(nil, cursor, 10))
	out = resp.AppendArray(out, sw.found)
	sw.end(l, append(out, sw.keys...))
}

func (sw *sweep) fail(l *loop, line string) { sw.end(l, []byte("-"+line+"\r\n")) }

func (sw *sweep) end(l *loop, reply []byte) {
	p := sw.parent
	l.countReply(p.cmd, p.sentAt, reply[0] == '-')
	if p.barrier && l.raise(p, nil, reply) {
		return
	}
	l.finish(p, reply)
}

// census is one being taken: every master is asked for its own word, which is worth more than
// what others, discovery included, believe of it.
type census struct {
	sw      *sweep
	done    func(*router.Census)
	masters []router.Master
	asked   []string // addresses, by index of the requests
	replies []string // CLUSTER NODES
	missing int
	cause   string // why it cannot be completed now
	fatal   bool   // nor later
}

// takeCensus calls done with what the masters say, unless the sweep ends because they cannot be
// asked. While they contradict each other, as in the middle of a hand-over, they are asked again.
func (sw *sweep) takeCensus(l *loop, done func(*router.Census)) {
	c := &census{sw: sw, done: done}
	addrs := make([]string, 0, len(l.topo.Shards))
	for i := range l.topo.Shards {
		addrs = append(addrs, l.topo.Shards[i].Primary.Addr)
	}
	c.ask(l, addrs)
}

func (c *census) ask(l *loop, addrs []string) {
	if c.sw.parent.sess == nil {
		l.finish(c.sw.parent, nil)
		return
	}
	c.missing += len(addrs)
	for _, addr := range addrs {
		c.asked = append(c.asked, addr)
		l.enc = resp.AppendCommand(l.enc[:0], "CLUSTER", "NODES")
		c.sw.ask(l, l.node(addr), l.enc, &censusPart{c, addr}, true)
	}
}

// censusPart takes one master's word.
type censusPart struct {
	c    *census
	addr string
}

func (part *censusPart) deliver(l *loop, r *request, reply []byte) {
	c := part.c
	switch {
	case r.overrun:
		c.cause, c.fatal = "ERR the CLUSTER NODES reply of backend "+part.addr+" exceeds clients.max_request", true
	case reply[0] == '-':
		c.cause, c.fatal = string(reply[1:len(reply)-2]), true
	default:
		text, _ := infoText(reply)
		c.hear(part.addr, text)
	}
	l.release(r)
	if c.missing--; c.missing == 0 {
		c.conclude(l)
	}
}

func (c *census) hear(addr, nodes string) {
	m, err := router.ParseMaster(nodes)
	if err != nil {
		c.cause, c.fatal = fmt.Sprintf("ERR cosky-proxy cannot use what backend %s says of itself: %v", addr, err), !errors.Is(err, router.ErrNotMaster)
		return
	}
	m.Addr = addr
	c.masters = append(c.masters, m)
	c.replies = append(c.replies, nodes)
}

// conclude makes a census of the answers, once those that slots are on their way to have been heard, too.
func (c *census) conclude(l *loop) {
	if c.fatal {
		c.sw.fail(l, c.cause)
		return
	}
	if c.cause == "" {
		if more := c.unheard(); len(more) > 0 {
			c.ask(l, more)
			return
		}
	}
	if c.cause == "" {
		if full := router.NewCensus(c.masters); full.Complete() && len(router.Missing(c.masters)) == 0 {
			l.srv.censuses.add(full)
			c.done(full)
			return
		}
		c.cause = errUnbound
	}
	c.again(l)
}

// unheard are the addresses of masters that only the markers of others speak of.
func (c *census) unheard() (addrs []string) {
	for _, id := range router.Missing(c.masters) {
		for _, nodes := range c.replies {
			if addr := router.AddrIn(nodes, id); addr != "" && !slices.Contains(c.asked, addr) {
				addrs = append(addrs, addr)
				break
			}
		}
	}
	return addrs
}

// censusPause is how long masters are left alone that contradict each other.
const censusPause = 20 * time.Millisecond

func (c *census) again(l *loop) {
	l.srv.opts.Topology.Refresh("the masters do not agree on the slots")
	if l.now() >= c.sw.deadline {
		c.sw.fail(l, c.cause)
		return
	}
	l.nl.AfterFunc(censusPause, func() { c.sw.takeCensus(l, c.done) })
}
