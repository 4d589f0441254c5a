package main

import (
	"fmt"
	"io"
	"net"
	"strings"

	"cosky-proxy/conf"
)

// printBanner tells a human what runs where and what to try first. adminAddr is
// empty when there are no admin pages.
func printBanner(w io.Writer, cfg *conf.Config, addrs []string, adminAddr string) {
	backend := cfg.Backend.String()
	if cfg.Backend.Kind == conf.Embedded {
		backend += " (a demonstration server; its data is gone when it stops)"
	}
	pages := "off"
	if adminAddr != "" {
		pages = "http://" + adminAddr + "/ (metrics, healthz, readyz, debug/pprof)"
	}
	cli := cliFor(addrs[0])
	fmt.Fprintf(w, `cosky-proxy %s
  clients  %s
  backend  %s
  admin    %s

Try a CoSky configuration; its second read comes from the proxy's memory:
  %s HSET 'demo-{x}:cfg:hello' configId hello data 'Hello, CoSky' version 1
  %[5]s HGETALL 'demo-{x}:cfg:hello'
  %[5]s INFO proxy

`, version, strings.Join(addrs, ", "), backend, pages, cli)
}

// cliFor is the redis-cli call that reaches addr from this machine.
func cliFor(addr string) string {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		return "redis-cli -s " + path
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "redis-cli"
	}
	if ip := net.ParseIP(host); host == "" || host == "localhost" || host == "127.0.0.1" || ip != nil && ip.IsUnspecified() {
		return "redis-cli -p " + port
	}
	return "redis-cli -h " + host + " -p " + port
}
