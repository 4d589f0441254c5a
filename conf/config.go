package conf

import (
	"log/slog"
	"time"
)

// Config is everything that can be configured. conf/cosky-proxy.yaml says what
// each option is for.
type Config struct {
	Listen       []string      // addresses for clients: "host:port", "tls:host:port" or "unix:/path"; at least one
	Backend      Backend       // what stands behind the proxy
	Admin        string        // "host:port" of the HTTP server for metrics and health; empty: none
	Loops        int           // event loops; 0: one per CPU
	LogLevel     slog.Level    // least level that is logged
	LogFormat    string        // "text" or "json"
	Transport    string        // "auto", "epoll" or "goroutine"
	DrainTimeout time.Duration // how long a graceful stop waits for replies in flight

	ClusterFacade   []string // "host:port" of the proxies that clients see as a cluster; none: they see one Redis
	ClusterAnnounce string   // which of them this one is; empty: found by Listen

	ClusterNodeTimeout time.Duration // one that is silent for so long is shown as failed; 0: none ever is

	TLS       ListenerTLS
	Auth      Auth
	Clients   Clients
	Limits    Limits
	Upstream  Upstream
	Protocol  Protocol
	NearCache NearCache
	Scripts   Scripts
	PubSub    PubSub
	SlowLog   SlowLog
}

// Auth says who may do what.
type Auth struct {
	Mode           string        // "off", "proxy" or "passthrough"
	Users          []Secret      // proxy: lines of an ACL file, with or without the word user
	File           string        // proxy: an ACL file instead of Users; empty: none
	LogMaxLen      int           // proxy: entries of ACL LOG
	MaxCredentials int           // passthrough: different logins per loop
	IdleTimeout    time.Duration // passthrough: how long the connections of an unused login are kept
}

// Clients bounds what one client, and all of them together, may occupy.
type Clients struct {
	Max             int           // connections at once
	OutputLimit     Bytes         // unread replies of one client above which its requests are not read
	StallTimeout    time.Duration // how long clients that read too slowly may hold up a shared lane, altogether
	SubscriberLimit Bytes         // unread messages above which a subscriber is cut off
	MaxInFlight     int           // pipelined commands of one client that wait for replies
	RequestBuffer   Bytes         // a larger request is streamed through a pin
	MaxRequest      Bytes         // largest request that has to be held whole
	IdleTimeout     time.Duration // 0: never
	TCPKeepalive    time.Duration // 0: off
	BufferMemory    Bytes         // all clients' buffers together
}

// Limits bounds how many commands clients may send.
type Limits struct {
	Rules    []LimitRule
	MaxNames int // addresses, users or namespaces that are counted apart, per rule
}

// Upstream governs the connections to the backend.
type Upstream struct {
	User                string // overrides the user of the backend URL
	Password            Secret // overrides the password of the backend URL
	SentinelUser        string // for logging in to the Sentinels themselves
	SentinelPassword    Secret // for logging in to the Sentinels themselves; empty: no authentication
	TLS                 UpstreamTLS
	AddressMap          []string      // "announced=reachable": where servers are that are not where they say; see AddressPairs
	ConnectTimeout      time.Duration // connecting and logging in
	Timeout             time.Duration // of an ordinary command, until its reply begins
	MaxPins             int           // private connections per loop
	MaxConnecting       int           // of them, those that are being opened at once
	QueueLimit          Bytes         // requests waiting on one lane
	QueueTimeout        time.Duration // how long they are waited with if none is taken
	MaxRedirects        int           // MOVED, ASK and TRYAGAIN followed for one command
	ReconnectBackoffMin time.Duration // pause after the first failed attempt
	ReconnectBackoffMax time.Duration // longest pause between attempts
	RefreshInterval     time.Duration // topology is asked for at least this often
	ReadFrom            string        // which servers answer reads: one of readPolicies
	ReadFromCommands    []string      // exceptions, NAME=POLICY; the first that names a command counts
	ReadYourWrites      bool          // a client's reads see its own writes, whoever answers
	MaxReplicaLag       time.Duration // how far behind its master a replica may be that is read from
}

// Protocol bounds what a client may send; the defaults are Redis' own.
type Protocol struct {
	MaxBulk   Bytes // one argument
	MaxInline Bytes // one inline command
	MaxArgs   int64 // arguments of one command
}

