package test

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/test/harness"
)

// memoryBudget is what the proxy may ever have resident in these tests. All limits
// that matter have their defaults.
const memoryBudget = 200 << 20

// The tests of this file do not run beside others: they use much of a machine.

func checkMemory(t *testing.T, p *harness.Proxy) {
	t.Helper()
	peak := p.PeakRSS()
	t.Logf("the proxy had up to %d MB resident", peak>>20)
	if peak > memoryBudget {
		t.Errorf("the proxy had %d MB resident, want at most %d MB", peak>>20, memoryBudget>>20)
	}
}

// redis-cli --pipe reads replies as they come and sends as fast as it can.
func TestMemoryUnderFiveMillionSets(t *testing.T) {
	const count = 5_000_000
	p := binary.Start(t, "--backend", standalone(t).url)
	cmd := redisCLI(t, p.Addr, "--pipe")
	in, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = in
	go func() {
		w := bufio.NewWriterSize(feed, 1<<20)
		for i := range count {
			fmt.Fprintf(w, "*3\r\n$3\r\nSET\r\n$8\r\nk%07d\r\n$7\r\n%07d\r\n", i%100_000, i)
		}
		w.Flush()
		feed.Close()
	}()
	out := output(t, cmd)
	in.Close()
	if want := fmt.Sprintf("errors: 0, replies: %d\n", count); !strings.HasSuffix(out, want) {
		t.Errorf("got %q, want %q", out, want)
	}
	if got := clustertest.Dial(t, p.Addr).Do("GET", "k0099999"); got != "$7\r\n4999999\r\n" {
		t.Errorf("the last value is %q", got)
	}
	checkMemory(t, p)
}

// A client that never reads can send until its replies fill what may be buffered. Then
// it is not read either, or cut off; others are served all the time.
func TestMemoryWhenAClientNeverReads(t *testing.T) {
	const total = 1 << 30
	p := binary.Start(t, "--backend", standalone(t).url)
	other := clustertest.Dial(t, p.Addr)
	const size = 1 << 20
	other.Do("SET", "big", strings.Repeat("x", size))

	for _, c := range []struct {
		what    string
		request string
	}{
		{"small requests", "PING\r\n"},
		{"small replies", clustertest.Encode("SET", "k", strings.Repeat("v", 1024))},
		{"large replies", clustertest.Encode("GET", "big")},
	} {
		mute := clustertest.Dial(t, p.Addr)
		sent, err := pour(mute.Net(), c.request, total)
		t.Logf("%s: %d MB sent, then %v", c.what, sent>>20, err)
		if sent < len(c.request) {
			t.Errorf("%s: nothing was sent: %v", c.what, err)
		}
		if got := other.Do("SET", "alive", c.what); got != "+OK\r\n" {
			t.Errorf("%s: meanwhile, another client got %q", c.what, got)
		}
		checkMemory(t, p)
		mute.Close()
	}
}

// pour sends request again and again, up to total bytes, until the peer takes no more.
func pour(nc net.Conn, request string, total int) (sent int, err error) {
	const patience = 2 * time.Second // without any progress
	block := []byte(strings.Repeat(request, max(1, (1<<20)/len(request))))
	for sent < total {
		nc.SetWriteDeadline(time.Now().Add(patience))
		n, err := nc.Write(block[sent%len(block):])
		sent += n
		if errors.Is(err, os.ErrDeadlineExceeded) && n > 0 {
			continue
		}
		if err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// The largest value that Redis takes passes through in both directions.
func TestMemoryOfTheLargestValue(t *testing.T) {
	const size = 512 << 20
	p := binary.Start(t, "--backend", standalone(t).url)
	conn := clustertest.Dial(t, p.Addr)
	nc := conn.Net()
	nc.SetDeadline(time.Now().Add(3 * harness.Deadline))

	sent := sha256.New()
	header := fmt.Sprintf("*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n$%d\r\n", size)
	if _, err := io.WriteString(nc, header); err != nil {
		t.Fatal(err)
	}
	if err := writeValue(nc, sent, size); err != nil {
		t.Fatalf("cannot send the value: %v", err)
	}
	conn.Send("\r\n")
	nc.SetDeadline(time.Now().Add(3 * harness.Deadline))
	conn.Expect("+OK\r\n")
	conn.Close()

	received, err := readValue(p.Addr, clustertest.Encode("GET", "big"), size)
	if err != nil {
		t.Fatalf("cannot receive the value: %v", err)
	}
	if string(received) != string(sent.Sum(nil)) {
		t.Error("the value came back changed")
	}
	checkMemory(t, p)
}

// writeValue sends size bytes of which no two megabytes are the same.
func writeValue(w io.Writer, sum hash.Hash, size int) error {
	block := make([]byte, 1<<20)
	random := rand.NewChaCha8([32]byte{1})
	random.Read(block)
	for n := 0; n < size; n += len(block) {
		copy(block, strconv.Itoa(n))
		sum.Write(block)
		if _, err := w.Write(block); err != nil {
			return err
		}
	}
	return nil
}

// readValue sends a request and returns the hash of the bulk string that answers it.
func readValue(addr, request string, size int) ([]byte, error) {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(3 * harness.Deadline))
	if _, err := io.WriteString(nc, request); err != nil {
		return nil, err
	}
	r := bufio.NewReaderSize(nc, 1<<20)
	header, err := r.ReadString('\n')
	if want := fmt.Sprintf("$%d\r\n", size); err != nil || header != want {
		return nil, fmt.Errorf("got %q, want %q: %v", header, want, err)
	}
	sum := sha256.New()
	if n, err := io.CopyN(sum, r, int64(size)); err != nil {
		return nil, fmt.Errorf("after %d bytes: %w", n, err)
	}
	end := make([]byte, 2)
	if _, err := io.ReadFull(r, end); err != nil || string(end) != "\r\n" {
		return nil, fmt.Errorf("it ends with %q: %v", end, err)
	}
	return sum.Sum(nil), nil
}
