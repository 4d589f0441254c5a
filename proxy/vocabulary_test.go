package proxy_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/cluster/discovery"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
	"cosky-proxy/router/command"
)

// moduleServer is the script of a fake Redis with a module. What it knows may change
// while it runs.
type moduleServer struct {
	// guarded by mu
	mu   sync.Mutex
	cmds []*command.Command
	ran  []string // module commands executed
}

// keySpec is the key spec of one key at index.
func keySpec(index int, flags command.KeyFlags) []command.KeySpec {
	return []command.KeySpec{{Flags: flags, Begin: command.BeginIndex, Index: index, Find: command.FindRange, KeyStep: 1}}
}

func newModuleServer() *moduleServer {
	m := &moduleServer{cmds: []*command.Command{
		{Name: "mod.put", Arity: -3, Flags: command.Write | command.Module, KeySpecs: keySpec(2, command.KeyRW)},
		{Name: "mod.look", Arity: 2, Flags: command.ReadOnly | command.Module, KeySpecs: keySpec(1, command.KeyRO)},
		{Name: "mod.search", Arity: -2, Flags: command.ReadOnly | command.Module | command.MovableKeys},
		{Name: "mod.silent", Arity: -1, Flags: command.Module},
	}}
	for _, name := range []string{"get", "hgetall", "multi", "exec", "config", "command", "info"} {
		m.cmds = append(m.cmds, command.Lookup([]byte(name)))
	}
	return m
}

func (m *moduleServer) answer(_ *proxytest.FakeConn, args []string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch name := strings.ToLower(args[0]); {
	case name == "info":
		return bulkOf("redis_version:7.0.15\r\nrun_id:1\r\nredis_mode:standalone\r\n")
	case name == "module":
		return "*0\r\n"
	case name == "command" && len(args) == 1:
		b := fmt.Appendf(nil, "*%d\r\n", len(m.cmds))
		for _, c := range m.cmds {
			b = command.AppendInfo(b, c, false)
		}
		return string(b)
	case name == "command" && strings.EqualFold(args[1], "count"):
		return fmt.Sprintf(":%d\r\n", len(m.cmds))
	case name == "command":
		b := fmt.Appendf(nil, "*%d\r\n", len(args)-2)
		for _, arg := range args[2:] {
			b = command.AppendInfo(b, m.find(arg), false)
		}
		return string(b)
	case strings.HasPrefix(name, "mod."):
		m.ran = append(m.ran, strings.Join(args, " "))
		return "+DONE\r\n"
	case name == "hgetall":
		return "*0\r\n"
	case name == "multi":
		return "+OK\r\n"
	case name == "exec":
		return "*0\r\n"
	}
	return ""
}

func (m *moduleServer) find(name string) *command.Command {
	if i := slices.IndexFunc(m.cmds, func(c *command.Command) bool { return c.Name == name }); i >= 0 {
		return m.cmds[i]
	}
	return nil
}

func (m *moduleServer) set(cmds ...*command.Command) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cmds = cmds
}

func startModuleServer(t *testing.T) (m *moduleServer, f *proxytest.Fake, p *proxytest.Discovered) {
	t.Helper()
	m = newModuleServer()
	f = proxytest.StartFake(t, m.answer)
	p = proxytest.StartDiscovered(t, discovery.Backend{Mode: cluster.Standalone, Seeds: []string{f.Addr}}, nil)
	return m, f, p
}

