// Package dial connects to the servers behind the proxy: the loops' lanes, discovery's
// links and the streams of CoSky's events all take the same way, over plain TCP, a Unix
// socket or TLS, to the address that a server announces or to the one that stands for it here.
package dial

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Dialer knows how servers are reached. It is immutable; nil connects plainly. Its methods
// may be called from any goroutine.
type Dialer struct {
	// TLS is the client's side of TLS; nil: connections are plain. Where it names no
	// ServerName, a server's certificate has to be for the host that is connected to. Unix
	// sockets are plain in any case.
	TLS *tls.Config

	// Map has, by address ("host:port") or host that servers announce, where they are
	// reached from here: NAT, or containers whose ports are published elsewhere.
	Map map[string]string

	// Resolver looks names up; nil: as the system does.
	Resolver *net.Resolver
}

// Dial connects to "host:port" or "unix:/path". A failed handshake is a *HandshakeError.
func (d *Dialer) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	addr = d.Target(addr)
	nc, err := (&net.Dialer{Resolver: d.resolver()}).DialContext(ctx, "tcp", addr) // looks a name up each time
	if err != nil || !d.Encrypted() {
		return nc, err
	}
	tc := tls.Client(nc, d.configFor(addr))
	if err := tc.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, &HandshakeError{err}
	}
	return tc, nil
}

// LookUp returns the IP addresses that a host stands for at the moment.
func (d *Dialer) LookUp(ctx context.Context, host string) ([]netip.Addr, error) {
	return d.resolver().LookupNetIP(ctx, "ip", host)
}

func (d *Dialer) resolver() *net.Resolver {
	if d == nil || d.Resolver == nil {
		return net.DefaultResolver
	}
	return d.Resolver
}

// Target is where a server that announces addr is reached.
func (d *Dialer) Target(addr string) string {
	if d == nil || len(d.Map) == 0 {
		return addr
	}
	if to, ok := d.Map[addr]; ok {
		return to
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if to, ok := d.Map[host]; ok {
		return net.JoinHostPort(to, port)
	}
	return addr
}

func (d *Dialer) configFor(addr string) *tls.Config {
	if d.TLS.ServerName != "" {
		return d.TLS
	}
	c := d.TLS.Clone()
	c.ServerName, _, _ = net.SplitHostPort(addr) // it has just been connected to
	return c
}

// Encrypted reports whether connections to host:port are under TLS.
func (d *Dialer) Encrypted() bool { return d != nil && d.TLS != nil }

// HandshakeError says why TLS could not be agreed on.
type HandshakeError struct{ Err error }

func (e *HandshakeError) Error() string {
	var alien tls.RecordHeaderError
	if errors.As(e.Err, &alien) {
		return "it does not speak TLS there"
	}
	if e.Timeout() {
		return "no answer to the TLS handshake"
	}
	return fmt.Sprintf("cannot agree on TLS: %s", strings.TrimPrefix(e.Err.Error(), "tls: "))
}

func (e *HandshakeError) Unwrap() error { return e.Err }

// Timeout makes it a net.Error as far as who waits is concerned.
func (e *HandshakeError) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.Is(e.Err, context.DeadlineExceeded) || errors.As(e.Err, &t) && t.Timeout()
}
