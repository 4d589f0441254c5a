package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Deadline bounds every wait of this package.
const Deadline = 30 * time.Second

// Version is what a built binary calls itself.
const Version = "v0-under-test"

// Binary is the path of a built cosky-proxy.
type Binary string

// Build compiles cosky-proxy into dir. It is not instrumented, even when the test is:
// its memory and speed are looked at.
func Build(dir string) (Binary, error) {
	path := filepath.Join(dir, "cosky-proxy")
	cmd := exec.Command("go", "build", "-race=false", "-cover=false", "-trimpath", "-buildvcs=false",
		"-ldflags", "-X main.version="+Version, "-o", path, "cosky-proxy/cmd/cosky-proxy")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build cosky-proxy: %w\n%s", err, out)
	}
	return Binary(path), nil
}

// Run runs the binary until it ends by itself, which it must do before Deadline.
func (b Binary) Run(t testing.TB, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Deadline)
	defer cancel()
	var out, log bytes.Buffer
	cmd := exec.CommandContext(ctx, string(b), args...)
	cmd.Env = append(os.Environ(), environ...)
	cmd.Stdout, cmd.Stderr = &out, &log
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("cosky-proxy %q did not end by itself: %v\n%s%s", args, err, &out, &log)
	}
	return cmd.ProcessState.ExitCode(), out.String(), log.String()
}
