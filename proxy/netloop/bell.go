package netloop

import (
	"net"
	"time"

	"cosky-proxy/proxy/mono"
)

// bell is the poller of a loop without sockets of its own: everything arrives
// through the inbox, so all it does is sleep until somebody posts.
type bell struct {
	l     *Loop
	rung  chan struct{}
	timer *time.Timer
}

func newBell(l *Loop) *bell {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &bell{l: l, rung: make(chan struct{}, 1), timer: timer}
}

func (b *bell) wait(timeout int64) {
	b.l.stats.Waits++
	if timeout != 0 {
		b.sleep(timeout)
	}
	b.l.now = mono.Now()
}

func (b *bell) sleep(timeout int64) {
	l := b.l
	l.asleep.Store(true)
	defer l.asleep.Store(false)
	if l.posted.Load() {
		return
	}
	l.stats.Sleeps++
	if timeout < 0 {
		<-b.rung
		return
	}
	b.timer.Reset(time.Duration(timeout))
	select {
	case <-b.rung:
		b.timer.Stop()
	case <-b.timer.C:
	}
}

// wake never blocks: a bell that has been rung already will be heard.
func (b *bell) wake() {
	select {
	case b.rung <- struct{}{}:
	default:
	}
}

func (b *bell) adopt(*Conn, net.Conn) (transport, error) { return nil, nil }
func (b *bell) close()                                   { b.timer.Stop() }
