package proxy_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

// encodeAll joins commands in the array form, as one write.
func encodeAll(commands ...[]string) string {
	var b strings.Builder
	for _, c := range commands {
		b.WriteString(clustertest.Encode(c...))
	}
	return b.String()
}

// talk sends raw bytes, shuts down the sending side and returns everything that
// comes back before the server closes.
func talk(t *testing.T, addr, raw string) string {
	t.Helper()
	c := clustertest.Dial(t, addr)
	defer c.Close()
	c.Send(raw)
	if err := c.Net().(*net.TCPConn).CloseWrite(); err != nil {
		return readAll(t, c) // the server was faster
	}
	return readAll(t, c)
}

// readAll reads to the end of the stream, which the server has to bring about. A
// reset counts as an end: it follows when input was left unread.
func readAll(t *testing.T, c *clustertest.Conn) string {
	t.Helper()
	c.Net().SetReadDeadline(time.Now().Add(clustertest.Deadline))
	b, err := io.ReadAll(c.Net())
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Fatalf("got %.300q, then the connection stayed open", b)
	}
	return string(b)
}

// TestRawInput sends bytes, well-formed and not, to both twins: replies, errors
// and the end of the connection are the same.
func TestRawInput(t *testing.T) {
	tests := []struct{ name, raw string }{
		{"unknown command", "NOSUCH a b\r\n" + encodeAll([]string{"NOSUCH", "a", "b"}, []string{"PING"})},
		{"unknown command without arguments", encodeAll([]string{"NOSUCH"}, []string{""}, []string{"PING"})},
		{"unknown command with strange bytes", encodeAll([]string{"NO\r\nSUCH", "a\r\nb", "\x00\xff"}, []string{"PING"})},
		{"long unknown command", encodeAll([]string{strings.Repeat("n", 300), strings.Repeat("a", 300), "b"}, []string{"PING"})},
		{"unknown subcommand", encodeAll([]string{"CLIENT", "NOSUCH"}, []string{"client", "nosuch", "a"}, []string{"CONFIG", "NOSUCH"}, []string{"OBJECT", "x\r\ny", "k"}, []string{"PING"})},
		{"containers alone", encodeAll([]string{"CLIENT"}, []string{"OBJECT"}, []string{"XGROUP"}, []string{"COMMAND", "COUNT", "x"}, []string{"SCRIPT"}, []string{"CLUSTER"}, []string{"PING"})},
		{"arity", encodeAll([]string{"GET"}, []string{"MGET"}, []string{"MSET", "a"}, []string{"MSET", "a", "1", "b"}, []string{"PING", "a", "b"}, []string{"EVAL", "s"}, []string{"SELECT"}, []string{"HELLO", "3", "AUTH"}, []string{"PING"})},

		{"inline", "PING\r\n"},
		{"inline ended by LF", "PING\nPING\n"},
		{"blank lines", "\r\n\n\r\nPING\r\n\r\n"},
		{"spaces", "   \r\n  PING  \r\n"},
		{"double quotes and escapes", `SET k "a b\x41\n\"\q"` + "\r\nGET k\r\n"},
		{"single quotes", `SET k 'a b\'c\n'` + "\r\nGET k\r\n"},
		{"empty argument", "SET k \"\"\r\nGET k\r\n"},
		{"unbalanced double quote", "SET k \"abc\r\nPING\r\n"},
		{"unbalanced single quote", "SET k 'abc\r\nPING\r\n"},
		{"text right behind a quote", "SET k \"abc\"d\r\nPING\r\n"},
		{"NUL in a line", "SET k a\x00b\r\nGET k\r\n"},
		{"inline between arrays", encodeAll([]string{"SET", "k", "1"}) + "GET k\r\n" + encodeAll([]string{"INCR", "k"}) + "GET k\r\n"},
		{"several inline in one write", "SET k 180\r\nGET k\r\nDEL k\r\nGET k\r\n"},

		{"empty and null arrays", "*0\r\nPING\r\n*-1\r\nPING\r\n*-5\r\nPING\r\n"},
		{"a number where a bulk is due", encodeAll([]string{"SET", "k", "v"}, []string{"SET", "k", "w"}) + "*1\r\n:4\r\nPING\r\n" + encodeAll([]string{"SET", "k", "x"})},
		{"bulk one too long", encodeAll([]string{"SET", "k", "v"}) + "*1\r\n$5\r\nPING\r\n" + encodeAll([]string{"PING"}, []string{"PING"})},
		{"huge array", encodeAll([]string{"SET", "k", "v"}) + "*9000000000000000000\r\n"},
		{"array of 2^31", "*2147483648\r\n"},
		{"array count is no number", "*abc\r\nPING\r\n"},
		{"array count with a space", "* 1\r\n$4\r\nPING\r\n"},
		{"negative bulk", "*1\r\n$-5\r\nPING\r\n"},
		{"null bulk", "*1\r\n$-1\r\n"},
		{"huge bulk", "*2\r\n$3\r\nGET\r\n$600000000\r\n"},
		{"bulk length is no number", "*1\r\n$x\r\n"},
		{"bulk length of 20 digits", "*1\r\n$99999999999999999999\r\n"},
		{"endless array header", "*" + strings.Repeat("1", 70<<10)},
		{"endless bulk header", "*1\r\n$" + strings.Repeat("1", 70<<10)},
		{"endless inline", "SET k " + strings.Repeat("x", 70<<10)},
		{"wrong bytes after a bulk", "*2\r\n$3\r\nGETxx$1\r\nk\r\n"},
		{"a reply", "+OK\r\nPING\r\n"},
		{"HTTP", "GET / HTTP/1.1\r\nAccept: */*\r\n\r\n"},
		{"HTTP POST", "POST / HTTP/1.1\r\nHost: x\r\n\r\nSET k v\r\n"},
		{"HTTP Host", "Host: x\r\nPING\r\n"},
		{"TLS hello", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"},
		{"truncated array", encodeAll([]string{"SET", "k", "v"}) + "*2\r\n$3\r\nGET\r\n"},
		{"truncated header", "PING\r\n*2\r\n$"},
		{"truncated bulk", "PING\r\n*2\r\n$3\r\nGET\r\n$10\r\nabc"},
		{"half-close behind a pipeline", strings.Repeat(encodeAll([]string{"INCR", "n"}, []string{"PING"}, []string{"HGETALL", "ns:cfg:app"}), 300)},
		{"QUIT behind a pipeline", encodeAll([]string{"SET", "k", "v"}, []string{"GET", "k"}, []string{"QUIT"}, []string{"SET", "k", "w"})},
		{"QUIT with arguments", encodeAll([]string{"QUIT", "now"}, []string{"PING"})},

		{"AUTH without a password", encodeAll([]string{"AUTH", "x"}, []string{"AUTH", "default", "x"}, []string{"AUTH", "bob", "x"}, []string{"AUTH", "a", "b", "c"}, []string{"AUTH"}, []string{"PING"})},
		{"SELECT", encodeAll([]string{"SELECT", "9"}, []string{"SET", "k", "9"}, []string{"SELECT", "0"}, []string{"DEL", "k"}, []string{"GET", "k"}, []string{"SELECT", "9"}, []string{"GET", "k"}, []string{"SELECT", "99"}, []string{"GET", "k"}, []string{"SELECT", "x"}, []string{"SELECT", "-1"}, []string{"SELECT", "0"}, []string{"PING"})},
		{"HELLO errors", encodeAll([]string{"HELLO", "4"}, []string{"HELLO", "abc"}, []string{"HELLO", "1"}, []string{"HELLO", "+3"}, []string{"HELLO", "3", "NOSUCH"}, []string{"HELLO", "3", "SETNAME"}, []string{"HELLO", "3", "SETNAME", "a b"}, []string{"HELLO", "3", "AUTH", "bob", "x"}, []string{"GET", "nokey"})},
		{"client names", encodeAll([]string{"CLIENT", "GETNAME"}, []string{"CLIENT", "SETNAME", "n"}, []string{"CLIENT", "GETNAME"}, []string{"CLIENT", "SETNAME", "a b"}, []string{"CLIENT", "GETNAME"}, []string{"RESET"}, []string{"CLIENT", "GETNAME"})},

		{"key counts of scripts", encodeAll(
			[]string{"EVAL", "return 'a'", "0"}, []string{"EVAL", "return 'a'", "-1"}, []string{"EVAL", "return 'a'", "abc"}, []string{"EVAL", "return 'a'", "5", "k"},
			[]string{"EVAL", "return 'a'", "4294967297", "k"}, []string{"EVAL", "return 'a'", "9223372036854775807", "k"}, []string{"EVAL", "return ARGV", "0", "k"}, []string{"EVAL_RO", "return KEYS", "1", "k"},
			[]string{"EVAL_RO", "return redis.call('SET', KEYS[1], 1)", "1", "k"}, []string{"FCALL", "f", "0"}, []string{"FCALL", "f", "x"}, []string{"EVALSHA", "nosuchsha", "0"},
			[]string{"EVALSHA", strings.Repeat("f", 40), "1", "k"}, []string{"EVALSHA", strings.Repeat("f", 40), "-1", "k"}, []string{"EVAL", "return {", "0"}, []string{"PING"})},
	}
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		steady := clustertest.Dial(t, w.proxy)
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				want, got := talk(t, w.direct.Addr, tt.raw), talk(t, w.proxy, tt.raw)
				if got != want {
					t.Errorf("%.200q:\n got %.1500q\nwant %.1500q", tt.raw, got, want)
				}
			})
			if got := steady.Do("PING"); got != "+PONG\r\n" {
				t.Fatalf("another client got %q after %q", got, tt.name)
			}
		}
	})
}

