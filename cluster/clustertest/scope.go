package clustertest

import (
	"fmt"
	"os"
	"sync"
	"testing"
)

// TB is the part of testing.TB that this package uses: a *testing.T, a
// *testing.B, or a Scope outside any test.
type TB interface {
	Helper()
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
	Cleanup(f func())
	TempDir() string
}

var _ TB = testing.TB(nil)

// Scope stands in for a test where there is none, that is, in TestMain. Fatalf
// panics, Close undoes everything that was started on the scope.
type Scope struct {
	// guarded by mu
	mu      sync.Mutex
	cleanup []func()
}

// NewScope returns an empty scope. Close it before os.Exit.
func NewScope() *Scope { return &Scope{} }

// Close runs the clean-up functions, last one first. It may be called again.
func (s *Scope) Close() {
	for {
		s.mu.Lock()
		n := len(s.cleanup)
		if n == 0 {
			s.mu.Unlock()
			return
		}
		f := s.cleanup[n-1]
		s.cleanup = s.cleanup[:n-1]
		s.mu.Unlock()
		f()
	}
}

func (s *Scope) Helper() {}

func (s *Scope) Logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "clustertest: "+format+"\n", args...)
}

func (s *Scope) Fatalf(format string, args ...any) {
	s.Close()
	panic("clustertest: " + fmt.Sprintf(format, args...))
}

func (s *Scope) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanup = append(s.cleanup, f)
}

func (s *Scope) TempDir() string {
	dir, err := os.MkdirTemp("", "clustertest-")
	if err != nil {
		s.Fatalf("cannot make a temporary directory: %v", err)
	}
	s.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
