package lua

import "cosky-proxy/nearcache/coskey"

// scratchLimit is the scratch, in bytes, that an Effect keeps between calls; what one
// call with huge ids needed beyond it is given back.
const scratchLimit = 64 << 10

// Effect is what one call may touch. Its slices are valid until the next call that
// fills it; Writes may alias the keys of the call. The zero value is ready for use, and
// reusing one spares allocations. Not for concurrent use.
//
// Only content counts: that a reply reveals a TTL is no entry in Reads.
type Effect struct {
	Writes      [][]byte // keys whose content or TTL may change, and which the reply may reveal too
	Reads       [][]byte // further keys whose current content the reply may reveal
	WriteGroups [][]byte // like Writes, for members of open sets (coskey.GroupOf)
	ReadGroups  [][]byte // like Reads, for members of open sets

	// All: the call cannot be told to leave anything alone, because it names no
	// namespace or one inside the open sets of another (coskey.HasGroup). Treat it like an
	// unknown script; the lists may be incomplete.
	All bool

	scratch []byte // holds the text of derived keys
}

// call is one invocation; ns is KEYS[1].
type call struct {
	ns   []byte
	keys [][]byte
	args [][]byte
}

// arg returns ARGV[n], counted from 1, and whether it was given.
func (c call) arg(n int) ([]byte, bool) {
	if n > len(c.args) {
		return nil, false
	}
	return c.args[n-1], true
}

// Effect sets e to what a call with these KEYS and ARGV may touch. Any number of either
// will do. A key whose id is missing is left out: no wording gets as far as using it.
func (s *Script) Effect(keys, args [][]byte, e *Effect) {
	e.reset()
	if len(keys) == 0 {
		e.All = true
		return
	}
	c := call{ns: keys[0], keys: keys, args: args}
	e.All = coskey.HasGroup(c.ns)
	s.effect(e, c)
}

func (e *Effect) reset() {
	if cap(e.scratch) > scratchLimit {
		e.scratch = nil
	}
	e.Writes, e.Reads = e.Writes[:0], e.Reads[:0]
	e.WriteGroups, e.ReadGroups = e.WriteGroups[:0], e.ReadGroups[:0]
	e.All = false
	e.scratch = e.scratch[:0]
}

// since returns what was appended to the scratch after it had the given length.
// When appending moves the scratch, earlier keys keep the old memory.
func (e *Effect) since(start int) []byte { return e.scratch[start:len(e.scratch):len(e.scratch)] }

func (e *Effect) key(class coskey.Class, ns, id []byte) []byte {
	start := len(e.scratch)
	e.scratch = coskey.AppendKey(e.scratch, class, ns, id)
	return e.since(start)
}

func (e *Effect) group(class coskey.Class, ns, id []byte) []byte {
	start := len(e.scratch)
	e.scratch = coskey.AppendGroup(e.scratch, class, ns, id)
	return e.since(start)
}

// writes adds the one key of a class in the namespace.
func (e *Effect) writes(c call, class coskey.Class) {
	e.Writes = append(e.Writes, e.key(class, c.ns, nil))
}

// writesID adds the key of a class whose id is ARGV[n].
func (e *Effect) writesID(c call, class coskey.Class, n int) {
	if id, ok := c.arg(n); ok {
		e.Writes = append(e.Writes, e.key(class, c.ns, id))
	}
}

func (e *Effect) reads(c call, class coskey.Class) {
	e.Reads = append(e.Reads, e.key(class, c.ns, nil))
}

func (e *Effect) readsID(c call, class coskey.Class, n int) {
	if id, ok := c.arg(n); ok {
		e.Reads = append(e.Reads, e.key(class, c.ns, id))
	}
}

func (e *Effect) readsGroup(c call, class coskey.Class) {
	e.ReadGroups = append(e.ReadGroups, e.group(class, c.ns, nil))
}

// configEffect: which version is archived depends on data, so all of the config's
// history counts as written; that includes the version a rollback reads.
func configEffect(e *Effect, c call) {
	e.writes(c, coskey.ConfigIndex)
	id, ok := c.arg(1)
	if !ok {
		return
	}
	e.writesID(c, coskey.Config, 1)
	e.writesID(c, coskey.ConfigHistoryIndex, 1)
	e.WriteGroups = append(e.WriteGroups, e.group(coskey.ConfigHistory, c.ns, id))
}

func registerEffect(e *Effect, c call) {
	e.writes(c, coskey.ServiceIndex)
	e.writes(c, coskey.ServiceStat)
	e.writesID(c, coskey.InstanceIndex, 2)
	e.writesID(c, coskey.Instance, 3)
}

func instanceEffect(e *Effect, c call) {
	e.writesID(c, coskey.Instance, 1)
}

func deregisterEffect(e *Effect, c call) {
	e.writesID(c, coskey.InstanceIndex, 1)
	e.writesID(c, coskey.Instance, 2)
}

func setServiceEffect(e *Effect, c call) {
	e.writes(c, coskey.ServiceIndex)
	e.writes(c, coskey.ServiceStat)
}

func removeServiceEffect(e *Effect, c call) {
	setServiceEffect(e, c)
	e.readsID(c, coskey.InstanceIndex, 1)
}

func getInstancesEffect(e *Effect, c call) {
	e.writesID(c, coskey.InstanceIndex, 1)
	e.readsGroup(c, coskey.Instance)
}

func getInstanceEffect(e *Effect, c call) {
	e.writesID(c, coskey.InstanceIndex, 1)
	e.readsID(c, coskey.Instance, 2)
}

// instanceCountEffect: which indexes it visits depends on the service index.
func instanceCountEffect(e *Effect, c call) {
	e.reads(c, coskey.ServiceIndex)
	e.WriteGroups = append(e.WriteGroups, e.group(coskey.InstanceIndex, c.ns, nil))
	e.readsGroup(c, coskey.Instance)
}

// serviceStatEffect: exactly one argument means that service, anything else all of them.
func serviceStatEffect(e *Effect, c call) {
	e.writes(c, coskey.ServiceStat)
	if len(c.args) != 1 {
		instanceCountEffect(e, c)
		return
	}
	e.writesID(c, coskey.InstanceIndex, 1)
	e.readsGroup(c, coskey.Instance)
}

func topologyAddEffect(e *Effect, c call) {
	e.writes(c, coskey.TopologyIndex)
	e.writesID(c, coskey.Topology, 1)
}

func topologyGetEffect(e *Effect, c call) {
	e.reads(c, coskey.TopologyIndex)
	e.readsGroup(c, coskey.Topology)
}

// userStateEffect: the only script that is given its real keys.
func userStateEffect(e *Effect, c call) {
	e.All = false
	e.Writes = append(e.Writes, c.keys[:min(len(c.keys), 3)]...)
}
