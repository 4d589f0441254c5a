package pubsub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/nearcache/lease"
	"cosky-proxy/proxy/mono"
)

// recorder keeps the messages.
type recorder struct {
	mu   sync.Mutex
	seen []string
}

func (r *recorder) add(channel, payload []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, string(channel)+"="+string(payload))
}

func (r *recorder) has(want ...string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.seen, want) {
		return fmt.Errorf("messages %q, want %q", r.seen, want)
	}
	return nil
}

// logged keeps what a stream logs.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logged) await(t *testing.T, message string, times int) {
	t.Helper()
	clustertest.Await(t, message, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if n := strings.Count(l.text.String(), message); n < times {
			return fmt.Errorf("%d times so far, want %d", n, times)
		}
		return nil
	})
}

// run starts the stream and stops it with the test.
func run(t *testing.T, o Options) *Stream {
	t.Helper()
	return start(t, New(o))
}

// start runs s until the test ends. What it covers by then is asked for with the
// first command of every connection.
func start(t *testing.T, s *Stream) *Stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return s
}

func cover(s *Stream, ns string) {
	s.Cover(ns, []string{ns + ":svc_idx"}, []string{ns + ":cfg:*", ns + ":svc_itc:*"})
}

func awaitLease(t *testing.T, s *Stream, ns string) (l *lease.Lease) {
	t.Helper()
	clustertest.Await(t, "a live lease for "+ns, func() error {
		if l = s.LeaseFor([]byte(ns)); l == nil || !l.Alive(mono.Now()) {
			return errors.New("none")
		}
		return nil
	})
	return l
}

func TestMessagesArriveOnCoveredChannelsOnly(t *testing.T) {
	r := clustertest.StartRedis(t)
	var rec recorder
	s := run(t, Options{Addr: r.Addr, OnMessage: rec.add})
	if s.LeaseFor([]byte("dev")) != nil || !s.Wants([]byte("dev")) {
		t.Error("covered before anybody asked")
	}
	cover(s, "dev")
	if s.Wants([]byte("dev")) {
		t.Error("still wanted")
	}
	awaitLease(t, s, "dev")
	cover(s, "ops") // while connected
	cover(s, "ops")
	awaitLease(t, s, "ops")

	for _, m := range [][2]string{
		{"dev:svc_idx", "1"}, {"dev:cfg:a", "set"}, {"other:cfg:a", "set"}, {"ops:svc_itc:x", "renew"}, {"dev:svc_idx:x", "2"}, {"dev:svc_itc:x", ""},
	} {
		r.Do("PUBLISH", m[0], m[1])
	}
	clustertest.Await(t, "messages", func() error {
		return rec.has("dev:svc_idx=1", "dev:cfg:a=set", "ops:svc_itc:x=renew", "dev:svc_itc:x=")
	})
}

func TestAKilledConnectionStartsANewLease(t *testing.T) {
	r := clustertest.StartRedis(t)
	var rec recorder
	s := run(t, Options{Addr: r.Addr, OnMessage: rec.add, MaxStaleness: time.Hour})
	cover(s, "dev")
	old := awaitLease(t, s, "dev")
	r.Do("CLIENT", "KILL", "TYPE", "pubsub")
	clustertest.Await(t, "the lease to be revoked", func() error {
		if !old.Revoked() {
			return errors.New("it is not")
		}
		return nil
	})
	if l := awaitLease(t, s, "dev"); l == old {
		t.Error("the lease of the lost connection is in use again")
	}
	r.Do("PUBLISH", "dev:cfg:a", "set")
	clustertest.Await(t, "messages", func() error { return rec.has("dev:cfg:a=set") })
}

