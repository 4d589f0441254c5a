package proxy

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"strings"
	"time"
)

// tlsListener is what an address of Options.Listen begins with where clients speak TLS.
const tlsListener = "tls:"

// encrypted is a client's connection under TLS. The handshake happens on the goroutine that
// reads it, so a client that never finishes it holds up nobody.
type encrypted struct {
	*tls.Conn
	patience time.Duration // for the handshake
	log      *slog.Logger

	agreed bool // owned by the reading goroutine
}

// encrypt returns what to wrap the connections of a listener in.
func (s *Server) encrypt() func(net.Conn) net.Conn {
	return func(nc net.Conn) net.Conn {
		return &encrypted{Conn: tls.Server(nc, s.opts.TLS), patience: s.opts.Clients.HandshakeTimeout, log: s.log}
	}
}

func (c *encrypted) Read(b []byte) (int, error) {
	if !c.agreed {
		ctx, cancel := context.WithTimeout(context.Background(), c.patience)
		defer cancel()
		if err := c.HandshakeContext(ctx); err != nil {
			c.log.Debug("cannot agree on TLS with a client", "client", c.RemoteAddr().String(), "error", err) // debug: anybody can cause it
			return 0, err
		}
		c.agreed = true
	}
	return c.Conn.Read(b)
}

// shownEncrypted reports whether clients reach this proxy, and so the others of its façade, under
// TLS at own: if the listener with that port says so or, behind a translating network, all do.
func (s *Server) shownEncrypted(own string) bool {
	_, port, err := net.SplitHostPort(own)
	if err != nil {
		return false
	}
	all := true
	for _, addr := range s.Addrs() {
		bound, under := strings.CutPrefix(addr, tlsListener)
		_, p, err := net.SplitHostPort(bound)
		switch {
		case err != nil, strings.HasPrefix(addr, "unix:"):
		case p == port:
			return under
		default:
			all = all && under
		}
	}
	return all
}
