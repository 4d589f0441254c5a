package discovery

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/slot"
)

func TestParseNodes(t *testing.T) {
	reply := strings.Join([]string{
		"a 10.0.0.1:7000@17000,host-a myself,master - 0 0 3 connected 0-99 200 [300->-b]",
		"b 10.0.0.2:7001@17001 master - 0 1 4 connected 101-150 100",
		"c fe80::3:7002@17002,,tls-port=0 slave,fail b 0 1 4 disconnected",
		"d 10.0.0.4:7003@17003 handshake - 0 0 0 disconnected",
		"e :0@0 master,noaddr - 0 0 0 disconnected",
	}, "\n") + "\n"
	got, err := parseNodes(reply, "seed")
	if err != nil {
		t.Fatal(err)
	}
	want := []member{
		{id: "a", addr: "10.0.0.1:7000", masterID: "-", epoch: 3, self: true, primary: true, migrating: true, ranges: []slot.Range{{First: 0, Last: 99}, {First: 200, Last: 200}}},
		{id: "b", addr: "10.0.0.2:7001", masterID: "-", epoch: 4, primary: true, ranges: []slot.Range{{First: 100, Last: 150}}},
		{id: "c", addr: "[fe80::3]:7002", masterID: "b", epoch: 4, failed: true},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestParseNodesTakesTheAskedHostForAnUnknownOne(t *testing.T) {
	got, err := parseNodes("a :7000@17000 myself,master - 0 0 0 connected 1\n", "seed")
	if err != nil || got[0].addr != "seed:7000" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestParseNodesRejects(t *testing.T) {
	for _, reply := range []string{
		"",
		"a 1.1.1.1:1@2 master - 0 0 0 connected\n", // nobody is myself
		"a 1.1.1.1:1@2 myself,master - 0 0\n",
		"a 1.1.1.1:1@2 myself,master - 0 0 x connected\n",
		"a 1.1.1.1:1@2 myself,master - 0 0 0 connected 5-4\n",
		"a 1.1.1.1:1@2 myself,master - 0 0 0 connected 16384\n",
	} {
		if got, err := parseNodes(reply, "h"); err == nil {
			t.Errorf("parseNodes(%q) = %+v, want an error", reply, got)
		}
	}
}

func TestEndpoints(t *testing.T) {
	node := func(ip any, id string) []any { return []any{ip, int64(7000), id, []any{}} }
	reply := []any{
		[]any{int64(0), int64(5), node("10.0.0.1", "a"), node(nil, "b")},
		[]any{int64(6), int64(9), node("", "c"), node("?", "d"), []any{"10.0.0.5", int64(7)}},
		"nonsense", []any{},
	}
	want := map[string]string{"a": "10.0.0.1:7000", "b": "seed:7000", "c": "seed:7000"}
	if got := slotEndpoints(reply, "seed"); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := slotEndpoints(nil, "seed"); len(got) != 0 {
		t.Errorf("no reply gives %v", got)
	}
}

func TestShardEndpoints(t *testing.T) {
	both := map[any]any{"id": "a", "endpoint": "::1", "ip": "::1", "port": int64(7000), "tls-port": int64(7100)}
	secure := map[any]any{"id": "b", "endpoint": "b.example", "tls-port": int64(7100)}
	plain := []any{"id", "c", "endpoint", "", "port", int64(7000)} // RESP2
	unnamed := map[any]any{"id": "d", "endpoint": "?", "port": int64(7000)}
	reply := []any{
		map[any]any{"slots": []any{int64(0), int64(9)}, "nodes": []any{both, secure}},
		[]any{"slots", []any{}, "nodes", []any{plain, unnamed, "nonsense"}},
		"nonsense",
	}
	for encrypted, want := range map[bool]map[string]string{
		false: {"a": "[::1]:7000", "b": "b.example:7100", "c": "seed:7000"},
		true:  {"a": "[::1]:7100", "b": "b.example:7100", "c": "seed:7000"},
	} {
		if got := shardEndpoints(reply, "seed", encrypted); !reflect.DeepEqual(got, want) {
			t.Errorf("encrypted %v: got %v, want %v", encrypted, got, want)
		}
	}
}

// said builds a view out of "id epoch role slots" lines; the first speaks of itself.
func said(lines ...string) view {
	var v view
	for i, line := range lines {
		m := member{self: i == 0}
		var role, slots string
		fmt.Sscan(line, &m.id, &m.epoch, &role, &slots)
		m.addr = m.id + ":1"
		m.failed = strings.HasSuffix(role, "!")
		role = strings.TrimSuffix(role, "!")
		m.primary = role == "primary"
		if !m.primary {
			m.masterID = role
		}
		if slots != "" {
			r, err := slot.ParseRange(slots)
			if err != nil {
				panic(err)
			}
			m.ranges = []slot.Range{r}
		}
		v.members = append(v.members, m)
	}
	return v
}

func TestMergeFollowsTheHighestEpoch(t *testing.T) {
	tests := []struct {
		name   string
		before view
		views  []view
		want   string
	}{
		{
			name:  "all agree",
			views: []view{said("a 1 primary 0-9", "b 2 primary 10-19", "r 1 a"), said("b 2 primary 10-19", "a 1 primary 0-9", "r 1 a")},
			want:  "a:0-9+r b:10-19",
		},
		{
			name:  "a promoted replica knows first",
			views: []view{said("a 1 primary 0-9", "b 2 primary 10-19", "r 1 a"), said("r 3 primary 0-9", "a 1 primary!", "b 2 primary 10-19")},
			want:  "r:0-9 b:10-19",
		},
		{
			name:  "the failed former primary comes back as a replica",
			views: []view{said("r 3 primary 0-9", "a 1 primary!"), said("a 3 r", "r 3 primary 0-9")},
			want:  "r:0-9+a",
		},
		{
			name:   "one stale node does not lead back",
			before: said("r 3 primary 0-9", "a 1 primary!"),
			views:  []view{said("a 1 primary 0-9", "r 1 a")},
			want:   "r:0-9",
		},
		{
			name:  "a node's own word counts more than hearsay of the same epoch",
			views: []view{said("b 2 primary 10-19", "a 1 primary 0-9"), said("a 1 primary 0-5", "b 2 primary 10-19")},
			want:  "a:0-5 b:10-19",
		},
		{
			name:  "a slot belongs to the claim with the higher epoch",
			views: []view{said("a 1 primary 0-9", "b 2 primary"), said("b 5 primary 9-9", "a 1 primary 0-9")},
			want:  "a:0-8 b:9",
		},
		{
			name:   "a forgotten node is forgotten",
			before: said("b 9 primary 0-9"),
			views:  []view{said("a 1 primary 0-9")},
			want:   "a:0-9",
		},
		{
			name:  "a failed primary that does not answer is blocked",
			views: []view{said("a 1 primary 0-9", "b 2 primary! 10-19")},
			want:  "a:0-9 b!:10-19",
		},
		{
			name:  "a failed primary that answers is not",
			views: []view{said("a 1 primary 0-9", "b 2 primary! 10-19"), said("b 2 primary 10-19", "a 1 primary 0-9")},
			want:  "a:0-9 b:10-19",
		},
	}
	for _, tt := range tests {
		for range 2 { // whoever answers first
			slices.Reverse(tt.views)
			if got := sketch(shardsOf(merge(tt.views, tt.before.members))); got != tt.want {
				t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
			}
		}
	}
}

func TestSparesOf(t *testing.T) {
	views := []view{said("a 5 primary 0-16383", "b 2 primary", "c 1 primary 0-9", "d 3 a", "e 4 primary!")}
	if got := sparesOf(merge(views, nil)); len(got) != 1 || got[0] != "b:1" {
		t.Errorf("got %q, want b:1 alone", got)
	}
}

// sketch writes shards as "primary:slots+replicas".
func sketch(shards []cluster.Shard) string {
	var parts []string
	for _, s := range shards {
		part := s.Primary.ID
		if s.Primary.Blocked {
			part += "!"
		}
		part += ":"
		for i, r := range s.Ranges {
			if i > 0 {
				part += ","
			}
			part += r.String()
		}
		for _, r := range s.Replicas {
			part += "+" + r.ID
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, " ")
}

func TestMergeKeepsVersions(t *testing.T) {
	first := said("a 1 primary 0-9", "b 1 primary 10-19")
	first.about.version = "7.0.1"
	second := said("b 1 primary 10-19", "a 1 primary 0-9")
	second.about.version = "7.2.2"
	members := merge([]view{first, second}, nil)
	// Later only a answers: b's version is still known.
	members = merge([]view{first}, members)
	if members[0].version != "7.0.1" || members[1].version != "7.2.2" {
		t.Errorf("got versions %q and %q", members[0].version, members[1].version)
	}
}

func TestAdopt(t *testing.T) {
	shards := func(version string, last uint16) []cluster.Shard {
		return []cluster.Shard{
			{Primary: &cluster.Node{ID: "a", Addr: "a:1", Version: version}, Ranges: []slot.Range{{First: 0, Last: last}},
				Replicas: []*cluster.Node{{ID: "r", Addr: "r:1"}}},
			{Primary: &cluster.Node{ID: "b", Addr: "b:1"}, Ranges: []slot.Range{{First: 100, Last: 199}}},
		}
	}
	first := shards("7", 99)
	if changed, gone := adopt(nil, first, true, false); !changed || len(gone) != 0 {
		t.Fatalf("the first topology: changed %v, gone %v", changed, gone)
	}
	prev, err := cluster.New(1, cluster.Cluster, first)
	if err != nil {
		t.Fatal(err)
	}
	a, r, b := first[0].Primary, first[0].Replicas[0], first[1].Primary
	if a.Vouch == nil || b.Vouch == nil || r.Vouch == nil {
		t.Fatal("a node has no lease")
	}

	equal := shards("", 99) // the version is not known for the moment
	if changed, gone := adopt(prev, equal, true, false); changed || len(gone) != 0 || equal[0].Primary != a || equal[0].Replicas[0] != r {
		t.Errorf("an equal topology: changed %v, gone %v", changed, gone)
	}

	fewer := shards("7", 98)
	if changed, gone := adopt(prev, fewer, true, false); !changed || !slices.Equal(gone, []*cluster.Node{a}) || fewer[0].Primary == a || fewer[1].Primary != b || fewer[0].Replicas[0] != r {
		t.Errorf("a slot left a: changed %v, gone %v", changed, gone)
	}

	newer := shards("8", 99)
	if changed, gone := adopt(prev, newer, true, false); !changed || !slices.Equal(gone, []*cluster.Node{a}) {
		t.Errorf("a was upgraded: changed %v, gone %v", changed, gone)
	}

	one := shards("7", 99)[:1]
	if changed, gone := adopt(prev, one, true, false); !changed || !slices.Equal(gone, []*cluster.Node{b}) {
		t.Errorf("b left: changed %v, gone %v", changed, gone)
	}

	moved := shards("7", 99)
	moved[0].Replicas, moved[1].Replicas = nil, moved[0].Replicas
	if changed, gone := adopt(prev, moved, true, false); !changed || len(gone) != 0 {
		t.Errorf("a replica changed sides: changed %v, gone %v", changed, gone)
	}

	promoted := shards("7", 99)
	promoted[0].Primary, promoted[0].Replicas[0] = promoted[0].Replicas[0], promoted[0].Primary
	if changed, gone := adopt(prev, promoted, true, false); !changed || len(gone) != 2 || promoted[0].Primary == r {
		t.Errorf("the replica was promoted: changed %v, gone %v", changed, gone)
	}

	b.Vouch.Revoke()
	revoked := shards("7", 99)
	if changed, gone := adopt(prev, revoked, true, false); !changed || !slices.Equal(gone, []*cluster.Node{b}) || revoked[1].Primary.Vouch == b.Vouch {
		t.Errorf("b's lease was revoked: changed %v, gone %v", changed, gone)
	}
}

func TestRankNominations(t *testing.T) {
	n := func(addr string, epoch uint64) nomination { return nomination{addr: addr, epoch: epoch} }
	tests := []struct {
		name    string
		answers []nomination
		epoch   uint64
		want    string
	}{
		{"all agree", []nomination{n("a", 1), n("a", 1), n("a", 1)}, 0, "a"},
		{"the newest first", []nomination{n("a", 1), n("b", 2), n("a", 1)}, 1, "b a"},
		{"the past does not count", []nomination{n("a", 1), n("b", 2)}, 2, "b"},
		{"a few that lag behind decide nothing", []nomination{n("a", 1)}, 2, ""},
		{"most of them do", []nomination{n("a", 0), n("a", 0)}, 2, "a"},
	}
	for _, tt := range tests {
		var got []string
		for _, n := range rank(tt.answers, tt.epoch, 3) {
			got = append(got, n.addr)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestClaimOf(t *testing.T) {
	nodes := "b 10.0.0.2:7001@17001 master - 0 1 4 connected 100-150\n" +
		"a :7000@17000 myself,master - 0 0 3 connected 0-99 [7-<-b]\n"
	tests := []struct {
		name, nodes, info, id string
		want                  claim
		wantErr               string
	}{
		{"good", nodes, "cluster_state:ok\r\n", "a", claim{primary: true, migrating: true, stateOK: true, epoch: 3, ranges: []slot.Range{{First: 0, Last: 99}}}, ""},
		{"down", nodes, "cluster_state:fail\r\n", "a", claim{primary: true, migrating: true, epoch: 3, ranges: []slot.Range{{First: 0, Last: 99}}}, ""},
		{"replica", "a h:1@2 myself,slave b 0 0 4 connected\n", "cluster_state:ok\r\n", "a", claim{stateOK: true, epoch: 4}, ""},
		{"another node", nodes, "", "b", claim{}, "another node"},
		{"nobody", "b 10.0.0.2:7001@17001 master - 0 1 4 connected\n", "", "b", claim{}, "not in its own"},
		{"garbage", "a h:1@2 myself,master x\n", "", "a", claim{}, "cannot parse"},
	}
	for _, tt := range tests {
		got, err := claimOf(reply{val: tt.nodes}, reply{val: tt.info}, tt.id)
		if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
			t.Errorf("%s: got error %v, want %q", tt.name, err, tt.wantErr)
		}
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func FuzzParseNodes(f *testing.F) {
	f.Add("a 10.0.0.1:7000@17000,host-a myself,master - 0 0 3 connected 0-99 200 [300->-b]\n")
	f.Add("a :0@0 myself,slave b 0 0 3 connected\nb ::1:1@2 master - 0 0 18446744073709551615 connected 0-16383\n")
	f.Fuzz(func(t *testing.T, reply string) {
		members, err := parseNodes(reply, "h")
		if err != nil {
			return
		}
		shards := shardsOf(merge([]view{{members: members}}, members))
		if len(shards) == 0 {
			return
		}
		adopt(nil, shards, true, false)
		if _, err := cluster.New(1, cluster.Cluster, shards); err != nil {
			t.Errorf("%q makes an invalid topology: %v", reply, err)
		}
	})
}

func TestHistory(t *testing.T) {
	h := &history{lag: 100}
	const id = "one"
	reachedIn := func(replid string, offset, sent, proven, from int64) {
		t.Helper()
		gotProven, gotFrom, ok := h.reached(progress{replid, offset}, sent)
		if !ok {
			gotProven, gotFrom = -1, -1
		}
		if gotProven != proven || gotFrom != from {
			t.Errorf("a replica at %d of %q has everything up to %d and is good from %d, want %d, %d", offset, replid, gotProven, gotFrom, proven, from)
		}
	}
	reached := func(offset, sent, want int64) {
		t.Helper()
		reachedIn(id, offset, sent, want, want)
	}
	note := func(sent int64, replid string, offset int64) { h.note(sample{sent, progress{replid, offset}}) }
	reached(5, 10, -1) // nothing is known yet
	note(10, id, 5)
	note(50, id, 7)
	reached(4, 60, -1)
	reached(5, 60, 10)
	reached(6, 60, 10)
	reached(9, 60, 50) // written since: more than can be proven
	note(120, id, 7)
	reached(6, 130, -1) // the sample of 10 is too old to be of use
	reached(7, 130, 120)
	h.miss() // then the replica has all there is, as far as anybody knows
	reachedIn(id, 7, 900, 120, 900)
	reached(6, 900, -1)
	reachedIn("another", 7, 900, -1, -1)
	note(910, id, 8)
	reached(7, 920, -1)
	note(930, "two", 1) // the primary was restarted, and the replica does not know
	reachedIn(id, 8, 940, 910, 910)
	reachedIn("two", 1, 940, 930, 930)
	h.miss()
	reachedIn(id, 9, 950, 910, 910) // of the new history it has nothing
	h = &history{lag: 100}
	h.miss()
	reachedIn(id, 1, 20, 0, 20) // a primary that was never heard
}

func TestParseReplication(t *testing.T) {
	for text, want := range map[string]replication{
		"role:master\r\nmaster_replid:one\r\nslave0:ip=10.0.0.2,port=6379,state=online,offset=1,lag=0\r\nslave1:ip=::1,port=7,state=wait_bgsave,offset=0,lag=0\r\nslave2:ip=10.0.0.3,port=0,state=online\r\nmaster_repl_offset:42\r\n": {
			primary: true, progress: progress{"one", 42}, slaves: []string{"10.0.0.2:6379", "[::1]:7"},
		},
		"role:slave\r\nmaster_sync_in_progress:1\r\nslave_read_repl_offset:9\r\nslave_repl_offset:7\r\nslave_priority:100\r\nmaster_repl_offset:9\r\n": {syncing: true, progress: progress{offset: 7}},
	} {
		if got, err := parseReplication(reply{val: text}); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %+v, %v, want %+v", text, got, err, want)
		}
	}
	if _, err := parseReplication(reply{val: "role:slave\r\n"}); err == nil {
		t.Error("a replica without an offset is taken")
	}
}
