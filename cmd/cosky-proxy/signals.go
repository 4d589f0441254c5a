package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// stopOnSignal returns a context that ends at the first SIGINT or SIGTERM. A second
// one ends the program at once. SIGHUP only says that it does nothing yet. The
// caller calls stop when it no longer wants signals handled.
func stopOnSignal(logger *slog.Logger) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-signals:
				handleSignal(s, ctx, cancel, logger)
			case <-done:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}

func handleSignal(s os.Signal, ctx context.Context, cancel func(), logger *slog.Logger) {
	switch {
	case s == syscall.SIGHUP:
		logger.Warn("SIGHUP ignored: reloading the configuration is not supported yet; restart instead")
	case ctx.Err() == nil:
		logger.Info("stopping gracefully; a second signal stops at once", "signal", s.String())
		cancel()
	default:
		logger.Warn("stopping at once", "signal", s.String())
		os.Exit(exitFailed)
	}
}
