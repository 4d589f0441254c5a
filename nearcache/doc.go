// Package nearcache keeps replies of Redis in this process and serves them only
// while they are provably current. It knows no Redis: whoever fetches, writes and
// listens for invalidations tells it what happened, and it decides what may be
// served. Any number of event loops share one Cache.
//
// # The promise
//
// For every key, what the clients of one proxy see is linearizable, cached or not:
// a read never returns a value older than a write that was acknowledged before the
// read began, nor older than what a read answered before it began. For changes that
// go around the proxy a hit is at most as old as its leases allow.
//
// # Stripes
//
// A Stripe is one cache line: one atomic word and a directory. Keys are mapped to
// stripes by hash; named sets of keys (groups, hash tags) have a stripe as well, by
// the hash of their name; and every entry depends on the stripe All.
//
//	word:      epoch (30 bits) | fills (12) | busy (1) | pending (21)
//	directory: 7 ways, each empty or the identity of one entry, tag (24) | serial (40)
//
//	event                                         call          effect
//	a write that may touch s is about to be sent  Begin(s)      pending++
//	its reply arrived, or its fate is unknown     End(s)        epoch++, pending--
//	s has changed, or an uncached reply is about  Bump(s)       epoch++
//	  to reveal the present state of s
//	an invalidation push for s was read           Push(s)       epoch++, and Fetch.Advance
//	a key is to be fetched                        StartFetch    remembers the words
//	the fetched reply has arrived                 Fill          fills++ and a way; or lost: nothing
//
// A Question names a key, a command and its arguments: an entry is the reply to one. It
// lives and dies with the stripe of its key. Its way is in the directory of its home:
// the key's stripe when the key's whole value was asked for, else a stripe by the
// hash of the whole question, so that many fields of one hash can be cached and
// fetched at the same time.
//
// An Entry carries the words its fetch remembered. It is valid while epoch and
// pending of each of its stripes still equal them, its way in the directory of its
// home still names it, its leases are alive and its time is not over. All
// of these are looked at on each hit; nothing has to be found and deleted to make
// an entry void. Bump and its kin cost one atomic add.
//
// # Several questions about one key
//
// The directory orders the answers to one question. An answer to another question about the
// same key may show a newer state, too, when a change around the proxy is announced
// late, and nothing here would void the older entry. So the caller owes that all
// fetches of one key travel on one connection, whose invalidations come in order with its
// replies: what makes the older entry void was then read, and handed to Push, before
// the newer reply. Where there are no invalidations (a bare time to live) nobody gives this order.
//
// # Hot keys
//
// A fetched reply whose stripe has moved on could be delivered, behind a Bump, or
// thrown away, and its readers ask again. On a key that several loops ask for all the time
// only the second converges after a change; Fill explains why. In the simulator
// (sim_test.go), which runs a calm phase after a stormy one, about 60 % of
// the calm reads are hits, and 25 % when lost replies are delivered.
//
// # Consequences of the layout
//
// Two things follow from the layout. The same stripe serves several keys, so
// an event voids its neighbours too: that costs a fetch, never an answer. And more
// than seven entries of one stripe cannot be valid at once: New therefore makes
// enough stripes that the byte budget is used up first.
//
// # Views
//
// An entry may show more keys than the one it was asked for: view.go tells how replies of
// scripts are covered, by stripes of their own, and replaced by their owner.
//
// # Why a directory
//
// Epochs alone do not keep reads from going back. The value of a key may be fetched
// twice with no epoch in between, when it is changed around the proxy and the
// invalidation is still on its way. The older entry must be void before the newer
// reply is delivered, wherever it is: in the store, in a store's queue of sets that
// are not visible yet, in the front table of another loop. Storage is a library that
// promises nothing here (a get after a set misses, a set may be dropped, a dropped
// set leaves the old value in place), so what it returns is only a candidate; the
// way decides. Evictions clear the way, which empties all front tables at once.
//
// # The order of calls
//
// The caller owes the cache this order; each line is one race.
//
//   - Begin before a write's first byte may reach a node; End after its reply (or
//     the loss of its connection) and before any client may see that reply.
//   - Bump after an uncached reply arrived and before a client may see it, unless
//     the reply says nothing about current content.
//   - StartFetch, and the choice of Fetch.Leases, before the fetch is sent.
//   - Fill before any client may see the fetched reply, and only if Fill allows it. A lost
//     reply that is delivered all the same, and one that is not to be stored (too
//     large, WRONGTYPE), is treated like an uncached one: Bump first. An error
//     that says nothing about the key (LOADING, MOVED) needs neither.
//   - A reader joins a fetch in flight only if it is still Current.
//   - An entry's deadline is counted from the moment its fetch was sent, not from the
//     moment its remaining time to live was read.
//   - Commands of one client are ordered even when they are pipelined, and the cache knows
//     no clients. The stripe's pending count makes a read behind a client's own
//     write bypass; that a hit, a fetch and a bypass of one client do not
//     overtake each other on different connections is for the session to see to.
//
// # Storage
//
// A Reader, one per loop, answers hot keys from a small front table with no lock and
// no allocation (Get), and what it answered lately without even hashing the key (Recall). Behind it stands a store bounded in bytes (ristretto), where every
// entry is charged for what it really occupies, key and bookkeeping included. The
// store may lose anything at any time. Loops call only its get and set, which
// do not wait; its delete can block and is never used: a void entry is
// overwritten by the next fill of its key or evicted because nobody asks for it.
package nearcache
