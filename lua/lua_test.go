package lua

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestOwnScripts(t *testing.T) {
	all := All()
	if len(all) != 17 {
		t.Errorf("%d scripts, want 17", len(all))
	}
	for _, s := range all {
		if ByName(s.Name) != s {
			t.Errorf("ByName(%q) is another script", s.Name)
		}
		if BySHA([]byte(s.SHA1)) != s {
			t.Errorf("BySHA(%q) is not %s", s.SHA1, s.Name)
		}
		if !strings.HasPrefix(s.Text, "-- "+s.Name+": ") {
			t.Errorf("%s does not begin with its own name", s.Name)
		}
		if s.Release != "" {
			t.Errorf("%s claims to be sent by release %s", s.Name, s.Release)
		}
	}
	if ByName("config") != nil || ByName("") != nil {
		t.Error("ByName finds what is not there")
	}
}

func TestBySHA(t *testing.T) {
	for _, c := range []struct{ sha, name, release string }{
		{"62f78b8df90039549e7ec5d6c65a1934cb0d6062", "config_set", "4.0-5.8"},
		{"62F78B8DF90039549E7EC5D6C65A1934CB0D6062", "config_set", "4.0-5.8"},
		{"62f78b8df90039549e7ec5d6c65a1934cB0D6062", "config_set", "4.0-5.8"},
		{"d3b2f1b858f39cd1d598a9538abc4aea213569cf", "config_rollback", "3.x"},
		{"4566a16ef32b43d278d880790214c48ebf287812", "registry_register", "3.x-5.7"},
		{"05a232a44d1bbcf835b64bdc5286022365bc336b", "user_state", "5.7-5.8"},
	} {
		s := BySHA([]byte(c.sha))
		if s == nil || s.Name != c.name || s.Release != c.release {
			t.Errorf("BySHA(%q) = %+v, want %s of %s", c.sha, s, c.name, c.release)
			continue
		}
		if s.Text != "" {
			t.Errorf("%s of %s has a text, which would have another digest", s.Name, s.Release)
		}
	}
	for _, sha := range []string{
		"", "x", strings.Repeat("0", 40), strings.Repeat("g", 40),
		"62f78b8df90039549e7ec5d6c65a1934cb0d606", "62f78b8df90039549e7ec5d6c65a1934cb0d60622",
	} {
		if s := BySHA([]byte(sha)); s != nil {
			t.Errorf("BySHA(%q) = %s, want nil", sha, s.Name)
		}
	}
}

// There is one wording of each script in 5.8, then those of older releases that differ.
func TestReleasedDigests(t *testing.T) {
	newest, released := 0, 0
	for _, d := range definitions {
		for i, w := range d.released {
			released++
			if strings.HasSuffix(w.release, "5.8") {
				newest++
			}
			if strings.HasSuffix(w.release, "5.8") != (i == 0) {
				t.Errorf("%s: wording %d is of release %s", d.name, i, w.release)
			}
		}
	}
	if got := len(scripts().bySHA1); newest != 17 || got != released+17 {
		t.Errorf("%d wordings of 5.8 and %d digests in all; want 17 and %d: a digest is listed twice", newest, got, released+17)
	}
}

