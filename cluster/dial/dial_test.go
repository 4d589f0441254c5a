package dial

import (
	"net"
	"testing"
)

func TestTarget(t *testing.T) {
	d := &Dialer{Map: map[string]string{"10.0.0.1:6379": "redis.example:7001", "10.0.0.1": "192.0.2.7", "fd00::1": "::1"}}
	for addr, want := range map[string]string{
		"10.0.0.1:6379":    "redis.example:7001", // the address goes before its host
		"10.0.0.1:6380":    "192.0.2.7:6380",
		"[fd00::1]:6379":   "[::1]:6379",
		"10.0.0.2:6379":    "10.0.0.2:6379",
		"unix:/run/r.sock": "unix:/run/r.sock",
	} {
		if got := d.Target(addr); got != want {
			t.Errorf("%s leads to %s, want %s", addr, got, want)
		}
	}
	if got := (*Dialer)(nil).Target("h:1"); got != "h:1" {
		t.Errorf("got %s", got)
	}
}

// TestNilDialsPlainly, and a Unix socket as well as TCP.
func TestNilDialsPlainly(t *testing.T) {
	path := t.TempDir() + "/s"
	for network, listen := range map[string]string{"tcp": "127.0.0.1:0", "unix": path} {
		ln, err := net.Listen(network, listen)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		addr := ln.Addr().String()
		if network == "unix" {
			addr = "unix:" + addr
		}
		nc, err := (*Dialer)(nil).Dial(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		nc.Close()
	}
}
