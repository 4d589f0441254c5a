package nearcache

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cosky-proxy/nearcache/lease"
)

const forever = int64(1) << 62

// Two kinds of questions.
const (
	hgetall Kind = 1 + iota
	smembers
)

// ask asks for the whole hash of key.
func ask[T string | []byte](c *Cache, key T) *Question {
	q := c.Ask(0, hgetall, []byte(key), nil)
	return &q
}

func newTestCache(t testing.TB, o Options) *Cache {
	t.Helper()
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// newModelCache has the plain map store: what was filled can be read at once.
func newModelCache(t testing.TB, o Options) *Cache {
	t.Helper()
	c, err := newCache(o)
	if err != nil {
		t.Fatal(err)
	}
	c.store = newMapStore(c.maxBytes, c.release)
	t.Cleanup(c.Close)
	return c
}

func mustEntry(t testing.TB, key, reply string, until int64) *Entry {
	t.Helper()
	e, err := NewEntry(&Question{Key: []byte(key), Kind: hgetall}, Map, []byte(reply), until)
	if err != nil {
		t.Fatalf("NewEntry(%q): %v", reply, err)
	}
	return e
}

func value(v string) string { return fmt.Sprintf("*2\r\n$1\r\nv\r\n$%d\r\n%s\r\n", len(v), v) }

// put fetches and fills key and fails the test if it is not stored.
func put(t testing.TB, c *Cache, key, v string) *Entry {
	t.Helper()
	var f Fetch
	if !c.StartFetch(&f, ask(c, key)) {
		t.Fatalf("cannot start a fetch of %q", key)
	}
	e := mustEntry(t, key, value(v), forever)
	fills := c.fills.Load()
	if !c.Fill(&f, e) || c.fills.Load() != fills+1 {
		t.Fatalf("the fill of %q is not stored", key)
	}
	return e
}

func get(r *Reader, key string, now int64) *Entry {
	return r.Get(ask(r.c, key), now)
}

func (c *Cache) stripe(key string) Stripe { return c.StripeOf(c.Hash([]byte(key))) }

func TestWhatVoidsAnEntry(t *testing.T) {
	tests := []struct {
		name string
		do   func(c *Cache, l *lease.Lease)
		now  int64
		hit  bool
	}{
		{"nothing", func(*Cache, *lease.Lease) {}, 10, true},
		{"a bump of its key", func(c *Cache, _ *lease.Lease) { c.Bump(c.stripe("k")) }, 10, false},
		{"a bump of its group", func(c *Cache, _ *lease.Lease) { c.Bump(c.stripe("group")) }, 10, false},
		{"a bump of everything", func(c *Cache, _ *lease.Lease) { c.Bump(All) }, 10, false},
		{"a bump of another key", func(c *Cache, _ *lease.Lease) { c.Bump(c.stripe("other")) }, 10, true},
		{"a push", func(c *Cache, _ *lease.Lease) { c.Push(c.stripe("k")) }, 10, false},
		{"a pending write", func(c *Cache, _ *lease.Lease) { c.Begin(c.stripe("k")) }, 10, false},
		{"a finished write", func(c *Cache, _ *lease.Lease) { c.Begin(c.stripe("k")); c.End(c.stripe("k")) }, 10, false},
		{"the end of its lease", func(*Cache, *lease.Lease) {}, 50, false},
		{"a revoked lease", func(_ *Cache, l *lease.Lease) { l.Revoke() }, 10, false},
		{"a renewed lease", func(_ *Cache, l *lease.Lease) { l.Renew(60) }, 50, true},
		{"its deadline", func(_ *Cache, l *lease.Lease) { l.Renew(200) }, 100, false},
		{"a later fill of the key", func(c *Cache, _ *lease.Lease) {
			var f Fetch
			c.StartFetch(&f, ask(c, "k"))
			e, _ := NewEntry(ask(c, "k"), Map, []byte(value("y")), forever)
			c.Fill(&f, e)
		}, 10, false},
	}
	for _, tt := range tests {
		t.Run(strings.ReplaceAll(tt.name, " ", "_"), func(t *testing.T) {
			c := newModelCache(t, Options{})
			var l lease.Lease
			l.Renew(50)
			var f Fetch
			if !c.StartFetch(&f, ask(c, "k"), c.stripe("group")) {
				t.Fatal("cannot start")
			}
			f.Leases[0] = &l
			e := mustEntry(t, "k", value("x"), 100)
			if !c.Fill(&f, e) {
				t.Fatal("lost")
			}
			front, fresh, recent := c.NewReader(), c.NewReader(), c.NewReader()
			if get(front, "k", 10) != e || get(recent, "k", 10) != e {
				t.Fatal("not a hit to begin with")
			}
			recent.Remember(ask(c, "k"))
			tt.do(c, &l)
			if got := recent.Recall(0, hgetall, []byte("k"), tt.now) == e; got != tt.hit {
				t.Errorf("recalled = %v, want %v", got, tt.hit)
			}
			for name, r := range map[string]*Reader{"from the front table": front, "from the store": fresh} {
				if got := get(r, "k", tt.now) == e; got != tt.hit {
					t.Errorf("hit %s = %v, want %v", name, got, tt.hit)
				}
			}
		})
	}
}

func TestFillAfterSomethingHappened(t *testing.T) {
	tests := []struct {
		name string
		do   func(c *Cache, f *Fetch)
		want bool
	}{
		{"nothing", func(*Cache, *Fetch) {}, true},
		{"a bump", func(c *Cache, _ *Fetch) { c.Bump(c.stripe("k")) }, false},
		{"a pending write", func(c *Cache, _ *Fetch) { c.Begin(c.stripe("k")) }, false},
		{"a finished write", func(c *Cache, _ *Fetch) { c.Begin(c.stripe("k")); c.End(c.stripe("k")) }, false},
		{"another fill", func(c *Cache, _ *Fetch) {
			var f Fetch
			c.StartFetch(&f, ask(c, "k"))
			e, _ := NewEntry(ask(c, "k"), Map, []byte(value("y")), forever)
			c.Fill(&f, e)
		}, false},
		{"a push on its own connection", func(c *Cache, f *Fetch) {
			before, after := c.Push(c.stripe("k"))
			f.Advance(c.stripe("k"), before, after)
		}, true},
		{"a push of everything on its own connection", func(c *Cache, f *Fetch) {
			before, after := c.Push(All)
			f.Advance(All, before, after)
		}, true},
		{"a bump and then a push", func(c *Cache, f *Fetch) {
			c.Bump(c.stripe("k"))
			before, after := c.Push(c.stripe("k"))
			f.Advance(c.stripe("k"), before, after)
		}, false},
		{"a push of another stripe", func(c *Cache, f *Fetch) {
			c.Bump(c.stripe("k"))
			before, after := c.Push(c.stripe("other"))
			f.Advance(c.stripe("other"), before, after)
		}, false},
	}
	for _, tt := range tests {
		t.Run(strings.ReplaceAll(tt.name, " ", "_"), func(t *testing.T) {
			c := newModelCache(t, Options{})
			var f Fetch
			if !c.StartFetch(&f, ask(c, "k")) {
				t.Fatal("cannot start")
			}
			tt.do(c, &f)
			if got := f.Current(c); got != tt.want {
				t.Errorf("Current = %v, want %v", got, tt.want)
			}
			before := c.lines[c.stripe("k")].load()
			e := mustEntry(t, "k", value("x"), forever)
			if got := c.Fill(&f, e); got != tt.want {
				t.Errorf("Fill = %v, want %v", got, tt.want)
			}
			if got := get(c.NewReader(), "k", 1) == e; got != tt.want {
				t.Errorf("hit = %v, want %v", got, tt.want)
			}
			if after := c.lines[c.stripe("k")].load(); !tt.want && after != before {
				t.Errorf("a lost fill has changed the word from %#x to %#x", before, after)
			}
		})
	}
}

// A wins the word and halts before it writes its way; meanwhile B fetches a newer value.
func TestTwoFillsOfOneStripe(t *testing.T) {
	for _, broken := range []bool{false, true} {
		c := newModelCache(t, Options{})
		if broken {
			c.rules.busy = 0
		}
		var a, b Fetch
		halted, delivered := false, false
		c.rules.halt = func() {
			if halted {
				return
			}
			halted = true
			if !c.StartFetch(&b, ask(c, "k")) {
				t.Fatal("B cannot start")
			}
			delivered = c.Fill(&b, mustEntry(t, "k", value("new"), forever))
		}
		c.StartFetch(&a, ask(c, "k"))
		eA := mustEntry(t, "k", value("old"), forever)
		c.Fill(&a, eA)
		if !halted {
			t.Fatal("Fill did not halt")
		}
		if !eA.valid(c, 1) {
			t.Errorf("broken %v: A, which was first, is not served", broken)
		}
		if delivered != broken {
			t.Errorf("broken %v: the newer reply is delivered before the older entry becomes valid: %v", broken, delivered)
		}
	}
}

func TestALostFillDoesNotDisturbTheWinner(t *testing.T) {
	c := newModelCache(t, Options{})
	var a, b Fetch
	c.StartFetch(&a, ask(c, "k"))
	c.StartFetch(&b, ask(c, "k"))
	c.Fill(&b, mustEntry(t, "k", value("b"), forever))
	if c.Fill(&a, mustEntry(t, "k", value("a"), forever)) {
		t.Error("A may deliver although B was first")
	}
	e := get(c.NewReader(), "k", 1)
	if e == nil || string(e.AppendReply(nil, false)) != value("b") {
		t.Error("A's readers are not served B's entry")
	}
}

func TestNoFetchWhileAWriteIsPending(t *testing.T) {
	c := newModelCache(t, Options{})
	var f Fetch
	for name, s := range map[string]Stripe{"key": c.stripe("k"), "group": c.stripe("g"), "all": All} {
		c.Begin(s)
		c.Begin(s)
		c.End(s)
		if c.StartFetch(&f, ask(c, "k"), c.stripe("g")) {
			t.Errorf("%s: a fetch starts although a write is pending", name)
		}
		c.End(s)
		if !c.StartFetch(&f, ask(c, "k"), c.stripe("g")) {
			t.Errorf("%s: no fetch starts although no write is pending", name)
		}
	}
}

func TestWordFieldsDoNotSpill(t *testing.T) {
	c := newModelCache(t, Options{Stripes: 1})
	l := &c.lines[1]

	l.word.Store(uint64(fillsMask))
	if w := l.load().withFill(); w != busyBit {
		t.Errorf("fills wrap to %#x", w)
	}
	l.word.Store(uint64(epochMask | 5))
	if c.Bump(1); l.load() != 5 {
		t.Errorf("epoch wraps to %#x", l.load())
	}
	l.word.Store(uint64(fillsMask | 1))
	if c.End(1); l.load() != epochOne|fillsMask {
		t.Errorf("End leaves %#x", l.load())
	}
	mustPanic(t, "End without Begin", func() { c.End(1) })
	if l.load()&^epochMask != fillsMask {
		t.Errorf("End without Begin leaves %#x", l.load())
	}
	l.word.Store(uint64(pendingLimit))
	mustPanic(t, "too many Begin", func() { c.Begin(1) })
	if l.load() != pendingLimit {
		t.Errorf("too many Begin leave %#x", l.load())
	}
	before, after := c.Push(1)
	if before != pendingLimit || after != pendingLimit+epochOne {
		t.Errorf("Push = %#x, %#x", before, after)
	}
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if p, ok := recover().(string); !ok || !strings.HasPrefix(p, "BUG: ") {
			t.Errorf("%s: panic %q", what, p)
		}
	}()
	f()
}

