package clustertest

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// slots is the number of hash slots of a Redis Cluster.
const slots = 16384

// Cluster is a running Redis Cluster. Methods belong on the test's goroutine,
// except the ones documented otherwise.
type Cluster struct {
	Nodes []*Redis // the masters as created, then the replicas; AddNode appends

	t TB
	o ClusterOptions
}

// ClusterOptions make a cluster different from the usual one.
type ClusterOptions struct {
	Args []string // further arguments of every node
	Host string   // IP address by which the nodes know each other; default 127.0.0.1
	CA   *CA      // not nil: the cluster is under TLS (tls-cluster), and plain besides for the test itself
}

// StartCluster starts masters*(1+replicasPer) nodes with the slots spread evenly,
// and waits until every node sees cluster_state:ok and every replica is in
// sync. Nodes give up on each other after 1.5 s (cluster-node-timeout). Nodes[i]
// is master i; its replicas are Nodes[masters+i*replicasPer:][:replicasPer].
func StartCluster(t TB, masters, replicasPer int, args ...string) *Cluster {
	t.Helper()
	return StartClusterWith(t, masters, replicasPer, ClusterOptions{Args: args})
}

// StartClusterWith is StartCluster with options.
func StartClusterWith(t TB, masters, replicasPer int, o ClusterOptions) *Cluster {
	t.Helper()
	o.Host = cmp.Or(o.Host, "127.0.0.1")
	c := &Cluster{t: t, o: o}
	for range masters * (1 + replicasPer) {
		c.Nodes = append(c.Nodes, c.launch())
	}
	for _, r := range c.Nodes {
		r.awaitReady()
	}
	for i, r := range c.Nodes[:masters] {
		r.Do("CLUSTER", "ADDSLOTSRANGE", i*slots/masters, (i+1)*slots/masters-1)
		// Distinct epochs spare the nodes the rounds in which they would agree on them.
		r.Do("CLUSTER", "SET-CONFIG-EPOCH", i+1)
	}
	c.meetAll(c.Nodes)
	for i, r := range c.Nodes[masters:] {
		c.replicate(r, c.Nodes[i/replicasPer])
	}
	c.AwaitOK()
	return c
}

func (c *Cluster) launch() *Redis {
	c.t.Helper()
	args := []string{
		"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
		"--cluster-node-timeout", "1500", "--cluster-allow-replica-migration", "no",
		// A replica may always stand for election, however long its link was down.
		"--cluster-replica-validity-factor", "0",
	}
	if c.o.Host != "127.0.0.1" {
		args = append(args, "--bind", "127.0.0.1", c.o.Host)
	}
	if c.o.CA != nil {
		args = append(append(args, c.o.CA.serverArgs()...), "--tls-cluster", "yes")
	}
	return launch(c.t, append(args, c.o.Args...)...)
}

// meetAll introduces every node to every other: waiting for gossip to spread
// the word takes seconds longer.
func (c *Cluster) meetAll(newcomers []*Redis) {
	c.t.Helper()
	for _, a := range newcomers {
		for _, b := range c.Nodes {
			if a != b {
				a.Do("CLUSTER", "MEET", c.o.Host, c.portOf(b))
			}
		}
	}
	Await(c.t, "the nodes to know each other", func() error {
		for _, r := range c.alive() {
			view, err := viewOf(r)
			if err != nil {
				return err
			}
			if len(view) != len(c.Nodes) {
				return fmt.Errorf("%s knows %d of %d nodes", r.Addr, len(view), len(c.Nodes))
			}
			for _, n := range view {
				if n.has("handshake") || n.has("noaddr") || !n.linked {
					return fmt.Errorf("%s sees %s as %s", r.Addr, n.addr, n.flags)
				}
			}
		}
		return nil
	})
}

// portOf is the port by which the other nodes know r.
func (c *Cluster) portOf(r *Redis) any {
	if c.o.CA != nil {
		return r.arg("--tls-port")
	}
	return r.Port
}

func (c *Cluster) replicate(replica, master *Redis) {
	c.t.Helper()
	replica.Do("CLUSTER", "REPLICATE", c.ID(master))
}

// AddNode starts an empty master that all nodes know. It owns no slot, but is ready
// to take some.
func (c *Cluster) AddNode() *Redis {
	c.t.Helper()
	r := c.launch()
	r.awaitReady()
	c.Nodes = append(c.Nodes, r)
	c.meetAll([]*Redis{r})
	c.AwaitOK()
	return r
}

// StartStranger starts a server in cluster mode that knows nobody, for redis-cli --cluster add-node.
func (c *Cluster) StartStranger() *Redis {
	c.t.Helper()
	r := c.launch()
	r.awaitReady()
	return r
}

// Addrs returns the addresses of all nodes ever started, dead ones included.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, r := range c.Nodes {
		addrs = append(addrs, r.Addr)
	}
	return addrs
}

// ID returns a node's cluster ID.
func (c *Cluster) ID(r *Redis) string {
	c.t.Helper()
	return r.Text("CLUSTER", "MYID")
}