// TestRandomBytes: whatever noise a client sends, it gets what Redis says to it,
// and nobody else notices.
func TestRandomBytes(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		steady := clustertest.Dial(t, w.proxy)
		r := rand.New(rand.NewPCG(1, 2))
		alphabet := []string{"*", "$", "1", "2", "-", "\r\n", "\r\n", "\n", "PING", "GET", "\"", "'", " ", "\x00", "\xff", "a", "$4\r\n", "*1\r\n"}
		for range 150 {
			var raw strings.Builder
			for range 10 {
				if r.IntN(2) == 0 {
					raw.WriteByte(byte(r.Uint32()))
					continue
				}
				raw.WriteString(alphabet[r.IntN(len(alphabet))])
			}
			want, got := talk(t, w.direct.Addr, raw.String()), talk(t, w.proxy, raw.String())
			if got != want {
				t.Errorf("%q: got %q, want %q", raw.String(), got, want)
			}
			steady.Cmd("PING")
			steady.Expect("+PONG\r\n")
		}
	})
}

// TestNothingBehindBadBytes: what follows bytes that cannot be understood is not
// executed, and what preceded them is.
func TestNothingBehindBadBytes(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	for _, addr := range []string{w.direct.Addr, w.proxy} {
		talk(t, addr, encodeAll([]string{"SET", "k", "before"})+"*1\r\n:4\r\n"+encodeAll([]string{"SET", "k", "behind"}))
	}
	if got := w.behind.Text("GET", "k"); got != "before" {
		t.Errorf("k is %q, want %q", got, "before")
	}
}

