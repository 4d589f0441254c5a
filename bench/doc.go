// Command bench measures cosky-proxy side by side with Redis itself and with
// other Redis proxies, on one machine, over loopback.
//
//	make bench                      # builds bin/cosky-proxy, then the full run: 20 to 30 minutes
//	make bench-quick                # the main workloads in under two minutes
//	make bench ARGS='-out bench/results/NAME'    # a result to check in
//	go run ./bench -h               # every flag
//	go run ./bench -proxy old=/tmp/a -proxy new=bin/cosky-proxy -topology standalone
//
// # Method
//
// The program starts its own redis-servers (one, and a cluster of three
// primaries) on free loopback ports, without persistence, and in front of them
// one process per front end: the proxy under test and every peer it finds.
// nutcracker (twemproxy) is looked up in PATH, as are the others; environment variables
// name those that are elsewhere: NUTCRACKER, PREDIXY, REDIS_CLUSTER_PROXY, CODIS_PROXY,
// ENVOY. The report names those that are missing. Every front end gets one
// worker thread, so that the figures compare designs and not core counts, and
// otherwise its default options, but for the number of clients.
// Configuration files of peers are generated in a temporary directory; no process
// is left behind, however the program ends, and only processes started here are
// ever measured, written to or signalled.
//
// Before anything is timed, each front end must give the same answers as Redis
// to each workload's commands; one that cannot is left out of that workload, and the
// table says whether it does not support a command or answers wrongly.
// A calibration run then fixes how many requests fill one round, and warms the
// connections and the near-cache.
//
// A round visits every workload, and within a workload every front end, one
// directly after the other, starting with a different one in each round. The
// machine is shared and its speed drifts, so ratios are taken *within* a round
// and the median of those ratios is reported: a slow minute slows both sides.
//
// # Load
//
// The requests come from package [cosky-proxy/bench/load]. On two cores it asks a
// quarter less CPU per request than redis-benchmark does (unpipelined 6.6 µs
// instead of 8.4, pipelined by 16 0.4 instead of 0.6), and since generator, front
// end and Redis share the cores, throughput comes out 30 to 50 % higher. GET and SET are
// measured with redis-benchmark, too; with -generator redis-benchmark that is anybody's
// yardstick for everything that it can send. With six processors or more the load comes from
// two threads or more, because one would not be faster than two loops of the proxy.
//
// # Reading the results
//
// The report begins with the targets of the project: what is compared with what, the
// median of the ratios in each round with the least and the greatest, and whether it is met.
// Then comes a table for each backend:
//
//   - ops/s: median of the rounds, with the slowest and the fastest. What each round has
//     measured is in a CSV file beside the report.
//   - vs direct, vs best peer: median of the per-round throughput ratios; above
//     1 is faster. The best peer is the one with the highest median ops/s in that
//     row. In a peer's own row the ratio compares it with the best peer.
//   - CPU µs/op: what the front end process itself burns per request, from the
//     scheduler's own accounting (/proc/PID/task/*/schedstat). It is the most
//     robust figure: it depends less than throughput on who else uses the machine,
//     and it says how much one core can carry. In direct rows it is Redis' own.
//   - Redis µs/op: what all redis-servers together burn per request. A near-cache
//     hit costs Redis nothing, and here it shows.
//   - load µs/op: the load generator's cost per request. With few cores, when load
//     and Redis take most of the machine, ops/s says little about the front end
//     and CPU µs/op much. A front end that is the only bottleneck shows CPU µs/op
//     times ops/s close to one second per second.
//   - p50 / p99 / p99.9: median over the rounds, of a whole pipeline's round trip. At a
//     fixed number of connections latency is throughput seen from the other side.
//   - RSS: the most resident memory that the front end had during a burst.
//
// In the cluster table the direct row is a client that talks to one primary only
// and asks for keys of its slots; the front ends spread GET and SET over all.
//
// Rows "two loops" and "uncounted" are the same proxy with two event loops, and without admin
// address, slow log and counting which keys are read (its other counters cannot be turned off).
//
// The last table is about connections that say nothing: 10,000 and 50,000, or as many as the limit
// of open files allows, in front of one Redis. Each front end has a new process. Heap is
// cosky-proxy's own account (go_memstats of /metrics, after a collection).
package main