// A stripe vouches for seven entries; the eighth takes the place of one of them.
func TestAFullDirectory(t *testing.T) {
	c := newModelCache(t, Options{Stripes: 1})
	var all []*Entry
	for i := range ways + 1 {
		all = append(all, put(t, c, fmt.Sprint("key", i), "x"))
	}
	valid := 0
	for _, e := range all {
		if e.valid(c, 1) {
			valid++
		}
	}
	if valid != ways || !all[ways].valid(c, 1) {
		t.Errorf("%d entries valid, the last one %v; want %d and true", valid, all[ways].valid(c, 1), ways)
	}
}

// Parts of one key's value are fetched, kept and found side by side, and all end with the key.
func TestPartsOfAValue(t *testing.T) {
	c := newModelCache(t, Options{})
	const n = 100
	questions, fetches, entries := make([]Question, n+1), make([]Fetch, n+1), make([]*Entry, n+1)
	for i := range questions {
		q := c.Ask(0, smembers, []byte("k"), AppendRest(nil, [][]byte{fmt.Append(nil, i)}))
		if i == n {
			q = *ask(c, "k") // the whole
		}
		questions[i] = q.Clone()
		if !c.StartFetch(&fetches[i], &questions[i]) {
			t.Fatal("cannot start")
		}
	}
	valid := func() (n int) {
		for i := range questions {
			if c.NewReader().Get(&questions[i], 1) == entries[i] && entries[i] != nil {
				n++
			}
		}
		return n
	}
	for i := range questions {
		var err error
		if entries[i], err = NewEntry(&questions[i], Map, []byte(value(fmt.Sprint(i))), forever); err != nil {
			t.Fatal(err)
		}
		if i > 0 && !fetches[i].Current(c) || !c.Fill(&fetches[i], entries[i]) {
			t.Fatalf("the fill of part %d is lost", i)
		}
	}
	if got := valid(); got < n-3 { // some may share a home with seven others
		t.Errorf("%d of %d parts can be found", got, n+1)
	}
	for i := range questions {
		c.StartFetch(&fetches[i], &questions[i])
	}
	c.Bump(c.stripe("k"))
	if got := valid(); got != 0 {
		t.Errorf("%d parts have outlived a change of their key", got)
	}
	for i := range questions {
		if fetches[i].Current(c) || c.Fill(&fetches[i], entries[i]) {
			t.Errorf("fetch %d of before the change is not lost", i)
		}
	}
}

