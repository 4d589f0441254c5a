package proxy

import (
	"time"

	"cosky-proxy/nearcache/coskey"
	"cosky-proxy/router/command"
)

// policy says on what grounds replies to a read of a key are kept.
type policy struct {
	class coskey.Class // of the key; None: it is none of CoSky's
	rule  *Rule        // nil: what CoSky's own keys have
}

// Rule is a rule of nearcache.rules: replies to some commands on some keys are kept.
type Rule struct {
	TTL      time.Duration // no entry lives longer
	MaxValue int           // bytes of a reply that is still kept
	Bare     bool          // nothing but the TTL, and writes through this proxy, ends an entry
}

func (p *policy) caches() bool { return p.class != coskey.None || p.rule != nil }

// bare reports whether no source of invalidations is asked for.
func (p *policy) bare() bool { return p.rule != nil && p.rule.Bare }

// policyOf is the policy for a read of key.
func (l *loop) policyOf(_ *command.Command, key []byte) policy {
	class, _ := coskey.Classify(key)
	return policy{class: class}
}

// mayCache reports whether anything about key may be kept: only such keys concern the
// near-cache.
func (l *loop) mayCache(key []byte) bool {
	class, _ := coskey.Classify(key)
	return class != coskey.None
}
