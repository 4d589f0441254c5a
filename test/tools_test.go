package test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
)

// redisCLI is a redis-cli in front of a proxy, with an empty history.
func redisCLI(t testing.TB, addr string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("redis-cli", append([]string{"-p", port(addr)}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	return cmd
}

func TestBenchmark(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		p := binary.Start(t, "--backend", b.url)
		count := "2000"
		if b.url == embedded.url {
			count = "200" // lists of thousands take it long
		}
		for _, args := range [][]string{
			nil,
			{"-P", "16"},
			{"-3", "-P", "16", "--threads", "2", "-r", "1000"},
		} {
			benchmark(t, p.Addr, append(args, "-n", count)...)
		}
	})
}

// benchmark runs all default tests of redis-benchmark.
func benchmark(t *testing.T, addr string, args ...string) {
	t.Helper()
	args = append([]string{"-p", port(addr), "-q"}, args...)
	out := output(t, exec.Command("redis-benchmark", args...))
	results := 0
	for line := range strings.FieldsFuncSeq(out, func(r rune) bool { return r == '\r' || r == '\n' }) {
		switch line = strings.TrimSpace(line); {
		case line == "" || progress.MatchString(line):
		case result.MatchString(line):
			results++
		default:
			t.Errorf("redis-benchmark %q says %q", args, line)
		}
	}
	// LRANGE needs a list, whose filling is announced like a test.
	if want := 20; results != want {
		t.Errorf("redis-benchmark %q: %d results, want %d\n%s", args, results, want, out)
	}
}

var (
	progress = regexp.MustCompile(`^[^:]+: rps=\S+ \(overall: \S+\) avg_msec=\S+ \(overall: \S+\)$`)
	result   = regexp.MustCompile(`^[^:]+: \S+ requests per second, p50=[\d.]+ msec$`)
)

func TestCLIOneShot(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		p := binary.Start(t, "--backend", b.url)
		for _, c := range []struct {
			args []string
			want string
		}{
			{[]string{"PING"}, "PONG\n"},
			{[]string{"SET", "k", "v w"}, "OK\n"},
			{[]string{"GET", "k"}, "v w\n"},
			{[]string{"--no-raw", "GET", "k"}, "\"v w\"\n"},
			{[]string{"--no-raw", "GET", "none"}, "(nil)\n"},
			{[]string{"HSET", "h", "f", "1"}, "1\n"},
			{[]string{"--no-raw", "HGETALL", "h"}, "1) \"f\"\n2) \"1\"\n"},
			{[]string{"-3", "--no-raw", "HGETALL", "h"}, "1# \"f\" => \"1\"\n"},
			{[]string{"--json", "HGETALL", "h"}, "{\"f\":\"1\"}\n"},
			{[]string{"-r", "3", "INCR", "n"}, "1\n2\n3\n"},
			{[]string{"EVAL", "return {KEYS[1],ARGV[1]}", "1", "k", "a"}, "k\na\n"},
			{[]string{"LPOP", "k"}, "WRONGTYPE Operation against a key holding the wrong kind of value\n\n"},
			{[]string{"NOPE"}, "ERR unknown command 'NOPE', with args beginning with: \n\n"},
		} {
			cmd := redisCLI(t, p.Addr, c.args...)
			cmd.Env = append(cmd.Env, "NO_COLOR=1")
			if got := output(t, cmd); !sameText(got, c.want, b) {
				t.Errorf("redis-cli %q: got %q, want %q", c.args, got, c.want)
			}
		}
	})
}

// sameText compares replies; miniredis words its errors in its own way.
func sameText(got, want string, b backend) bool {
	if code, _, isError := strings.Cut(want, " "); isError && len(b.servers) == 0 && code == "ERR" {
		return strings.HasPrefix(got, "ERR ")
	}
	return got == want
}