// NearCache governs the in-process cache.
type NearCache struct {
	Invalidation string        // "auto", "pubsub", "tracking", "both" or "off"
	MaxBytes     Bytes         // all entries together
	MaxEntry     Bytes         // largest reply that is cached
	MaxStaleness time.Duration // how long a silent invalidation stream is trusted
	TTL          time.Duration // longest life of an entry
	PubSubTTL    time.Duration // longest life of an entry that only Pub/Sub covers; 0: such keys are not cached
	Stripes      int           // epoch counters; a power of two; 0: as many as MaxBytes asks for
	Rules        []CacheRule   // what is cached besides CoSky's keys
	Scripts      []CacheScript // scripts that do what one of CoSky's does
	RefreshIdle  time.Duration // a script's reply that nobody reads for so long is not kept up to date
	Hot          Hot

	Warmup Warmup

	StaleFor time.Duration // on_backend_loss: how long cached values stand in for a backend that is out of reach; 0: not at all
}

// Hot says which reads are counted, and which keys are cached because they are read most.
type Hot struct {
	Sample   int           // one read in so many is counted; 0: none
	Interval time.Duration // older counts weigh half, and keys are chosen anew
	Keys     int           // keys chosen by their reads
	MinReads int           // reads per second that a chosen key must have
	Pinned   []string      // keys that are always cached
	Commands []string      // whose replies are cached, in lower case; none: all of CacheableCommands
}

// Warmup says what is read into the near-cache before anybody asks.
type Warmup struct {
	Namespaces  []string      // of CoSky; loaded before the proxy is ready
	Concurrency int           // reads under way at the same time
	Timeout     time.Duration // the proxy is ready after this in any case
	Rate        int           // reads per second of what was hot before an invalidation stream was lost; 0: none
}

// Scripts bounds the scripts remembered to heal NOSCRIPT.
type Scripts struct {
	MaxCount int
	MaxBytes Bytes
}

// PubSub says what becomes of subscribers when the backend ends their subscription.
type PubSub struct {
	OnLoss             string        // "resubscribe" or "disconnect"
	ResubscribeTimeout time.Duration // how long resubscribing may take before they are disconnected
}

// SlowLog says which commands are remembered because clients waited for them.
type SlowLog struct {
	SlowerThan time.Duration // 0: none are
	MaxLen     int           // commands, the last ones
}

// Default returns the configuration that applies where nothing else is said.
func Default() *Config {
	return &Config{
		Listen:       []string{"127.0.0.1:6380"},
		Backend:      Backend{Kind: Embedded},
		Admin:        "127.0.0.1:9180",
		LogLevel:     slog.LevelInfo,
		LogFormat:    "text",
		Transport:    "auto",
		DrainTimeout: 10 * time.Second,

		ClusterNodeTimeout: 3 * time.Second,

		TLS: ListenerTLS{ClientAuth: "off", MinVersion: "1.2", HandshakeTimeout: 10 * time.Second},
		Auth: Auth{
			Mode:           "off",
			LogMaxLen:      128,
			MaxCredentials: 1000,
			IdleTimeout:    60 * time.Second,
		},
		Clients: Clients{
			Max:             10000,
			OutputLimit:     1 * MB,
			StallTimeout:    2 * time.Second,
			SubscriberLimit: 32 * MB,
			MaxInFlight:     256,
			RequestBuffer:   1 * MB,
			MaxRequest:      64 * MB,
			TCPKeepalive:    300 * time.Second,
			BufferMemory:    96 * MB,
		},
		Limits: Limits{MaxNames: 10000},
		Upstream: Upstream{
			TLS:                 UpstreamTLS{MinVersion: "1.2"},
			ConnectTimeout:      2 * time.Second,
			Timeout:             10 * time.Second,
			MaxPins:             10000,
			MaxConnecting:       64,
			QueueLimit:          16 * MB,
			QueueTimeout:        2 * time.Second,
			MaxRedirects:        5,
			ReconnectBackoffMin: 50 * time.Millisecond,
			ReconnectBackoffMax: 2 * time.Second,
			RefreshInterval:     10 * time.Second,
			ReadFrom:            "master",
			MaxReplicaLag:       time.Second,
		},
		Protocol: Protocol{
			MaxBulk:   512 * MB,
			MaxInline: 64 * KB,
			MaxArgs:   1<<31 - 1,
		},
		NearCache: NearCache{
			Invalidation: "auto",
			MaxBytes:     64 * MB,
			MaxEntry:     1 * MB,
			MaxStaleness: time.Second,
			TTL:          60 * time.Second,
			PubSubTTL:    time.Second,
			RefreshIdle:  10 * time.Second,
			Hot: Hot{
				Sample:   16,
				Interval: 10 * time.Second,
				MinReads: 100,
			},
			Warmup: Warmup{Concurrency: 16, Timeout: 30 * time.Second, Rate: 1000},
		},
		Scripts: Scripts{MaxCount: 10000, MaxBytes: 64 * MB},
		PubSub:  PubSub{OnLoss: "resubscribe", ResubscribeTimeout: 10 * time.Second},
		SlowLog: SlowLog{SlowerThan: 10 * time.Millisecond, MaxLen: 128},
	}
}
