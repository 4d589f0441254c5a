package proxy

import (
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"strings"
	"sync"
	"sync/atomic"

	"cosky-proxy/lua"
	"cosky-proxy/nearcache"
	"cosky-proxy/nearcache/coskey"
	"cosky-proxy/router"
	"cosky-proxy/router/command"
)

// scriptMemory remembers the texts of scripts that went through the proxy, so
// that a node which has lost one (a restart, a failover, a shard that joined later) can
// be given it again instead of the client being told NOSCRIPT. It is shared by all loops.
type scriptMemory struct {
	// static
	maxCount int
	maxBytes int64

	// atomic
	generation atomic.Uint64 // bumped by every flush, so that loops drop their views

	// guarded by mu
	mu    sync.RWMutex
	texts map[string]string // by digest
	libs  map[string]string // by the only function that the library has
	bytes int64
}

func newScriptMemory(o ScriptOptions) *scriptMemory {
	return &scriptMemory{maxCount: o.MaxCount, maxBytes: o.MaxBytes, texts: make(map[string]string), libs: make(map[string]string)}
}

// add remembers text and returns its digest. A full memory forgets everything:
// scripts come back with their next EVAL, and no bookkeeping is spent on the rare case.
func (m *scriptMemory) add(text string) (sha string) {
	sha = digestOf([]byte(text))
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.texts[sha]; known {
		return sha
	}
	if len(m.texts) >= m.maxCount || m.bytes+int64(len(text)) > m.maxBytes {
		m.clearLocked()
	}
	m.texts[sha] = text
	m.bytes += int64(len(text))
	return sha
}

func digestOf(text []byte) string {
	sum := sha1.Sum(text)
	return hex.EncodeToString(sum[:])
}

// text returns the script of a digest in any letter case, "" when unknown.
func (m *scriptMemory) text(sha []byte) string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.texts[string(bytes.ToLower(sha))]
}

// addLibrary remembers a library of one function. Nothing depends on it but where the function is called that
// declares no keys.
func (m *scriptMemory) addLibrary(text string) {
	name := router.OnlyFunction([]byte(text))
	if name == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.libs) >= m.maxCount || m.bytes+int64(len(text)) > m.maxBytes {
		m.clearLocked()
	}
	m.bytes += int64(len(text)) - int64(len(m.libs[string(name)]))
	m.libs[string(name)] = text
	m.generation.Add(1)
}

// library returns the text that defines a function, "" when unknown.
func (m *scriptMemory) library(function []byte) string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.libs[string(function)]
}

// flush forgets scripts, not functions.
func (m *scriptMemory) flush() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.texts)
	m.bytes = 0
	for _, text := range m.libs {
		m.bytes += int64(len(text))
	}
	m.generation.Add(1)
}

func (m *scriptMemory) clearLocked() {
	clear(m.texts)
	clear(m.libs)
	m.bytes = 0
	m.generation.Add(1)
}

// scriptView is one loop's lock-free memory of the digests of texts it has seen.
type scriptView struct {
	shared     *scriptMemory
	digests    map[string]string           // by text
	keys       map[string]router.ScriptKey // by digest or function, of those that were called without keys
	swaps      map[string]bool             // by digest: whether the text mentions SWAPDB
	generation uint64
}

// digest returns the digest of an EVAL's text and makes sure it is remembered.
func (v *scriptView) digest(text []byte) string {
	v.refresh()
	if sha, known := v.digests[string(text)]; known {
		return sha
	}
	owned := string(text)
	sha := v.shared.add(owned)
	v.digests[owned] = sha
	return sha
}

// refresh forgets everything after a flush, and when it is too much.
func (v *scriptView) refresh() {
	if g := v.shared.generation.Load(); v.digests == nil || g != v.generation || len(v.digests)+len(v.keys)+len(v.swaps) > 3*v.shared.maxCount {
		v.digests, v.keys, v.swaps, v.generation = make(map[string]string), make(map[string]router.ScriptKey), make(map[string]bool), g
	}
}

// swapper reports whether the script called by cmd mentions SWAPDB, as far as its text is known.
func (v *scriptView) swapper(cmd *command.Command, name []byte, args [][]byte) bool {
	v.refresh()
	swaps, known := v.swaps[string(name)]
	if known {
		return swaps
	}
	text := ""
	switch {
	case byText(cmd):
		text = string(args[1])
	case byDigest(cmd):
		text = v.shared.text(name)
	}
	if text == "" { // it may come to be known
		return false
	}
	swaps = strings.Contains(strings.ToLower(text), "swapdb")
	v.swaps[string(name)] = swaps
	return swaps
}