// alive are the nodes that run and are not frozen.
func (c *Cluster) alive() []*Redis {
	var nodes []*Redis
	for _, r := range c.Nodes {
		if frozen, _ := r.process().frozen(); r.Running() && !frozen {
			nodes = append(nodes, r)
		}
	}
	return nodes
}

// AwaitOK waits until every node that runs sees cluster_state:ok and the same
// owner for every slot, and every replica that runs is linked to its master.
func (c *Cluster) AwaitOK() {
	c.t.Helper()
	Await(c.t, "cluster_state:ok on all nodes", func() error {
		var first, firstAddr string
		for _, r := range c.alive() {
			slotMap, err := settled(r)
			if err != nil {
				return fmt.Errorf("%s: %w", r.Addr, err)
			}
			if first == "" {
				first, firstAddr = slotMap, r.Addr
			}
			if slotMap != first {
				return fmt.Errorf("%s and %s disagree on the slots:\n%s\n%s", firstAddr, r.Addr, first, slotMap)
			}
		}
		return nil
	})
}

// settled returns r's slot map, or an error while r is not content with the cluster.
func settled(r *Redis) (string, error) {
	info, err := r.DoErr("CLUSTER", "INFO")
	if err != nil {
		return "", err
	}
	if infoField(fmt.Sprint(info), "cluster_state") != "ok" {
		return "", errors.New("cluster_state is not ok")
	}
	view, err := viewOf(r)
	if err != nil {
		return "", err
	}
	var slotMap strings.Builder
	owners := view.owners()
	for s, id := range owners {
		if s == 0 || id != owners[s-1] {
			fmt.Fprintf(&slotMap, "%d:%.8s ", s, id)
		}
	}
	if view.myself().has("slave") && r.InfoField("replication", "master_link_status") != "up" {
		return "", errors.New("the replica has no link to its master")
	}
	return slotMap.String(), nil
}

// OwnerOf returns the node that owns key's slot.
func (c *Cluster) OwnerOf(key string) *Redis {
	c.t.Helper()
	return c.OwnerOfSlot(c.SlotOf(key))
}

// SlotOf asks a node for key's slot.
func (c *Cluster) SlotOf(key string) int {
	c.t.Helper()
	alive := c.alive()
	if len(alive) == 0 {
		c.t.Fatalf("no node of the cluster is alive")
	}
	slot, err := strconv.Atoi(alive[0].Text("CLUSTER", "KEYSLOT", key))
	if err != nil {
		c.t.Fatalf("bad CLUSTER KEYSLOT reply: %v", err)
	}
	return slot
}

// OwnerOfSlot returns the live node that claims slot with the highest epoch.
func (c *Cluster) OwnerOfSlot(slot int) *Redis {
	c.t.Helper()
	var owner *Redis
	epoch := -1
	for _, r := range c.alive() {
		view, err := viewOf(r)
		if err != nil {
			continue
		}
		me := view.myself()
		if me.has("master") && me.owns(slot) && me.epoch > epoch {
			owner, epoch = r, me.epoch
		}
	}
	if owner == nil {
		c.t.Fatalf("no live node owns slot %d", slot)
	}
	return owner
}

// ReplicasOf returns the live nodes that replicate master.
func (c *Cluster) ReplicasOf(master *Redis) []*Redis {
	c.t.Helper()
	id := c.ID(master)
	var replicas []*Redis
	for _, r := range c.alive() {
		if view, err := viewOf(r); err == nil && view.myself().master == id {
			replicas = append(replicas, r)
		}
	}
	return replicas
}

// Failover makes replica the master of its shard with CLUSTER FAILOVER and
// waits until all live nodes agree.
func (c *Cluster) Failover(replica *Redis) {
	c.t.Helper()
	// Masters vote once in 3 s for the replicas of one master, and a request that was not
	// granted within 5 s is forgotten: then it is made again.
	var asked time.Time
	Await(c.t, replica.Addr+" to become master", func() error {
		if time.Since(asked) > 6*time.Second {
			replica.Do("CLUSTER", "FAILOVER")
			asked = time.Now()
		}
		view, err := viewOf(replica)
		if err == nil && !view.myself().has("master") {
			err = errors.New("still a replica")
		}
		return err
	})
	c.AwaitOK()
}

// BeginMigrate marks slot as importing on to and as migrating on its owner.
// Keys stay where they are (see MigrateKeys); the owner answers ASK for absent ones.
func (c *Cluster) BeginMigrate(slot int, to *Redis) {
	c.t.Helper()
	from := c.OwnerOfSlot(slot)
	to.Do("CLUSTER", "SETSLOT", slot, "IMPORTING", c.ID(from))
	from.Do("CLUSTER", "SETSLOT", slot, "MIGRATING", c.ID(to))
}

