package netloop

import (
	"io"
	"net"
	"sync"
	"testing"
)

// BenchmarkEcho is 64-byte ping-pong by 50 clients on one loop. The clients
// are goroutines of the same process and cost more than the loop does.
func BenchmarkEcho(b *testing.B) {
	for _, tr := range []Transport{DefaultTransport, Goroutine} {
		b.Run(tr.String(), func(b *testing.B) {
			l, err := New(Options{Transport: tr, Logger: quiet()})
			if err != nil {
				b.Fatal(err)
			}
			ln, err := Listen("127.0.0.1:0", ListenOptions{Logger: quiet()})
			if err != nil {
				b.Fatal(err)
			}
			var servers sync.WaitGroup
			servers.Go(l.Run)
			servers.Go(func() { ln.Serve(func() Place { return Place{Loop: l, Welcome: echo} }) })
			defer servers.Wait()
			defer l.Stop()
			defer ln.Close()

			const clients, size = 50, 64
			b.ReportAllocs()
			b.SetBytes(size)
			b.ResetTimer()
			var wg sync.WaitGroup
			for i := range clients {
				trips := b.N / clients
				if i < b.N%clients {
					trips++
				}
				wg.Go(func() {
					nc, err := net.Dial("tcp", ln.Addr())
					if err != nil {
						b.Error(err)
						return
					}
					defer nc.Close()
					buf := make([]byte, size)
					for range trips {
						nc.Write(buf)
						if _, err := io.ReadFull(nc, buf); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// BenchmarkPost is the cost of handing a function to a busy loop.
func BenchmarkPost(b *testing.B) {
	l, err := New(Options{Logger: quiet()})
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(l.Run)
	n := 0
	count := func() { n++ }
	b.ReportAllocs()
	for range b.N {
		l.Post(count)
	}
	done := make(chan struct{})
	l.Post(func() { close(done) })
	<-done
	if n != b.N {
		b.Errorf("%d of %d ran", n, b.N)
	}
	l.Stop()
	wg.Wait()
}
