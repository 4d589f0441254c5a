package coherence

import (
	"fmt"
	"math/bits"
	"strconv"

	"github.com/anishathalye/porcupine"
)

// state is what one key holds, as far as the operations of this package can tell. Keys keep their
// type; the parts of other types are zero. The zero state is an absent key.
type state struct {
	data   int    // hash: the value of the field "data"; string: the value; sorted set: the score
	fields int    // hash: how many fields there are
	set    uint64 // set: its members
	ttl    bool

	// history: the present version of the config, and its value
	version int
	present int

	// service: its instances, indexed or not, and the set of those that are
	inst [instances]instance

	// done is how much of its present pipeline each client has executed: pipelined commands
	// overlap in time, and yet one comes after the other.
	done [maxWorkers]uint8
}

const maxWorkers = 16

// instances is how many a service can have.
const instances = 4

// instance is what scripts show of one.
type instance struct {
	v    int   // a field of its metadata; 0: there is no such instance
	life uint8 // which of its lives it was given last
}

// lives are the times to live, in seconds, that instances are given: so far apart that the second
// at which one expires tells which it was.
var lives = [...]int{fixed: -1, 1: 1000, 2: 20000, 3: 400000}

const (
	fixed = 0 // for ever
	dying = 4 // for some milliseconds
)

// lifeOf is the life of which some seconds are left.
func lifeOf(left int) uint8 {
	switch {
	case left < 500:
		return dying
	case left < 10000:
		return 1
	case left < 200000:
		return 2
	}
	return 3
}

func (s state) absent() bool { return s.data == 0 && s.fields == 0 && s.set == 0 }

// gone is the state without the key.
func (s state) gone() state {
	return state{done: s.done, version: s.version, present: s.present, inst: s.inst}
}

// wiped is the state when nothing is left at all.
func (s state) wiped() state { return state{done: s.done} }

// link is the place of an operation in its client's pipeline.
type link struct {
	worker int
	place  uint8 // from 1; 0: not in a pipeline
	last   bool
}

// follow takes the step in the pipeline.
func (l link) follow(s state) (state, bool) {
	if l.place == 0 {
		return s, true
	}
	if s.done[l.worker] != l.place-1 {
		return s, false
	}
	s.done[l.worker] = l.place
	if l.last {
		s.done[l.worker] = 0
	}
	return s, true
}

// input is an operation that was begun.
type input struct {
	op   *operation
	v    int
	link link
}

// output is what it answered: a number, or the content of the key.
type output struct {
	unknown bool // nobody knows whether it happened
	n       int
	content state
}

// says reports whether the answer may have been n.
func (o output) says(n int) bool { return o.unknown || o.n == n }

// operation is a command, or several that act as one, on a key.
type operation struct {
	name string
	way  way

	// args is the command, for what is one; it can be pipelined. Other operations have do.
	args  func(key string, v int) []any
	parse func(reply any) (output, error)
	do    func(c *client, r *register, v int) (output, error)

	// step is what it does in Redis: the state after it, and whether it can have answered o.
	step func(s state, v int, o output) (state, bool)
}

// of is the operation's name on keys of a kind.
func (op *operation) of(k *kind) string { return k.name + ": " + op.name }

// way says how an operation is made.
type way uint8

const (
	plain   way = 0
	writes  way = 1 << iota
	notices     // a question whose answer may change what Redis has, in ways that no other answer shows
	partial     // a read of one key of several that make up the state
	opaque      // touches more, or others, than the one key it declares: not while its slot moves
)

var model = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(before, in, out any) (bool, any) {
		i := in.(input)
		s, ok := i.link.follow(before.(state))
		if !ok {
			return false, before
		}
		s, ok = i.op.step(s, i.v, out.(output))
		return ok, s
	},
	Equal: func(a, b any) bool { return a.(state) == b.(state) },
	Hash: func(a any) uint64 {
		s := a.(state)
		h := s.set ^ bits.RotateLeft64(uint64(s.data)*0x9e3779b97f4a7c15, 17) ^ uint64(s.fields)<<1 ^ uint64(s.present)<<20
		for _, x := range s.inst {
			h = h*31 + uint64(x.v)<<2 + uint64(x.life)
		}
		for _, d := range s.done {
			h = h*31 + uint64(d)
		}
		if s.ttl {
			h++
		}
		return h
	},
	DescribeOperation: func(in, out any) string { return describe(in.(input), out.(output)) },
	DescribeState:     func(a any) string { return a.(state).String() },
}

func (s state) String() string {
	text := "absent"
	switch {
	case s.inst != [instances]instance{}:
		text = fmt.Sprintf("instances %v, indexed %#x", s.inst, s.set)
	case s.set != 0:
		text = fmt.Sprintf("set %#x", s.set)
	case s.fields > 0:
		text = fmt.Sprintf("hash %d, %d fields", s.data, s.fields)
	case s.data != 0:
		text = fmt.Sprintf("value %d", s.data)
	}
	if s.ttl {
		text += ", ttl"
	}
	if s.version > 0 {
		text += fmt.Sprintf(", version %d of the config is %d", s.version, s.present)
	}
	return text
}