// A script on standard input is a session: state lasts from line to line.
func TestCLIScript(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		p := binary.Start(t, "--backend", b.url)
		cmd := redisCLI(t, p.Addr)
		cmd.Stdin = strings.NewReader("MULTI\nSET {a}1 x\nGET {a}1\nEXEC\nWATCH {a}1\nMULTI\nINCR {a}2\nEXEC\nCLIENT SETNAME me\nCLIENT GETNAME\n")
		const want = "OK\nQUEUED\nQUEUED\nOK\nx\nOK\nOK\nQUEUED\n1\nOK\nme\n"
		if got := output(t, cmd); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// On a terminal redis-cli asks for COMMAND DOCS to give hints, edits lines, and shows
// messages until it is interrupted.
func TestCLIOnTerminal(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"-2", "-3"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			p := binary.Start(t, "--backend", standalone(t).url)
			screen := openTerminal(t, "redis-cli", "-p", port(p.Addr), version)
			ask := func(line, text string) {
				t.Helper()
				screen.await("> ") // what is typed before the prompt is lost
				screen.enter(line, text)
			}
			screen.await(p.Addr)
			ask("SET greeting \"hello world\"", "OK")
			ask("GET greeting", `"hello world"`)
			ask("HELP GETRANGE", "Get a substring of the string stored at a key")
			ask("MULTI", "OK")
			screen.await(p.Addr + "(TX)")
			ask("GET greeting", "QUEUED")
			ask("EXEC", `1) "hello world"`)
			screen.await("> ")
			screen.enter("SUBSCRIBE news", `3) (integer) 1`)
			if got := clustertest.Dial(t, p.Addr).Do("PUBLISH", "news", "extra"); got != ":1\r\n" {
				t.Errorf("PUBLISH: got %q", got)
			}
			screen.await(`3) "extra"`)
		})
	}
}

// terminal is a program on a pseudo-terminal, which the program script provides.
type terminal struct {
	t     *testing.T
	input io.Writer
	log   string // path of what the screen has shown
	seen  int    // bytes of it that await has passed
}

func openTerminal(t *testing.T, argv ...string) *terminal {
	t.Helper()
	dir := t.TempDir()
	s := &terminal{t: t, log: filepath.Join(dir, "screen")}
	// A new terminal has no size, which makes line editors ask it questions.
	cmd := exec.Command("script", "-q", "-f", "-e", "-c", "stty cols 200 rows 50; exec "+strings.Join(argv, " "), s.log)
	cmd.Env = append(os.Environ(), "HOME="+dir, "TERM=xterm")
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.input = input
	if err := cmd.Start(); err != nil {
		t.Fatalf("cannot open a terminal: %v", err)
	}
	t.Cleanup(func() {
		input.Close()
		cmd.Process.Kill() // hangs up the terminal
		cmd.Wait()
	})
	return s
}

// enter types a line and waits for text in what follows it.
func (s *terminal) enter(line, text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.input, line+"\r"); err != nil {
		s.t.Fatalf("cannot type %q: %v", line, err)
	}
	s.await(text)
}

// await waits until the screen shows text after what was awaited before.
func (s *terminal) await(text string) {
	s.t.Helper()
	clustertest.Await(s.t, fmt.Sprintf("%q on the screen", text), func() error {
		shown, err := os.ReadFile(s.log)
		if err != nil {
			return err
		}
		i := bytes.Index(shown[s.seen:], []byte(text))
		if i < 0 {
			return fmt.Errorf("it shows %q", tail(shown[s.seen:]))
		}
		s.seen += i + len(text)
		return nil
	})
}

