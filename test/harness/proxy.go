package harness

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
)

// Proxy is a running cosky-proxy. Methods belong on the test's goroutine, except Log.
type Proxy struct {
	// static once Start has returned
	Addr      string // for clients, host:port
	AdminAddr string // for HTTP, host:port
	Pid       int
	t         testing.TB

	stdout, stderr output
	done           chan struct{} // closed when the process was reaped
	code           int           // exit code, -1 after a signal; set before done is closed
}

// output collects what a process writes while others read it.
type output struct {
	// guarded by mu
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Start runs the binary on ports that the kernel chooses and waits until it serves.
// args say the rest, at least --backend.
func (b Binary) Start(t testing.TB, args ...string) *Proxy {
	t.Helper()
	p := b.StartEarly(t, args...)
	if got := clustertest.Dial(t, p.Addr).Do("PING"); got != "+PONG\r\n" {
		t.Fatalf("PING: got %q", got)
	}
	return p
}

// StartEarly is Start for a proxy whose backend is not there yet: it waits until it listens.
func (b Binary) StartEarly(t testing.TB, args ...string) *Proxy {
	t.Helper()
	p := &Proxy{t: t, done: make(chan struct{})}
	args = append([]string{"--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, args...)
	if err := p.start(string(b), args); err != nil {
		t.Fatalf("cannot start cosky-proxy: %v", err)
	}
	t.Cleanup(p.stop)
	p.awaitBanner()
	return p
}

// start forks on a thread that lives as long as the child: the kernel sends the
// parent-death signal when the forking thread ends.
func (p *Proxy) start(path string, args []string) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd := exec.Command(path, args...)
		cmd.Stdout, cmd.Stderr = &p.stdout, &p.stderr
		cmd.SysProcAttr = dieWithParent()
		cmd.WaitDelay = time.Second // for an embedded backend that outlives a killed proxy for a moment
		err := cmd.Start()
		if err == nil {
			p.Pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			cmd.Wait()
			p.code = cmd.ProcessState.ExitCode()
			close(p.done)
		}
	}()
	return <-started
}

// awaitBanner waits until the proxy says where it listens.
func (p *Proxy) awaitBanner() {
	p.t.Helper()
	clients := regexp.MustCompile(`(?m)^ +clients +(\S+:\d+)`)
	admin := regexp.MustCompile(`(?m)^ +admin +http://(\S+:\d+)/`)
	p.Await("the banner", func() error {
		text := p.stdout.String()
		c, a := clients.FindStringSubmatch(text), admin.FindStringSubmatch(text)
		if c == nil || a == nil {
			return errors.New("no addresses yet")
		}
		p.Addr, p.AdminAddr = c[1], a[1]
		return nil
	})
}

// Await waits for a condition, and fails the test at once when the proxy is gone.
func (p *Proxy) Await(what string, ok func() error) {
	p.t.Helper()
	clustertest.Await(p.t, what, func() error {
		err := ok()
		if err != nil && p.exited() {
			p.t.Fatalf("the proxy ended with code %d while the test waited for %s: %v\n%s", p.code, what, err, p.Log())
		}
		return err
	})
}

func (p *Proxy) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop ends the proxy gracefully, or forcibly when that takes too long.
func (p *Proxy) stop() {
	if p.exited() {
		return
	}
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		if p.code != 0 {
			p.t.Errorf("the proxy ended with code %d\n%s", p.code, p.Log())
		}
	case <-time.After(Deadline):
		syscall.Kill(p.Pid, syscall.SIGKILL)
		<-p.done
		p.t.Errorf("the proxy did not stop within %v\n%s", Deadline, p.Log())
	}
	if log := p.Log(); strings.Contains(log, "panic") {
		p.t.Errorf("the proxy logged a panic\n%s", log)
	} else if p.t.Failed() {
		p.t.Logf("the proxy's log:\n%s", log)
	}
}

// Log is what the proxy wrote to standard error so far.
func (p *Proxy) Log() string { return p.stderr.String() }

// Signal sends a signal to the proxy, which must still be running.
func (p *Proxy) Signal(sig syscall.Signal) {
	p.t.Helper()
	if p.exited() {
		p.t.Fatalf("the proxy is gone, with code %d\n%s", p.code, p.Log())
	}
	if err := syscall.Kill(p.Pid, sig); err != nil {
		p.t.Fatalf("cannot send %v: %v", sig, err)
	}
}

// Exit waits until the proxy is gone and returns its exit code, -1 if a signal killed it.
func (p *Proxy) Exit() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(Deadline):
		p.t.Fatalf("the proxy did not end within %v\n%s", Deadline, p.Log())
	}
	return p.code
}

// PeakRSS is the most memory the proxy ever had resident (VmHWM), in bytes.
func (p *Proxy) PeakRSS() int64 {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid))
	if err != nil {
		p.t.Fatalf("cannot read the proxy's memory use: %v", err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				p.t.Fatalf("cannot read %q: %v", line, err)
			}
			return kb << 10
		}
	}
	p.t.Fatalf("no VmHWM in /proc/%d/status", p.Pid)
	return 0
}

// Get asks for an admin page.
func (p *Proxy) Get(path string) (status int, body string) {
	p.t.Helper()
	client := http.Client{Timeout: Deadline}
	r, err := client.Get("http://" + p.AdminAddr + path)
	if err != nil {
		p.t.Fatalf("cannot get %s: %v", path, err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		p.t.Fatalf("cannot read %s: %v", path, err)
	}
	return r.StatusCode, string(text)
}

// Metric is a figure from /metrics, 0 if it is not there. series is its name with its
// labels, as the page has it.
func (p *Proxy) Metric(series string) float64 {
	p.t.Helper()
	_, page := p.Get("/metrics")
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				p.t.Fatalf("cannot read %q: %v", line, err)
			}
			return v
		}
	}
	return 0
}
