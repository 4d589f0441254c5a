package proxy

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"cosky-proxy/proxy/resp"
	"cosky-proxy/proxy/stats"
	"cosky-proxy/router/command"
)

// The proxy's own slow log tells what clients waited for here: the time from a request's last byte to
// its reply, with queues, redirects, repeats, failovers and the backend in it. Redis' SLOWLOG knows of the
// execution alone. Not slow is what a client waits for because it asked for it: a command that blocks, the end
// of CLIENT PAUSE, its own pipeline, replies that it does not take.
//
// Every loop keeps its own entries, in memory that is used again: a storm of slow commands costs
// no more than writing them down. Of a request there are the name, the first key and how long it was, never
// other arguments: they are values and passwords.

// SlowLogOptions say what is slow and how much of it is remembered.
type SlowLogOptions struct {
	SlowerThan time.Duration // 0: nothing is noted
	MaxLen     int           // entries, the newest
}

// neverSlow is longer than anything takes.
const neverSlow = math.MaxInt64

// slowLog is what a loop remembers of slow commands.
type slowLog struct {
	// static
	after int64 // ns from which on a command is slow; neverSlow: none is
	limit int   // entries

	// loop-owned
	entries []slowEntry // a ring once there are limit of them
	oldest  int         // its beginning

	// scratch
	args [][]byte
	keys []int
}

func newSlowLog(o *SlowLogOptions) slowLog {
	if o.SlowerThan <= 0 {
		return slowLog{after: neverSlow}
	}
	return slowLog{after: int64(o.SlowerThan), limit: max(o.MaxLen, 1)}
}

// slowEntry is one slow command. It owns its memory, apart from strings that never change.
type slowEntry struct {
	id      int64 // in the order in which they ended, over all loops
	endedAt int64 // Unix time in µs
	took    int64 // ns
	command string
	args    int // how many, the name included
	size    int // bytes of the request
	db      int32
	retries int
	keyed   bool // key is one
	addr    string
	from    string // who answered: the address of a backend, or one of those below
	key     clip
	name    clip // of the client
	user    clip
	problem clip // first word of an error reply
}

// Who answers besides the backend's servers.
const (
	fromCache  = "near-cache"
	fromProxy  = "proxy"
	fromNobody = "nobody" // the client has gone before
)

// clip is a text of which only the beginning is kept.
type clip struct {
	size int // of the whole
	n    int // bytes of kept that are its
	kept [maxClip]byte
}

// maxClip is as much as Redis shows of an argument (SLOWLOG_ENTRY_MAX_STRING).
const maxClip = 128

// setClip keeps the beginning of a text that has size bytes.
func setClip[T string | []byte](c *clip, text T, size int) {
	c.n, c.size = copy(c.kept[:], text), size
}

func (c *clip) text() string { return string(c.kept[:c.n]) }

// shown is the text in full, or as Redis shows one that is too long.
func (c *clip) shown() string { return clipped(c.text(), c.size) }

func clipped(text string, size int) string {
	if size <= len(text) {
		return text
	}
	return fmt.Sprintf("%s... (%d more bytes)", text, size-len(text))
}

// maxHead is how much of a request is kept for the slow log where it is not kept anyway: the name of
// the command and a key of maxClip bytes.
const maxHead = 192

// stamp notes of r, which is the present command, since when the client waits for it, and what will be told of it
// if that is long.
func (s *session) stamp(r *request) {
	l := s.loop
	r.arrived, r.length = l.now(), len(l.req.Raw)
	if s.stalledAt != 0 {
		r.arrived = s.stalledAt
	}
	if len(r.raw) == 0 && l.slow.after != neverSlow {
		raw := l.presentRaw()
		r.head = append(r.head[:0], raw[:min(len(raw), maxHead)]...)
	}
}

// presentRaw is the command being dispatched, as it is sent.
func (l *loop) presentRaw() []byte {
	if l.req.Inline {
		return l.inline
	}
	return l.req.Raw
}

// Waiting. A session that waits before its next command can be executed is given the same bytes again. All that had been
// read when it began to wait has been waiting since.

