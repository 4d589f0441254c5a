package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// peerTable lists the proxies this program knows how to run. A peer is used
// when its environment variable names it or its command is in PATH.
func peerTable() []candidate {
	return []candidate{
		{name: "nutcracker", version: "--version", serves: []topology{standalone}, args: nutcrackerArgs},
		{name: "predixy", version: "--version", serves: []topology{standalone, cluster}, args: predixyArgs},
		{name: "redis-cluster-proxy", serves: []topology{cluster}, args: redisClusterProxyArgs},
		{name: "codis-proxy", version: "--version", serves: []topology{standalone}, args: codisArgs},
		{name: "envoy", version: "--version", serves: []topology{standalone, cluster}, args: envoyArgs},
	}
}

// peerVariable is the environment variable that names a peer's binary.
func peerVariable(name string) string {
	return strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// findPeers tells the peers that are on this machine from those that are not.
func findPeers(getenv func(string) string, lookPath func(string) (string, error)) (found, missing []candidate, err error) {
	for _, c := range peerTable() {
		named := getenv(peerVariable(c.name))
		path, err := lookPath(cmp.Or(named, c.name))
		if err != nil {
			if named != "" {
				return nil, nil, fmt.Errorf("cannot use %s=%q: %w", peerVariable(c.name), named, err)
			}
			missing = append(missing, c)
			continue
		}
		c.role = peer
		if c.path, err = filepath.Abs(path); err != nil {
			return nil, nil, fmt.Errorf("cannot use peer %q: %w", path, err)
		}
		found = append(found, c)
	}
	return found, missing, nil
}

func nutcrackerArgs(dir string, port, admin int, b *backend) ([]string, error) {
	conf := fmt.Sprintf(`bench:
  listen: %s
  hash: fnv1a_64
  distribution: modula
  redis: true
  preconnect: true
  servers:
   - %s:1
`, loopback(port), b.nodes[0].addr())
	path, err := writeConf(dir, conf)
	return []string{"-c", path, "-a", "127.0.0.1", "-s", strconv.Itoa(admin)}, err
}

func predixyArgs(dir string, port, _ int, b *backend) ([]string, error) {
	pool := fmt.Sprintf(`StandaloneServerPool {
    Databases 16
    Hash crc16
    Distribution modula
    RefreshMethod fixed
    Group one {
        + %s
    }
}
`, b.nodes[0].addr())
	if b.topology == cluster {
		pool = fmt.Sprintf("ClusterServerPool {\n    Servers {\n        + %s\n    }\n}\n",
			strings.Join(b.addrs(), "\n        + "))
	}
	conf := fmt.Sprintf(`Name bench
Bind %s
WorkerThreads 1
ClientTimeout 0
Authority {
    Auth {
        Mode admin
    }
}
`, loopback(port)) + pool
	path, err := writeConf(dir, conf)
	return []string{path}, err
}

// redisClusterProxyArgs leaves commands on several slots off: its unstable branch crashes with --enable-cross-slot.
func redisClusterProxyArgs(_ string, port, _ int, b *backend) ([]string, error) {
	return []string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--threads", "1",
		"--disable-colors", strings.Join(b.addrs(), ","),
	}, nil
}

// codisSlots is how many parts codis-proxy divides the keys into.
const codisSlots = 1024

// codisArgs keeps codis-proxy from taking more processors when it is busy (--max-ncpu) and from its
// limit of 1,000 clients, which cannot be turned off.
func codisArgs(dir string, port, admin int, b *backend) ([]string, error) {
	conf := fmt.Sprintf(`product_name = "bench"
product_auth = ""
admin_addr = %q
proto_type = "tcp4"
proxy_addr = %q
proxy_max_clients = %d
`, loopback(admin), loopback(port), maxClients)
	confPath, err := writeConf(dir, conf)
	if err != nil {
		return nil, err
	}
	type slot struct {
		ID   int    `json:"id"`
		Addr string `json:"backend_addr"`
	}
	slots := make([]slot, codisSlots)
	for i := range slots {
		slots[i] = slot{i, b.nodes[0].addr()}
	}
	text, err := json.Marshal(slots)
	if err != nil {
		return nil, fmt.Errorf("cannot write slots: %w", err)
	}
	slotsPath, err := writeFile(dir, "slots.json", string(text))
	return []string{"--ncpu=1", "--max-ncpu=1", "--config=" + confPath, "--fillslots=" + slotsPath, "--log-level=WARN"}, err
}

func envoyArgs(dir string, port, _ int, b *backend) ([]string, error) {
	kind := "type: STATIC\n    lb_policy: MAGLEV"
	if b.topology == cluster {
		kind = `lb_policy: CLUSTER_PROVIDED
    cluster_type:
      name: envoy.clusters.redis
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.clusters.redis.v3.RedisClusterConfig
        cluster_refresh_rate: 10s`
	}
	var endpoints strings.Builder
	for _, node := range b.nodes {
		fmt.Fprintf(&endpoints, "        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}\n", node.port)
	}
	conf := fmt.Sprintf(`static_resources:
  listeners:
  - name: bench
    address: {socket_address: {address: 127.0.0.1, port_value: %d}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.redis_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy
          stat_prefix: bench
          settings: {op_timeout: 5s, enable_redirection: true, enable_hashtagging: true}
          prefix_routes: {catch_all_route: {cluster: redis}}
  clusters:
  - name: redis
    connect_timeout: 1s
    %s
    load_assignment:
      cluster_name: redis
      endpoints:
      - lb_endpoints:
%s`, port, kind, endpoints.String())
	path, err := writeFile(dir, "envoy.yaml", conf)
	return []string{"--concurrency", "1", "--disable-hot-restart", "--log-level", "warn", "-c", path}, err
}
