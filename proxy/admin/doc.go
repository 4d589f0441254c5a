// Package admin is the HTTP server for whoever operates the proxy:
//
//	/metrics      Prometheus metrics, all named cosky_proxy_…, plus Go's and the process' own
//	/hotkeys      the keys that are read most, as JSON; ?n=100 for so many
//	/slowlog      the last slow commands, as JSON; ?n=100 for so many
//	/healthz      200 while the process answers at all
//	/readyz       200 while clients can be served, 503 with the reason otherwise
//	/debug/pprof  profiles
//
// It reads the proxy only through the functions in [Options], at the moment
// somebody asks: between scrapes nothing is computed, and counting costs the event
// loops a plain increment (package stats). It has no authentication and belongs on
// a loopback or otherwise protected address.
package admin