// Of two fetches of one part the first that arrives wins.
func TestTwoFetchesOfAPart(t *testing.T) {
	c := newModelCache(t, Options{})
	q := c.Ask(0, smembers, []byte("k"), AppendRest(nil, nil))
	var a, b Fetch
	c.StartFetch(&a, &q)
	c.StartFetch(&b, &q)
	e, _ := NewEntry(&q, Map, []byte(value("x")), forever)
	o, _ := NewEntry(&q, Map, []byte(value("y")), forever)
	if !c.Fill(&b, o) || a.Current(c) || c.Fill(&a, e) {
		t.Error("an older fetch is joined, or takes the place of a newer one")
	}
	var f Fetch
	c.StartFetch(&f, &q)
	if !c.Fill(&f, e) || o.valid(c, 1) || !e.valid(c, 1) {
		t.Error("a later fill does not take the place of the older one")
	}
}

// Different arguments make different questions.
func TestAppendRest(t *testing.T) {
	seen := make(map[string][]string)
	long := strings.Repeat("x", 200)
	for _, args := range [][]string{{}, {""}, {"", ""}, {"a"}, {"a", "b"}, {"ab"}, {"a\x81b"}, {long}, {long, "a"}, {long + "\x81a"}} {
		var b [][]byte
		for _, a := range args {
			b = append(b, []byte(a))
		}
		rest := string(AppendRest(nil, b))
		if other, twice := seen[rest]; rest == "" || twice {
			t.Errorf("%q and %q are the same", args, other)
		}
		seen[rest] = args
	}
}

