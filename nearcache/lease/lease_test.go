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

func TestReached(t *testing.T) {
	var never, late, gone, forgot Lease
	never.Revoke()
	late.Renew(10)
	gone.Renew(10)
	gone.Revoke()
	gone.Revoke()
	forgot.Renew(10)
	forgot.Forget()
	forgot.Renew(20)
	for _, c := range []struct {
		what string
		l    *Lease
		at   int64
		want bool
	}{
		{"before any proof", new(Lease), 0, false},
		{"revoked before any proof", &never, 1, false},
		{"within the last proof", &late, 9, true},
		{"after it", &late, 10, false},
		{"revoked, within", &gone, 9, true},
		{"revoked, after", &gone, 10, false},
		{"forgotten", &forgot, 9, false},
	} {
		if got := c.l.Reached(c.at); got != c.want {
			t.Errorf("%s: reached %d: %v, want %v", c.what, c.at, got, c.want)
		}
	}
}