func describe(i input, o output) string {
	text := fmt.Sprintf("%s(%d)", i.op.name, i.v)
	if i.link.place > 0 {
		text += fmt.Sprintf(" pipelined %d of client %d", i.link.place, i.link.worker)
	}
	switch {
	case o.unknown:
		return text + " → ?"
	case !o.content.absent() || o.content.inst != [instances]instance{}:
		return text + " → " + o.content.String()
	}
	return fmt.Sprintf("%s → %d", text, o.n)
}

// ---- what Redis does, by type

func stepHSet(s state, v int, o output) (state, bool) {
	ok := o.says(b2i(s.fields == 0))
	s.data, s.fields = v, max(s.fields, 1)
	return s, ok
}

// stepHPut makes v the whole content.
func stepHPut(s state, v int, _ output) (state, bool) {
	s = s.gone()
	s.data, s.fields = v, 1
	return s, true
}

// coskyFields is how many fields a config has that config_set has written.
const coskyFields = 5

// stepConfigSet: a hash that config_set has written is moved away with its time to live,
// any other is written over.
func stepConfigSet(s state, v int, o output) (state, bool) {
	if s.fields == coskyFields {
		s = s.gone()
	}
	s.data, s.fields = v, coskyFields
	return s, o.says(1)
}

// stepConfigRemove: what is not indexed, or has no version, stays.
func stepConfigRemove(s state, _ int, o output) (state, bool) {
	if !o.unknown && o.n == 0 {
		return s, true
	}
	return s.gone(), o.unknown || s.fields == coskyFields
}

// historyFields is how many fields an archived config has.
const historyFields = coskyFields + 2

// stepArchive: the second version of a config moves the first into the history.
func stepArchive(s state, v int, o output) (state, bool) {
	if s.version == 1 {
		s = s.gone()
		s.data, s.fields = s.present, historyFields
	}
	s.version, s.present = s.version+1, v
	return s, o.says(1)
}

// stepForget deletes the config, its first version in the history, and what counts its versions.
func stepForget(s state, _ int, o output) (state, bool) {
	n := b2i(s.fields > 0) + b2i(s.version > 0) + b2i(s.version > 1)
	return s.wiped(), o.says(n)
}

func stepDel(s state, _ int, o output) (state, bool) {
	return s.gone(), o.says(b2i(!s.absent()))
}

// stepGone is what happens to a key without an answer: FLUSHDB, the loss of a server's memory.
func stepGone(s state, _ int, _ output) (state, bool) { return s.wiped(), true }

func stepExpire(s state, _ int, o output) (state, bool) {
	ok := o.says(b2i(!s.absent()))
	s.ttl = !s.absent()
	return s, ok
}

// stepExpired is the moment at which a time to live, if the key has one, is over.
func stepExpired(s state, _ int, _ output) (state, bool) {
	if s.ttl {
		s = s.gone()
	}
	return s, true
}

func stepLives(s state, _ int, o output) (state, bool) {
	switch {
	case s.absent():
		return s, o.n == -2
	case s.ttl:
		return s, o.n >= 0
	}
	return s, o.n == -1
}

// stepContent is the read of everything.
func stepContent(s state, _ int, o output) (state, bool) {
	return s, o.content.data == s.data && o.content.fields == s.fields && o.content.set == s.set
}

func stepData(s state, _ int, o output) (state, bool)    { return s, o.n == s.data }
func stepFields(s state, _ int, o output) (state, bool)  { return s, o.n == s.fields }
func stepPresent(s state, _ int, o output) (state, bool) { return s, o.n == b2i(!s.absent()) }
func stepSize(s state, _ int, o output) (state, bool)    { return s, o.n == bits.OnesCount64(s.set) }

func stepHas(s state, v int, o output) (state, bool) { return s, o.n == b2i(s.set&bit(v) != 0) }

func stepAdd(s state, v int, o output) (state, bool) {
	ok := o.says(b2i(s.set&bit(v) == 0))
	s.set |= bit(v)
	return s, ok
}

func stepRemove(s state, v int, o output) (state, bool) {
	ok := o.says(b2i(s.set&bit(v) != 0))
	if s.set &^= bit(v); s.set == 0 {
		s.ttl = false
	}
	return s, ok
}

// stepRegister: the script answers the same whether it has added the instance or not.
func stepRegister(s state, v int, o output) (state, bool) {
	s.set |= bit(v)
	return s, o.says(1)
}

// stepDeregister: it answers whether the instance's own hash was there.
func stepDeregister(s state, v int, o output) (state, bool) {
	s, _ = stepRemove(s, v, output{unknown: true})
	return s, true
}

