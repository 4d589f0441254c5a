package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"

	"cosky-proxy/cluster/dial"
	"cosky-proxy/conf"
)

// sessionCache is how many servers TLS sessions are remembered of, so that further connections
// to them need no whole handshake.
const sessionCache = 256

// dialerOf is the way to the backend.
func dialerOf(cfg *conf.Config, logger *slog.Logger) (*dial.Dialer, error) {
	d := &dial.Dialer{Map: conf.AddressPairs(cfg.Upstream.AddressMap)}
	if !cfg.Backend.TLS {
		return d, nil
	}
	t := &cfg.Upstream.TLS
	d.TLS = &tls.Config{
		ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify, MinVersion: tlsVersion(t.MinVersion),
		ClientSessionCache: tls.NewLRUClientSessionCache(sessionCache),
	}
	var err error
	if t.CA != "" {
		if d.TLS.RootCAs, err = authorities("upstream.tls.ca", t.CA); err != nil {
			return nil, err
		}
	}
	if t.Cert != "" {
		pair, err := openKeyPair("upstream.tls.cert", t.Cert, t.Key, logger)
		if err != nil {
			return nil, err
		}
		d.TLS.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.current(), nil }
	}
	if t.InsecureSkipVerify {
		logger.Warn("the backend's certificates are not verified: whoever is in between can read and change everything")
	}
	return d, nil
}

// listenerTLS is the server's side of TLS; nil: no address for clients asks for it.
func listenerTLS(cfg *conf.Config, logger *slog.Logger) (*tls.Config, error) {
	if !slices.ContainsFunc(cfg.Listen, func(addr string) bool { return strings.HasPrefix(addr, "tls:") }) {
		return nil, nil
	}
	t := &cfg.TLS
	pair, err := openKeyPair("tls.cert", t.Cert, t.Key, logger)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.current(), nil },
		MinVersion:     tlsVersion(t.MinVersion),
	}
	switch t.ClientAuth {
	case "optional":
		c.ClientAuth = tls.VerifyClientCertIfGiven
	case "required":
		c.ClientAuth = tls.RequireAndVerifyClientCert
	default:
		return c, nil
	}
	c.ClientCAs, err = authorities("tls.ca", t.CA)
	return c, err
}

func tlsVersion(text string) uint16 {
	if text == "1.3" {
		return tls.VersionTLS13
	}
	return tls.VersionTLS12
}

// authorities reads whom to trust.
func authorities(key, file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, mistake{fmt.Errorf("cannot read %s: %w", key, err)}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, mistake{fmt.Errorf("cannot use %s: there is no PEM certificate in %s", key, file)}
	}
	return pool, nil
}

// keyPair is a certificate with its private key in two files. They are looked at for every
// handshake and read again when they have changed, so a renewal needs no restart.
type keyPair struct {
	// static
	option    string // that names the certificate
	cert, key string
	logger    *slog.Logger

	// guarded by mu
	mu     sync.Mutex
	loaded *tls.Certificate
	stamp  string // of the files when they were read last
}

func openKeyPair(option, cert, key string, logger *slog.Logger) (*keyPair, error) {
	p := &keyPair{option: option, cert: cert, key: key, logger: logger}
	if err := p.loadLocked(p.state()); err != nil {
		return nil, mistake{err}
	}
	return p, nil
}

// current is the certificate to show. Files that make no sense, while they are being replaced
// perhaps, leave the last good one in use.
func (p *keyPair) current() *tls.Certificate {
	p.mu.Lock()
	defer p.mu.Unlock()
	if stamp := p.state(); stamp != p.stamp {
		if err := p.loadLocked(stamp); err != nil {
			p.logger.Error("going on with the last certificate", "cause", err)
		} else {
			p.logger.Info("a new certificate is in use", "option", p.option)
		}
	}
	return p.loaded
}

func (p *keyPair) loadLocked(stamp string) error {
	p.stamp = stamp
	pair, err := tls.LoadX509KeyPair(p.cert, p.key)
	if err != nil {
		return fmt.Errorf("cannot use %s: %w", p.option, err)
	}
	p.loaded = &pair
	return nil
}

// state differs when the files do.
func (p *keyPair) state() string {
	var s strings.Builder
	for _, file := range []string{p.cert, p.key} {
		if info, err := os.Stat(file); err == nil {
			fmt.Fprintln(&s, info.ModTime().UnixNano(), info.Size())
		}
	}
	return s.String()
}
