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
	for _, tt := range tests {
		args := argv(tt.line)
		var got []string
		for _, share := range Split(args, tt.step, initialSlot) {
			if want := initialSlot(args[share.Keys[0]]); share.Slot != want {
				t.Errorf("%s: a share has slot %d, want %d", tt.line, share.Slot, want)
			}
			got = append(got, words(t, AppendShare(nil, args, tt.step, &share)))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.line, got, tt.want)
		}
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
		name, command string
		replies       []string
		shares        []Share
		want          string
	}{
		{"values go back to the places of their keys", "mget",
			[]string{"*2\r\n$1\r\nx\r\n$-1\r\n", "*1\r\n$1\r\ny\r\n"}, []Share{{Keys: []int{1, 3}}, {Keys: []int{2}}},
			"*3\r\n$1\r\nx\r\n$1\r\ny\r\n$-1\r\n"},
		{"an error is the answer", "mget",
			[]string{"*1\r\n$1\r\nx\r\n", "-LOADING Redis is loading\r\n"}, []Share{{Keys: []int{1}}, {Keys: []int{2}}},
			"-LOADING Redis is loading\r\n"},
		{"counts add up", "del", []string{":2\r\n", ":0\r\n", ":1\r\n"}, nil, ":3\r\n"},
		{"a partial count is an error", "dbsize", []string{":2\r\n", "-ERR gone\r\n"}, nil, "-ERR gone\r\n"},
		{"all succeeded", "mset", []string{"+OK\r\n", "+OK\r\n"}, nil, "+OK\r\n"},
		{"not all succeeded", "flushall", []string{"+OK\r\n", "-ERR no\r\n"}, nil, "-ERR no\r\n"},
		{"one is enough", "script|kill", []string{"-NOTBUSY none\r\n", "+OK\r\n"}, nil, "+OK\r\n"},
		{"none did", "script|kill", []string{"-NOTBUSY none\r\n", "-NOTBUSY none\r\n"}, nil, "-NOTBUSY none\r\n"},
		{"flags are combined one by one", "script|exists", []string{"*2\r\n:1\r\n:1\r\n", "*2\r\n:1\r\n:0\r\n"}, nil, "*2\r\n:1\r\n:0\r\n"},
		{"lists are joined", "keys", []string{"*1\r\n$1\r\na\r\n", "*0\r\n", "*2\r\n$1\r\nb\r\n$1\r\nc\r\n"}, nil,
			"*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"},
		{"any key of any shard", "randomkey", []string{"$-1\r\n", "$1\r\nk\r\n", "$-1\r\n"}, nil, "$1\r\nk\r\n"},
		{"no key anywhere", "randomkey", []string{"$-1\r\n", "$-1\r\n"}, nil, "$-1\r\n"},
	}
	for _, tt := range tests {
		cmd := command.LookupFull([]byte(tt.command))
		if cmd == nil {
			t.Fatalf("no command %q", tt.command)
		}
		var replies [][]byte
		for _, r := range tt.replies {
			replies = append(replies, []byte(r))
		}
		merge := MergeFor(cmd)
		if merge == nil {
			t.Errorf("%s: %s cannot be merged", tt.name, tt.command)
			continue
		}
		if got := merge(replies, tt.shares, false); string(got) != tt.want {
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
		"function|stats",
		"info", // the proxy asks one shard and adds its own
		"latency|doctor", "latency|graph", "latency|histogram", "latency|history", "latency|latest",
		"memory|doctor", "memory|malloc-stats", "memory|stats",
	}
	if !slices.Equal(without, want) {
		t.Errorf("without a merge: %q, want %q", without, want)
	}
}
