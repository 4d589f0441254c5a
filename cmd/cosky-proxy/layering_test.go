package main

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// module is the prefix of the project's own import paths.
const module = "cosky-proxy/"

// layers orders the packages of the program; a package imports only from layers
// below its own. Test helpers (proxytest, clustertest, test/…) and bench stand outside.
var layers = [][]string{
	{"proxy/mono", "proxy/resp", "proxy/stats", "proxy/glob", "proxy/heat", "router/command", "router/info", "cluster/slot", "nearcache/coskey", "nearcache/internal/defect", "conf", "cluster/embedded", "cluster/dial"},
	{"nearcache/lease", "proxy/netloop", "proxy/acl", "proxy/quota", "lua"},
	{"nearcache", "cluster", "nearcache/pubsub"},
	{"router", "cluster/discovery"},
	{"proxy/admin", "proxy"},
	{"cmd/cosky-proxy"},
}

// doors are the only packages that may use a dependency.
var doors = map[string][]string{
	"golang.org/x/sys/":          {"proxy/netloop"},
	"github.com/redis/go-redis/": {"cluster/discovery"},
	"github.com/dgraph-io/":      {"nearcache"},
	"github.com/prometheus/":     {"proxy/admin"},
	"github.com/alicebob/":       {"cluster/embedded"},
	"github.com/goccy/go-yaml":   {"conf"},
	"github.com/spf13/pflag":     {"conf"},
	"github.com/tidwall/redcon":  {"proxy/resp"},
	"github.com/cespare/xxhash":  {"nearcache"},
}

type listed struct {
	ImportPath string
	Doc        string
	Imports    []string
}

func packages(t *testing.T) map[string]listed {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Doc,Imports", module+"...").Output()
	if err != nil {
		t.Fatalf("go list failed: %v", err)
	}
	all := make(map[string]listed)
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var p listed
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		all[strings.TrimPrefix(p.ImportPath, module)] = p
	}
	return all
}

func TestImportsGoDownwards(t *testing.T) {
	all := packages(t)
	layerOf := make(map[string]int)
	for i, layer := range layers {
		for _, name := range layer {
			if _, exists := all[name]; !exists {
				t.Errorf("layer %d names %s, which does not exist", i, name)
			}
			layerOf[name] = i
		}
	}
	for name := range layerOf {
		for _, imp := range all[name].Imports {
			own, isOurs := strings.CutPrefix(imp, module)
			if !isOurs {
				continue
			}
			below, known := layerOf[own]
			if !known || below >= layerOf[name] {
				t.Errorf("%s imports %s, which is not in a layer below it", name, own)
			}
		}
	}
}

func TestEveryPackageIsDocumented(t *testing.T) {
	for name, p := range packages(t) {
		if p.Doc == "" {
			t.Errorf("%s has no package comment", name)
		}
	}
}

func TestDependenciesHaveOneDoor(t *testing.T) {
	var program []string
	for _, layer := range layers {
		program = append(program, layer...)
	}
	for name, p := range packages(t) {
		if !slices.Contains(program, name) {
			continue
		}
		for _, imp := range p.Imports {
			for dependency, allowed := range doors {
				if strings.HasPrefix(imp, dependency) && !slices.Contains(allowed, name) {
					t.Errorf("%s imports %s, which only %v may", name, imp, allowed)
				}
			}
		}
	}
}
