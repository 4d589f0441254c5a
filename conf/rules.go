package conf

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// CacheRule says that replies to some commands on some keys are kept.
type CacheRule struct {
	Match     string        // keys, as a pattern of Redis'
	Commands  []string      // in lower case; of CacheableCommands
	TTL       time.Duration // no entry lives longer; 0: as nearcache.ttl says
	MaxValue  Bytes         // largest reply that is kept; 0: as nearcache.max_entry says
	Coherence string        // "tracking" or "ttl"
}

// maxRules bounds the rules, and with them the metrics that have one as a label.
const maxRules = 64

// CacheableCommands are the commands that a rule may name, sorted: those that read one key (MGET
// several, one by one) and whose reply depends on the content alone.
func CacheableCommands() []string {
	return []string{
		"bitcount", "exists", "get", "getbit", "getrange", "hexists", "hget", "hgetall", "hkeys", "hlen", "hmget", "hstrlen", "hvals",
		"lindex", "llen", "lrange", "mget", "scard", "sismember", "smembers", "smismember", "strlen", "substr", "type",
		"xlen", "xrange", "xrevrange", "zcard", "zcount", "zlexcount", "zmscore", "zrange", "zrangebylex", "zrangebyscore",
		"zrank", "zrevrange", "zrevrangebylex", "zrevrangebyscore", "zrevrank", "zscore",
	}
}

// rules takes texts that are YAML mappings, one per rule.
func rules(key string, p *[]CacheRule, help string) option {
	return mappings(key, p, "RULE", help, "rules", maxRules, func(_ []CacheRule, text string) (CacheRule, error) { return parseRule(text) })
}

// String writes the rule as it can be read again.
func (r CacheRule) String() string {
	return fmt.Sprintf("{match: %q, commands: [%s], ttl: %s, max_value: %s, coherence: %s}",
		r.Match, strings.ToUpper(strings.Join(r.Commands, ", ")), formatDuration(r.TTL), r.MaxValue, r.Coherence)
}

func parseRule(text string) (CacheRule, error) {
	r := CacheRule{Coherence: "tracking"}
	if err := eachPair(text, "a rule", `{match: "item:*", commands: [GET]}`, r.set); err != nil {
		return r, err
	}
	switch {
	case r.Match == "":
		return r, errors.New("a rule needs match, a pattern of keys")
	case len(r.Commands) == 0:
		return r, fmt.Errorf("the rule for %q needs commands", r.Match)
	}
	return r, nil
}

// set sets one key of a rule.
func (r *CacheRule) set(key string, texts []string) (err error) {
	if key == "commands" {
		r.Commands, err = parseCommands(texts)
		return err
	}
	if len(texts) != 1 {
		return errors.New("not a single value")
	}
	text := texts[0]
	switch key {
	case "match":
		r.Match = text
		return nil
	case "ttl":
		d, err := parseDuration(text)
		return allowing(assign(&r.TTL, d, time.Millisecond, 365*24*time.Hour, err), "a duration such as 500ms or 60s, from 1ms to nearcache.ttl")
	case "max_value":
		n, err := parseBytes(text)
		return allowing(assign(&r.MaxValue, n, 1, 1*GB, err), "a size such as 64KB, from 1 to nearcache.max_entry")
	case "coherence":
		if text != "tracking" && text != "ttl" {
			return errors.New("must be tracking or ttl")
		}
		r.Coherence = text
		return nil
	}
	return errors.New("unknown key; a rule has match, commands, ttl, max_value and coherence")
}

func parseCommands(texts []string) ([]string, error) {
	allowed := CacheableCommands()
	var list []string
	for _, text := range texts {
		name := strings.ToLower(strings.TrimSpace(text))
		switch {
		case !slices.Contains(allowed, name):
			return nil, fmt.Errorf("replies to %q cannot be kept; those to these can: %s", text, strings.ToUpper(strings.Join(allowed, " ")))
		case slices.Contains(list, name):
			return nil, fmt.Errorf("%q is named twice", text)
		}
		list = append(list, name)
	}
	return list, nil
}

// finishRules fills in what rules leave open, and checks them against what holds for all.
func (l *loader) finishRules() error {
	nc := &l.config.NearCache
	for i := range nc.Rules {
		r := &nc.Rules[i]
		if r.TTL == 0 {
			r.TTL = nc.TTL
		}
		if r.MaxValue == 0 {
			r.MaxValue = nc.MaxEntry
		}
		switch {
		case r.TTL > nc.TTL:
			return fmt.Errorf("ttl %s of the rule for %q must not be greater than %s", formatDuration(r.TTL), r.Match, l.described("nearcache.ttl"))
		case r.MaxValue > nc.MaxEntry:
			return fmt.Errorf("max_value %s of the rule for %q must not be greater than %s", r.MaxValue, r.Match, l.described("nearcache.max_entry"))
		case r.Coherence == "tracking" && nc.Invalidation == "pubsub":
			return fmt.Errorf("the rule for %q asks for coherence: tracking, but %s offers none; coherence: ttl accepts what is weaker", r.Match, l.described("nearcache.invalidation"))
		}
	}
	return nil
}
