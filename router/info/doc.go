// Package info makes one INFO text of those of several masters.
//
// A client that takes the proxy for one Redis reads in it how many keys, clients and
// bytes there are, so these are totals; how long the server has been up, so that is
// the youngest; whether it is loading, so that is whether any of them is. What is a
// fact of one process (version, ids, configuration) is the first one's. Ratios and
// human-readable figures are made again from the totals, as Redis makes them (server.c,
// genRedisInfoString).
package info
