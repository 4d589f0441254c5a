package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/discovery"
	"cosky-proxy/cluster/embedded"
	"cosky-proxy/conf"
	"cosky-proxy/lua"
	"cosky-proxy/nearcache"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/acl"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/quota"
	"cosky-proxy/proxy/resp"
)

// embeddedVersion is the Redis version that the embedded backend imitates.
const embeddedVersion = "7.0.0"

// build connects to the backend and makes the proxy in front of it.
func build(ctx context.Context, cfg *conf.Config, logger *slog.Logger) (server, func(), error) {
	opts := proxyOptions(cfg, logger)
	var err error
	if opts.TLS, err = listenerTLS(cfg, logger); err != nil {
		return nil, nil, err
	}
	if opts.Upstream.Dialer, err = dialerOf(cfg, logger); err != nil {
		return nil, nil, err
	}
	if err := opts.Reads.Check(); err != nil {
		return nil, nil, mistake{err}
	}
	if err := readUsers(cfg, &opts); err != nil {
		return nil, nil, err
	}
	closeCache, err := openCache(cfg, &opts)
	if err != nil {
		return nil, nil, err
	}
	s, closeBackend, err := connect(ctx, cfg, opts)
	if err != nil {
		closeCache()
		return nil, nil, err
	}
	return s, func() {
		closeBackend()
		closeCache()
	}, nil
}

// readUsers reads the users that the proxy itself answers for.
func readUsers(cfg *conf.Config, opts *proxy.Options) error {
	a := &cfg.Auth
	var err error
	switch {
	case opts.Auth.Mode != proxy.AuthProxy:
		return nil
	case a.File != "":
		var content []byte
		if content, err = os.ReadFile(a.File); err != nil {
			return mistake{fmt.Errorf("cannot read the users of auth.file: %w", err)}
		}
		opts.Auth.Users, err = acl.ParseFile(a.File, content)
	default:
		lines := make([]string, len(a.Users))
		for i, line := range a.Users {
			lines[i] = string(line)
		}
		opts.Auth.Users, err = acl.Parse("auth.users", lines, true)
	}
	if err != nil {
		return mistake{fmt.Errorf("cannot use the users: %w", err)}
	}
	if d := opts.Auth.Users.Default(); d.NoPass() && d.Enabled() {
		opts.Logger.Warn("clients need no password: the default user has none", "rules", d.String())
	}
	return nil
}

func openCache(cfg *conf.Config, opts *proxy.Options) (release func(), err error) {
	n := &cfg.NearCache
	if opts.Cache.Invalidation == proxy.InvalidationOff {
		return func() {}, nil
	}
	cache, err := nearcache.New(nearcache.Options{
		MaxBytes: int64(n.MaxBytes), MaxEntry: int(n.MaxEntry), Stripes: n.Stripes, Overtime: int64(n.StaleFor),
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make the near-cache: %w", err)
	}
	opts.Cache.Cache, opts.Cache.MaxEntry = cache, cache.MaxEntry()
	return cache.Close, nil
}

func connect(ctx context.Context, cfg *conf.Config, opts proxy.Options) (server, func(), error) {
	if cfg.Backend.Kind == conf.Embedded {
		return connectEmbedded(ctx, opts)
	}
	d := discovery.New(discovery.Options{
		Backend:         backendOf(cfg),
		Dialer:          opts.Upstream.Dialer,
		Replicas:        opts.Reads.Any(),
		MaxReplicaLag:   opts.Reads.MaxLag,
		ConnectTimeout:  cfg.Upstream.ConnectTimeout,
		RefreshInterval: cfg.Upstream.RefreshInterval,
		MaxStaleness:    cfg.NearCache.MaxStaleness,
		Logger:          opts.Logger,
	})
	_, err := d.Start(ctx)
	late := discovery.Unreachable(err)
	switch {
	case late: // it may come up later; clients are told to try again until then
		opts.Logger.Warn("the backend cannot be reached yet, trying on", "cause", err)
	case err != nil:
		return nil, nil, err
	}
	info := d.Info()
	opts.Topology = d
	opts.Backend.Mode, opts.Backend.Tracking, opts.Backend.Version = modeOf(cfg.Backend.Kind), info.Tracking, info.Version
	opts.Backend.Commands = d.Commands()
	s, err := proxy.New(opts)
	if err != nil {
		return nil, nil, err
	}
	d.Subscribe(func(t *cluster.Topology) {
		if late {
			late = false
			adoptBackend(s, d.Info(), opts.Logger)
		}
		s.Adopt(t)
	})
	d.SubscribeCommands(s.AdoptCommands)
	watch, stop := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); d.Run(watch) }()
	return discovered{s, d, opts.Logger}, func() { stop(); <-stopped }, nil
}

