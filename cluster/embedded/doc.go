// Package embedded is a Redis-like server for trying the proxy out: miniredis, run
// as a child process of the proxy's own binary. It is for demonstrations only. It
// knows most but not all commands, keeps everything in memory, and loses it all
// when the child dies.
//
// Why a child: some inputs end a process that miniredis runs in (*0, huge bulk
// lengths, EVAL that returns a function), others freeze it (an endless script).
// A child can die of them; the proxy goes on, and its supervisor starts the next one
// at the same address.
//
//	proxy process                                child process
//	Start ── executes itself with socketVariable ──► Main ── miniredis
//	supervise ── stdin pipe: EOF means "go" ───────► exits, removes the socket
//	          ◄── stdout: "ready" ────────────────
//	          ── PING on the socket, kills the frozen ─►
//
// The child listens on a Unix socket in a directory that only its user may enter.
// It goes when its parent does, however that ends: the stdin pipe closes and, on
// Linux, a death signal arrives. It ignores the signals that a terminal or a service
// manager sends to all processes at once, so that it outlives the proxy's drain.
//
// Every program that calls [Start] (test binaries too) must call [Main] first
// thing, since it may find itself to be the child.
package embedded
