package stats

import (
	"slices"
	"time"
)

// Counters are a loop's totals that belong to no command or node.
type Counters struct {
	// Clients.
	Clients        int64  // connected now
	Subscribers    int64  // of them, in subscribed mode
	Paused         int64  // of them, held by CLIENT PAUSE
	Accepted       uint64 // connections taken on
	Rejected       uint64 // connections refused because clients.max was reached
	Cut            uint64 // clients closed because they did not read their replies or messages
	IdleClosed     uint64 // clients closed by clients.idle_timeout
	ProtocolErrors uint64 // clients closed for bytes that are not RESP
	BytesIn        uint64 // read from clients
	BytesOut       uint64 // written to clients
	BufferBytes    int64  // held in clients' buffers now

	// Near-cache.
	Hits          uint64 // reads answered from memory
	Misses        uint64 // cacheable reads that had to be fetched
	Joined        uint64 // of the misses, those that waited for another client's fetch
	Bypasses      uint64 // cacheable reads sent on uncached: a write in flight, a dead lease, no source
	Invalidations uint64 // invalidations received or caused by writes
	Volatile      uint64 // replies that stopped being cached for a while: changed more often than read
	StaleHits     uint64 // reads answered from memory without proof of freshness, the backend being out of reach
	StaleNodes    int64  // masters for which entries stand in now
	ViewReads     uint64 // instances read anew for the script replies that show them

	// Pub/Sub.
	FeedsLost          uint64 // subscription connections that broke while in use
	Resubscriptions    uint64 // channels and patterns that were put in force again
	SubscribersDropped uint64 // clients disconnected because theirs was not

	// Upstream.
	Lanes         int64  // shared connections open now
	Pins          int64  // private connections leased to clients now
	PinsRefused   uint64 // commands refused because upstream.max_pins was reached
	Redirects     uint64 // MOVED and ASK replies followed
	ReplicaReads  uint64 // reads sent to replicas
	Retries       uint64 // TRYAGAIN, CLUSTERDOWN and the like, sent again
	Timeouts      uint64 // commands, and connections, that were given up because no reply came within upstream.timeout
	QueueFull     uint64 // commands refused because a full queue to a node did not move
	ScriptsHealed uint64 // NOSCRIPT replies answered by loading the script again

	SlowCommands uint64 // that took slowlog.slower_than or longer
}

// Command counts one command (or subcommand).
type Command struct {
	Calls   uint64    // replies sent to clients
	Errors  uint64    // of them, error replies
	Latency Histogram // from the request's last byte read to its reply's first byte ready
}

// Rule counts the reads that a rule of the near-cache lets be kept.
type Rule struct {
	Match  string // keys, as the rule names them
	Hits   uint64 // answered from memory
	Misses uint64 // fetched
}

// Limit counts the commands that a rule of limits.rules has refused.
type Limit struct {
	Per, Match string // what it counts by, as the rule says
	TooFast    uint64 // because of its rate
	TooMany    uint64 // because too many were in flight
}

// Node counts the traffic with one Redis server.
type Node struct {
	Addr            string // as in the topology
	Calls           uint64 // commands sent
	Errors          uint64 // error replies received
	BytesIn         uint64 // read from the node
	BytesOut        uint64 // written to the node
	Connects        uint64 // connections established
	ConnectErrors   uint64 // attempts that failed
	ConnectionsLost uint64 // established connections that broke or were given up
	Connections     int64  // open now
	Trips           uint64 // times that its circuit breaker opened
	Refused         uint64 // connections that clients wanted while it was
	Open            int64  // loops on which it is not closed now
	Latency         Histogram
}

// Loop is what one event loop counts. All of it is owned by that loop's goroutine.
type Loop struct {
	Counters
	Commands []Command // indexed by command ID
	Nodes    []*Node   // in order of first use; pointers stay valid for the loop's life
	Rules    []Rule    // in the order of the configuration; none: there are no rules
	Limits   []Limit   // likewise
}

// NewLoop returns a Loop that can count commands with IDs below commands.
func NewLoop(commands int) *Loop { return &Loop{Commands: make([]Command, commands)} }

// Grow makes room for commands with IDs below commands.
func (l *Loop) Grow(commands int) {
	if missing := commands - len(l.Commands); missing > 0 {
		l.Commands = append(l.Commands, make([]Command, missing)...)
	}
}

// Node returns the counters of the node at addr, new ones at its first use. It
// searches and may allocate: connections look it up once and keep the pointer.
func (l *Loop) Node(addr string) *Node {
	for _, n := range l.Nodes {
		if n.Addr == addr {
			return n
		}
	}
	n := &Node{Addr: addr}
	l.Nodes = append(l.Nodes, n)
	return n
}

// Forget drops the counters of a node that left the topology, so that a cluster
// whose addresses change does not grow the list for ever. Connections that still
// hold the pointer may go on counting; nobody sees it.
func (l *Loop) Forget(addr string) {
	l.Nodes = slices.DeleteFunc(l.Nodes, func(n *Node) bool { return n.Addr == addr })
}

