package proxy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"cosky-proxy/nearcache/coskey"
	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// Warming up (nearcache.warmup). Before the proxy says that it is ready, the named namespaces of CoSky are read
// into the near-cache: the indexes first, then what they name. And what was hot when its
// invalidation stream was lost is read again, slowly, when another one is there.

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
		w.spawn(&all, "HGETALL", key, nil)
	}
	for _, service := range services {
		w.spawn(&all, "SMEMBERS", coskey.AppendKey(nil, coskey.InstanceIndex, ns, service), func(instances [][]byte) {
			for _, id := range instances {
				w.spawn(&all, "HGETALL", coskey.AppendKey(nil, coskey.Instance, ns, id), nil)
			}
		})
	}
	all.Wait()
	w.srv.log.Info("namespace loaded", "namespace", string(ns), "configs", len(configs), "services", len(services),
		"replies", w.loaded.Load()-before, "took", time.Since(begun).Round(time.Millisecond))
}

// spawn reads in the background, when there is room for one more. then gets the members.
func (w *warmer) spawn(all *sync.WaitGroup, command string, key []byte, then func(members [][]byte)) {
	select {
	case w.slots <- struct{}{}:
	case <-w.ctx.Done():
		return
	}
	all.Go(func() {
		members := w.read(command, key)
		<-w.slots // before others are spawned: they need it
		if then != nil {
			then(members)
		}
	})
}

const (
	warmupPause = 20 * time.Millisecond // between two attempts
	warmupTries = 50                    // of one read, once others have succeeded
)

// read has a reply cached and returns its elements. Streams that are not in place yet, or a write in flight,
// are waited for.
func (w *warmer) read(command string, key []byte) [][]byte {
	for try := 0; try < warmupTries || w.loaded.Load() == 0; try++ {
		if reply, ok := w.once(command, key); ok {
			w.loaded.Add(1)
			return elements(reply)
		}
		if !sleep(w.ctx, warmupPause) {
			break
		}
	}
	w.failed.Add(1)
	return nil
}

func (w *warmer) once(command string, key []byte) (reply []byte, ok bool) {
	class, _ := coskey.Classify(key)
	l := w.srv.loops[0].curator(&policy{class: class}, key)
	done := make(chan []byte, 1)
	if !l.nl.Post(func() { l.preload(command, key, func(reply []byte) { done <- reply }) }) {
		return nil, false
	}
	select {
	case reply = <-done:
	case <-w.ctx.Done():
	}
	return reply, reply != nil
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
	if l.srv.opts.Cache.Warmup.Rate == 0 {
		return
	}
	share := l.srv.opts.Cache.Warmup.Rate * int(tickInterval/time.Millisecond) / 1000 / len(l.srv.loops)
	for range max(share, 1) {
		lapse, ok := l.reader.Lapsed()
		if !ok {
			return
		}
		if int(lapse.Kind) >= len(l.reads) || l.reads[lapse.Kind] == nil { // a script's reply: its readers have it executed
			continue
		}
		cmd := l.table.All()[lapse.Kind]
		args := append([][]byte{[]byte(cmd.Name)}, lapse.Args...)
		f, reply := l.refetch(lapse.DB, cmd, args)
		if f == nil && reply == nil && now-lapse.At < int64(lapsedFor) { // not yet
			l.reader.Lapse(lapse)
			return
		}
	}
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
