package router

import (
	"slices"
	"strings"
	"testing"

	"cosky-proxy/router/command"
)

func argv(line string) [][]byte {
	var args [][]byte
	for _, f := range strings.Fields(line) {
		args = append(args, []byte(f))
	}
	return args
}

// initialSlot stands in for the hash: keys that begin alike share a slot.
func initialSlot(key []byte) uint16 { return uint16(key[0]) }

func TestSplit(t *testing.T) {
	tests := []struct {
		line string
		step int
		want []string // the requests of the shares, in order of first appearance
	}{
		{"MGET a1 b1 a2", 1, []string{"MGET a1 a2", "MGET b1"}},
		{"DEL a1 a1 a1", 1, []string{"DEL a1 a1 a1"}},
		{"MSET a1 1 b1 2 a1 3", 2, []string{"MSET a1 1 a1 3", "MSET b1 2"}},
		{"UNLINK c b a", 1, []string{"UNLINK c", "UNLINK b", "UNLINK a"}},
	}
	var splitter Splitter
	var parts Parts // the same ones for all, as in use
	for _, tt := range tests {
		args := argv(tt.line)
		var got []string
		splitter.Split(&parts, args, tt.step, initialSlot)
		for i := range parts.Shares {
			line := words(t, parts.AppendShare(nil, args, tt.step, i))
			if want := initialSlot(argv(line)[1]); parts.Shares[i].Slot != want {
				t.Errorf("%s: %q has slot %d, want %d", tt.line, line, parts.Shares[i].Slot, want)
			}
			got = append(got, line)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.line, got, tt.want)
		}
	}
}

