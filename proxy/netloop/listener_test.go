package netloop

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestListenOnUnixPath(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	left.Close()

	used := filepath.Join(dir, "used")
	other, err := net.Listen("unix", used)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()

	regular := filepath.Join(dir, "regular")
	if err := os.WriteFile(regular, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}

	for path, ok := range map[string]bool{
		filepath.Join(dir, "new"): true, stale: true, used: false, regular: false,
		filepath.Join(dir, "no", "such", "dir"): false,
	} {
		ln, err := Listen("unix:"+path, ListenOptions{UnixMode: 0o700, Logger: quiet()})
		if (err == nil) != ok {
			t.Errorf("Listen on %s: %v", filepath.Base(path), err)
		}
		if err != nil {
			continue
		}
		if got, want := ln.Addr(), "unix:"+path; got != want {
			t.Errorf("address %q, want %q", got, want)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%v, %v", info, err)
		}
		ln.Close()
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket file is still there: %v", err)
		}
	}
	if b, _ := os.ReadFile(regular); string(b) != "precious" {
		t.Error("a regular file was replaced")
	}
	if nc, err := net.Dial("unix", used); err != nil {
		t.Errorf("the socket in use was disturbed: %v", err)
	} else {
		nc.Close()
	}
}

func TestAddressInUse(t *testing.T) {
	ln, err := Listen("127.0.0.1:0", ListenOptions{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Listen(ln.Addr(), ListenOptions{Logger: quiet()})
	if want := fmt.Sprintf("cannot listen on %q: address already in use", ln.Addr()); !errors.Is(err, syscall.EADDRINUSE) || err.Error() != want {
		t.Errorf("second listener: %v", err)
	}
	addr := ln.Addr()
	ln.Close()
	ln.Close()
	again, err := Listen(addr, ListenOptions{Logger: quiet()})
	if err != nil {
		t.Fatalf("after Close: %v", err)
	}
	again.Close()
}

func TestCloseEndsServe(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		for name, serve := range map[string]func(*Listener, func() Place){
			"a goroutine": (*Listener).Serve,
			"a loop":      func(ln *Listener, pick func() Place) { ln.ServeOn(e.loop, pick) },
		} {
			ln, err := Listen("127.0.0.1:0", ListenOptions{Logger: quiet()})
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				serve(ln, func() Place { return Place{} })
				close(done)
			}()
			nc, err := net.Dial("tcp", ln.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			eventually(t, "a rejection", func() bool { return ln.Stats().Rejected == 1 })
			ln.Close()
			if nc, err := net.Dial("tcp", ln.Addr()); err == nil {
				nc.Close()
				t.Errorf("%s: still accepting after Close", name)
			}
			recvFrom(t, done)
		}
	})
}

// A loop that accepts gives clients to others, too, and one that stops lets its listeners go.
func TestLoopAcceptsForAnother(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		e.accept(echo)
		ln, err := Listen("127.0.0.1:0", ListenOptions{Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		front, err := New(Options{Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(front.Run)
		done := make(chan struct{})
		wg.Go(func() {
			ln.ServeOn(front, func() Place { return Place{Loop: e.loop, Welcome: echo} })
			close(done)
		})
		nc, err := net.Dial("tcp", ln.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		nc.SetDeadline(time.Now().Add(patience))
		mustWrite(t, nc, []byte("hello"))
		mustRead(t, nc, []byte("hello"))
		e.until("the connection is there", func() bool { return e.loop.Stats().Conns == 1 })
		front.Stop()
		ln.Close()
		recvFrom(t, done)
	})
}

func TestRejectSaysWhy(t *testing.T) {
	stopped, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	stopped.Stop()
	lost := make(chan struct{})
	for name, pick := range map[string]func() Place{
		"no loop":      func() Place { return Place{} },
		"stopped loop": func() Place { return Place{Loop: stopped, Welcome: echo, Lost: func() { close(lost) }} },
	} {
		t.Run(name, func(t *testing.T) {
			ln, err := Listen("127.0.0.1:0", ListenOptions{
				Logger: quiet(),
				Reject: func(err error) []byte { return []byte("-ERR " + err.Error() + "\r\n") },
			})
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			wg.Go(func() { ln.Serve(pick) })
			defer wg.Wait()
			defer ln.Close()
			nc, err := net.Dial("tcp", ln.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			nc.SetDeadline(time.Now().Add(patience))
			mustRead(t, nc, []byte("-ERR "+ErrNoLoop.Error()+"\r\n"))
			mustEnd(t, nc)
		})
	}
	recvFrom(t, lost)
}

func TestHandlerRefusedOrPanicking(t *testing.T) {
	transports(t, func(t *testing.T, e *env) {
		for _, build := range []func(*Conn) Handler{
			func(*Conn) Handler { return nil },
			func(*Conn) Handler { panic("boom") },
		} {
			e.accept(build)
			mustEnd(t, e.dial())
		}
		e.until("no connection left", func() bool { return e.loop.Stats().Conns == 0 })
	})
}

// TLS clients use the goroutine transport on whatever loop they land.
func TestTLSListener(t *testing.T) {
	conf := &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}}
	transports(t, func(t *testing.T, e *env) {
		ln, err := Listen("127.0.0.1:0", ListenOptions{
			Logger: quiet(),
			Wrap:   func(nc net.Conn) net.Conn { return tls.Server(nc, conf) },
		})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { ln.Serve(func() Place { return Place{Loop: e.loop, Welcome: echo} }) })
		defer wg.Wait()
		defer ln.Close()

		nc, err := tls.Dial("tcp", ln.Addr(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		nc.SetDeadline(time.Now().Add(patience))
		b := pattern(1 << 20)
		go func() {
			nc.Write(b)
			nc.CloseWrite()
		}()
		mustRead(t, nc, b)
		if n, err := nc.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("after the half-close: %d bytes, %v", n, err)
		}
	})
}

func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