// adoptBackend tells the proxy what has been reached at last.
func adoptBackend(s *proxy.Server, info discovery.ServerInfo, logger *slog.Logger) {
	if err := s.AdoptBackend(info.Version, info.Tracking); err != nil {
		logger.Error("nothing is cached", "cause", err)
	}
	logger.Info("the backend has been reached", "version", info.Version)
}

// discovered is a proxy that says what it found behind the backend's URL. It does so
// only when it runs: if something else hinders the start, that is all there is to read.
type discovered struct {
	*proxy.Server
	discovery *discovery.Discovery
	logger    *slog.Logger
}

func (s discovered) Run(ctx context.Context) error {
	if t := s.discovery.Current(); t != nil {
		s.logger.Info("serving", "topology", t.String())
	}
	return s.Server.Run(ctx)
}

func connectEmbedded(ctx context.Context, opts proxy.Options) (server, func(), error) {
	b, err := embedded.Start(ctx, opts.Logger)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot start the embedded backend: %w", err)
	}
	release := func() { b.Close() } // at the end of the program nobody is left to act on an error
	opts.Topology = fixed{cluster.NewSingle(1, cluster.Embedded, &cluster.Node{ID: b.Addr(), Addr: b.Addr(), Version: embeddedVersion})}
	opts.Backend.Mode, opts.Backend.Version = cluster.Embedded, embeddedVersion
	s, err := proxy.New(opts)
	if err != nil {
		release()
		return nil, nil, err
	}
	return s, release, nil
}

// fixed is a topology that never changes.
type fixed struct{ t *cluster.Topology }

func (f fixed) Current() *cluster.Topology { return f.t }
func (fixed) Refresh(string)               {}

// backendOf is what discovery has to know of the configuration.
func backendOf(cfg *conf.Config) discovery.Backend {
	b := &cfg.Backend
	return discovery.Backend{
		Mode: modeOf(b.Kind), TLS: b.TLS, Seeds: b.Addrs, MasterName: b.Master, DB: b.DB,
		User: b.User, Password: string(b.Password),
		SentinelUser: cfg.Upstream.SentinelUser, SentinelPassword: string(cfg.Upstream.SentinelPassword),
	}
}

func modeOf(k conf.BackendKind) cluster.Mode {
	switch k {
	case conf.Cluster:
		return cluster.Cluster
	case conf.Sentinel:
		return cluster.Sentinel
	case conf.Embedded:
		return cluster.Embedded
	default:
		return cluster.Standalone
	}
}