func TestIdentityIsKeyDatabaseAndKind(t *testing.T) {
	c := newModelCache(t, Options{})
	put(t, c, "k", "x")
	r := c.NewReader()
	k := []byte("k")
	for name, q := range map[string]Question{
		"another database": c.Ask(1, hgetall, k, nil),
		"another command":  c.Ask(0, smembers, k, nil),
		"another argument": c.Ask(0, hgetall, k, AppendRest(nil, [][]byte{[]byte("x")})),
	} {
		q.id = ask(c, "k").id // as if the hashes collided
		if r.Get(&q, 1) != nil {
			t.Errorf("%s is answered", name)
		}
	}
	q := c.Ask(0, hgetall, []byte("collides"), nil)
	q.id = ask(c, "k").id
	if r.Get(&q, 1) != nil {
		t.Error("a key with the same hash is answered")
	}
	if r.Get(ask(c, "k"), 1) == nil {
		t.Error("the very question is not answered")
	}
}

func TestEncodings(t *testing.T) {
	tests := []struct {
		shape        Shape
		reply        string
		resp2, resp3 string // empty: refused
	}{
		{Map, "*0\r\n", "*0\r\n", "%0\r\n"},
		{Map, "%0\r\n", "*0\r\n", "%0\r\n"},
		{Map, "*2\r\n$1\r\na\r\n$1\r\nb\r\n", "*2\r\n$1\r\na\r\n$1\r\nb\r\n", "%1\r\n$1\r\na\r\n$1\r\nb\r\n"},
		{Map, "%1\r\n$1\r\na\r\n$1\r\nb\r\n", "*2\r\n$1\r\na\r\n$1\r\nb\r\n", "%1\r\n$1\r\na\r\n$1\r\nb\r\n"},
		{Set, "*1\r\n$1\r\na\r\n", "*1\r\n$1\r\na\r\n", "~1\r\n$1\r\na\r\n"},
		{Set, "~1\r\n$1\r\na\r\n", "*1\r\n$1\r\na\r\n", "~1\r\n$1\r\na\r\n"},
		{Set, "~0\r\n", "*0\r\n", "~0\r\n"},
		{shape: Map, reply: "-WRONGTYPE x\r\n"},
		{shape: Map, reply: "*1\r\n$1\r\na\r\n"},
		{shape: Map, reply: "~2\r\n$1\r\na\r\n$1\r\nb\r\n"},
		{shape: Set, reply: "%1\r\n$1\r\na\r\n$1\r\nb\r\n"},
		{shape: Set, reply: "*-1\r\n"},
		{shape: Set, reply: "*\r\n"},
		{shape: Set, reply: "*2"},
		{shape: Set, reply: "_\r\n"},
		{shape: Set, reply: ""},

		{Plain, ":7\r\n", ":7\r\n", ":7\r\n"},
		{Plain, "+none\r\n", "+none\r\n", "+none\r\n"},
		{Plain, "$3\r\na\nb\r\n", "$3\r\na\nb\r\n", "$3\r\na\nb\r\n"},
		{Plain, "_\r\n", "$-1\r\n", "_\r\n"},
		{Plain, "$-1\r\n", "$-1\r\n", "_\r\n"},
		{Plain, "*-1\r\n", "*-1\r\n", "_\r\n"},
		{Plain, "*3\r\n$1\r\na\r\n_\r\n*1\r\n:1\r\n", "*3\r\n$1\r\na\r\n$-1\r\n*1\r\n:1\r\n", "*3\r\n$1\r\na\r\n_\r\n*1\r\n:1\r\n"},
		{Rows, "_\r\n", "*-1\r\n", "_\r\n"},
		{Rows, "*-1\r\n", "*-1\r\n", "_\r\n"},
		{Rows, "*1\r\n*1\r\n$1\r\na\r\n", "*1\r\n*1\r\n$1\r\na\r\n", "*1\r\n*1\r\n$1\r\na\r\n"},
		{shape: Rows, reply: ",1.5\r\n"},
		{shape: Plain, reply: ",1.5\r\n"},
		{shape: Plain, reply: "-ERR x\r\n"},
		{shape: Plain, reply: "*1\r\n-ERR x\r\n"},
		{shape: Plain, reply: "$5\r\nab\r\n"},
		{shape: Plain, reply: ""},
		{Scores, ",1.5\r\n", "$3\r\n1.5\r\n", ",1.5\r\n"},
		{Scores, "$4\r\n-inf\r\n", "$4\r\n-inf\r\n", ",-inf\r\n"},
		{Scores, "_\r\n", "$-1\r\n", "_\r\n"},
		{Scores, "*2\r\n_\r\n,2\r\n", "*2\r\n$-1\r\n$1\r\n2\r\n", "*2\r\n_\r\n,2\r\n"},
		{Scores, "*2\r\n$-1\r\n$1\r\n2\r\n", "*2\r\n$-1\r\n$1\r\n2\r\n", "*2\r\n_\r\n,2\r\n"},
		{shape: Scores, reply: ":1\r\n"},
		{Pairs, "*0\r\n", "*0\r\n", "*0\r\n"},
		{Pairs, "*1\r\n*2\r\n$1\r\na\r\n,2\r\n", "*2\r\n$1\r\na\r\n$1\r\n2\r\n", "*1\r\n*2\r\n$1\r\na\r\n,2\r\n"},
		{Pairs, "*4\r\n$1\r\na\r\n$1\r\n2\r\n$1\r\nb\r\n$1\r\n3\r\n", "*4\r\n$1\r\na\r\n$1\r\n2\r\n$1\r\nb\r\n$1\r\n3\r\n", "*2\r\n*2\r\n$1\r\na\r\n,2\r\n*2\r\n$1\r\nb\r\n,3\r\n"},
		{shape: Pairs, reply: "*1\r\n$1\r\na\r\n"},
		{shape: Pairs, reply: "*2\r\n$1\r\na\r\n"},
		{shape: Pairs, reply: "*1\r\n*1\r\n$1\r\na\r\n"},
	}
	for _, tt := range tests {
		e, err := NewEntry(&Question{Key: []byte("key"), Rest: []byte("rest")}, tt.shape, []byte(tt.reply), 1)
		if tt.resp2 == "" {
			if err == nil {
				t.Errorf("%d %q is accepted", tt.shape, tt.reply)
			}
			continue
		}
		if err != nil {
			t.Errorf("%d %q: %v", tt.shape, tt.reply, err)
			continue
		}
		for resp3, want := range map[bool]string{false: tt.resp2, true: tt.resp3} {
			if got := string(e.AppendReply([]byte("+"), resp3)); got != "+"+want {
				t.Errorf("%q, RESP3 %v: got %q, want %q", tt.reply, resp3, got, want)
			}
		}
		if got := string(e.buf[e.size:]); got != "keyrest" {
			t.Errorf("%q: key and rest have become %q", tt.reply, got)
		}
	}
}