func TestSplitAgainAllocatesNothing(t *testing.T) {
	var splitter Splitter
	var parts Parts
	args, b := argv("MGET a1 b1 a2 c1"), make([]byte, 0, 1<<10)
	if n := testing.AllocsPerRun(100, func() {
		splitter.Split(&parts, args, 1, initialSlot)
		b = parts.AppendShare(b[:0], args, 1, 2)
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// words reads an array of bulk strings back.
func words(t *testing.T, raw []byte) string {
	t.Helper()
	var out []string
	for i, line := range strings.Split(strings.TrimSuffix(string(raw), "\r\n"), "\r\n") {
		if i > 0 && i%2 == 0 {
			out = append(out, line)
		}
	}
	return strings.Join(out, " ")
}

func TestMerge(t *testing.T) {
	tests := []struct {
		name, args string // the command, a subcommand as "config|get", and its arguments
		replies    []string
		keys       string // of which the replies show those that begin alike
		want       string
	}{
		{"values go back to the places of their keys", "mget",
			[]string{"*2\r\n$1\r\nx\r\n$-1\r\n", "*1\r\n$1\r\ny\r\n"}, "a b a",
			"*3\r\n$1\r\nx\r\n$1\r\ny\r\n$-1\r\n"},
		{"an error is the answer", "mget",
			[]string{"*1\r\n$1\r\nx\r\n", "-LOADING Redis is loading\r\n"}, "a b",
			"-LOADING Redis is loading\r\n"},
		{"counts add up", "del", []string{":2\r\n", ":0\r\n", ":1\r\n"}, "", ":3\r\n"},
		{"a partial count is an error", "dbsize", []string{":2\r\n", "-ERR gone\r\n"}, "", "-ERR gone\r\n"},
		{"all succeeded", "mset", []string{"+OK\r\n", "+OK\r\n"}, "", "+OK\r\n"},
		{"not all succeeded", "flushall", []string{"+OK\r\n", "-ERR no\r\n"}, "", "-ERR no\r\n"},
		{"one is enough", "script|kill", []string{"-NOTBUSY none\r\n", "+OK\r\n"}, "", "+OK\r\n"},
		{"none did", "script|kill", []string{"-NOTBUSY none\r\n", "-NOTBUSY none\r\n"}, "", "-NOTBUSY none\r\n"},
		{"flags are combined one by one", "script|exists", []string{"*2\r\n:1\r\n:1\r\n", "*2\r\n:1\r\n:0\r\n"}, "", "*2\r\n:1\r\n:0\r\n"},
		{"lists are joined", "keys", []string{"*1\r\n$1\r\na\r\n", "*0\r\n", "*2\r\n$1\r\nb\r\n$1\r\nc\r\n"}, "",
			"*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"},
		{"any key of any shard", "randomkey", []string{"$-1\r\n", "$1\r\nk\r\n", "$-1\r\n"}, "", "$1\r\nk\r\n"},
		{"the oldest save", "lastsave", []string{":7\r\n", ":5\r\n", ":9\r\n"}, "", ":5\r\n"},
		{"nothing runs but what cannot be killed", "script|kill", []string{"-NOTBUSY none\r\n", "-UNKILLABLE it wrote\r\n"}, "", "-UNKILLABLE it wrote\r\n"},
		{"the newest entries first", "slowlog|get 2",
			[]string{"*2\r\n*2\r\n:4\r\n:10\r\n*2\r\n:3\r\n:8\r\n", "*1\r\n*2\r\n:1\r\n:9\r\n"}, "",
			"*2\r\n*2\r\n:4\r\n:10\r\n*2\r\n:1\r\n:9\r\n"},
		{"all entries", "slowlog|get -1", []string{"*1\r\n*2\r\n:4\r\n:8\r\n", "*1\r\n*2\r\n:1\r\n:9\r\n"}, "",
			"*2\r\n*2\r\n:1\r\n:9\r\n*2\r\n:4\r\n:8\r\n"},
		{"an entry's age is its time", "acl|log",
			[]string{"*1\r\n*2\r\n$11\r\nage-seconds\r\n$5\r\n2.500\r\n", "*1\r\n*2\r\n$11\r\nage-seconds\r\n$5\r\n1.250\r\n"}, "",
			"*2\r\n*2\r\n$11\r\nage-seconds\r\n$5\r\n1.250\r\n*2\r\n$11\r\nage-seconds\r\n$5\r\n2.500\r\n"},
		{"a log is emptied", "acl|log RESET", []string{"+OK\r\n", "+OK\r\n"}, "", "+OK\r\n"},
		{"the last time of an event, the maximum of all", "latency|latest",
			[]string{"*1\r\n*4\r\n$3\r\nfoo\r\n:10\r\n:5\r\n:9\r\n", "*2\r\n*4\r\n$3\r\nbar\r\n:1\r\n:2\r\n:3\r\n*4\r\n$3\r\nfoo\r\n:11\r\n:4\r\n:7\r\n"}, "",
			"*2\r\n*4\r\n$3\r\nfoo\r\n:11\r\n:4\r\n:9\r\n*4\r\n$3\r\nbar\r\n:1\r\n:2\r\n:3\r\n"},
		{"samples in the order of time", "latency|history foo",
			[]string{"*2\r\n*2\r\n:1\r\n:7\r\n*2\r\n:5\r\n:8\r\n", "*1\r\n*2\r\n:3\r\n:9\r\n"}, "",
			"*3\r\n*2\r\n:1\r\n:7\r\n*2\r\n:3\r\n:9\r\n*2\r\n:5\r\n:8\r\n"},
		{"histograms add up bucket by bucket", "latency|histogram",
			[]string{
				"*2\r\n$3\r\nget\r\n*4\r\n$5\r\ncalls\r\n:3\r\n$14\r\nhistogram_usec\r\n*4\r\n:1\r\n:1\r\n:4\r\n:3\r\n",
				"*2\r\n$3\r\nget\r\n*4\r\n$5\r\ncalls\r\n:2\r\n$14\r\nhistogram_usec\r\n*2\r\n:2\r\n:2\r\n",
			}, "",
			"*2\r\n$3\r\nget\r\n*4\r\n$5\r\ncalls\r\n:5\r\n$14\r\nhistogram_usec\r\n*6\r\n:1\r\n:1\r\n:2\r\n:3\r\n:4\r\n:5\r\n"},
		{"all say the same", "memory|doctor", []string{"$2\r\nhi\r\n", "$2\r\nhi\r\n"}, "", "$2\r\nhi\r\n"},
		{"each says its own", "memory|doctor", []string{"$2\r\nhi\r\n", "$2\r\nho\r\n"}, "", "$18\r\n# a:1\nhi\n# b:2\nho\n\r\n"},
		{"sums, and the highest ratio", "memory|stats",
			[]string{"*6\r\n$1\r\na\r\n:1\r\n$1\r\nr\r\n$3\r\n0.5\r\n$4\r\ndb.0\r\n*2\r\n$1\r\no\r\n:2\r\n", "*4\r\n$1\r\na\r\n:2\r\n$1\r\nr\r\n$4\r\n10.5\r\n"}, "",
			"*6\r\n$1\r\na\r\n:3\r\n$1\r\nr\r\n$4\r\n10.5\r\n$4\r\ndb.0\r\n*2\r\n$1\r\no\r\n:2\r\n"},
		{"who runs a function", "function|stats", []string{"*2\r\n$1\r\nr\r\n$-1\r\n", "*2\r\n$1\r\nr\r\n*0\r\n"}, "", "*2\r\n$1\r\nr\r\n*0\r\n"},
		{"no key anywhere", "randomkey", []string{"$-1\r\n", "$-1\r\n"}, "", "$-1\r\n"},
	}
	for _, tt := range tests {
		name, _, _ := strings.Cut(tt.args, " ")
		cmd := command.LookupFull([]byte(name))
		if cmd == nil {
			t.Fatalf("no command %q", name)
		}
		var replies [][]byte
		for _, r := range tt.replies {
			replies = append(replies, []byte(r))
		}
		merge := MergeFor(cmd)
		if merge == nil {
			t.Errorf("%s: %s cannot be merged", tt.name, name)
			continue
		}
		parts := new(Parts)
		new(Splitter).Split(parts, argv("MGET "+tt.keys), 1, initialSlot)
		if got := merge(&Answers{Args: argv(strings.Replace(tt.args, "|", " ", 1)), Replies: replies, Parts: parts, From: []string{"a:1", "b:2", "c:3"}}); string(got) != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// Commands that are sent to all shards can also be answered, or the proxy knows
// that they cannot.
func TestEveryFanOutHasAMerge(t *testing.T) {
	var without []string
	for _, cmd := range command.All() {
		if (cmd.Request == command.RequestAllShards || cmd.Request == command.RequestAllNodes) && MergeFor(cmd) == nil {
			without = append(without, cmd.Name)
		}
	}
	slices.Sort(without)
	want := []string{
		"info", // the proxy asks one shard and adds its own
	}
	if !slices.Equal(without, want) {
		t.Errorf("without a merge: %q, want %q", without, want)
	}
}

func TestScopes(t *testing.T) {
	for name, want := range map[string]Scope{
		"dbsize": AllShards, "flushall": AllShards, "script|load": AllShards, "slowlog|get": AllShards, "bgsave": AllShards,
		"config|set": AllNodes, "acl|setuser": AllNodes,
		"config|get": AnyShard, "time": AnyShard, "function|list": AnyShard, "acl|list": AnyShard,
		"scan": Nowhere, "shutdown": Nowhere,
	} {
		if got := ScopeOf(command.LookupFull([]byte(name))); got != want {
			t.Errorf("%s: got %d, want %d", name, got, want)
		}
	}
	// What goes to several servers has one answer.
	for _, cmd := range command.All() {
		if scope := ScopeOf(cmd); (scope == AllShards || scope == AllNodes) && cmd.Name != "info" && MergeFor(cmd) == nil {
			t.Errorf("%s has no merge", cmd.Name)
		}
	}
}

func TestFixedTag(t *testing.T) {
	for _, tt := range [][2]string{
		{"*", ""}, {"a*", ""}, {"key", "key"}, {"{a}", "{a}"}, {"{a}*", "{a}"}, {"x{a}:[bc]?", "x{a}"}, {"{a*}", ""}, {"*{a}", ""},
		{"{}a*", ""}, {`{a\}}*`, ""}, {"{a", "{a"}, {"{a*", ""}, {"}{a}*", "}{a}"},
	} {
		if got := string(FixedTag([]byte(tt[0]))); got != tt[1] {
			t.Errorf("%s: got %q, want %q", tt[0], got, tt[1])
		}
	}
}
