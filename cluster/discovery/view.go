package discovery

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/slot"
)

// member is one line of CLUSTER NODES: what one node believes of another, or of
// itself.
type member struct {
	id, addr  string
	masterID  string // of a replica
	version   string // redis_version, of those that answered us
	epoch     uint64 // config epoch; a replica's line shows its primary's
	self      bool   // the node speaks of itself
	primary   bool
	failed    bool // the cluster agreed on its failure
	migrating bool // a slot is on its way in or out
	ranges    []slot.Range
}

// view is what one node believes of its cluster.
type view struct {
	members []member
	stateOK bool // cluster_state:ok
	about   about
}

// self is the node that spoke.
func (v view) self() member {
	for _, m := range v.members {
		if m.self {
			return m
		}
	}
	return member{}
}

// ownsSlots reports whether anybody in it does. A node that belongs to no cluster knows nobody who does.
func (v view) ownsSlots() bool {
	return slices.ContainsFunc(v.members, func(m member) bool { return len(m.ranges) > 0 })
}

// parseNodes reads a CLUSTER NODES reply. host is the one the node was reached
// at: it stands in for an address that the node does not know of itself. Nodes
// without an address or still shaking hands are left out. The lines are
//
//	id ip:port@bus[,hostname...] flags primary-id ping pong epoch link-state [slot ...]
//
// where a slot is "7", "0-5460", or a migration marker "[7->-id]", "[7-<-id]"
// (Redis documentation of CLUSTER NODES).
func parseNodes(reply, host string) ([]member, error) {
	var members []member
	for line := range strings.Lines(reply) {
		f := strings.Fields(line)
		if len(f) < 8 {
			return nil, fmt.Errorf("cannot parse CLUSTER NODES line %.200q", line)
		}
		flags := strings.Split(f[2], ",")
		has := func(flag string) bool { return slices.Contains(flags, flag) }
		m := member{id: f[0], masterID: f[3], self: has("myself"), primary: has("master"), failed: has("fail")}
		var err error
		if m.epoch, err = strconv.ParseUint(f[6], 10, 64); err != nil {
			return nil, fmt.Errorf("cannot parse config epoch of CLUSTER NODES line %.200q", line)
		}
		if has("noaddr") || has("handshake") {
			continue
		}
		if m.addr = nodeAddr(f[1], host, m.self); m.addr == "" {
			continue
		}
		for _, s := range f[8:] {
			if strings.HasPrefix(s, "[") {
				m.migrating = true
				continue
			}
			r, err := slot.ParseRange(s)
			if err != nil {
				return nil, fmt.Errorf("cannot parse CLUSTER NODES line %.200q: %w", line, err)
			}
			m.ranges = append(m.ranges, r)
		}
		m.ranges = slot.Normalize(m.ranges)
		members = append(members, m)
	}
	if (view{members: members}).self().id == "" {
		return nil, errors.New("cannot find the node itself in its CLUSTER NODES reply")
	}
	return members, nil
}

// nodeAddr reads "ip:port@bus,hostname"; IPv6 addresses have no brackets there.
func nodeAddr(s, host string, self bool) string {
	s, _, _ = strings.Cut(s, ",")
	s, _, _ = strings.Cut(s, "@")
	colon := strings.LastIndexByte(s, ':')
	if colon < 0 || s[colon+1:] == "0" {
		return ""
	}
	ip := s[:colon]
	if ip == "" && self {
		ip = host
	}
	if ip == "" {
		return ""
	}
	return net.JoinHostPort(ip, s[colon+1:])
}

// shardEndpoints reads from a CLUSTER SHARDS reply, by node ID, the addresses that the cluster
// wants its clients to use (cluster-preferred-endpoint-type). A node has two ports where TLS and
// plain clients are both served.
func shardEndpoints(reply any, host string, encrypted bool) map[string]string {
	addrs := make(map[string]string)
	shards, _ := reply.([]any)
	for _, shard := range shards {
		nodes, _ := fieldsOf(shard)["nodes"].([]any)
		for _, node := range nodes {
			f := fieldsOf(node)
			id, _ := f["id"].(string)
			endpoint, _ := f["endpoint"].(string)
			port, _ := f["port"].(int64)
			if secure, _ := f["tls-port"].(int64); secure > 0 && (encrypted || port == 0) {
				port = secure
			}
			note(addrs, id, endpoint, host, port)
		}
	}
	return addrs
}

// note adds a node's address. An endpoint that is null or empty means the host that was asked; "?" is
// that of a node which has no hostname although the cluster prefers hostnames, and leaves the IP address in
// force that CLUSTER NODES tells (Redis documentation of CLUSTER SLOTS).
func note(addrs map[string]string, id, endpoint, host string, port int64) {
	if endpoint == "" {
		endpoint = host
	}
	if id != "" && port > 0 && endpoint != "?" {
		addrs[id] = net.JoinHostPort(endpoint, strconv.FormatInt(port, 10))
	}
}