// key returns the first key that a script or function uses although its caller declares none, nil if its text
// does not show it or is not known.
func (v *scriptView) key(cmd *command.Command, name []byte, argv [][]byte, find func([]byte) *command.Command) []byte {
	v.refresh()
	k, known := v.keys[string(name)]
	if !known {
		text := ""
		if cmd.Name == "fcall" || cmd.Name == "fcall_ro" {
			text = v.shared.library(name)
		} else if text = v.shared.text(name); text == "" {
			return nil // the digest may come to be known
		}
		k = router.KeyOfScript([]byte(text), find)
		v.keys[string(name)] = k
	}
	return k.Of(argv)
}

// undeclared is the target of a script called without keys: the shard that has the first key it will use, or
// one that its name alone decides.
func (l *loop) undeclared(cmd *command.Command, name []byte, argv [][]byte) target {
	if !l.clusters {
		return target{}
	}
	if key := l.scripts.key(cmd, name, argv, l.table.Lookup); key != nil {
		return l.target(key)
	}
	if t := l.target(bytes.ToLower(name)); l.topo.ShardOf(t.slot) >= 0 {
		return t
	}
	return l.anyShard()
}

// eval answers a script that only asks from memory if it can; everything else is called.
func (s *session) eval(cmd *command.Command, args [][]byte, raw []byte) bool {
	if sc := s.loop.asks(cmd, args); sc != nil {
		return s.readView(sc, cmd, args, raw)
	}
	return s.call(cmd, args, raw)
}

// call sends EVAL, EVALSHA, FCALL and their read-only forms to the shard of
// their keys; without keys, to a shard that the script alone decides.
func (s *session) call(cmd *command.Command, args [][]byte, raw []byte) bool {
	l := s.loop
	e := l.effect.reset()
	var problem string
	if l.keys, problem = cmd.Keys(args, l.keys[:0]); problem != "" { // the backend refuses it, in better words
		l.concernUnknown(e, cmd)
		return s.send(cmd, raw, l.anyShard(), e)
	}
	var t target
	if len(l.keys) > 0 {
		var same bool
		if t, same = l.common(args, l.keys); !same {
			s.refuse(errCrossSlot)
			return true
		}
	}
	name := l.scriptName(cmd, args)
	if len(l.keys) == 0 {
		t = l.undeclared(cmd, name, args[3:])
	}
	if byDigest(cmd) {
		t.from = s.readsFrom(cmd)
		if ln, _ := s.laneTo(t); ln != nil {
			ln.teach(args[1])
		}
	}
	l.concernScript(e, cmd, name, args)
	return s.send(cmd, raw, t, e)
}

// byText reports whether the command carries its script.
func byText(cmd *command.Command) bool { return cmd.Name == "eval" || cmd.Name == "eval_ro" }

// byDigest reports whether the command names its script by digest.
func byDigest(cmd *command.Command) bool { return cmd.Name == "evalsha" || cmd.Name == "evalsha_ro" }

// scriptName is what a script command calls: the digest of a script, remembered if
// its text is given, or the name of a function.
func (l *loop) scriptName(cmd *command.Command, args [][]byte) []byte {
	if byText(cmd) {
		return []byte(l.scripts.digest(args[1]))
	}
	return args[1]
}

// teach loads a script on a connection before its first EVALSHA there, if its text
// is known here: the node may have started, been promoted or joined after the script
// was loaded. Waiting for its NOSCRIPT instead would let later commands overtake.
func (ln *lane) teach(sha []byte) {
	scripts := ln.loop.srv.scripts
	if g := scripts.generation.Load(); ln.taught == nil || g != ln.taughtIn || len(ln.taught) > scripts.maxCount {
		ln.taught, ln.taughtIn = make(map[string]struct{}), g
	}
	if _, taught := ln.taught[string(sha)]; taught {
		return
	}
	text := scripts.text(sha)
	if text == "" {
		return
	}
	ln.taught[string(sha)] = struct{}{}
	ln.note("SCRIPT", "LOAD", text)
}

// teachText does so for a script of the proxy's own.
func (ln *lane) teachText(sha, text string) {
	ln.teach([]byte(sha)) // forgets what was taught before a flush
	if _, taught := ln.taught[sha]; !taught {
		ln.taught[sha] = struct{}{}
		ln.note("SCRIPT", "LOAD", text)
	}
}

// knownScripts are CoSky's scripts and those of the configuration, by digest.
func knownScripts(more []*lua.Script) map[string]*lua.Script {
	known := lua.Known()
	for _, sc := range more {
		known[sc.SHA1] = sc
	}
	return known
}

// scriptOf returns the script of CoSky's, or of the configuration, that has the digest; nil: another one.
func (l *loop) scriptOf(sha []byte) *lua.Script {
	if sc := l.srv.known[string(sha)]; sc != nil {
		return sc
	}
	return lua.BySHA(sha)
}

