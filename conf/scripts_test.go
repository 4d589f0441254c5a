package conf

import (
	"reflect"
	"strings"
	"testing"
)

const someSHA = "0123456789abcdef0123456789ABCDEF01234567"

func TestScriptsFromEverySource(t *testing.T) {
	want := []CacheScript{
		{SHA: strings.ToLower(someSHA), Effect: "discovery_get_instances"},
		{SHA: "1111111111111111111111111111111111111111", Effect: "registry_renew"},
	}
	first := "{sha: " + someSHA + ", effect: discovery_get_instances}"
	second := "{effect: registry_renew, sha: 1111111111111111111111111111111111111111}"
	for name, c := range map[string]*Config{
		"flags":    mustLoad(t, []string{"--nearcache.scripts", first, "--nearcache.scripts=" + second}, nil),
		"variable": mustLoad(t, nil, []string{"COSKY_PROXY_NEARCACHE_SCRIPTS=" + first + "\n" + second}),
		"file":     mustLoad(t, []string{"--config", writeFile(t, "nearcache:\n  scripts:\n    - "+first+"\n    - sha: 1111111111111111111111111111111111111111\n      effect: registry_renew\n")}, nil),
	} {
		if !reflect.DeepEqual(c.NearCache.Scripts, want) {
			t.Errorf("%s: got  %+v\nwant %+v", name, c.NearCache.Scripts, want)
		}
	}
}

func TestRefusedScripts(t *testing.T) {
	for text, want := range map[string]string{
		`x`:                                     `cannot use "x" for nearcache.scripts (flag --nearcache.scripts): a script is a mapping such as {sha: 0123456789abcdef0123456789abcdef01234567, effect: discovery_get_instances}`,
		`{sha: 12, effect: registry_renew}`:     `sha of a script: must be 40 hexadecimal digits`,
		`{effect: registry_renew}`:              `a script needs sha, the SHA-1 of its text`,
		`{sha: ` + someSHA + `}`:                `needs effect, the script of CoSky's that does the same`,
		`{sha: ` + someSHA + `, effect: renew}`: `effect of a script: must be one of config_remove, config_rollback,`,
		`{sha: ` + someSHA + `, effect: [registry_renew, a]}`: `effect of a script: not a single value`,
		`{sha: ` + someSHA + `, reads: a}`:                    `reads of a script: unknown key; a script has sha and effect`,
	} {
		if _, _, err := Load([]string{"--nearcache.scripts", text}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\n got %v\nwant %s", text, err, want)
		}
	}
	one := "{sha: " + someSHA + ", effect: registry_renew}"
	if _, _, err := Load([]string{"--nearcache.scripts", one, "--nearcache.scripts", one}, nil); err == nil || !strings.Contains(err.Error(), "is named twice") {
		t.Errorf("named twice: %v", err)
	}
}
