// Package discovery is the control plane for topology: it finds out which servers
// stand behind the proxy, keeps that knowledge fresh and publishes it as
// immutable cluster.Topology snapshots. It also proves, several times per second,
// that each primary still is what the snapshot says, because the near-cache may
// serve a value only while that is proven.
//
//	d := discovery.New(discovery.Options{Backend: backend, ...})
//	topology, err := d.Start(ctx)  // the first snapshot, or every seed with its cause
//	go d.Run(ctx)                  // keeps it fresh
//
// # Goroutines
//
//	Refresh ─► wake (1 slot) ─► Run: snapshot ─► adopt ─► publish ─► subscribers
//	                              │                          │
//	                              ▼                          ▼
//	                         source (links)      one vouch goroutine per primary
//
// Run owns all state but a few atomics. A source (standalone, sentinel, cluster)
// knows how to ask its kind of backend. Each vouch goroutine has connections of
// its own, so a frozen node delays nobody else's proof. Loops only read Current,
// and call Refresh, which never blocks.
//
// # What a snapshot is made of in cluster mode
//
// All known nodes are asked at once for CLUSTER NODES. A frozen one is waited for
// only a moment after the first answer. For every node the record with the
// highest config epoch counts, its own word before hearsay, and a slot belongs
// to the claim with the highest epoch: the same rule by which the nodes
// themselves settle conflicts, so one stale or partitioned node cannot take the
// proxy back to an old map. Seeds are asked only while no known node answers.
//
// # When a primary's lease is renewed, and when revoked
//
// Every MaxStaleness/3 the node is asked for its own view. If it says: primary,
// exactly the slots of the topology, none of them migrating, cluster_state:ok,
// the lease is renewed to MaxStaleness after the question was *sent*. A mere
// silence lets the lease run out. The lease is revoked for ever, and a new
// snapshot with a new lease is asked for, when
//   - the role or the slots changed, or a migration began,
//   - the node's config epoch grew: it lost and regained slots between two questions,
//   - the node answers again after its lease ran out: it may have slept through a
//     failover and not know yet that it was replaced.
//
// With Sentinel the proof is that the node's ROLE is master and a sentinel names
// it; +switch-master revokes at once.
package discovery
