package proxy

import (
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/slot"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// facade is the Redis Cluster that clients are shown when cluster_facade is set: every
// proxy is a master with its share of the slots. The shares only spread cluster-aware
// clients over the proxies. Every proxy serves every slot, so a client that comes to
// the wrong one is served too, and MOVED is never said.
//
// Proxies exchange nothing about it: they show the same cluster because they are given
// the same list, in whatever order. Each looks for itself which others are gone
// (facade_watch.go) and shows their slots at the rest; views may differ for a while.
type facade struct {
	// static
	self int // index of this proxy in every view

	// atomic
	view atomic.Pointer[facadeView]

	// guarded by mu
	mu sync.Mutex // held while one view replaces another
}

// facadeView is the cluster as it is shown at one time. Immutable.
type facadeView struct {
	nodes []facadeNode // ascending by address
	self  int          // index in nodes of this proxy
	alive int          // nodes that are not failed
}

// facadeNode is one proxy as a cluster node.
type facadeNode struct {
	id     string // 40 hex digits, derived from the address: the same after a restart and at every proxy
	shard  string // likewise
	addr   string // as configured
	host   string // of addr: IP address or host name
	port   int
	failed bool
	slots  slot.Range // of a node that is not failed
}

// newFacade shows the proxies at addrs (host:port, as clients reach them); own is
// among them.
func newFacade(addrs []string, own string) (*facade, error) {
	addrs = slices.Sorted(slices.Values(addrs))
	f := &facade{self: slices.Index(addrs, own)}
	if f.self < 0 {
		return nil, fmt.Errorf("%q is not one of cluster_facade", own)
	}
	var nodes []facadeNode
	for _, addr := range addrs {
		host, digits, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, fmt.Errorf("cannot use %q of cluster_facade: %w", addr, err)
		}
		port, err := strconv.Atoi(digits)
		if err != nil {
			return nil, fmt.Errorf("cannot use the port of %q of cluster_facade: %w", addr, err)
		}
		nodes = append(nodes, facadeNode{id: digest(addr), shard: digest("shard " + addr), addr: addr, host: host, port: port})
	}
	f.view.Store(newFacadeView(nodes, f.self))
	return f, nil
}

// newFacadeView spreads the slots evenly over the nodes that are not failed. It takes
// over nodes, of which self is not failed.
func newFacadeView(nodes []facadeNode, self int) *facadeView {
	v := &facadeView{nodes: nodes, self: self}
	for i := range nodes {
		if !nodes[i].failed {
			v.alive++
		}
	}
	n := 0
	for i := range nodes {
		if nodes[i].failed {
			continue
		}
		nodes[i].slots = slot.Range{First: uint16(n * slot.Count / v.alive), Last: uint16((n+1)*slot.Count/v.alive - 1)}
		n++
	}
	return v
}

// judge notes whether a node is failed; changed is false when that was known. Any goroutine.
func (f *facade) judge(i int, failed bool) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.view.Load()
	if v.nodes[i].failed == failed {
		return false
	}
	nodes := slices.Clone(v.nodes)
	nodes[i].failed = failed
	f.view.Store(newFacadeView(nodes, f.self))
	return true
}

