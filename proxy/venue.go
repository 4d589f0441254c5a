package proxy

import (
	"bytes"

	"cosky-proxy/cluster/slot"
)

// venue is where an ordinary message is published, and where it is listened to first.
//
// A cluster brings it to every node, but only those of one node are in one order. So
// all go through the same node, and a client finds the order of a single Redis. Names with a
// hash tag are the exception: scripts publish on the node of their keys' slot, and
// what they say on a channel with the tag of those keys (as CoSky's do) is best heard there.
// A node that is in trouble is passed over: any other will do as well. It is the one of the least ID, which stays the same
// when slots move: where messages meet that were published at two nodes, later ones may come first.
func (l *loop) venue(kind subKind, name []byte) target {
	switch {
	case !l.clusters:
		return target{}
	case kind == kindShard:
		return l.target(name)
	case tagged(kind, name):
		if n, cause := l.owner(slot.Of(name)); cause == "" && n.well() {
			return target{slot: slot.Of(name)}
		}
	}
	first := -1
	for i, n := range l.shards {
		if n.well() && (first < 0 || n.info.ID < l.shards[first].info.ID) {
			first = i
		}
	}
	if first < 0 {
		return l.anyShard()
	}
	return target{slot: l.topo.Shards[first].Ranges[0].First}
}

// well reports whether nothing is known to be wrong with n.
func (n *node) well() bool { return n.breaker.retryAt == 0 && (n.info == nil || !n.info.Blocked) }

// hosts reports whether n is the venue of id.
func (l *loop) hosts(n *node, id topicID) bool {
	v, cause := l.owner(l.venue(id.kind, []byte(id.name)).slot)
	return cause == "" && v == n
}

// tagged reports whether everything that name stands for has one and the same hash tag.
func tagged(kind subKind, name []byte) bool {
	tag := slot.Tag(name)
	if len(tag) == len(name) {
		return false
	}
	return kind != kindPattern || !bytes.ContainsAny(tag, globSpecial) && !bytes.ContainsAny(name[:bytes.IndexByte(name, '{')], globSpecial)
}

// globSpecial are the bytes with which a pattern says more than itself.
const globSpecial = `*?[\`

// Channels on which a master announces what happens to its keys, and which no
// other node sees (notify.c: notifyKeyspaceEvent).
const (
	keyspacePrefix = "__keyspace@"
	keyeventPrefix = "__keyevent@"
)

func keyEvent(channel []byte) bool {
	return bytes.HasPrefix(channel, []byte(keyspacePrefix)) || bytes.HasPrefix(channel, []byte(keyeventPrefix))
}

// hearsKeys reports whether events of keys may be among the messages.
func (id topicID) hearsKeys() bool {
	switch id.kind {
	case kindChannel:
		return keyEvent([]byte(id.name))
	case kindPattern:
		return globCanStart(id.name, keyspacePrefix) || globCanStart(id.name, keyeventPrefix)
	}
	return false
}
