// Command cosky-proxy serves Redis clients from a Redis, a Sentinel-watched primary
// or a Redis Cluster, and answers CoSky's hot reads from memory. Start with
// --help; package proxy tells how it works.
//
// This package is the only one that knows all others: it turns the configuration
// into each package's own options, starts things in order and stops them in reverse.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"cosky-proxy/cluster/embedded"
	"cosky-proxy/conf"
	"cosky-proxy/nearcache"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/admin"
	"cosky-proxy/proxy/stats"
)

// version is set by the linker (see Makefile).
var version = "development"

// Exit codes.
const (
	exitOK     = 0 // after a graceful stop, --help or --version
	exitFailed = 1 // starting or running failed
	exitUsage  = 2 // a mistake in the command line, the file or the environment
)

// adminGrace is how long admin requests in work may take to finish at the end.
const adminGrace = time.Second

func main() {
	embedded.Main() // does not return in the embedded backend's process
	os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr, build))
}

// server is what main needs of the proxy.
type server interface {
	Listen() error                 // binds all addresses
	Addrs() []string               // the bound addresses
	Run(ctx context.Context) error // serves until ctx is done, then drains
	Ready() error
	Stats() stats.Snapshot
	CacheStats() nearcache.Stats
	HotKeys(n int) []stats.HotKey // those that are read most, the hottest first
	SlowCommands(n int) []stats.SlowCommand
	CommandName(id int) string // of the counters at that index in Stats
}

// builder connects to the backend and makes the proxy in front of it; release lets
// go of the backend.
type builder func(ctx context.Context, cfg *conf.Config, logger *slog.Logger) (s server, release func(), err error)

// run is the whole program; it returns the exit code.
func run(args, environ []string, stdout, stderr io.Writer, build builder) int {
	cfg, action, err := conf.Load(args, environ)
	if err != nil {
		fmt.Fprintf(stderr, "cosky-proxy: %v\n", err)
		return exitUsage
	}
	switch action {
	case conf.ShowHelp:
		fmt.Fprint(stdout, conf.Usage())
		return exitOK
	case conf.ShowVersion:
		fmt.Fprintf(stdout, "cosky-proxy %s\n", version)
		return exitOK
	}

	logger := newLogger(cfg, stderr)
	spareProcessor(cfg, environ)
	files := raiseFileLimit(logger)
	ctx, stop := stopOnSignal(logger)
	defer stop()
	limitMemory(ctx, cfg, environ)
	err = serve(ctx, cfg, files, logger, stdout, build)
	if err == nil || ctx.Err() != nil { // what fails because of a stop is no failure
		return exitOK
	}
	fmt.Fprintf(stderr, "cosky-proxy: %v\n", err)
	if m := (mistake{}); errors.As(err, &m) {
		return exitUsage
	}
	return exitFailed
}

// mistake is an error of the configuration that only building can find.
type mistake struct{ error }

// serve starts everything, waits for ctx, and stops everything. files is how many may be open.
func serve(ctx context.Context, cfg *conf.Config, files uint64, logger *slog.Logger, stdout io.Writer, build builder) error {
	s, release, err := build(ctx, cfg, logger)
	if err != nil {
		return err
	}
	defer release()
	if err := s.Listen(); errors.Is(err, proxy.ErrPlaceless) {
		return mistake{err}
	} else if err != nil {
		return err
	}
	adminAddr, stopAdmin, err := startAdmin(cfg, s, logger)
	if err != nil {
		return err
	}
	defer stopAdmin()
	printBanner(stdout, cfg, s.Addrs(), adminAddr)
	checkFileLimit(cfg, files, logger)
	err = s.Run(ctx)
	logger.Info("stopped")
	return err
}

// startAdmin serves the admin pages unless they are switched off; then addr is empty.
func startAdmin(cfg *conf.Config, s server, logger *slog.Logger) (addr string, stop func(), err error) {
	if cfg.Admin == "" {
		return "", func() {}, nil
	}
	a := admin.New(admin.Options{
		Addr:        cfg.Admin,
		Version:     version,
		Stats:       s.Stats,
		Cache:       s.CacheStats,
		HotKeys:     s.HotKeys,
		Slow:        s.SlowCommands,
		CommandName: s.CommandName,
		Ready:       s.Ready,
		Logger:      logger,
	})
	if err := a.Listen(); err != nil {
		return "", nil, err
	}
	go func() {
		if err := a.Serve(); err != nil {
			logger.Error("admin server failed", "error", err)
		}
	}()
	return a.Addr(), func() {
		ctx, cancel := context.WithTimeout(context.Background(), adminGrace)
		defer cancel()
		a.Close(ctx) // at the end of the program nobody is left to act on an error
	}, nil
}

func newLogger(cfg *conf.Config, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: cfg.LogLevel}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
