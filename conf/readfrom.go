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
	allowed := "pairs of a command or an @category and one of " + strings.Join(readPolicies, ", ") + "; or off"
	return listOrOff(key, p, "NAME=POLICY", help, allowed, 0, func(_ []string, text string) (string, error) {
		name, policy, found := strings.Cut(strings.TrimSpace(text), "=")
		name, policy = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(policy)
		switch {
		case !found || name == "":
			return "", fmt.Errorf("%q is not NAME=POLICY", text)
		case !slices.Contains(readPolicies, policy):
			return "", errors.New("unknown policy")
		}
		return name + "=" + policy, nil
	})
}
