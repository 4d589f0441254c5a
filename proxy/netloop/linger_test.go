package netloop

import (
	"net"
	"testing"
	"time"
)

// farewells makes clients whose connection the server closes with words at their first byte,
// and returns one when that has happened.
func (e *env) farewells(words string) net.Conn {
	e.t.Helper()
	closed := make(chan error, 1)
	nc, _ := e.serve(func(c *Conn) Handler {
		return &script{
			data:  func(b []byte) int { reply(c, []byte(words)); c.CloseAfterFlush(); return len(b) },
			close: func(err error) { closed <- err },
		}
	})
	mustWrite(e.t, nc, []byte("x"))
	if err := recvFrom(e.t, closed); err != nil {
		e.t.Errorf("OnClose(%v)", err)
	}
	return nc
}

// TestLateSendersGetTheLastWords: what arrives after the close is no reason to take back what was
// said before it.
func TestLateSendersGetTheLastWords(t *testing.T) {
	for name, addr := range map[string]string{"tcp": "127.0.0.1:0", "unix": "unix:" + t.TempDir() + "/s"} {
		t.Run(name, func(t *testing.T) {
			for _, tr := range []Transport{DefaultTransport, Goroutine} {
				e := newEnvOn(t, Options{Transport: tr, LingerTimeout: patience}, addr)
				nc := e.farewells("-ERR bye\r\n")
				for range 64 {
					mustWrite(t, nc, pattern(largeBuffer))
				}
				mustRead(t, nc, []byte("-ERR bye\r\n"))
				mustEnd(t, nc)
				nc.Close()
				eventually(t, "nothing lingers", func() bool { return e.loop.lingering.Load() == 0 })
				e.ln.Close()
			}
		})
	}
}

// TestLingeringIsBounded: by time, in number, and by the loop's life.
func TestLingeringIsBounded(t *testing.T) {
	for _, tr := range []Transport{DefaultTransport, Goroutine} {
		t.Run(tr.String(), func(t *testing.T) {
			e := newEnv(t, Options{Transport: tr, LingerTimeout: 10 * time.Millisecond})
			stays := e.farewells("bye")
			eventually(t, "patience ends with a peer that stays", func() bool { return e.loop.lingering.Load() == 0 })
			mustRead(t, stays, []byte("bye"))

			e.loop.lingering.Store(maxLingering)
			mustRead(t, e.farewells("bye"), []byte("bye"))
			if n := e.loop.lingering.Load(); n != maxLingering {
				t.Errorf("%d sockets linger, want the %d from before", n, maxLingering)
			}

			e = newEnv(t, Options{Transport: tr, LingerTimeout: time.Hour})
			nc := e.farewells("bye")
			e.loop.Stop()
			recvFrom(t, e.done)
			mustRead(t, nc, []byte("bye"))
			eventually(t, "the socket is closed with the loop", func() bool {
				_, err := nc.Write([]byte("x"))
				return err != nil
			})
		})
	}
}
