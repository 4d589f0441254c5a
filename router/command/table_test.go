package command

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestLookupFindsEveryCommandInAnyCase(t *testing.T) {
	for _, c := range All() {
		find := Lookup
		if c.Parent != nil {
			find = LookupFull
		}
		alternating := []byte(c.Name)
		for i := 0; i < len(alternating); i += 2 {
			alternating[i] = strings.ToUpper(c.Name)[i]
		}
		for _, name := range []string{c.Name, strings.ToUpper(c.Name), string(alternating)} {
			if got := find([]byte(name)); got != c {
				t.Errorf("%q: got %v", name, got)
			}
		}
		if All()[c.ID] != c {
			t.Errorf("%s: ID %d is not its place", c.Name, c.ID)
		}
	}
	if len(All()) != Count() || Count() < 400 {
		t.Errorf("%d commands in All, Count %d", len(All()), Count())
	}
}

func TestLookupMissesNeighbours(t *testing.T) {
	for _, c := range All() {
		name := []byte(c.Name)
		near := [][]byte{name[:len(name)-1], name[1:], append(slices.Clone(name), 0), append(slices.Clone(name), 'x')}
		for i := range name {
			// A different byte that the fold of the hash cannot tell apart.
			if other := name[i] ^ 0x20; other < 'A' || other > 'Z' {
				twin := slices.Clone(name)
				twin[i] = other
				near = append(near, twin)
			}
		}
		for _, n := range near {
			if got := LookupFull(n); got != nil && got.Name != strings.ToLower(string(n)) {
				t.Errorf("%q: found %s", n, got.Name)
			}
		}
	}
	for _, name := range []string{"", "|", "get|", "|get", "config|nosuch", "nosuch|get", "config|get|x"} {
		if got := LookupFull([]byte(name)); got != nil {
			t.Errorf("%q: found %s", name, got.Name)
		}
	}
	if got := Lookup([]byte("config|get")); got != nil {
		t.Errorf("Lookup found subcommand %s", got.Name)
	}
}

func TestResolveErrorsLikeServer(t *testing.T) {
	s := startServer(t)
	long := strings.Repeat("0123456789", 20)
	for _, args := range [][]string{
		{"NOSUCH"}, {"nosuch", "a", "b"}, {"NoSuch", ""}, {""}, {"", ""}, {long}, {long, long, "b"},
		{"nosuch", long[:125], "b"}, {"nosuch", long[:126], "b"}, {"nosuch", long[:127], "b"}, {"nosuch", long[:128], "b"},
		append([]string{"nosuch"}, slices.Repeat([]string{"x"}, 300)...),
		append([]string{"nosuch"}, slices.Repeat([]string{""}, 300)...),
		{"no\r\nsuch", "a\rb\nc"}, {"no\x00such", "a\x00b", "c"}, {"no'such", "'"}, {"nosuch", "\x80\xff"}, {"config|get", "x"},
		{"get"}, {"GET", "a", "b"}, {"set", "a"}, {"eval", "s"}, {"command", "getkeys"},
		{"config"}, {"CONFIG", "nosuch"}, {"config", ""}, {"config", "get"}, {"CoNfIg", "No\r\nSuch"}, {"config", long}, {"config", "a\x00b"},
		{"client"}, {"CLIENT", "x"}, {"client", "kill"}, {"xgroup", "create", "a"}, {"object", "encoding"}, {"memory", "usage"},
		{"cluster", "keyslot"}, {"acl", "nosuch"}, {"script", "load"}, {"function", "nosuch"}, {"pubsub", "x"}, {"slowlog", "x"},
	} {
		reply, _ := s.do(args...)
		c, text := builtin.Resolve(bytesOf(args))
		if c != nil || !isError(reply, text) {
			t.Errorf("%q:\n   got %q\nserver %v", args, text, reply)
		}
	}
}

func TestResolveFinds(t *testing.T) {
	for line, want := range map[string]string{
		"get a": "get", "CONFIG GET x": "config|get", "config get x y": "config|get", "COMMAND": "command", "command count": "command|count",
		"EVAL s 0": "eval", "debug object a": "debug",
	} {
		c, text := builtin.Resolve(bytesOf(words(line)))
		if text != "" || c.Name != want {
			t.Errorf("%s: got %v, %q", line, c, text)
		}
	}
}

