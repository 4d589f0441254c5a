package discovery

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"cosky-proxy/cluster"
)

// Default ports of backend URLs.
const (
	redisPort    = "6379"
	sentinelPort = "26379"
)

// Backend is a parsed backend URL: what kind of backend it is, where to start
// looking for it and how to log in. It prints as a URL without passwords.
type Backend struct {
	Mode       cluster.Mode
	Seeds      []string // host:port of the server, of some cluster nodes or of sentinels; unix:/path is understood too
	MasterName string   // Sentinel only

	User     string // for the data servers; "": AUTH with the password alone
	Password string // "": no authentication
	DB       int    // database that clients start in; 0 on a cluster

	SentinelUser     string // for the sentinels themselves
	SentinelPassword string
}

// ParseBackend reads one of
//
//	embedded:
//	redis://[user:password@]host[:port][/db]
//	redis-cluster://[user:password@]host[:port],host[:port],...
//	redis-sentinel://[user:password@]host[:port],.../name[/db][?sentinel_user=…&sentinel_password=…]
//
// User and password may be percent-encoded, IPv6 addresses stand in brackets,
// ports default to 6379 and 26379. Errors name the offending part and never
// contain a password. An embedded backend has no seed: its address is known once
// it runs.
func ParseBackend(s string) (Backend, error) {
	scheme, rest, ok := strings.Cut(s, ":")
	if !ok {
		return Backend{}, errors.New("the backend URL has no scheme, want embedded:, redis://, redis-cluster:// or redis-sentinel://")
	}
	if scheme == "embedded" {
		if strings.Trim(rest, "/") != "" {
			return Backend{}, errors.New("nothing may follow embedded: in the backend URL")
		}
		return Backend{Mode: cluster.Embedded}, nil
	}
	var b Backend
	port := redisPort
	switch scheme {
	case "redis":
		b.Mode = cluster.Standalone
	case "redis-cluster":
		b.Mode = cluster.Cluster
	case "redis-sentinel":
		b.Mode = cluster.Sentinel
		port = sentinelPort
	case "rediss", "rediss-cluster", "rediss-sentinel", "redis-clusters", "redis-sentinels":
		return Backend{}, fmt.Errorf("TLS to the backend is not supported yet: the backend URL has the scheme %q", scheme)
	default:
		return Backend{}, fmt.Errorf("unknown scheme %q in the backend URL, want embedded:, redis://, redis-cluster:// or redis-sentinel://", scheme)
	}
	rest, ok = strings.CutPrefix(rest, "//")
	if !ok {
		return Backend{}, fmt.Errorf("the backend URL lacks // after %s:", scheme)
	}
	if err := b.parse(rest, port); err != nil {
		return Backend{}, fmt.Errorf("cannot parse the %s:// backend URL: %w", scheme, err)
	}
	return b, nil
}

// parse reads what follows "scheme://".
func (b *Backend) parse(rest, defaultPort string) error {
	rest, query, _ := strings.Cut(rest, "?")
	if err := b.parseQuery(query); err != nil {
		return err
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		if err := b.parseUser(rest[:at]); err != nil {
			return err
		}
		rest = rest[at+1:]
	}
	hosts, path, _ := strings.Cut(rest, "/")
	if err := b.parsePath(strings.TrimSuffix(path, "/")); err != nil {
		return err
	}
	for part := range strings.SplitSeq(hosts, ",") {
		seed, err := parseSeed(part, defaultPort)
		if err != nil {
			return err
		}
		b.Seeds = append(b.Seeds, seed)
	}
	if b.Mode == cluster.Standalone && len(b.Seeds) > 1 {
		return errors.New("it names several hosts, want one (or redis-cluster://, redis-sentinel://)")
	}
	return nil
}

func (b *Backend) parseUser(info string) error {
	user, password, ok := strings.Cut(info, ":")
	if !ok {
		return errors.New("there is a user without a password before the @, want user:password@ or :password@")
	}
	var err error
	if b.User, err = url.PathUnescape(user); err != nil {
		return errors.New("the user is not valid percent-encoding")
	}
	if b.Password, err = url.PathUnescape(password); err != nil {
		return errors.New("the password is not valid percent-encoding (write % as %25)")
	}
	return nil
}

func (b *Backend) parsePath(path string) error {
	db := path
	if b.Mode == cluster.Sentinel {
		var name string
		name, db, _ = strings.Cut(path, "/")
		var err error
		if b.MasterName, err = url.PathUnescape(name); err != nil || name == "" {
			return errors.New("the master's name is missing, want redis-sentinel://host:port,.../name")
		}
	}
	if db == "" {
		return nil
	}
	if b.Mode == cluster.Cluster && db != "0" {
		return fmt.Errorf("database %q: a cluster has only database 0", db)
	}
	n, err := strconv.ParseUint(db, 10, 31)
	if err != nil {
		return fmt.Errorf("database %q is not a number", db)
	}
	b.DB = int(n)
	return nil
}

func (b *Backend) parseQuery(query string) error {
	if query == "" {
		return nil
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("what follows the ? is not valid percent-encoding")
	}
	for name := range values {
		switch {
		case b.Mode == cluster.Sentinel && name == "sentinel_user":
			b.SentinelUser = values.Get(name)
		case b.Mode == cluster.Sentinel && name == "sentinel_password":
			b.SentinelPassword = values.Get(name)
		default:
			return fmt.Errorf("unknown parameter %q", name)
		}
	}
	return nil
}

// parseSeed completes "host", "host:port", "[v6]" or "[v6]:port". Its errors quote
// only what precedes the colon: what follows could be a password whose @ was
// forgotten.
func parseSeed(s, defaultPort string) (string, error) {
	if s == "" {
		return "", errors.New("a host is empty")
	}
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") || !strings.Contains(s, ":") {
		s += ":" + defaultPort
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		before, _, _ := strings.Cut(strings.TrimPrefix(s, "["), ":")
		return "", fmt.Errorf("the host that begins with %q is not host:port (IPv6 addresses stand in brackets)", before)
	}
	if host == "" {
		return "", errors.New("a port stands without a host")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("the port of host %q is not a number from 1 to 65535", host)
	}
	return net.JoinHostPort(host, port), nil
}

// String is the URL without passwords: in their place stands ***.
func (b Backend) String() string {
	if b.Mode == cluster.Embedded {
		return "embedded:"
	}
	scheme := map[cluster.Mode]string{
		cluster.Standalone: "redis", cluster.Cluster: "redis-cluster", cluster.Sentinel: "redis-sentinel",
	}[b.Mode]
	var s strings.Builder
	s.WriteString(scheme + "://")
	if b.Password != "" {
		s.WriteString(url.PathEscape(b.User) + ":***@")
	}
	s.WriteString(strings.Join(b.Seeds, ","))
	if b.Mode == cluster.Sentinel {
		s.WriteString("/" + url.PathEscape(b.MasterName))
	}
	if b.DB != 0 {
		fmt.Fprintf(&s, "/%d", b.DB)
	}
	return s.String()
}

// GoString keeps passwords out of %#v.
func (b Backend) GoString() string { return b.String() }

// MarshalText keeps passwords out of structured logs.
func (b Backend) MarshalText() ([]byte, error) { return []byte(b.String()), nil }
