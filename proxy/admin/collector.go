package admin

import (
	"runtime"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"cosky-proxy/nearcache"
	"cosky-proxy/proxy/stats"
)

// metric is one figure of a source S.
type metric[S any] struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*S) float64
}

func counter[S any](name, help string, value func(*S) uint64, labels ...string) metric[S] {
	return metric[S]{describe(name, help, labels...), prometheus.CounterValue, func(s *S) float64 { return float64(value(s)) }}
}

func gauge[S any](name, help string, value func(*S) int64, labels ...string) metric[S] {
	return metric[S]{describe(name, help, labels...), prometheus.GaugeValue, func(s *S) float64 { return float64(value(s)) }}
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("cosky_proxy_"+name, help, labels, nil)
}

func (m metric[S]) collect(ch chan<- prometheus.Metric, s *S, labels ...string) {
	ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(s), labels...)
}

// collector turns a snapshot into constant metrics at the time of the scrape. Label
// values are bounded: command names come from the command table, nodes from the topology,
// rules from the configuration, and of keys only the hottest few are shown.
type collector struct {
	// static
	opts           Options
	build          *prometheus.Desc
	totals         []metric[stats.Snapshot]
	cache          []metric[nearcache.Stats]
	commands       []metric[stats.Command]
	commandLatency *prometheus.Desc
	nodes          []metric[stats.Node]
	rules          []metric[stats.Rule]
	limits         []metric[stats.Limit]
	nodeLatency    *prometheus.Desc
	hotKeys        metric[stats.HotKey]
}