// proxyOptions translates the configuration. What only the backend can tell, and
// what has to be made, is still missing.
func proxyOptions(cfg *conf.Config, logger *slog.Logger) proxy.Options {
	c, u, n := &cfg.Clients, &cfg.Upstream, &cfg.NearCache
	return proxy.Options{
		Listen: cfg.Listen, Loops: loops(cfg), Transport: transport(cfg), DrainTimeout: cfg.DrainTimeout, Logger: logger,
		Backend: proxy.Backend{User: cfg.Backend.User, Password: string(cfg.Backend.Password), DB: cfg.Backend.DB},
		Clients: proxy.ClientOptions{
			Max: c.Max, Files: clientFiles(raiseFileLimit(logger)), OutputLimit: int(c.OutputLimit), StallTimeout: c.StallTimeout,
			SubscriberLimit: int(c.SubscriberLimit), MaxInFlight: c.MaxInFlight,
			RequestBuffer: int(c.RequestBuffer), MaxRequest: int(c.MaxRequest),
			IdleTimeout: c.IdleTimeout, HandshakeTimeout: cfg.TLS.HandshakeTimeout, Keepalive: c.TCPKeepalive, BufferMemory: int64(c.BufferMemory),
		},
		Limits: proxy.LimitOptions{Rules: limitsOf(cfg.Limits.Rules), MaxNames: cfg.Limits.MaxNames},
		Upstream: proxy.UpstreamOptions{
			ConnectTimeout: u.ConnectTimeout, Timeout: u.Timeout, MaxPins: u.MaxPins, MaxConnecting: u.MaxConnecting,
			QueueLimit: int(u.QueueLimit), QueueTimeout: u.QueueTimeout, MaxRedirects: u.MaxRedirects,
			BackoffMin: u.ReconnectBackoffMin, BackoffMax: u.ReconnectBackoffMax,
		},
		Reads: proxy.ReadOptions{From: proxy.ReadFrom(u.ReadFrom), Rules: readRulesOf(u.ReadFromCommands), MaxLag: u.MaxReplicaLag, OwnWrites: u.ReadYourWrites},
		Protocol: resp.Limits{
			MaxInline: int(cfg.Protocol.MaxInline), MaxBulk: int64(cfg.Protocol.MaxBulk), MaxArgs: cfg.Protocol.MaxArgs,
		},
		Cache: proxy.CacheOptions{
			Invalidation: proxy.Invalidation(n.Invalidation), MaxStaleness: n.MaxStaleness,
			TTL: n.TTL, PubSubTTL: n.PubSubTTL, MaxEntry: int(n.MaxEntry), StaleFor: n.StaleFor,
			Warmup:      proxy.WarmupOptions{Namespaces: n.Warmup.Namespaces, Concurrency: n.Warmup.Concurrency, Timeout: n.Warmup.Timeout, Rate: n.Warmup.Rate},
			Rules:       rulesOf(n.Rules),
			RefreshIdle: n.RefreshIdle, Scripts: scriptsOf(n.Scripts),
		},
		Hot: proxy.HotOptions{
			Sample: n.Hot.Sample, Interval: n.Hot.Interval,
			Keys: n.Hot.Keys, MinReads: n.Hot.MinReads, Pinned: n.Hot.Pinned, Commands: n.Hot.Commands,
		},
		Auth: proxy.AuthOptions{
			Mode: proxy.AuthMode(cfg.Auth.Mode), LogLength: cfg.Auth.LogMaxLen,
			MaxCredentials: cfg.Auth.MaxCredentials, IdleTimeout: cfg.Auth.IdleTimeout,
		},
		Scripts: proxy.ScriptOptions{MaxCount: cfg.Scripts.MaxCount, MaxBytes: int64(cfg.Scripts.MaxBytes)},
		Facade:  proxy.FacadeOptions{Addrs: cfg.ClusterFacade, Own: cfg.ClusterAnnounce, NodeTimeout: cfg.ClusterNodeTimeout},
		PubSub:  proxy.PubSubOptions{OnLoss: proxy.OnLoss(cfg.PubSub.OnLoss), ResubscribeTimeout: cfg.PubSub.ResubscribeTimeout},
		SlowLog: proxy.SlowLogOptions{SlowerThan: cfg.SlowLog.SlowerThan, MaxLen: cfg.SlowLog.MaxLen},
	}
}

// scriptsOf looks up the effects, whose names the configuration has checked.
func scriptsOf(scripts []conf.CacheScript) (list []*lua.Script) {
	for _, s := range scripts {
		sc, err := lua.Alike(s.SHA, s.Effect)
		if err != nil {
			panic("BUG: a script of the configuration: " + err.Error())
		}
		list = append(list, sc)
	}
	return list
}

// readRulesOf splits exceptions whose form the configuration has checked.
func readRulesOf(list []string) (rules []proxy.ReadRule) {
	for _, text := range list {
		name, from, _ := strings.Cut(text, "=")
		rules = append(rules, proxy.ReadRule{Name: name, From: proxy.ReadFrom(from)})
	}
	return rules
}

func rulesOf(rules []conf.CacheRule) []proxy.Rule {
	var list []proxy.Rule
	for _, r := range rules {
		list = append(list, proxy.Rule{Match: r.Match, Commands: r.Commands, TTL: r.TTL, MaxValue: int(r.MaxValue), Bare: r.Coherence == "ttl"})
	}
	return list
}

func limitsOf(rules []conf.LimitRule) []quota.Rule {
	kinds := map[string]quota.Kind{}
	for k := range quota.Kinds {
		kinds[k.String()] = k
	}
	var list []quota.Rule
	for _, r := range rules {
		list = append(list, quota.Rule{Per: kinds[r.Per], Match: r.Match, Rate: r.Rate, Burst: r.Burst, InFlight: r.InFlight})
	}
	return list
}

func loops(cfg *conf.Config) int {
	if cfg.Loops > 0 {
		return cfg.Loops
	}
	return runtime.GOMAXPROCS(0)
}

func transport(cfg *conf.Config) netloop.Transport {
	switch cfg.Transport {
	case "epoll":
		return netloop.Epoll
	case "goroutine":
		return netloop.Goroutine
	}
	return netloop.DefaultTransport
}
