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
	return mappings(key, p, "SCRIPT", help, "scripts", maxScripts, func(others []CacheScript, text string) (CacheScript, error) {
		s, err := parseScript(text)
		if err == nil && slices.ContainsFunc(others, func(o CacheScript) bool { return o.SHA == s.SHA }) {
			err = fmt.Errorf("the script %s is named twice", s.SHA)
		}
		return s, err
	})
}

// String writes the script as it can be read again.
func (s CacheScript) String() string { return fmt.Sprintf("{sha: %s, effect: %s}", s.SHA, s.Effect) }

func parseScript(text string) (s CacheScript, err error) {
	if err := eachPair(text, "a script", "{sha: 0123456789abcdef0123456789abcdef01234567, effect: discovery_get_instances}", s.set); err != nil {
		return s, err
	}
	switch {
	case s.SHA == "":
		return s, errors.New("a script needs sha, the SHA-1 of its text")
	case s.Effect == "":
		return s, fmt.Errorf("the script %s needs effect, the script of CoSky's that does the same", s.SHA)
	}
	return s, nil
}

// set sets one key of a script.
func (s *CacheScript) set(key string, texts []string) (err error) {
	switch {
	case len(texts) != 1:
		return errors.New("not a single value")
	case key == "sha":
		s.SHA, err = parseSHA(texts[0])
	case key == "effect":
		s.Effect, err = texts[0], checkEffect(texts[0])
	default:
		err = errors.New("unknown key; a script has sha and effect")
	}
	return err
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
