package coskey

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestClassify(t *testing.T) {
	for _, c := range []struct {
		key   string
		class Class
		ns    string
	}{
		{"cosky-{default}:cfg_idx", ConfigIndex, "cosky-{default}"},
		{"n:cfg:app.yaml", Config, "n"},
		{"n:cfg:", Config, "n"},
		{":cfg:x", Config, ""},
		{"n:cfg:a:1", Config, "n"},
		{"n:cfg:a\x00\r\nb", Config, "n"},
		{"n:cfg_htr_idx:app", ConfigHistoryIndex, "n"},
		{"n:cfg_htr:app:1", ConfigHistory, "n"},
		{"n:cfg_htr:a:1:1", ConfigHistory, "n"},
		{"n:cfg_htr::1", ConfigHistory, "n"},
		{"n:cfg_htr:app", None, ""},
		{"n:svc_idx", ServiceIndex, "n"},
		{"n:svc_stat", ServiceStat, "n"},
		{"n:svc_itc_idx:order", InstanceIndex, "n"},
		{"n:svc_itc_idx:", InstanceIndex, "n"},
		{"n:svc_itc:order@http#::1#8080", Instance, "n"},
		{"n:topology_idx", TopologyIndex, "n"},
		{"n:topology:_Client_", Topology, "n"},
		{"cosky-{system}:ns_idx", System, "cosky-{system}"},
		{"cosky-{system}:user_idx", System, "cosky-{system}"},
		{"cosky-{system}:user_role_bind:bob", System, "cosky-{system}"},
		{"cosky-{system}:login_lock:bob", System, "cosky-{system}"},
		{"cosky-{system}:role_idx", System, "cosky-{system}"},
		{"cosky-{system}:role_resource_bind:admin", System, "cosky-{system}"},
		{"cosky-{system}:audit:log", System, "cosky-{system}"},
		{"cosky-{system}:cfg:cosky-policy.json", Config, "cosky-{system}"},
		{"cosky-{default}:ns_idx", None, ""},
		{"cosky-{system}:other", None, ""},

		{"", None, ""},
		{":", None, ""},
		{"foo", None, ""},
		{"key:000000012", None, ""},
		{"n:", None, ""},
		{"n:c", None, ""},
		{"n:cfg", None, ""},
		{"n:cfg_", None, ""},
		{"n:cfg_idx2", None, ""},
		{"n:svc_idx:", None, ""},
		{"n:svc_itc", None, ""},
		{"n:topology", None, ""},
		{"n:CFG:app", None, ""},

		// Two namespaces can claim these, "n" and a longer one.
		{"n:cfg:cfg_idx", None, ""},
		{"n:cfg:a:svc_stat", None, ""},
		{"n:svc_itc:a:cfg:b", None, ""},
		{"n:cfg_htr:cfg:1", None, ""},
		{"n:svc_itc_idx:svc_idx", None, ""},
		{"team:a:svc_idx", None, ""},
	} {
		class, n := Classify([]byte(c.key))
		if class != c.class || class != None && c.key[:n] != c.ns {
			t.Errorf("Classify(%q) = %v, namespace %q; want %v, %q", c.key, class, c.key[:n], c.class, c.ns)
		}
	}
}

// What AppendKey writes, Classify reads.
func TestAppendKey(t *testing.T) {
	for class := ConfigIndex; class < System; class++ {
		id := "some.id"
		if class == ConfigHistory {
			id = "some.id:12"
		}
		key := AppendKey([]byte("before"), class, []byte("{n}"), []byte(id))
		got, n := Classify(key)
		if got != class || string(key[:n]) != "before{n}" {
			t.Errorf("AppendKey(%v) = %q, which is %v of %q", class, key, got, key[:n])
		}
		if hasID(class) != strings.HasSuffix(string(key), id) {
			t.Errorf("AppendKey(%v) = %q: wrong end", class, key)
		}
	}
}

func TestGroupOf(t *testing.T) {
	for _, c := range []struct{ key, group string }{
		{"n:cfg_htr:app:1", "n:cfg_htr:app"},
		{"n:cfg_htr:a:1:1", "n:cfg_htr:a:1"}, // the version follows the last colon
		{"n:cfg_htr::1", "n:cfg_htr:"},
		{"n:svc_itc:order@http#::1#8080", "n:svc_itc"},
		{"n:svc_itc:", "n:svc_itc"},
		{"n:svc_itc_idx:order", "n:svc_itc_idx"},
		{"n:svc_itc_idx:a:svc_itc:b", "n:svc_itc_idx"},
		{"n:topology:order", "n:topology"},
		{":svc_itc:x", ":svc_itc"},
		{"team:a:svc_itc:x", "team:a:svc_itc"},
		{"n:cfg:app", ""},
		{"n:cfg_idx", ""},
		{"n:cfg_htr_idx:app", ""},
		{"n:svc_idx", ""},
		{"n:topology_idx", ""},
		{"svc_itc:x", ""},
		{"foo", ""},
		{"key:000000012", ""},
		{"", ""},
		{":::::::::::::", ""},
	} {
		if got := GroupOf([]byte(c.key)); string(got) != c.group {
			t.Errorf("GroupOf(%q) = %q, want %q", c.key, got, c.group)
		}
	}
}

