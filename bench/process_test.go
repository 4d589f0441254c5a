package main

import (
	"context"
	"errors"
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
