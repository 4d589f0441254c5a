package proxy

import (
	"fmt"
	"strings"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/proxy/stats"
	"cosky-proxy/router/command"
)

// info answers INFO: the backend's sections and one of the proxy's own.
func (s *session) info(cmd *command.Command, args [][]byte, raw []byte) bool {
	l := s.loop
	own, others := infoSections(args[1:])
	if l.srv.opts.Backend.Mode == cluster.Embedded {
		others = false
	}
	r := l.newRequest(s, cmd)
	r.sentAt = l.now()
	s.enqueue(r)
	a := &infoAnswer{own: own, r: r, embedded: l.srv.opts.Backend.Mode == cluster.Embedded}
	if !others {
		l.gatherStats(func(sum stats.Snapshot) { a.complete(l, sum) })
		return true
	}
	n, cause := l.owner(l.anyShard().slot)
	var ln *lane
	if cause == "" {
		ln, cause = n.lane(s.laneKey())
	}
	if cause != "" {
		l.abort(r, cause)
		return true
	}
	ask := l.newRequest(nil, nil)
	ask.sink, ask.db, ask.resp3, ask.as = a, s.db, s.resp3, s.as
	ln.send(ask, raw)
	r.seq = ask.seq
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
	r        *request // the client's
	own      bool
	embedded bool
	text     []byte // the backend's part
}

// deliver takes the backend's part.
func (a *infoAnswer) deliver(l *loop, ask *request, reply []byte) {
	if reply[0] == '-' {
		l.finish(a.r, reply)
		l.release(ask)
		return
	}
	a.text = []byte(l.srv.presentMode(infoText(reply)))
	l.release(ask)
	if !a.own {
		a.send(l)
		return
	}
	l.gatherStats(func(sum stats.Snapshot) { a.complete(l, sum) })
}

// infoText is the body of a bulk or verbatim string.
func infoText(reply []byte) string {
	_, n, size := resp.ReadHeader(reply)
	body := reply[size : size+int(n)]
	if reply[0] == '=' {
		body = body[len("txt:"):]
	}
	return string(body)
}

func (a *infoAnswer) complete(l *loop, sum stats.Snapshot) {
	if a.embedded {
		a.text = []byte(l.srv.presentMode(string(l.srv.embeddedInfo(a.text))))
	}
	if a.own {
		if len(a.text) > 0 {
			a.text = append(a.text, '\r', '\n')
		}
		a.text = l.srv.appendProxyInfo(a.text, &sum)
	}
	a.send(l)
}

func (a *infoAnswer) send(l *loop) {
	r := a.r
	l.countReply(r.cmd, r.sentAt, false)
	if r.resp3 {
		l.out = resp.AppendVerbatim(l.out[:0], "txt", a.text)
	} else {
		l.out = resp.AppendBulk(l.out[:0], a.text)
	}
	l.finish(r, l.out)
}

// embeddedInfo is what clients look for in INFO, for a backend that has none.
func (s *Server) embeddedInfo(b []byte) []byte {
	return fmt.Appendf(b, "# Server\r\nredis_version:%s\r\nredis_mode:standalone\r\nrun_id:%040d\r\ntcp_port:0\r\nuptime_in_seconds:%d\r\n\r\n# Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n",
		s.opts.Backend.Version, 0, int(time.Since(s.started).Seconds()))
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
	line("proxy_protocol_errors", sum.ProtocolErrors)
	line("proxy_client_buffer_bytes", sum.BufferBytes)
	line("proxy_pubsub_feeds_lost", sum.FeedsLost)
	line("proxy_pubsub_resubscriptions", sum.Resubscriptions)
	line("proxy_pubsub_subscribers_dropped", sum.SubscribersDropped)
	line("proxy_lanes", sum.Lanes)
	line("proxy_pins", sum.Pins)
	line("proxy_redirects", sum.Redirects)
	line("proxy_retries", sum.Retries)
	line("proxy_timeouts", sum.Timeouts)
	line("proxy_scripts_healed", sum.ScriptsHealed)
	line("nearcache_sources", s.sources)
	line("nearcache_hits", sum.Hits)
	line("nearcache_misses", sum.Misses)
	line("nearcache_joined", sum.Joined)
	line("nearcache_bypasses", sum.Bypasses)
	line("nearcache_invalidations", sum.Invalidations)
	line("nearcache_entries", c.Entries)
	line("nearcache_bytes", c.Bytes)
	return b
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
