package coherence

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/lua"
)

func sha1Of(text string) string {
	sum := sha1.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

// register is one key and its history.
type register struct {
	// static
	kind *kind
	id   string
	key  string

	// guarded by the hunt's mu
	records []record
	doubts  int // operations whose outcome nobody knows: each doubles what the judge has to try
	users   int // operations under way
	current bool
}

// record is one operation of a history. Moments are numbers of events, not times.
type record struct {
	in      input
	out     output
	began   int64
	ended   int64 // math.MaxInt64: it may still happen
	dropped bool  // it told nothing, and changed nothing
	client  int
}

// span is an operation on every key: the records that it has in histories.
type span struct {
	op    *operation
	began int64
	in    map[*register]int
}

// hunt is one run of clients against one proxy.
type hunt struct {
	// static
	t     *testing.T
	front string
	slots int

	// atomic
	clock    atomic.Int64
	values   atomic.Int64
	stopped  atomic.Bool
	cautious atomic.Bool // no operation that is opaque, no FLUSHDB

	gate sync.RWMutex // read-locked by each write

	// guarded by mu
	mu       sync.Mutex
	slot     []*register
	unjudged []*register // oldest first
	spans    map[*span]bool
	keys     int // registers so far
	writes   int
	answered map[string]int // by operation
	failed   map[string]int
	marks    []mark

	faults map[string]int // victims; of the goroutine that makes them

	workers sync.WaitGroup
}

// mark is a moment in the clock of a hunt, for whoever has to explain a lie.
type mark struct {
	at   int64
	what string
}

// mark notes what begins now.
func (h *hunt) mark(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.marks = append(h.marks, mark{h.clock.Load(), what})
}

// Histories are kept short, because judging takes more than linear time.
const (
	maxRecords = 400
	maxDoubts  = 3
)

func newHunt(t *testing.T, front string) *hunt {
	h := &hunt{t: t, front: front, slots: len(kinds), spans: map[*span]bool{},
		answered: map[string]int{}, failed: map[string]int{}, faults: map[string]int{}}
	h.slot = make([]*register, h.slots)
	return h
}

func (h *hunt) dial(protocol int) *client {
	c := redis.NewClient(&redis.Options{
		Addr: h.front, Protocol: protocol, MaxRetries: -1, PoolSize: 1, DisableIdentity: true,
		DialTimeout: clustertest.Deadline, ReadTimeout: clustertest.Deadline, WriteTimeout: clustertest.Deadline,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	h.t.Cleanup(func() { c.Close() })
	return &client{c, context.Background()}
}

// acquire gives the register in a slot to an operation, until release.
func (h *hunt) acquire(slot int) *register {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.slot[slot]
	if r == nil || len(r.records) >= maxRecords || r.doubts > maxDoubts {
		r = h.renew(slot, r)
	}
	r.users++
	return r
}

// renew puts a new key in place of old.
func (h *hunt) renew(slot int, old *register) *register {
	if old != nil {
		old.current = false
	}
	h.keys++
	kind := kinds[slot%len(kinds)]
	r := &register{kind: kind, id: fmt.Sprintf("r%d", h.keys), current: true}
	r.key = fmt.Sprintf(kind.key, r.id)
	h.slot[slot] = r
	h.unjudged = append(h.unjudged, r)
	for s := range h.spans {
		s.in[r] = r.begin(record{in: input{op: s.op}, began: s.began})
	}
	return r
}

func (h *hunt) release(r *register) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.users--
}

// begin appends what may happen for ever, unless it is ended.
func (r *register) begin(x record) int {
	x.ended, x.out.unknown = math.MaxInt64, true
	r.records = append(r.records, x)
	return len(r.records) - 1
}

func (h *hunt) begin(r *register, client int, in input) (i int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return r.begin(record{in: in, client: client, began: h.clock.Add(1)})
}

// end takes the answer of an operation.
func (h *hunt) end(r *register, i int, o output, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x := &r.records[i]
	write := x.in.op.way&writes != 0
	switch {
	case err == nil || errors.Is(err, redis.Nil):
		x.out, x.ended = o, h.clock.Add(1)
		h.answered[x.in.op.of(r.kind)]++
		if write {
			h.writes++
		}
		return
	case !write || undone(err):
		x.dropped = true
	default:
		r.doubts++
	}
	text := err.Error()
	if i := strings.IndexByte(text, ':'); i > 0 {
		text = text[:i]
	}
	h.failed[text]++
}

// every begins an operation on all keys; done ends it.
func (h *hunt) every(op *operation) (done func(err error)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &span{op: op, began: h.clock.Add(1), in: map[*register]int{}}
	h.spans[s] = true
	for _, r := range h.unjudged {
		if r.current || r.users > 0 {
			s.in[r] = r.begin(record{in: input{op: op}, began: s.began})
		}
	}
	return func(err error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.spans, s)
		now := h.clock.Add(1)
		if err == nil {
			h.answered[s.op.name]++
		}
		for r, i := range s.in {
			if err != nil {
				r.doubts++
				continue
			}
			r.records[i].ended, r.records[i].out.unknown = now, false
		}
	}
}

// start lets n clients work until stop.
func (h *hunt) start(n int) {
	c := h.dial(3)
	if err := c.Do(c.ctx, "FUNCTION", "LOAD", "REPLACE", putFunction).Err(); err != nil {
		h.t.Fatalf("cannot load a function: %v", err)
	}
	for _, script := range lua.All() {
		if err := c.ScriptLoad(c.ctx, script.Text).Err(); err != nil {
			h.t.Fatalf("cannot load %s: %v", script.Name, err)
		}
	}
	for i := range n {
		h.workers.Go(func() { h.work(i, rand.New(rand.NewPCG(uint64(i), 7))) })
	}
}

func (h *hunt) stop() {
	h.stopped.Store(true)
	h.workers.Wait()
}

func (h *hunt) work(id int, rng *rand.Rand) {
	c := h.dial(2 + id%2)
	for !h.stopped.Load() {
		r := h.acquire(rng.IntN(h.slots))
		switch p := rng.IntN(100); {
		case p < 70:
			h.read(c, r, id, pick(rng, r.kind.reads), rng.IntN(1<<20))
		case p < 77:
			h.do(c, r, id, pick(rng, r.kind.other), rng.IntN(1<<20))
		case p < 86:
			h.pipeline(c, r, id, rng)
		case p < 88:
			h.expire(c, r, id)
		case p < 89 && rng.IntN(4) == 0:
			h.flush(c)
		default:
			h.write(c, r, id, pick(rng, r.kind.write))
		}
		h.release(r)
		if rng.IntN(4) == 0 {
			time.Sleep(time.Duration(rng.IntN(400)) * time.Microsecond) // entries live for a while
		}
	}
}

func pick[T any](rng *rand.Rand, from []T) T { return from[rng.IntN(len(from))] }

// value is one that no other operation writes.
func (h *hunt) value() int { return int(h.values.Add(1)) }

func (h *hunt) read(c *client, r *register, id int, op *operation, v int) {
	if op.way&notices == 0 {
		h.do(c, r, id, op, v)
		return
	}
	h.gate.RLock()
	defer h.gate.RUnlock()
	if !h.cautious.Load() {
		h.do(c, r, id, op, v)
	}
}

func (h *hunt) write(c *client, r *register, id int, op *operation) {
	h.gate.RLock()
	defer h.gate.RUnlock()
	if op.way&opaque == 0 || !h.cautious.Load() {
		h.do(c, r, id, op, h.value())
	}
}

func (h *hunt) do(c *client, r *register, id int, op *operation, v int) (output, error) {
	i := h.begin(r, id, input{op: op, v: v})
	o, err := func() (output, error) {
		if op.do != nil {
			return op.do(c, r, v)
		}
		reply, err := c.Do(c.ctx, op.args(r.key, v)...).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return output{}, err
		}
		return op.parse(reply)
	}()
	h.end(r, i, o, err)
	if err != nil && !errors.Is(err, redis.Nil) {
		time.Sleep(2 * time.Millisecond) // the backend may be away
	}
	return o, err
}