// TestCuts delivers a pipeline with empty keys, fields and values cut in two at
// every possible place.
func TestCuts(t *testing.T) {
	var commands [][]string
	for i := range 12 {
		v := []string{"", "v\r\n", "x"}[i%3]
		commands = append(commands, []string{"HSET", "ns:cfg:app", fmt.Sprintf("f%d", i), v}, []string{"HSET", "", "", v})
	}
	commands = append(commands, []string{"HGETALL", "ns:cfg:app"}, []string{"HGETALL", ""}, []string{"SET", "k", ""}, []string{"GET", "k"})
	raw := encodeAll(commands...) + "GET k\r\nSET k \"a b\"\r\nDEL k ns:cfg:app \"\"\r\n"
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		want := talk(t, w.direct.Addr, raw)
		c := clustertest.Dial(t, w.proxy)
		for cut := range len(raw) {
			// The answer to PING shows that the first part has been read by itself.
			c.Send("PING\r\n" + raw[:cut])
			c.Expect("+PONG\r\n")
			c.Send(raw[cut:])
			var got strings.Builder
			for got.Len() < len(want) {
				got.WriteString(c.ReadReply())
			}
			if got.String() != want {
				t.Fatalf("cut at %d: got %q, want %q", cut, got.String(), want)
			}
		}
	})
}

// TestHello switches protocols back and forth: shapes, nulls and empty
// collections follow, and the version is the backend's.
func TestHello(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		p := w.dial(t, 2)
		id := regexp.MustCompile(`\$2\r\nid\r\n:\d+\r\n`)
		for _, hello := range [][]string{{"HELLO"}, {"HELLO", "2"}, {"HELLO", "3"}, {"HELLO", "3", "SETNAME", "n"}, {"HELLO"}, {"HELLO", "3", "AUTH", "default", "x", "SETNAME", "m"}, {"hello", "2"}} {
			got, want := p.behind.Do(hello...), p.direct.Do(hello...)
			if got, want := id.ReplaceAllString(got, ""), id.ReplaceAllString(want, ""); got != want {
				t.Errorf("%v: got %q, want %q", hello, got, want)
			}
			p.do([]string{"GET", "nokey"}, []string{"HGETALL", "nokey"}, []string{"SMEMBERS", "nokey"}, []string{"HGETALL", "ns:cfg:none"}, []string{"SMEMBERS", "ns:cfg_idx"}, []string{"CLIENT", "GETNAME"},
				[]string{"ZADD", "z", "1.5", "m"}, []string{"ZSCORE", "z", "m"}, []string{"LPOP", "nolist", "2"}, []string{"CONFIG", "GET", "maxmemory"}, []string{"MGET", "nokey"})
		}
	})
}

