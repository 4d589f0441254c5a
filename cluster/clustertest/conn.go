package clustertest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// Conn is a raw RESP connection for byte-exact comparisons: what is sent and
// what comes back is not interpreted beyond finding the end of a reply. Failed
// I/O and silence for longer than Deadline fail the test. Not for concurrent use.
type Conn struct {
	t  TB
	nc net.Conn
	br *bufio.Reader
}

// Dial connects to "host:port" or "unix:/path".
func Dial(t TB, addr string) *Conn {
	t.Helper()
	network, address := "tcp", addr
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		network, address = "unix", path
	}
	nc, err := net.DialTimeout(network, address, Deadline)
	if err != nil {
		t.Fatalf("cannot connect to %q: %v", addr, err)
	}
	t.Cleanup(func() { nc.Close() })
	return NewConn(t, nc)
}

// NewConn is Dial for a connection that is there already.
func NewConn(t TB, nc net.Conn) *Conn {
	return &Conn{t: t, nc: nc, br: bufio.NewReader(nc)}
}

// Net is the connection underneath, for half-closing and the like.
func (c *Conn) Net() net.Conn { return c.nc }

// Close closes the connection; the end of the test does it too.
func (c *Conn) Close() { c.nc.Close() }

// Send writes raw bytes.
func (c *Conn) Send(raw string) {
	c.t.Helper()
	c.nc.SetWriteDeadline(time.Now().Add(Deadline))
	if _, err := io.WriteString(c.nc, raw); err != nil {
		c.t.Fatalf("cannot send %.80q: %v", raw, err)
	}
}

// Cmd sends one command without reading its reply.
func (c *Conn) Cmd(args ...string) {
	c.t.Helper()
	c.Send(Encode(args...))
}

// Do sends one command and returns the raw bytes of one reply.
func (c *Conn) Do(args ...string) string {
	c.t.Helper()
	c.Cmd(args...)
	return c.ReadReply()
}

// ReadReply returns the raw bytes of the next reply (or push), complete with all
// nested elements; an attribute is returned together with the reply it precedes.
func (c *Conn) ReadReply() string {
	c.t.Helper()
	reply, err := c.TryReply(Deadline)
	if err != nil {
		c.t.Fatalf("cannot read a reply: %v (got %.200q)", err, reply)
	}
	return reply
}

// TryReply is ReadReply with an own limit and an error: io.EOF when the peer
// closed between replies, os.ErrDeadlineExceeded when nothing came in time.
func (c *Conn) TryReply(limit time.Duration) (string, error) {
	c.nc.SetReadDeadline(time.Now().Add(limit))
	var raw strings.Builder
	err := c.readReply(&raw)
	return raw.String(), err
}

// Expect reads one reply and fails the test unless it is exactly want.
func (c *Conn) Expect(want string) {
	c.t.Helper()
	if got := c.ReadReply(); got != want {
		c.t.Fatalf("got reply %.300q, want %.300q", got, want)
	}
}

// ExpectClosed fails the test unless the peer closes without another byte.
func (c *Conn) ExpectClosed() {
	c.t.Helper()
	reply, err := c.TryReply(Deadline)
	var timeout net.Error
	if err == nil || reply != "" || errors.As(err, &timeout) && timeout.Timeout() {
		c.t.Fatalf("got reply %.200q, error %v; want a closed connection", reply, err)
	}
}

func (c *Conn) readReply(raw *strings.Builder) error {
	line, err := c.br.ReadString('\n')
	raw.WriteString(line)
	if err != nil {
		return err
	}
	if len(line) < 3 || !strings.HasSuffix(line, "\r\n") {
		return fmt.Errorf("line %q is not RESP", line)
	}
	kind, rest := line[0], line[1:len(line)-2]
	switch kind {
	case '+', '-', ':', '_', '#', ',', '(':
		return nil
	case '$', '!', '=', '*', '~', '>', '%', '|':
	default:
		return fmt.Errorf("line %q has an unknown type", line)
	}
	n, err := strconv.Atoi(rest)
	if err != nil {
		return fmt.Errorf("line %q has a bad length", line)
	}
	if n < 0 {
		return nil
	}
	switch kind {
	case '$', '!', '=':
		_, err := io.CopyN(raw, c.br, int64(n)+2)
		return err
	case '%':
		n *= 2
	case '|':
		n = n*2 + 1
	}
	for range n {
		if err := c.readReply(raw); err != nil {
			return err
		}
	}
	return nil
}

// Encode returns a command as the array of bulk strings that clients send.
func Encode(args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	return b.String()
}
