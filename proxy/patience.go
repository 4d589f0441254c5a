package proxy

import (
	"math"
	"strconv"
	"time"

	"cosky-proxy/router/command"
)

// Patience. On a private connection a command may block for as long as it says, and a request may take as long to arrive as its
// client takes to send it. Beyond that upstream.timeout counts there as everywhere else: from the end of the
// blocking command's own timeout on, while the connection is being made, and while the backend takes nothing of a request.

// forsaken reports whether nobody waits any more for the end of what blocks: the client went away when it did not block,
// between two masters for instance.
func (ln *lane) forsaken() bool {
	s := ln.owner
	return s != nil && s.eof && s.patient && s.upload == nil
}

// impatient reports whether a connection whose client may wait for long has been waited for too long.
func (ln *lane) impatient(now int64) bool {
	s, r := ln.owner, ln.inflight.head
	limit := int64(ln.loop.srv.opts.Upstream.Timeout)
	switch {
	case s.upload != nil && s.upload.pin == ln:
		return s.upload.stalled(now, limit)
	case r == nil:
		return false
	case !ln.ready:
	case s.blocksFor == 0:
		return false
	default:
		limit += s.blocksFor
	}
	return now-max(ln.lastRead, r.sentAt) > limit
}

// stalled reports whether the backend has taken nothing of what there is of the request for the length of limit (ns).
func (u *upload) stalled(now, limit int64) bool {
	p := &u.progress
	if u.pin.ready && u.pin.backlog() == 0 {
		p.since = 0
		return false
	}
	sent := uint64(0)
	if u.pin.conn != nil {
		sent = u.pin.conn.Sent()
	}
	if p.since == 0 || sent != p.sent {
		p.sent, p.since = sent, now
		return false
	}
	return now-p.since > limit
}

// blockTime is how long the command says that it may block (ns); 0: for ever, or it makes no sense and Redis will say so.
func blockTime(cmd *command.Command, args [][]byte) int64 {
	arg, unit := args[len(args)-1], time.Second
	switch cmd.Name {
	case "blmpop", "bzmpop":
		arg = args[1]
	case "wait", "waitaof":
		unit = time.Millisecond
	case "xread", "xreadgroup":
		unit = time.Millisecond
		for i, a := range args[:len(args)-1] {
			if equalFold(a, "BLOCK") {
				arg = args[i+1]
				break
			}
		}
	}
	v, err := strconv.ParseFloat(string(arg), 64)
	if ns := v * float64(unit); err == nil && ns > 0 && ns < math.MaxInt64/4 {
		return int64(ns)
	}
	return 0
}
