package conf

import "time"

// options declares every key, bound to the fields of c. This is the only list:
// file keys, flags, environment variables, the help text and the checks derive from it.
func options(c *Config) []option {
	const day = 24 * time.Hour
	common := func(o option) option { o.common = true; return o }
	au, cl, up, pr, nc, sc := &c.Auth, &c.Clients, &c.Upstream, &c.Protocol, &c.NearCache, &c.Scripts
	tl, ut := &c.TLS, &c.Upstream.TLS
	return []option{
		common(addresses("listen", &c.Listen, "listen for clients here")),
		common(backend("backend", &c.Backend, "what stands behind the proxy")),
		common(optionalAddress("admin", &c.Admin, "HTTP server with /metrics, /hotkeys, /slowlog, /healthz, /readyz and /debug/pprof; off: none")),
		common(number("loops", &c.Loops, 0, 1024, "event loops; 0: one per CPU")),
		common(level("log_level", &c.LogLevel, "log messages of this level and above")),
		choice("log_format", &c.LogFormat, []string{"text", "json"}, "form of a log line"),
		choice("transport", &c.Transport, []string{"auto", "epoll", "goroutine"}, "how sockets are driven; auto: epoll on Linux"),
		duration("drain_timeout", &c.DrainTimeout, 0, day, "how long a graceful stop waits for replies in flight"),
		reachableAddresses("cluster_facade", &c.ClusterFacade, "proxies that clients are shown as the nodes of a Redis Cluster; off: one standalone Redis"),
		reachableAddress("cluster_announce", &c.ClusterAnnounce, "which address of cluster-facade is this proxy; off: found by what it listens on"),
		orZero(duration("cluster_node_timeout", &c.ClusterNodeTimeout, 100*time.Millisecond, time.Hour, "a proxy of cluster-facade that is silent for so long is shown as failed; 0: none ever is"), &c.ClusterNodeTimeout),

		text("tls.cert", &tl.Cert, "PATH", "PEM file with the certificate that is shown to clients at addresses that begin with tls:"),
		text("tls.key", &tl.Key, "PATH", "PEM file with its private key"),
		choice("tls.client_auth", &tl.ClientAuth, []string{"off", "optional", "required"}, "whether clients have to show a certificate of their own"),
		text("tls.ca", &tl.CA, "PATH", "PEM file with the authorities that sign clients' certificates"),
		choice("tls.min_version", &tl.MinVersion, []string{"1.2", "1.3"}, "oldest version of TLS that clients may use"),
		duration("tls.handshake_timeout", &tl.HandshakeTimeout, 10*time.Millisecond, time.Hour, "a client that has not finished its handshake by then is closed"),

		choice("auth.mode", &au.Mode, []string{"off", "proxy", "passthrough"}, "who decides what clients may do: nobody, the proxy or the backend"),
		secretLines("auth.users", &au.Users, "USER", "users in Redis' ACL syntax, for auth.mode proxy"),
		text("auth.file", &au.File, "PATH", "ACL file with the users, instead of auth.users"),
		number("auth.log_max_len", &au.LogMaxLen, 0, 1_000_000, "entries that ACL LOG keeps"),
		number("auth.max_credentials", &au.MaxCredentials, 1, 1_000_000, "different logins per loop that auth.mode passthrough has connections for"),
		duration("auth.idle_timeout", &au.IdleTimeout, 100*time.Millisecond, day, "how long the connections of a login that no client uses are kept"),

		number("clients.max", &cl.Max, 1, 10_000_000, "client connections at once"),
		size("clients.output_limit", &cl.OutputLimit, 4*KB, 64*GB, "unread replies of one client above which its requests are not read"),
		duration("clients.stall_timeout", &cl.StallTimeout, 10*time.Millisecond, time.Hour, "how long clients that read too slowly may hold up a shared connection, altogether"),
		size("clients.subscriber_limit", &cl.SubscriberLimit, 4*KB, 64*GB, "unread messages above which a subscriber is cut off"),
		number("clients.max_in_flight", &cl.MaxInFlight, 1, 1_000_000, "pipelined commands of one client that wait for replies"),
		size("clients.request_buffer", &cl.RequestBuffer, 16*KB, 1*GB, "a larger request is streamed through a private connection"),
		size("clients.max_request", &cl.MaxRequest, 64*KB, 64*GB, "largest request that has to be held whole, such as an MSET to split"),
		duration("clients.idle_timeout", &cl.IdleTimeout, 0, 365*day, "close a client that neither sends nor takes anything for so long, and waits for nothing; 0: never"),
		duration("clients.tcp_keepalive", &cl.TCPKeepalive, 0, day, "silence before TCP probes a client; 0: no probes"),
		size("clients.buffer_memory", &cl.BufferMemory, 1*MB, 1024*GB, "all clients' buffers together"),

		limitRules("limits.rules", &c.Limits.Rules, "how many commands are allowed: {per: connection|address|user|namespace, match: PATTERN, rate: N, burst: N, in_flight: N}"),
		number("limits.max_names", &c.Limits.MaxNames, 1, 10_000_000, "addresses, users or namespaces that each rule counts apart; further ones share one limit"),

		text("upstream.user", &up.User, "NAME", "log in to the backend as this user; overrides the URL"),
		text("upstream.password", &up.Password, "TEXT", "log in to the backend with this password; overrides the URL"),
		text("upstream.sentinel_user", &up.SentinelUser, "NAME", "log in to the Sentinels as this user"),
		text("upstream.sentinel_password", &up.SentinelPassword, "TEXT", "log in to the Sentinels with this password"),
		text("upstream.tls.ca", &ut.CA, "PATH", "PEM file with the authorities that sign the backend's certificates; empty: those that the system trusts"),
		text("upstream.tls.cert", &ut.Cert, "PATH", "PEM file with the certificate that the backend is shown"),
		text("upstream.tls.key", &ut.Key, "PATH", "PEM file with its private key"),
		text("upstream.tls.server_name", &ut.ServerName, "NAME", "host that the certificates of all servers are for; empty: each one's own"),
		flagOf("upstream.tls.insecure_skip_verify", &ut.InsecureSkipVerify, "take any certificate for the backend's: whoever is in between can read and change everything"),
		choice("upstream.tls.min_version", &ut.MinVersion, []string{"1.2", "1.3"}, "oldest version of TLS to use with the backend"),
		addressMap("upstream.address_map", &up.AddressMap, "where servers are reached that announce another address, host:port=host:port or host=host; off: where they say"),
		duration("upstream.connect_timeout", &up.ConnectTimeout, 10*time.Millisecond, time.Hour, "connecting and logging in to a node"),
		duration("upstream.timeout", &up.Timeout, 10*time.Millisecond, day, "what an ordinary command may take, waiting included, until its reply begins"),
		number("upstream.max_pins", &up.MaxPins, 0, 1_000_000, "private connections per loop (WATCH, blocking commands, large requests)"),
		number("upstream.max_connecting", &up.MaxConnecting, 1, 100_000, "of them, those that are being opened at once"),
		size("upstream.queue_limit", &up.QueueLimit, 64*KB, 64*GB, "requests that wait on one shared connection before its clients are held back"),
		duration("upstream.queue_timeout", &up.QueueTimeout, 10*time.Millisecond, time.Hour, "how long they are waited with if the node takes none"),
		number("upstream.max_redirects", &up.MaxRedirects, 0, 100, "MOVED, ASK and TRYAGAIN followed for one command"),
		duration("upstream.reconnect_backoff_min", &up.ReconnectBackoffMin, time.Millisecond, time.Hour, "pause after the first failed connection attempt"),
		duration("upstream.reconnect_backoff_max", &up.ReconnectBackoffMax, time.Millisecond, time.Hour, "longest pause between connection attempts"),
		duration("upstream.refresh_interval", &up.RefreshInterval, 100*time.Millisecond, day, "ask for the topology at least this often"),
		choice("upstream.read_from", &up.ReadFrom, readPolicies, "which servers answer reads"),
		readRules("upstream.read_from_commands", &up.ReadFromCommands, "exceptions for commands and ACL categories, such as @scripting=master; the first that names a command counts; off: none"),
		flagOf("upstream.read_your_writes", &up.ReadYourWrites, "clients that have written read from the master until a replica is known to have it"),
		duration("upstream.max_replica_lag", &up.MaxReplicaLag, 20*time.Millisecond, time.Hour, "a replica that is further behind its master, or silent for so long, is not read from"),

		size("protocol.max_bulk", &pr.MaxBulk, 1*KB, 16*GB, "one argument of a command"),
		size("protocol.max_inline", &pr.MaxInline, 1*KB, 16*MB, "one inline command"),
		number("protocol.max_args", &pr.MaxArgs, 16, 1<<31-1, "arguments of one command"),

		choice("nearcache.invalidation", &nc.Invalidation, []string{"auto", "pubsub", "tracking", "both", "off"}, "what keeps cached values true; off: no near-cache"),
		size("nearcache.max_bytes", &nc.MaxBytes, 1*MB, 1024*GB, "all cached replies together"),
		size("nearcache.max_entry", &nc.MaxEntry, 64, 1*GB, "largest reply that is cached; at most a quarter of nearcache.max-bytes"),
		duration("nearcache.max_staleness", &nc.MaxStaleness, 20*time.Millisecond, time.Hour, "how long a silent invalidation stream is trusted"),
		duration("nearcache.ttl", &nc.TTL, time.Millisecond, 365*day, "longest life of an entry"),
		duration("nearcache.pubsub_ttl", &nc.PubSubTTL, 0, 365*day, "longest life of an entry that only Pub/Sub covers; 0: do not cache those"),
		powerOfTwo(number("nearcache.stripes", &nc.Stripes, 0, 1<<24, "epoch counters; more of them mean fewer false invalidations; 0: one per KB of nearcache.max-bytes"), &nc.Stripes),
		scripts("nearcache.scripts", &nc.Scripts, "scripts that do what one of CoSky's does: {sha: DIGEST, effect: NAME}"),
		duration("nearcache.refresh_idle", &nc.RefreshIdle, 0, day, "a script's reply that nobody reads for so long is not kept up to date when instances are renewed"),
		rules("nearcache.rules", &nc.Rules, "what else is cached: {match: PATTERN, commands: [GET, …], ttl: 60s, max_value: 1MB, coherence: tracking|ttl}"),
		number("nearcache.hot.sample", &nc.Hot.Sample, 0, 1_000_000, "one read in so many is counted, to find the keys that are read most; 0: none"),
		duration("nearcache.hot.interval", &nc.Hot.Interval, 100*time.Millisecond, day, "counts lose half of their weight so often, and hot keys are chosen anew"),
		number("nearcache.hot.keys", &nc.Hot.Keys, 0, maxHotKeys, "so many of the keys that are read most are cached, where there is client tracking; 0: none"),
		number("nearcache.hot.min_reads", &nc.Hot.MinReads, 1, 1_000_000_000, "reads per second that such a key must have"),
		keys("nearcache.hot.pinned", &nc.Hot.Pinned, "keys that are cached besides, however seldom they are read"),
		commands("nearcache.hot.commands", &nc.Hot.Commands, "commands whose replies are cached of hot keys; off: no such list, all that nearcache.rules can name"),
		onBackendLoss("nearcache.on_backend_loss", &nc.StaleFor, "what is cached while the backend is out of reach: nothing is served, or it stands in for so long at most"),
		names("nearcache.warmup.namespaces", &nc.Warmup.Namespaces, "NAMESPACE", "namespaces of CoSky that are in memory before the proxy is ready; off: none"),
		number("nearcache.warmup.concurrency", &nc.Warmup.Concurrency, 1, 10_000, "reads under way at the same time"),
		duration("nearcache.warmup.timeout", &nc.Warmup.Timeout, 100*time.Millisecond, time.Hour, "the proxy is ready after this in any case"),
		number("nearcache.warmup.rate", &nc.Warmup.Rate, 0, 1_000_000, "reads per second of what was in use when its invalidation stream was lost; 0: none"),

		number("scripts.max_count", &sc.MaxCount, 0, 10_000_000, "scripts remembered to heal NOSCRIPT"),
		size("scripts.max_bytes", &sc.MaxBytes, 0, 64*GB, "memory of those scripts"),

		choice("pubsub.on_loss", &c.PubSub.OnLoss, []string{"resubscribe", "disconnect"}, "what becomes of subscribers when the backend ends their subscription"),
		duration("pubsub.resubscribe_timeout", &c.PubSub.ResubscribeTimeout, 100*time.Millisecond, day, "how long resubscribing may take before they are disconnected"),

		orZero(duration("slowlog.slower_than", &c.SlowLog.SlowerThan, time.Microsecond, day, "commands that a client waits for so long are remembered for PROXY SLOWLOG; 0: none are"), &c.SlowLog.SlowerThan),
		number("slowlog.max_len", &c.SlowLog.MaxLen, 1, 100_000, "so many of them, the last ones"),
	}
}
