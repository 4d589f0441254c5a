package command

import (
	"slices"
	"strings"
	"testing"
)

func list(elems ...any) any { return elems }

// entry is an element of COMMAND's reply as servers since 7.0 give it.
func entry(name string, arity int, flags, tips, specs any, subs ...any) any {
	return []any{name, int64(arity), flags, int64(0), int64(0), int64(0), list(), tips, specs, subs}
}

// legacyEntry is one as servers before 7.0 give it.
func legacyEntry(name string, arity, first, last, step int, flags ...any) any {
	return []any{name, int64(arity), flags, int64(first), int64(last), int64(step), list()}
}

// spec is a key spec of the keys from index on.
func spec(index, last int, flags ...any) any {
	return list("flags", flags,
		"begin_search", list("type", "index", "spec", list("index", int64(index))),
		"find_keys", list("type", "range", "spec", list("lastkey", int64(last), "keystep", int64(1), "limit", int64(0))))
}

func merge(t *testing.T, on *Table, entries ...any) *Table {
	t.Helper()
	cmds, err := ParseReply(entries)
	if err != nil {
		t.Fatal(err)
	}
	merged, err := on.Merge(cmds)
	if err != nil {
		t.Fatal(err)
	}
	return merged
}

func TestMergeAddsWhatTheBackendHas(t *testing.T) {
	merged := merge(t, builtin,
		nil,
		legacyEntry("JSON.GET", -2, 1, 1, 1, "readonly", "module"),
		legacyEntry("old.del", -2, 1, -1, 1, "write"),
		entry("config", -2, list(), list(), list(),
			entry("config|nudge", 2, list("admin"), list(), list())),
		entry("graph.query", -2, list("write", "module"), list(), list(spec(1, 0, "RW")),
			entry("graph.query|fast", -3, list("write", "module"), list(), list(spec(2, 0, "RW")))),
	)
	if got := merged.Count() - builtin.Count(); got != 5 {
		t.Errorf("%d commands more, want 5", got)
	}
	if c, text := merged.Resolve(bytesOf(words("json.get a"))); text != "" || c.Name != "json.get" {
		t.Errorf("json.get: %v, %q", c, text)
	}
	c, _ := merged.Resolve(bytesOf(words("old.del a b")))
	if keys, text := c.KeysRW(bytesOf(words("old.del a b")), nil); text != "" || !slices.Equal(keys, []Key{{1, true}, {2, true}}) {
		t.Errorf("old.del: %v, %q", keys, text)
	}
	if c, text := merged.Resolve(bytesOf(words("config nudge"))); text != "" || c.Parent != merged.Lookup([]byte("config")) {
		t.Errorf("config nudge: %v, %q", c, text)
	}
	c, _ = merged.Resolve(bytesOf(words("GRAPH.QUERY FAST k")))
	if keys, text := c.Keys(bytesOf(words("GRAPH.QUERY FAST k")), nil); text != "" || !slices.Equal(keys, []int{2}) {
		t.Errorf("graph.query fast: %v, %q", keys, text)
	}
	if Lookup([]byte("json.get")) != nil || Lookup([]byte("config")).Sub([]byte("nudge")) != nil {
		t.Error("Merge changed the built-in table")
	}
}

func TestMergeKeepsIDs(t *testing.T) {
	one := merge(t, builtin, legacyEntry("get", 2, 1, 1, 1, "readonly"), legacyEntry("a.x", 2, 1, 1, 1, "module"))
	two := merge(t, one, legacyEntry("b.y", 2, 1, 1, 1, "module"), legacyEntry("get", 2, 1, 1, 1, "readonly"))
	for _, c := range one.All() {
		if m := two.Named(c.Name); m == nil || m.ID != c.ID || m.Script != c.Script || m.keys != c.keys {
			t.Errorf("%s changed", c.Name)
		}
	}
	if two.Lookup([]byte("a.x")) != nil || two.Lookup([]byte("b.y")) == nil {
		t.Error("the second list is not the one that counts")
	}
}