// A writer that names the group and a reader that derives it from the key agree,
// for every namespace without HasGroup, whatever the id.
func checkGroup(t *testing.T, ns, id []byte) {
	t.Helper()
	if HasGroup(ns) {
		return
	}
	for _, class := range []Class{InstanceIndex, Instance, Topology, ConfigHistory} {
		member := AppendKey(nil, class, ns, id)
		if class == ConfigHistory {
			member = append(member, ":12"...)
		}
		if want, got := AppendGroup(nil, class, ns, id), GroupOf(member); !bytes.Equal(got, want) {
			t.Errorf("GroupOf(%q) = %q, want %q", member, got, want)
		}
	}
}

func TestGroupOfAnyID(t *testing.T) {
	for _, ns := range []string{"n", "", "team:a", "svc_itc", "a:svc_itcx", "svc_itc_idx:b"} {
		for _, id := range []string{"", "a", "a:b", ":", "::1", ":svc_itc:", "svc_itc:x", "cfg_htr:a:1", "a:topology:b", "\x00:\xff"} {
			checkGroup(t, []byte(ns), []byte(id))
		}
	}
}

func TestHasGroup(t *testing.T) {
	for ns, want := range map[string]bool{
		"": false, "n": false, "svc_itc": false, "team:a": false, "a:svc_itc_": false, "a:cfg": false,
		"a:svc_itc": true, "a:svc_itc:b": true, "a:b:cfg_htr": true, ":topology": true, "a:svc_itc_idx:b:c": true,
	} {
		if got := HasGroup([]byte(ns)); got != want {
			t.Errorf("HasGroup(%q) = %v, want %v", ns, got, want)
		}
	}
}

// transcript notes what a Visitor is told.
type transcript []string

func (t *transcript) Key(key []byte)     { *t = append(*t, string(key)) }
func (t *transcript) Group(group []byte) { *t = append(*t, string(group)+"|") }

func TestEvent(t *testing.T) {
	config := []string{"n:cfg:a:1", "n:cfg_idx", "n:cfg_htr_idx:a:1", "n:cfg_htr:a:1|"}
	service := []string{"n:svc_idx", "n:svc_stat"}
	instance := []string{"n:svc_itc:o@http#h#1"}
	member := []string{"n:svc_itc:o@http#h#1", "n:svc_itc_idx|"}
	for _, c := range []struct {
		channel, payload string
		want             []string
	}{
		{"n:cfg:a:1", "set", config},
		{"n:cfg:a:1", "remove", config},
		{"n:cfg:a:1", "rollback", config},
		{"n:cfg:a:1", "", config},
		{"n:svc_idx", "set", service},
		{"n:svc_idx", "remove", service},
		{"n:svc_idx", "what", service},
		{"n:svc_itc:o@http#h#1", "register", member},
		{"n:svc_itc:o@http#h#1", "deregister", member},
		{"n:svc_itc:o@http#h#1", "expired", member},
		{"n:svc_itc:o@http#h#1", "RENEW", member}, // unknown: the superset
		{"n:svc_itc:o@http#h#1", "renew", instance},
		{"n:svc_itc:o@http#h#1", "set_metadata", instance},
		{"n:cfg:", "set", []string{"n:cfg:", "n:cfg_idx", "n:cfg_htr_idx:", "n:cfg_htr:|"}},
		{"n:cfg_idx", "set", nil},
		{"n:svc_stat", "set", nil},
		{"simba:{stat}", "set", nil},
		{"nothing", "set", nil},
		{"", "", nil},
	} {
		var got transcript
		Event([]byte(c.channel), []byte(c.payload), &got)
		if !slices.Equal(got, c.want) {
			t.Errorf("Event(%q, %q) = %q, want %q", c.channel, c.payload, got, c.want)
		}
	}
}

func TestSubscription(t *testing.T) {
	channels, patterns := Subscription([]byte(`a*b?[c]\{d}`))
	if want := []string{`a*b?[c]\{d}:svc_idx`}; !slices.Equal(channels, want) {
		t.Errorf("channels = %q, want %q", channels, want)
	}
	if want := []string{`a\*b\?\[c\]\\{d}:cfg:*`, `a\*b\?\[c\]\\{d}:svc_itc:*`}; !slices.Equal(patterns, want) {
		t.Errorf("patterns = %q, want %q", patterns, want)
	}
}

func TestCovered(t *testing.T) {
	want := map[Class]Coverage{
		None: Uncovered, System: Uncovered, TopologyIndex: Uncovered, Topology: Uncovered,
		ConfigIndex: Partial, ServiceStat: Partial, Instance: Partial,
		Config: Complete, ConfigHistory: Complete, ConfigHistoryIndex: Complete, ServiceIndex: Complete, InstanceIndex: Complete,
	}
	for class := None; class <= System; class++ {
		if got := class.Covered(); got != want[class] {
			t.Errorf("%v.Covered() = %v, want %v", class, got, want[class])
		}
	}
}

func TestLookupsDoNotAllocate(t *testing.T) {
	keys := [][]byte{
		[]byte("foo"), []byte("key:000000012"), []byte("cosky-{default}:cfg:app.yaml"),
		[]byte("cosky-{system}:audit:log"), []byte("n:cfg_htr:app:12"), []byte("n:svc_itc:order@http#::1#8080"),
	}
	allocs := testing.AllocsPerRun(100, func() {
		for _, k := range keys {
			Classify(k)
			GroupOf(k)
			HasGroup(k)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want 0", allocs)
	}
}

func TestAnswered(t *testing.T) {
	want := []Class{ServiceIndex, InstanceIndex, Instance, TopologyIndex, Topology}
	for c := None; c <= System; c++ {
		if c.Answered() != slices.Contains(want, c) {
			t.Errorf("%v: %v", c, c.Answered())
		}
	}
}
