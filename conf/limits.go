package conf

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// LimitRule limits commands: how many per second, and how many at once.
type LimitRule struct {
	Per      string  // "connection", "address", "user" or "namespace": what is counted together
	Match    string  // names, as a pattern of Redis'; empty: all
	Rate     float64 // commands per second; 0: any number
	Burst    int     // commands at once after a pause; 0: as many as in a second
	InFlight int     // commands that are not answered yet; 0: any number
}

// limitRules takes texts that are YAML mappings, one per rule.
func limitRules(key string, p *[]LimitRule, help string) option {
	return mappings(key, p, "RULE", help, "rules", maxRules, func(_ []LimitRule, text string) (LimitRule, error) { return parseLimitRule(text) })
}

// String writes the rule as it can be read again.
func (r LimitRule) String() string {
	text := "{per: " + r.Per
	if r.Match != "" {
		text += fmt.Sprintf(", match: %q", r.Match)
	}
	if r.Rate > 0 {
		text += ", rate: " + strconv.FormatFloat(r.Rate, 'f', -1, 64)
	}
	if r.Burst > 0 {
		text += fmt.Sprintf(", burst: %d", r.Burst)
	}
	if r.InFlight > 0 {
		text += fmt.Sprintf(", in_flight: %d", r.InFlight)
	}
	return text + "}"
}

func parseLimitRule(text string) (r LimitRule, err error) {
	if err := eachPair(text, "a rule", "{per: user, rate: 1000}", r.set); err != nil {
		return r, err
	}
	switch {
	case r.Per == "":
		return r, errors.New("a rule needs per: connection, address, user or namespace")
	case r.Rate == 0 && r.InFlight == 0:
		return r, fmt.Errorf("the rule per %s needs rate or in_flight", r.Per)
	case r.Burst > 0 && r.Rate == 0:
		return r, fmt.Errorf("the rule per %s has a burst, which needs a rate", r.Per)
	case r.Match != "" && r.Per == "connection":
		return r, errors.New("connections have no names that match could compare")
	}
	return r, nil
}

// set sets one key of a rule.
func (r *LimitRule) set(key string, texts []string) error {
	if len(texts) != 1 {
		return errors.New("not a single value")
	}
	text := texts[0]
	switch key {
	case "per":
		if !slices.Contains([]string{"connection", "address", "user", "namespace"}, text) {
			return errors.New("must be connection, address, user or namespace")
		}
		r.Per = text
		return nil
	case "match":
		r.Match = text
		return nil
	case "rate":
		return allowing(parseRate(&r.Rate, text), "commands per second, from 0.001 to 100000000")
	case "burst":
		return allowing(atLeastOne(&r.Burst, text), "a whole number from 1 to 100000000")
	case "in_flight":
		return allowing(atLeastOne(&r.InFlight, text), "a whole number from 1 to 100000000")
	}
	return errors.New("unknown key; a rule has per, match, rate, burst and in_flight")
}

func parseRate(p *float64, text string) error {
	n, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil:
		return errors.New("not a number")
	case !(n >= 0.001 && n <= 100_000_000):
		return errOutOfRange
	}
	*p = n
	return nil
}

func atLeastOne(p *int, text string) error {
	n, err := parseNumber(text)
	return assign(p, int(n), 1, 100_000_000, err)
}
