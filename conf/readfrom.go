package conf

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// readPolicies are the values of upstream.read_from.
var readPolicies = []string{"master", "master_preferred", "replica", "replica_preferred", "nearest"}

// readRules takes exceptions from upstream.read_from, NAME=POLICY, or "off" or nothing for none.
func readRules(key string, p *[]string, help string) option {
	return option{
		key: key, arg: "NAME=POLICY", help: help, list: true,
		allowed: "pairs of a command or an @category and one of " + strings.Join(readPolicies, ", ") + "; or off",
		get: func() string {
			if len(*p) == 0 {
				return "off"
			}
			return strings.Join(*p, ",")
		},
		set: func(texts []string) error {
			if len(texts) == 1 && isOff(texts[0]) {
				texts = nil
			}
			var list []string
			for _, text := range texts {
				name, policy, found := strings.Cut(strings.TrimSpace(text), "=")
				name, policy = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(policy)
				switch {
				case !found || name == "":
					return fmt.Errorf("%q is not NAME=POLICY", text)
				case !slices.Contains(readPolicies, policy):
					return errors.New("unknown policy")
				}
				list = append(list, name+"="+policy)
			}
			*p = list
			return nil
		},
	}
}
