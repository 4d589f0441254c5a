package netloop

import "golang.org/x/sys/unix"

// farewell is a socket that outlives its connection, see linger.go. It is loop-owned.
type farewell struct {
	timer *Timer
	left  int // bytes of input that may still be dropped
}

// maxDrops bounds the reads that drop input in one turn.
const maxDrops = 16

func (s *socket) linger() bool {
	l := s.c.loop
	if !l.mayLinger() {
		s.drop()
		return false
	}
	s.bye = &farewell{left: maxDropped, timer: l.AfterFunc(l.opts.LingerTimeout, s.leave)}
	s.arm(unix.EPOLLIN)
	unix.Shutdown(s.fd, unix.SHUT_WR) // when it fails the peer is gone, which a read will find
	return true
}

// dropInput drops what the peer has sent. At its end the socket closes.
func (s *socket) dropInput() {
	n, ended := s.drop()
	if s.bye.left -= n; ended || s.bye.left <= 0 {
		s.leave()
	}
}

// drop drops n bytes that have arrived; ended tells that no more will.
func (s *socket) drop() (n int, ended bool) {
	for range maxDrops {
		m, errno := recv(s.fd, s.c.loop.shared)
		if m <= 0 {
			return n, m == 0 || errno != unix.EAGAIN && errno != unix.EINTR
		}
		n += m
	}
	return n, false
}

// leave closes a socket that lingers.
func (s *socket) leave() {
	s.bye.timer.Stop()
	s.close()
	s.c.loop.lingered()
}
