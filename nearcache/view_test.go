package nearcache

import (
	"fmt"
	"testing"
)

// view fills a view that depends on the stripes of the given names.
func view(t *testing.T, c *Cache, name, v string, shows ...string) *Entry {
	t.Helper()
	var f Fetch
	if !c.StartFetch(&f, ask(c, name)) {
		t.Fatalf("cannot start a fetch of %q", name)
	}
	for _, key := range shows {
		if !f.Cover(c, c.ViewStripe(c.Hash([]byte(key)))) {
			t.Fatalf("cannot cover %q", key)
		}
	}
	e := mustEntry(t, name, value(v), forever)
	if !c.Fill(&f, e) {
		t.Fatal("lost")
	}
	return e
}

// What concerns one of the keys that a view shows voids it, what concerns the key itself
// alone does not.
func TestWhatVoidsAView(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(c *Cache, e *Entry, shown, key Stripe)
		void bool
	}{
		{"nothing", func(*Cache, *Entry, Stripe, Stripe) {}, false},
		{"a write of a shown key", func(c *Cache, _ *Entry, shown, _ Stripe) { c.Begin(shown) }, true},
		{"a write of a shown key that is over", func(c *Cache, _ *Entry, shown, _ Stripe) { c.Begin(shown); c.End(shown) }, true},
		{"a reply that reveals a shown key", func(c *Cache, _ *Entry, shown, _ Stripe) { c.Bump(shown) }, true},
		{"a write that leaves views alone", func(c *Cache, _ *Entry, _, key Stripe) { c.Begin(key); c.End(key) }, false},
		{"a change of everything", func(c *Cache, _ *Entry, _, _ Stripe) { c.Bump(All) }, true},
		{"its owner", func(c *Cache, e *Entry, _, _ Stripe) { c.Void(e) }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newTestCache(t, Options{})
			keys := make([]string, 50)
			for i := range keys {
				keys[i] = fmt.Sprint("key", i)
			}
			e := view(t, c, "v", "a", keys...)
			hash := c.Hash([]byte(keys[49]))
			tc.do(c, e, c.ViewStripe(hash), c.StripeOf(hash))
			if got := !c.Valid(e, 0); got != tc.void {
				t.Errorf("void is %v, want %v", got, tc.void)
			}
		})
	}
}

// A fetch of a view cannot cover a key that is being written, nor be joined after it was.
func TestCover(t *testing.T) {
	c := newTestCache(t, Options{})
	s := c.ViewStripe(c.Hash([]byte("k")))
	c.Begin(s)
	var f Fetch
	if c.StartFetch(&f, ask(c, "v")); f.Cover(c, s) {
		t.Error("a key that is being written is covered")
	}
	c.End(s)
	if c.StartFetch(&f, ask(c, "v")); !f.Cover(c, s) || !f.Current(c) {
		t.Error("a key at rest is not covered")
	}
	c.Bump(s)
	if f.Current(c) {
		t.Error("a fetch is current although what it covers has changed")
	}
}

// A view is replaced in one step, and depends on what the old one depended on.
func TestReplace(t *testing.T) {
	for _, void := range []bool{false, true} {
		c := newTestCache(t, Options{})
		r := c.NewReader()
		old := view(t, c, "v", "a", "k")
		if void {
			c.Void(old)
		}
		next := mustEntry(t, "v", value("b"), forever)
		if !c.Replace(old, next, void) || c.Valid(old, 0) || !c.Valid(next, 0) {
			t.Errorf("void %v: not replaced", void)
		}
		if e := get(r, "v", 0); e != nil && string(e.AppendReply(nil, false)) != value("b") {
			t.Errorf("void %v: got %q", void, e.AppendReply(nil, false))
		}
		if other := mustEntry(t, "v", value("c"), forever); c.Replace(old, other, false) || c.Valid(other, 0) {
			t.Errorf("void %v: an entry that is no longer valid was replaced", void)
		}
		c.Bump(c.ViewStripe(c.Hash([]byte("k"))))
		if c.Valid(next, 0) {
			t.Errorf("void %v: the new entry does not depend on what the old one did", void)
		}
		late := mustEntry(t, "v", value("d"), forever)
		if c.Replace(next, late, false); c.Valid(late, 0) {
			t.Errorf("void %v: what replaces a void entry is valid", void)
		}
	}
}

func TestTakeRead(t *testing.T) {
	e := mustEntry(t, "v", value("a"), forever)
	if e.TakeRead() {
		t.Error("read before anybody has")
	}
	e.MarkRead()
	if !e.TakeRead() || e.TakeRead() {
		t.Error("a read is not taken once")
	}
}