// fieldsOf reads a map reply, which RESP2 sends as a flat array.
func fieldsOf(val any) map[string]any {
	m := make(map[string]any)
	switch val := val.(type) {
	case map[any]any:
		for k, v := range val {
			m[fmt.Sprint(k)] = v
		}
	case []any:
		for i := 0; i+1 < len(val); i += 2 {
			m[fmt.Sprint(val[i])] = val[i+1]
		}
	}
	return m
}

// slotEndpoints reads the same from a CLUSTER SLOTS reply, whose ports are those for a client like
// the one that asks.
func slotEndpoints(reply any, host string) map[string]string {
	addrs := make(map[string]string)
	slots, _ := reply.([]any)
	for _, entry := range slots {
		fields, _ := entry.([]any)
		for _, field := range fields[min(2, len(fields)):] {
			node, _ := field.([]any)
			if len(node) < 3 {
				continue
			}
			ip, _ := node[0].(string)
			port, _ := node[1].(int64)
			id, _ := node[2].(string)
			note(addrs, id, ip, host, port)
		}
	}
	return addrs
}

// merge settles what several nodes say: of each member the record with the
// highest config epoch counts, and between equals the member's own word, then
// that of the others, then what was known before. before only speaks of members
// that somebody still knows, so forgotten nodes disappear. failed is kept only
// for those that did not answer.
func merge(views []view, before []member) []member {
	const (
		memory = iota
		hearsay
		own
	)
	type record struct {
		member
		rank int
	}
	best := make(map[string]record)
	note := func(m member, rank int) {
		b, known := best[m.id]
		if rank == memory && !known {
			return
		}
		failed := known && b.failed || m.failed && rank == hearsay
		if !known || cmp.Or(cmp.Compare(m.epoch, b.epoch), cmp.Compare(rank, b.rank)) > 0 {
			m.version = cmp.Or(m.version, b.version)
			b = record{m, rank}
		} else {
			b.version = cmp.Or(b.version, m.version)
		}
		b.failed = failed
		best[m.id] = b
	}
	answered := make(map[string]bool)
	for _, v := range views {
		for _, m := range v.members {
			rank := hearsay
			if m.self {
				rank = own
				answered[m.id] = true
				m.version = v.about.version
			}
			note(m, rank)
		}
	}
	for _, m := range before {
		note(m, memory)
	}
	members := make([]member, 0, len(best))
	for id, r := range best {
		r.failed = r.failed && !answered[id]
		r.self = false
		members = append(members, r.member)
	}
	slices.SortFunc(members, func(a, b member) int { return cmp.Compare(a.id, b.id) })
	return members
}

// shardsOf gives every slot to the claim with the highest epoch and returns the
// primaries that own some, ascending by slot, with their replicas. Nodes carry
// no leases yet.
func shardsOf(members []member) []cluster.Shard {
	claims := slices.Clone(members)
	slices.SortStableFunc(claims, func(a, b member) int { return cmp.Compare(a.epoch, b.epoch) })
	var owner [cluster.Slots]string
	for _, m := range claims {
		for _, r := range m.ranges {
			for s := int(r.First); m.primary && s <= int(r.Last); s++ {
				owner[s] = m.id
			}
		}
	}
	owned := make(map[string][]slot.Range)
	for s, id := range owner {
		if id != "" {
			owned[id] = append(owned[id], slot.Range{First: uint16(s), Last: uint16(s)})
		}
	}
	replicas := make(map[string][]*cluster.Node)
	primaries := make(map[string]*cluster.Node)
	moving := make(map[string]bool)
	for _, m := range members {
		moving[m.id] = m.migrating
		n := &cluster.Node{ID: m.id, Addr: m.addr, Version: m.version, Blocked: m.failed}
		if m.primary {
			primaries[m.id] = n
		} else {
			replicas[m.masterID] = append(replicas[m.masterID], n)
		}
	}
	var shards []cluster.Shard
	for id := range maps.Keys(owned) {
		shards = append(shards, cluster.Shard{
			Primary: primaries[id], Replicas: replicas[id], Ranges: slot.Normalize(owned[id]), Moving: moving[id],
		})
	}
	slices.SortFunc(shards, func(a, b cluster.Shard) int {
		return cmp.Compare(a.Ranges[0].First, b.Ranges[0].First)
	})
	return shards
}

// sparesOf returns the addresses of the primaries that claim no slot, ascending. One that still claims slots
// which others have taken over is about to become their replica, and what it holds is theirs.
func sparesOf(members []member) (addrs []string) {
	for _, m := range members {
		if m.primary && !m.failed && len(m.ranges) == 0 {
			addrs = append(addrs, m.addr)
		}
	}
	slices.Sort(addrs)
	return addrs
}
