package discovery

import (
	"context"
	"net"
	"slices"
	"strings"
)

// isName tells an address whose host has to be looked up from an IP address and a Unix socket.
func isName(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && !strings.HasPrefix(addr, "unix:") && net.ParseIP(host) == nil
}

// lookUp returns the addresses that a named one stands for at the moment, none if that cannot be
// told.
func (d *Discovery) lookUp(ctx context.Context, addr string) []string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, d.opts.ConnectTimeout)
	defer cancel()
	ips, err := d.opts.Dialer.LookUp(ctx, host)
	if err != nil {
		return nil
	}
	var addrs []string
	for _, ip := range ips {
		addrs = append(addrs, net.JoinHostPort(ip.Unmap().String(), port))
	}
	return addrs
}

// seeds are the addresses from which to begin, looked up anew each time: a name that stands for
// several servers must not lead to the same one again and again, which may be frozen. Under TLS
// the name is what a certificate is for, so it stays.
func (d *Discovery) seeds(ctx context.Context) []string {
	var addrs []string
	for _, seed := range d.opts.Backend.Seeds {
		found := []string{seed}
		if !d.opts.Dialer.Encrypted() && d.opts.Dialer.Target(seed) == seed && isName(seed) {
			if several := d.lookUp(ctx, seed); len(several) > 1 {
				found = several
			}
		}
		for _, addr := range found {
			if !slices.Contains(addrs, addr) {
				addrs = append(addrs, addr)
			}
		}
	}
	return addrs
}