func TestEffect(t *testing.T) {
	const (
		I, X, S, T = "n:svc_itc:i", "n:svc_itc_idx:s", "n:svc_idx", "n:svc_stat"
		allI, allX = "n:svc_itc", "n:svc_itc_idx"
		C, CI, HI  = "n:cfg:c:1", "n:cfg_idx", "n:cfg_htr_idx:c:1"
		H          = "n:cfg_htr:c:1"
	)
	type keys = []string
	for _, c := range []struct {
		script                                 string
		args                                   keys
		writes, reads, writeGroups, readGroups keys
	}{
		{"config_set", keys{"c:1", "data", "hash"}, keys{CI, C, HI}, nil, keys{H}, nil},
		{"config_set", keys{"c:1"}, keys{CI, C, HI}, nil, keys{H}, nil},
		{"config_set", nil, keys{CI}, nil, nil, nil},
		{"config_remove", keys{"c:1"}, keys{CI, C, HI}, nil, keys{H}, nil},
		{"config_rollback", keys{"c:1", "7"}, keys{CI, C, HI}, nil, keys{H}, nil},
		{"config_remove", keys{"\x00:\r\n"}, keys{CI, "n:cfg:\x00:\r\n", "n:cfg_htr_idx:\x00:\r\n"}, nil, keys{"n:cfg_htr:\x00:\r\n"}, nil},

		{"registry_register", keys{"60", "s", "i", "http", "h", "1", "1"}, keys{S, T, X, I}, nil, nil, nil},
		{"registry_register", keys{"60", "s"}, keys{S, T, X}, nil, nil, nil},
		{"registry_renew", keys{"i", "60"}, keys{I}, nil, nil, nil},
		{"registry_renew", nil, nil, nil, nil, nil},
		{"registry_deregister", keys{"s", "i"}, keys{X, I}, nil, nil, nil},
		{"registry_set_metadata", keys{"i", "_a", "1"}, keys{I}, nil, nil, nil},
		{"registry_set_service", keys{"s"}, keys{S, T}, nil, nil, nil},
		{"registry_remove_service", keys{"s"}, keys{S, T}, keys{X}, nil, nil},

		{"discovery_get_instances", keys{"s"}, keys{X}, nil, nil, keys{allI}},
		{"discovery_get_instance", keys{"s", "i"}, keys{X}, keys{I}, nil, nil},
		{"discovery_get_instance_ttl", keys{"s", "i", "more"}, keys{X}, keys{I}, nil, nil},

		{"instance_count_stat", nil, nil, keys{S}, keys{allX}, keys{allI}},
		{"service_stat", keys{"s"}, keys{T, X}, nil, nil, keys{allI}},
		{"service_stat", keys{""}, keys{T, "n:svc_itc_idx:"}, nil, nil, keys{allI}},
		{"service_stat", nil, keys{T}, keys{S}, keys{allX}, keys{allI}},
		{"service_stat", keys{"s", "s"}, keys{T}, keys{S}, keys{allX}, keys{allI}},

		{"service_topology_add", keys{"a", "b"}, keys{"n:topology_idx", "n:topology:a"}, nil, nil, nil},
		{"service_topology_add", nil, keys{"n:topology_idx"}, nil, nil, nil},
		{"service_topology_get", nil, nil, keys{"n:topology_idx"}, nil, keys{"n:topology"}},
	} {
		var e Effect
		ByName(c.script).Effect([][]byte{[]byte("n"), []byte("ignored")}, toBytes(c.args), &e)
		if !equal(e.Writes, c.writes) || !equal(e.Reads, c.reads) || !equal(e.WriteGroups, c.writeGroups) || !equal(e.ReadGroups, c.readGroups) || e.All {
			t.Errorf("%s %q:\ngot  %q %q %q %q, all %v\nwant %q %q %q %q, all false", c.script, c.args,
				e.Writes, e.Reads, e.WriteGroups, e.ReadGroups, e.All, c.writes, c.reads, c.writeGroups, c.readGroups)
		}
	}
}

func TestEffectOfUserState(t *testing.T) {
	all := []string{"users", "roles", "lock", "ignored"}
	for n, want := range [][]string{1: all[:1], 2: all[:2], 3: all[:3], 4: all[:3]} {
		if n == 0 {
			continue
		}
		var e Effect
		ByName("user_state").Effect(toBytes(all[:n]), nil, &e)
		if !equal(e.Writes, want) || e.All {
			t.Errorf("%d keys: writes %q, all %v; want %q", n, e.Writes, e.All, want)
		}
	}
}