// pipeline sends a few commands at once: they must be executed in this order.
func (h *hunt) pipeline(c *client, r *register, id int, rng *rand.Rand) {
	h.gate.RLock()
	defer h.gate.RUnlock()
	var chain []*operation
	reads, writes := h.single(r.kind.reads), h.single(r.kind.write)
	others := false // a command before has to do with other keys, perhaps: order is promised for each key
	for range 2 + rng.IntN(3) {
		op := pick(rng, writes)
		if rng.IntN(2) == 0 && len(reads) > 0 {
			op = pick(rng, reads)
		}
		if op.way&partial != 0 && others {
			continue
		}
		others = others || op.way&notices == 0
		chain = append(chain, op)
	}
	p := c.Pipeline()
	at := make([]int, len(chain))
	cmds := make([]*redis.Cmd, len(chain))
	for i, op := range chain {
		v := h.value()
		l := link{worker: id, place: uint8(i + 1), last: i == len(chain)-1}
		at[i] = h.begin(r, id, input{op: op, v: v, link: l})
		cmds[i] = p.Do(c.ctx, op.args(r.key, v)...)
	}
	p.Exec(c.ctx)
	broken := false
	for i, op := range chain {
		reply, err := cmds[i].Result()
		o := output{}
		if err == nil || errors.Is(err, redis.Nil) {
			o, err = op.parse(reply)
		}
		broken = broken || err != nil
		h.end(r, at[i], o, err)
	}
	if broken { // the rest may have happened, or not, in an order that has gaps
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, i := range at {
			r.records[i].in.link = link{}
		}
	}
}

