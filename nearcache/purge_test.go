package nearcache

import (
	"fmt"
	"testing"
)

func TestPurge(t *testing.T) {
	c := newModelCache(t, Options{})
	a, b := c.NewReader(), c.NewReader()
	for _, key := range []string{"item:1", "item:2", "user:1"} {
		put(t, c, key, "old")
	}
	if get(a, "item:1", 1) == nil { // in a's front table from now on
		t.Fatal("not cached")
	}
	c.Purge("item:*", 1)
	a.Sweep()
	b.Sweep()
	for key, want := range map[string]bool{"item:1": false, "item:2": false, "user:1": true} {
		for i, r := range []*Reader{a, b} {
			if got := get(r, key, 1) != nil; got != want {
				t.Errorf("reader %d, %s: served %v", i, key, got)
			}
		}
	}
	put(t, c, "item:1", "new")
	if get(a, "item:1", 1) == nil {
		t.Error("what was filled afterwards is void, too")
	}
}

// A purge is forgotten when nothing that was there can be alive, and too many of them void everything.
func TestPurgesAreBounded(t *testing.T) {
	c := newModelCache(t, Options{})
	put(t, c, "k", "v")
	end := c.last.Load()
	for i := range maxPurges {
		c.Purge("k", 1) // the same again is one
		c.Purge(fmt.Sprint(i), 1)
	}
	if c.purges.Load() != nil {
		t.Errorf("%d purges", len(*c.purges.Load()))
	}
	if get(c.NewReader(), "k", 1) != nil {
		t.Error("served after too many purges")
	}
	put(t, c, "k", "v")
	c.Purge("x", 1)
	if n := len(*c.purges.Load()); n != 1 {
		t.Errorf("%d purges", n)
	}
	c.Purge("y", end)
	if c.purges.Load() != nil {
		t.Error("a purge outlives what it concerns")
	}
}

func TestSerialsOfPurgesWrap(t *testing.T) {
	c := newModelCache(t, Options{})
	c.serial.Store(serialMask - 1)
	put(t, c, "a", "v")
	put(t, c, "b", "v")
	put(t, c, "c", "v") // its serial is 1
	c.Purge("?", 1)
	put(t, c, "b", "w")
	r := c.NewReader()
	for key, want := range map[string]bool{"a": false, "b": true, "c": false} {
		if got := get(r, key, 1) != nil; got != want {
			t.Errorf("%s: served %v", key, got)
		}
	}
}
