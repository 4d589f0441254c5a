package proxy

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/proxy/stats"
	"cosky-proxy/router/command"
	"cosky-proxy/router/info"
)

// info answers INFO: the backend's sections, on a cluster those of all masters in
// one, and one of the proxy's own.
func (s *session) info(cmd *command.Command, args [][]byte, raw []byte) bool {
	l := s.loop
	r := l.newRequest(s, cmd)
	r.sentAt = l.now()
	s.enqueue(r)
	own, others := infoSections(args[1:])
	a := &infoAnswer{own: own, resp3: r.resp3, done: func(reply []byte) {
		l.countReply(r.cmd, r.sentAt, reply[0] == '-')
		l.finish(r, reply)
	}}
	if !others {
		a.complete(l)
		return true
	}
	if seq := a.ask(l, r.laneKey(), raw); a.missing > 0 { // else r is answered and gone
		r.seq = seq
	}
	return true
}

// infoSections: the proxy's section is part of the default, all and everything.
func infoSections(args [][]byte) (own, others bool) {
	if len(args) == 0 {
		return true, true
	}
	for _, a := range args {
		switch strings.ToLower(string(a)) {
		case "proxy":
			own = true
		case "all", "everything", "default":
			own, others = true, true
		default:
			others = true
		}
	}
	return own, others
}

// infoAnswer puts an INFO reply together.
type infoAnswer struct {
	own     bool // the proxy's section is wanted
	resp3   bool
	texts   []string // the masters' answers, as far as there are any
	refusal []byte   // an error of one that gave none
	asked   int      // masters on a cluster
	missing int      // of them, those that have not answered
	done    func(reply []byte)
}

// ask sends raw to every master, and returns the sequence number of what was sent last. On
// a cluster one that does not answer is left out: a client that looks whether the
// server is up must not find it down because of one shard.
func (a *infoAnswer) ask(l *loop, key laneKey, raw []byte) (seq uint64) {
	if l.srv.opts.Backend.Mode == cluster.Embedded {
		a.texts = []string{l.srv.embeddedInfo()}
		a.complete(l)
		return 0
	}
	targets := l.everyShard()
	a.asked, a.missing = len(targets), len(targets)
	for _, t := range targets {
		r := l.newRequest(nil, nil)
		r.sink = a
		r.takeKey(key)
		r.limit = l.srv.opts.Clients.MaxRequest
		r.slot, r.keyed = t.slot, true
		n, cause := l.owner(t.slot)
		var ln *lane
		if cause == "" {
			ln, cause = n.lane(key)
		}
		if cause != "" {
			l.abort(r, cause)
			continue
		}
		ln.send(r, raw)
		seq = r.seq
	}
	if len(targets) == 0 {
		a.done([]byte("-" + errNoBackend + "\r\n"))
	}
	return seq
}

// deliver takes one master's part.
func (a *infoAnswer) deliver(l *loop, ask *request, reply []byte) {
	if text, is := infoText(reply); is && !ask.overrun {
		a.texts = append(a.texts, text)
	} else {
		a.refusal = bytes.Clone(reply)
	}
	l.release(ask)
	if a.missing--; a.missing == 0 {
		a.complete(l)
	}
}

// infoText is the body of a bulk or verbatim string.
func infoText(reply []byte) (text string, is bool) {
	v, n, err := resp.Parse(reply)
	if n == 0 || err != nil || v.Null || v.Kind != '$' && v.Kind != '=' {
		return "", false
	}
	return string(v.Text()), true
}

// complete adds the proxy's section to what the masters have said.
func (a *infoAnswer) complete(l *loop) {
	switch {
	case len(a.texts) == 0 && a.refusal != nil:
		a.done(a.refusal)
	case !a.own && !a.aboutClients():
		a.send(l, a.text(l))
	default:
		l.gatherStats(func(sum stats.Snapshot) {
			b := []byte(presentClients(a.text(l), &sum))
			if !a.own {
				a.send(l, string(b))
				return
			}
			if len(b) > 0 {
				b = append(b, "\r\n"...)
			}
			b = l.srv.appendProxyInfo(b, &sum)
			if l.clusters && a.asked > 0 {
				b = fmt.Appendf(b, "proxy_masters_asked:%d\r\nproxy_masters_silent:%d\r\n", a.asked, a.asked-len(a.texts))
			}
			a.send(l, string(b))
		})
	}
}

