// Package mono is the proxy's only clock for deadlines: monotonic nanoseconds
// since the process started. It never jumps when the wall clock is set, and
// being a plain int64 it can live in atomics and be compared without allocation.
package mono

import "time"

var start = time.Now()

// Now returns the nanoseconds since the process started. It costs one vDSO
// clock read; event loops read it once per batch of input, not once per command.
func Now() int64 { return int64(time.Since(start)) }