// stalls reports whether a session that waits for reason holds its client up, rather than being held up by it.
func (s *session) stalls(reason waitReason) bool {
	switch reason {
	case waitInFlight, waitOutput, waitPause:
		return false
	}
	return !s.patient // a command that blocks
}

// beginWait notes that the commands that have been read have to wait for reason.
func (s *session) beginWait(reason waitReason) {
	switch {
	case !s.stalls(reason):
		s.stalledAt, s.stalled = 0, 0
	case s.stalledAt == 0:
		s.stalledAt = s.loop.now()
	}
}

// readOn: n bytes of what had to wait have been dealt with.
func (s *session) readOn(n int) {
	if s.stalled -= n; s.stalled <= 0 {
		s.stalledAt, s.stalled = 0, 0
	}
}

// leaveUnread: rest bytes of the input are not dealt with yet.
func (s *session) leaveUnread(rest int) {
	switch {
	case s.wait == waitNothing && !s.yielded: // the beginning of a request
		s.stalledAt, s.stalled = 0, 0
	case s.stalled == 0:
		s.stalled = rest
	}
}

// noteSlow notes r, which took at least l.slow.after and is answered with reply, of which there is the beginning.
func (l *loop) noteSlow(r *request, reply []byte) {
	s := r.sess
	if r.cmd == nil || r.arrived == 0 || leftOut(r) {
		return
	}
	from := r.origin
	if from == "" {
		from = fromProxy
	}
	e := l.newSlow(s, r.cmd, l.now()-r.arrived, reply)
	e.size, e.db, e.retries, e.from = r.length, r.db, int(r.retries)+int(r.pauses), from
	raw := r.raw
	if len(raw) == 0 {
		raw = r.head
	}
	l.slow.describe(e, r.cmd, raw)
	if r.block != nil {
		l.slow.describeBlock(e, r.block.tx)
	}
}

// leftOut: how long the command takes is what its client wants, or it would change what it looks at.
func leftOut(r *request) bool {
	switch r.cmd.Name {
	case "wait", "waitaof", "cosky.sync", "proxy|slowlog":
		return true
	}
	return r.private && r.cmd.Has(command.Blocking)
}

// noteStalled notes that the present command, which has waited, is answered here and now.
func (s *session) noteStalled(reply []byte, from string) {
	l := s.loop
	took := l.now() - s.stalledAt
	if took < l.slow.after || s.lastCmd == nil {
		return
	}
	e := l.newSlow(s, s.lastCmd, took, reply)
	e.size, e.db, e.from = len(l.req.Raw), s.db, from
	l.slow.describe(e, s.lastCmd, l.presentRaw())
}

// noteGone notes the requests that a client leaves behind when it goes.
func (s *session) noteGone(r *request) {
	l := s.loop
	if r.state == replyWaiting && l.now()-r.arrived >= l.slow.after {
		r.origin = fromNobody
		l.noteSlow(r, nil)
	}
}

// newSlow begins a new entry.
func (l *loop) newSlow(s *session, cmd *command.Command, took int64, reply []byte) *slowEntry {
	l.stats.SlowCommands++
	e := l.slow.next()
	e.id, e.endedAt, e.took = l.srv.slowID.Add(1)-1, time.Now().UnixMicro(), took
	e.command, e.addr, e.retries, e.keyed = cmd.Name, s.addr, 0, false
	setClip(&e.name, s.name, len(s.name))
	setClip(&e.user, s.user, len(s.user))
	word := errorWord(reply)
	setClip(&e.problem, word, len(word))
	return e
}

// next is a new entry, or the oldest one.
func (g *slowLog) next() *slowEntry {
	if len(g.entries) < g.limit {
		g.entries = append(g.entries, slowEntry{})
		return &g.entries[len(g.entries)-1]
	}
	e := &g.entries[g.oldest]
	if g.oldest++; g.oldest == g.limit {
		g.oldest = 0
	}
	return e
}

// errorWord is the code of an error reply; empty: it is none. What does not look like a code, which a script may answer,
// is not shown.
func errorWord(reply []byte) []byte {
	if len(reply) == 0 || reply[0] != '-' {
		return nil
	}
	end := 1
	for end < len(reply) && (reply[end] >= 'A' && reply[end] <= 'Z' || reply[end] == '_') {
		end++
	}
	if end == 1 || end > maxCode || end < len(reply) && reply[end] != ' ' && reply[end] != '\r' {
		return unnamedError
	}
	return reply[1:end]
}

