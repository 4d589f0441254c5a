package coskey

import (
	"bytes"
	"testing"
)

// FuzzClassify: a class means that the key is made of its namespace, the infix and an
// id, and that a group is a proper prefix ending at a colon.
func FuzzClassify(f *testing.F) {
	for _, s := range []string{"n:cfg:a", "n:cfg_htr:a:1", "a:svc_itc:svc_itc_idx:b", "cosky-{system}:audit:log", "::::", "n:topology:"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, key []byte) {
		class, n := Classify(key)
		if class != None && class != System && !bytes.HasPrefix(key[n:], []byte(infix[class])) {
			t.Fatalf("Classify(%q) = %v at %d", key, class, n)
		}
		group := GroupOf(key)
		if group != nil && (!bytes.HasPrefix(key, group) || key[len(group)] != ':') {
			t.Fatalf("GroupOf(%q) = %q", key, group)
		}
		checkGroup(t, key, []byte("id"))
		checkGroup(t, []byte("n"), key)
		var got transcript
		Event(key, []byte("set"), &got)
	})
}
