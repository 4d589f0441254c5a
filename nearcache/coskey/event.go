package coskey

import "bytes"

// Visitor is told what a message changed. The slices are valid during the call only.
type Visitor interface {
	// Key names one key whose content has changed or may have.
	Key(key []byte)
	// Group names an open set (see GroupOf) of which members may have changed.
	Group(group []byte)
}

// Event tells v everything whose content the message implies has changed; for a
// payload it does not know, everything the channel can stand for. Channels that
// are none of CoSky's are ignored. It allocates once, so it belongs on the
// goroutine that receives messages, not on the request path.
func Event(channel, payload []byte, v Visitor) {
	i := bytes.IndexByte(channel, ':')
	if i < 0 {
		return
	}
	ns, rest := channel[:i], channel[i+1:]
	switch class := family(rest); class {
	case Config:
		configEvent(ns, rest[len("cfg:"):], v)
	case ServiceIndex:
		serviceEvent(ns, v)
	case Instance:
		instanceEvent(ns, channel, payload, v)
	}
}

// ClassOfChannel returns what messages of the channel are about: Config, ServiceIndex or Instance; None
// when it is none of CoSky's.
func ClassOfChannel(channel []byte) Class {
	i := bytes.IndexByte(channel, ':')
	if i < 0 {
		return None
	}
	switch class := family(channel[i+1:]); class {
	case Config, ServiceIndex, Instance:
		return class
	}
	return None
}

// configEvent serves every payload: each may have archived the version before,
// whose number the message does not tell, and each may have changed both indexes.
func configEvent(ns, id []byte, v Visitor) {
	buf := make([]byte, 0, len(ns)+len(id)+len(":cfg_htr_idx:"))
	v.Key(AppendKey(buf, Config, ns, id))
	v.Key(AppendKey(buf, ConfigIndex, ns, nil))
	v.Key(AppendKey(buf, ConfigHistoryIndex, ns, id))
	v.Group(AppendGroup(buf, ConfigHistory, ns, id))
}

// serviceEvent: a service that comes or goes takes its count with it.
func serviceEvent(ns []byte, v Visitor) {
	buf := make([]byte, 0, len(ns)+len(":svc_stat"))
	v.Key(AppendKey(buf, ServiceIndex, ns, nil))
	v.Key(AppendKey(buf, ServiceStat, ns, nil))
}

// instanceEvent voids all instance indexes of the namespace when membership may
// have changed: the id usually begins with the service, but scripts take both as
// separate, opaque arguments, so the message does not prove which index it was.
func instanceEvent(ns, channel, payload []byte, v Visitor) {
	v.Key(channel)
	switch string(payload) {
	case "renew", "set_metadata":
		return
	}
	v.Group(AppendGroup(make([]byte, 0, len(ns)+len(":svc_itc_idx")), InstanceIndex, ns, nil))
}

// Subscription returns the channels to SUBSCRIBE and the patterns to PSUBSCRIBE
// for every message of a namespace.
func Subscription(ns []byte) (channels, patterns []string) {
	glob := escapeGlob(ns)
	return []string{string(AppendKey(nil, ServiceIndex, ns, nil))},
		[]string{
			string(AppendKey(nil, Config, glob, []byte("*"))),
			string(AppendKey(nil, Instance, glob, []byte("*"))),
		}
}

// escapeGlob makes a pattern that matches exactly s (Redis: stringmatchlen, util.c).
func escapeGlob(s []byte) []byte {
	out := make([]byte, 0, len(s))
	for _, c := range s {
		if bytes.IndexByte([]byte(`*?[]\`), c) >= 0 {
			out = append(out, '\\')
		}
		out = append(out, c)
	}
	return out
}