// MigrateKeys moves up to limit keys of slot to the node (all keys if limit is
// 0) and returns how many it moved.
func (c *Cluster) MigrateKeys(slot int, to *Redis, limit int) int {
	c.t.Helper()
	from := c.OwnerOfSlot(slot)
	for moved := 0; ; {
		batch := 100
		if limit > 0 {
			batch = min(batch, limit-moved)
		}
		if batch == 0 {
			return moved
		}
		keys := from.Do("CLUSTER", "GETKEYSINSLOT", slot, batch).([]any)
		if len(keys) == 0 {
			return moved
		}
		args := []any{"MIGRATE", "127.0.0.1", to.Port, "", 0, Deadline.Milliseconds()}
		if password := to.arg("--requirepass"); password != "" {
			args = append(args, "AUTH", password)
		}
		from.Do(append(append(args, "KEYS"), keys...)...)
		moved += len(keys)
	}
}

// FinishMigrate gives slot to the node: first there, so that it takes a new
// epoch, then on the old owner, then on all other masters.
func (c *Cluster) FinishMigrate(slot int, to *Redis) {
	c.t.Helper()
	id := c.ID(to)
	from := c.OwnerOfSlot(slot)
	c.awaitEpoch(to)
	to.Do("CLUSTER", "SETSLOT", slot, "NODE", id)
	if from != to {
		from.Do("CLUSTER", "SETSLOT", slot, "NODE", id)
	}
	for _, r := range c.alive() {
		if r == to || r == from {
			continue
		}
		if view, err := viewOf(r); err == nil && view.myself().has("master") {
			r.Do("CLUSTER", "SETSLOT", slot, "NODE", id)
		}
	}
}

// awaitEpoch waits until r has heard of every master's epoch. The epoch it takes with
// a slot is the highest it knows plus one, and none at all if its own is that highest:
// a node that has not heard of an epoch taken a moment ago would claim the slot with
// an older one, which those who have heard of it refuse for ever.
func (c *Cluster) awaitEpoch(r *Redis) {
	c.t.Helper()
	Await(c.t, r.Addr+" to know all epochs", func() error {
		known, err := strconv.Atoi(infoField(r.Text("CLUSTER", "INFO"), "cluster_current_epoch"))
		if err != nil {
			return err
		}
		for _, other := range c.alive() {
			if view, err := viewOf(other); err == nil && view.myself().epoch > known {
				return fmt.Errorf("it knows of epoch %d, %s has %d", known, other.Addr, view.myself().epoch)
			}
		}
		return nil
	})
}

// MoveSlot migrates slot with all its keys, start to end.
func (c *Cluster) MoveSlot(slot int, to *Redis) {
	c.t.Helper()
	c.BeginMigrate(slot, to)
	c.MigrateKeys(slot, to, 0)
	c.FinishMigrate(slot, to)
}

// Stop kills all nodes.
func (c *Cluster) Stop() {
	var wg sync.WaitGroup
	for _, r := range c.Nodes {
		wg.Go(r.Stop)
	}
	wg.Wait()
}

// view is one node's CLUSTER NODES reply.
type view []viewNode

type viewNode struct {
	id, addr, flags, master string
	epoch                   int
	linked                  bool
	slots                   []string // "a", "a-b", and "[...]" markers
}

// viewOf asks a node for its view. Lines look like
//
//	id ip:port@bus,host flags master ping-sent pong-recv epoch link-state slot slot ...
func viewOf(r *Redis) (view, error) {
	reply, err := r.DoErr("CLUSTER", "NODES")
	if err != nil {
		return nil, err
	}
	var v view
	for line := range strings.Lines(fmt.Sprint(reply)) {
		f := strings.Fields(line)
		if len(f) < 8 {
			return nil, fmt.Errorf("bad CLUSTER NODES line %q", line)
		}
		epoch, err := strconv.Atoi(f[6])
		if err != nil {
			return nil, fmt.Errorf("bad CLUSTER NODES line %q", line)
		}
		v = append(v, viewNode{id: f[0], addr: f[1], flags: f[2], master: f[3], epoch: epoch, linked: f[7] == "connected", slots: f[8:]})
	}
	return v, nil
}

func (v view) myself() viewNode {
	for _, n := range v {
		if n.has("myself") {
			return n
		}
	}
	return viewNode{}
}

// owners returns the ID of every slot's owner, "" where there is none.
func (v view) owners() []string {
	owners := make([]string, slots)
	for _, n := range v {
		for _, r := range n.slots {
			first, last, ok := slotRange(r)
			for s := first; ok && s <= last; s++ {
				owners[s] = n.id
			}
		}
	}
	return owners
}

func (n viewNode) has(flag string) bool {
	for f := range strings.SplitSeq(n.flags, ",") {
		if f == flag {
			return true
		}
	}
	return false
}

func (n viewNode) owns(slot int) bool {
	for _, r := range n.slots {
		if first, last, ok := slotRange(r); ok && first <= slot && slot <= last {
			return true
		}
	}
	return false
}

func slotRange(s string) (first, last int, ok bool) {
	a, b, isRange := strings.Cut(s, "-")
	first, err := strconv.Atoi(a)
	if err != nil {
		return 0, 0, false // a migration marker
	}
	if !isRange {
		return first, first, true
	}
	last, err = strconv.Atoi(b)
	return first, last, err == nil
}