// TestClientSetInfo: client libraries announce themselves, in one write, to
// backends that do not know CLIENT SETINFO yet.
func TestClientSetInfo(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	c := clustertest.Dial(t, w.proxy)
	c.Send(encodeAll([]string{"HELLO", "3"}, []string{"CLIENT", "SETINFO", "LIB-NAME", "x"}, []string{"CLIENT", "SETINFO", "LIB-VER", "1"}, []string{"CLIENT", "SETNAME", "s"}, []string{"SELECT", "0"}, []string{"PING"}))
	if got := c.ReadReply(); !strings.HasPrefix(got, "%7\r\n") {
		t.Errorf("got %q for HELLO, want a map of 7", got)
	}
	for range 4 {
		c.Expect("+OK\r\n")
	}
	c.Expect("+PONG\r\n")
}

// TestInfo: readiness probes and version checks find what they look for.
func TestInfo(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	for _, proto := range []int{2, 3} {
		p := w.dial(t, proto)
		for _, c := range [][]string{{"INFO"}, {"info"}, {"INFO", "server", "replication", "persistence"}, {"INFO", "everything"}, {"INFO", "all"}} {
			got := p.behind.Do(c...)
			for _, field := range []string{"redis_version:7.0.15", "redis_mode:standalone", "run_id:", "loading:0", "role:master", "tcp_port:"} {
				if !strings.Contains(got, "\r\n"+field) {
					t.Errorf("RESP%d %v has no %q: %.400q", proto, c, field, got)
				}
			}
		}
		if got := p.behind.Do("INFO", "replication"); !strings.Contains(got, "role:master") || got[0] != p.direct.Do("INFO", "replication")[0] {
			t.Errorf("RESP%d INFO replication: got %q", proto, got)
		}
		if got := p.behind.Do("INFO", "nosuch"); got != p.direct.Do("INFO", "nosuch") {
			t.Errorf("RESP%d INFO nosuch: got %q", proto, got)
		}
	}
}

// TestNestedReplies: deep, wide and odd replies come through byte by byte.
func TestNestedReplies(t *testing.T) {
	deep := "local t = {}; for i = 1, 50 do t = {i, t} end; return t"
	scripts := []string{
		"return {'a',{'b',{'c',{}}},1}", deep, "return {}", "return {{},{{}}}", "return {1,2,nil,4}", "return false", "return true", "return 3.99", "return -3.99",
		"return {err='MY error'}", "return {ok='fine'}", "return redis.error_reply('-10001')", "return redis.error_reply('ERR x')", "return redis.status_reply('s')",
		"return 'a\\r\\nb\\0c'", "return {'a\\r\\n$3\\r\\n', '\\255'}", "return nil", "return {false, true, {false}}", "return {err='MOVED 1 127.0.0.1:1'}", "return {err='NOSCRIPT x'}", "return {err='NOAUTH x'}", "return {err='READONLY x'}",
		"redis.setresp(3); return redis.call('HGETALL', KEYS[1])", "redis.setresp(3); return redis.call('SMEMBERS', KEYS[1])", "redis.setresp(3); return redis.call('ZSCORE', 'z', 'm')",
		"redis.setresp(3); return {double=3.5}", "redis.setresp(3); return {map={a=1}}", "redis.setresp(3); return {set={a=true}}", "redis.setresp(3); return true", "redis.setresp(3); return {big_number='123'}",
		"redis.setresp(3); return {verbatim_string={format='txt', string='x'}}", "return redis.call('GET', 'k', 'x')", "return redis.pcall('NOSUCH')", "error('boom')", "return redis.call('LRANGE', 'wide', 0, -1)", "return redis.sha1hex('')", "return x",
	}
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		for _, proto := range []int{2, 3} {
			p := w.dial(t, proto)
			wide := []string{"RPUSH", "wide"}
			for i := range 5000 {
				wide = append(wide, fmt.Sprint("element ", i))
			}
			p.do([]string{"FLUSHALL"}, wide, []string{"ZADD", "z", "1.25", "m"}, []string{"GEOADD", "g", "13.361389", "38.115556", "Palermo", "15.087269", "37.502669", "Catania"},
				[]string{"XADD", "s1", "1-1", "f", "v"}, []string{"XADD", "s2", "1-2", "f", "v", "g", ""})
			for _, s := range scripts {
				p.do([]string{"EVAL", s, "1", "k"}, []string{"PING"}, []string{"EVAL", s, "1", "k"})
			}
			p.do([]string{"GEORADIUS", "g", "15", "37", "200", "km", "WITHCOORD", "WITHDIST", "ASC"}, []string{"XREAD", "STREAMS", "s1", "s2", "0", "0"},
				[]string{"LRANGE", "wide", "0", "-1"}, []string{"COMMAND", "INFO", "get", "nosuch", "SET"}, []string{"COMMAND", "DOCS", "set"}, []string{"XINFO", "STREAM", "s1"})
		}
	})
}

