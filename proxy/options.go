package proxy

import (
	"crypto/tls"
	"log/slog"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/dial"
	"cosky-proxy/lua"
	"cosky-proxy/nearcache"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/quota"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// Backend says what stands behind the proxy and how to log in there.
type Backend struct {
	Mode     cluster.Mode
	User     string // empty: AUTH with the password alone
	Password string // empty: no authentication
	DB       int    // database that a client starts in; 0 on a cluster
	Tracking bool   // the server offers RESP3 and CLIENT TRACKING
	Version  string // redis_version, as HELLO reports it

	// Commands is what the server listed itself; empty: not known, every command of the
	// built-in table is tried.
	Commands []command.Command
}

// Topology is the control plane as the proxy needs it. Both methods may be
// called from any goroutine and never block.
type Topology interface {
	// Current is the newest snapshot.
	Current() *cluster.Topology
	// Refresh asks for a new snapshot soon; reason goes to the log.
	Refresh(reason string)
}

// Invalidation names the sources that keep cached values coherent.
type Invalidation string

// The values of nearcache.invalidation.
const (
	InvalidationAuto     Invalidation = "auto"     // tracking when the backend offers it, else Pub/Sub
	InvalidationPubSub   Invalidation = "pubsub"   // CoSky's events only
	InvalidationTracking Invalidation = "tracking" // client tracking only
	InvalidationBoth     Invalidation = "both"     // an entry needs both streams alive
	InvalidationOff      Invalidation = "off"      // no near-cache
)

// Options configure a Server. Zero values are not defaults: the configuration
// package owns those.
type Options struct {
	Listen       []string          // "host:port", "tls:host:port" or "unix:/path"
	TLS          *tls.Config       // of the listeners that begin with tls:; nil: there are none
	Loops        int               // event loops; a client lives on one for life
	Transport    netloop.Transport // how sockets are driven
	DrainTimeout time.Duration     // how long a graceful stop waits for replies in flight
	Backend      Backend
	Topology     Topology
	Logger       *slog.Logger
	Clients      ClientOptions
	Limits       LimitOptions
	Upstream     UpstreamOptions
	Reads        ReadOptions
	Protocol     resp.Limits
	Cache        CacheOptions
	Hot          HotOptions
	Scripts      ScriptOptions
	Facade       FacadeOptions
	Auth         AuthOptions
	PubSub       PubSubOptions
	SlowLog      SlowLogOptions
}

// FacadeOptions describe the cluster of proxies that clients are shown.
type FacadeOptions struct {
	Addrs []string // host:port of every proxy, as clients reach it; none: clients see one standalone master
	Own   string   // the one of this proxy; empty: found by the addresses it listens on

	NodeTimeout time.Duration // a proxy that is silent for so long is shown as failed; 0: none ever is
}

// ClientOptions bound what one client, and all of them together, may occupy.
type ClientOptions struct {
	Max              int           // connections; further ones get Redis' error and are closed
	Files            int64         // descriptors that they and their private connections to the backend may take; 0: any number
	OutputLimit      int           // bytes of unread replies above which a client's requests are not read on
	StallTimeout     time.Duration // how long clients that read too slowly may hold up a shared lane, altogether
	SubscriberLimit  int           // bytes of unread messages above which a subscriber is cut off
	MaxInFlight      int           // pipelined commands of one client that wait for replies
	RequestBuffer    int           // bytes; a larger request streams through a private connection
	MaxRequest       int           // bytes of a request that has to be held whole
	IdleTimeout      time.Duration // 0: never
	HandshakeTimeout time.Duration // of TLS
	Keepalive        time.Duration // TCP keepalive idle time; 0: off
	BufferMemory     int64         // bytes of all clients' buffers together
}

// LimitOptions bound how many commands clients may send.
type LimitOptions struct {
	Rules    []quota.Rule
	MaxNames int // that each rule counts apart
}

// UpstreamOptions govern connections to the backend.
type UpstreamOptions struct {
	Dialer         *dial.Dialer // how servers are reached; nil: plainly
	ConnectTimeout time.Duration
	Timeout        time.Duration // an ordinary command's reply must make progress within this
	MaxPins        int           // private connections per loop
	MaxConnecting  int           // of them, those being opened at once
	QueueLimit     int           // bytes queued on one lane above which its clients wait
	QueueTimeout   time.Duration // after which they do not any more if the node takes nothing
	MaxRedirects   int           // MOVED, ASK and retries of one command
	BackoffMin     time.Duration // between attempts to reach a node that refuses
	BackoffMax     time.Duration
}

// CacheOptions govern the near-cache. Cache is nil when it is off.
type CacheOptions struct {
	Invalidation Invalidation
	Cache        *nearcache.Cache
	MaxStaleness time.Duration // bound of P4: a lease not renewed for this long is dead
	TTL          time.Duration // no entry lives longer
	PubSubTTL    time.Duration // nor longer than this when Pub/Sub alone covers it
	MaxEntry     int           // bytes of a reply that is still cached
	Warmup       WarmupOptions
	StaleFor     time.Duration // how long entries stand in for a backend that is out of reach; 0: not at all
	Rules        []Rule        // what is cached besides HGETALL and SMEMBERS on CoSky's keys
	RefreshIdle  time.Duration // a view that nobody has read for so long is not kept up to date; 0: all are
	Scripts      []*lua.Script // of somebody else's, whose effects are known
}

// rules are those in force.
func (o *CacheOptions) rules() []Rule {
	if o.Cache == nil {
		return nil
	}
	return o.Rules
}

// HotOptions say which reads are counted, and for which keys replies are kept because
// they are read most. That needs client tracking.
type HotOptions struct {
	Sample   int           // one read in so many is counted; 0: none
	Interval time.Duration // counts are halved, and keys chosen, so often
	Keys     int           // keys found by counting
	MinReads int           // a key has to be read so often, per second
	Pinned   []string      // keys that are always among them
	Commands []string      // whose replies are kept, in lower case; none: all of CacheableCommands
}

// ScriptOptions bound the memory of scripts that passed by, kept to heal NOSCRIPT.
type ScriptOptions struct {
	MaxCount int
	MaxBytes int64
}

// PubSubOptions say what becomes of subscribers when the backend ends their subscription.
type PubSubOptions struct {
	OnLoss             OnLoss
	ResubscribeTimeout time.Duration // how long that may take before they are disconnected
}

// OnLoss is a way to treat subscribers that may have missed messages.
type OnLoss string

// The values of pubsub.on_loss.
const (
	Resubscribe OnLoss = "resubscribe" // subscribe again; they do not notice
	Disconnect  OnLoss = "disconnect"  // as a Redis that goes away would
)
