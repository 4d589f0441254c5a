package clustertest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// Deadline bounds every wait of this package. It is generous because test
// machines are shared; nothing ever takes this long when all is well.
const Deadline = 30 * time.Second

// busOffset is the distance from a node's port to its cluster bus port.
const busOffset = 10000

// FreePort returns a loopback port P that is free, with P+10000 (the cluster bus) free
// too. Both lie below the range from which the kernel takes the ports of outgoing
// connections, and P is reserved among the test processes of this machine until this
// one ends, so nobody who plays by these rules can take it.
func FreePort(t TB) int {
	t.Helper()
	for range 200 {
		port := 10001 + rand.IntN(busOffset)
		if reserve(t, port) && portFree(port) && portFree(port+busOffset) {
			return port
		}
	}
	t.Fatalf("cannot find a free port")
	return 0
}

// reserve takes the lock that stands for a port. Nothing gives it back: the kernel does
// when the process ends.
func reserve(t TB, port int) bool {
	t.Helper()
	dir := filepath.Join(os.TempDir(), "cosky-proxy-test-ports")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatalf("cannot make a directory for port locks: %v", err)
	}
	fd, err := syscall.Open(filepath.Join(dir, strconv.Itoa(port)), syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o666)
	if err != nil {
		t.Fatalf("cannot open the lock of port %d: %v", port, err)
	}
	if syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		syscall.Close(fd)
		return false
	}
	return true
}

func portFree(port int) bool {
	ln, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return false
	}
	ln.Close()
	return true
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// serverPath finds the redis-server binary.
func serverPath(t TB) string {
	t.Helper()
	if path := os.Getenv("COSKY_TEST_REDIS_SERVER"); path != "" {
		return path
	}
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("redis-server is not in PATH: install Redis (7.0 or newer), see `make test`")
	}
	return path
}

// process is one child that dies with the test binary.
type process struct {
	pid  int
	done chan struct{} // closed when the child was reaped
}

// startProcess runs the child from a goroutine that keeps its thread until the
// child is gone: on Linux the parent-death signal is sent when the *thread*
// that forked ends, and threads of locked goroutines do end.
func startProcess(path string, args ...string) (*process, error) {
	p := &process{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd := exec.Command(path, args...)
		cmd.SysProcAttr = dieWithParent()
		err := cmd.Start()
		if err == nil {
			p.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// signal does nothing once the child was reaped, when its pid may be another's.
func (p *process) signal(sig syscall.Signal) error {
	if p.exited() {
		return os.ErrProcessDone
	}
	return syscall.Kill(p.pid, sig)
}

// kill ends the child at once, frozen or not, and waits until it is gone.
func (p *process) kill() {
	if p.signal(syscall.SIGKILL) == nil {
		<-p.done
	}
}

// frozen reports whether the kernel shows the child as stopped, and known=false
// where there is no /proc to ask.
func (p *process) frozen() (frozen, known bool) {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.pid), "stat"))
	if err != nil {
		return false, false
	}
	// "pid (name) STATE ...": the name may hold anything, so look behind the last ')'.
	rest := stat[bytes.LastIndexByte(stat, ')')+1:]
	return len(rest) > 1 && (rest[1] == 'T' || rest[1] == 't'), true
}

// Await polls until ok returns nil, or fails the test with its last error.
func Await(t TB, what string, ok func() error) {
	t.Helper()
	if err := await(Deadline, ok); err != nil {
		t.Fatalf("waited %v for %s: %v", Deadline, what, err)
	}
}

func await(limit time.Duration, ok func() error) error {
	deadline := time.Now().Add(limit)
	for pause := 2 * time.Millisecond; ; pause = min(pause*3/2, 50*time.Millisecond) {
		err := ok()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(pause)
	}
}

// logTail returns the end of a server's log for an error message.
func logTail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	if len(b) > 2000 {
		b = b[len(b)-2000:]
	}
	return string(b)
}