func TestRefused(t *testing.T) {
	c := newModelCache(t, Options{})
	q, others := ask(c, "k"), []Question{c.Ask(1, hgetall, []byte("k"), nil), c.Ask(0, smembers, []byte("k"), nil), c.Ask(0, hgetall, []byte("l"), nil)}
	ms := int64(time.Millisecond)
	for _, now := range []int64{5 * ms, (1<<32 - 1000) * ms} { // the second: the clock's low half wraps meanwhile
		if c.Refused(q, now) {
			t.Errorf("at %d: refused before", now)
		}
		c.Refuse(q, now)
		if !c.Refused(q, now+int64(refuseFor)-ms) {
			t.Errorf("at %d: forgotten early", now)
		}
		if c.Refused(q, now+int64(refuseFor)+ms) {
			t.Errorf("at %d: not forgotten", now)
		}
		for i := range others {
			if c.Refused(&others[i], now) {
				t.Errorf("at %d: another question is refused", now)
			}
		}
	}
}

func TestTooLargeIsNotStored(t *testing.T) {
	c := newModelCache(t, Options{MaxEntry: 100})
	old := put(t, c, "k", "x")
	var f Fetch
	c.StartFetch(&f, ask(c, "k"))
	large := mustEntry(t, "k", value(strings.Repeat("x", 100)), forever)
	if !c.Fill(&f, large) {
		t.Error("lost")
	}
	if large.valid(c, 1) || get(c.NewReader(), "k", 1) != nil {
		t.Error("stored")
	}
	if old.valid(c, 1) {
		t.Error("the older entry is still valid")
	}
	if s := c.Stats(); s.Dropped != 1 || s.Fills != 1 {
		t.Errorf("%+v", s)
	}
}

