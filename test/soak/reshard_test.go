package soak

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
)

// few is how many slots redis-cli moves: those with the counters, the first of their master.
const few = 40

// TestReshardingByRedisCLI lets redis-cli add a node, move slots to it, rebalance, empty it and remove it while
// clients work. Nobody sees an error, and all increments add up.
func TestReshardingByRedisCLI(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	r := newRig(t, c)
	for i, counter := range r.book.counters {
		if counter.shard == 0 {
			counter.key = keyWhere(func(slotOfKey int) bool { return slotOfKey < few }, "few", i)
		}
	}
	r.service(everywhere)
	r.book.setWeather(storm{moving: true})
	r.begin()
	r.await(500)
	r.announce()
	seed := c.Nodes[1].Addr
	newcomer := c.StartStranger()
	newcomer.Do("CONFIG", "SET", "cluster-node-timeout", calm.Milliseconds())
	id := func(n *clustertest.Redis) string { return n.Text("CLUSTER", "MYID") }
	steps := []struct {
		name  string
		args  []string
		slots int // that the newcomer has then; -1: any number
	}{
		{"add-node", []string{"add-node", newcomer.Addr, seed}, 0},
		{"reshard", []string{"reshard", seed, "--cluster-from", id(c.master(0)), "--cluster-to", id(newcomer), "--cluster-slots", strconv.Itoa(few), "--cluster-yes"}, few},
		{"rebalance", []string{"rebalance", seed, "--cluster-weight", id(newcomer) + "=0.02"}, -1},
		{"rebalance to nothing", []string{"rebalance", seed, "--cluster-weight", id(newcomer) + "=0"}, 0},
		{"del-node", []string{"del-node", seed, id(newcomer)}, -1},
	}
	for _, s := range steps {
		clustertest.Await(t, "redis-cli to be content", func() error {
			for _, n := range c.Nodes {
				if view := n.Text("CLUSTER", "NODES"); s.name != "add-node" && !strings.Contains(view, id(newcomer)) || strings.Contains(view, "handshake") {
					return fmt.Errorf("%s sees\n%s", n.Addr, view)
				}
			}
			if info := newcomer.Text("CLUSTER", "INFO"); s.name != "add-node" && !strings.Contains(info, "cluster_state:ok") {
				return fmt.Errorf("%s says\n%s", newcomer.Addr, info) // for two seconds after its start it takes no key
			}
			out, err := exec.Command("redis-cli", "--cluster", "check", seed).CombinedOutput()
			if err != nil || strings.Contains(string(out), "[ERR]") {
				return fmt.Errorf("%v\n%s", err, out)
			}
			return nil
		})
		out, err := exec.Command("redis-cli", append([]string{"--cluster"}, s.args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("redis-cli --cluster %q: %v\n%s", s.args, err, out)
		}
		if s.name == "del-node" {
			break
		}
		clustertest.Await(t, "the cluster to agree after "+s.name, func() error {
			if n := slotsOf(c.Nodes[1], id(newcomer)); n != s.slots && s.slots >= 0 {
				return fmt.Errorf("%d slots, want %d\n%s", n, s.slots, out)
			}
			return nil
		})
		c.AwaitOK()
		r.await(100)
	}
	newcomer.Stop()
	r.await(300)
	r.announce()
	r.finish()
	for _, f := range r.fronts {
		t.Logf("%.0f redirects followed by %s", f.Metric("cosky_proxy_redirects_total"), f.name)
	}
}

// slotsOf is how many slots a node has in the eyes of another one.
func slotsOf(witness *clustertest.Redis, id string) int {
	shards, _ := witness.Do("CLUSTER", "SLOTS").([]any)
	n := 0
	for _, s := range shards {
		fields := s.([]any)
		if owner := fields[2].([]any); owner[2] == id {
			n += int(fields[1].(int64)-fields[0].(int64)) + 1
		}
	}
	return n
}
