package proxy

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"cosky-proxy/nearcache/coskey"
	"cosky-proxy/proxy/glob"
	"cosky-proxy/proxy/stats"
)

// Rule says that replies to some commands on some keys are kept (nearcache.rules). The first
// rule that names both applies.
type Rule struct {
	Match    string        // keys, as a pattern of Redis'
	Commands []string      // in lower case; of CacheableCommands
	TTL      time.Duration // no entry lives longer
	MaxValue int           // bytes of a reply that is still kept

	// Bare: no invalidations of the backend's are waited for. What is written through
	// this proxy is seen at once, everything else when the TTL is over.
	Bare bool
}

// CacheableCommands are those that a rule may name, sorted.
func CacheableCommands() []string {
	names := []string{"mget"}
	for name := range allReads() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// ruleSet is the rules, prepared for finding the one of a key. It is immutable.
type ruleSet struct {
	rules   []*keyRule
	byFirst [256][]*keyRule // by the first byte of a key, in order
}

// keyRule is a rule prepared for matching.
type keyRule struct {
	Rule
	number   int    // position among the rules
	prefix   string // of every key that matches
	open     bool   // every key with the prefix matches
	commands uint64 // read.bit of each
}

// newRuleSet returns nil when there are no rules.
func newRuleSet(rules []Rule) (*ruleSet, error) {
	if len(rules) == 0 {
		return nil, nil
	}
	rs, known := new(ruleSet), allReads()
	for i := range rules {
		r := &keyRule{Rule: rules[i], number: i}
		end := strings.IndexAny(r.Match, `*?[\`)
		if end < 0 {
			end = len(r.Match)
		}
		r.prefix, r.open = r.Match[:end], r.Match[end:] == "*"
		for _, name := range r.Commands {
			rd := known[name]
			switch {
			case name == "mget":
				r.commands |= mgetBit
			case rd != nil:
				r.commands |= rd.bit
			default:
				return nil, fmt.Errorf("cannot keep replies to %q (nearcache.rules, %q): they depend on more than one key's content", name, r.Match)
			}
		}
		rs.rules = append(rs.rules, r)
		for first := range rs.byFirst {
			if r.prefix == "" || r.prefix[0] == byte(first) {
				rs.byFirst[first] = append(rs.byFirst[first], r)
			}
		}
	}
	return rs, nil
}

// asksForTracking returns the pattern of a rule that needs the backend's invalidations.
func (rs *ruleSet) asksForTracking() (pattern string, asks bool) {
	if rs == nil {
		return "", false
	}
	for _, r := range rs.rules {
		if !r.Bare {
			return r.Match, true
		}
	}
	return "", false
}

// find is the rule for a command on key, nil when there is none. bits are of the command, or of
// all commands.
func (rs *ruleSet) find(key []byte, bits uint64) *keyRule {
	if rs == nil || len(key) == 0 {
		return nil
	}
	for _, r := range rs.byFirst[key[0]] {
		if r.commands&bits != 0 && r.matches(key) {
			return r
		}
	}
	return nil
}

func (r *keyRule) matches(key []byte) bool {
	if len(key) < len(r.prefix) || string(key[:len(r.prefix)]) != r.prefix {
		return false
	}
	return r.open || glob.Match(r.Match, key)
}

// policy says on what grounds replies to a read of a key are kept.
type policy struct {
	class coskey.Class // of the key; None: it is none of CoSky's
	rule  *keyRule     // nil: what CoSky's own keys have
	keeps bool
}

// bare reports whether no source of invalidations is asked for.
func (p *policy) bare() bool { return p.rule != nil && p.rule.Bare }

// policyOf is the policy for a read of key. HGETALL and SMEMBERS of CoSky's own keys need
// no rule, and no rule weakens what holds for them.
func (l *loop) policyOf(bit uint64, key []byte) policy {
	class, _ := coskey.Classify(key)
	if class != coskey.None && bit&ownBits != 0 {
		return policy{class: class, keeps: true}
	}
	r := l.rules.find(key, bit)
	if r == nil && l.hot.keeps(key) && l.srv.hotRule.commands&bit != 0 {
		r = l.srv.hotRule
	}
	return policy{class: class, rule: r, keeps: r != nil}
}

// mayCache reports whether anything about key may be kept: only such keys concern the
// near-cache.
func (l *loop) mayCache(key []byte) bool {
	class, _ := coskey.Classify(key)
	return class != coskey.None || l.rules.find(key, anyCommand) != nil || l.hot.concerns(key)
}

// countRule counts for the rule of p.
func (l *loop) countRule(p *policy, hits, misses uint64) {
	if p.rule != nil {
		c := &l.stats.Rules[p.rule.number]
		c.Hits += hits
		c.Misses += misses
	}
}

// Grounds on which an entry is kept, as its label. Policies are looked up for each hit again only where they
// change in the course of time: an entry that was filled for a read of a key is kept for that very read
// as long as it is valid, when what CoSky's keys are and what the configuration says never changes.
const (
	groundsVary  = iota // hot keys, and whatever is kept for another command than it is the reply to
	groundsOwn          // CoSky's keys need no rule
	groundsRules        // and the number of the rule
)

// groundsOf is the label of f's entry.
func (l *loop) groundsOf(f *fetch) uint16 {
	switch p := l.policyOf(f.read.bit, f.question.Key); {
	case p != f.policy, !p.keeps, p.rule != nil && (p.rule == l.srv.hotRule || p.rule.number > math.MaxUint16-groundsRules):
		return groundsVary
	case p.rule == nil:
		return groundsOwn
	default:
		return groundsRules + uint16(p.rule.number)
	}
}

// countGrounds counts a hit for the rule that an entry's label tells of.
func (l *loop) countGrounds(label uint16) {
	if label >= groundsRules {
		l.stats.Rules[label-groundsRules].Hits++
	}
}

// newRuleCounters are the counters of the rules.
func (s *Server) newRuleCounters() []stats.Rule {
	var counters []stats.Rule
	if s.keeps != nil {
		for _, r := range s.keeps.rules {
			counters = append(counters, stats.Rule{Match: r.Match})
		}
	}
	if s.hotRule != nil {
		counters = append(counters, stats.Rule{Match: s.hotRule.Match})
	}
	return counters
}

// anyBare reports whether a rule keeps replies without the backend's invalidations.
func (rs *ruleSet) anyBare() bool {
	return rs != nil && slices.ContainsFunc(rs.rules, func(r *keyRule) bool { return r.Bare })
}

func (rs *ruleSet) count() int {
	if rs == nil {
		return 0
	}
	return len(rs.rules)
}

// checkSources says why the rules cannot be kept with these sources.
func (rs *ruleSet) checkSources(src sources) error {
	if pattern, asks := rs.asksForTracking(); asks && !src.tracking {
		return fmt.Errorf("nearcache.rules: %q asks for coherence by tracking, but there is none (nearcache.invalidation, or the backend, offers no client tracking): say coherence: ttl to accept what is weaker", pattern)
	}
	return nil
}
