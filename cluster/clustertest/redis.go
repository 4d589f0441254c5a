package clustertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Redis is one running redis-server (or sentinel). Its methods may be called
// from any goroutine, except those that fail the test, which belong on the
// test's own.
type Redis struct {
	// static
	Addr string // host:port
	Port int
	Dir  string // working directory: nodes.conf, dump.rdb
	Log  string // path of the server's log file
	t    TB
	path string
	args []string

	// guarded by mu
	mu     sync.Mutex
	proc   *process
	client *redis.Client
}

// StartRedis starts a redis-server without persistence and waits until it
// answers. args are further command line arguments, e.g. "--requirepass", "x".
func StartRedis(t TB, args ...string) *Redis {
	t.Helper()
	r := launch(t, args...)
	r.awaitReady()
	return r
}

// launch starts a server on a free port without waiting for it, so that a set of
// servers can boot side by side.
func launch(t TB, args ...string) *Redis {
	t.Helper()
	return launchIn(t, t.TempDir(), func(dir string, port int) []string {
		return append(baseArgs(dir, port), args...)
	})
}

func launchIn(t TB, dir string, argv func(dir string, port int) []string) *Redis {
	t.Helper()
	port := FreePort(t)
	r := &Redis{
		Addr: loopback(port),
		Port: port,
		Dir:  dir,
		Log:  filepath.Join(dir, "redis.log"),
		t:    t,
		path: serverPath(t),
		args: argv(dir, port),
	}
	t.Cleanup(r.Stop)
	r.start()
	return r
}

func baseArgs(dir string, port int) []string {
	return []string{
		"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--protected-mode", "no",
		"--dir", dir, "--logfile", filepath.Join(dir, "redis.log"), "--loglevel", "warning",
		"--save", "", "--appendonly", "no", "--enable-debug-command", "yes",
		"--repl-diskless-sync-delay", "0",
	}
}

func (r *Redis) start() {
	r.t.Helper()
	p, err := startProcess(r.path, r.args...)
	if err != nil {
		r.t.Fatalf("cannot start %q: %v", r.path, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proc = p
}

// awaitReady waits until the process we started (and no other that grabbed the
// port first) answers.
func (r *Redis) awaitReady() {
	r.t.Helper()
	Await(r.t, "redis-server "+r.Addr, func() error {
		if r.process().exited() {
			r.t.Fatalf("redis-server %v exited at start:\n%s", r.args, logTail(r.Log))
		}
		nc, err := net.Dial("tcp", r.Addr) // go-redis would log each refused attempt
		if err != nil {
			return err
		}
		nc.Close()
		info, err := r.Client().Info(context.Background(), "server").Result()
		var reply redis.Error
		switch {
		case errors.As(err, &reply) && !strings.HasPrefix(err.Error(), "LOADING"):
			return nil // it speaks, and wants credentials that only the test knows
		case err != nil:
			return err
		case !strings.Contains(info, fmt.Sprintf("process_id:%d\r\n", r.Pid())):
			r.t.Fatalf("port %d was taken by another server, run the test again", r.Port)
		}
		return nil
	})
}

func (r *Redis) process() *process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proc
}

// Pid is the server's process id; it changes with Restart.
func (r *Redis) Pid() int { return r.process().pid }

// Running reports whether the process is there, frozen or not.
func (r *Redis) Running() bool { return !r.process().exited() }

// Client returns a client of this server, made on first use and replaced by
// Restart. It retries nothing.
func (r *Redis) Client() *redis.Client {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client == nil {
		r.client = redis.NewClient(&redis.Options{
			Addr:                     r.Addr,
			Password:                 r.arg("--requirepass"),
			MaxRetries:               -1,
			DialerRetries:            1,
			DialTimeout:              2 * time.Second,
			DisableIdentity:          true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
	}
	return r.client
}

// arg returns the value of a command line option, "" when it was not given.
func (r *Redis) arg(name string) string {
	i := slices.Index(r.args, name)
	if i < 0 || i+1 >= len(r.args) {
		return ""
	}
	return r.args[i+1]
}

// Do runs a command and returns its reply, nil for a null; an error fails the test.
func (r *Redis) Do(args ...any) any {
	r.t.Helper()
	v, err := r.DoErr(args...)
	if err != nil {
		r.t.Fatalf("%s: %v: %v", r.Addr, args, err)
	}
	return v
}

// DoErr is Do for commands that may fail. A null reply is (nil, nil).
func (r *Redis) DoErr(args ...any) (any, error) {
	v, err := r.Client().Do(context.Background(), args...).Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return v, err
}

// Text is Do for commands that answer a string, a number or a null ("").
func (r *Redis) Text(args ...any) string {
	r.t.Helper()
	v := r.Do(args...)
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// InfoField returns one value out of INFO, "" when it is not there or the
// server does not answer.
func (r *Redis) InfoField(section, name string) string {
	info, err := r.Client().Info(context.Background(), section).Result()
	if err != nil {
		return ""
	}
	return infoField(info, name)
}

func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// Stop kills the server with SIGKILL and waits until it is gone.
func (r *Redis) Stop() {
	r.process().kill()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client != nil {
		r.client.Close()
		r.client = nil
	}
}

// Restart kills the server if it runs and starts it again with the same port,
// directory and arguments; its data is gone, its cluster identity is not.
func (r *Redis) Restart() {
	r.t.Helper()
	r.Stop()
	r.start()
	r.awaitReady()
}

// Freeze stops the process with SIGSTOP: its sockets stay open and nothing answers.
func (r *Redis) Freeze() {
	r.t.Helper()
	r.signal(syscall.SIGSTOP)
	Await(r.t, "the freeze of "+r.Addr, func() error {
		if frozen, known := r.process().frozen(); known && !frozen {
			return errors.New("still running")
		}
		return nil
	})
}

// Thaw lets a frozen process go on.
func (r *Redis) Thaw() {
	r.t.Helper()
	r.signal(syscall.SIGCONT)
}

func (r *Redis) signal(sig syscall.Signal) {
	r.t.Helper()
	if err := r.process().signal(sig); err != nil {
		r.t.Fatalf("cannot send %v to %s: %v", sig, r.Addr, err)
	}
}

// Logged returns what the server wrote to its log so far.
func (r *Redis) Logged() string {
	b, _ := os.ReadFile(r.Log)
	return string(b)
}
