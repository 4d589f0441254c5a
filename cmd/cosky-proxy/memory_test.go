//go:build !race

// The race detector multiplies what a process occupies.

package main

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// TestTheByteBudgetIsHonest: with a million entries the process has grown by no more than
// 1.3 times nearcache.max_bytes.
func TestTheByteBudgetIsHonest(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fillVariable+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("cannot fill a cache: %v\n%s", err, out)
	}
	var grown, entries int64
	var size string
	if _, err := fmt.Sscan(string(out), &grown, &size, &entries); err != nil {
		t.Fatalf("cannot read %q: %v", out, err)
	}
	var budget int64
	fmt.Sscanf(size, "%dMB", &budget)
	t.Logf("%d entries, grown by %d MB, the budget is %s", entries, grown>>20, size)
	if entries < mostOfThem {
		t.Errorf("only %d entries are held", entries)
	}
	if most := budget << 20 * 13 / 10; grown > most {
		t.Errorf("the process has grown by %d bytes, want at most %d", grown, most)
	}
}
