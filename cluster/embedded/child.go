package embedded

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// socketVariable marks a child process and names the socket it has to serve. It
// does not begin with COSKY_PROXY_, where every name is an option.
const socketVariable = "COSKY_EMBEDDED_SOCKET"

// readyLine is what the child prints once it accepts connections.
const readyLine = "ready\n"

// deathSignal reaches the child when its parent died. It is none that others send.
const deathSignal = syscall.SIGUSR2

// Main returns at once in an ordinary process. In a child started by [Start] it
// is the program: it serves until the parent goes and never returns.
func Main() {
	socket := os.Getenv(socketVariable)
	if socket == "" {
		return
	}
	if err := serve(socket, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// ageEvery is the precision of TTLs.
const ageEvery = 20 * time.Millisecond

// age makes TTLs run in real time. miniredis can do so by itself, but then walks
// all keys on every command.
func age(server *miniredis.Miniredis) {
	last := time.Now()
	for now := range time.Tick(ageEvery) {
		server.FastForward(now.Sub(last))
		last = now
	}
}

// serve runs the server on the socket until the parent goes, which shows as the end
// of lifeline.
func serve(socket string, lifeline io.Reader, ready io.Writer) error {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	orphaned := make(chan os.Signal, 1)
	signal.Notify(orphaned, deathSignal)
	offerToOOMKiller()

	listener, err := listen(socket)
	if err != nil {
		return fmt.Errorf("cannot listen on %q: %w", socket, err)
	}
	server := miniredis.NewMiniRedis()
	go age(server)
	// Dial starts the server without a TCP listener of its own.
	first, err := server.Dial()
	if err != nil {
		return fmt.Errorf("cannot start the embedded server: %w", err)
	}
	first.Close()
	go accept(listener, server)

	if _, err := io.WriteString(ready, readyLine); err != nil {
		return fmt.Errorf("cannot report readiness: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		io.Copy(io.Discard, lifeline) // an error is an end as well
		close(ended)
	}()
	select {
	case <-ended:
	case <-orphaned:
	}
	// A parent that was killed cannot clean up. One that lives removes what is left.
	os.Remove(socket)
	os.Remove(filepath.Dir(socket))
	return nil
}

// listen takes over the socket of a predecessor that died.
func listen(socket string) (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return net.Listen("unix", socket)
}

// accept feeds the server until the process ends; out of descriptors it dies, and a
// new child starts with fresh ones.
func accept(l net.Listener, server *miniredis.Miniredis) {
	for {
		c, err := l.Accept()
		if err != nil {
			fmt.Fprintf(os.Stderr, "cannot accept: %v\n", err)
			os.Exit(1)
		}
		server.Server().ServeConn(c)
	}
}

// offerToOOMKiller makes this process, not the proxy, the one that Linux ends when
// a command asks for more memory than there is. Elsewhere the file does not exist.
func offerToOOMKiller() {
	os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
}
