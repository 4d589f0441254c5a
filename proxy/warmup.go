package proxy

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"cosky-proxy/lua"
	"cosky-proxy/nearcache"
	"cosky-proxy/nearcache/coskey"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// Warming up (nearcache.warmup). Before the proxy says that it is ready, the named namespaces of CoSky are read
// into the near-cache: the indexes first, then what they name, then what scripts answer about each
// service. Clients call these in several wordings, each of which has replies of its own; those that
// the backend knows are in use. And what was hot when its invalidation stream was lost is read again,
// slowly, when another one is there.

// WarmupOptions say what is read before anybody asks.
type WarmupOptions struct {
	Namespaces  []string
	Concurrency int           // reads under way at the same time
	Timeout     time.Duration // the proxy is ready after this in any case
	Rate        int           // reads per second of what was hot before a stream was lost; 0: none
}

// warmer loads namespaces. It runs on goroutines of its own and reads through the loops.
type warmer struct {
	// static
	srv   *Server
	ctx   context.Context
	slots chan struct{} // reads under way

	// atomic
	loaded, failed atomic.Int64
}

// warmUp loads the configured namespaces; the proxy is ready when it returns. Nothing that
// fails makes it fail: what is not in memory is fetched when somebody asks for it.
func (s *Server) warmUp(ctx context.Context) {
	o := &s.opts.Cache.Warmup
	if !s.warming.Load() {
		return
	}
	defer s.warming.Store(false)
	for s.opts.Topology.Current() == nil {
		if !sleep(ctx, warmupPause) {
			return
		}
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	s.log.Info("warming up", "namespaces", o.Namespaces)
	w := &warmer{srv: s, ctx: ctx, slots: make(chan struct{}, o.Concurrency)}
	for _, ns := range o.Namespaces {
		w.namespace([]byte(ns))
	}
	level := s.log.Info
	if ctx.Err() != nil {
		level = s.log.Warn
	}
	level("warmed up", "complete", ctx.Err() == nil, "replies", w.loaded.Load(), "failed", w.failed.Load(), "took", time.Since(begun).Round(time.Millisecond))
}

// namespace loads one: configs by their index, instances by service.
func (w *warmer) namespace(ns []byte) {
	begun, before := time.Now(), w.loaded.Load()
	var all sync.WaitGroup
	configs := w.read("SMEMBERS", coskey.AppendKey(nil, coskey.ConfigIndex, ns, nil))
	services := w.read("SMEMBERS", coskey.AppendKey(nil, coskey.ServiceIndex, ns, nil))
	w.read("HGETALL", coskey.AppendKey(nil, coskey.ServiceStat, ns, nil))
	for _, key := range configs {
		w.spawn(&all, func() { w.read("HGETALL", key) }, nil)
	}
	for _, service := range services {
		var instances [][]byte
		w.spawn(&all, func() {
			instances = w.read("SMEMBERS", coskey.AppendKey(nil, coskey.InstanceIndex, ns, service))
		}, func() {
			for _, id := range instances {
				w.spawn(&all, func() { w.read("HGETALL", coskey.AppendKey(nil, coskey.Instance, ns, id)) }, nil)
			}
		})
	}
	all.Wait()
	scripts := w.scriptsInUse(ns)
	for _, sc := range scripts {
		if sc.Answer == lua.Topology {
			w.spawn(&all, func() { w.view(sc, ns) }, nil)
			continue
		}
		for _, service := range services {
			w.spawn(&all, func() { w.view(sc, ns, service) }, nil)
		}
	}
	all.Wait()
	w.srv.log.Info("namespace loaded", "namespace", string(ns), "configs", len(configs), "services", len(services),
		"scripts", len(scripts), "replies", w.loaded.Load()-before, "took", time.Since(begun).Round(time.Millisecond))
}

// spawn runs read in the background, when there is room for one more, and then next, which may
// spawn others.
func (w *warmer) spawn(all *sync.WaitGroup, read, next func()) {
	select {
	case w.slots <- struct{}{}:
	case <-w.ctx.Done():
		return
	}
	all.Go(func() {
		read()
		<-w.slots // before others are spawned: they need it
		if next != nil {
			next()
		}
	})
}

const (
	warmupPause = 20 * time.Millisecond // between two attempts
	warmupTries = 50                    // of one read, once others have succeeded
	viewTries   = 5                     // of a script: some replies cannot be kept
)

// read has a reply cached and returns its elements. Streams that are not in place yet, or a write in flight,
// are waited for.
func (w *warmer) read(command string, key []byte) [][]byte {
	class, _ := coskey.Classify(key)
	l := w.srv.loops[0].curator(&policy{class: class}, key)
	reply := w.insist(l, warmupTries, func(done func([]byte)) { l.preload(command, key, done) })
	if reply == nil {
		return nil
	}
	return elements(reply)
}

// view has cached what a script answers.
func (w *warmer) view(sc *lua.Script, ns []byte, args ...[]byte) {
	l := w.srv.loops[0].curatorOf(ns)
	call := append([][]byte{[]byte("EVALSHA"), []byte(sc.SHA1), []byte("1"), ns}, args...)
	w.insist(l, viewTries, func(done func([]byte)) { l.preview(sc, call, done) })
}

// insist has get called on l until it brings something. It returns nil when there is no hope.
func (w *warmer) insist(l *loop, tries int, get func(done func(reply []byte))) []byte {
	for try := 0; try < tries || w.loaded.Load() == 0; try++ {
		if reply := w.await(l, get); reply != nil {
			w.loaded.Add(1)
			return reply
		}
		if !sleep(w.ctx, warmupPause) {
			break
		}
	}
	w.failed.Add(1)
	return nil
}

// await has get called on l, and returns what it brings.
func (w *warmer) await(l *loop, get func(done func(reply []byte))) (reply []byte) {
	answer := make(chan []byte, 1)
	if !l.nl.Post(func() { get(func(reply []byte) { answer <- reply }) }) {
		return nil
	}
	select {
	case reply = <-answer:
	case <-w.ctx.Done():
	}
	return reply
}

// scriptsInUse are those whose replies are worth having for a whole namespace, in the wordings that its node knows.
func (w *warmer) scriptsInUse(ns []byte) (used []*lua.Script) {
	var all []*lua.Script
	ask := [][]byte{[]byte("SCRIPT"), []byte("EXISTS")}
	for _, sc := range w.srv.known {
		if sc.Answer == lua.Instances || sc.Answer == lua.Topology {
			all = append(all, sc)
			ask = append(ask, []byte(sc.SHA1))
		}
	}
	l := w.srv.loops[0]
	reply := w.await(l, func(done func([]byte)) {
		l.putTo(l.target(ns), laneKey{}, ask, func(reply []byte) { done(bytes.Clone(reply)) })
	})
	if len(reply) == 0 || reply[0] != '*' {
		return nil
	}
	for i, known := range bytes.Split(bytes.TrimSuffix(reply, []byte("\r\n")), []byte("\r\n"))[1:] {
		if string(known) == ":1" {
			used = append(used, all[i])
		}
	}
	return used
}

// preview has the reply to a call of a script cached and passes it to done; nil if that is impossible now.
func (l *loop) preview(sc *lua.Script, call [][]byte, done func(reply []byte)) {
	if l.cache == nil || len(l.shards) == 0 {
		done(nil)
		return
	}
	raw := resp.AppendCommandBytes(nil, call)
	q := l.cache.Ask(int32(l.srv.opts.Backend.DB), viewKind, behindName(raw, call[0]), nil)
	l.view(newViewQuestion(q, sc, raw), func(e *nearcache.Entry) {
		if e == nil {
			done(nil)
			return
		}
		done(e.AppendReply(nil, false))
	})
}

// preload has the reply to a read of key cached and passes it to done; nil if that is impossible now.
func (l *loop) preload(name string, key []byte, done func(reply []byte)) {
	args := [][]byte{[]byte(name), key}
	cmd, _ := l.table.Resolve(args)
	if cmd == nil || l.cache == nil || len(l.shards) == 0 {
		done(nil)
		return
	}
	f, reply := l.refetch(int32(l.srv.opts.Backend.DB), cmd, args)
	if f == nil {
		done(reply)
		return
	}
	f.onEnd = append(f.onEnd, done)
}

// refetch starts or joins the fetch of a read for nobody in particular. Without a fetch there is the reply,
// because it is in memory, or neither, because it cannot be cached at the moment.
func (l *loop) refetch(db int32, cmd *command.Command, args [][]byte) (f *fetch, reply []byte) {
	rd := l.reads[cmd.ID]
	if rd == nil || !rd.keeps(args) {
		return nil, nil
	}
	p := l.policyOf(rd.bit, args[1])
	if !p.keeps {
		return nil, nil
	}
	q := l.ask(db, cmd, rd, args)
	if e := l.reader.Get(&q, l.now()); e != nil {
		return nil, e.AppendReply(nil, false)
	}
	raw := resp.AppendCommandBytes(nil, args)
	return l.fetchOf(&fetch{question: q, read: rd, shape: rd.shapeOf(args), policy: p, raw: raw}), nil
}

// ended tells those who only wanted the reply in memory.
func (f *fetch) ended() {
	for _, done := range f.onEnd {
		if f.failed {
			done(nil)
		} else {
			done(f.body)
		}
	}
	f.onEnd = nil
}

// rewarm reads again what was hot when its stream was lost, within the rate. The loop's tick calls it.
func (l *loop) rewarm(now int64) {
	rate := l.srv.opts.Cache.Warmup.Rate
	if rate == 0 {
		return
	}
	share := max(rate*int(tickInterval/time.Millisecond)/1000/len(l.srv.loops), 1)
	for l.warmth = min(l.warmth+share, share); l.warmth > 0; {
		reads := l.views.rewarm(now)
		if reads == 0 {
			reads = l.rewarmNext(now)
		}
		if reads == 0 {
			return
		}
		l.warmth -= reads
	}
}

// rewarmNext reads the next of what clients were served from this loop's front table. It returns the number of
// reads, 0 if there is nothing to do, or not yet.
func (l *loop) rewarmNext(now int64) (reads int) {
	lapse, ok := l.reader.Lapsed()
	switch {
	case !ok:
		return 0
	case int(lapse.Kind) >= len(l.reads) || l.reads[lapse.Kind] == nil: // a view: its owner knows
		return 1
	}
	cmd := l.table.All()[lapse.Kind]
	args := append([][]byte{[]byte(cmd.Name)}, lapse.Args...)
	f, reply := l.refetch(lapse.DB, cmd, args)
	if f == nil && reply == nil && now-lapse.At < int64(lapsedFor) {
		l.reader.Lapse(lapse)
		return 0
	}
	return 1
}

// lapsedView is a view that was in use until its stream was lost.
type lapsedView struct {
	q     *viewQuestion
	reads int   // that fetching it takes
	at    int64 // when it was noticed (mono)
}

// maxLapsedViews bounds what is remembered to be fetched again.
const maxLapsedViews = 4096

// lapse remembers v, which is void, if it was in use and its stream is the only reason.
func (vs *views) lapse(v *view, now int64) {
	idle := int64(vs.loop.srv.opts.Cache.RefreshIdle)
	inUse := v.entry.TakeRead() || idle == 0 || now-v.usedAt <= idle
	if inUse && vs.loop.cache.Lapsed(v.entry, now) && len(vs.lapsed) < maxLapsedViews {
		vs.lapsed = append(vs.lapsed, lapsedView{v.q, 1 + len(v.parts), now})
	}
}

// rewarm fetches the next of the views that have lapsed. It returns the number of reads that takes, 0 if there is
// nothing to do, or not yet.
func (vs *views) rewarm(now int64) (reads int) {
	if len(vs.lapsed) == 0 {
		vs.lapsed = nil
		return 0
	}
	next := vs.lapsed[0]
	done := false
	vs.loop.view(next.q, func(*nearcache.Entry) { done = true })
	vs.lapsed = vs.lapsed[1:]
	if done && vs.of(&next.q.Question) == nil && now-next.at < int64(lapsedFor) {
		vs.lapsed = append(vs.lapsed, next)
		return 0
	}
	return next.reads
}

// lapsedFor is how long it matters what was hot once.
const lapsedFor = 30 * time.Second

// elements are those of an array of bulk strings.
func elements(reply []byte) (all [][]byte) {
	_, count, size := resp.ReadHeader(reply)
	rest := reply[size:]
	for range max(count, 0) {
		e, n := resp.ReadBulk(rest)
		all = append(all, append([]byte(nil), e...))
		rest = rest[n:]
	}
	return all
}

// sleep reports whether it lasted, rather than ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
