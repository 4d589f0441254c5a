package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// topology is a kind of backend that front ends are put in front of.
type topology string

const (
	standalone topology = "standalone"
	cluster    topology = "cluster"
)

const (
	clusterPrimaries = 3
	maxClients       = mostIdle + 1000 // that Redis and the proxies are told to take, where they have such an option
)

// backend is a set of private redis-servers holding the workloads' data.
type backend struct {
	topology topology
	nodes    []*process
}

// startBackend starts and seeds the servers of one topology.
func startBackend(ctx context.Context, dir string, t topology) (*backend, error) {
	count := 1
	if t == cluster {
		count = clusterPrimaries
	}
	b := &backend{topology: t}
	if err := b.start(ctx, dir, count); err != nil {
		b.stop()
		return nil, err
	}
	return b, nil
}

func (b *backend) start(ctx context.Context, dir string, count int) error {
	for i := range count {
		node, err := startRedis(ctx, dir, b.topology, i)
		if err != nil {
			return err
		}
		b.nodes = append(b.nodes, node)
	}
	if b.topology == cluster {
		if err := b.join(ctx); err != nil {
			return err
		}
	}
	return b.seed(ctx)
}

func startRedis(ctx context.Context, dir string, t topology, index int) (*process, error) {
	name := fmt.Sprintf("redis-%s-%d", t, index)
	home := filepath.Join(dir, name)
	if err := os.Mkdir(home, 0o700); err != nil {
		return nil, fmt.Errorf("cannot create data directory of %q: %w", name, err)
	}
	return retryStart(func() (*process, error) {
		// The second is for the cluster's bus: its default (port + 10000) may not exist.
		ports, err := freePorts(2)
		if err != nil {
			return nil, err
		}
		args := []string{
			"--bind", "127.0.0.1", "--port", strconv.Itoa(ports[0]), "--dir", home,
			"--save", "", "--appendonly", "no", "--maxclients", strconv.Itoa(maxClients),
		}
		if t == cluster {
			args = append(args, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(ports[1]))
		}
		return startProcess(ctx, dir, name, ports[0], "redis-server", args...)
	})
}

// join makes a cluster of the nodes and waits until every one of them agrees.
func (b *backend) join(ctx context.Context) error {
	args := []string{"--cluster", "create"}
	for _, node := range b.nodes {
		args = append(args, node.addr())
	}
	args = append(args, "--cluster-replicas", "0", "--cluster-yes")
	if out, err := exec.CommandContext(ctx, "redis-cli", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot create cluster: %w: %s", err, out)
	}
	return poll(ctx, startTimeout, func() error {
		for _, node := range b.nodes {
			info, err := redisCLI(ctx, node.port, "", "CLUSTER", "INFO")
			if err != nil {
				return err
			}
			if !strings.Contains(info, "cluster_state:ok") {
				return fmt.Errorf("cannot use cluster: node %s says %q", node.addr(), info)
			}
		}
		return nil
	})
}

// seed writes the data every workload reads.
func (b *backend) seed(ctx context.Context) error {
	for _, node := range b.nodes {
		for _, script := range scripts() {
			if _, err := redisCLI(ctx, node.port, script, "-x", "SCRIPT", "LOAD"); err != nil {
				return err
			}
		}
	}
	// Errors come back as text: redis-cli in script mode goes on after them.
	out, err := redisCLI(ctx, b.nodes[0].port, seedScript(), "-c")
	if err != nil {
		return fmt.Errorf("cannot seed %s: %w", b.topology, err)
	}
	if strings.Contains(out, "ERR") {
		return fmt.Errorf("cannot seed %s: %.200s", b.topology, out)
	}
	return nil
}

func (b *backend) stop() {
	for _, node := range b.nodes {
		node.stop()
	}
}

func (b *backend) addrs() []string {
	addrs := make([]string, len(b.nodes))
	for i, node := range b.nodes {
		addrs[i] = node.addr()
	}
	return addrs
}

// redisCLI runs one command (or, when script is not empty, the script's lines)
// against a port and returns what redis-cli prints.
func redisCLI(ctx context.Context, port int, script string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "redis-cli", append([]string{"-p", strconv.Itoa(port)}, args...)...)
	// Never the terminal: redis-cli reads from it when it gets no command.
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("cannot run redis-cli %.60q: %w: %.200s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// askCLI runs one command. A long last argument travels by standard input, because the
// system limits those of programs.
func askCLI(ctx context.Context, port int, command []string) (string, error) {
	const limit = 64 << 10
	last := len(command) - 1
	if len(command[last]) < limit {
		return redisCLI(ctx, port, "", command...)
	}
	return redisCLI(ctx, port, command[last], append([]string{"-x"}, command[:last]...)...)
}
