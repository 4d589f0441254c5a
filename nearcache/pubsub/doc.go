// Package pubsub is the near-cache's invalidation source for nodes whose writers
// announce changes on Pub/Sub channels.
//
// A Stream keeps one connection to one node, subscribed to the channels of the
// namespaces it was asked to Cover. It runs on goroutines of its own, off the
// data plane; event loops only ask LeaseFor, which takes no lock.
//
// # What a lease proves
//
// Redis writes what it sends to a client in the order in which it executed things.
// A PONG therefore arrives behind every message published before its PING was
// executed:
//
//	stream -> node   PING t0
//	node             executes publish A; PING; publish B
//	node -> stream   message A, PONG t0, message B
//	stream           OnMessage(A), then the lease is renewed to t0 + MaxStaleness
//
// While the lease is alive, every change announced on this node more than MaxStaleness ago
// has been handed to OnMessage. A stream that stalls, at either end or in between, stops renewing
// and its lease lapses by itself; if the connection survives, the next PONG revives it, for
// nothing was lost. A connection that fails revokes its lease at the failing read or
// write. The next connection starts a new lease, since messages may have been missed in between.
//
// LeaseFor returns the lease only for namespaces whose every subscription the node has
// confirmed on the present connection: whoever takes the lease and then sends a
// fetch knows that changes after that fetch will be announced.
//
// All of this holds for messages published on that very node. On a cluster the stream
// must be connected to the node that executes the writes; the cluster bus orders nothing.
package pubsub