func TestBackendWithoutACommand(t *testing.T) {
	_, f, p := startModuleServer(t)
	c := clustertest.Dial(t, p.Addr)
	const unknown = "-ERR unknown command 'HSET', with args beginning with: 'k' 'f' 'v' \r\n"
	expectReply(t, c, "HSET k f v", unknown)
	expectReply(t, c, "CLIENT KILL x", "-ERR unknown subcommand 'KILL'. Try CLIENT HELP.\r\n")
	expectReply(t, c, "MULTI", "+OK\r\n")
	expectReply(t, c, "HSET k f v", unknown)
	expectReply(t, c, "EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n")
	if f.Calls("HSET") > 0 {
		t.Error("a command that the backend does not list was sent to it")
	}
	// Handshakes do not depend on it.
	expectReply(t, c, "CLIENT SETINFO LIB-NAME x", "+OK\r\n")
	expectReply(t, c, "CLIENT SETNAME me", "+OK\r\n")
	expectReply(t, c, "CLIENT GETNAME", bulkOf("me"))
	if got := c.Do("HELLO", "3"); got[0] != '%' {
		t.Errorf("HELLO 3: got %q", got)
	}
}

func TestModuleCommands(t *testing.T) {
	m, _, p := startModuleServer(t)
	c := clustertest.Dial(t, p.Addr)
	expectReply(t, c, "MOD.PUT x k v", "+DONE\r\n")
	expectReply(t, c, "mod.put x", "-ERR wrong number of arguments for 'mod.put' command\r\n")
	expectReply(t, c, "mod.look k", "+DONE\r\n")
	expectReply(t, c, "mod.search any thing", "+DONE\r\n")
	expectReply(t, c, "MULTI", "+OK\r\n")
	expectReply(t, c, "mod.put x k v", "+QUEUED\r\n")
	expectReply(t, c, "mod.search any thing", "+QUEUED\r\n")
	expectReply(t, c, "EXEC", "*0\r\n")
	m.mu.Lock()
	defer m.mu.Unlock()
	if want := []string{"MOD.PUT x k v", "mod.look k", "mod.search any thing", "mod.put x k v", "mod.search any thing"}; !slices.Equal(m.ran, want) {
		t.Errorf("executed %q, want %q", m.ran, want)
	}
}

// Whatever a module may have written is not served from the cache any more.
func TestModuleWritesVoidTheCache(t *testing.T) {
	_, f, p := startModuleServer(t)
	c := clustertest.Dial(t, p.Addr)
	hits := func() uint64 { s := p.Stats(); return s.Hits }
	for _, write := range []string{"MOD.PUT x ns:svc_itc:a v", "MOD.SILENT", "MOD.SILENT ns:svc_itc:a"} {
		clustertest.Await(t, "the key to be cached", func() error {
			before := hits()
			c.Do("HGETALL", "ns:svc_itc:a")
			if hits() == before {
				return fmt.Errorf("no hit")
			}
			return nil
		})
		before := f.Calls("HGETALL")
		expectReply(t, c, write, "+DONE\r\n")
		expectReply(t, c, "HGETALL ns:svc_itc:a", "*0\r\n")
		if f.Calls("HGETALL") == before {
			t.Errorf("after %s the old value was served", write)
		}
	}
}

