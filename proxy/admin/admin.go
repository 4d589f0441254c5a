package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"cosky-proxy/nearcache"
	"cosky-proxy/proxy/stats"
)

// Options configure a [Server]. The functions are called from HTTP goroutines,
// several at a time.
type Options struct {
	Addr        string                          // "host:port"; port 0 lets the kernel choose
	Version     string                          // of the proxy, for cosky_proxy_build_info
	Stats       func() stats.Snapshot           // the sum over all loops
	Cache       func() nearcache.Stats          // nil: there is no near-cache
	HotKeys     func(n int) []stats.HotKey      // the n keys that are read most, the hottest first
	Slow        func(n int) []stats.SlowCommand // the n slow commands that ended last, the last one first; negative n: all that there are
	CommandName func(id int) string             // name of the command with that index in the snapshot
	Ready       func() error                    // why clients cannot be served; nil while they can
	Logger      *slog.Logger
}

// Server serves the admin pages. New builds it, Listen binds, Serve runs until Close.
type Server struct {
	// static
	opts Options
	http *http.Server

	// set once by Listen, before Serve
	listener net.Listener
}

// New returns a server that does not listen yet.
func New(opts Options) *Server {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		newCollector(opts),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", index)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { ready(w, opts.Ready()) })
	mux.HandleFunc("GET /hotkeys", func(w http.ResponseWriter, r *http.Request) { hotKeys(w, r, opts.HotKeys) })
	mux.HandleFunc("GET /slowlog", func(w http.ResponseWriter, r *http.Request) { slowLog(w, r, opts.Slow) })
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	// No cmdline: the arguments may hold the backend's password.
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return &Server{
		opts: opts,
		http: &http.Server{
			Handler:           mux,
			ErrorLog:          slog.NewLogLogger(opts.Logger.Handler(), slog.LevelWarn),
			ReadHeaderTimeout: 5 * time.Second,
			IdleTimeout:       2 * time.Minute,
			// No WriteTimeout: a profile takes as long as its reader asks for.
		},
	}
}

// Listen binds the address.
func (s *Server) Listen() error {
	l, err := net.Listen("tcp", s.opts.Addr)
	if err != nil {
		var call *os.SyscallError
		if errors.As(err, &call) {
			err = call.Err // the rest of the text repeats the address
		}
		return fmt.Errorf("cannot listen on %q for admin: %w; --admin takes another address, or off", s.opts.Addr, err)
	}
	s.listener = l
	return nil
}

// Addr is the bound address, with the port the kernel chose.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Serve answers requests until Close, and then returns nil.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve admin requests: %w", err)
	}
	return nil
}

// Close stops the server. Requests in work may finish until ctx is done.
func (s *Server) Close(ctx context.Context) error {
	if err := s.http.Shutdown(ctx); err == nil {
		return nil
	}
	return s.http.Close()
}

func index(w http.ResponseWriter, _ *http.Request) {
	io.WriteString(w, "cosky-proxy\n\n/metrics\n/hotkeys\n/slowlog\n/healthz\n/readyz\n/debug/pprof/\n")
}

func ready(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	io.WriteString(w, "ready\n")
}
