package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// role says what a front end's figures are for.
type role int

const (
	reference role = iota // Redis itself: the best a proxy without a cache could do
	subject               // a build of cosky-proxy
	peer                  // another proxy
)

// frontEnd is a port the load is sent to, and the processes behind that port
// whose CPU time and memory are charged to it.
type frontEnd struct {
	name      string
	role      role
	port      int
	processes []*process
	// oneNode says that the port leads to one node of a cluster, which serves only
	// the keys of its own slots.
	oneNode bool
}

// candidate is a proxy that can be started in front of a backend.
type candidate struct {
	name string
	role role
	path string
	// args returns the command line, after writing what files it needs into dir.
	args func(dir string, port int, b *backend) ([]string, error)
	// serves lists the topologies the proxy can stand in front of.
	serves []topology
}

func coskyProxy(name, path string) candidate {
	return candidate{
		name: name, role: subject, path: path, serves: []topology{standalone, cluster},
		args: func(_ string, port int, b *backend) ([]string, error) {
			scheme := "redis://"
			if b.topology == cluster {
				scheme = "redis-cluster://"
			}
			return []string{
				"--listen", loopback(port), "--backend", scheme + strings.Join(b.addrs(), ","),
				"--admin", "off", "--loops", "1",
			}, nil
		},
	}
}

// peerTable lists the proxies this program knows how to run. A peer is used
// when its environment variable names it or its command is in PATH.
func peerTable() []candidate {
	return []candidate{
		{name: "nutcracker", serves: []topology{standalone}, args: nutcrackerArgs},
		{name: "predixy", serves: []topology{standalone, cluster}, args: predixyArgs},
		{name: "redis-cluster-proxy", serves: []topology{cluster}, args: redisClusterProxyArgs},
	}
}

// peerVariable is the environment variable that names a peer's binary.
func peerVariable(name string) string {
	return strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// findPeers keeps the peers that are on this machine.
func findPeers(getenv func(string) string, lookPath func(string) (string, error)) ([]candidate, error) {
	var found []candidate
	for _, c := range peerTable() {
		named := getenv(peerVariable(c.name))
		path, err := lookPath(firstNonEmpty(named, c.name))
		if err != nil {
			if named != "" {
				return nil, fmt.Errorf("cannot use %s=%q: %w", peerVariable(c.name), named, err)
			}
			continue
		}
		c.role = peer
		if c.path, err = filepath.Abs(path); err != nil {
			return nil, fmt.Errorf("cannot use peer %q: %w", path, err)
		}
		found = append(found, c)
	}
	return found, nil
}

func firstNonEmpty(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func (c candidate) start(ctx context.Context, dir string, b *backend) (*frontEnd, error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%s-%s", c.name, b.topology)
	home := filepath.Join(dir, name)
	if err := os.Mkdir(home, 0o700); err != nil {
		return nil, fmt.Errorf("cannot create directory of %q: %w", name, err)
	}
	args, err := c.args(home, ports[0], b)
	if err != nil {
		return nil, fmt.Errorf("cannot configure %q: %w", name, err)
	}
	p, err := startProcess(ctx, home, c.name, ports[0], c.path, args...)
	if err != nil {
		return nil, err
	}
	return &frontEnd{name: c.name, role: c.role, port: ports[0], processes: []*process{p}}, nil
}

// direct is the backend without anything in front. In a cluster it is the first
// primary alone: what a client gets that always knows the right node.
func direct(b *backend) *frontEnd {
	return &frontEnd{
		name: "direct", role: reference, port: b.nodes[0].port,
		processes: b.nodes[:1], oneNode: b.topology == cluster,
	}
}

func nutcrackerArgs(dir string, port int, b *backend) ([]string, error) {
	statsPort, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	conf := fmt.Sprintf(`bench:
  listen: %s
  hash: fnv1a_64
  distribution: modula
  redis: true
  preconnect: true
  servers:
   - %s:1
`, loopback(port), b.nodes[0].addr())
	path, err := writeConf(dir, conf)
	return []string{"-c", path, "-a", "127.0.0.1", "-s", strconv.Itoa(statsPort[0])}, err
}

func predixyArgs(dir string, port int, b *backend) ([]string, error) {
	pool := fmt.Sprintf(`StandaloneServerPool {
    Databases 16
    Hash crc16
    Distribution modula
    RefreshMethod fixed
    Group one {
        + %s
    }
}
`, b.nodes[0].addr())
	if b.topology == cluster {
		pool = fmt.Sprintf("ClusterServerPool {\n    Servers {\n        + %s\n    }\n}\n",
			strings.Join(b.addrs(), "\n        + "))
	}
	conf := fmt.Sprintf(`Name bench
Bind %s
WorkerThreads 1
ClientTimeout 0
Authority {
    Auth {
        Mode admin
    }
}
`, loopback(port)) + pool
	path, err := writeConf(dir, conf)
	return []string{path}, err
}

func redisClusterProxyArgs(_ string, port int, b *backend) ([]string, error) {
	return []string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--threads", "1",
		"--disable-colors", strings.Join(b.addrs(), ","),
	}, nil
}

func writeConf(dir, text string) (string, error) {
	path := filepath.Join(dir, "proxy.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("cannot write configuration: %w", err)
	}
	return path, nil
}
