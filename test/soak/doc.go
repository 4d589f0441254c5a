// Package soak runs the built proxy in front of real servers for long, while they are killed,
// frozen, failed over and resharded, and while clients come and go. What it holds against the proxy:
//
//   - Counting. INCR is neither lost nor doubled: of every counter, acknowledged ≤ value ≤ acknowledged +
//     fate unknown. An error that does not say that the fate is unknown promises that nothing has happened.
//   - Order. Commands carry tags that have to come back in their place, and a key that only one client writes
//     never shows a value that this client did not write.
//   - Errors. None while servers are well, slots move or replicas take over politely; otherwise only on the
//     keys of the server that is in trouble.
//   - No client waits for longer than it is promised.
//   - Leaks. When the clients have gone, so have their connections, goroutines and memory.
//
// Redis itself loses what a master has acknowledged and its replica does not have when the replica takes
// over. So writers pause for the moment of such a blow; everything else hits them in the middle.
//
//	make soak         ten minutes of it; LONG=1h for longer
package soak
