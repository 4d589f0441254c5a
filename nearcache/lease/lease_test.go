package lease

import "testing"

func TestLease(t *testing.T) {
	var l Lease
	alive := func(now int64, want bool) {
		t.Helper()
		if got := l.Alive(now); got != want {
			t.Errorf("alive at %d: %v, want %v", now, got, want)
		}
	}
	alive(0, false)
	l.Renew(10)
	alive(9, true)
	alive(10, false)
	l.Renew(5) // a late answer to an early question
	alive(9, true)
	l.Renew(20)
	alive(19, true)
	l.Revoke()
	alive(0, false)
	l.Renew(100)
	alive(50, false)
	if !l.Revoked() {
		t.Error("a revoked lease says that it is not")
	}
}