func TestCLIPipe(t *testing.T) {
	t.Parallel()
	count := 100_000
	inputs := map[string]func(i int) string{
		"arrays": func(i int) string { return clustertest.Encode("SET", fmt.Sprintf("a%d", i), "v") },
		"inline": func(i int) string { return fmt.Sprintf("SET i%d v\r\n", i) },
	}
	onEach(t, func(t *testing.T, b backend) {
		count := count
		if b.url == embedded.url {
			count /= 100 // it walks through all keys at every command
		}
		p := binary.Start(t, "--backend", b.url)
		for name, line := range inputs {
			var in bytes.Buffer
			for i := range count {
				in.WriteString(line(i))
			}
			cmd := redisCLI(t, p.Addr, "--pipe")
			cmd.Stdin = &in
			if got, want := output(t, cmd), fmt.Sprintf("errors: 0, replies: %d\n", count); !strings.HasSuffix(got, want) {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
		if got, want := clustertest.Dial(t, p.Addr).Do("DBSIZE"), fmt.Sprintf(":%d\r\n", 2*count); got != want {
			t.Errorf("DBSIZE: got %q, want %q", got, want)
		}
	})
}

// redis-cli --scan follows the cursor, wherever it leads.
func TestCLIScan(t *testing.T) {
	t.Parallel()
	p := binary.Start(t, "--backend", standalone(t).url)
	conn := clustertest.Dial(t, p.Addr)
	var want []string
	for i := range 500 {
		key := fmt.Sprintf("key:%03d", i)
		want = append(want, key)
		conn.Do("SET", key, "v")
		conn.Do("SET", fmt.Sprintf("other:%03d", i), "v")
	}
	got := strings.Fields(output(t, redisCLI(t, p.Addr, "--scan", "--pattern", "key:*")))
	slices.Sort(got) // SCAN may show a key twice, but not while nothing changes
	if !slices.Equal(got, want) {
		t.Errorf("got %d keys, want %d: %.200q", len(got), len(want), got)
	}
}

// A command that fails makes redis-cli -e fail, and one that does not reach anybody too.
func TestCLIExitCode(t *testing.T) {
	t.Parallel()
	p := binary.Start(t, "--backend", standalone(t).url)
	var exit *exec.ExitError
	if err := redisCLI(t, p.Addr, "-e", "INCR").Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("got %v, want exit code 1", err)
	}
}

// redis-cli's modes (TL-03) look at every shard, and see no cluster.
func TestCLIModes(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, b backend) {
		p := binary.Start(t, "--backend", b.url)
		conn := clustertest.Dial(t, p.Addr)
		for i := range 60 {
			conn.Do("SET", fmt.Sprint("s", i), "v")
			conn.Do("RPUSH", fmt.Sprint("l", i), "a", "b")
		}
		for _, mode := range []struct {
			args []string
			says []string
		}{
			{[]string{"--bigkeys"}, []string{"Sampled 120 keys in the keyspace", "60 strings with 60 bytes", "60 lists with 120 items"}},
			{[]string{"--memkeys"}, []string{"Sampled 120 keys in the keyspace"}},
			{[]string{"-i", "0.01", "-r", "3", "--no-raw", "DBSIZE"}, []string{"(integer) 120"}},
		} {
			got := output(t, redisCLI(t, p.Addr, mode.args...))
			for _, want := range append(mode.says, "") {
				if !strings.Contains(got, want) || strings.Contains(got, "MOVED") || strings.Contains(got, "ERR") {
					t.Errorf("redis-cli %q: got %s, want it to say %q", mode.args, got, want)
				}
			}
		}
		cmd := redisCLI(t, p.Addr, "-x", "SET", "x")
		cmd.Stdin = strings.NewReader("from stdin")
		if got := output(t, cmd); got != "OK\n" || conn.Do("GET", "x") != "$10\r\nfrom stdin\r\n" {
			t.Errorf("redis-cli -x: got %q", got)
		}
	}
	t.Run("standalone", func(t *testing.T) { test(t, standalone(t)) })
	t.Run("cluster", func(t *testing.T) { test(t, clustered(t)) })
}

// A benchmark that is interrupted half-way (TL-02) leaves nothing behind, and the next one
// sees no error.
func TestInterruptedBenchmark(t *testing.T) {
	t.Parallel()
	p := binary.Start(t, "--backend", standalone(t).url)
	for range 5 {
		cmd := exec.Command("redis-benchmark", "-p", port(p.Addr), "-q", "-t", "set,get,mset", "-n", "100000000", "-P", "100", "-c", "20", "-r", "100000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p.Await("the benchmark to run", func() error {
			if n := p.Metric("cosky_proxy_clients"); n < 20 {
				return fmt.Errorf("%v clients", n)
			}
			return nil
		})
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
	}
	p.Await("all clients to have gone", func() error {
		if n := p.Metric("cosky_proxy_clients"); n > 1 { // the one that saw the proxy start
			return fmt.Errorf("%v clients", n)
		}
		return nil
	})
	benchmark(t, p.Addr, "-P", "16", "-n", "2000")
}