// digest has the form of a cluster node's ID.
func digest(text string) string {
	sum := sha1.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

// ErrPlaceless is the error of Listen when the list of proxies does not tell which one this is: a mistake of
// the configuration that shows only when the ports are known.
var ErrPlaceless = errors.New("cannot tell which address of cluster_facade is this proxy")

// ownAddress finds the one of addrs at which clients reach a proxy that listens on
// bound. The surest sign wins: the very address, then an address of this machine with
// a port of ours, then the only address with such a port, as behind a translating network.
func ownAddress(addrs, bound []string, ofThisMachine func(host string) bool) (string, error) {
	ports := make(map[string]bool)
	for _, b := range bound {
		if slices.Contains(addrs, b) {
			return b, nil
		}
		if _, port, err := net.SplitHostPort(b); err == nil {
			ports[port] = true
		}
	}
	var local, samePort []string
	for _, addr := range addrs {
		host, port, err := net.SplitHostPort(addr)
		if err != nil || !ports[port] {
			continue
		}
		samePort = append(samePort, addr)
		if ofThisMachine(host) {
			local = append(local, addr)
		}
	}
	for _, candidates := range [][]string{local, samePort} {
		if len(candidates) == 1 {
			return candidates[0], nil
		}
	}
	return "", fmt.Errorf("%w: not exactly one of %s fits what it listens on (%s), so set cluster_announce to the right one",
		ErrPlaceless, strings.Join(addrs, ", "), strings.Join(bound, ", "))
}

// thisMachine reports whether host is an address of this machine, or its name with or
// without a domain. No name is looked up: a start must not hang on a name server.
func thisMachine(host string) bool {
	if ip := net.ParseIP(host); ip != nil {
		addrs, err := net.InterfaceAddrs()
		return err == nil && slices.ContainsFunc(addrs, func(a net.Addr) bool {
			n, ok := a.(*net.IPNet)
			return ok && n.IP.Equal(ip)
		})
	}
	name, err := os.Hostname()
	return host == "localhost" || err == nil && (host == name || strings.HasPrefix(host, name+"."))
}

// openFacade decides which proxy of the façade this one is, once its ports are known.
func (s *Server) openFacade() error {
	o := &s.opts.Facade
	if len(o.Addrs) == 0 {
		return nil
	}
	own, err := o.Own, error(nil)
	if own == "" {
		bound := make([]string, len(s.addrs))
		for i, addr := range s.addrs {
			bound[i] = strings.TrimPrefix(addr, tlsListener)
		}
		if own, err = ownAddress(o.Addrs, bound, thisMachine); err != nil {
			return err
		}
	}
	s.facade, err = newFacade(o.Addrs, own)
	return err
}

// mode is the kind of Redis that clients see, whatever the backend is: what HELLO calls
// mode and INFO redis_mode.
func (s *Server) mode() string {
	if s.facade != nil {
		return "cluster"
	}
	return "standalone"
}

// presentMode makes the text of a backend's INFO speak of the Redis that clients see.
func (s *Server) presentMode(info string) string {
	enabled := "cluster_enabled:0"
	if s.facade != nil {
		enabled = "cluster_enabled:1"
	}
	mode := "redis_mode:" + s.mode()
	return strings.NewReplacer(
		"redis_mode:standalone", mode, "redis_mode:cluster", mode,
		"cluster_enabled:0", enabled, "cluster_enabled:1", enabled,
	).Replace(info)
}

// accepted answers READONLY, READWRITE and ASKING: every proxy serves reads and writes
// of every slot, so there is nothing to switch.
func (s *session) accepted(cmd *command.Command, _ [][]byte, _ []byte) bool { return s.ok(cmd) }

// cluster answers CLUSTER in front of a façade.
func (s *session) cluster(cmd *command.Command, args [][]byte, raw []byte) bool {
	f := s.loop.srv.facade.view.Load()
	switch cmd.Name {
	case "cluster|slots":
		return s.answer(cmd, func(b []byte) []byte { return s.appendSlots(b, f) })
	case "cluster|shards":
		return s.answer(cmd, func(b []byte) []byte { return s.appendShards(b, f) })
	case "cluster|nodes":
		return s.answer(cmd, func(b []byte) []byte { return s.appendText(b, f.describe()) })
	case "cluster|info":
		return s.answer(cmd, func(b []byte) []byte { return s.appendText(b, f.info(s.loop.topo.Uncovered())) })
	case "cluster|myid":
		return s.answer(cmd, func(b []byte) []byte { return appendString(b, f.nodes[f.self].id) })
	case "cluster|myshardid":
		return s.answer(cmd, func(b []byte) []byte { return appendString(b, f.nodes[f.self].shard) })
	case "cluster|keyslot":
		return s.answer(cmd, func(b []byte) []byte { return resp.AppendInt(b, int64(slot.Of(args[2]))) })
	case "cluster|countkeysinslot", "cluster|getkeysinslot":
		return s.keysInSlot(cmd, args[2], raw)
	case "cluster|links": // there is no cluster bus
		return s.answer(cmd, func(b []byte) []byte { return resp.AppendArray(b, 0) })
	case "cluster|replicas", "cluster|slaves":
		return s.aboutNode(cmd, args[2], func(b []byte) []byte { return resp.AppendArray(b, 0) })
	case "cluster|count-failure-reports":
		return s.aboutNode(cmd, args[2], func(b []byte) []byte { return resp.AppendInt(b, 0) })
	case "cluster|help":
		return s.answer(cmd, appendClusterHelp)
	}
	s.errorf("ERR '%s' is not supported by cosky-proxy: the cluster its clients see consists of the proxies that cluster_facade lists, and only the configuration changes it", cmd.Name)
	return true
}

// aboutNode answers with what f appends if id is a node of the façade.
func (s *session) aboutNode(cmd *command.Command, id []byte, f func(b []byte) []byte) bool {
	known := func(n facadeNode) bool { return n.id == string(id) }
	if !slices.ContainsFunc(s.loop.srv.facade.view.Load().nodes, known) {
		s.errorf("ERR Unknown node %s", id)
		return true
	}
	return s.answer(cmd, f)
}

// keysInSlot asks the shard that owns the slot. Only a cluster node keeps its keys by slot.
func (s *session) keysInSlot(cmd *command.Command, arg, raw []byte) bool {
	l := s.loop
	switch {
	case !l.clusters:
		s.errorf("ERR '%s' is not supported by cosky-proxy in front of a Redis that is no cluster: it does not keep keys by slot", cmd.Name)
		return true
	case s.captured != nil: // EXEC runs on the shard of the transaction's keys
		s.errorf("ERR '%s' inside MULTI is not supported by cosky-proxy", cmd.Name)
		return true
	}
	t := l.anyShard() // any node refuses a number that is no slot
	if n, ok := integer(arg); ok && n >= 0 && n < slot.Count {
		t = target{slot: uint16(n), keyed: true}
	}
	return s.send(cmd, raw, t, l.effect.reset())
}

func (s *session) appendSlots(b []byte, f *facadeView) []byte {
	b = resp.AppendArray(b, f.alive)
	for i := range f.nodes {
		n := &f.nodes[i]
		if n.failed {
			continue
		}
		b = resp.AppendArray(b, 3)
		b = resp.AppendInt(b, int64(n.slots.First))
		b = resp.AppendInt(b, int64(n.slots.Last))
		b = appendString(resp.AppendArray(b, 4), n.host)
		b = appendString(resp.AppendInt(b, int64(n.port)), n.id)
		b = s.appendMap(b, 0) // further addresses: none
	}
	return b
}

func (s *session) appendShards(b []byte, f *facadeView) []byte {
	b = resp.AppendArray(b, len(f.nodes))
	for i := range f.nodes {
		n := &f.nodes[i]
		b = appendString(s.appendMap(b, 2), "slots")
		health := "online"
		if n.failed {
			health = "fail"
			b = resp.AppendArray(b, 0)
		} else {
			b = resp.AppendArray(b, 2)
			b = resp.AppendInt(b, int64(n.slots.First))
			b = resp.AppendInt(b, int64(n.slots.Last))
		}
		b = resp.AppendArray(appendString(b, "nodes"), 1)
		fields := 7
		if n.named() {
			fields++
		}
		b = appendPair(s.appendMap(b, fields), "id", n.id)
		b = resp.AppendInt(appendString(b, "port"), int64(n.port))
		b = appendPair(b, "ip", n.host)
		b = appendPair(b, "endpoint", n.host)
		if n.named() {
			b = appendPair(b, "hostname", n.host)
		}
		b = appendPair(b, "role", "master")
		b = resp.AppendInt(appendString(b, "replication-offset"), 0)
		b = appendPair(b, "health", health)
	}
	return b
}

// named reports whether the node is known by a name rather than an IP address. The name
// then stands where clients of Redis before 7 look for the address, too.
func (n *facadeNode) named() bool { return net.ParseIP(n.host) == nil }

// busPort is where Redis' cluster bus would be by its convention; nobody listens there.
func (n *facadeNode) busPort() int {
	const distance, last = 10000, 65535
	if n.port+distance > last {
		return 0
	}
	return n.port + distance
}

// describe is the text of CLUSTER NODES.
func (f *facadeView) describe() []byte {
	var b []byte
	for i := range f.nodes {
		n := &f.nodes[i]
		name, flags, rest := "", "master", fmt.Sprintf("connected %d-%d", n.slots.First, n.slots.Last)
		if n.named() {
			name = "," + n.host
		}
		switch {
		case i == f.self:
			flags = "myself,master"
		case n.failed:
			flags, rest = "master,fail", "disconnected"
		}
		b = fmt.Appendf(b, "%s %s:%d@%d%s %s - 0 0 %d %s\n", n.id, n.host, n.port, n.busPort(), name, flags, i+1, rest)
	}
	return b
}

// info is the text of CLUSTER INFO; unserved slots are those that the backend does not serve.
func (f *facadeView) info(unserved int) []byte {
	state := "ok"
	if unserved > 0 {
		state = "fail"
	}
	n := len(f.nodes)
	return fmt.Appendf(nil, "cluster_state:%s\r\ncluster_slots_assigned:%d\r\ncluster_slots_ok:%d\r\ncluster_slots_pfail:0\r\ncluster_slots_fail:%d\r\n"+
		"cluster_known_nodes:%d\r\ncluster_size:%d\r\ncluster_current_epoch:%d\r\ncluster_my_epoch:%d\r\n"+
		"cluster_stats_messages_sent:0\r\ncluster_stats_messages_received:0\r\ntotal_cluster_links_buffer_limit_exceeded:0\r\n",
		state, cluster.Slots, cluster.Slots-unserved, unserved, n, f.alive, n, f.self+1)
}

func appendClusterHelp(b []byte) []byte {
	lines := []string{
		"CLUSTER <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
		"COUNT-FAILURE-REPORTS <node-id>", "    Return number of failure reports for <node-id>: 0.",
		"COUNTKEYSINSLOT <slot>", "    Return the number of keys in <slot>, in front of a cluster.",
		"GETKEYSINSLOT <slot> <count>", "    Return key names in a slot, in front of a cluster.",
		"INFO", "    Return information about the cluster of proxies.",
		"KEYSLOT <key>", "    Return the hash slot for <key>.",
		"LINKS", "    Return information about network links between the proxies: there are none.",
		"MYID", "    Return the node id of this proxy.",
		"MYSHARDID", "    Return the shard id of this proxy.",
		"NODES", "    Return the proxies in the format of a cluster configuration.",
		"REPLICAS <node-id>", "    Return <node-id> replicas: there are none.",
		"SHARDS", "    Return information about slot range mappings and the proxies associated with them.",
		"SLOTS", "    Return information about slots range mappings.",
		"HELP", "    Prints this help.",
	}
	b = resp.AppendArray(b, len(lines))
	for _, line := range lines {
		b = resp.AppendString(b, line)
	}
	return b
}

// notInCluster refuses what would bring data where clients of a cluster cannot be (db.c).
func (s *session) notInCluster(cmd *command.Command, _ [][]byte, _ []byte) bool {
	s.errorf("ERR %s is not allowed in cluster mode", strings.ToUpper(cmd.Name))
	return true
}

// copyInCluster passes COPY on within the one database (db.c: copyCommand).
func (s *session) copyInCluster(cmd *command.Command, args [][]byte, raw []byte) bool {
	for i := 3; i+1 < len(args); i++ {
		if equalFold(args[i], "DB") && string(args[i+1]) != "0" {
			s.refuse("ERR Copying to another database is not allowed in cluster mode")
			return true
		}
	}
	return s.forward(cmd, args, raw)
}
