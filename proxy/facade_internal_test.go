package proxy

import (
	"crypto/tls"
	"fmt"
	"slices"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
)

func TestOwnAddress(t *testing.T) {
	mine := func(host string) bool { return host == "10.0.0.2" || host == "proxy-b" }
	for _, c := range []struct {
		name         string
		addrs, bound []string
		want         string // "": cannot be told
	}{
		{"the very address", []string{"10.0.0.1:6380", "10.0.0.2:6380"}, []string{"unix:/p", "10.0.0.1:6380"}, "10.0.0.1:6380"},
		{"an address of this machine", []string{"10.0.0.1:6380", "10.0.0.2:6380"}, []string{"[::]:6380"}, "10.0.0.2:6380"},
		{"the name of this machine", []string{"proxy-a:6380", "proxy-b:6380"}, []string{"[::]:6380"}, "proxy-b:6380"},
		{"another port of this machine", []string{"10.0.0.2:6380", "10.0.0.2:6381"}, []string{"[::]:6381"}, "10.0.0.2:6381"},
		{"the only one with this port", []string{"front:6380", "front:6381"}, []string{"0.0.0.0:6381"}, "front:6381"},
		{"IPv6", []string{"[fd00::1]:6380", "[fd00::2]:6380"}, []string{"[fd00::2]:6380"}, "[fd00::2]:6380"},
		{"one of two listeners", []string{"front:1", "front:2"}, []string{"127.0.0.1:9", "127.0.0.1:2"}, "front:2"},
		{"strangers with the same port", []string{"10.0.0.8:6380", "10.0.0.9:6380"}, []string{"[::]:6380"}, ""},
		{"two names of one", []string{"10.0.0.2:6380", "proxy-b:6380"}, []string{"[::]:6380"}, ""},
		{"another port", []string{"10.0.0.2:7000"}, []string{"[::]:6380"}, ""},
		{"only a Unix socket", []string{"10.0.0.2:7000"}, []string{"unix:/p"}, ""},
	} {
		got, err := ownAddress(c.addrs, c.bound, mine)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: got %q, error %v", c.name, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), "set cluster_announce") {
			t.Errorf("%s: %q does not say the way out", c.name, err)
		}
	}
}

func TestThisMachine(t *testing.T) {
	for host, want := range map[string]bool{"127.0.0.1": true, "localhost": true, "192.0.2.1": false, "nobody.invalid": false} {
		if got := thisMachine(host); got != want {
			t.Errorf("%s: got %v", host, got)
		}
	}
}

// However many proxies there are, and in whatever order they are listed: all see the
// same nodes, and each slot at exactly one of them.
func TestFacadeSharesSlots(t *testing.T) {
	var addrs []string
	for n := range 40 {
		addrs = append(addrs, fmt.Sprintf("10.0.0.1:%d", 7000+n*7919%1000))
		view, err := newFacade(addrs, addrs[n])
		if err != nil {
			t.Fatal(err)
		}
		next, least, most := 0, 1<<20, 0
		for _, node := range view.view.Load().nodes {
			if int(node.slots.First) != next {
				t.Fatalf("%d proxies: slots %v follow slot %d", n+1, node.slots, next-1)
			}
			next = int(node.slots.Last) + 1
			least, most = min(least, node.slots.Len()), max(most, node.slots.Len())
		}
		if next != 16384 || most-least > 1 {
			t.Errorf("%d proxies: slots up to %d, shares from %d to %d", n+1, next-1, least, most)
		}
		reversed := slices.Clone(addrs)
		slices.Reverse(reversed)
		other, err := newFacade(reversed, addrs[0])
		if err != nil || !slices.Equal(other.view.Load().nodes, view.view.Load().nodes) {
			t.Errorf("%d proxies: another order, another cluster", n+1)
		}
	}
	if _, err := newFacade(addrs, "10.0.0.9:1"); err == nil {
		t.Errorf("a proxy that is not listed became part of the cluster")
	}
}

// TestPeerUnderTLS: a proxy whose clients have to show a certificate gives a sign of life to one that has none.
func TestPeerUnderTLS(t *testing.T) {
	ca := clustertest.NewCA(t)
	config := ca.Server()
	config.ClientAuth = tls.RequireAndVerifyClientCert
	ln, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			nc.(*tls.Conn).Handshake() // it fails, and says why
			nc.Close()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	p := peer{addr: ln.Addr().String(), encrypted: true, patience: clustertest.Deadline}
	defer p.hangUp()
	if err := p.ask(t.Context()); err != nil {
		t.Error(err)
	}
	ln.Close()
	if err := p.ask(t.Context()); err == nil {
		t.Error("nobody is there, and answers")
	}
}

func TestShownEncrypted(t *testing.T) {
	for _, c := range []struct {
		bound []string
		want  bool
	}{
		{[]string{"127.0.0.1:1", "tls:127.0.0.1:2"}, true},
		{[]string{"tls:127.0.0.1:1", "127.0.0.1:2"}, false},
		{[]string{"tls:127.0.0.1:1", "unix:/run/p.sock"}, true}, // behind a translating network
		{[]string{"tls:127.0.0.1:1", "127.0.0.1:3"}, false},
	} {
		s := &Server{addrs: c.bound}
		if got := s.shownEncrypted("proxy.example:2"); got != c.want {
			t.Errorf("%q: %v", c.bound, got)
		}
	}
}
