// Package netloop is the proxy's event loop: sockets in, callbacks out. It
// knows no Redis protocol.
//
// # The picture
//
// A [Loop] is one goroutine locked to one thread. Everything that belongs to
// it (its connections, their buffers, its timers) is touched by that goroutine
// alone, so the request path needs no lock. A [Conn] lives on one loop for
// life. Only [Loop.Post] and [Loop.Stop] may be called from elsewhere.
//
// One turn of a loop is, in this order:
//
//	wait        epoll_wait; for each ready socket one recv and one OnData, a few when much has arrived;
//	            for a listener of [Listener.ServeOn] up to 64 clients
//	inbox       functions from Post, in the order they were posted
//	timers      AfterFunc
//	redeliver   OnData again for connections resumed or redelivered
//	flush       one send per connection that was marked Dirty; output that more is about to follow may
//	            wait for it up to three turns while there is something to read, see [Conn.Expect]
//	closes      OnClose for connections that ended during this turn
//
// So the replies to a whole batch of requests leave in one system call per
// connection, and a handler may close any connection, its own included, at any
// moment: the callback that tells its owner comes at the end of the turn.
//
// # Who owns which bytes
//
// Input is read into one buffer shared by the whole loop; the slice given to
// OnData dies when OnData returns. Only what a handler leaves unconsumed is
// copied into a buffer of the connection's own, and given back when it has been
// consumed. Output collects in [Conn.Out], whose buffer comes from a free list
// and goes back as soon as the kernel has everything. An idle connection holds
// no buffer at all.
//
// A connection that is closed after its last reply may leave a socket behind that lingers
// for a moment (linger.go): closing while the peer sends would destroy that reply.
//
// Nothing here limits how much a handler leaves unconsumed or appends to Out:
// those limits need knowledge of the protocol. The tools for them are
// [Conn.PauseRead], [Conn.Buffered] and [Conn.SetLowWater].
//
// # Two transports
//
// On Linux a plain TCP or Unix socket is watched by epoll directly. Everything
// else (TLS, in-memory pipes, other operating systems) is served by two
// goroutines per connection which exchange chunks with the loop: the reader
// may be at most two chunks ahead, so withholding a chunk is what pausing
// means; the writer holds at most one window of the output. Handlers cannot
// tell the difference, and the tests run every behaviour on both.
//
// # Why system calls are made raw
//
// On sockets that never block, recv, send and the first, polling epoll_wait of
// a turn skip the Go scheduler's entersyscall/exitsyscall bookkeeping. Only when
// nothing is ready does the loop enter a blocking epoll_wait through the
// scheduler, which then lends its processor to other goroutines. Measured with
// 50 clients in ping-pong this saves about 3 % of the CPU time; yielding to the
// scheduler before blocking costs 10 % more, and reading less eagerly (polling
// only after busy turns) gains nothing.
package netloop
