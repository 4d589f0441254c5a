//go:build !linux

package netloop

import "errors"

// newPoller makes the poller for the transport asked for.
func newPoller(l *Loop) (poller, error) {
	if l.opts.Transport == Epoll {
		return nil, errors.New("the epoll transport needs Linux")
	}
	return newBell(l), nil
}
