package proxy

import (
	"bytes"

	"cosky-proxy/cluster"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// inquiry asks the backend about a command that the table has never heard of: the
// module may have been loaded a moment ago, or the configuration of the server may call a
// command by another name (rename-command), which is not listed anywhere. Its session
// waits for the answer; nothing of the command has happened then.
type inquiry struct {
	sess *session
	name []byte
}

// maxName bounds the names that are worth a question.
const maxName = 128

// inquire has the backend asked about name, once per command, and reports whether s
// waits for the answer.
func (s *session) inquire(name []byte) bool {
	l := s.loop
	if s.inquired {
		s.inquired = false
		return false
	}
	known := bytes.ToLower(name)
	if len(name) == 0 || len(name) > maxName || l.table.Named(string(known)) != nil || l.table.Lookup(name) != nil ||
		l.srv.opts.Backend.Mode == cluster.Embedded {
		return false
	}
	n, cause := l.owner(l.anyShard().slot)
	if cause != "" {
		return false
	}
	ln, cause := n.lane(laneKey{resp3: s.resp3}) // a matter of the proxy's, whatever the client may do
	if cause != "" {
		return false
	}
	r := l.newRequest(nil, nil)
	r.sink, r.resp3 = &inquiry{s, known}, s.resp3
	l.enc = resp.AppendCommandBytes(l.enc[:0], [][]byte{[]byte("COMMAND"), []byte("INFO"), known})
	ln.send(r, l.enc)
	return s.holdUp(waitInquiry, l.timeoutLine(n.addr))
}

// deliver has the session look again. Post keeps the order: a table that knows the
// name is adopted before.
func (q *inquiry) deliver(l *loop, r *request, reply []byte) {
	if v, n, err := resp.Parse(reply); n > 0 && err == nil {
		if theirs, err := command.ParseReply(tree(&v)); err == nil && len(theirs) > 0 {
			l.srv.learnName(string(q.name), theirs)
		}
	}
	l.release(r)
	l.nl.Post(func() {
		if s := q.sess; s.wait == waitInquiry { // else it has not waited for so long
			s.inquired = true
			s.resume()
		}
	})
}

// tree is a reply in the form that package command reads.
func tree(v *resp.Value) any {
	switch {
	case v.Null:
		return nil
	case v.Kind == ':':
		return v.Int
	case v.Elems != nil:
		list := make([]any, len(v.Elems))
		for i := range v.Elems {
			list[i] = tree(&v.Elems[i])
		}
		return list
	}
	return string(v.Text())
}