// maxCode is longer than every code of Redis' own.
const maxCode = 32

var unnamedError = []byte("ERR")

// maxSlowArgs bounds how many arguments are looked at to find the first key.
const maxSlowArgs = 1024

// describe notes how many arguments a request has, and its first key as far as raw, its beginning, has it.
func (g *slowLog) describe(e *slowEntry, cmd *command.Command, raw []byte) {
	kind, n, size := resp.ReadHeader(raw)
	if kind != '*' || n < 1 {
		e.args = 0
		return
	}
	e.args = int(n)
	if key, whole := g.firstKey(cmd, e.args, raw[size:]); key != nil {
		e.keyed = true
		setClip(&e.key, key, whole)
	}
}

// firstKey is the beginning of the first key in a request of n arguments, which b shows as far as it goes, and how long the
// key is. Nil: there is none, or it is beyond b.
func (g *slowLog) firstKey(cmd *command.Command, n int, b []byte) (key []byte, size int) {
	g.args = g.args[:0]
	cut := 0 // size of the last argument, of which b has only a part
	for len(g.args) < min(n, maxSlowArgs) {
		_, length, header := resp.ReadHeader(b)
		if header == 0 || length < 0 {
			break
		}
		b = b[header:]
		if int64(len(b)) < length+2 {
			g.args = append(g.args, b[:min(int64(len(b)), length)])
			cut = int(length)
			break
		}
		g.args = append(g.args, b[:length:length])
		b = b[length+2:]
	}
	seen := len(g.args)
	for len(g.args) < min(n, maxSlowArgs) { // how many there are matters to some
		g.args = append(g.args, nil)
	}
	at := g.keyIndex(cmd, n)
	switch {
	case at <= 0 || at >= seen:
		return nil, 0
	case at == seen-1 && cut > 0:
		return g.args[at], cut
	}
	return g.args[at], len(g.args[at])
}

// keyIndex is the place of the first key among n arguments, the first of which are in g.args; 0: there is none.
func (g *slowLog) keyIndex(cmd *command.Command, n int) int {
	if cmd.SingleKey {
		return cmd.KeyPos
	}
	if cmd.Split > 0 || n > maxSlowArgs {
		return cmd.FirstKey
	}
	if g.keys, _ = cmd.Keys(g.args, g.keys[:0]); len(g.keys) > 0 {
		return g.keys[0]
	}
	return 0
}

// describeBlock notes the first key of what EXEC executes.
func (g *slowLog) describeBlock(e *slowEntry, tx *transaction) {
	from := 0
	for i, cmd := range tx.cmds {
		raw := tx.block[from:][:tx.lengths[i]]
		from += tx.lengths[i]
		_, n, size := resp.ReadHeader(raw)
		if key, whole := g.firstKey(cmd, int(n), raw[size:]); key != nil {
			e.keyed = true
			setClip(&e.key, key, whole)
			return
		}
	}
}

// slowCommands is what the loop remembers; it runs on the loop.
func (l *loop) slowCommands() []stats.SlowCommand {
	list := make([]stats.SlowCommand, len(l.slow.entries))
	for i := range l.slow.entries {
		list[i] = l.slow.entries[i].export()
	}
	return list
}

func (e *slowEntry) export() stats.SlowCommand {
	c := stats.SlowCommand{
		ID: e.id, At: time.UnixMicro(e.endedAt), Took: time.Duration(e.took),
		Command: e.command, Args: e.args, Size: e.size, DB: int(e.db),
		Addr: e.addr, Name: e.name.shown(), User: e.user.shown(),
		From: e.from, Retries: e.retries, Error: e.problem.text(),
	}
	if e.keyed {
		c.Keyed, c.Key, c.KeySize = true, e.key.text(), e.key.size
	}
	return c
}

