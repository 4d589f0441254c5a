package main

import (
	"context"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"syscall"
	"time"

	"cosky-proxy/conf"
)

// Garbage is memory all the same, and the user was promised a budget for the near-cache: there
// may be an eighth of that, or what is little anyway. The collector's own measure, a percentage of
// what is in use, follows that: it is smaller the fuller the cache is. The data plane allocates next to nothing
// in steady state, so collections are rare whatever the percentage.
const (
	littleGarbage = 16 * conf.MB
	mostPercent   = 50 // as long as little is in use
)

// gcPercent is the percentage for so many bytes in use.
func gcPercent(cfg *conf.Config, live conf.Bytes) int {
	return int(min(mostPercent, 100*max(littleGarbage, cfg.NearCache.MaxBytes/8)/max(live, 1)))
}

// limitMemory tunes the garbage collector to the configured bounds, unless the user
// did so with GOGC or GOMEMLIMIT, until ctx is done.
func limitMemory(ctx context.Context, cfg *conf.Config, environ []string) {
	if !isSet(environ, "GOMEMLIMIT") {
		debug.SetMemoryLimit(memoryLimit(cfg))
	}
	if !isSet(environ, "GOGC") {
		debug.SetGCPercent(mostPercent)
		go followHeap(ctx, cfg)
	}
}

// followHeap keeps the percentage what the bytes in use ask for. A change stops the
// world for a moment, so it is made when it matters.
func followHeap(ctx context.Context, cfg *conf.Config) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	present := mostPercent
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		metrics.Read(live)
		want := gcPercent(cfg, conf.Bytes(live[0].Value.Uint64()))
		if diff := want - present; 10*max(diff, -diff) > present {
			debug.SetGCPercent(want)
			present = want
		}
	}
}

// memoryLimit is the sum of what the configuration allows plus room for the rest, in
// bytes. It is soft: above it the collector works harder instead of letting garbage pile up.
func memoryLimit(cfg *conf.Config) int64 {
	const rest = 64 * conf.MB
	return int64(cfg.NearCache.MaxBytes + cfg.Clients.BufferMemory + cfg.Scripts.MaxBytes + rest)
}

// spareProcessor lets the control plane and the collector run beside event loops
// that are all busy: a loop does not yield its processor by itself. It settles the
// number of loops first, which the number of processors decides.
func spareProcessor(cfg *conf.Config, environ []string) {
	cfg.Loops = loops(cfg)
	if need := cfg.Loops + 1; !isSet(environ, "GOMAXPROCS") && runtime.GOMAXPROCS(0) < need {
		runtime.GOMAXPROCS(need)
	}
}

func isSet(environ []string, name string) bool {
	return slices.ContainsFunc(environ, func(e string) bool { return strings.HasPrefix(e, name+"=") })
}

// raiseFileLimit raises the number of files this process may open to the most it is
// allowed, which it returns.
func raiseFileLimit(logger *slog.Logger) uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		logger.Warn("cannot read the limit of open files", "error", err)
		return math.MaxUint64
	}
	if limit.Cur < limit.Max {
		raised := limit
		raised.Cur = raised.Max
		// macOS refuses its own "unlimited"; then the old limit stays.
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raised); err == nil {
			limit = raised
		}
	}
	return limit.Cur
}

// reservedFiles are those for lanes, listeners, the control plane and the runtime.
const reservedFiles = 256

// clientFiles is how many of the files that may be open clients and their pins may take. Where hardly more than
// the reserve may be, it is half of them.
func clientFiles(limit uint64) int64 {
	limit = min(limit, math.MaxInt64)
	return max(int64(limit-min(reservedFiles, limit/2)), 1)
}

// checkFileLimit warns when the limit of open files is too low for the configuration.
func checkFileLimit(cfg *conf.Config, limit uint64, logger *slog.Logger) {
	if need := filesNeeded(cfg); limit < need {
		logger.Warn("the limit of open files is too low for the configuration: should so many clients come, or hold private backend connections, the last ones are turned away; raise ulimit -n, or lower clients.max or upstream.max_pins",
			"limit", limit, "needed", need, "left_for_clients", clientFiles(limit), "clients.max", cfg.Clients.Max, "upstream.max_pins", cfg.Upstream.MaxPins)
	}
}

// filesNeeded counts one descriptor per client, one for its pin as far as there may be
// so many, and the reserve.
func filesNeeded(cfg *conf.Config) uint64 {
	return uint64(cfg.Clients.Max + min(loops(cfg)*cfg.Upstream.MaxPins, cfg.Clients.Max) + reservedFiles)
}