// text is the masters' part.
func (a *infoAnswer) text(l *loop) string {
	text := strings.Join(a.texts, "")
	if l.clusters {
		text = info.Aggregate(a.texts, map[string]string{"role": "master"})
	}
	return l.srv.presentMode(text)
}

// aboutClients reports whether the section of clients was asked for.
func (a *infoAnswer) aboutClients() bool {
	return slices.ContainsFunc(a.texts, func(text string) bool { return strings.Contains(text, "connected_clients:") })
}

// presentClients makes INFO speak of the proxy's clients instead of its connections to
// the backend. A client that is held here is blocked, as it would be there.
func presentClients(text string, sum *stats.Snapshot) string {
	text = replaceField(text, "connected_clients", func(int64) int64 { return sum.Clients })
	return replaceField(text, "blocked_clients", func(there int64) int64 { return there + sum.Paused })
}

// replaceField changes the number in the line "name:number" of an INFO.
func replaceField(text, name string, change func(int64) int64) string {
	before, after, found := strings.Cut(text, "\r\n"+name+":")
	if !found {
		return text
	}
	old, rest, _ := strings.Cut(after, "\r\n")
	n, err := strconv.ParseInt(old, 10, 64)
	if err != nil {
		return text
	}
	return fmt.Sprintf("%s\r\n%s:%d\r\n%s", before, name, change(n), rest)
}

func (a *infoAnswer) send(l *loop, text string) {
	if a.resp3 {
		l.out = resp.AppendVerbatim(l.out[:0], "txt", []byte(text))
	} else {
		l.out = resp.AppendBulkString(l.out[:0], text)
	}
	a.done(l.out)
}

// queuedInfo is an INFO among the queued commands of a transaction.
type queuedInfo struct {
	at  int    // position among them
	raw []byte // as it was sent
	own bool   // the proxy's section is wanted
	all bool   // others are, too
}

// queueInfo notes an INFO in the transaction and returns what goes into the block: on
// one Redis INFO itself, else a stand-in for what is asked after EXEC.
func (tx *transaction) queueInfo(l *loop, args [][]byte, raw []byte) []byte {
	q := queuedInfo{at: len(tx.cmds), raw: bytes.Clone(raw)}
	q.own, q.all = infoSections(args[1:])
	tx.infos = append(tx.infos, q)
	if l.clusters || l.srv.opts.Backend.Mode == cluster.Embedded {
		l.enc = resp.AppendCommand(l.enc[:0], "PING")
		return l.enc
	}
	return raw
}

// finishExec answers EXEC, once every INFO in the block is complete.
func (l *loop) finishExec(r *request, tx *transaction, reply []byte) {
	kind, n, size := resp.ReadHeader(reply)
	if len(tx.infos) == 0 || r.sess == nil || kind != '*' || int(n) != len(tx.cmds) {
		l.finish(r, reply)
		return
	}
	answers := make([][]byte, 0, n)
	for rest := bytes.Clone(reply[size:]); len(rest) > 0; {
		n := replyLen(rest)
		answers = append(answers, rest[:n:n])
		rest = rest[n:]
	}
	l.completeInfos(r, tx.infos, answers)
}

// completeInfos replaces the answers to infos one after the other.
func (l *loop) completeInfos(r *request, infos []queuedInfo, answers [][]byte) {
	if len(infos) == 0 {
		out := resp.AppendArray(nil, len(answers))
		l.finish(r, append(out, bytes.Join(answers, nil)...))
		return
	}
	q := infos[0]
	a := &infoAnswer{own: q.own, resp3: r.resp3, done: func(reply []byte) {
		answers[q.at] = bytes.Clone(reply)
		l.completeInfos(r, infos[1:], answers)
	}}
	text, is := infoText(answers[q.at])
	switch {
	case !q.all:
		a.complete(l)
	case is:
		a.texts = []string{text}
		a.complete(l)
	case answers[q.at][0] == '-':
		a.done(answers[q.at])
	default: // the stand-in
		a.ask(l, r.laneKey(), q.raw)
	}
}

