// Package harness builds the cosky-proxy binary and runs it for black-box tests,
// which see what its user sees: addresses, standard output, the log, the exit code
// and the memory that the kernel charges it for.
//
//	binary, err := harness.Build(dir)                            // once, in TestMain
//	p := binary.Start(t, "--backend", "redis://127.0.0.1:7001")  // serves when this returns
//	conn := clustertest.Dial(t, p.Addr)
//	p.Signal(syscall.SIGTERM)
//	code := p.Exit()
//
// A proxy that still runs when its test ends is stopped gracefully, and the test fails
// unless that works: whatever a test has done to the proxy, it must still be able to go.
package harness