func TestARestartedServer(t *testing.T) {
	r := clustertest.StartRedis(t)
	s := run(t, Options{Addr: r.Addr})
	cover(s, "dev")
	old := awaitLease(t, s, "dev")
	r.Stop()
	clustertest.Await(t, "the namespace to be uncovered", func() error {
		if s.LeaseFor([]byte("dev")) != nil {
			return errors.New("it is not")
		}
		return nil
	})
	if !old.Revoked() {
		t.Error("the lease of a dead server is not revoked")
	}
	r.Restart()
	if awaitLease(t, s, "dev") == old {
		t.Error("the old lease is in use again")
	}
}

// A server that freezes for a moment loses nothing: the lease lapses and comes back to life.
func TestAFrozenServer(t *testing.T) {
	r := clustertest.StartRedis(t)
	s := run(t, Options{Addr: r.Addr, MaxStaleness: 300 * time.Millisecond})
	cover(s, "dev")
	l := awaitLease(t, s, "dev")
	r.Freeze()
	clustertest.Await(t, "the lease to lapse", func() error {
		if l.Alive(mono.Now()) {
			return errors.New("it is alive")
		}
		return nil
	})
	r.Thaw()
	awaitLease(t, s, "dev")
}

// A server that stays frozen is given up.
func TestASilentServerIsGivenUp(t *testing.T) {
	r := clustertest.StartRedis(t)
	s := run(t, Options{Addr: r.Addr, MaxStaleness: 50 * time.Millisecond})
	cover(s, "dev")
	l := awaitLease(t, s, "dev")
	r.Freeze()
	clustertest.Await(t, "the lease to be revoked", func() error {
		if !l.Revoked() {
			return errors.New("it is not")
		}
		return nil
	})
	r.Thaw()
	if awaitLease(t, s, "dev") == l {
		t.Error("the old lease is in use again")
	}
}

func TestAuthentication(t *testing.T) {
	r := clustertest.StartRedis(t)
	r.Do("ACL", "SETUSER", "default", "resetpass", ">secret")
	r.Do("ACL", "SETUSER", "reader", "on", ">pass", "+@all", "allchannels")
	r.Do("ACL", "SETUSER", "deaf", "on", ">pass", "+@all", "resetchannels", "&ops:svc_idx", "&ops:cfg:*", "&ops:svc_itc:*")
	for name, o := range map[string]Options{
		"password": {Password: "secret"},
		"user":     {User: "reader", Password: "pass"},
	} {
		o.Addr = r.Addr
		s := run(t, o)
		cover(s, "dev")
		if awaitLease(t, s, "dev") == nil {
			t.Errorf("%s: not covered", name)
		}
	}

	var refusals logged
	wrong := run(t, Options{Addr: r.Addr, Password: "wrong", Logger: refusals.logger()})
	cover(wrong, "dev")
	refusals.await(t, "invalidation stream lost", 2)
	if wrong.LeaseFor([]byte("dev")) != nil {
		t.Error("covered with a wrong password")
	}

	var denials logged
	deaf := run(t, Options{Addr: r.Addr, User: "deaf", Password: "pass", Logger: denials.logger()})
	cover(deaf, "dev") // denied, which must not cost the other one its cover
	denials.await(t, "cannot subscribe", 1)
	cover(deaf, "ops")
	awaitLease(t, deaf, "ops")
	if deaf.LeaseFor([]byte("dev")) != nil {
		t.Error("a namespace is covered whose subscriptions were denied")
	}
}

func TestNamespacesAreBounded(t *testing.T) {
	s := New(Options{})
	for i := range maxNamespaces - 1 {
		cover(s, fmt.Sprint(i))
	}
	cover(s, "0")
	if !s.Wants([]byte("last")) {
		t.Error("a stream that is not full does not want more")
	}
	cover(s, "last")
	if s.Wants([]byte("more")) {
		t.Error("a full stream wants more")
	}
	if cover(s, "more"); len(*s.wanted.Load()) != maxNamespaces {
		t.Error("the bound is not kept")
	}
}