// A backend that does not let the proxy list its commands is served with the built-in
// table. It is logged once, however often the list is asked for.
func TestBackendThatListsNothing(t *testing.T) {
	var asked atomic.Int64
	f := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
		switch args[0] {
		case "COMMAND":
			if len(args) == 1 {
				asked.Add(1)
			}
			return "-NOPERM this user has no permissions to run the 'command' command\r\n"
		case "INFO":
			return bulkOf("redis_version:7.0.15\r\nredis_mode:standalone\r\n")
		case "MODULE":
			return "*0\r\n"
		case "HSETEX":
			return ":1\r\n"
		}
		return ""
	})
	var log lockedBuffer
	p := proxytest.StartDiscovered(t, discovery.Backend{Mode: cluster.Standalone, Seeds: []string{f.Addr}}, func(o *proxy.Options) {
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	c := clustertest.Dial(t, p.Addr)
	expectReply(t, c, "HSETEX k FIELDS 1 f v", ":1\r\n")
	expectReply(t, c, "nosuch", "-ERR unknown command 'nosuch', with args beginning with: \r\n")
	clustertest.Await(t, "a second attempt", func() error {
		if asked.Load() < 2 {
			return fmt.Errorf("asked %d times", asked.Load())
		}
		return nil
	})
	if n := strings.Count(log.String(), "cannot list the backend's commands"); n != 1 {
		t.Errorf("logged %d times: %s", n, log.String())
	}
}

// TestBackendOfAnotherVersion: what follows from the backend's version follows from the
// present one.
func TestBackendOfAnotherVersion(t *testing.T) {
	r := clustertest.StartRedis(t)
	topology := proxytest.Single(r.Addr)
	o := proxytest.Options(t, topology)
	o.Loops, o.Cache.MaxStaleness = 1, 100*time.Millisecond
	s, addr := proxytest.Start(t, o)
	c := clustertest.Dial(t, addr)
	version := func(want string) {
		t.Helper()
		if got := c.Do("HELLO", "2"); !strings.Contains(got, bulkOf("version")+bulkOf(want)) {
			t.Fatalf("got %q, want version %s", got, want)
		}
	}
	c.Do("HSET", "ns:svc_itc:a", "f", "v")
	misses := func() uint64 {
		c.Do("HGETALL", "ns:svc_itc:a")
		return s.Stats().Misses
	}
	cached := func() error {
		hits := s.Stats().Hits
		if misses(); s.Stats().Hits == hits {
			return errors.New("no hit")
		}
		return nil
	}
	version("7.0.15")
	clustertest.Await(t, "a cached hash", cached)
	before := misses()
	topology.Set(cluster.NewSingle(2, cluster.Standalone, &cluster.Node{ID: r.Addr, Addr: r.Addr, Version: "7.4.1"}))
	s.Adopt(topology.Current())
	version("7.4.1")
	if got := misses(); got == before {
		t.Error("what was cached without a thought of fields that expire is served")
	}
	clustertest.Await(t, "a cached hash", cached)
	// A hash with a long value is stored in a way that does not tell, and this server cannot be asked.
	c.Do("HSET", "ns:svc_itc:a", "f", strings.Repeat("v", 100))
	hits := s.Stats().Hits
	for range 5 {
		misses()
	}
	if got := s.Stats().Hits; got != hits && strings.HasPrefix(c.Do("HPTTL", "ns:svc_itc:a", "FIELDS", "1", "f"), "-") {
		t.Error("what is served may have expired")
	}
}

func TestModuleLoadedLater(t *testing.T) {
	m, f, p := startModuleServer(t)
	a, b := clustertest.Dial(t, p.Addr), clustertest.Dial(t, p.Addr)
	expectReply(t, a, "mod.late x", "-ERR unknown command 'mod.late', with args beginning with: 'x' \r\n")
	m.set(append(newModuleServer().cmds, &command.Command{Name: "mod.late", Arity: 2, Flags: command.Module})...)
	// In a pipeline, between other commands.
	a.Send(oneWrite(words("PING"), words("mod.late x"), words("PING")))
	for _, want := range []string{"+PONG\r\n", "+DONE\r\n", "+PONG\r\n"} {
		a.Expect(want)
	}
	expectReply(t, b, "mod.late x y", "-ERR wrong number of arguments for 'mod.late' command\r\n")
	// Unloaded, by a restart.
	m.set(newModuleServer().cmds[1:]...)
	f.CutAll()
	clustertest.Await(t, "the list to be asked for again", func() error {
		if got := b.Do("mod.late", "x"); !strings.HasPrefix(got, "-ERR unknown command") {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
}

// A module that finds its keys with code is asked for them by the node it reaches;
// nothing of the same client overtakes the command on its way through a redirect.
func TestModuleKeysInACluster(t *testing.T) {
	var b *proxytest.Fake
	var mu sync.Mutex
	var ran []string
	answer := func(own bool) proxytest.Script {
		return func(_ *proxytest.FakeConn, args []string) string {
			switch name := strings.ToLower(args[0]); {
			case name != "mod.search" && name != "get":
				return ""
			case !own:
				return movedTo(args[1], b.Addr)
			}
			mu.Lock()
			defer mu.Unlock()
			ran = append(ran, args[0])
			return "+DONE\r\n"
		}
	}
	a := proxytest.StartFake(t, answer(false))
	b = proxytest.StartFake(t, answer(true))
	s, addr, _ := startFakeCluster(t, nil, a, b)
	s.AdoptCommands([]command.Command{
		*command.Lookup([]byte("get")),
		{Name: "mod.search", Arity: -2, Flags: command.Write | command.Module | command.MovableKeys},
	})
	key := keyIn("k", 1, 2, 0)
	c := clustertest.Dial(t, addr)
	var commands [][]string
	for range 20 {
		commands = append(commands, []string{"mod.search", key}, []string{"get", key})
	}
	c.Send(oneWrite(commands...))
	for range commands {
		c.Expect("+DONE\r\n")
	}
	for i, name := range ran {
		if want := commands[i][0]; name != want {
			t.Fatalf("executed %q", ran)
		}
	}
}

// Commands that the server's configuration renames are called by their new names.
func TestRenamedCommands(t *testing.T) {
	r := clustertest.StartRedis(t, "--rename-command", "HSET", "pset", "--rename-command", "CONFIG", "settings", "--rename-command", "BLPOP", "await", "--rename-command", "FLUSHALL", "")
	p := proxytest.StartDiscovered(t, discovery.Backend{Mode: cluster.Standalone, Seeds: []string{r.Addr}}, nil)
	c := clustertest.Dial(t, p.Addr)
	hash := func(v string) string { return "*2\r\n" + bulkOf("f") + bulkOf(v) }
	for _, tt := range []struct{ line, want string }{
		{"PSET ns:svc_itc:a f 1", ":1\r\n"},
		{"HGETALL ns:svc_itc:a", hash("1")},
		{"HGETALL ns:svc_itc:a", hash("1")},
		{"pset ns:svc_itc:a f 2", ":0\r\n"},
		{"HGETALL ns:svc_itc:a", hash("2")},
		{"pset ns:svc_itc:a", "-ERR wrong number of arguments for 'hset' command\r\n"},
		{"HSET k f v", "-ERR unknown command 'HSET', with args beginning with: 'k' 'f' 'v' \r\n"},
		{"FLUSHALL", "-ERR unknown command 'FLUSHALL', with args beginning with: \r\n"},
		{"settings get save", "*2\r\n" + bulkOf("save") + bulkOf("")},
		{"settings", "-ERR wrong number of arguments for 'config' command\r\n"},
		{"SETTINGS nosuch", "-ERR unknown subcommand 'nosuch'. Try SETTINGS HELP.\r\n"},
		{"config get save", "-ERR unknown command 'config', with args beginning with: 'get' 'save' \r\n"},
		{"MULTI", "+OK\r\n"},
		{"pset ns:svc_itc:a f 3", "+QUEUED\r\n"},
		{"HGETALL ns:svc_itc:a", "+QUEUED\r\n"},
		{"EXEC", "*2\r\n:0\r\n" + hash("3")},
		{"HGETALL ns:svc_itc:a", hash("3")},
		{"MULTI", "+OK\r\n"},
		{"nosuch", "-ERR unknown command 'nosuch', with args beginning with: \r\n"},
		{"EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n"},
		{"RPUSH l x", ":1\r\n"},
		{"AWAIT l 0", "*2\r\n" + bulkOf("l") + bulkOf("x")},
	} {
		expectReply(t, c, tt.line, tt.want)
	}
	// A client that waits keeps nobody else waiting.
	c.Cmd("await", "l", "0")
	other := clustertest.Dial(t, p.Addr)
	for range 4 { // some of them on the loop of the first one
		clustertest.Dial(t, p.Addr).Do("GET", "k")
	}
	expectReply(t, other, "RPUSH l y", ":1\r\n")
	c.Expect("*2\r\n" + bulkOf("l") + bulkOf("y"))
}
