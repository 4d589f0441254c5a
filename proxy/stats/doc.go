// Package stats counts what the event loops do.
//
// Every loop owns one [Loop] and increments its fields with plain ++ on its own
// goroutine: no atomics, no locks, nothing that other loops share a cache line
// with. A reader never touches a Loop. It asks the loop (through the loop's
// inbox) for a [Snapshot], which is a deep copy made on the loop's goroutine,
// and sums the snapshots of all loops with [Snapshot.Add] on its own.
//
// Fields of type uint64 only ever grow (counters); fields of type int64 go up
// and down (gauges).
package stats