// embeddedInfo is what clients look for in INFO, for a backend that has none.
func (s *Server) embeddedInfo() string {
	return fmt.Sprintf("# Server\r\nredis_version:%s\r\nredis_mode:standalone\r\nrun_id:%040d\r\ntcp_port:0\r\nuptime_in_seconds:%d\r\n\r\n# Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n",
		s.version(), 0, int(time.Since(s.started).Seconds()))
}

// gatherStats sums the counters of all loops without stopping any.
func (l *loop) gatherStats(done func(stats.Snapshot)) {
	loops := l.srv.loops
	var sum stats.Snapshot
	missing := len(loops)
	for _, o := range loops {
		o.nl.Post(func() {
			one := o.snapshot()
			l.nl.Post(func() {
				sum.Add(&one)
				if missing--; missing == 0 {
					done(l.srv.withShared(sum))
				}
			})
		})
	}
}

// appendProxyInfo appends the section "Proxy".
func (s *Server) appendProxyInfo(b []byte, sum *stats.Snapshot) []byte {
	c := s.CacheStats()
	b = append(b, "# Proxy\r\n"...)
	line := func(name string, value any) { b = fmt.Appendf(b, "%s:%v\r\n", name, value) }
	line("proxy_backend", modeName(s.opts.Backend.Mode))
	line("proxy_loops", len(s.loops))
	line("proxy_uptime_in_seconds", int(time.Since(s.started).Seconds()))
	line("proxy_connected_clients", sum.Clients)
	line("proxy_subscribers", sum.Subscribers)
	line("proxy_accepted_connections", sum.Accepted)
	line("proxy_rejected_connections", sum.Rejected)
	line("proxy_cut_clients", sum.Cut)
	line("proxy_idle_closed_clients", sum.IdleClosed)
	line("proxy_protocol_errors", sum.ProtocolErrors)
	line("proxy_client_buffer_bytes", sum.BufferBytes)
	line("proxy_pubsub_feeds_lost", sum.FeedsLost)
	line("proxy_pubsub_resubscriptions", sum.Resubscriptions)
	line("proxy_pubsub_subscribers_dropped", sum.SubscribersDropped)
	line("proxy_lanes", sum.Lanes)
	line("proxy_pins", sum.Pins)
	for i := range sum.Limits {
		m := &sum.Limits[i]
		line(fmt.Sprintf("proxy_limit_%d", i+1), fmt.Sprintf("per=%s,match=%s,names=%d,too_fast=%d,too_many=%d", m.Per, onOneLine(m.Match), s.quotas.Names(i), m.TooFast, m.TooMany))
	}
	line("proxy_redirects", sum.Redirects)
	line("proxy_replica_reads", sum.ReplicaReads)
	line("proxy_retries", sum.Retries)
	line("proxy_timeouts", sum.Timeouts)
	line("proxy_scripts_healed", sum.ScriptsHealed)
	line("proxy_slow_commands", sum.SlowCommands)
	line("nearcache_sources", s.abilities.Load().sources)
	line("nearcache_hits", sum.Hits)
	line("nearcache_misses", sum.Misses)
	line("nearcache_joined", sum.Joined)
	line("nearcache_bypasses", sum.Bypasses)
	line("nearcache_invalidations", sum.Invalidations)
	line("nearcache_volatile", sum.Volatile)
	line("nearcache_stale_hits", sum.StaleHits)
	line("nearcache_stale_nodes", sum.StaleNodes)
	line("nearcache_view_reads", sum.ViewReads)
	line("nearcache_entries", c.Entries)
	line("nearcache_bytes", c.Bytes)
	for i := range sum.Rules {
		r := &sum.Rules[i]
		line(fmt.Sprintf("nearcache_rule_%d", i+1), fmt.Sprintf("hits=%d,misses=%d,match=%s", r.Hits, r.Misses, onOneLine(r.Match)))
	}
	return b
}

// onOneLine is a pattern as a line can show it.
func onOneLine(pattern string) string {
	quoted := strconv.QuoteToASCII(pattern)
	return quoted[1 : len(quoted)-1]
}

func (s sources) String() string {
	switch {
	case s.tracking && s.pubsub:
		return "tracking+pubsub"
	case s.tracking:
		return "tracking"
	case s.pubsub:
		return "pubsub"
	}
	return "off"
}
