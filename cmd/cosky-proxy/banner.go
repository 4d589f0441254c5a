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
		pages = "http://" + adminAddr + "/ (metrics, hotkeys, slowlog, healthz, readyz, debug/pprof)"
	}
	fmt.Fprintf(w, `cosky-proxy %s
  clients  %s
  backend  %s
  admin    %s

`, version, strings.Join(addrs, ", "), backend, pages)
	printTrial(w, cliFor(addrs[0]), cfg.NearCache.Invalidation != "off" && cfg.Auth.Mode == "off")
}

// printTrial suggests commands that show the proxy at work, and the near-cache if
// there is one.
func printTrial(w io.Writer, cli string, cached bool) {
	title, commands := "Try it:", []string{"SET hello world", "GET hello", "INFO proxy"}
	if cached {
		title = "Try a CoSky configuration; read it a few times within a second and watch nearcache_hits grow:"
		commands = []string{
			"HSET 'demo-{x}:cfg:hello' configId hello data 'Hello, CoSky' version 1",
			"HGETALL 'demo-{x}:cfg:hello'",
			"INFO proxy",
		}
	}
	fmt.Fprintln(w, title)
	for _, command := range commands {
		fmt.Fprintf(w, "  %s %s\n", cli, command)
	}
	fmt.Fprintln(w)
}

// cliFor is the redis-cli call that reaches addr from this machine.
func cliFor(addr string) string {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		return "redis-cli -s " + path
	}
	addr, under := strings.CutPrefix(addr, "tls:")
	cli := "redis-cli"
	if under {
		cli += " --tls" // and, unless the system trusts it, --cacert
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return cli
	}
	if ip := net.ParseIP(host); host == "" || host == "localhost" || host == "127.0.0.1" || ip != nil && ip.IsUnspecified() {
		return cli + " -p " + port
	}
	return cli + " -h " + host + " -p " + port
}