// held counts the entries in the front table.
func (r *Reader) held() (n int) {
	for i := range r.front {
		if r.front[i].entry != nil {
			n++
		}
	}
	return n
}

func TestFrontTableLetsGo(t *testing.T) {
	c := newModelCache(t, Options{})
	r := c.NewReader()
	sweep := func() {
		for range sweepParts {
			r.Tick(1)
		}
	}
	put(t, c, "idle", "x")
	put(t, c, "void", "x")
	evicted := put(t, c, "evicted", "x")
	for _, k := range []string{"idle", "void", "evicted"} {
		get(r, k, 1)
		get(r, k, 1)
	}
	if r.held() != 3 || r.bytes == 0 {
		t.Fatalf("%d entries and %d bytes held", r.held(), r.bytes)
	}
	c.Bump(c.stripe("void"))
	c.store.(*mapStore).evict(evicted.hash)
	if get(r, "evicted", 1) != nil {
		t.Error("an evicted entry is served")
	}
	sweep()
	if r.held() != 1 {
		t.Errorf("%d entries held, want the one that was hit since the last sweep", r.held())
	}
	sweep()
	if r.held() != 0 || r.bytes != 0 {
		t.Errorf("%d entries and %d bytes held, want none", r.held(), r.bytes)
	}
}

func TestFrontTableIsBounded(t *testing.T) {
	c := newModelCache(t, Options{MaxBytes: 1 << 20})
	r := c.NewReader()
	big := strings.Repeat("x", 12<<10)
	for i := range 60 {
		put(t, c, fmt.Sprint(i), big)
		get(r, fmt.Sprint(i), 1)
	}
	if r.bytes > 1<<20/16 || r.bytes < 12<<10 {
		t.Errorf("the front table holds %d bytes", r.bytes)
	}
	put(t, c, "huge", strings.Repeat("x", 20<<10))
	if r = c.NewReader(); get(r, "huge", 1) == nil || r.held() != 0 {
		t.Error("a large entry is in the front table")
	}
}

