package proxy

import (
	"bytes"
	"sync"
	"sync/atomic"

	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// roster makes PUBLISH and PUBSUB count clients, although the backend sees one
// subscriber per loop: from its figures the proxy's own subscriptions are taken away
// and the clients of all loops are added.
//
// A subscription counts as the proxy's own from before the backend can know of it until
// it certainly does not any more. So while one begins or ends, a figure may leave out a
// subscriber that is connected past the proxy; it never counts a client twice.
//
// All loops share it. Subscribing, PUBLISH and PUBSUB use it; messages and plain
// commands do not.
type roster struct {
	// atomic
	size atomic.Int64 // entries of both; 0: the backend's figures are right as they are

	// guarded by mu
	mu      sync.Mutex
	clients headcount
	own     map[string]*headcount // by node address
}

// headcount is the number of subscribers of every topic that has any.
type headcount [subKinds]map[string]int

func (h *headcount) add(id topicID) {
	if h[id.kind] == nil {
		h[id.kind] = make(map[string]int)
	}
	h[id.kind][id.name]++
}

func (h *headcount) remove(id topicID) {
	m := h[id.kind]
	if m[id.name]--; m[id.name] == 0 {
		delete(m, id.name)
	}
}

// receivers is how many subscriptions a message on a channel reaches.
func (h *headcount) receivers(on topicID) int64 {
	n := h[on.kind][on.name]
	if on.kind == kindShard {
		return int64(n)
	}
	for pattern, subscribers := range h[kindPattern] {
		if globMatch(pattern, on.name) {
			n += subscribers
		}
	}
	return int64(n)
}

func newRoster() *roster { return &roster{own: make(map[string]*headcount)} }

// join counts a client that has subscribed.
func (ro *roster) join(id topicID) {
	ro.mu.Lock()
	defer ro.mu.Unlock()
	ro.clients.add(id)
	ro.size.Add(1)
}

// leave undoes a join.
func (ro *roster) leave(id topicID) {
	ro.mu.Lock()
	defer ro.mu.Unlock()
	ro.clients.remove(id)
	ro.size.Add(-1)
}

// attach counts a subscription of the proxy's own at a node.
func (ro *roster) attach(addr string, id topicID) {
	ro.mu.Lock()
	defer ro.mu.Unlock()
	h := ro.own[addr]
	if h == nil {
		h = new(headcount)
		ro.own[addr] = h
	}
	h.add(id)
	ro.size.Add(1)
}

// detach undoes an attach.
func (ro *roster) detach(addr string, id topicID) {
	ro.mu.Lock()
	defer ro.mu.Unlock()
	h := ro.own[addr]
	h.remove(id)
	if len(h[kindChannel])+len(h[kindPattern])+len(h[kindShard]) == 0 {
		delete(ro.own, addr)
	}
	ro.size.Add(-1)
}

// ownLocked calls f with the own subscriptions at addr, or at every node when it is empty.
func (ro *roster) ownLocked(addr string, f func(*headcount)) {
	if addr != "" {
		if h := ro.own[addr]; h != nil {
			f(h)
		}
		return
	}
	for _, h := range ro.own {
		f(h)
	}
}

// receivers is how many of the proxy's own subscriptions at addr a message reaches.
func (ro *roster) receivers(addr string, on topicID) (n int64) {
	ro.mu.Lock()
	defer ro.mu.Unlock()
	ro.ownLocked(addr, func(h *headcount) { n += h.receivers(on) })
	return n
}

// published corrects the answer to a (S)PUBLISH that the node at addr has executed.
// before is what receivers said when it was sent: a subscription that has ended since may
// be among those that the node has counted.
func (ro *roster) published(addr string, on topicID, before int64, reply []byte) []byte {
	if reply[0] != ':' {
		return reply
	}
	_, n, _ := resp.ReadHeader(reply)
	ro.mu.Lock()
	defer ro.mu.Unlock()
	var own int64
	ro.ownLocked(addr, func(h *headcount) { own += h.receivers(on) })
	return resp.AppendInt(nil, max(n-max(own, before), 0)+ro.clients.receivers(on))
}

// inspected makes one answer of those that nodes have given to a PUBSUB command: of
// the one at addr, or of all masters when it is empty.
func (ro *roster) inspected(cmd *command.Command, args [][]byte, addr string, replies [][]byte) []byte {
	for _, r := range replies {
		if r[0] != ':' && r[0] != '*' {
			return r
		}
	}
	ro.mu.Lock()
	defer ro.mu.Unlock()
	switch cmd.Name {
	case "pubsub|numpat":
		return resp.AppendInt(nil, ro.patternsLocked(addr, replies))
	case "pubsub|numsub":
		return ro.subscribersLocked(kindChannel, args[2:], addr, replies)
	case "pubsub|shardnumsub":
		return ro.subscribersLocked(kindShard, args[2:], addr, replies)
	case "pubsub|shardchannels":
		return ro.channelsLocked(kindShard, args[2:], addr, replies)
	default:
		return ro.channelsLocked(kindChannel, args[2:], addr, replies)
	}
}

func (ro *roster) patternsLocked(addr string, replies [][]byte) (n int64) {
	for _, r := range replies {
		_, v, _ := resp.ReadHeader(r)
		n += v
	}
	ro.ownLocked(addr, func(h *headcount) { n -= int64(len(h[kindPattern])) })
	return max(n, 0) + int64(len(ro.clients[kindPattern]))
}

// subscribersLocked merges answers of the form name, number, name, number …
func (ro *roster) subscribersLocked(kind subKind, names [][]byte, addr string, replies [][]byte) []byte {
	counts := make([]int64, len(names))
	for _, r := range replies {
		_, _, size := resp.ReadHeader(r)
		for i := range counts {
			_, n := resp.ReadBulk(r[size:])
			_, v, m := resp.ReadHeader(r[size+n:])
			size += n + m
			counts[i] += v
		}
	}
	out := resp.AppendArray(nil, 2*len(names))
	for i, name := range names {
		n := counts[i]
		ro.ownLocked(addr, func(h *headcount) { n -= int64(h[kind][string(name)]) })
		out = resp.AppendInt(resp.AppendBulk(out, name), max(n, 0)+int64(ro.clients[kind][string(name)]))
	}
	return out
}

// channelsLocked merges lists of channels. One that only the proxy listens to is
// listed if a client does.
func (ro *roster) channelsLocked(kind subKind, pattern [][]byte, addr string, replies [][]byte) []byte {
	var names [][]byte
	seen := make(map[string]bool)
	for name := range ro.clients[kind] {
		if len(pattern) == 0 || globMatch(string(pattern[0]), name) {
			names = append(names, []byte(name))
		}
		seen[name] = true
	}
	ro.ownLocked(addr, func(h *headcount) {
		for name := range h[kind] {
			seen[name] = true
		}
	})
	for _, r := range replies {
		_, n, size := resp.ReadHeader(r)
		for range n {
			name, m := resp.ReadBulk(r[size:])
			size += m
			if !seen[string(name)] {
				seen[string(name)] = true
				names = append(names, bytes.Clone(name))
			}
		}
	}
	out := resp.AppendArray(nil, len(names))
	for _, name := range names {
		out = resp.AppendBulk(out, name)
	}
	return out
}
