package proxy

import (
	"bytes"
	"path"
	"strconv"
	"strings"

	"cosky-proxy/cluster"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// selectDB moves the session to another lane. The backend has the last word on
// whether the database exists: the command travels on a lane of that database,
// whose login fails if it does not.
func (s *session) selectDB(cmd *command.Command, args [][]byte, raw []byte) bool {
	l := s.loop
	db, problem := databaseNumber(args[1])
	switch {
	case problem != "":
		s.refuse(problem)
		return true
	case (l.clusters || l.srv.facade != nil) && db != 0:
		s.refuse("ERR SELECT is not allowed in cluster mode")
		return true
	case l.srv.facade != nil: // a cluster has one database, that of the backend's URL
		return s.ok(cmd)
	case db < 0:
		s.refuse("ERR DB index is out of range")
		return true
	case db == s.db:
		return s.ok(cmd)
	}
	if s.drain() {
		return false
	}
	n, cause := l.owner(0)
	var ln *lane
	switch {
	case cause != "":
	case s.tx != nil && s.tx.pin != nil: // what is watched stays watched, in its own database
		ln = s.tx.pin
		ln.strayed = true
	case s.home != nil:
		ln, cause = s.home.lane(s, n)
	default:
		ln, cause = n.lane(laneKey{db: db, resp3: s.resp3, as: s.as})
	}
	if cause != "" {
		s.refuse(cause)
		return true
	}
	r := l.newRequest(s, cmd)
	r.db, r.sink, r.alone = db, selected{}, ln.kind == lanePin
	s.exclusive = true
	s.enqueue(r)
	ln.send(r, raw)
	return true
}

// integer reads a number as strictly as Redis' string2ll: one spelling per number.
func integer(b []byte) (v int64, ok bool) {
	v, err := strconv.ParseInt(string(b), 10, 64)
	return v, err == nil && strconv.FormatInt(v, 10) == string(b)
}

// databaseNumber reads the argument of SELECT; problem is Redis' error line.
func databaseNumber(b []byte) (db int32, problem string) {
	v, ok := integer(b)
	switch {
	case !ok:
		return 0, "ERR value is not an integer or out of range"
	case v != int64(int32(v)):
		return 0, "ERR value is out of range, value must between -2147483648 and 2147483647"
	}
	return int32(v), ""
}

// selected switches the session once the backend has accepted the database.
type selected struct{}

func (selected) deliver(l *loop, r *request, reply []byte) {
	if reply[0] == '-' && bytes.HasSuffix(reply, []byte("DB index is out of range\r\n")) {
		reply = []byte("-ERR DB index is out of range\r\n")
	}
	if r.sess != nil && reply[0] != '-' {
		r.sess.db = r.db
	}
	l.finish(r, reply)
}

const errNoProto = "NOPROTO unsupported protocol version"

// hello switches the protocol, as Redis' helloCommand does. When a part of it fails,
// nothing changes but whom the client is logged in as.
func (s *session) hello(cmd *command.Command, args [][]byte, _ []byte) bool {
	resp3 := s.resp3
	if len(args) > 1 {
		v, ok := integer(args[1])
		switch {
		case !ok:
			s.refuse("ERR Protocol version is not an integer or out of range")
			return true
		case v != 2 && v != 3:
			s.refuse(errNoProto)
			return true
		}
		resp3 = v == 3
	}
	var name []byte
	renamed := false
	for i := 2; i < len(args); i++ {
		switch {
		case equalFold(args[i], "AUTH") && i+2 < len(args):
			refusal, decided := s.login(resp3, args[0], args[i+1], args[i+2])
			if !decided {
				return false
			}
			if refusal != "" {
				s.refuse(refusal)
				return true
			}
			i += 2
		case equalFold(args[i], "SETNAME") && i+1 < len(args):
			name, renamed = args[i+1], true
			if !printable(args[i+1]) {
				s.refuse(errClientName)
				return true
			}
			i++
		default:
			s.errorf("ERR Syntax error in HELLO option '%s'", args[i])
			return true
		}
	}
	if l := s.loop; l.guard != nil {
		refusal, decided := l.guard.greet(s, resp3)
		if !decided {
			return false
		}
		if refusal != "" {
			s.refuse(refusal)
			return true
		}
	}
	if resp3 != s.resp3 {
		if s.captured == nil && s.drain() {
			return false
		}
		if s.home != nil {
			s.home.greet(string(args[1]))
		} else if s.tx != nil && s.tx.pin != nil {
			s.tx.pin.note("HELLO", string(args[1]))
			s.tx.pin.strayed = true
		}
		s.resp3 = resp3
	}
	if renamed {
		s.rename(&s.name, name)
	}
	return s.answer(cmd, s.appendHello)
}

func (s *session) appendHello(b []byte) []byte {
	proto := int64(2)
	if s.resp3 {
		proto = 3
	}
	b = s.appendMap(b, 7)
	b = appendPair(b, "server", "redis")
	b = appendPair(b, "version", s.loop.srv.version())
	b = resp.AppendInt(appendString(b, "proto"), proto)
	b = resp.AppendInt(appendString(b, "id"), s.id)
	b = appendPair(b, "mode", s.loop.srv.mode())
	b = appendPair(b, "role", "master")
	return resp.AppendArray(appendString(b, "modules"), 0)
}

// appendMap begins a map of n pairs in the session's protocol.
func (s *session) appendMap(b []byte, n int) []byte {
	if s.resp3 {
		return resp.AppendMap(b, n)
	}
	return resp.AppendArray(b, 2*n)
}

func appendString(b []byte, v string) []byte { return resp.AppendBulkString(b, v) }

func appendPair(b []byte, k, v string) []byte { return appendString(appendString(b, k), v) }

func (s *session) appendNull(b []byte) []byte {
	if s.resp3 {
		return resp.AppendNull3(b)
	}
	return resp.AppendNull(b)
}

const errClientName = "ERR Client names cannot contain spaces, newlines or special characters."

// printable is Redis' rule for names (validateClientAttr): '!' to '~'.
func printable(b []byte) bool {
	for _, c := range b {
		if c < '!' || c > '~' {
			return false
		}
	}
	return true
}

// appendText appends text as Redis sends INFO and CLIENT LIST: a bulk string in
// RESP2, a verbatim string in RESP3.
func (s *session) appendText(b, text []byte) []byte {
	if s.resp3 {
		return resp.AppendVerbatim(b, "txt", text)
	}
	return resp.AppendBulk(b, text)
}

// embeddedSettings are what tools ask a Redis for; the embedded backend has no
// configuration of its own.
var embeddedSettings = [][2]string{
	{"appendonly", "no"}, {"databases", "16"}, {"maxmemory", "0"}, {"maxmemory-policy", "noeviction"},
	{"proto-max-bulk-len", "536870912"}, {"save", ""},
}

func (s *session) embeddedConfig(cmd *command.Command, args [][]byte, _ []byte) bool {
	if cmd.Name != "config|get" {
		s.errorf("ERR '%s' is not supported by the embedded backend", cmd.Name)
		return true
	}
	return s.answer(cmd, func(b []byte) []byte {
		var found [][2]string
		for _, setting := range embeddedSettings {
			if matchesAny(args[2:], setting[0]) {
				found = append(found, setting)
			}
		}
		b = s.appendMap(b, len(found))
		for _, setting := range found {
			b = appendPair(b, setting[0], setting[1])
		}
		return b
	})
}

func matchesAny(patterns [][]byte, name string) bool {
	for _, p := range patterns {
		if ok, err := path.Match(strings.ToLower(string(p)), name); err == nil && ok {
			return true
		}
	}
	return false
}

// modeName is what stands behind, for INFO.
func modeName(m cluster.Mode) string {
	switch m {
	case cluster.Cluster:
		return "cluster"
	case cluster.Sentinel:
		return "sentinel"
	case cluster.Embedded:
		return "embedded"
	default:
		return "standalone"
	}
}
