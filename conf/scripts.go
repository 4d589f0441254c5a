package conf

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// CacheScript says that a script does what one of CoSky's does.
type CacheScript struct {
	SHA    string // SHA-1 of its text, in lower-case hex
	Effect string // one of ScriptEffects
}

// maxScripts bounds them.
const maxScripts = 256

// ScriptEffects are the names of CoSky's scripts, sorted.
func ScriptEffects() []string {
	return []string{
		"config_remove", "config_rollback", "config_set", "discovery_get_instance", "discovery_get_instance_ttl", "discovery_get_instances",
		"instance_count_stat", "registry_deregister", "registry_register", "registry_remove_service", "registry_renew",
		"registry_set_metadata", "registry_set_service", "service_stat", "service_topology_add", "service_topology_get", "user_state",
	}
}

// scripts takes texts that are YAML mappings, one per script.
func scripts(key string, p *[]CacheScript, help string) option {
	return option{
		key: key, arg: "SCRIPT", help: help, list: true, between: "\n", mappings: true,
		get: func() string {
			texts := make([]string, len(*p))
			for i, s := range *p {
				texts[i] = fmt.Sprintf("{sha: %s, effect: %s}", s.SHA, s.Effect)
			}
			return strings.Join(texts, "\n")
		},
		set: func(texts []string) error {
			var list []CacheScript
			for _, text := range texts {
				if strings.TrimSpace(text) == "" {
					continue
				}
				s, err := parseScript(text)
				if err != nil {
					return err
				}
				if slices.ContainsFunc(list, func(o CacheScript) bool { return o.SHA == s.SHA }) {
					return fmt.Errorf("the script %s is named twice", s.SHA)
				}
				list = append(list, s)
			}
			if len(list) > maxScripts {
				return fmt.Errorf("%d scripts, at most %d are allowed", len(list), maxScripts)
			}
			*p = list
			return nil
		},
	}
}

func parseScript(text string) (s CacheScript, err error) {
	pairs, ok := mapping(text)
	if !ok {
		return s, errors.New("a script is a mapping such as {sha: 0123456789abcdef0123456789abcdef01234567, effect: discovery_get_instances}")
	}
	for _, pair := range pairs {
		key := pair.Key.GetToken().Value
		texts, err := values(pair.Value)
		switch {
		case err != nil:
		case len(texts) != 1:
			err = errors.New("not a single value")
		case key == "sha":
			s.SHA, err = parseSHA(texts[0])
		case key == "effect":
			s.Effect, err = texts[0], checkEffect(texts[0])
		default:
			err = errors.New("unknown key; a script has sha and effect")
		}
		if err != nil {
			return s, fmt.Errorf("%s of a script: %w", key, err)
		}
	}
	switch {
	case s.SHA == "":
		return s, errors.New("a script needs sha, the SHA-1 of its text")
	case s.Effect == "":
		return s, fmt.Errorf("the script %s needs effect, the script of CoSky's that does the same", s.SHA)
	}
	return s, nil
}

func parseSHA(text string) (string, error) {
	if _, err := hex.DecodeString(text); err != nil || len(text) != 40 {
		return "", errors.New("must be 40 hexadecimal digits")
	}
	return strings.ToLower(text), nil
}

func checkEffect(name string) error {
	if !slices.Contains(ScriptEffects(), name) {
		return fmt.Errorf("must be one of %s", strings.Join(ScriptEffects(), ", "))
	}
	return nil
}
