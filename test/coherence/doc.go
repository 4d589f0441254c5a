// Package coherence tries to make the near-cache lie.
//
// The linearizability checker (linear_test.go) lets clients on several connections and loops read and
// write a few keys in every way there is while faults happen, and lets porcupine judge the
// history of each key against a model of what Redis does (model_test.go). Time in these histories
// is the order of events, so no clock has a part in the verdict. Mechanisms of the cache that are
// taken out on purpose must be found missing (blind_test.go).
//
// The staleness prober (staleness_test.go) writes beside the proxy and measures for how long a
// cached read still returned the old value.
//
//	make linear       the checker for long: LONG=10m per backend and kind of invalidation
//	make staleness    the prober for long, with the table of ARCHITECTURE.md
package coherence