// Snapshot copies everything. Only the loop's goroutine may call it; the copy
// belongs to the caller.
func (l *Loop) Snapshot() Snapshot {
	s := Snapshot{
		Loops:    1,
		Counters: l.Counters,
		Commands: slices.Clone(l.Commands),
		Nodes:    make([]Node, len(l.Nodes)),
		Rules:    slices.Clone(l.Rules),
		Limits:   slices.Clone(l.Limits),
	}
	for i, n := range l.Nodes {
		s.Nodes[i] = *n
	}
	return s
}

// Snapshot is the sum of one or more loops' counts at a moment. The zero value is
// the sum of none.
type Snapshot struct {
	Counters
	Loops    int // how many loops are in the sum
	Commands []Command
	Nodes    []Node  // one per address
	Rules    []Rule  // as in Loop
	Limits   []Limit // as in Loop
}

// Add adds o to s. It leaves o alone and keeps no reference to it.
func (s *Snapshot) Add(o *Snapshot) {
	s.Loops += o.Loops
	s.Counters.add(&o.Counters)
	if missing := len(o.Commands) - len(s.Commands); missing > 0 {
		s.Commands = append(s.Commands, make([]Command, missing)...)
	}
	for i := range o.Commands {
		s.Commands[i].add(&o.Commands[i])
	}
	if s.Rules == nil {
		s.Rules = slices.Clone(o.Rules)
	} else {
		for i := range o.Rules {
			s.Rules[i].Hits += o.Rules[i].Hits
			s.Rules[i].Misses += o.Rules[i].Misses
		}
	}
	if s.Limits == nil {
		s.Limits = slices.Clone(o.Limits)
	} else {
		for i := range o.Limits {
			s.Limits[i].TooFast += o.Limits[i].TooFast
			s.Limits[i].TooMany += o.Limits[i].TooMany
		}
	}
	for i := range o.Nodes {
		s.node(o.Nodes[i].Addr).add(&o.Nodes[i])
	}
}

func (s *Snapshot) node(addr string) *Node {
	for i := range s.Nodes {
		if s.Nodes[i].Addr == addr {
			return &s.Nodes[i]
		}
	}
	s.Nodes = append(s.Nodes, Node{Addr: addr})
	return &s.Nodes[len(s.Nodes)-1]
}

func (c *Counters) add(o *Counters) {
	c.Clients += o.Clients
	c.Subscribers += o.Subscribers
	c.Paused += o.Paused
	c.Accepted += o.Accepted
	c.Rejected += o.Rejected
	c.Cut += o.Cut
	c.IdleClosed += o.IdleClosed
	c.ProtocolErrors += o.ProtocolErrors
	c.BytesIn += o.BytesIn
	c.BytesOut += o.BytesOut
	c.BufferBytes += o.BufferBytes

	c.Hits += o.Hits
	c.Misses += o.Misses
	c.Joined += o.Joined
	c.Bypasses += o.Bypasses
	c.Invalidations += o.Invalidations
	c.Volatile += o.Volatile
	c.StaleHits += o.StaleHits
	c.StaleNodes += o.StaleNodes
	c.ViewReads += o.ViewReads

	c.FeedsLost += o.FeedsLost
	c.Resubscriptions += o.Resubscriptions
	c.SubscribersDropped += o.SubscribersDropped

	c.Lanes += o.Lanes
	c.Pins += o.Pins
	c.PinsRefused += o.PinsRefused
	c.Redirects += o.Redirects
	c.ReplicaReads += o.ReplicaReads
	c.Retries += o.Retries
	c.Timeouts += o.Timeouts
	c.QueueFull += o.QueueFull
	c.ScriptsHealed += o.ScriptsHealed

	c.SlowCommands += o.SlowCommands
}

func (c *Command) add(o *Command) {
	c.Calls += o.Calls
	c.Errors += o.Errors
	c.Latency.add(&o.Latency)
}

func (n *Node) add(o *Node) {
	n.Calls += o.Calls
	n.Errors += o.Errors
	n.BytesIn += o.BytesIn
	n.BytesOut += o.BytesOut
	n.Connects += o.Connects
	n.ConnectErrors += o.ConnectErrors
	n.ConnectionsLost += o.ConnectionsLost
	n.Connections += o.Connections
	n.Trips += o.Trips
	n.Refused += o.Refused
	n.Open += o.Open
	n.Latency.add(&o.Latency)
}

// HotKey is how much a key is read.
type HotKey struct {
	Key     string  // any bytes
	DB      int     // database
	Command string  // that read it last, in lower case
	Reads   float64 // per second at present, at least
	Cached  string  // why replies to that command are kept: "cosky", "rule", "hot"; "no" if they are not
}

// SlowCommand is an entry of the proxy's slow log.
type SlowCommand struct {
	ID      int64 // in the order in which they ended
	At      time.Time
	Took    time.Duration // from the request's last byte read to its reply ready
	Command string        // in lower case, with its subcommand
	Keyed   bool          // it has a first key
	Key     string        // the beginning of that
	KeySize int           // bytes of the whole key
	Args    int           // arguments, the name included
	Size    int           // bytes of the request
	DB      int
	Addr    string // of the client
	Name    string // of the client
	User    string
	From    string // who answered: the address of a backend, "near-cache", "proxy" or, when the client had gone, "nobody"
	Retries int    // redirects and repeats
	Error   string // the code of an error reply; empty: it was none
}
