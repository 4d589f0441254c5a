package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	defaultProxy   = "bin/cosky-proxy"
	goGenerator    = "go"
	benchGenerator = "redis-benchmark"

	// settleTime is what a proxy gets to find its backend after it began to listen.
	settleTime = 5 * time.Second

	noProxy = "none" // value of -proxy that measures the peers alone
)

const usage = `bench measures cosky-proxy, Redis itself and other Redis proxies side by side.

Usage: go run ./bench [flags]        (from the repository's root, after make build)

It needs redis-server, redis-cli and redis-benchmark in PATH and Linux' /proc.
Everything runs on free loopback ports and is stopped at the end. Peers found in
PATH or named by environment variables join in: NUTCRACKER, PREDIXY,
REDIS_CLUSTER_PROXY, CODIS_PROXY, ENVOY (each the path of a binary).

Examples:
  go run ./bench -quick
  PREDIXY=/opt/predixy go run ./bench -workload 'GET|HGETALL' -rounds 9
  go run ./bench -proxy old=/tmp/old -proxy new=bin/cosky-proxy -topology standalone

How to read the table: go doc ./bench

Flags:
`

// options is the parsed command line.
type options struct {
	proxies   []candidate
	peersOnly bool
	quick     bool
	out       string
	rounds    int
	roundTime time.Duration
	budget    time.Duration
	clients   int
	topology  []topology
	workload  *regexp.Regexp
	peer      *regexp.Regexp
	generator string
	files     int // how many may be open, here and in each child
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once, and with it its children

	opts, err := parseFlags(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	err = bench(ctx, opts)
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parseFlags(args []string) (options, error) {
	var o options
	var topologies, workload, peer string
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.Usage = func() {
		fmt.Fprint(fs.Output(), usage)
		fs.PrintDefaults()
	}
	fs.Func("proxy", "cosky-proxy `[name=]path` to measure; repeat it to compare builds, 'none' for peers alone (default "+defaultProxy+")", func(s string) error {
		return o.addProxy(s)
	})
	fs.BoolVar(&o.quick, "quick", false, "main workloads, 3 short rounds, under two minutes")
	fs.StringVar(&o.out, "out", "bin/bench", "`directory` for the report (README.md), its charts and samples; empty: print only")
	fs.IntVar(&o.rounds, "rounds", 5, "rounds; each measures everything once")
	fs.DurationVar(&o.roundTime, "round-time", 500*time.Millisecond, "aimed-at length of one burst of load")
	fs.DurationVar(&o.budget, "budget", 30*time.Minute, "no round but the first starts that would pass this total time")
	fs.IntVar(&o.clients, "clients", 50, "connections of the load generator")
	fs.StringVar(&topologies, "topology", "standalone,cluster", "backends to measure, comma separated")
	fs.StringVar(&workload, "workload", "", "measure only workloads whose title matches this `regexp`, such as 'GET.*P=16'")
	fs.StringVar(&peer, "peer", "", "run only peers whose name matches this `regexp`; '^$' runs none")
	fs.StringVar(&o.generator, "generator", goGenerator, "where the load comes from: "+goGenerator+" (package bench/load) or "+benchGenerator)
	if err := fs.Parse(args); err != nil {
		return options{}, err
	}
	if fs.NArg() > 0 {
		return options{}, fmt.Errorf("cannot use argument %q: only flags are taken, see -h", fs.Arg(0))
	}
	return o, o.complete(fs, topologies, workload, peer)
}

func (o *options) addProxy(arg string) error {
	if arg == noProxy {
		o.peersOnly = true
		return nil
	}
	name, path, named := strings.Cut(arg, "=")
	if !named {
		name, path = "cosky-proxy", arg
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("cannot use proxy %q: %w", arg, err)
	}
	for _, c := range o.proxies {
		if c.name == name {
			return fmt.Errorf("cannot use proxy name %q twice: write name=path", name)
		}
	}
	c := coskyProxy(name, absolute)
	c.build = len(o.proxies)
	o.proxies = append(o.proxies, c)
	return nil
}

func (o *options) complete(fs *flag.FlagSet, topologies, workload, peer string) error {
	if len(o.proxies) == 0 && !o.peersOnly {
		if err := o.addProxy(defaultProxy); err != nil {
			return err
		}
	}
	for _, c := range o.proxies {
		if _, err := exec.LookPath(c.path); err != nil {
			return fmt.Errorf("cannot use proxy %q: %w (make build makes %s)", c.name, err, defaultProxy)
		}
	}
	if o.quick {
		given := map[string]bool{}
		fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
		o.shorten(given)
	}
	for _, name := range strings.Split(topologies, ",") {
		t := topology(strings.TrimSpace(name))
		if t != standalone && t != cluster {
			return fmt.Errorf("cannot use topology %q: want %s or %s", name, standalone, cluster)
		}
		o.topology = append(o.topology, t)
	}
	if o.rounds < 1 || o.clients < 1 || o.roundTime <= 0 {
		return errors.New("cannot measure: -rounds, -clients and -round-time must be positive")
	}
	if generators()[o.generator] == nil {
		return fmt.Errorf("cannot use generator %q: want %s or %s", o.generator, goGenerator, benchGenerator)
	}
	var err error
	if o.workload, err = regexp.Compile(workload); err != nil {
		return fmt.Errorf("cannot use -workload %q: %w", workload, err)
	}
	if o.peer, err = regexp.Compile(peer); err != nil {
		return fmt.Errorf("cannot use -peer %q: %w", peer, err)
	}
	return nil
}

// shorten applies -quick to whatever the command line leaves open.
func (o *options) shorten(given map[string]bool) {
	if !given["rounds"] {
		o.rounds = 3
	}
	if !given["round-time"] {
		o.roundTime = 200 * time.Millisecond
	}
	if !given["budget"] {
		o.budget = 100 * time.Second
	}
}

// bench measures every topology asked for, prints the report and writes it down.
func bench(ctx context.Context, o options) error {
	for _, tool := range []string{"redis-server", "redis-cli", "redis-benchmark"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("cannot measure: %w", err)
		}
	}
	var err error
	if o.files, err = raiseFileLimit(); err != nil {
		return err
	}
	peers, missing, err := findPeers(os.Getenv, exec.LookPath)
	if err != nil {
		return err
	}
	peers = slices.DeleteFunc(peers, func(c candidate) bool { return !o.peer.MatchString(c.name) })
	dir, err := os.MkdirTemp("", "cosky-bench-")
	if err != nil {
		return fmt.Errorf("cannot create work directory: %w", err)
	}
	defer os.RemoveAll(dir)

	r := &report{header: header(o, peers, missing), files: map[string]string{}}
	fmt.Fprint(os.Stderr, r.header)
	deadline := time.Now().Add(o.budget)
	var failed []error
	for i, t := range o.topology {
		// What the earlier topologies leave is shared by the rest.
		share := time.Until(deadline) / time.Duration(len(o.topology)-i)
		if t == standalone && len(o.topology) > 1 {
			share = time.Until(deadline) * 6 / 10
		}
		done, err := r.measure(ctx, o, dir, t, slices.Concat(o.proxies, peers), time.Now().Add(share))
		if !done || ctx.Err() != nil {
			return err
		}
		failed = append(failed, err)
	}
	if o.workload.MatchString(hitTitle) {
		r.verdicts = append(r.verdicts, measureHits(ctx)...)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	fmt.Print(r.markdown())
	if o.out != "" {
		err := r.write(o.out)
		if err == nil {
			fmt.Fprintf(os.Stderr, "the report, its charts and samples are in %s\n", o.out)
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// measure adds one backend's results to the report. An error although it is done means that
// cosky-proxy itself failed some of it.
func (r *report) measure(ctx context.Context, o options, dir string, t topology, candidates []candidate, deadline time.Time) (done bool, err error) {
	b, err := startBackend(ctx, dir, t)
	if err != nil {
		return false, err
	}
	defer b.stop()

	all := candidates
	if len(o.proxies) > 0 {
		all = slices.Concat(candidates, variantsOf(o.proxies[0]))
	}
	fronts := []*frontEnd{direct(b)}
	for _, c := range all {
		if !slices.Contains(c.serves, t) {
			continue
		}
		f, err := c.start(ctx, dir, b)
		if err != nil {
			if c.role != peer {
				return false, err
			}
			fmt.Fprintf(os.Stderr, "%s is left out: %v\n", c.name, err)
			r.header += fmt.Sprintf("- %s did not start: %s\n", c.name, oneLine(err))
			continue
		}
		defer f.processes[0].stop()
		fronts = append(fronts, f)
	}
	e := newExperiment(plan{
		rounds: o.rounds, roundTime: o.roundTime, settle: settleTime, clients: o.clients, deadline: deadline,
		generator: o.generator, progress: os.Stderr,
	}, b, fronts, o.selected(t))
	if err := e.run(ctx); err != nil {
		return false, err
	}
	r.add(e)
	if t == standalone && o.workload.MatchString(idleTitle) {
		if o.quick {
			candidates = o.proxies
		}
		var steps []int
		steps, r.idleNote = idleSteps(o.quick, o.files)
		r.idle = holdIdle(ctx, dir, b, candidates, steps, os.Stderr)
	}
	return true, e.subjectError()
}

// selected returns the workloads of a topology that the command line asks for.
func (o options) selected(t topology) []workload {
	var out []workload
	for _, w := range workloads() {
		asked := w.quick || !o.quick
		if asked && w.isFor(t) && w.isSentBy(o.generator) && o.workload.MatchString(w.title()) {
			out = append(out, w)
		}
	}
	return out
}
