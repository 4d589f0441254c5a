// Package load is a Redis load generator that costs as little CPU per request as
// a client can, so that a machine with few cores spends its time in the server
// under test.
//
// It behaves like redis-benchmark: a fixed number of connections, each of which
// sends a pipeline of commands, waits for all replies, and sends the next.
// What makes it cheaper is what it does not do. A thread serves all its
// connections with one epoll set that hardly changes, so that a pipeline costs
// one write, one read and a share of one wait; requests are encoded beforehand;
// and replies are not parsed: every reply to a command has the same length,
// learned at the start, so counting bytes finds the end of a pipeline. A length
// that does not add up is an error, never a silent miscount.
//
// It is made for measuring servers. It does not retry, follow redirects or speak TLS.
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

// Placeholder is replaced by a random number of twelve digits wherever it stands in an argument.
const Placeholder = "__rand_int__"

const (
	// variants is about how many different pipelines the connections cycle through.
	variants = 64
	// maxEncoded bounds the size of them all; large pipelines come in fewer variants.
	maxEncoded = 8 << 20
)

// Spec describes one run.
type Spec struct {
	Addr      string     // host:port of the server
	Clients   int        // connections
	Threads   int        // that serve them, each a part; 0: one
	Depth     int        // commands a connection sends before it reads the replies
	Requests  int        // commands in total, rounded up to full pipelines
	Commands  [][]string // name and arguments of the commands, which are sent in turn; see Placeholder
	Keys      int        // the random numbers are below Keys
	Seed      uint64     // of the random numbers
	Reconnect bool       // every pipeline gets a connection of its own
}

// Result is what a run saw.
type Result struct {
	Requests int           // commands answered
	Elapsed  time.Duration // from the first byte sent to the last received
	CPU      time.Duration // used by the generator's threads meanwhile
	// Of the time from sending a pipeline, or connecting for it, to its last reply; within 6 %.
	P50, P99, P999 time.Duration
}

func (s Spec) validate() error {
	if s.Clients < 1 || s.Depth < 1 || s.Requests < 1 || s.Keys < 1 || len(s.Commands) == 0 {
		return fmt.Errorf("cannot generate load from %+v: every count must be positive", s)
	}
	return nil
}

// pipeline is what a connection sends at once, and how long the replies to it are.
type pipeline struct {
	request []byte
	reply   int
}

// pipelines encodes what connections send in turn; replies are the lengths of the replies
// to the commands.
func (s Spec) pipelines(replies []int) []pipeline {
	random := rand.New(rand.NewPCG(s.Seed, 0))
	var out []pipeline
	at, encoded := 0, 0
	// Whole cycles only, so that each command has its share.
	for len(out) < variants && encoded < maxEncoded || at%len(s.Commands) != 0 {
		var p pipeline
		for range s.Depth {
			i := at % len(s.Commands)
			p.request = s.appendCommand(p.request, s.Commands[i], random)
			p.reply += replies[i]
			at++
		}
		encoded += len(p.request)
		out = append(out, p)
	}
	return out
}

func (s Spec) appendCommand(b []byte, command []string, random *rand.Rand) []byte {
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(len(command)), 10)
	b = append(b, "\r\n"...)
	for _, arg := range command {
		for strings.Contains(arg, Placeholder) {
			arg = strings.Replace(arg, Placeholder, fmt.Sprintf("%012d", random.IntN(s.Keys)), 1)
		}
		b = append(b, '$')
		b = strconv.AppendInt(b, int64(len(arg)), 10)
		b = append(b, "\r\n"...)
		b = append(b, arg...)
		b = append(b, "\r\n"...)
	}
	return b
}

// replyBytes asks each command once and returns the lengths of the replies.
func (s Spec) replyBytes(conn net.Conn, timeout time.Duration) ([]int, error) {
	random := rand.New(rand.NewPCG(s.Seed, 0))
	lengths := make([]int, len(s.Commands))
	for i, command := range s.Commands {
		n, err := ask(conn, s.appendCommand(nil, command, random), timeout)
		if err != nil {
			return nil, fmt.Errorf("cannot use %q: %w", command[0], err)
		}
		lengths[i] = n
	}
	return lengths, nil
}

// ask returns the length of the reply to request. A PING behind it marks where the
// reply ends, whatever its shape; the reply to a request that is a PING itself may come alone.
func ask(conn net.Conn, request []byte, timeout time.Duration) (int, error) {
	const pong = "+PONG\r\n"
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return 0, err
	}
	if _, err := conn.Write(append(request, "*1\r\n$4\r\nPING\r\n"...)); err != nil {
		return 0, err
	}
	var reply []byte
	chunk := make([]byte, 64<<10)
	for len(reply) == len(pong) || !bytes.HasSuffix(reply, []byte(pong)) {
		n, err := conn.Read(chunk)
		reply = append(reply, chunk[:n]...)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, err
		}
	}
	if reply[0] == '-' {
		return 0, fmt.Errorf("the server answers %.80q", reply)
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

func (h *histogram) merge(other *histogram) {
	for bucket, count := range other.counts {
		h.counts[bucket] += count
	}
	h.total += other.total
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
