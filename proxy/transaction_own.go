package proxy

import "cosky-proxy/proxy/resp"

// completion is the reply of an executed block while the proxy puts its own answers
// in the place of those of the backend's PINGs, one after the other: some have to be
// asked of other loops.
type completion struct {
	x       *execution
	out     []byte // the reply so far
	rest    []byte // the backend's answers that have not been looked at
	at      int    // commands done
	own     []own  // those of the proxy's that have not been run
	waiting bool   // for an answer promised to it
}

// complete does the proxy's part of a block that was executed, then answers EXEC.
func (x *execution) complete(l *loop, reply []byte) {
	kind, n, size := resp.ReadHeader(reply)
	if x.exec.sess == nil || len(x.tx.own) == 0 || kind != '*' || int(n) != len(x.tx.cmds) {
		l.finishExec(x.exec, x.tx, reply)
		return
	}
	owned := append([]byte(nil), reply...)
	c := &completion{x: x, out: owned[:size:size], rest: owned[size:], own: x.tx.own}
	c.run(l)
}

func (c *completion) run(l *loop) {
	s := c.x.exec.sess
	for s != nil && c.at < len(c.x.tx.cmds) {
		i := c.at
		c.at++
		n := replyLen(c.rest)
		answer := c.rest[:n]
		c.rest = c.rest[n:]
		if len(c.own) == 0 || c.own[0].at != i {
			c.out = append(c.out, answer...)
			continue
		}
		o := c.own[0]
		c.own = c.own[1:]
		if o.raw != nil {
			if c.spread(l, c.x.tx.cmds[i], &o, answer) {
				return
			}
			continue
		}
		if o.amend != nil {
			c.out = append(c.out, o.amend(s, c.x.tx.cmds[i], &o, c.x.exec.origin, answer)...)
			continue
		}
		if o.run == nil { // SELECT
			if answer[0] == '+' {
				s.db = o.db
			}
			c.out = append(c.out, answer...)
			continue
		}
		s.captured = c
		decided := o.run(s, c.x.tx.cmds[i], o.args, nil)
		s.captured = nil
		if !decided {
			c.out = append(append(c.out, errUndecided...), "\r\n"...)
		}
		if c.waiting {
			return
		}
	}
	l.finishExec(c.x.exec, c.x.tx, c.out)
}

const errUndecided = "-ERR cosky-proxy has to ask the backend first: send this command outside of MULTI"

// greets reports whether HELLO with these arguments names a protocol, as far as can be
// said before it is executed.
func greets(args [][]byte) bool {
	if len(args) < 2 || string(args[1]) != "2" && string(args[1]) != "3" {
		return false
	}
	for i := 2; i < len(args); i += 2 {
		switch {
		case equalFold(args[i], "AUTH") && i+2 < len(args):
			i++
		case equalFold(args[i], "SETNAME") && i+1 < len(args) && printable(args[i+1]):
		default:
			return false
		}
	}
	return true
}

// promised waits for r's answer.
func (c *completion) promised(r *request) {
	r.sink = c
	c.waiting = true
}

// deliver takes an answer that was promised.
func (c *completion) deliver(l *loop, r *request, reply []byte) {
	c.out = append(c.out, reply...)
	c.waiting = false
	l.release(r)
	c.run(l)
}
