package embedded

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// parentVariable makes the test binary a proxy-like parent that only starts a backend.
const parentVariable = "EMBEDDED_TEST_PARENT"

func TestMain(m *testing.M) {
	Main()
	if os.Getenv(parentVariable) != "" {
		b, err := Start(context.Background(), slog.New(slog.DiscardHandler))
		fmt.Println(b.Addr(), err)
		select {}
	}
	os.Exit(m.Run())
}

// logBuffer is a log that a test can read while the supervisor writes it.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func startBackend(t *testing.T, patience time.Duration) (*Backend, *logBuffer) {
	t.Helper()
	log := &logBuffer{}
	b, err := start(t.Context(), slog.New(slog.NewTextHandler(log, nil)), patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Close()
		if t.Failed() {
			t.Log(log)
		}
	})
	return b, log
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// do sends one command and returns the first line of its reply.
func do(b *Backend, args ...string) (string, error) {
	c, err := net.Dial("unix", strings.TrimPrefix(b.Addr(), "unix:"))
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	var request strings.Builder
	fmt.Fprintf(&request, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&request, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := io.WriteString(c, request.String()); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}

func mustDo(t *testing.T, b *Backend, want string, args ...string) {
	t.Helper()
	if got, err := do(b, args...); err != nil || got != want {
		t.Fatalf("%q: %q, %v, want %q", args, got, err, want)
	}
}

func TestServesInRealTime(t *testing.T) {
	b, _ := startBackend(t, pingPatience)
	mustDo(t, b, "+OK", "SET", "k", "v", "PX", "50")
	waitFor(t, "the key to expire", func() bool {
		got, err := do(b, "EXISTS", "k")
		return err == nil && got == ":0"
	})
	mustDo(t, b, ":3", "EVAL", "return redis.call('RPUSH', KEYS[1], 'a', 'b', 'c')", "1", "list")
}

func TestSocketIsPrivate(t *testing.T) {
	b, _ := startBackend(t, pingPatience)
	info, err := os.Stat(filepath.Dir(b.socket))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o700 {
		t.Errorf("the socket's directory has mode %v", info.Mode())
	}
}

func TestComesBackAfterKill(t *testing.T) {
	b, log := startBackend(t, pingPatience)
	addr, pid := b.Addr(), b.Pid()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a new child", func() bool { p := b.Pid(); return p != 0 && p != pid })
	mustDo(t, b, "+PONG", "PING")
	if b.Addr() != addr {
		t.Errorf("address changed from %s to %s", addr, b.Addr())
	}
	waitFor(t, "the log", func() bool { return strings.Contains(log.String(), "restarted") })
	for _, once := range []string{"its data is lost", "signal: killed", "embedded backend restarted"} {
		if n := strings.Count(log.String(), once); n != 1 {
			t.Errorf("%q is logged %d times", once, n)
		}
	}
}

func TestSurvivesInputThatKillsMiniredis(t *testing.T) {
	b, log := startBackend(t, pingPatience)
	pid := b.Pid()
	c, err := net.Dial("unix", b.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "*0\r\n"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a new child", func() bool { p := b.Pid(); return p != 0 && p != pid })
	mustDo(t, b, "+PONG", "PING")
	if !strings.Contains(log.String(), "panic: runtime error") {
		t.Errorf("the log does not say why: %s", log)
	}
}

func TestFrozenChildIsReplaced(t *testing.T) {
	b, log := startBackend(t, 300*time.Millisecond)
	pid := b.Pid()
	go do(b, "EVAL", "while true do end", "0")
	waitFor(t, "a new child", func() bool { p := b.Pid(); return p != 0 && p != pid })
	if !strings.Contains(log.String(), "did not answer PING") {
		t.Errorf("the log does not say why: %s", log)
	}
}

func TestIgnoresSignalsMeantForTheProxy(t *testing.T) {
	b, _ := startBackend(t, pingPatience)
	pid := b.Pid()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if err := syscall.Kill(pid, s); err != nil {
			t.Fatal(err)
		}
	}
	mustDo(t, b, "+PONG", "PING")
	if b.Pid() != pid {
		t.Error("the child was replaced")
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	b, log := startBackend(t, pingPatience)
	for range 2 {
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(b.dir); !os.IsNotExist(err) {
		t.Errorf("the socket's directory is still there: %v", err)
	}
	if _, err := do(b, "PING"); err == nil {
		t.Error("the server still answers")
	}
	if strings.Contains(log.String(), "died") {
		t.Errorf("an intended end was logged as a death: %s", log)
	}
}

func TestChildGoesWithItsParent(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), parentVariable+"=1")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	addr, failure, _ := strings.Cut(strings.TrimSpace(line), " ")
	if err != nil || failure != "<nil>" {
		t.Fatalf("parent said %q, %v", line, err)
	}
	socket := strings.TrimPrefix(addr, "unix:")
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	parent.Process.Kill()
	parent.Wait()

	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Fatalf("the child did not end: %v", err)
	}
	waitFor(t, "the socket's directory to be gone", func() bool {
		_, err := os.Stat(filepath.Dir(socket))
		return os.IsNotExist(err)
	})
}

func TestRefusesToStartInsideAChild(t *testing.T) {
	t.Setenv(socketVariable, "/nonexistent")
	if _, err := Start(t.Context(), slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "embedded.Main") {
		t.Errorf("got %v", err)
	}
}

func TestServeReportsABusySocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "socket")
	if err := os.MkdirAll(filepath.Join(dir, "occupied"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := listen(dir); err == nil {
		t.Error("listens where a directory is")
	}
	if _, err := os.Stat(filepath.Join(dir, "occupied")); err != nil {
		t.Errorf("it removed what is not its own: %v", err)
	}
}

func TestBackoff(t *testing.T) {
	for failures, want := range map[int]time.Duration{
		0: 50 * time.Millisecond, 1: 100 * time.Millisecond, 4: 800 * time.Millisecond, 6: 2 * time.Second, 1000: 2 * time.Second,
	} {
		if got := backoff(failures); got != want {
			t.Errorf("backoff(%d) = %s, want %s", failures, got, want)
		}
	}
}

func TestFirstLine(t *testing.T) {
	for want, writes := range map[string][]string{
		"":                       {},
		"panic: x":               {"pan", "ic: x\ngoroutine 1\n", "more\n"},
		"y":                      {"\n", "y\n", "z\n"},
		strings.Repeat("a", 200): {strings.Repeat("a", 150), strings.Repeat("a", 150), "b"},
	} {
		var f firstLine
		for _, w := range writes {
			if n, err := f.Write([]byte(w)); n != len(w) || err != nil {
				t.Errorf("Write: %d, %v", n, err)
			}
		}
		if string(f.line) != want {
			t.Errorf("%q: kept %q", writes, f.line)
		}
	}
}