// Without a namespace, or with one inside the open sets of another, nothing is certain.
func TestEffectAll(t *testing.T) {
	for _, s := range All() {
		var e Effect
		s.Effect(nil, nil, &e)
		if !e.All {
			t.Errorf("%s without keys: All is false", s.Name)
		}
		s.Effect(toBytes([]string{"n:svc_itc:x"}), toBytes([]string{"a", "b", "c"}), &e)
		if e.All != (s.Name != "user_state") {
			t.Errorf("%s of a namespace inside a group: All is %v", s.Name, e.All)
		}
		s.Effect(toBytes([]string{"n"}), nil, &e)
		if e.All {
			t.Errorf("%s: All survives the next call", s.Name)
		}
	}
}

// An Effect that is used again tells the same, whatever came before, and without allocating.
func TestEffectReuse(t *testing.T) {
	var e Effect
	huge := bytes.Repeat([]byte("x"), 2*scratchLimit)
	ns, args := toBytes([]string{"cosky-{default}"}), toBytes([]string{"60", "order", "order@http#h#1"})
	for range 2 {
		for _, s := range All() {
			var fresh Effect
			s.Effect(ns, [][]byte{huge, huge, huge}, &e)
			s.Effect(ns, args, &e)
			s.Effect(ns, args, &fresh)
			if !slices.EqualFunc(e.Writes, fresh.Writes, bytes.Equal) || !slices.EqualFunc(e.ReadGroups, fresh.ReadGroups, bytes.Equal) {
				t.Errorf("%s: %q, %q when used again; %q, %q when fresh", s.Name, e.Writes, e.ReadGroups, fresh.Writes, fresh.ReadGroups)
			}
		}
	}
	if cap(e.scratch) > scratchLimit {
		t.Errorf("%d bytes of scratch kept, want at most %d", cap(e.scratch), scratchLimit)
	}
	all := All()
	sha := []byte("62F78B8DF90039549E7EC5D6C65A1934CB0D6062")
	allocs := testing.AllocsPerRun(100, func() {
		for _, s := range all {
			s.Effect(ns, args, &e)
		}
		BySHA(sha)
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want 0", allocs)
	}
}

func equal(got [][]byte, want []string) bool {
	return slices.EqualFunc(got, want, func(g []byte, w string) bool { return string(g) == w })
}

func toBytes(in []string) [][]byte {
	out := make([][]byte, len(in))
	for i, s := range in {
		out[i] = []byte(s)
	}
	return out
}

func TestAlike(t *testing.T) {
	sha := strings.Repeat("AB", 20)
	s, err := Alike(sha, "discovery_get_instances")
	if err != nil || s.SHA1 != strings.ToLower(sha) || s.Name != "discovery_get_instances" || s.Answer != Instances || !s.Foreign || s.Text != "" {
		t.Errorf("got %+v, %v", s, err)
	}
	if own := ByName("discovery_get_instances"); own.Foreign || own.Text == "" {
		t.Error("the script it is like has changed")
	}
	for _, c := range []struct{ sha, name, want string }{
		{sha[1:], "discovery_get_instances", "not a SHA-1 of 40 hexadecimal digits"},
		{strings.Repeat("x", 40), "discovery_get_instances", "not a SHA-1 of 40 hexadecimal digits"},
		{sha, "get_instances", `the effect "get_instances": there is none of that name`},
	} {
		if _, err := Alike(c.sha, c.name); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Alike(%q, %q): %v, want %s", c.sha, c.name, err, c.want)
		}
	}
}

// Scripts that answer are those that are not there to write, in every wording.
func TestAnswers(t *testing.T) {
	known := Known()
	for sha, s := range known {
		if (s.Answer == NoAnswer) != (s.Access == ReadWrite) {
			t.Errorf("%s %s: answer %d, access %d", s.Name, sha, s.Answer, s.Access)
		}
		if BySHA([]byte(sha)) != s {
			t.Errorf("%s is known by a digest that is not its own", s.Name)
		}
	}
	if len(known) != len(scripts().bySHA1) {
		t.Errorf("%d of %d scripts are known", len(known), len(scripts().bySHA1))
	}
}