func TestMergeForgetsWhatTheBackendLacks(t *testing.T) {
	merged := merge(t, builtin,
		entry("get", 2, list("readonly"), list(), list(spec(1, 0, "RO"))),
		entry("config", -2, list(), list(), list(), entry("config|get", -3, list("admin"), list(), list())),
		legacyEntry("memory", -2, 0, 0, 0, "readonly"),
	)
	for line, want := range map[string]string{
		"get a":                  "",
		"set a b":                "ERR unknown command 'set', with args beginning with: 'a' 'b' ",
		"config get x":           "",
		"CONFIG SET x y":         "ERR unknown subcommand 'SET'. Try CONFIG HELP.",
		"memory usage a":         "", // a server before 7.0 lists no subcommands
		"hello 3":                "", // the proxy answers these itself
		"client setinfo lib-ver": "ERR wrong number of arguments for 'client|setinfo' command",
		"client kill x":          "ERR unknown subcommand 'kill'. Try CLIENT HELP.",
	} {
		if _, text := merged.Resolve(bytesOf(words(line))); text != want {
			t.Errorf("%s: got %q, want %q", line, text, want)
		}
	}
	if merged.Named("set") == nil || merged.LookupFull([]byte("config|set")) != nil {
		t.Error("what is absent has to be known but not found")
	}
	if back := merge(t, merged, legacyEntry("set", -3, 1, 1, 1, "write")); back.Lookup([]byte("SET")) == nil || back.Lookup([]byte("get")) != nil {
		t.Error("SET did not come back, or GET stayed")
	}
}

func TestMergeBelievesTheBackend(t *testing.T) {
	merged := merge(t, builtin,
		entry("get", 9, list("write"), list(), list(spec(2, 0, "RW"))),
		entry("dbsize", 1, list("readonly"), list("response_policy:agg_max"), list()),
		entry("blpop", -3, list("write"), list(), list(spec(1, -2, "RW"))),
		entry("wait", 3, list(), list(), list()),
		entry("xread", -4, list("readonly", "movablekeys"), list(), list()),
		legacyEntry("set", -7, 0, 0, 0, "readonly"),
		legacyEntry("memory", 4, 0, 0, 0),
	)
	get := merged.Lookup([]byte("get"))
	if get.Arity != 9 || !get.Has(Write) || get.Has(ReadOnly) || get.KeyPos != 2 || get.Since != "1.0.0" || get.Group != "string" {
		t.Errorf("get: %+v", get)
	}
	if c := merged.Lookup([]byte("dbsize")); c.Request != RequestAllShards || c.Response != ResponseAggMax {
		t.Errorf("dbsize: %d, %d, want our request policy and their response policy", c.Request, c.Response)
	}
	for _, name := range []string{"blpop", "wait"} {
		if !merged.Lookup([]byte(name)).Has(Blocking) {
			t.Errorf("%s does not block any more", name)
		}
	}
	if c := merged.Lookup([]byte("xread")); len(c.KeySpecs) == 0 || c.keys != keysXRead {
		t.Error("xread has lost its key specs")
	}
	if c := merged.Lookup([]byte("set")); c.Arity != -7 || !c.Has(Write) || !c.SingleKey {
		t.Errorf("set: %+v", c)
	}
	if c := merged.Lookup([]byte("memory")); c.Arity != -2 {
		t.Errorf("memory: arity %d", c.Arity)
	}
}

// Of a module's commands only what they say is taken for granted.
func TestModuleCommandsAreTakenCarefully(t *testing.T) {
	merged := merge(t, builtin,
		entry("mod.get", 2, list("readonly", "module"), list(), list(spec(1, 0, "RO"))),
		entry("mod.mget", -2, list("readonly", "module"), list("request_policy:multi_shard"), list(spec(1, -1, "RO"))),
	)
	for _, name := range []string{"mod.get", "mod.mget"} {
		if c := merged.Lookup([]byte(name)); c.SingleKey || c.Split != 0 || len(c.KeySpecs) != 1 {
			t.Errorf("%s: single key %t, split %d, %d key specs", name, c.SingleKey, c.Split, len(c.KeySpecs))
		}
	}
}

