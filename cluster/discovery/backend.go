package discovery

import (
	"fmt"
	"net/url"
	"strings"

	"cosky-proxy/cluster"
)

// Backend says what kind of backend it is, where to start looking for it and how
// to log in. It prints as a URL without passwords.
type Backend struct {
	Mode       cluster.Mode
	Seeds      []string // host:port of the server, of some cluster nodes or of sentinels; unix:/path is understood too
	MasterName string   // Sentinel only

	User     string // for the data servers; "": AUTH with the password alone
	Password string // "": no authentication
	DB       int    // database that clients start in; 0 on a cluster

	TLS bool // only for texts: Options.Dialer makes the connections

	SentinelUser     string // for the sentinels themselves
	SentinelPassword string
}

// String is the URL without passwords: in their place stands ***.
func (b Backend) String() string {
	if b.Mode == cluster.Embedded {
		return "embedded:"
	}
	var s strings.Builder
	s.WriteString(b.scheme(b.Mode) + "://")
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

// scheme is that of a URL for a backend of another mode that is reached in the same way.
func (b Backend) scheme(mode cluster.Mode) string {
	name := map[cluster.Mode]string{
		cluster.Standalone: "redis", cluster.Cluster: "redis-cluster", cluster.Sentinel: "redis-sentinel",
	}[mode]
	if b.TLS {
		name = strings.Replace(name, "redis", "rediss", 1)
	}
	return name
}

// GoString keeps passwords out of %#v.
func (b Backend) GoString() string { return b.String() }

// MarshalText keeps passwords out of structured logs.
func (b Backend) MarshalText() ([]byte, error) { return []byte(b.String()), nil }