// TestKnowsWhatServerKnows compares the table with the installed server's.
func TestKnowsWhatServerKnows(t *testing.T) {
	s := startServer(t)
	reply, _ := s.do("COMMAND")
	theirs, err := ParseReply(reply)
	if err != nil {
		t.Fatal(err)
	}
	if len(theirs) < 350 {
		t.Fatalf("server has only %d commands", len(theirs))
	}
	for i := range theirs {
		c := LookupFull([]byte(theirs[i].Name))
		if c == nil {
			t.Errorf("%s is missing", theirs[i].Name)
			continue
		}
		// Not the flags that changed between versions: since 7.2 scripts may
		// call blocking commands, and WAIT blocks.
		const compared = Write | ReadOnly | PubSub | NoAuth | NoMulti | MovableKeys
		if got, want := c.Flags&compared, theirs[i].Flags&compared; got != want {
			t.Errorf("%s: flags %s, server %s", c.Name, joinBits(uint64(got), flagNames[:]), joinBits(uint64(want), flagNames[:]))
		}
		if c.FirstKey != theirs[i].FirstKey || c.LastKey != theirs[i].LastKey || c.Step != theirs[i].Step {
			t.Errorf("%s: legacy triple differs", c.Name)
		}
	}
}

// names lists the commands for which is holds.
func names(is func(*Command) bool) string {
	var list []string
	for _, c := range All() {
		if is(c) {
			list = append(list, c.Name)
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// TestOverlay fails when a name in overlay.go meets no command, and when a new
// release brings a command into a group that needs a decision.
func TestOverlay(t *testing.T) {
	for _, f := range []struct {
		fact string
		is   func(*Command) bool
		want string
	}{
		{"scripts", func(c *Command) bool { return c.Script }, "eval eval_ro evalsha evalsha_ro fcall fcall_ro"},
		{"hidden writes", func(c *Command) bool { return c.Has(MayReplicate) }, "eval evalsha fcall pfcount publish spublish"},
		{"split by 1", func(c *Command) bool { return c.Split == 1 }, "del exists mget touch unlink"},
		{"split by 2", func(c *Command) bool { return c.Split == 2 }, "mset"},
		{"split by more", func(c *Command) bool { return c.Split > 2 }, ""},
		{"shard channels", func(c *Command) bool { return c.ShardChannels }, "spublish ssubscribe sunsubscribe"},
		{"own way to find keys", func(c *Command) bool { return c.keys != keysBySpecs }, "georadius georadiusbymember migrate sort sort_ro xread xreadgroup"},
		{"specs that need one", func(c *Command) bool {
			return slices.ContainsFunc(c.KeySpecs, func(s KeySpec) bool {
				return s.Begin != BeginIndex || s.Find == FindUnknown || s.Flags&KeyIncomplete != 0
			})
		}, "georadius georadiusbymember migrate sort sort_ro xread xreadgroup"},
		{"errors for numkeys", func(c *Command) bool { return c.numkeys != numkeysUnknown },
			"blmpop bzmpop eval eval_ro evalsha evalsha_ro fcall fcall_ro lmpop sintercard zdiff zdiffstore zinter zintercard zinterstore zmpop zunion zunionstore"},
		{"numkeys without", func(c *Command) bool {
			return c.numkeys == numkeysUnknown && slices.ContainsFunc(c.KeySpecs, func(s KeySpec) bool { return s.Find == FindKeyNum })
		}, "msetex"},
		{"pairs", func(c *Command) bool { return c.Step == 2 }, "mset msetnx"},
		{"writes that change no key", func(c *Command) bool {
			return c.Has(Write) && len(c.KeySpecs) > 0 && !slices.ContainsFunc(c.KeySpecs, func(s KeySpec) bool { return c.writes(&s) })
		}, "xreadgroup"},
		{"touched reads", func(c *Command) bool { return c.touch }, "xreadgroup"},
		{"writes without keys", func(c *Command) bool { return c.Has(Write) && len(c.KeySpecs) == 0 },
			"cluster|flushslot flushall flushdb function|delete function|flush function|load function|restore swapdb"},
	} {
		if got := names(f.is); got != f.want {
			t.Errorf("%s:\n got %s\nwant %s", f.fact, got, f.want)
		}
	}
}

func TestPolicies(t *testing.T) {
	for name, want := range map[string]struct {
		request  RequestPolicy
		response ResponsePolicy
	}{
		"get":           {},
		"dbsize":        {RequestAllShards, ResponseAggSum},
		"del":           {RequestMultiShard, ResponseAggSum},
		"mget":          {RequestMultiShard, ResponseDefault},
		"mset":          {RequestMultiShard, ResponseAllSucceeded},
		"keys":          {RequestAllShards, ResponseDefault},
		"scan":          {RequestSpecial, ResponseSpecial},
		"wait":          {RequestAllShards, ResponseAggMin},
		"script|kill":   {RequestAllShards, ResponseOneSucceeded},
		"script|exists": {RequestAllShards, ResponseAggLogicalAnd},
		"script|load":   {RequestAllNodes, ResponseAllSucceeded},
		"ping":          {RequestAllShards, ResponseAllSucceeded},
	} {
		if c := LookupFull([]byte(name)); c.Request != want.request || c.Response != want.response {
			t.Errorf("%s: got %d, %d, want %d, %d", name, c.Request, c.Response, want.request, want.response)
		}
	}
	if !LookupFull([]byte("randomkey")).Nondeterministic || !LookupFull([]byte("smembers")).NondeterministicOrder {
		t.Error("nondeterministic tips are not read")
	}
}

func TestEveryPolicyIsKnown(t *testing.T) {
	for _, c := range All() {
		for _, tip := range c.Tips {
			key, value, _ := strings.Cut(tip, ":")
			if key == "request_policy" && !slices.Contains(requestNames[:], value) || key == "response_policy" && !slices.Contains(responseNames[:], value) {
				t.Errorf("%s: unknown tip %s", c.Name, tip)
			}
		}
	}
}

func TestRowsRoundTrip(t *testing.T) {
	for line := range strings.Lines(commandsTSV + unseenRows) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		c, err := parseRow(line)
		if err != nil {
			t.Errorf("%s: %s", line, err)
			continue
		}
		if got := string(AppendRow(nil, &c)); got != line {
			t.Errorf("got  %s\nwant %s", got, line)
		}
	}
}

// TestUnseenRows fails when commands.tsv was generated from a server that has a command
// which is still written by hand.
func TestUnseenRows(t *testing.T) {
	unseen, err := ParseRows(unseenRows)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range unseen {
		if strings.Contains(commandsTSV, "\n"+c.Name+"\t") {
			t.Errorf("%s is in commands.tsv: its row in overlay.go can go", c.Name)
		}
	}
}

func TestBadRows(t *testing.T) {
	const good = "x\t1\t-\t0\t0\t0\t-\t-\t-\t-"
	if _, err := ParseRows(good); err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{
		"x", "x\ty\t-\t0\t0\t0\t-\t-\t-\t-", good + "\t", good + "\tRO", good + "\tRO index", good + "\tRO index 1", good + "\tRO index 1 range",
		good + "\tRO index 1 range 1 2", good + "\tRO index 1 range 0 1 0 9", good + "\tRO keyword X unknown", good + "\tRO near 1 unknown",
	} {
		if _, err := ParseRows(row); err == nil {
			t.Errorf("%q: no error", row)
		}
	}
	for _, rows := range []string{good + "\n" + good, "a|b\t1\t-\t0\t0\t0\t-\t-\t-\t-", good + "\n" + strings.Repeat("x|"+good+"\n", 2)} {
		cmds, err := ParseRows(rows)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newTable(cmds, nil); err == nil {
			t.Errorf("%q: no error", rows)
		}
	}
}

// tablesOfServer returns the server's own table as read from its RESP2 and its
// RESP3 reply; s speaks RESP3 after that.
func tablesOfServer(s *server) (tables [2]*Table) {
	s.t.Helper()
	for i := range tables {
		if i == 1 {
			s.do("HELLO", "3")
		}
		reply, _ := s.do("COMMAND")
		cmds, err := ParseReply(reply)
		if err != nil {
			s.t.Fatal(err)
		}
		if tables[i], err = newTable(cmds, nil); err != nil {
			s.t.Fatal(err)
		}
	}
	return tables
}

func TestReplyReadsAlikeInBothProtocols(t *testing.T) {
	tables := tablesOfServer(startServer(t))
	for _, c := range tables[0].All() {
		other := tables[1].LookupFull([]byte(c.Name))
		if string(AppendRow(nil, c)) != string(AppendRow(nil, other)) {
			t.Errorf("got  %s\nfrom RESP3 %s", AppendRow(nil, c), AppendRow(nil, other))
		}
	}
}

// orderSubs sorts the subcommands of c as they come in raw: the server lists
// them in the order of a hash table, which changes.
func orderSubs(c *Command, raw []byte) *Command {
	ordered := *c
	ordered.Subs = slices.SortedFunc(slices.Values(c.Subs), func(a, b *Command) int {
		return bytes.Index(raw, []byte("\r\n"+a.Name+"\r\n")) - bytes.Index(raw, []byte("\r\n"+b.Name+"\r\n"))
	})
	return &ordered
}

// TestInfoLikeServer writes the server's own table as the server does.
func TestInfoLikeServer(t *testing.T) {
	s, s3 := startServer(t), startServer(t)
	table := tablesOfServer(s3)[0]
	for _, conn := range []*server{s, s3} {
		resp3 := conn == s3
		for _, c := range append(table.All(), nil) {
			name := "nosuch"
			if c != nil {
				name = c.Name
			}
			_, raw := conn.do("COMMAND", "INFO", name)
			if c != nil {
				c = orderSubs(c, raw)
			}
			if want := fmt.Sprintf("*1\r\n%s", AppendInfo(nil, c, resp3)); string(raw) != want {
				t.Errorf("%s:\nserver %q\n   got %q", name, raw, want)
			}
		}
	}
}

func TestDocsLikeServer(t *testing.T) {
	s, s3 := startServer(t), startServer(t)
	table := tablesOfServer(s3)[0]
	for _, conn := range []*server{s, s3} {
		resp3 := conn == s3
		reply, _ := conn.do("COMMAND", "DOCS")
		docs, err := ParseDocs(reply)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range table.All() {
			_, raw := conn.do("COMMAND", "DOCS", c.Name)
			w := respWriter{AppendMapHeader(nil, 1, resp3), resp3}
			w.docs(orderSubs(c, raw), func(c *Command) Doc { return docs[c.Name] })
			if string(raw) != string(w.b) {
				t.Errorf("%s:\nserver %q\n   got %q", c.Name, raw, w.b)
			}
		}
	}
}

// TestDocsOfEveryCommand proves that docs.jsonl is whole: every line is found,
// can be read and belongs to a command.
func TestDocsOfEveryCommand(t *testing.T) {
	lines := maps.Clone(docLines())
	for _, c := range All() {
		if c.Parent == nil && len(AppendDocs(nil, c, true)) == 0 {
			t.Errorf("%s: nothing", c.Name)
		}
		doc := docOf(c)
		if doc.Name != c.Name || doc.Group == "" || doc.Since != c.Since {
			t.Errorf("%s: got %q, group %q, since %q", c.Name, doc.Name, doc.Group, doc.Since)
		}
		delete(lines, c.Name)
	}
	if len(lines) != 0 {
		t.Errorf("documentation without command: %v", slices.Collect(maps.Keys(lines)))
	}
	for resp3, want := range map[bool]string{
		true:  "$6\r\ndigest\r\n%2\r\n$5\r\nsince\r\n$5\r\n8.4.0\r\n$5\r\ngroup\r\n$6\r\nstring\r\n",
		false: "$6\r\ndigest\r\n*4\r\n$5\r\nsince\r\n$5\r\n8.4.0\r\n$5\r\ngroup\r\n$6\r\nstring\r\n",
	} {
		if got := string(AppendDocs(nil, Lookup([]byte("digest")), resp3)); got != want {
			t.Errorf("resp3 %t: got %q, want %q", resp3, got, want)
		}
	}
}

func TestLookupAllocatesNothing(t *testing.T) {
	for _, line := range []string{"GET a", "ZREVRANGEBYSCORE a 0 1", "config get x"} {
		args := bytesOf(words(line))
		if n := testing.AllocsPerRun(100, func() {
			if c, _ := builtin.Resolve(args); c == nil {
				t.Error("not found")
			}
		}); n != 0 {
			t.Errorf("%s: %g allocations", line, n)
		}
	}
}
