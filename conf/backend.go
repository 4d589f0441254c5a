package conf

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// BackendKind says what sort of Redis stands behind the proxy.
type BackendKind int

// The kinds of backend, with the URL scheme that names each.
const (
	Embedded   BackendKind = iota // embedded: a demonstration server in a child process
	Standalone                    // redis: one server
	Cluster                       // redis-cluster: a Redis Cluster
	Sentinel                      // redis-sentinel: the primary that Sentinels watch
)

// String is the kind's URL scheme without TLS.
func (k BackendKind) String() string {
	switch k {
	case Embedded:
		return "embedded"
	case Standalone:
		return "redis"
	case Cluster:
		return "redis-cluster"
	case Sentinel:
		return "redis-sentinel"
	}
	return "BackendKind(" + strconv.Itoa(int(k)) + ")"
}

// Backend is a parsed backend URL.
type Backend struct {
	Kind     BackendKind
	TLS      bool     // all connections to it, those to Sentinels too, are under TLS
	Addrs    []string // host:port; the server, cluster nodes to ask first, or the Sentinels
	Master   string   // Sentinel only: the name under which they watch the primary
	DB       int      // database that clients start in; 0 on a cluster
	User     string   // empty: AUTH with the password alone
	Password Secret   // empty: no authentication
}

const allowedBackend = "embedded:, redis://[user:password@]host[:port][/db], " +
	"redis-cluster://[user:password@]host[:port],host[:port]…, " +
	"redis-sentinel://[user:password@]host[:port],host[:port]…/master-name[/db], " +
	"with rediss instead of redis for TLS"

// scheme is how the URL begins: with rediss instead of redis where there is TLS.
func (b *Backend) scheme() string {
	if b.TLS {
		return strings.Replace(b.Kind.String(), "redis", "rediss", 1)
	}
	return b.Kind.String()
}

// ParseBackend reads a backend URL. The port may be left out where Redis has a
// usual one (6379, Sentinel 26379), and so may the colon after embedded. Errors quote no part of the URL that may hold a
// password.
func ParseBackend(text string) (Backend, error) {
	scheme, rest, _ := strings.Cut(text, ":")
	var b Backend
	for _, k := range []BackendKind{Embedded, Standalone, Cluster, Sentinel} {
		b = Backend{Kind: k, TLS: k != Embedded && strings.HasPrefix(scheme, "rediss")}
		if scheme != b.scheme() {
			continue
		}
		if k == Embedded {
			return b, check(rest == "", "nothing may follow embedded:")
		}
		return b, b.parseRest(rest)
	}
	return Backend{}, errors.New("unknown kind of backend; allowed: " + allowedBackend)
}

// parseRest reads what follows the scheme: //[user:password@]addrs[/path].
func (b *Backend) parseRest(rest string) error {
	rest, ok := strings.CutPrefix(rest, "//")
	if !ok {
		return fmt.Errorf("%s: must be followed by //host", b.scheme())
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		if err := b.parseUserinfo(rest[:at]); err != nil {
			return err
		}
		rest = rest[at+1:]
	}
	if strings.ContainsAny(rest, "?#") {
		return errors.New("options after ? or # are not understood; they are keys under upstream")
	}
	hosts, path, hasPath := strings.Cut(rest, "/")
	if err := b.parseAddrs(hosts); err != nil {
		return err
	}
	return b.parsePath(path, hasPath)
}

func (b *Backend) parseUserinfo(info string) error {
	user, password, ok := strings.Cut(info, ":")
	if !ok {
		return errors.New("user without a password: write user:password@ (:password@ for a password alone), or set upstream.user and upstream.password instead")
	}
	var err error
	if b.User, err = url.PathUnescape(user); err != nil {
		return errors.New("bad % escape in the user")
	}
	if password, err = url.PathUnescape(password); err != nil {
		return errors.New("bad % escape in the password")
	}
	b.Password = Secret(password)
	return nil
}

func (b *Backend) parseAddrs(hosts string) error {
	port := "6379"
	if b.Kind == Sentinel {
		port = "26379"
	}
	for host := range strings.SplitSeq(hosts, ",") {
		addr, err := completeAddress(host, port)
		if err != nil {
			return err
		}
		b.Addrs = append(b.Addrs, addr)
	}
	return check(b.Kind != Standalone || len(b.Addrs) == 1, "redis: takes one address, several are a redis-cluster: or redis-sentinel:")
}

// completeAddress adds the usual port to a host that has none.
func completeAddress(host, port string) (string, error) {
	if host == "" {
		return "", errors.New("an address is empty")
	}
	if !strings.Contains(host, ":") || strings.HasSuffix(host, "]") {
		host = net.JoinHostPort(strings.Trim(host, "[]"), port)
	}
	h, p, err := net.SplitHostPort(host)
	if err != nil || h == "" {
		return "", fmt.Errorf("address %q is not host:port", host)
	}
	if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("the port of %q is not a number from 1 to 65535", host)
	}
	return host, nil
}

func (b *Backend) parsePath(path string, given bool) error {
	switch b.Kind {
	case Cluster:
		return check(path == "", "a cluster has only database 0")
	case Sentinel:
		b.Master, path, given = strings.Cut(path, "/")
		if b.Master == "" {
			return errors.New("no master name: write /name after the Sentinels' addresses")
		}
	}
	if !given || path == "" {
		return nil
	}
	db, err := strconv.ParseUint(path, 10, 31)
	if err != nil {
		return fmt.Errorf("database %q is not a number", path)
	}
	b.DB = int(db)
	return nil
}

// String is the URL without its password.
func (b Backend) String() string {
	if b.Kind == Embedded {
		return "embedded:"
	}
	var s strings.Builder
	fmt.Fprintf(&s, "%s://", b.scheme())
	if b.User != "" || b.Password != "" {
		fmt.Fprintf(&s, "%s:%s@", url.PathEscape(b.User), b.Password)
	}
	s.WriteString(strings.Join(b.Addrs, ","))
	if b.Master != "" {
		s.WriteString("/" + b.Master)
	}
	if b.DB != 0 {
		s.WriteString("/" + strconv.Itoa(b.DB))
	}
	return s.String()
}

// redactURL hides everything between :// and the last @, whether or not the rest
// makes sense.
func redactURL(text string) string {
	at := strings.LastIndexByte(text, '@')
	if at < 0 {
		return text
	}
	scheme, _, ok := strings.Cut(text[:at], "://")
	if !ok {
		return "***" + text[at:]
	}
	return scheme + "://***" + text[at:]
}

func check(ok bool, reason string) error {
	if ok {
		return nil
	}
	return errors.New(reason)
}
