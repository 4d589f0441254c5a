package netloop

import (
	"os"
	"testing"
)

// openDescriptors counts the descriptors of this process; /dev/fd is there on
// every system the proxy runs on.
func openDescriptors(t *testing.T) int {
	t.Helper()
	dir, err := os.Open("/dev/fd")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}