// single are those of ops that are one command, and safe at present.
func (h *hunt) single(ops []*operation) (few []*operation) {
	for _, op := range ops {
		if op.args != nil && (op.way&(opaque|notices) == 0 || !h.cautious.Load()) {
			few = append(few, op)
		}
	}
	return few
}

// expire gives the key a few milliseconds to live, and waits until it has lived.
func (h *hunt) expire(c *client, r *register, id int) {
	h.gate.RLock()
	defer h.gate.RUnlock()
	d, v := r.kind.dies, h.value()
	if d == nil {
		d = ofKey
	}
	over := h.begin(r, id, input{op: d.end, v: v})
	o, err := h.do(c, r, id, d.begin, v)
	for err == nil && o.n >= 0 {
		if o, err = h.do(c, r, id, d.look, v); err == nil && o.n >= 0 {
			time.Sleep(time.Millisecond)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		r.doubts++
		return
	}
	r.records[over].ended = h.clock.Add(1)
}

func (h *hunt) flush(c *client) {
	h.gate.RLock()
	defer h.gate.RUnlock()
	if h.cautious.Load() {
		return
	}
	done := h.every(flush)
	done(c.FlushDB(c.ctx).Err())
}

// look lets a client see of every key whether it is there, which no cache answers.
func (h *hunt) look() {
	c := h.dial(2)
	for slot := range h.slots {
		r := h.acquire(slot)
		ops := r.kind.look
		if ops == nil {
			ops = []*operation{exists}
		}
		for _, op := range ops {
			for v := range instances {
				clustertest.Await(h.t, "an answer about "+r.key, func() error {
					_, err := h.do(c, r, workers, op, v)
					return err
				})
			}
		}
		h.release(r)
	}
}

// holdWrites waits until no write is under way and keeps it so.
func (h *hunt) holdWrites() (release func()) {
	h.gate.Lock()
	return h.gate.Unlock
}

// judgeTime bounds what porcupine may think about one key. It needs milliseconds.
const judgeTime = time.Minute

// lie judges the histories that nobody adds to any more, all of them after stop. It returns
// what is wrong with the first that is, "" if there is none.
func (h *hunt) lie() string {
	for {
		r, history := h.next()
		if r == nil {
			return ""
		}
		result, info := porcupine.CheckOperationsVerbose(model, history, judgeTime)
		switch result {
		case porcupine.Illegal:
			return explain(r, history, info) + h.around(history)
		case porcupine.Unknown:
			return fmt.Sprintf("%s: %d operations are too much to judge", r.key, len(history))
		}
	}
}

// next is the next history to judge.
func (h *hunt) next() (*register, []porcupine.Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.unjudged) == 0 {
		return nil, nil
	}
	r := h.unjudged[0]
	if !h.stopped.Load() && (r.current || r.users > 0) {
		return nil, nil
	}
	h.unjudged = h.unjudged[1:]
	var history []porcupine.Operation
	for _, x := range r.records {
		if !x.dropped {
			history = append(history, porcupine.Operation{ClientId: x.client, Input: x.in, Output: x.out, Call: x.began, Return: x.ended})
		}
	}
	return r, history
}

// explain shows the end of the longest linearization there is, and what cannot follow.
func explain(r *register, history []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, l := range info.PartialLinearizationsOperations()[0] {
		if len(l) > len(longest) {
			longest = l
		}
	}
	in := make(map[int64]bool)
	for _, o := range longest {
		in[o.Call] = true
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s) is not linearizable. After\n", r.key, r.kind.name)
	s := any(state{})
	for i, o := range longest {
		_, s = model.Step(s, o.Input, o.Output)
		if i >= len(longest)-12 {
			fmt.Fprintf(&b, "  %s   ⇒ %s\n", show(o), s.(state))
		}
	}
	b.WriteString("none of these can come next:\n")
	slices.SortFunc(history, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	shown := 0
	for _, o := range history {
		if !in[o.Call] && shown < 12 {
			fmt.Fprintf(&b, "  %s\n", show(o))
			shown++
		}
	}
	return b.String()
}

// around tells what else happened while the history was written.
func (h *hunt) around(history []porcupine.Operation) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var b strings.Builder
	for i, m := range h.marks {
		if m.at <= history[len(history)-1].Call && (i+1 == len(h.marks) || h.marks[i+1].at >= history[0].Call) {
			fmt.Fprintf(&b, "  from %d: %s\n", m.at, m.what)
		}
	}
	return b.String()
}

func show(o porcupine.Operation) string {
	until := "…"
	if o.Return != math.MaxInt64 {
		until = fmt.Sprint(o.Return)
	}
	return fmt.Sprintf("[%d, %s] client %d: %s", o.Call, until, o.ClientId, describe(o.Input.(input), o.Output.(output)))
}
