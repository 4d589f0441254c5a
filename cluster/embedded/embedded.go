package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	startTimeout = 20 * time.Second // for a child to get ready, on a busy machine
	stopTimeout  = 2 * time.Second  // for a child to go before it is killed
	healthyAfter = 10 * time.Second // a child that lived this long restarts without delay

	pingInterval = 2 * time.Second
	pingPatience = 10 * time.Second // a child that does not answer for so long is frozen
)

// Backend is a running embedded server. Its methods may be called from any goroutine.
type Backend struct {
	// static
	dir      string
	socket   string
	logger   *slog.Logger
	patience time.Duration
	stop     context.CancelFunc
	done     chan struct{} // closed when the supervisor has ended

	// atomic
	pid atomic.Int64 // of the current child; 0 while there is none

	closeOnce sync.Once
	closeErr  error // written in closeOnce
}

// Start runs a server and keeps it running until Close. It returns once the server
// accepts connections; ctx bounds only that wait.
func Start(ctx context.Context, logger *slog.Logger) (*Backend, error) {
	return start(ctx, logger, pingPatience)
}

func start(ctx context.Context, logger *slog.Logger, patience time.Duration) (*Backend, error) {
	if os.Getenv(socketVariable) != "" {
		// Without this a program that forgot Main would start itself for ever.
		return nil, errors.New("cannot start the embedded backend inside an embedded backend: the program does not call embedded.Main")
	}
	dir, err := os.MkdirTemp("", "cosky-proxy-") // mode 0700
	if err != nil {
		return nil, fmt.Errorf("cannot start the embedded backend: %w", err)
	}
	alive, stop := context.WithCancel(context.Background())
	b := &Backend{
		dir:      dir,
		socket:   filepath.Join(dir, "redis.sock"),
		logger:   logger,
		patience: patience,
		stop:     stop,
		done:     make(chan struct{}),
	}
	started := make(chan error, 1)
	go b.supervise(alive, started)
	select {
	case err = <-started:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		b.Close()
		return nil, fmt.Errorf("cannot start the embedded backend: %w", err)
	}
	logger.Debug("embedded backend started, for demonstrations only: data in memory, not all of Redis", "addr", b.Addr(), "pid", b.Pid())
	return b, nil
}

// Addr is where the server listens, as "unix:/path". It stays the same over restarts.
func (b *Backend) Addr() string { return "unix:" + b.socket }

// Pid is the current child's process ID, 0 while there is none.
func (b *Backend) Pid() int { return int(b.pid.Load()) }

// Close ends the server and removes what it left in the file system.
func (b *Backend) Close() error {
	b.closeOnce.Do(func() {
		b.stop()
		<-b.done
		b.closeErr = os.RemoveAll(b.dir)
	})
	return b.closeErr
}

// supervise runs one child after the other. It reports on started how the first one
// came up and gives up if that failed.
func (b *Backend) supervise(alive context.Context, started chan<- error) {
	defer close(b.done)
	// The death signal fires when the *thread* that started the child ends, so this
	// goroutine keeps its thread for as long as there are children.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	for failures := 0; ; {
		begin := time.Now()
		err := b.runChild(alive, func() {
			if started != nil {
				started <- nil
				started = nil
				return
			}
			b.logger.Info("embedded backend restarted", "pid", b.Pid())
		})
		if alive.Err() != nil {
			return
		}
		if started != nil {
			started <- err
			return
		}
		if time.Since(begin) >= healthyAfter {
			failures = 0
		}
		pause := backoff(failures)
		failures++
		b.logger.Warn("embedded backend died, its data is lost", "error", err, "restart_in", pause)
		select {
		case <-time.After(pause):
		case <-alive.Done():
			return
		}
	}
}

// backoff is the pause before the next start after so many failures in a row.
func backoff(failures int) time.Duration {
	const first, longest = 50 * time.Millisecond, 2 * time.Second
	return min(first<<min(failures, 10), longest)
}

// runChild starts a child, calls ready once it accepts connections, and returns why
// it ended. When alive is done it asks the child to go.
func (b *Backend) runChild(alive context.Context, ready func()) error {
	program, err := executable()
	if err != nil {
		return fmt.Errorf("cannot find this program: %w", err)
	}
	report, reportEnd, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("cannot make a pipe: %w", err)
	}
	defer report.Close()

	var complaint firstLine
	child := exec.CommandContext(alive, program)
	child.Args[0] = "cosky-proxy-embedded"
	child.Env = append(os.Environ(), socketVariable+"="+b.socket)
	child.Stdout, child.Stderr = reportEnd, &complaint
	child.SysProcAttr = childAttributes()
	lifeline, err := child.StdinPipe()
	if err == nil {
		child.Cancel, child.WaitDelay = lifeline.Close, stopTimeout
		err = child.Start()
	}
	reportEnd.Close() // the child has its own
	if err != nil {
		return fmt.Errorf("cannot start the child: %w", err)
	}

	if err := awaitReady(report); err != nil {
		child.Process.Kill() // an error means that it is gone already
		return errors.Join(err, ended(child, &complaint))
	}
	b.pid.Store(int64(child.Process.Pid))
	ready()
	watched, unwatch := context.WithCancel(alive)
	frozen := make(chan bool, 1)
	go func() { frozen <- b.watch(watched, child.Process) }()
	err = ended(child, &complaint)
	b.pid.Store(0)
	unwatch()
	if <-frozen {
		return fmt.Errorf("killed because it did not answer PING for %s", b.patience)
	}
	return err
}

// awaitReady reads the child's report that it accepts connections.
func awaitReady(report *os.File) error {
	if err := report.SetReadDeadline(time.Now().Add(startTimeout)); err != nil {
		return fmt.Errorf("cannot wait for the child: %w", err)
	}
	line := make([]byte, len(readyLine))
	if _, err := io.ReadFull(report, line); err != nil {
		return fmt.Errorf("child did not get ready: %w", err)
	}
	if string(line) != readyLine {
		return fmt.Errorf("child said %q instead of %q; does the program call embedded.Main?", line, readyLine)
	}
	return nil
}

// ended waits for the child and says why it ended, in one line.
func ended(child *exec.Cmd, complaint *firstLine) error {
	err := child.Wait()
	if err == nil {
		err = errors.New("exit status 0")
	}
	if complaint.line == nil {
		return err
	}
	return fmt.Errorf("%w: %s", err, complaint.line)
}

// watch kills a child that is frozen, by an endless script for instance, and reports
// whether it did. It returns when ctx is done.
func (b *Backend) watch(ctx context.Context, child *os.Process) bool {
	ticker := time.NewTicker(min(pingInterval, b.patience))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
		if err := ping(ctx, b.socket, b.patience); errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
			child.Kill() // an error means that it is gone already
			return true
		}
	}
}

// ping makes one round trip. Errors other than a timeout mean that the child is
// ending, which its supervisor sees by itself.
func ping(ctx context.Context, socket string, patience time.Duration) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "*1\r\n$4\r\nPING\r\n"); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, len("+PONG\r\n")))
	return err
}

// firstLine keeps the first line written to it: of a crash, the part that says why.
type firstLine struct {
	line     []byte
	complete bool
}

func (f *firstLine) Write(p []byte) (int, error) {
	const most = 200
	if !f.complete {
		text, _, found := bytes.Cut(p, []byte("\n"))
		f.line = append(f.line, text[:min(len(text), most-len(f.line))]...)
		f.complete = found && len(f.line) > 0 || len(f.line) == most
	}
	return len(p), nil
}
