package coskey

import "bytes"

// Class says what a key holds.
type Class uint8

// The classes, in the notation of the package comment.
const (
	None               Class = iota // not a key of CoSky, or one that several namespaces can claim
	ConfigIndex                     // CI
	Config                          // C
	ConfigHistoryIndex              // HI
	ConfigHistory                   // H
	ServiceIndex                    // S
	ServiceStat                     // T
	InstanceIndex                   // X
	Instance                        // I
	TopologyIndex                   // TI
	Topology                        // TD
	System                          // users, roles, namespaces and the audit log of the REST server
)

// infix is what stands between namespace and id.
var infix = [...]string{
	ConfigIndex:        ":cfg_idx",
	Config:             ":cfg:",
	ConfigHistoryIndex: ":cfg_htr_idx:",
	ConfigHistory:      ":cfg_htr:",
	ServiceIndex:       ":svc_idx",
	ServiceStat:        ":svc_stat",
	InstanceIndex:      ":svc_itc_idx:",
	Instance:           ":svc_itc:",
	TopologyIndex:      ":topology_idx",
	Topology:           ":topology:",
}

// systemNamespace is where the REST server keeps its own data.
const systemNamespace = "cosky-{system}"

func (c Class) String() string {
	return [...]string{
		"none", "config_index", "config", "config_history_index", "config_history",
		"service_index", "service_stat", "instance_index", "instance",
		"topology_index", "topology", "system",
	}[c]
}

// Coverage says how far CoSky's channels announce the changes of a key.
type Coverage uint8

const (
	Uncovered Coverage = iota // no message at all
	Partial                   // some changes are silent
	Complete                  // content never changes without a message, failing scripts and foreign commands aside
)

// Covered returns how far messages cover keys of the class. Content only: a TTL
// may always change silently.
func (c Class) Covered() Coverage {
	switch c {
	case Config, ConfigHistoryIndex, ConfigHistory, ServiceIndex, InstanceIndex:
		return Complete
	case ConfigIndex: // removing an indexed id that has no hash is silent
		return Partial
	case ServiceStat: // a count is silent
		return Partial
	case Instance: // expiry and the first quiet renew are silent
		return Partial
	}
	return Uncovered
}

// Classify returns the class of a key and the length of its namespace, which is
// what precedes the first colon. For None the length means nothing.
func Classify(key []byte) (class Class, nsLen int) {
	i := bytes.IndexByte(key, ':')
	if i < 0 {
		return None, 0
	}
	rest := key[i+1:]
	class = family(rest)
	if class == None {
		if string(key[:i]) == systemNamespace && isSystem(rest) {
			return System, i
		}
		return None, 0
	}
	if claimedAgain(rest) {
		return None, 0
	}
	return class, i
}

// family returns the class that rest, the text after a namespace's colon, spells.
func family(rest []byte) Class {
	if len(rest) < len("cfg:") {
		return None
	}
	switch rest[0] {
	case 'c':
		return configFamily(rest)
	case 's':
		return serviceFamily(rest)
	case 't':
		if string(rest) == "topology_idx" {
			return TopologyIndex
		}
		if hasPrefix(rest, "topology:") {
			return Topology
		}
	}
	return None
}

func configFamily(rest []byte) Class {
	switch {
	case hasPrefix(rest, "cfg:"):
		return Config
	case string(rest) == "cfg_idx":
		return ConfigIndex
	case hasPrefix(rest, "cfg_htr:"):
		if bytes.IndexByte(rest[len("cfg_htr:"):], ':') >= 0 {
			return ConfigHistory
		}
	case hasPrefix(rest, "cfg_htr_idx:"):
		return ConfigHistoryIndex
	}
	return None
}

func serviceFamily(rest []byte) Class {
	switch {
	case hasPrefix(rest, "svc_itc:"):
		return Instance
	case string(rest) == "svc_idx":
		return ServiceIndex
	case string(rest) == "svc_stat":
		return ServiceStat
	case hasPrefix(rest, "svc_itc_idx:"):
		return InstanceIndex
	}
	return None
}

// claimedAgain reports whether rest holds, after a further colon, another key of
// CoSky: then a namespace with a colon in it may own the key.
func claimedAgain(rest []byte) bool {
	for {
		i := bytes.IndexByte(rest, ':')
		if i < 0 {
			return false
		}
		rest = rest[i+1:]
		if family(rest) != None {
			return true
		}
	}
}

func isSystem(rest []byte) bool {
	switch string(rest) {
	case "ns_idx", "user_idx", "role_idx", "audit:log":
		return true
	}
	return hasPrefix(rest, "user_role_bind:") || hasPrefix(rest, "login_lock:") || hasPrefix(rest, "role_resource_bind:")
}

func hasPrefix(b []byte, prefix string) bool {
	return len(b) >= len(prefix) && string(b[:len(prefix)]) == prefix
}

// AppendKey appends the key of a class. id is the config, service, instance or
// consumer, ignored by the classes that have none; for ConfigHistory it is
// "<config>:<version>". There is no such key for None and System.
func AppendKey(dst []byte, class Class, ns, id []byte) []byte {
	dst = append(dst, ns...)
	dst = append(dst, infix[class]...)
	if hasID(class) {
		dst = append(dst, id...)
	}
	return dst
}

func hasID(class Class) bool {
	s := infix[class]
	return s[len(s)-1] == ':'
}

// AppendGroup appends the group of an open set: every ConfigHistory of one config
// (id), or every InstanceIndex, Instance or Topology of the namespace (id is
// ignored). A namespace that HasGroup has no groups of its own.
func AppendGroup(dst []byte, class Class, ns, id []byte) []byte {
	if class == ConfigHistory {
		return AppendKey(dst, class, ns, id)
	}
	dst = append(dst, ns...)
	s := infix[class]
	return append(dst, s[:len(s)-1]...)
}

// HasGroup reports whether keys of the namespace fall into groups of another one,
// because its name contains the family of an open set ("a:svc_itc:b").
func HasGroup(ns []byte) bool {
	_, rest, _ := bytes.Cut(ns, []byte{':'})
	for part := range bytes.SplitSeq(rest, []byte{':'}) {
		switch string(part) {
		case "cfg_htr", "svc_itc", "svc_itc_idx", "topology":
			return true
		}
	}
	return false
}

// GroupOf returns the group that key belongs to, a prefix of key, or nil. It goes by
// the first family of an open set in the key, whatever precedes it.
func GroupOf(key []byte) []byte {
	const shortest = len("svc_itc:")
	p := 0
	for {
		i := bytes.IndexByte(key[p:], ':')
		if i < 0 {
			return nil
		}
		p += i + 1
		rest := key[p:]
		if len(rest) < shortest {
			return nil
		}
		switch rest[0] {
		case 'c':
			if hasPrefix(rest, "cfg_htr:") {
				return key[:p+bytes.LastIndexByte(rest, ':')]
			}
		case 's':
			if hasPrefix(rest, "svc_itc:") {
				return key[:p+len("svc_itc")]
			}
			if hasPrefix(rest, "svc_itc_idx:") {
				return key[:p+len("svc_itc_idx")]
			}
		case 't':
			if hasPrefix(rest, "topology:") {
				return key[:p+len("topology")]
			}
		}
	}
}

// Answered reports whether replies of CoSky's scripts show the content of keys of the class.
func (c Class) Answered() bool {
	switch c {
	case ServiceIndex, InstanceIndex, Instance, TopologyIndex, Topology:
		return true
	}
	return false
}
