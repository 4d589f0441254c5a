package proxy

import (
	"bytes"
	"encoding/binary"
	"strings"

	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// opinions are what the backend thinks of commands that the proxy answers itself. They
// belong to one loop.
type opinions struct {
	loop  *loop
	known map[string]*opinion // by topic
	topic []byte              // scratch: what an opinion is about
}

// opinion is what the backend thinks of one command of one user.
type opinion struct {
	refusal string           // error line; empty: allowed
	unknown bool             // the backend would not say
	until   int64            // believed so long (mono); 0: it has not answered yet
	rules   uint64           // Server.rules when it was asked
	waiting []func(*opinion) // for the answer
	before  *opinion         // the last one that the backend did say, unless this one is; nil: none
}

// maxOpinions bounds what a loop remembers, and maxTopic the bytes of what one of them
// is about.
const (
	maxOpinions = 4096
	maxTopic    = 1 << 10
)

// of returns what is known about a command of s, nil when nothing is.
func (os *opinions) of(s *session, cmd *command.Command, args [][]byte) *opinion {
	if !os.name(s, cmd, args) {
		return nil
	}
	o := os.known[string(os.topic)]
	if o != nil && (o.until == 0 || o.until >= os.loop.now()) && o.rules == os.loop.srv.rules.Load() {
		return o
	}
	return nil
}

// last returns what the backend said last about a command of s, nil when that is too long ago to stand in for
// what it would say now.
func (os *opinions) last(s *session, cmd *command.Command, args [][]byte) *opinion {
	if !os.name(s, cmd, args) {
		return nil
	}
	o := os.known[string(os.topic)]
	if o != nil && o.before != nil {
		o = o.before
	}
	if o == nil || o.unknown || o.until == 0 || o.rules != os.loop.srv.rules.Load() || os.loop.now() >= os.end(o) {
		return nil
	}
	return o
}

// end is when an opinion cannot even stand in any more (mono).
func (os *opinions) end(o *opinion) int64 {
	c := &os.loop.srv.opts.Cache
	return o.until + max(0, int64(c.StaleFor-c.MaxStaleness))
}

// name makes topic what a command of s is about; false when that is too long. Arguments may have any bytes in
// them, so their lengths tell them apart: MGET of one key is not MGET of two.
func (os *opinions) name(s *session, cmd *command.Command, args [][]byte) bool {
	b := append(append(os.topic[:0], s.user...), 0)
	for _, arg := range args[:relevant(cmd, len(args))] {
		if len(b)+len(arg) > maxTopic {
			return false
		}
		b = append(binary.AppendUvarint(b, uint64(len(arg))), arg...)
	}
	os.topic = b
	return true
}

// relevant is how many arguments an opinion may depend on: a command without keys and
// channels is judged by its name and its first argument.
func relevant(cmd *command.Command, n int) int {
	switch {
	case len(cmd.KeySpecs) > 0 || cmd.Has(command.PubSub) || cmd.Has(command.MovableKeys):
		return n
	case cmd.Parent != nil:
		return min(n, 3)
	}
	return min(n, 2)
}

// ask has the backend asked, with the proxy's own login, what it thinks of a command of s, and
// calls then. The answer is remembered.
func (os *opinions) ask(s *session, cmd *command.Command, args [][]byte, then func(*opinion)) {
	if o := os.of(s, cmd, args); o != nil && o.until == 0 { // somebody has asked just now
		o.waiting = append(o.waiting, then)
		return
	}
	o := &opinion{rules: os.loop.srv.rules.Load(), waiting: []func(*opinion){then}}
	if os.name(s, cmd, args) {
		if o.before = os.known[string(os.topic)]; o.before != nil && o.before.before != nil {
			o.before = o.before.before
		}
		if len(os.known) >= maxOpinions {
			clear(os.known)
		}
		os.known[string(os.topic)] = o
	}
	own := cmd.Own && cmd.Has(command.Admin)
	if own {
		args = standIn
	}
	call := append([][]byte{[]byte("ACL"), []byte("DRYRUN"), []byte(s.user)}, args...)
	os.loop.put(laneKey{}, call, func(reply []byte) {
		o.refusal, o.unknown = forecast(reply)
		if !bytes.HasPrefix(reply, []byte("-ERR cosky-proxy ")) {
			o.before = nil
		}
		if own {
			o.refusal = strings.Replace(o.refusal, "'config|get'", "'"+cmd.Name+"'", 1)
		}
		os.settle(o)
	})
}

// standIn is what the backend is asked about in the place of an administrator's command that it does
// not know: whoever may read its configuration may look into the proxy's.
var standIn = [][]byte{[]byte("CONFIG"), []byte("GET"), []byte("maxmemory")}

func (os *opinions) settle(o *opinion) {
	o.until = os.loop.now() + int64(os.loop.srv.opts.Cache.MaxStaleness)
	waiting := o.waiting
	o.waiting = nil
	for _, then := range waiting {
		then(o)
	}
}

// expire forgets what is not believed any more.
func (os *opinions) expire(now int64) {
	for topic, o := range os.known {
		if o.until != 0 && os.end(o) < now {
			delete(os.known, topic)
		}
	}
}

// verdict is what an opinion means for a command that the proxy answers itself. When the
// backend would not say, what only concerns the client's own connection is allowed.
func (o *opinion) verdict(s *session, cmd *command.Command) string {
	switch {
	case o.refusal != "" || !o.unknown:
		return o.refusal
	case cmd.Categories&(command.Category("admin")|command.Category("dangerous")) == 0:
		return ""
	}
	return "ERR cosky-proxy cannot find out whether user '" + s.user + "' may run '" + cmd.Name + "': the backend does not answer ACL DRYRUN"
}

// forecast reads the reply of ACL DRYRUN: as the error line that the command itself would
// get, in the words of the version that answers. unknown: it is no answer.
func forecast(reply []byte) (refusal string, unknown bool) {
	switch {
	case reply[0] == '+':
		return "", false
	case reply[0] != '$':
		return "", true
	}
	body, _ := resp.ReadBulk(reply)
	text := string(body)
	since72 := !strings.HasPrefix(text, "This user ")
	switch {
	case strings.HasSuffix(text, "' command") && since72:
		return "NOPERM " + text, false
	case strings.HasSuffix(text, "' command"):
		return "NOPERM t" + text[1:], false
	case strings.HasSuffix(text, "' channel") && since72:
		return "NOPERM No permissions to access a channel", false
	case strings.HasSuffix(text, "' channel"):
		return "NOPERM this user has no permissions to access one of the channels used as arguments", false
	case since72:
		return "NOPERM No permissions to access a key", false
	}
	return "NOPERM this user has no permissions to access one of the keys used as arguments", false
}
