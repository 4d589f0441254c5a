// Package soak runs the built proxy in front of real servers for long, while they are killed,
// frozen, failed over and resharded, and while clients come and go.
//
// A run is a stage (a cluster, a master that sentinels watch, one Redis), the blows that it gets (stage.blows), one at a time in
// random order, and a crowd of clients, half of them at a proxy that reads from replicas. What is held against the proxies:
//
//   - Counting (pipeline_test.go, optimist_test.go). INCR, and WATCH … EXEC, are neither lost nor doubled: of every counter,
//     acknowledged ≤ value ≤ acknowledged + fate unknown. An error that does not say that the fate is unknown promises that
//     nothing has happened.
//   - Queues (queue_test.go). What is pushed is popped by one of those who block on it, and by one only.
//   - Order. Commands carry tags that have to come back in their place, and a key that only one client writes
//     never shows a value that this client did not write.
//   - Reads. A client sees its own last write and no counter below what it has seen; from replicas (read_your_writes), none below
//     its own increments.
//   - Subscriptions (listener_test.go). After each blow everybody hears again, in order and nothing twice, without subscribing anew.
//   - Errors. None while servers are well, slots move or replicas take over politely; otherwise only on the
//     keys of the server that is in trouble. Never a redirect.
//   - No client waits for longer than it is promised.
//   - Leaks (leaks_test.go). When the clients have gone, so have their connections, goroutines and memory.
//
// Redis itself loses what a master has acknowledged and its replica does not have when the replica takes
// over. So writers pause for the moment of such a blow; everything else hits them in the middle. When a sentinel replaces a master
// that is well, that moment is as long as the failover takes: writers go on, and what they were told in this time counts as
// loose, which may be there or not.
//
//	make soak                          ten minutes of all stages, side by side; LONG=1h for longer
//	make soak ONLY=Sentinel LONG=2m    one of them
package soak
