// Package load is a Redis load generator that costs as little CPU per request as
// a client can, so that a machine with few cores spends its time in the server
// under test.
//
// It behaves like redis-benchmark: a fixed number of connections, each of which
// sends a pipeline of equal commands, waits for all replies, and sends the next.
// What makes it cheaper is what it does not do. One thread serves all
// connections with one epoll set that never changes, so that a pipeline costs
// one write, one read and a share of one wait; requests are encoded beforehand;
// and replies are not parsed: every reply to the command has the same length,
// learned at the start, so counting bytes finds the end of a pipeline. A length
// that does not add up is an error, never a silent miscount.
//
// It is made for measuring servers. It does not retry, reconnect, follow
// redirects or speak TLS.
package load

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"
)

// Placeholder is replaced by a random number of twelve digits in every argument.
const Placeholder = "__rand_int__"

// variants is how many different pipelines a connection cycles through.
const variants = 64

// Spec describes one run.
type Spec struct {
	Addr     string   // host:port of the server
	Clients  int      // connections
	Depth    int      // commands a connection sends before it reads the replies
	Requests int      // commands in total, rounded up to full pipelines
	Command  []string // name and arguments; see Placeholder
	Keys     int      // the random numbers are below Keys
	Seed     uint64   // of the random numbers
}

// Result is what a run saw.
type Result struct {
	Requests int           // commands answered
	Elapsed  time.Duration // from the first byte sent to the last received
	CPU      time.Duration // used by the generator's thread meanwhile
	P50, P99 time.Duration // of the time from sending a pipeline to its last reply; within 6 %
}

func (s Spec) validate() error {
	if s.Clients < 1 || s.Depth < 1 || s.Requests < 1 || s.Keys < 1 || len(s.Command) == 0 {
		return fmt.Errorf("cannot generate load from %+v: every count must be positive", s)
	}
	return nil
}

// pipelines encodes the pipelines that connections send in turn.
func (s Spec) pipelines() [][]byte {
	random := rand.New(rand.NewPCG(s.Seed, 0))
	out := make([][]byte, variants)
	for i := range out {
		for range s.Depth {
			out[i] = s.appendCommand(out[i], random.IntN(s.Keys))
		}
	}
	return out
}

func (s Spec) appendCommand(b []byte, key int) []byte {
	number := fmt.Sprintf("%012d", key)
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(len(s.Command)), 10)
	b = append(b, "\r\n"...)
	for _, arg := range s.Command {
		arg = strings.ReplaceAll(arg, Placeholder, number)
		b = append(b, '$')
		b = strconv.AppendInt(b, int64(len(arg)), 10)
		b = append(b, "\r\n"...)
		b = append(b, arg...)
		b = append(b, "\r\n"...)
	}
	return b
}

// replyBytes asks once and returns the length of the reply. A PING behind the
// command marks where the reply ends, whatever its shape.
func (s Spec) replyBytes(conn net.Conn, timeout time.Duration) (int, error) {
	const pong = "+PONG\r\n"
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return 0, fmt.Errorf("cannot set deadline: %w", err)
	}
	request := append(s.appendCommand(nil, 0), "*1\r\n$4\r\nPING\r\n"...)
	if _, err := conn.Write(request); err != nil {
		return 0, fmt.Errorf("cannot send %q: %w", s.Command[0], err)
	}
	var reply []byte
	chunk := make([]byte, 64<<10)
	for !bytes.HasSuffix(reply, []byte(pong)) {
		n, err := conn.Read(chunk)
		reply = append(reply, chunk[:n]...)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, fmt.Errorf("cannot read the reply to %q: %w", s.Command[0], err)
		}
	}
	if reply[0] == '-' {
		return 0, fmt.Errorf("cannot use %q: the server answers %.80q", s.Command[0], reply)
	}
	return len(reply) - len(pong), nil
}

// histogram counts durations in buckets that grow by a sixteenth of a power of two.
type histogram struct {
	counts [64 * subBuckets]int
	total  int
}

const subBuckets = 16

func (h *histogram) add(d time.Duration) {
	h.counts[bucketOf(uint64(d))]++
	h.total++
}

// bucketOf keeps the four bits after the leading one.
func bucketOf(n uint64) int {
	if n < subBuckets {
		return int(n)
	}
	shift := bits.Len64(n) - 5
	return shift*subBuckets + int(n>>shift)
}

// bucketStart is the smallest number in a bucket.
func bucketStart(bucket int) uint64 {
	if bucket < 2*subBuckets {
		return uint64(bucket)
	}
	shift := bucket/subBuckets - 1
	return uint64(bucket%subBuckets+subBuckets) << shift
}

// quantile returns the start of the bucket below which a share q of all lies.
func (h *histogram) quantile(q float64) time.Duration {
	rank := int(q * float64(h.total))
	for bucket, count := range h.counts {
		if rank < count {
			return time.Duration(bucketStart(bucket))
		}
		rank -= count
	}
	return 0
}