func TestRename(t *testing.T) {
	merged := merge(t, builtin, entry("get", 2, list("readonly"), list(), list(spec(1, 0, "RO"))))
	rename := func(name string, entries ...any) *Table {
		t.Helper()
		cmds, err := ParseReply(entries)
		if err != nil {
			t.Fatal(err)
		}
		renamed, err := merged.Rename(name, cmds)
		if err != nil {
			t.Fatal(err)
		}
		return renamed
	}
	merged = rename("settings", entry("config", -2, list(), list(), list(), entry("config|get", -3, list("admin"), list(), list())))
	merged = rename("fetch", entry("hget", 3, list("readonly"), list(), list(spec(1, 0, "RO"))))
	merged = rename("my.cmd", entry("my.cmd", 2, list("module"), list(), list()))
	for line, want := range map[string]string{
		"SETTINGS get x": "config|get", "fetch a b": "hget", "my.cmd x": "my.cmd", "get x": "get",
	} {
		if c, text := merged.Resolve(bytesOf(words(line))); text != "" || c.Name != want {
			t.Errorf("%s: got %v, %q", line, c, text)
		}
	}
	for line, want := range map[string]string{
		"settings":      "ERR wrong number of arguments for 'config' command",
		"settings set":  "ERR unknown subcommand 'set'. Try SETTINGS HELP.",
		"config get x":  "ERR unknown command 'config', with args beginning with: 'get' 'x' ",
		"hget a b":      "ERR unknown command 'hget', with args beginning with: 'a' 'b' ",
		"fetch a b c d": "ERR wrong number of arguments for 'hget' command",
	} {
		if _, text := merged.Resolve(bytesOf(words(line))); text != want {
			t.Errorf("%s: got %q, want %q", line, text, want)
		}
	}
}

func TestMergeRefusesJunk(t *testing.T) {
	legacy := func(name string) any { return legacyEntry(name, 1, 0, 0, 0) }
	for _, reply := range []any{
		nil, "OK", int64(1), map[any]any{}, list("x"), list(list("x")), list(legacy("")), list(legacy("a b")), list(legacy("a\tb")), list(legacy("a\n")),
		list(legacy("new|sub")),
		list([]any{"new", int64(1), nil, int64(0), int64(0), int64(0), nil, nil, list("no map"), nil}),
	} {
		cmds, err := ParseReply(reply)
		if err == nil {
			_, err = builtin.Merge(cmds)
		}
		if err == nil || !strings.HasPrefix(err.Error(), "cannot ") {
			t.Errorf("%v: got error %v", reply, err)
		}
	}
}

// The name of a command of the proxy's own is the backend's if it has one: with its arity, and
// without the proxy's subcommands.
func TestMergeLeavesItsNamesToTheBackend(t *testing.T) {
	get := entry("get", 2, list("readonly"), list(), list(spec(1, 0, "RO")))
	own := merge(t, builtin, get)
	theirs := merge(t, own, get, legacyEntry("proxy", 2, 1, 1, 1, "module"))
	for line, want := range map[string]struct {
		of *Table
		ok bool
	}{
		"proxy hotkeys":     {own, true},
		"proxy nosuch":      {own, false},
		"proxy cache stats": {own, true},
		"proxy key":         {theirs, true},
		"proxy cache x":     {theirs, false},
		"cosky.sync":        {theirs, true},
	} {
		c, text := want.of.Resolve(bytesOf(words(line)))
		if (text == "") != want.ok || text == "" && c.Own != (want.of == own || c.Name == "cosky.sync") {
			t.Errorf("%s: %v %q", line, c, text)
		}
	}
	if back := merge(t, theirs, get); !back.Named("proxy|hotkeys").Own {
		t.Error("the proxy's own command did not come back")
	}
}