// TestBinaryKeys: keys and values are bytes, whatever they look like.
func TestBinaryKeys(t *testing.T) {
	keys := []string{"", "\r\n", "\x00", "$3\r\nabc\r\n", "\xac\xed\x00\x05t", "{", "}", "{}", "}{", "{a}{b}", strings.Repeat("k", 100<<10), "*1\r\n$4\r\nPING\r\n", "ns:cfg:\r\n\x00"}
	w := startTwins(t, netloop.DefaultTransport)
	p := w.dial(t, 2)
	for _, k := range keys {
		p.do([]string{"SET", k, k}, []string{"GET", k}, []string{"MGET", k, "none", k}, []string{"EXISTS", k, k}, []string{"DEL", k}, []string{"GET", k}, []string{"HSET", k, k, k}, []string{"HGETALL", k}, []string{"HGETALL", k}, []string{"DEL", k})
	}
}

// TestPipeMode runs redis-cli's bulk loader, which ends its stream with a blank
// line and an ECHO of random bytes.
func TestPipeMode(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	host, port, _ := net.SplitHostPort(w.proxy)
	for _, tt := range []struct {
		name string
		line func(i int) string
	}{
		{"arrays", func(i int) string { return clustertest.Encode("SET", fmt.Sprint("a", i), "v") }},
		{"inline", func(i int) string { return fmt.Sprintf("SET b%d v\r\n", i) }},
	} {
		var in strings.Builder
		for i := range 5000 {
			in.WriteString(tt.line(i))
		}
		cmd := exec.Command("redis-cli", "-h", host, "-p", port, "--pipe", "--pipe-timeout", "20")
		cmd.Stdin = strings.NewReader(in.String())
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "errors: 0, replies: 5000") {
			t.Errorf("%s: %v: %s", tt.name, err, out)
		}
	}
	if got := w.behind.Text("DBSIZE"); got != "10000" {
		t.Errorf("%s keys were stored, want 10000", got)
	}
}

// TestScriptsComeBack: a script that the backend has forgotten is brought back
// when the proxy knows it, unless it was the client's wish to forget it.
func TestScriptsComeBack(t *testing.T) {
	const text, noscript = "return KEYS[1]", "-NOSCRIPT No matching script. Please use EVAL.\r\n"
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		c := clustertest.Dial(t, w.proxy)
		sha := strings.Split(c.Do("SCRIPT", "LOAD", text), "\r\n")[1]
		if got, want := c.Do("SCRIPT", "EXISTS", sha, strings.Repeat("0", 40)), "*2\r\n:1\r\n:0\r\n"; got != want {
			t.Errorf("SCRIPT EXISTS: got %q, want %q", got, want)
		}
		w.behind.Do("SCRIPT", "FLUSH")
		for _, s := range []string{sha, strings.ToUpper(sha)} {
			if got, want := c.Do("EVALSHA", s, "1", "k"), "$1\r\nk\r\n"; got != want {
				t.Errorf("after a flush beside the proxy: got %q, want %q", got, want)
			}
		}
		w.behind.Do("SCRIPT", "FLUSH")
		if got, want := c.Do("EVALSHA_RO", sha, "1", "k"), "$1\r\nk\r\n"; got != want {
			t.Errorf("EVALSHA_RO after a flush: got %q, want %q", got, want)
		}
		w.behind.Do("SCRIPT", "FLUSH")
		c.Send(strings.Repeat(encodeAll([]string{"EVALSHA", sha, "1", "k"}, []string{"GET", "none"}), 20))
		// In a pipeline nothing may overtake the call, so it is answered as Redis
		// does; the script is back for the next one.
		for range 20 {
			if got := c.ReadReply(); got != noscript && got != "$1\r\nk\r\n" {
				t.Errorf("in a pipeline: got %q", got)
			}
			c.Expect("$-1\r\n")
		}
		c.Cmd("EVALSHA", sha, "1", "k")
		c.Expect("$1\r\nk\r\n")

		w.behind.Restart()
		clustertest.Await(t, "the script after a restart", func() error {
			if got := c.Do("EVALSHA", sha, "1", "k"); got != "$1\r\nk\r\n" {
				return fmt.Errorf("got %q", got)
			}
			return nil
		})

		c.Cmd("SCRIPT", "FLUSH")
		c.Expect("+OK\r\n")
		c.Cmd("EVALSHA", sha, "1", "k")
		c.Expect(noscript)
		c.Cmd("EVAL", text, "1", "k")
		c.Expect("$1\r\nk\r\n")
		c.Cmd("EVALSHA", sha, "1", "k")
		c.Expect("$1\r\nk\r\n")
	})
}

