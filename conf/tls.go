package conf

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

// tlsListener is what an address for clients begins with where TLS is spoken.
const tlsListener = "tls:"

// ListenerTLS is the server's side of TLS, for clients at addresses that begin with tls:.
type ListenerTLS struct {
	Cert       string // PEM file with the certificate and what leads to its root
	Key        string // PEM file
	CA         string // PEM file: who signs the certificates of clients
	ClientAuth string // whether clients show one: "off", "optional" or "required"
	MinVersion string // "1.2" or "1.3"

	HandshakeTimeout time.Duration // a client that takes longer is closed
}

// UpstreamTLS is the client's side of TLS, for backends whose URL begins with rediss.
type UpstreamTLS struct {
	CA                 string // PEM file: who signs the servers' certificates; empty: whom the system trusts
	Cert               string // PEM file with the certificate that the proxy shows; empty: none
	Key                string // PEM file
	ServerName         string // that all servers' certificates are for; empty: each one's host
	InsecureSkipVerify bool   // any certificate will do
	MinVersion         string // "1.2" or "1.3"
}

// flagOf takes true or false.
func flagOf(key string, p *bool, help string) option {
	return option{
		key: key, arg: "WORD", help: help,
		allowed: "true, false",
		get:     func() string { return fmt.Sprint(*p) },
		set: scalar(func(text string) error {
			if text != "true" && text != "false" {
				return errors.New("unknown word")
			}
			*p = text == "true"
			return nil
		}),
	}
}

// addressMap takes pairs of what servers announce and where that is, or "off" or nothing for none.
func addressMap(key string, p *[]string, help string) option {
	const allowed = "pairs of host:port=host:port or host=host, each with another left side; or off"
	return listOrOff(key, p, "FROM=TO", help, allowed, 0, func(before []string, text string) (string, error) {
		from, to, found := strings.Cut(strings.TrimSpace(text), "=")
		from, to = strings.TrimSpace(from), strings.TrimSpace(to)
		switch {
		case !found:
			return "", fmt.Errorf("there is no = in %q", text)
		case slices.ContainsFunc(before, func(pair string) bool { return strings.HasPrefix(pair, from+"=") }):
			return "", fmt.Errorf("%q is named twice", from)
		}
		return from + "=" + to, checkPair(from, to)
	})
}

// checkPair accepts two addresses, or two hosts.
func checkPair(from, to string) error {
	if isHost(from) && isHost(to) {
		return nil
	}
	for _, addr := range []string{from, to} {
		if err := checkReachable(addr); err != nil {
			return fmt.Errorf("%q: %w", addr, err)
		}
	}
	return nil
}

// isHost tells a name or an IP address, IPv6 without brackets, from an address with a port.
func isHost(text string) bool {
	return text != "" && !strings.ContainsAny(text, "[] ") && (net.ParseIP(text) != nil || !strings.Contains(text, ":"))
}

// AddressPairs splits what the option upstream.address_map has accepted.
func AddressPairs(list []string) map[string]string {
	pairs := make(map[string]string, len(list))
	for _, text := range list {
		from, to, _ := strings.Cut(text, "=")
		pairs[from] = to
	}
	return pairs
}

// checkTLS: files that nobody would use, or a protection that would not be there, are mistakes.
func (l *loader) checkTLS() error {
	c := l.config
	own, up := &c.TLS, &c.Upstream.TLS
	listens := slices.ContainsFunc(c.Listen, func(addr string) bool { return strings.HasPrefix(addr, tlsListener) })
	switch {
	case listens && (own.Cert == "" || own.Key == ""):
		return fmt.Errorf("%s needs a certificate: set tls.cert and tls.key", l.described("listen"))
	case !listens && own.Cert+own.Key+own.CA != "":
		return fmt.Errorf("tls.cert, tls.key and tls.ca need an address for clients that begins with tls:, there is none in %s", l.described("listen"))
	case !listens && own.ClientAuth != "off":
		return fmt.Errorf("%s needs an address for clients that begins with tls:, there is none in %s", l.described("tls.client_auth"), l.described("listen"))
	case listens && own.ClientAuth != "off" && own.CA == "":
		return fmt.Errorf("%s needs tls.ca, the authority that signs the clients' certificates", l.described("tls.client_auth"))
	case listens && own.ClientAuth == "off" && own.CA != "":
		return fmt.Errorf("tls.ca has no effect while %s", l.described("tls.client_auth"))
	case (up.Cert == "") != (up.Key == ""):
		return errors.New("upstream.tls.cert and upstream.tls.key need each other")
	case !c.Backend.TLS && (up.CA+up.Cert+up.ServerName != "" || up.InsecureSkipVerify):
		return fmt.Errorf("upstream.tls needs a backend whose URL begins with rediss:, rediss-cluster: or rediss-sentinel:, it is %s", l.described("backend"))
	case up.InsecureSkipVerify && up.CA+up.ServerName != "":
		return errors.New("upstream.tls.ca and upstream.tls.server_name have no effect while upstream.tls.insecure_skip_verify is true")
	}
	return nil
}