// The store's queue is full of sets, or it missed costs: fills stop at the hard bound, and
// only missed costs empty the cache.
func TestHardBound(t *testing.T) {
	for _, missed := range []bool{false, true} {
		c, err := newCache(Options{MaxBytes: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		m := newMapStore(forever, c.release)
		m.blind = missed
		c.store = m
		full := false
		for i := 0; i < 200 && !full; i++ {
			var f Fetch
			c.StartFetch(&f, ask(c, fmt.Sprint(i)))
			c.Fill(&f, mustEntry(t, fmt.Sprint(i), value(strings.Repeat("x", 1000)), forever))
			s := c.Stats()
			if s.Bytes > 72<<10 {
				t.Fatalf("%d bytes held", s.Bytes)
			}
			full = s.Dropped > 0
		}
		if !full {
			t.Fatal("fills never stop")
		}
		waitFor(t, "reconcile", func() bool { return !c.reconciling.Load() })
		if got := c.Stats().Entries == 0; got != missed {
			t.Errorf("costs missed %v: cache emptied %v", missed, got)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Stripes: 3}, {Stripes: -1}, {MaxBytes: -1}, {MaxEntry: -1}, {Stripes: 1 << 30}} {
		if c, err := New(o); err == nil {
			c.Close()
			t.Errorf("%+v is accepted", o)
		}
	}
	c := newTestCache(t, Options{})
	if len(c.lines) != 1+1<<16 || c.MaxEntry() != 1<<20 {
		t.Errorf("defaults: %d lines, entries up to %d", len(c.lines), c.MaxEntry())
	}
	if s := c.StripeOf(^uint64(0)); s == All || int(s) >= len(c.lines) {
		t.Errorf("stripe %d", s)
	}
}

func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 10 s", what)
		}
	}
}

// Loops on real goroutines, with the real store: the node is a counter per key, so
// a read must not return less than was acknowledged before it began.
func TestLoopsInParallel(t *testing.T) {
	c := newTestCache(t, Options{MaxBytes: 256 << 10, Stripes: 4})
	const keys = 12
	var node, floor [keys]atomic.Int64
	names := [keys][]byte{}
	for i := range names {
		names[i] = fmt.Appendf(nil, "key%d", i)
	}
	see := func(k int, v int64) {
		for {
			old := floor[k].Load()
			if v <= old || floor[k].CompareAndSwap(old, v) {
				return
			}
		}
	}
	var hits atomic.Int64
	var wg sync.WaitGroup
	for loop := range 4 {
		wg.Go(func() {
			r := c.NewReader()
			var buf []byte
			for i := range 20000 {
				k := (i*7 + loop*3) % keys
				h := c.Hash(names[k])
				s := c.StripeOf(h)
				switch {
				case i%40 == 0:
					c.Begin(s)
					v := node[k].Add(1)
					c.End(s)
					see(k, v)
				case i%63 == 0:
					node[k].Add(1) // around the proxy, told later
					c.Bump(s)
				case i%500 == 0:
					r.Tick(1)
				}
				least := floor[k].Load()
				var got int64
				if e := r.Get(ask(c, names[k]), 1); e != nil {
					hits.Add(1)
					buf = e.AppendReply(buf[:0], i%2 == 0)
					fmt.Sscanf(string(buf[len(buf)-12:]), "%d", &got)
				} else {
					var f Fetch
					ok := c.StartFetch(&f, ask(c, names[k]))
					got = node[k].Load()
					e, err := NewEntry(ask(c, names[k]), Map, fmt.Appendf(nil, "*2\r\n$1\r\nv\r\n$10\r\n%010d\r\n", got), 2)
					if err != nil {
						t.Error(err)
						return
					}
					if !ok || !c.Fill(&f, e) {
						if ok && i%2 == 0 {
							continue // and not deliver it
						}
						c.Bump(s)
					}
				}
				if got < least {
					t.Errorf("loop %d: %s is %d, but %d had been seen", loop, names[k], got, least)
					return
				}
				see(k, got)
			}
		})
	}
	wg.Wait()
	if hits.Load() == 0 {
		t.Error("no hit at all")
	}
	c.Close()
	if s := c.Stats(); s.Entries != 0 || s.Bytes != 0 {
		t.Errorf("after Close %d entries with %d bytes are held", s.Entries, s.Bytes)
	}
}