// TestManyKeysOfAScript: arguments behind the declared keys are no keys.
func TestManyKeysOfAScript(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	p := w.dial(t, 2)
	many := []string{"EVAL", "return {#KEYS, #ARGV, KEYS[200], ARGV[1]}", "200"}
	for i := range 203 {
		many = append(many, fmt.Sprint("k", i))
	}
	p.do(many, []string{"EVAL", "return {KEYS[1],ARGV[1]}", "1", "k", "other"}, []string{"EVAL", "return {KEYS[1],KEYS[2]}", "2", "a", "b"})
}

// TestDatabasesStayApart: clients in different databases share few connections
// and never see each other's values.
func TestDatabasesStayApart(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		conns := make([]*clustertest.Conn, 16)
		for i := range conns {
			conns[i] = clustertest.Dial(t, w.proxy)
			conns[i].Cmd("SELECT", fmt.Sprint(i%4))
			conns[i].Expect("+OK\r\n")
		}
		r := rand.New(rand.NewPCG(3, 4))
		for range 2000 {
			i := r.IntN(len(conns))
			k := fmt.Sprint("k", r.IntN(3))
			h := fmt.Sprint("ns:cfg:", k)
			conns[i].Send(encodeAll([]string{"SET", k, fmt.Sprint(i % 4)}, []string{"GET", k}, []string{"HSET", h, "db", fmt.Sprint(i % 4)}, []string{"HGETALL", h}))
			conns[i].Expect("+OK\r\n")
			conns[i].Expect(fmt.Sprintf("$1\r\n%d\r\n", i%4))
			conns[i].ReadReply()
			conns[i].Expect(fmt.Sprintf("*2\r\n$2\r\ndb\r\n$1\r\n%d\r\n", i%4))
		}
		if got := w.behind.InfoField("clients", "connected_clients"); len(got) > 2 {
			t.Errorf("the backend has %s connections", got)
		}
	})
}

// TestClientLimit turns away clients beyond the limit and takes new ones as soon
// as old ones have left.
func TestClientLimit(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind := clustertest.StartRedis(t)
		o := strict(t, behind, transport)
		o.Clients.Max = 10
		_, addr := proxytest.Start(t, o)
		var conns []*clustertest.Conn
		for range 10 {
			c := clustertest.Dial(t, addr)
			c.Cmd("PING")
			c.Expect("+PONG\r\n")
			conns = append(conns, c)
		}
		for range 2 {
			c := clustertest.Dial(t, addr)
			for range 3 { // what it sends is no reason to take the error back
				c.Send("PING\r\n")
			}
			if got, want := readAll(t, c), "-ERR max number of clients reached\r\n"; got != want {
				t.Errorf("the client too many got %q, want %q", got, want)
			}
			c.Close()
		}
		for _, c := range conns[:5] {
			c.Close()
		}
		for range 5 {
			clustertest.Await(t, "room for a new client", func() error {
				c := clustertest.Dial(t, addr)
				if got := c.Do("PING"); got != "+PONG\r\n" {
					c.Close()
					return fmt.Errorf("got %q", got)
				}
				return nil
			})
		}
		for _, c := range conns[5:] {
			c.Cmd("PING")
			c.Expect("+PONG\r\n")
		}
	})
}
