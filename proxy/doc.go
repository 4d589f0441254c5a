// Package proxy is the data plane: it takes Redis commands from clients, sends
// them to the server that owns their keys, and gives the replies back in order.
//
// # Reading order
//
// Server (server.go) owns N loops. A loop (loop.go) owns everything else, on one
// goroutine: sessions (session.go), one per client; nodes (node.go), one per Redis
// server; lanes (lane.go), the connections to a node. A request (request.go) is one
// command on its way, with a place in its session's queue and one in its lane's.
//
//	session.OnData → next → dispatch → handler or forward → send → lane
//	lane.OnData → take → reply → finish → session's output
//
// What is not simply forwarded (forward.go) has a handler (handlers.go): connection state
// (connection.go), logins (auth.go, aclcommand.go) and what they allow (aclguard.go, passthrough.go, opinion.go),
// CLIENT (clients.go, pause.go, mute.go), client tracking (tracking.go, ear.go), MONITOR (monitor.go),
// COMMAND (commandinfo.go), transactions (transaction.go and its kin), blocking commands (pin.go, unblock.go,
// wait.go), Pub/Sub (subscribe.go, publish.go; venue.go says on which node, hub.go shares subscriptions, feed.go is a
// connection that has them, roster.go counts clients), scripts (scripts.go), INFO (info.go), PROXY
// (proxycommand.go, proxycache.go, slowlog.go), commands split or sent to every shard (scatter.go, wide.go,
// scan.go), requests too large to hold (upload.go).
//
// What clients may occupy is in budget.go, bulk.go and files.go, how many commands they may send in throttle.go. No
// command takes too long (deadline.go, patience.go). Replies that speak of the backend's state are followed up in
// redirect.go, what is sent again keeps its order in again.go and traffic.go. What becomes of commands whose server is lost is in
// fate.go (sent again or not), hope.go (waiting for a successor), breaker.go (failing at once) and queue.go (a
// server that takes nothing). Who else than the owner of a key may answer reads is the matter of replicas.go.
// Which commands there are the backend says (vocabulary.go, inquiry.go), and what else it can do (abilities.go);
// doubt.go asks it before the proxy answers for it. dial.go opens connections to it; tls.go puts clients' under
// TLS; facade.go and facade_watch.go make proxies look like a cluster.
//
// The near-cache is used in cached.go: what can be kept (reads.go), for how long when fields expire (fieldexpiry.go),
// of which keys (rules.go, glob.go), MGET (bundle.go), and which loop fetches (curator.go); replies that wait for all
// invalidations sent before them (raise.go); events.go feeds it from CoSky's Pub/Sub. Replies of CoSky's scripts are
// views (view.go, viewfetch.go, watch.go, hearing.go). hotkeys.go counts reads and hotset.go chooses the hot keys,
// warmup.go reads ahead, sync.go is COSKY.SYNC, stale.go stands in for a lost backend.
//
// # Lanes and pins
//
// A lane is shared by all sessions of a loop that need the same connection state:
// protocol version, database and, where clients log in at the backend, login. Replies are copied, never converted, hence a lane
// per protocol. State that cannot be shared (WATCH, a blocking command, a request of half a
// gigabyte) takes a pin: the same type, leased to one session. A session whose state is
// to last has a home (home.go): a pin per node, on which all of its commands travel.
//
// # Order
//
// Commands of one session that travel on one lane are executed in order. The
// session makes sure of the rest: before a command takes another way than those
// still in flight, it waits for them (session.mustWait, session.send, session.touched).
//
// # Effects on the near-cache
//
// Every command that may write a cacheable key, or whose reply shows one, carries
// touches. They begin before it is sent (loop.begin) and end before its reply is
// seen (loop.settle); package nearcache explains why that suffices.
//
// # Concurrency
//
// A loop's fields belong to its goroutine; other goroutines use netloop.Loop.Post. Handlers must not
// block. What loops share is listed in ARCHITECTURE.md (Concurrency), with its locks: none of them is on the path of a plain
// command, a cache hit or a message.
package proxy
