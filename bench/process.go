package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	startTimeout = 15 * time.Second
	stopTimeout  = 3 * time.Second
	pollInterval = 20 * time.Millisecond
	// startTries is how often a child is started, each time on other ports: those that were free may
	// not be any more.
	startTries = 3
)

var errExited = errors.New("exited")

// process is a child of this program that listens on a loopback port.
type process struct {
	name string
	port int

	cmd     *exec.Cmd
	logPath string
	exited  chan struct{} // closed once Wait has returned
}

// startProcess runs path with args and waits until the child listens on port.
// Its output goes to dir/name.log, whose tail explains a failed start.
func startProcess(ctx context.Context, dir, name string, port int, path string, args ...string) (*process, error) {
	logPath := filepath.Join(dir, name+".log")
	logFile, err := os.Create(logPath)
	if err != nil {
		return nil, fmt.Errorf("cannot create log of %q: %w", name, err)
	}
	defer logFile.Close()

	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	cmd.Stdout = logFile
	cmd.Stderr = logFile
	cmd.SysProcAttr = dieWithParent()
	p := &process{name: name, port: port, cmd: cmd, logPath: logPath, exited: make(chan struct{})}
	if err := p.run(); err != nil {
		return nil, fmt.Errorf("cannot start %q: %w", name, err)
	}
	if err := p.waitListening(ctx); err != nil {
		p.stop()
		return nil, fmt.Errorf("cannot start %q: %w: %s", name, err, p.logTail())
	}
	return p, nil
}

// retryStart calls start again when the child has exited at once.
func retryStart[T any](start func() (T, error)) (T, error) {
	for try := 1; ; try++ {
		started, err := start()
		if !errors.Is(err, errExited) || try == startTries {
			return started, err
		}
	}
}

// run starts the child from a thread that lasts as long as it does: the kernel kills the child
// when the thread that has started it ends.
func (p *process) run() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			// The exit status says nothing the log does not say better.
			_ = p.cmd.Wait()
			close(p.exited)
		}
	}()
	return <-started
}

func (p *process) waitListening(ctx context.Context) error {
	return poll(ctx, startTimeout, func() error {
		select {
		case <-p.exited:
			return permanent{errExited}
		default:
			return p.listens()
		}
	})
}

// listens returns an error unless it is the child that listens on the port: somebody else may
// have taken it, who is neither to be measured nor written to.
func (p *process) listens() error {
	text, err := os.ReadFile(p.proc("net/tcp"))
	if err != nil {
		return fmt.Errorf("cannot look for the port of %q: %w", p.name, err)
	}
	inodes := listeners(string(text), p.port)
	files, err := filepath.Glob(p.proc("fd/*"))
	if err != nil {
		return fmt.Errorf("cannot look for the port of %q: %w", p.name, err)
	}
	for _, file := range files {
		// One that is closed meanwhile is not it.
		if target, err := os.Readlink(file); err == nil && slices.Contains(inodes, target) {
			return nil
		}
	}
	return fmt.Errorf("does not listen on port %d", p.port)
}

// listeners finds the sockets that listen on a port in a /proc/PID/net/tcp file, named as
// in /proc/PID/fd.
func listeners(text string, port int) []string {
	const local, state, inode, listening = 1, 3, 9, "0A"
	var found []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) > inode && fields[state] == listening && strings.HasSuffix(fields[local], fmt.Sprintf(":%04X", port)) {
			found = append(found, "socket:["+fields[inode]+"]")
		}
	}
	return found
}

// stop ends the child, politely at first. It may be called more than once.
func (p *process) stop() {
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Kill} {
		// An error means the child is gone already, which exited tells.
		_ = p.cmd.Process.Signal(sig)
		select {
		case <-p.exited:
			return
		case <-time.After(stopTimeout):
		}
	}
}

func (p *process) addr() string { return loopback(p.port) }

func (p *process) logTail() string {
	text, err := os.ReadFile(p.logPath)
	if err != nil {
		return err.Error()
	}
	const limit = 400
	return strings.TrimSpace(string(text[max(0, len(text)-limit):]))
}

// cpu returns the processor time the child has used so far, all threads added.
// schedstat counts nanoseconds, whereas /proc/PID/stat counts ticks of 10 ms;
// threads that have ended are missing from it, but no front end here ends any.
func (p *process) cpu() (time.Duration, error) {
	pattern := p.proc("task/*/schedstat")
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("cannot read CPU time of %q: no %s", p.name, pattern)
	}
	var total time.Duration
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("cannot read CPU time of %q: %w", p.name, err)
		}
		onCPU, err := parseSchedstat(string(text))
		if err != nil {
			return 0, fmt.Errorf("cannot read CPU time of %q: %w", p.name, err)
		}
		total += onCPU
	}
	return total, nil
}

// parseSchedstat reads the first field of a schedstat file: nanoseconds on a CPU.
func parseSchedstat(text string) (time.Duration, error) {
	first, _, _ := strings.Cut(strings.TrimSpace(text), " ")
	ns, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("cannot parse schedstat %q: %w", text, err)
	}
	return time.Duration(ns), nil
}

// forgetPeak has peak count from now on. A kernel that cannot do that leaves the peak since
// the child's start.
func (p *process) forgetPeak() error {
	const resetPeak = "5" // see proc_pid_clear_refs(5)
	err := os.WriteFile(p.proc("clear_refs"), []byte(resetPeak), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot reset the memory peak of %q: %w", p.name, err)
	}
	return nil
}

// peak returns the most resident memory that the child had since forgetPeak, in bytes.
func (p *process) peak() (int64, error) { return p.memory("VmHWM:") }

// rss returns the child's resident memory in bytes.
func (p *process) rss() (int64, error) { return p.memory("VmRSS:") }

func (p *process) memory(figure string) (int64, error) {
	text, err := os.ReadFile(p.proc("status"))
	if err != nil {
		return 0, fmt.Errorf("cannot read memory of %q: %w", p.name, err)
	}
	return parseMemory(string(text), figure)
}

func (p *process) proc(file string) string {
	return fmt.Sprintf("/proc/%d/%s", p.cmd.Process.Pid, file)
}

// parseMemory finds a line of a /proc/PID/status file, such as VmRSS.
func parseMemory(text, figure string) (int64, error) {
	for line := range strings.Lines(text) {
		value, found := strings.CutPrefix(line, figure)
		if !found {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("cannot parse %q: %w", strings.TrimSpace(line), err)
		}
		return kib << 10, nil
	}
	return 0, fmt.Errorf("cannot find %s in process status", figure)
}

// raiseFileLimit raises the limit of open files as far as it may be, for this program and, because
// it does so itself, for its children, and returns it.
func raiseFileLimit() (int, error) {
	var limit syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
	if err == nil {
		limit.Cur = limit.Max
		err = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
	}
	if err != nil {
		return 0, fmt.Errorf("cannot raise the limit of open files: %w", err)
	}
	return int(min(limit.Cur, math.MaxInt32)), nil
}

// freePorts returns n different loopback ports that were free a moment ago.
func freePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range n {
		// All listeners stay open until the end, so that no port comes twice.
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("cannot find a free port: %w", err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// permanent marks an error that polling again cannot cure.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// poll calls try until it succeeds, fails for good, or the time is up.
func poll(ctx context.Context, timeout time.Duration, try func() error) error {
	deadline := time.Now().Add(timeout)
	for {
		err := try()
		if err == nil || errors.As(err, new(permanent)) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollInterval):
		}
	}
}