// concernScript notes what a script call may do to cached keys: exactly, when it is
// one of CoSky's; otherwise its declared keys, and everything else it may have
// derived from them, which only the invalidation streams can tell. That databases are swapped
// they do not.
func (l *loop) concernScript(e *effectScratch, cmd *command.Command, name []byte, args [][]byte) {
	if l.cache == nil {
		return
	}
	keys := args[3 : 3+len(l.keys)]
	if script := l.scriptOf(name); script != nil {
		if script.Effect(keys, args[3+len(keys):], &l.scriptEffect); !l.scriptEffect.All {
			l.concernEffect(e, &l.scriptEffect, script)
			return
		}
	}
	readOnly := cmd.Has(command.ReadOnly)
	for _, k := range keys {
		l.concern(e, k, !readOnly)
	}
	if l.srv.tracks() && (readOnly || l.clusters || !l.scripts.swapper(cmd, name, args)) {
		e.barrier = true
		return
	}
	e.add(nearcache.All, !readOnly)
}

// concernEffect: what a script that only asks may write need not be pending, because nobody
// waits for it to be visible; and a renewal is no reason for views to be void, see view.go.
func (l *loop) concernEffect(e *effectScratch, x *lua.Effect, script *lua.Script) {
	writes := script.Access != lua.Noticing
	e.renews = script.Name == renewal
	for _, k := range x.Writes {
		hash := l.cache.Hash(k)
		e.add(l.cache.StripeOf(hash), writes)
		if answered(k) {
			e.add(l.cache.ViewStripe(hash), writes && !e.renews)
		}
	}
	for _, k := range x.Reads {
		hash := l.cache.Hash(k)
		e.add(l.cache.StripeOf(hash), false)
		if answered(k) {
			e.add(l.cache.ViewStripe(hash), false)
		}
	}
	for _, g := range x.WriteGroups {
		l.concernGroup(e, g, writes)
	}
	for _, g := range x.ReadGroups {
		l.concernGroup(e, g, false)
	}
}

func (l *loop) concernGroup(e *effectScratch, group []byte, write bool) {
	hash := l.cache.Hash(group)
	e.add(l.cache.StripeOf(hash), write)
	e.add(l.cache.ViewStripe(hash), write)
}

// scriptLoad loads a script everywhere and remembers it.
func (s *session) scriptLoad(cmd *command.Command, args [][]byte, raw []byte) bool {
	sc, ok := s.broadcast(cmd, router.MergeFor(cmd), raw, s.loop.effect.reset())
	if sc == nil {
		return ok
	}
	text := string(args[2])
	sc.after = func(l *loop, ok bool, reply []byte) []byte {
		if ok {
			l.srv.scripts.add(text)
		}
		return reply
	}
	return true
}

// functionLoad loads a library on every shard of a cluster.
func (s *session) functionLoad(cmd *command.Command, args [][]byte, raw []byte) bool {
	if s.loop.topo.Uncovered() > 0 {
		return s.unowned()
	}
	e := s.loop.effect.reset()
	s.loop.concernUnknown(e, cmd)
	sc, ok := s.broadcast(cmd, router.MergeFor(cmd), raw, e)
	if sc == nil {
		return ok
	}
	text := string(args[len(args)-1])
	sc.after = func(l *loop, ok bool, reply []byte) []byte {
		if ok {
			l.srv.scripts.addLibrary(text)
		}
		return reply
	}
	return true
}

// scriptExists brings back what the nodes may have lost before it asks them: a script
// that would be healed exists, and one that does not even compile does not.
func (s *session) scriptExists(cmd *command.Command, args [][]byte, raw []byte) bool {
	for _, t := range s.loop.everyShard() {
		ln, _ := s.laneTo(t)
		if ln == nil || ln.full() {
			continue // broadcast says why
		}
		for _, sha := range args[2:] {
			if text := s.loop.srv.scripts.text(sha); text != "" {
				ln.note("SCRIPT", "LOAD", text)
			}
		}
	}
	_, ok := s.broadcast(cmd, router.MergeFor(cmd), raw, s.loop.effect.reset())
	return ok
}

// flushes reports whether Redis takes this for a SCRIPT FLUSH (scriptCommand).
func flushes(args [][]byte) bool {
	return len(args) == 2 || len(args) == 3 && (equalFold(args[2], "ASYNC") || equalFold(args[2], "SYNC"))
}

// scriptFlush forgets first: what is flushed must not be healed.
func (s *session) scriptFlush(cmd *command.Command, args [][]byte, raw []byte) bool {
	if s.drain() { // a SCRIPT LOAD before it is remembered when it is answered
		return false
	}
	e := s.loop.effect.reset()
	if s.loop.cache != nil && flushes(args) { // nor answered from memory
		e.add(nearcache.All, true)
	}
	sc, ok := s.broadcast(cmd, router.MergeFor(cmd), raw, e)
	if sc != nil && flushes(args) {
		s.loop.srv.scripts.flush()
	}
	return ok
}

// groupStripe is the stripe of the open set that key belongs to, if any.
func (l *loop) groupStripe(key []byte) (st nearcache.Stripe, ok bool) {
	g := coskey.GroupOf(key)
	if g == nil {
		return 0, false
	}
	return l.cache.StripeOf(l.cache.Hash(g)), true
}