// TestVolatileQuestions: a question whose entries are void before anybody is served from them
// is refused for a while, and gets a new chance; one that is read in between is not.
func TestVolatileQuestions(t *testing.T) {
	for _, tt := range []struct {
		what         string
		changes      int // per fetch
		reads        int // from memory, per fetch
		expires      bool
		wantVolatile int // the fetch that shows it; 0: none of 100
	}{
		{"changed before every read", 1, 0, false, mostWaste + 1},
		{"changed more often than read", 3, 0, false, mostWaste + 1},
		{"read once per change", 1, 1, false, 0},
		{"read often", 1, 10, false, 0},
		{"read seldom, but not changed", 0, 0, true, 0},
	} {
		c := newTestCache(t, Options{})
		r := c.NewReader()
		q := c.Ask(0, hgetall, []byte("key"), nil)
		volatile := 0
		for n := 1; n <= 100 && volatile == 0; n++ {
			var f Fetch
			if !c.StartFetch(&f, &q) {
				t.Fatal("no fetch")
			}
			if f.Volatile() {
				volatile = n
			}
			until := forever
			if tt.expires {
				until = 1
			}
			e, err := NewEntry(&q, Map, []byte(value("v")), until)
			if err != nil || !c.Fill(&f, e) {
				t.Fatalf("not filled: %v", err)
			}
			c.store.settle()
			for range tt.reads {
				if r.Get(&q, 0) == nil {
					t.Fatal("not a hit")
				}
			}
			for range tt.changes {
				c.Bump(c.StripeOf(q.Hash()))
			}
		}
		if volatile != tt.wantVolatile {
			t.Errorf("%s: volatile at fetch %d, want %d", tt.what, volatile, tt.wantVolatile)
		}
		if volatile == 0 {
			continue
		}
		again := 0
		for again < 100 {
			var f Fetch
			c.StartFetch(&f, &q)
			if again++; f.Volatile() {
				break
			}
			e, _ := NewEntry(&q, Map, []byte(value("v")), forever)
			c.Fill(&f, e)
			c.Bump(c.StripeOf(q.Hash()))
		}
		if want := mostWaste - mostWaste/2; again != want {
			t.Errorf("%s: after a refusal volatile again at fetch %d, want %d", tt.what, again, want)
		}
	}
}

// TestRecall: what is remembered is found under exactly the question that was asked, whatever
// shares its place.
func TestRecall(t *testing.T) {
	keys := []string{
		"k", "l", "eight by", "a key of some length", "another key of length",
		"x-{a}:cfg:application.yaml", "x-{b}:cfg:application.yaml", // one place for both
	}
	if recentPlace(hgetall, []byte(keys[5])) != recentPlace(hgetall, []byte(keys[6])) {
		t.Fatal("keys that end alike have places of their own")
	}
	c := newModelCache(t, Options{})
	r := c.NewReader()
	recall := func(db int32, kind Kind, key string) *Entry { return r.Recall(db, kind, []byte(key), 1) }
	for _, key := range keys {
		e := put(t, c, key, key)
		if recall(0, hgetall, key) != nil {
			t.Errorf("%q is recalled before it was remembered", key)
		}
		if get(r, key, 1) != e {
			t.Fatalf("%q is not a hit", key)
		}
		r.Remember(ask(c, key))
		if recall(0, hgetall, key) != e {
			t.Errorf("%q is not recalled", key)
		}
		if recall(1, hgetall, key) != nil || recall(0, smembers, key) != nil {
			t.Errorf("%q is recalled for another question", key)
		}
		for _, other := range append(keys, key+"x") {
			if other != key && recall(0, hgetall, other) == e {
				t.Errorf("%q is recalled for %q", key, other)
			}
		}
	}

	// A slot that holds something else by now: the reply to a part of the same key.
	key := keys[0]
	part := c.Ask(0, hgetall, []byte(key), []byte("part"))
	e, err := NewEntry(&part, Map, []byte(value("part")), forever)
	if err != nil {
		t.Fatal(err)
	}
	var f Fetch
	if c.StartFetch(&f, &part); !c.Fill(&f, e) {
		t.Fatal("not filled")
	}
	slot := r.recent[recentPlace(hgetall, []byte(key))]
	r.keep(slot, e)
	if recall(0, hgetall, key) != nil {
		t.Error("a part is recalled for the whole")
	}

	// What the front table lets go of is not recalled.
	get(r, keys[3], 1)
	r.Remember(ask(c, keys[3]))
	c.Purge(keys[3], 1)
	r.Sweep()
	if recall(0, hgetall, keys[3]) != nil {
		t.Error("recalled after a purge")
	}
}