func TestLoopsDoNotAllocate(t *testing.T) {
	r := clustertest.StartRedis(t)
	s := run(t, Options{Addr: r.Addr})
	cover(s, "dev")
	awaitLease(t, s, "dev")
	ns := []byte("dev")
	if n := testing.AllocsPerRun(100, func() { s.LeaseFor(ns); s.Wants(ns) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// hangUp, said by a scripted node, closes the connection.
const hangUp = ""

// scripted is a node that says what it is told once it has been asked anything.
func scripted(t *testing.T, says <-chan string) Options {
	return Options{Addr: "script", MaxStaleness: time.Hour, Dial: func(context.Context, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		t.Cleanup(func() { theirs.Close() })
		go func() {
			// An answer that comes before its question ends the connection.
			if _, err := theirs.Read(make([]byte, 1)); err != nil {
				return
			}
			go io.Copy(io.Discard, theirs)
			for b := range says {
				if b == hangUp {
					theirs.Close()
					return
				}
				if _, err := io.WriteString(theirs, b); err != nil {
					return
				}
			}
		}()
		return ours, nil
	}}
}

func confirm(kind, channel string, n int) string {
	return fmt.Sprintf("*3\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n:%d\r\n", len(kind), kind, len(channel), channel, n)
}

// Until the last subscription is confirmed there is no lease, and until the PONG it is not alive;
// messages in between are handled already.
func TestTheOrderOfConfirmations(t *testing.T) {
	steps := make(chan string)
	defer close(steps)
	o := scripted(t, steps)
	var rec recorder
	o.OnMessage = rec.add
	s := New(o)
	cover(s, "dev")
	start(t, s)

	lively := func() string {
		switch l := s.LeaseFor([]byte("dev")); {
		case l == nil:
			return "none"
		case !l.Alive(mono.Now()):
			return "dead"
		}
		return "alive"
	}
	message := "*3\r\n$7\r\nmessage\r\n$11\r\ndev:svc_idx\r\n$1\r\n%d\r\n"
	var seen []string
	for i, step := range []struct{ says, lease string }{
		{confirm("subscribe", "dev:svc_idx", 1), "none"},
		{confirm("psubscribe", "dev:cfg:*", 2), "none"},
		{confirm("psubscribe", "dev:svc_itc:*", 3), "dead"},
		{"*2\r\n$4\r\npong\r\n$1\r\n0\r\n", "alive"},
	} {
		steps <- step.says
		steps <- fmt.Sprintf(message, i) // once it is seen, what came before it was handled
		seen = append(seen, fmt.Sprintf("dev:svc_idx=%d", i))
		clustertest.Await(t, "the message", func() error { return rec.has(seen...) })
		clustertest.Await(t, "lease "+step.lease, func() error {
			if got := lively(); got != step.lease {
				return fmt.Errorf("after %q the lease is %s", step.says, got)
			}
			return nil
		})
	}
	l := s.LeaseFor([]byte("dev"))
	steps <- hangUp
	clustertest.Await(t, "the lease to be revoked", func() error {
		if !l.Revoked() {
			return errors.New("it is not")
		}
		return nil
	})
}

func TestNonsenseEndsTheConnection(t *testing.T) {
	for _, says := range []string{
		"HTTP/1.1 400 Bad Request\r\n\r\n",
		"+OK\r\n",                                                  // a PING is not answered so
		"-LOADING the data set\r\n",                                // nor may it fail
		"$1\r\n1\r\n$1\r\n2\r\n",                                   // an answer to no question
		confirm("subscribe", "dev:cfg", 1),                         // nor to this one
		"*2\r\n$4\r\npong\r\n$1\r\n1\r\n*99999999999999999999\r\n", // malformed
		"$99999999\r\n" + strings.Repeat("x", maxMessage+1),        // endless
	} {
		node := make(chan string, 1)
		node <- says
		close(node)
		var losses logged
		o := scripted(t, node)
		o.Logger = losses.logger()
		run(t, o)
		t.Logf("the node says %.40q", says)
		losses.await(t, "invalidation stream lost", 1)
	}
}
