package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseSchedstat(t *testing.T) {
	got, err := parseSchedstat("69583 48603 2\n")
	if err != nil || got != 69583*time.Nanosecond {
		t.Errorf("got %v, %v, want 69.583 µs", got, err)
	}
	for _, bad := range []string{"", "x 1 2", "1.5 2 3"} {
		if _, err := parseSchedstat(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestParseMemory(t *testing.T) {
	const status = "Name:\tpredixy\nVmHWM:\t    9999 kB\nVmRSS:\t    4812 kB\nRssAnon:\t 1 kB\n"
	for figure, want := range map[string]int64{"VmHWM:": 9999 << 10, "VmRSS:": 4812 << 10} {
		if got, err := parseMemory(status, figure); err != nil || got != want {
			t.Errorf("%s is %d, %v, want %d", figure, got, err, want)
		}
	}
	for _, bad := range []string{"", "VmRSS:\tmany kB\n"} {
		if _, err := parseMemory(bad, "VmRSS:"); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestFreePortsDiffer(t *testing.T) {
	ports, err := freePorts(20)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, port := range ports {
		if seen[port] {
			t.Fatalf("port %d came twice in %v", port, ports)
		}
		seen[port] = true
	}
}

func TestStartProcessExplainsAnEarlyExit(t *testing.T) {
	ports, err := freePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	_, err = startProcess(context.Background(), t.TempDir(), "broken", ports[0], "/bin/sh", "-c", "echo no such option; exit 3")
	if err == nil || !strings.Contains(err.Error(), "exited") || !strings.Contains(err.Error(), "no such option") {
		t.Errorf("got error %v, want one that says it exited and quotes the log", err)
	}
}

// Whoever took the port before the child could is not taken for the child.
func TestStartProcessKnowsItsChild(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	port := l.Addr().(*net.TCPAddr).Port
	if p, err := startProcess(ctx, t.TempDir(), "mute", port, "/bin/sleep", "60"); err == nil {
		p.stop()
		t.Error("somebody else's listener was taken for the child's")
	}
	itself := &process{name: "test", cmd: &exec.Cmd{Process: &os.Process{Pid: os.Getpid()}}, port: port}
	if err := itself.listens(); err != nil {
		t.Error(err)
	}
}

func TestListeners(t *testing.T) {
	const text = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 123 1 0 100 0 0 10 0
   1: 0100007F:1F90 0100007F:0050 01 00000000:00000000 00:00000000 00000000     0        0 124 1 0 100 0 0 10 0
   2: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 125 1 0 100 0 0 10 0
`
	if got := listeners(text, 8080); !slices.Equal(got, []string{"socket:[123]"}) {
		t.Errorf("got %q, want the one that listens on the port", got)
	}
}

func TestRetryStart(t *testing.T) {
	for _, c := range []struct {
		errors []error
		calls  int
		failed bool
	}{
		{[]error{nil}, 1, false},
		{[]error{fmt.Errorf("cannot start: %w", permanent{errExited}), nil}, 2, false},
		{[]error{errExited, errExited, errExited, nil}, startTries, true},
		{[]error{errors.New("no such file"), nil}, 1, true},
	} {
		calls := 0
		_, err := retryStart(func() (int, error) { calls++; return calls, c.errors[calls-1] })
		if calls != c.calls || (err != nil) != c.failed {
			t.Errorf("%v: %d calls, then %v; want %d", c.errors, calls, err, c.calls)
		}
	}
}

// Not even SIGKILL for the program leaves servers behind.
func TestChildrenDieWithTheProgram(t *testing.T) {
	const variable = "BENCH_TEST_PROGRAM"
	if os.Getenv(variable) != "" {
		p, err := startRedis(t.Context(), t.TempDir(), standalone, 0)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("child", p.cmd.Process.Pid)
		<-p.exited
		return
	}
	program := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	program.Env = append(os.Environ(), variable+"=1", "TMPDIR="+t.TempDir())
	out, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	_, err = fmt.Fscanf(out, "child %d\n", &child)
	if err := errors.Join(err, program.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = program.Wait() // it was killed
	err = poll(t.Context(), 10*time.Second, func() error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return nil
		}
		return fmt.Errorf("redis-server is still there: %s", stat)
	})
	if err != nil {
		t.Error(err)
	}
}

func TestPoll(t *testing.T) {
	calls := 0
	err := poll(context.Background(), time.Minute, func() error {
		if calls++; calls < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil || calls != 3 {
		t.Errorf("got %v after %d calls, want success at the third", err, calls)
	}

	calls = 0
	err = poll(context.Background(), time.Minute, func() error {
		calls++
		return permanent{errors.New("hopeless")}
	})
	if err == nil || calls != 1 {
		t.Errorf("got %v after %d calls, want a permanent error to end the polling at once", err, calls)
	}

	ctx, cancel := context.WithCancel(context.Background())
	err = poll(ctx, time.Minute, func() error { cancel(); return errors.New("not yet") })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
