package proxy

import (
	"bytes"
	"strings"

	"cosky-proxy/cluster/slot"
	"cosky-proxy/nearcache"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// transaction is a session's MULTI, its WATCH, or both.
//
// Queued commands are kept here and checked as Redis checks them; EXEC sends them as one
// contiguous block, MULTI … EXEC, on a lane, where no other session's command can
// come in between. WATCH is state of a connection, so it takes a pin, on which the
// session's commands to that node travel until EXEC, DISCARD or UNWATCH.
type transaction struct {
	queueing bool // between MULTI and EXEC
	aborted  bool // a command was refused: EXEC will be, too
	lostPin  bool // the watching connection broke: EXEC must not run

	begin      []byte // MULTI, as the client sent it
	replicates bool   // a command may send something to replicas
	cmds       []*command.Command
	lengths    []int  // of each command in block
	block      []byte // the commands, as they are sent
	touches    []touch
	barrier    bool
	hotEpoch   uint32 // the loop's at MULTI
	target     target
	routed     bool // target is decided by a key seen so far
	infos      []queuedInfo
	own        []own // those of cmds that the proxy takes part in
	sub        subscribing
	scripts    bool     // it calls scripts or functions
	shas       [][]byte // digests of the scripts it calls, to be known where it runs
	texts      []string // scripts it carries, to be remembered once it runs
	flushes    bool     // what was known before them is to be forgotten

	pin     *lane      // watches, or is where the transaction is live; nil: neither
	watches int        // WATCH commands so far
	watched uint16     // slot of the last one's keys
	live    *execution // nil: the transaction is queued here only
}

// own is a queued command that the proxy takes part in when EXEC executes it.
type own struct {
	at    int      // position among the queued commands
	run   handler  // answers it; a PING stands in for it in the block
	amend amender  // changes the backend's answer. nil, as run is: SELECT, which the backend executes
	args  [][]byte // of run and amend
	db    int32    // of SELECT
	raw   []byte   // of a command that other shards execute, too
	greet bool     // HELLO: the protocol of the connection changes
}

// endsTransaction: these are executed at once between MULTI and EXEC, as Redis'
// processCommand does.
func endsTransaction(cmd *command.Command) bool {
	switch cmd.Name {
	case "exec", "discard", "multi", "watch", "quit", "reset":
		return true
	}
	return false
}

func (s *session) multi(cmd *command.Command, _ [][]byte, raw []byte) bool {
	switch {
	case s.tx == nil:
		s.tx = &transaction{queueing: true, begin: bytes.Clone(raw), hotEpoch: s.loop.hotEpoch}
	case s.tx.queueing:
		s.errorNotAborting("ERR MULTI calls can not be nested")
		return true
	default:
		s.tx.queueing, s.tx.begin, s.tx.hotEpoch = true, bytes.Clone(raw), s.loop.hotEpoch
	}
	return s.ok(cmd)
}

// errorNotAborting answers an error that leaves the transaction intact.
func (s *session) errorNotAborting(line string) {
	l := s.loop
	l.out = append(append(append(l.out[:0], '-'), line...), '\r', '\n')
	s.reply(l.out)
}

// queuedCost is what a queued command takes besides its text: its notes in the
// transaction and its request during EXEC.
const queuedCost = 384

// queue checks a command as far as that can be done before EXEC and keeps it.
func (s *session) queue(cmd *command.Command, args [][]byte, raw []byte) bool {
	l, tx := s.loop, s.tx
	if cmd.Has(command.NoMulti) {
		s.refuse("ERR Command not allowed inside a transaction")
		return true
	}
	if l.spread(cmd) {
		if problem := spreadProblem(cmd, args); problem != "" {
			s.refuse(problem)
			return true
		}
	} else if !l.queueable(cmd) {
		s.errorf("ERR '%s' inside MULTI is not supported by cosky-proxy yet", cmd.Name)
		return true
	}
	raw = tx.adopt(l, cmd, args, raw)
	// A key count that makes no sense is an error of EXEC's, not of queueing: Redis
	// looks at it only when it executes the command.
	var problem string
	l.keys, problem = cmd.Keys(args, l.keys[:0])
	if len(tx.block)+len(raw)+len(tx.cmds)*queuedCost > l.srv.opts.Clients.MaxRequest {
		s.errorf("ERR the transaction exceeds clients.max_request (%d bytes, of which every command takes some)", l.srv.opts.Clients.MaxRequest)
		return true
	}
	if l.clusters && !tx.route(args, l.keys) {
		s.refuse(errCrossSlot)
		return true
	}
	e := l.effect.reset()
	switch {
	case cmd.Script:
		tx.scripts = true
		name := args[1]
		switch {
		case byText(cmd):
			name = []byte(digestOf(args[1]))
			if problem == "" {
				tx.texts = append(tx.texts, string(args[1]))
			}
		case byDigest(cmd):
			tx.shas = append(tx.shas, bytes.Clone(args[1]))
		}
		l.concernScript(e, cmd, name, args)
	case cmd.Name == "script|flush" && flushes(args):
		tx.flushes, tx.texts = true, nil
		if l.cache != nil {
			e.add(nearcache.All, true)
		}
	case cmd.Name == "script|load":
		tx.texts = append(tx.texts, string(args[2]))
	case len(l.keys) == 0:
		l.concernUnknown(e, cmd)
	default:
		l.concernKeys(e, cmd, args)
	}
	tx.touches = append(tx.touches, e.touches...)
	tx.barrier = tx.barrier || e.barrier
	tx.replicates = tx.replicates || l.mayReplicate(cmd, args)
	tx.cmds = append(tx.cmds, cmd)
	tx.lengths = append(tx.lengths, len(raw))
	tx.block = append(tx.block, raw...)
	if tx.live != nil || (l.inDoubt() || s.as != nil) && s.goLive(tx) {
		s.queueLive(cmd, raw)
		return true
	}
	s.reply(replyQueued)
	return true
}

// queueable commands mean the same on a lane as on the client's own connection.
func (l *loop) queueable(cmd *command.Command) bool {
	switch cmd.Name {
	case "ping", "echo", "info", "monitor", "config|set", "unwatch", "select", "script|load", "script|exists", "script|flush":
		return true
	}
	return cmd.Script || cmd.Has(command.Blocking) || l.reads[cmd.ID] != nil || cmd.Name == "mget" || l.handlers[cmd.ID] == nil || aboutSession(cmd) || aboutPubSub(cmd)
}

// aboutSession: the proxy itself answers these, at once and out of what it knows, if it
// has a handler for them.
func aboutSession(cmd *command.Command) bool {
	switch cmd.Name {
	case "client|id", "client|info", "client|getname", "client|setname", "client|setinfo", "client|no-evict", "client|list", "client|kill",
		"client|pause", "client|unpause", "client|unblock", "client|getredir", "client|trackinginfo",
		"auth", "hello", "role", "readonly", "readwrite", "asking", "command", "config|get":
		return true
	}
	if cmd.Parent == nil {
		return false
	}
	switch cmd.Parent.Name {
	case "cluster", "acl", "command":
		return true
	}
	return strings.HasSuffix(cmd.Name, "|help")
}

// adopt notes a command that the proxy takes part in, and returns what goes into
// the block for it.
func (tx *transaction) adopt(l *loop, cmd *command.Command, args [][]byte, raw []byte) []byte {
	o := own{at: len(tx.cmds)}
	switch {
	case cmd.Name == "select" && l.srv.facade == nil:
		db, problem := databaseNumber(args[1])
		if problem != "" || l.clusters {
			return raw // the backend refuses it, or it changes nothing
		}
		o.db = db
	case cmd.Name == "info":
		return tx.queueInfo(l, args, raw)
	case cmd.Name == "select", aboutSession(cmd) && l.handlers[cmd.ID] != nil:
		o.run = l.handlers[cmd.ID]
	case l.spread(cmd):
		o.raw = bytes.Clone(raw)
	default:
		if o.run, o.amend = tx.adoptPubSub(cmd); o.run == nil && o.amend == nil {
			return raw
		}
	}
	if o.run != nil {
		l.enc = resp.AppendCommand(l.enc[:0], "PING")
		if o.greet = cmd.Name == "hello" && greets(args); o.greet {
			l.enc = resp.AppendCommand(l.enc[:0], "HELLO", string(args[1]))
		}
		raw = l.enc
	}
	for _, a := range args {
		o.args = append(o.args, bytes.Clone(a))
	}
	tx.own = append(tx.own, o)
	return raw
}

// route makes sure that all keys of the transaction share a slot. A node of a cluster finds
// out only at EXEC; whoever queues a key of another slot can be told at once.
func (tx *transaction) route(args [][]byte, keys []int) bool {
	for _, k := range keys {
		sl := slot.Of(args[k])
		if tx.routed && sl != tx.target.slot {
			return false
		}
		tx.target, tx.routed = target{slot: sl, keyed: true}, true
	}
	return true
}

func (s *session) discard(cmd *command.Command, _ [][]byte, _ []byte) bool {
	if s.tx == nil || !s.tx.queueing {
		s.refuse("ERR DISCARD without MULTI")
		return true
	}
	if s.tx.pin != nil && s.drain() {
		return false
	}
	s.endTransaction()
	return s.ok(cmd)
}

// endTransaction forgets the transaction and gives the pin back. A connection
// that still watches is of no use to others, so it is told to stop first.
func (s *session) endTransaction() {
	tx := s.tx
	s.tx = nil
	s.unprepare(tx)
	if tx.pin == nil {
		return
	}
	if tx.live != nil {
		tx.pin.note("DISCARD")
	} else {
		tx.pin.note("UNWATCH")
	}
	tx.pin.giveBack()
}

func (s *session) exec(cmd *command.Command, _ [][]byte, raw []byte) bool {
	tx := s.tx
	switch {
	case tx == nil || !tx.queueing:
		s.refuse("ERR EXEC without MULTI")
		return true
	case tx.pin != nil && s.drain():
		return false
	case s.watchesElsewhere(tx):
		s.endTransaction()
		s.refuse("ERR the watched keys and those of the transaction are on different nodes of the Redis Cluster")
		return true
	case tx.aborted && tx.live == nil:
		s.endTransaction()
		s.refuse("EXECABORT Transaction discarded because of previous errors.")
		return true
	case tx.lostPin && tx.watches > 0:
		s.endTransaction()
		return s.answer(cmd, s.appendNullArray)
	case len(tx.cmds) == 0 && tx.pin == nil:
		s.tx = nil
		return s.answer(cmd, func(b []byte) []byte { return append(b, "*0\r\n"...) })
	case tx.sub.wanted && !s.prepare(tx):
		return false
	case tx.sub.refusal != "":
		s.endTransaction()
		s.refuse("EXECABORT Transaction discarded because of: " + strings.TrimPrefix(tx.sub.refusal, "ERR "))
		return true
	}
	return s.run(cmd, tx, raw)
}

func (s *session) appendNullArray(b []byte) []byte {
	if s.resp3 {
		return resp.AppendNull3(b)
	}
	return append(b, resp.NullArray...)
}

// run sends the whole block.
func (s *session) run(cmd *command.Command, tx *transaction, raw []byte) bool {
	l := s.loop
	if s.fetching > 0 && s.drain() {
		return false
	}
	t := tx.target
	if !tx.routed {
		t = l.anyShard()
	}
	if tx.strays() && s.drain() {
		return false
	}
	ln, cause := tx.pin, ""
	if ln == nil {
		var n *node
		switch n, cause = l.owner(t.slot); {
		case cause == errUnbound:
			cause = ""
		case cause != "":
		case tx.strays():
			ln, cause = s.lease(n)
			tx.pin = ln
		default:
			ln, cause = s.lane(n)
		}
	}
	if cause != "" {
		if !s.unserved(t.slot, cause) {
			return false
		}
		s.endTransaction()
		return true
	}
	if ln != nil && ln.full() {
		if !s.noRoom(ln) {
			return false
		}
		s.endTransaction()
		return true
	}
	tx.spareReplies(l)
	r := l.newRequest(s, cmd)
	r.slot, r.keyed, r.alone, r.private = t.slot, tx.routed, true, tx.strays()
	l.begin(r, &effectScratch{touches: tx.touches, barrier: tx.barrier})
	x := tx.live
	if x == nil {
		x = &execution{tx: tx}
	}
	x.exec, r.block = r, x
	r.raw = append(r.raw[:0], raw...)
	s.hush(r, tx)
	s.enqueue(r)
	s.tx = nil
	if tx.flushes {
		l.srv.scripts.flush()
	}
	for _, text := range tx.texts {
		l.scripts.digest([]byte(text))
	}
	if tx.pin != nil {
		tx.pin.giveBack()
		s.exclusive = true
		tx.pin.strayed = tx.pin.strayed || tx.strays()
	}
	if tx.hotEpoch != l.hotEpoch { // commands were queued when other keys were hot
		r.hotEpoch = tx.hotEpoch
		s.exclusive = true
	}
	if len(tx.own) > 0 {
		s.exclusive = true // what follows is about a session that EXEC may have changed
	}
	if ln == nil {
		l.awaitOwner(r)
		return true
	}
	if tx.live != nil {
		x.execLive(l, ln)
		return true
	}
	ln.sendKept(r, false)
	return true
}

// strays reports whether the block changes the database or protocol of its connection, which
// then has to be a private one.
func (tx *transaction) strays() bool {
	for i := range tx.own {
		if tx.own[i].greet || tx.own[i].run == nil && tx.own[i].amend == nil && tx.own[i].raw == nil {
			return true
		}
	}
	return false
}

// execution is a block in flight. It watches the answers to the queued commands
// for redirects, because EXEC itself only says that there were errors.
type execution struct {
	tx      *transaction
	exec    *request
	refusal string // the first error of a queued command that says that its key is elsewhere
}

func (x *execution) launch(l *loop, ln *lane) {
	x.refusal = ""
	x.queue(l, ln, len(x.tx.cmds))
	x.finish(l, ln)
}

func (x *execution) step(l *loop, ln *lane, raw []byte) {
	r := l.newRequest(nil, nil)
	r.sink, r.index, r.alone = x, 1, true
	ln.send(r, raw)
}

// deliver sees the answer to each step and, when the proxy takes part, to EXEC.
func (x *execution) deliver(l *loop, r *request, reply []byte) {
	if r == x.exec {
		if r.overrun {
			reply = []byte("-ERR the transaction was executed, but its reply exceeds clients.max_request\r\n")
		}
		x.answer(l, r, reply)
		return
	}
	if reply[0] == '-' {
		x.note(reply)
	}
	l.release(r)
}

// intercept deals with an EXEC that failed because its keys are elsewhere: at
// queueing, when only the step's answer tells, or at EXEC itself. Nothing was
// executed then, so the whole block is sent again.
func (x *execution) intercept(l *loop, from *lane, r *request, line string) bool {
	cause := line
	if rest, aborted := strings.CutPrefix(line, "EXECABORT "); aborted {
		if _, cause, aborted = strings.Cut(rest, "because of: "); !aborted {
			cause = x.refusal
		}
	}
	switch {
	case strings.HasPrefix(cause, "NOAUTH ") && from.key.as == nil:
		l.notLoggedIn(r, from.node, cause)
		return true
	case !l.resends || !elsewhere(cause):
		return false
	}
	s := r.sess
	word, _, _ := strings.Cut(cause, " ")
	if word != "ASK" {
		l.srv.opts.Topology.Refresh(word + " from " + from.node.addr)
	}
	addr, known := "", false
	if word == "ASK" || word == "MOVED" {
		addr, known = l.redirected(from.node.addr, cause)
	}
	switch {
	case s == nil:
		l.settle(r)
		l.release(r)
	case x.tx.watches > 0: // what was watched may have changed on the way to the new owner
		l.finish(r, s.appendNullArray(nil))
	case !known, word == "ASK" && r.caching == "YES", int(r.retries) >= l.srv.opts.Upstream.MaxRedirects:
		if addr != "" { // a module found a key there that the table could not tell
			cause = "no node serves all of its keys, the last one said " + cause
		}
		if cause = discarded + cause; !l.later(r, cause) {
			l.abort(r, cause)
		}
	default:
		l.redirect(r, addr, word == "ASK", discarded+errOvertaken(cause))
	}
	return true
}

const discarded = "EXECABORT Transaction discarded because of: "

// replyLen is the length of the complete reply at the start of b, however nested.
func replyLen(b []byte) int {
	if n := resp.Len(b); n > 0 {
		return n
	}
	var sc resp.ReplyScanner
	n, _, _ := sc.Scan(b)
	return n
}

func (s *session) watch(cmd *command.Command, args [][]byte, raw []byte) bool {
	l := s.loop
	if s.tx != nil && s.tx.queueing {
		s.errorNotAborting("ERR WATCH inside MULTI is not allowed")
		return true
	}
	if s.drain() {
		return false
	}
	l.keys, _ = cmd.Keys(args, l.keys[:0])
	t, same := l.common(args, l.keys)
	if !same {
		s.refuse(errCrossSlot)
		return true
	}
	n, cause := l.owner(t.slot)
	if cause != "" {
		return s.unserved(t.slot, cause)
	}
	if s.tx == nil {
		s.tx = &transaction{}
	}
	if s.tx.pin == nil {
		s.tx.pin, cause = s.lease(n)
		if cause != "" {
			if s.tx.watches == 0 { // else EXEC has to know that a watch was lost
				s.tx = nil
			}
			return s.unserved(t.slot, cause)
		}
	}
	if s.tx.pin.node != n {
		s.refuse(errWatchApart)
		return true
	}
	r := l.newRequest(s, cmd)
	r.slot, r.keyed, r.alone, r.private = t.slot, t.keyed, true, true
	s.tx.watches++
	s.tx.watched = t.slot
	if l.resends { // the pin is not the right one before the node has agreed
		s.exclusive = true
		r.raw = append(r.raw[:0], raw...)
	}
	s.enqueue(r)
	s.tx.pin.send(r, raw)
	return true
}

// unwatched: r, if it is a WATCH, is answered with an error, so its keys are not watched. A client that has begun its
// transaction without waiting for the answer is not to get it executed if the connection is lost.
func (l *loop) unwatched(r *request) {
	s := r.sess
	if !watches(r) || s == nil || s.tx == nil || s.tx.queueing {
		return
	}
	tx := s.tx
	if tx.watches--; tx.watches > 0 {
		return
	}
	if tx.pin != nil && tx.pin.closed {
		tx.pin = nil
	}
	s.endTransaction()
}

// rewatch is the connection for a WATCH that was redirected to n. What is watched
// already stays where it is, so only the first one can go elsewhere.
func (s *session) rewatch(n *node) (ln *lane, cause string) {
	tx := s.tx
	switch {
	case tx.pin != nil && tx.pin.node == n && !tx.pin.closed:
		return tx.pin, ""
	case tx.watches > 1:
		return nil, errWatchApart
	}
	if ln, cause = s.lease(n); cause != "" {
		return nil, cause
	}
	if tx.pin != nil && tx.pin.home == nil {
		tx.pin.node.unpin(tx.pin)
	}
	tx.pin, tx.lostPin = ln, false // this WATCH is all that was lost
	return ln, ""
}

// watchesElsewhere reports whether the keys of the transaction live on another node than
// those it watches, with nothing on the move that would excuse it: EXEC can never succeed.
func (s *session) watchesElsewhere(tx *transaction) bool {
	l := s.loop
	if !l.clusters || tx.pin == nil || tx.watches == 0 || !tx.routed || tx.pin.node.unsettled(l.now()) {
		return false
	}
	n, cause := l.owner(tx.target.slot)
	watched, _ := l.owner(tx.watched)
	return cause == "" && n != tx.pin.node && watched == tx.pin.node
}

const errWatchApart = "ERR keys of different nodes cannot be watched together through cosky-proxy"

func (s *session) unwatch(cmd *command.Command, _ [][]byte, _ []byte) bool {
	if s.tx == nil {
		return s.ok(cmd)
	}
	if s.drain() {
		return false
	}
	s.endTransaction()
	return s.ok(cmd)
}