// ---- services. An instance that is gone can be in the index until a script notices: whether it is
// cannot be seen by scripts, and is left out of the state.

// stepIndex: of the members that the index shows, those count whose instances are there.
func stepIndex(s state, _ int, o output) (state, bool) {
	var there uint64
	for i, x := range s.inst {
		if x.v != 0 {
			there |= bit(i)
		}
	}
	return s, o.content.set&there == s.set
}

func stepValue(s state, v int, o output) (state, bool) { return s, o.n == s.inst[v%instances].v }

// stepUnseen is a look at just that.
func stepUnseen(s state, _ int, _ output) (state, bool) { return s, true }

func stepRegisterLife(s state, v int, o output) (state, bool) {
	s.inst[v%instances] = instance{v, lifeFor(v)}
	s.set |= bit(v % instances)
	return s, o.says(1)
}

// lifeFor is the life that a registration or a renewal gives.
func lifeFor(v int) uint8 { return uint8(v / instances % len(lives)) }

func stepRenew(s state, v int, o output) (state, bool) {
	x := &s.inst[v%instances]
	switch {
	case x.v == 0:
		return s, o.says(-2)
	case x.life == fixed:
		return s, o.says(-1)
	case x.life == dying:
		return s, o.says(0)
	}
	x.life = max(lifeFor(v), 1)
	return s, o.says(1)
}

// stepChange changes an instance that there is.
func stepChange(s state, v int, o output) (state, bool) {
	x := &s.inst[v%instances]
	if x.v == 0 {
		return s, o.says(0)
	}
	x.v = v
	return s, o.says(1)
}

func stepQuit(s state, v int, o output) (state, bool) {
	if s.set&bit(v%instances) == 0 {
		return s, o.says(0)
	}
	s, _ = stepLose(s, v, output{unknown: true})
	return s, o.says(1)
}

// stepLose deletes an instance's own key.
func stepLose(s state, v int, o output) (state, bool) {
	ok := o.says(b2i(s.inst[v%instances].v != 0))
	s.inst[v%instances] = instance{}
	s.set &^= bit(v % instances)
	return s, ok
}

// stepList puts an instance into the index.
func stepList(s state, v int, _ output) (state, bool) {
	if s.inst[v%instances].v != 0 {
		s.set |= bit(v % instances)
	}
	return s, true
}

func stepUnlist(s state, v int, _ output) (state, bool) {
	s.set &^= bit(v % instances)
	return s, true
}

func stepUnlistAll(s state, _ int, _ output) (state, bool) {
	s.set = 0
	return s, true
}

func stepLastMoments(s state, v int, o output) (state, bool) {
	x := &s.inst[v%instances]
	if x.v == 0 {
		return s, o.says(0)
	}
	x.life = dying
	return s, o.says(1)
}

func stepLastMoment(s state, v int, _ output) (state, bool) {
	if s.inst[v%instances].life == dying {
		s, _ = stepLose(s, v, output{unknown: true})
	}
	return s, true
}

func stepInstanceLives(s state, v int, o output) (state, bool) {
	switch x := s.inst[v%instances]; {
	case x.v == 0:
		return s, o.n == -2
	case x.life == fixed:
		return s, o.n == -1
	case x.life == dying:
		return s, o.n == dying
	default:
		return s, o.n == lived-int(x.life)
	}
}

// shown is what scripts show of the instances in the index.
func (s state) shown() (inst [instances]instance) {
	for i, x := range s.inst {
		if s.set&bit(i) != 0 {
			if x.life == dying {
				x.life = fixed // nothing says until when
			}
			inst[i] = x
		}
	}
	return inst
}

func stepInstances(s state, _ int, o output) (state, bool) {
	return s, o.content.inst == s.shown()
}

func stepInstance(s state, v int, o output) (state, bool) {
	return s, o.content.inst[v%instances] == s.shown()[v%instances]
}

// stepInstanceLife: the answer is a life, or -1 for none.
func stepInstanceLife(s state, v int, o output) (state, bool) {
	if s.set&bit(v%instances) == 0 {
		return s, o.n == -1
	}
	return s, o.n == int(s.inst[v%instances].life)
}

func stepSPut(s state, v int, _ output) (state, bool) {
	s = s.gone()
	s.set = bit(v)
	return s, true
}

func stepSet(s state, v int, _ output) (state, bool) {
	s = s.gone()
	s.data = v
	return s, true
}

func stepDigits(s state, _ int, o output) (state, bool) {
	if s.absent() {
		return s, o.n == 0
	}
	return s, o.n == len(strconv.Itoa(s.data))
}

func stepZAdd(s state, v int, o output) (state, bool) {
	ok := o.says(b2i(s.absent()))
	s.data = v
	return s, ok
}

func bit(v int) uint64 { return 1 << (v % 64) }

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
