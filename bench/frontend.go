package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// role says what a front end's figures are for.
type role int

const (
	reference role = iota // Redis itself: the best a proxy without a cache could do
	subject               // a build of cosky-proxy
	variant               // the same with other options, measured with the workloads that name it
	peer                  // another proxy
)

// Variants of the proxy.
const (
	twoLoops  = "two loops"
	uncounted = "uncounted" // without the admin address, the slow log and counting which keys are read
)

// frontEnd is a port the load is sent to, and the processes behind that port
// whose CPU time and memory are charged to it.
type frontEnd struct {
	name      string
	role      role
	build     int    // of a subject: its number
	variant   string // empty: none
	port      int
	admin     string // address where a build of cosky-proxy tells about itself; empty: none
	processes []*process
	started   time.Time
	// oneNode says that the port leads to one node of a cluster, which serves only
	// the keys of its own slots.
	oneNode bool
}

// takesPart reports whether the front end is measured with w.
func (f *frontEnd) takesPart(w workload) bool {
	return f.variant == "" || slices.Contains(w.variants, f.variant)
}

// share is what the front end can be asked of w.
func (f *frontEnd) share(w workload) workload {
	if f.oneNode {
		return w.onFirstPrimary()
	}
	return w
}

// candidate is a proxy that can be started in front of a backend.
type candidate struct {
	name    string
	role    role
	build   int    // of a subject: its number
	variant string // empty: none
	path    string
	version string // the option that tells its version; empty: it has none
	// args returns the command line, after writing what files it needs into dir. The admin port
	// is for whatever the proxy listens on beside.
	args func(dir string, port, admin int, b *backend) ([]string, error)
	// serves lists the topologies the proxy can stand in front of.
	serves []topology
}

// coskyProxy is a build of the proxy with its default options, apart from the numbers of loops and clients.
func coskyProxy(name, path string) candidate {
	return candidate{
		name: name, role: subject, path: path, serves: []topology{standalone, cluster},
		args: func(_ string, port, admin int, b *backend) ([]string, error) {
			return coskyArgs(port, b, "--admin", loopback(admin), "--loops", "1", "--clients.max", strconv.Itoa(maxClients)), nil
		},
	}
}

func coskyArgs(port int, b *backend, options ...string) []string {
	scheme := "redis://"
	if b.topology == cluster {
		scheme = "redis-cluster://"
	}
	return append([]string{"--listen", loopback(port), "--backend", scheme + strings.Join(b.addrs(), ",")}, options...)
}

// variantsOf are the candidates that show what an option costs or gains.
func variantsOf(c candidate) []candidate {
	with := func(name string, options ...string) candidate {
		return candidate{
			name: c.name + ", " + name, role: variant, variant: name, path: c.path, serves: []topology{standalone},
			args: func(_ string, port, _ int, b *backend) ([]string, error) {
				return coskyArgs(port, b, append(options, "--admin", "off")...), nil
			},
		}
	}
	return []candidate{
		with(twoLoops, "--loops", "2"),
		with(uncounted, "--loops", "1", "--nearcache.hot.sample", "0", "--slowlog.slower-than", "0"),
	}
}

func (c candidate) start(ctx context.Context, dir string, b *backend) (*frontEnd, error) {
	return retryStart(func() (*frontEnd, error) { return c.startOnce(ctx, dir, b) })
}

func (c candidate) startOnce(ctx context.Context, dir string, b *backend) (*frontEnd, error) {
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	home, err := os.MkdirTemp(dir, "front-")
	if err != nil {
		return nil, fmt.Errorf("cannot create directory of %q: %w", c.name, err)
	}
	args, err := c.args(home, ports[0], ports[1], b)
	if err != nil {
		return nil, fmt.Errorf("cannot configure %q: %w", c.name, err)
	}
	p, err := startProcess(ctx, home, c.name, ports[0], c.path, args...)
	if err != nil {
		return nil, err
	}
	f := &frontEnd{
		name: c.name, role: c.role, build: c.build, variant: c.variant, port: ports[0], processes: []*process{p}, started: time.Now(),
	}
	if c.role == subject {
		f.admin = loopback(ports[1])
	}
	return f, nil
}

// direct is the backend without anything in front. In a cluster it is the first
// primary alone: what a client gets that always knows the right node.
func direct(b *backend) *frontEnd {
	return &frontEnd{
		name: "direct", role: reference, port: b.nodes[0].port,
		processes: b.nodes[:1], oneNode: b.topology == cluster,
	}
}

func writeConf(dir, text string) (string, error) { return writeFile(dir, "proxy.conf", text) }

func writeFile(dir, name, text string) (string, error) {
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("cannot write configuration: %w", err)
	}
	return path, nil
}