func newCollector(opts Options) *collector {
	type S = stats.Snapshot
	type C = nearcache.Stats
	type N = stats.Node
	return &collector{
		opts:  opts,
		build: describe("build_info", "Always 1; the labels say what is running.", "version", "go"),
		totals: []metric[S]{
			gauge("loops", "Event loops.", func(s *S) int64 { return int64(s.Loops) }),
			gauge("clients", "Client connections open now.", func(s *S) int64 { return s.Clients }),
			gauge("subscribers", "Clients in subscribed mode now.", func(s *S) int64 { return s.Subscribers }),
			counter("clients_accepted_total", "Client connections taken on.", func(s *S) uint64 { return s.Accepted }),
			counter("clients_rejected_total", "Client connections refused because clients.max was reached.", func(s *S) uint64 { return s.Rejected }),
			counter("clients_cut_total", "Clients closed because they did not read what was sent to them.", func(s *S) uint64 { return s.Cut }),
			counter("clients_idle_closed_total", "Clients closed by clients.idle_timeout.", func(s *S) uint64 { return s.IdleClosed }),
			counter("protocol_errors_total", "Clients closed for bytes that are not the Redis protocol.", func(s *S) uint64 { return s.ProtocolErrors }),
			counter("client_received_bytes_total", "Bytes read from clients.", func(s *S) uint64 { return s.BytesIn }),
			counter("client_sent_bytes_total", "Bytes written to clients.", func(s *S) uint64 { return s.BytesOut }),
			gauge("client_buffer_bytes", "Bytes held in clients' buffers now.", func(s *S) int64 { return s.BufferBytes }),

			counter("nearcache_hits_total", "Reads answered from the near-cache.", func(s *S) uint64 { return s.Hits }),
			counter("nearcache_misses_total", "Cacheable reads that had to be fetched.", func(s *S) uint64 { return s.Misses }),
			counter("nearcache_joined_total", "Misses that waited for another client's fetch instead of fetching.", func(s *S) uint64 { return s.Joined }),
			counter("nearcache_bypasses_total", "Cacheable reads that passed the near-cache by: a write in flight, a dead lease, no source.", func(s *S) uint64 { return s.Bypasses }),
			counter("nearcache_view_reads_total", "Instances read anew for the script replies that show them.", func(s *S) uint64 { return s.ViewReads }),
			counter("nearcache_invalidations_total", "Invalidations received from the backend or caused by writes.", func(s *S) uint64 { return s.Invalidations }),
			counter("nearcache_volatile_total", "Replies that stopped being cached for a while because they changed more often than they were read.", func(s *S) uint64 { return s.Volatile }),
			counter("nearcache_stale_hits_total", "Reads answered from the near-cache without proof of freshness while the backend was out of reach (nearcache.on_backend_loss).", func(s *S) uint64 { return s.StaleHits }),
			gauge("nearcache_stale_nodes", "Masters that are out of reach and for which the near-cache stands in now.", func(s *S) int64 { return s.StaleNodes }),

			counter("pubsub_feeds_lost_total", "Connections for subscriptions that broke while in use.", func(s *S) uint64 { return s.FeedsLost }),
			counter("pubsub_resubscriptions_total", "Channels and patterns that were put in force again after a loss.", func(s *S) uint64 { return s.Resubscriptions }),
			counter("pubsub_subscribers_dropped_total", "Clients disconnected because their subscription was lost.", func(s *S) uint64 { return s.SubscribersDropped }),

			gauge("lanes", "Shared connections to the backend open now.", func(s *S) int64 { return s.Lanes }),
			gauge("pins", "Private connections leased to clients now.", func(s *S) int64 { return s.Pins }),
			counter("pins_refused_total", "Commands refused because upstream.max_pins was reached.", func(s *S) uint64 { return s.PinsRefused }),
			counter("replica_reads_total", "Reads sent to replicas.", func(s *S) uint64 { return s.ReplicaReads }),
			counter("redirects_total", "MOVED and ASK replies followed.", func(s *S) uint64 { return s.Redirects }),
			counter("retries_total", "Commands sent again after TRYAGAIN, CLUSTERDOWN and the like.", func(s *S) uint64 { return s.Retries }),
			counter("timeouts_total", "Commands, and connections, that were given up because no reply came within upstream.timeout.", func(s *S) uint64 { return s.Timeouts }),
			counter("queue_full_total", "Commands refused because a full queue to a node (upstream.queue_limit) did not move for upstream.queue_timeout.", func(s *S) uint64 { return s.QueueFull }),
			counter("scripts_healed_total", "NOSCRIPT replies answered by loading the script again.", func(s *S) uint64 { return s.ScriptsHealed }),

			counter("slow_commands_total", "Commands that clients waited for at least slowlog.slower_than.", func(s *S) uint64 { return s.SlowCommands }),
		},
		cache: []metric[C]{
			gauge("nearcache_entries", "Replies held in the near-cache now, void ones included.", func(c *C) int64 { return c.Entries }),
			gauge("nearcache_bytes", "Memory the held replies are charged for.", func(c *C) int64 { return c.Bytes }),
			counter("nearcache_fills_total", "Replies stored in the near-cache.", func(c *C) uint64 { return c.Fills }),
			counter("nearcache_lost_fills_total", "Replies not stored because something changed during the fetch.", func(c *C) uint64 { return c.Lost }),
			counter("nearcache_dropped_fills_total", "Replies not stored for want of room.", func(c *C) uint64 { return c.Dropped }),
			counter("nearcache_exits_total", "Replies the near-cache let go of: replaced, evicted or not admitted.", func(c *C) uint64 { return c.Exits }),
			counter("nearcache_epochs_total", "Writes, invalidations and revealing replies that voided a stripe.", func(c *C) uint64 { return c.Epochs }),
		},
		commands: []metric[stats.Command]{
			counter("commands_total", "Replies sent to clients.", func(c *stats.Command) uint64 { return c.Calls }, "command"),
			counter("command_errors_total", "Error replies sent to clients.", func(c *stats.Command) uint64 { return c.Errors }, "command"),
		},
		commandLatency: describe("command_duration_seconds", "Time from a request to its reply, as the proxy sees it.", "command"),
		nodes: []metric[N]{
			counter("node_commands_total", "Commands sent to the node.", func(n *N) uint64 { return n.Calls }, "node"),
			counter("node_errors_total", "Error replies received from the node.", func(n *N) uint64 { return n.Errors }, "node"),
			counter("node_received_bytes_total", "Bytes read from the node.", func(n *N) uint64 { return n.BytesIn }, "node"),
			counter("node_sent_bytes_total", "Bytes written to the node.", func(n *N) uint64 { return n.BytesOut }, "node"),
			counter("node_connects_total", "Connections established to the node.", func(n *N) uint64 { return n.Connects }, "node"),
			counter("node_connect_errors_total", "Attempts to connect to the node that failed.", func(n *N) uint64 { return n.ConnectErrors }, "node"),
			counter("node_connections_lost_total", "Connections to the node that broke or were given up.", func(n *N) uint64 { return n.ConnectionsLost }, "node"),
			gauge("node_connections", "Connections to the node open now.", func(n *N) int64 { return n.Connections }, "node"),
			gauge("node_breaker_open", "Loops on which the node's circuit breaker is not closed now.", func(n *N) int64 { return n.Open }, "node"),
			counter("node_breaker_trips_total", "Times that the node's circuit breaker opened, on any loop.", func(n *N) uint64 { return n.Trips }, "node"),
			counter("node_breaker_refused_total", "Connections to the node that commands wanted while its circuit breaker was open.", func(n *N) uint64 { return n.Refused }, "node"),
		},
		rules: []metric[stats.Rule]{
			counter("nearcache_rule_hits_total", "Reads that a rule lets be kept, answered from the near-cache.", func(r *stats.Rule) uint64 { return r.Hits }, "rule", "match"),
			counter("nearcache_rule_misses_total", "Reads that a rule lets be kept, which had to be fetched.", func(r *stats.Rule) uint64 { return r.Misses }, "rule", "match"),
		},
		limits: []metric[stats.Limit]{
			counter("limit_too_fast_total", "Commands that a rule of limits.rules has refused because of its rate.", func(m *stats.Limit) uint64 { return m.TooFast }, "rule", "per", "match"),
			counter("limit_too_many_total", "Commands that a rule of limits.rules has refused because too many were in flight.", func(m *stats.Limit) uint64 { return m.TooMany }, "rule", "per", "match"),
		},
		nodeLatency: describe("node_command_duration_seconds", "Time from sending a command to the node to its reply.", "node"),
		hotKeys:     newHotKeyMetric(),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.build
	ch <- c.commandLatency
	ch <- c.nodeLatency
	ch <- c.hotKeys.desc
	describeAll(ch, c.totals)
	describeAll(ch, c.cache)
	describeAll(ch, c.commands)
	describeAll(ch, c.nodes)
	describeAll(ch, c.rules)
	describeAll(ch, c.limits)
}

func describeAll[S any](ch chan<- *prometheus.Desc, metrics []metric[S]) {
	for _, m := range metrics {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.opts.Stats()
	ch <- prometheus.MustNewConstMetric(c.build, prometheus.GaugeValue, 1, c.opts.Version, runtime.Version())
	for _, m := range c.totals {
		m.collect(ch, &s)
	}
	if c.opts.Cache != nil {
		cache := c.opts.Cache()
		for _, m := range c.cache {
			m.collect(ch, &cache)
		}
	}
	for id := range s.Commands {
		if s.Commands[id].Calls == 0 {
			continue // hundreds of commands that nobody uses would only be noise
		}
		name := c.opts.CommandName(id)
		for _, m := range c.commands {
			m.collect(ch, &s.Commands[id], name)
		}
		ch <- histogram(c.commandLatency, &s.Commands[id].Latency, name)
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		for _, m := range c.nodes {
			m.collect(ch, n, n.Addr)
		}
		ch <- histogram(c.nodeLatency, &n.Latency, n.Addr)
	}
	for i := range s.Rules {
		r := &s.Rules[i]
		for _, m := range c.rules {
			m.collect(ch, r, strconv.Itoa(i+1), strings.ToValidUTF8(r.Match, "\uFFFD"))
		}
	}
	for i := range s.Limits {
		n := &s.Limits[i]
		for _, m := range c.limits {
			m.collect(ch, n, strconv.Itoa(i+1), n.Per, strings.ToValidUTF8(n.Match, "\uFFFD"))
		}
	}
	for _, k := range c.opts.HotKeys(shownHotKeys) {
		c.hotKeys.collect(ch, &k, printable(k.Key), strconv.Itoa(k.DB))
	}
}

// histogram converts to Prometheus' form: cumulative buckets, seconds.
func histogram(desc *prometheus.Desc, h *stats.Histogram, label string) prometheus.Metric {
	buckets := make(map[float64]uint64, len(h.Buckets))
	var n uint64
	for i, b := range h.Buckets {
		n += b
		if bound, ok := stats.UpperBound(i); ok {
			buckets[bound.Seconds()] = n
		}
	}
	return prometheus.MustNewConstHistogram(desc, n, float64(h.Sum)/1e9, buckets, label)
}