// newest are the n slow commands that ended last, the last one first; negative n: all that are remembered.
func (s *Server) newest(parts [][]stats.SlowCommand, n int) []stats.SlowCommand {
	list := slices.Concat(parts...)
	slices.SortFunc(list, func(a, b stats.SlowCommand) int { return cmp.Compare(b.ID, a.ID) })
	most := s.opts.SlowLog.MaxLen
	if n >= 0 {
		most = min(most, n)
	}
	return list[:min(len(list), most)]
}

// SlowCommands returns the n slow commands that ended last, the last one first; negative n: all that are remembered. A loop
// that does not answer in time is left out. Any goroutine but a loop's.
func (s *Server) SlowCommands(n int) []stats.SlowCommand {
	return s.newest(askLoops(s, (*loop).slowCommands), n)
}

// defaultSlowCommands is how many SLOWLOG GET shows, as in Redis.
const defaultSlowCommands = 10

// proxySlowLog answers PROXY SLOWLOG GET [count], LEN and RESET as Redis answers SLOWLOG.
func (s *session) proxySlowLog(cmd *command.Command, args [][]byte, _ []byte) bool {
	l := s.loop
	n := defaultSlowCommands
	switch {
	case equalFold(args[2], "GET") && len(args) == 3, equalFold(args[2], "LEN") && len(args) == 3, equalFold(args[2], "RESET") && len(args) == 3:
	case equalFold(args[2], "GET") && len(args) == 4:
		count, ok := integer(args[3])
		if !ok || count < -1 {
			s.refuse("ERR count should be greater than or equal to -1")
			return true
		}
		n = int(count)
	default:
		s.refuse(subcommandSyntax(cmd, args[1:]))
		return true
	}
	what := bytes.ToUpper(args[2])
	r, ready := s.promise(cmd)
	if !ready {
		return false
	}
	switch string(what) {
	case "GET":
		gather(l, (*loop).slowCommands, func(parts [][]stats.SlowCommand) {
			l.keep(r, appendSlowCommands(nil, l.srv.newest(parts, n), r.resp3))
		})
	case "LEN":
		gather(l, func(o *loop) int { return len(o.slow.entries) }, func(parts []int) {
			sum := 0
			for _, n := range parts {
				sum += n
			}
			l.keep(r, resp.AppendInt(nil, int64(min(sum, l.srv.opts.SlowLog.MaxLen))))
		})
	case "RESET":
		gather(l, func(o *loop) struct{} {
			o.slow.entries, o.slow.oldest = nil, 0
			return struct{}{}
		}, func([]struct{}) { l.keep(r, replyOK) })
	}
	return true
}

// appendSlowCommands appends the reply to SLOWLOG GET: Redis' six elements of each entry, and a
// map with what only the proxy knows.
func appendSlowCommands(b []byte, list []stats.SlowCommand, resp3 bool) []byte {
	b = resp.AppendArray(b, len(list))
	for i := range list {
		c := &list[i]
		b = resp.AppendArray(b, 7)
		b = resp.AppendInt(b, c.ID)
		b = resp.AppendInt(b, c.At.Unix())
		b = resp.AppendInt(b, c.Took.Microseconds())
		b = appendStrings(b, shownArgs(c))
		b = appendString(b, c.Addr)
		b = appendString(b, c.Name)
		b = command.AppendMapHeader(b, 7, resp3)
		b = appendPair(b, "user", c.User)
		b = resp.AppendInt(appendString(b, "db"), int64(c.DB))
		b = appendPair(b, "answered_by", c.From)
		b = resp.AppendInt(appendString(b, "retries"), int64(c.Retries))
		b = appendPair(b, "error", c.Error)
		b = resp.AppendInt(appendString(b, "arguments"), int64(c.Args))
		b = resp.AppendInt(appendString(b, "bytes"), int64(c.Size))
	}
	return b
}

// shownArgs are the name, the first key, and how many arguments more there are, in Redis' words.
func shownArgs(c *stats.SlowCommand) []string {
	shown := []string{c.Command}
	more := c.Args - 1
	if bytes.IndexByte([]byte(c.Command), '|') >= 0 { // the subcommand is one
		more--
	}
	if c.Keyed {
		shown = append(shown, clipped(c.Key, c.KeySize))
		more--
	}
	if more > 0 {
		shown = append(shown, fmt.Sprintf("... (%d more arguments)", more))
	}
	return shown
}
