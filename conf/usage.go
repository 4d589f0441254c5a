package conf

import (
	"fmt"
	"strings"
)

const usageHead = `cosky-proxy: a proxy and cache tier for Redis that speaks Redis' own protocol.

Usage:
  cosky-proxy [--config FILE] [--listen ADDR]... [--backend URL]
              [--admin HOST:PORT] [--loops N] [--log-level LEVEL]
              [--version] [--help]

ADDR is host:port; --listen also takes unix:/path, and tls:host:port for TLS. URL is one of
  embedded                                       a demonstration server, started by the proxy
  redis://host:port[/db]                         one Redis
  redis-cluster://host:port,host:port            a Redis Cluster
  redis-sentinel://host:port,host:port/name[/db] the primary that Sentinels watch as name
All but embedded take user:password@ before the first host. The port may be left out:
6379, of a Sentinel 26379. With rediss instead of redis every connection is under TLS.

Common flags (default in parentheses):
  --config FILE
      read this YAML file; conf/cosky-proxy.yaml documents every key (none)
`

const usageMiddle = `  --version
      print the version and stop
  --help, -h
      print this text and stop

Every option is also a key of the YAML file and an environment variable:
  --nearcache.max-bytes 1GB
  nearcache: {max_bytes: 1GB}
  COSKY_PROXY_NEARCACHE_MAX_BYTES=1GB
A flag overrides the environment, the environment the file, the file the default.
Options marked "several" take a list: repeat the flag, or put commas between. RULE, SCRIPT,
USER and KEY may contain commas: each has a flag, or a line of the variable, of its own.

All other flags:
`

const usageTail = `
Examples:
  cosky-proxy
      try it: an embedded backend, clients at 127.0.0.1:6380
  cosky-proxy --listen :6380 --backend redis-cluster://10.0.0.1:6379,10.0.0.2:6379
      serve a Redis Cluster to the network
  COSKY_PROXY_UPSTREAM_PASSWORD=secret cosky-proxy --config /etc/cosky-proxy.yaml
      keep the password out of the file and the process list

Exit status: 0 after a graceful stop, 1 when starting or running failed, 2 for a
mistake in the command line, the file or the environment.
`

// Usage is the help text: the common flags, all others, examples.
func Usage() string {
	var s strings.Builder
	s.WriteString(usageHead)
	table := options(Default())
	for i := range table {
		if table[i].common {
			table[i].describe(&s)
		}
	}
	s.WriteString(usageMiddle)
	for i := range table {
		if !table[i].common {
			table[i].describe(&s)
		}
	}
	s.WriteString(usageTail)
	return s.String()
}

func (o *option) describe(s *strings.Builder) {
	value := o.get()
	if value == "" {
		value = "none"
	}
	if o.list {
		value = "several; " + value
	}
	fmt.Fprintf(s, "  --%s %s\n      %s (%s)\n", o.flag(), o.arg, o.help, value)
	if o.arg == "WORD" || o.arg == "LEVEL" {
		fmt.Fprintf(s, "      one of %s\n", o.allowed)
	}
}
