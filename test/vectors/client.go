package vectors

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

// patience bounds every wait for the server.
const patience = 10 * time.Second

// value is a reply. It keeps what go-redis would lose, the order of a RESP3 map, and
// forgets what scenarios do not tell apart: bulk and status, map, set and array.
type value struct {
	kind  kind
	text  string // of a textual value or an error
	num   int64
	elems []value // of a list; a map is a flat list
}

type kind uint8

const (
	null kind = iota
	textual
	integer
	list
	failure
)

func (v value) String() string {
	switch v.kind {
	case textual:
		return strconv.Quote(v.text)
	case integer:
		return strconv.FormatInt(v.num, 10)
	case list:
		return fmt.Sprint(v.elems)
	case failure:
		return "error " + strconv.Quote(v.text)
	}
	return "nil"
}

// conn is a RESP client with one connection. Not for concurrent use.
type conn struct {
	nc net.Conn
	r  *bufio.Reader
	w  *bufio.Writer
}

// dial connects and switches to RESP3 if resp is 3.
func dial(addr string, resp int) (*conn, error) {
	nc, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return nil, err
	}
	c := &conn{nc: nc, r: bufio.NewReader(nc), w: bufio.NewWriter(nc)}
	if resp != 3 {
		return c, nil
	}
	if v, err := c.do("HELLO", "3"); err != nil || v.kind == failure {
		nc.Close()
		return nil, fmt.Errorf("cannot switch %s to RESP3: %v, %w", addr, v, err)
	}
	return c, nil
}

func (c *conn) close() { c.nc.Close() }

func (c *conn) do(args ...string) (value, error) {
	c.send(args...)
	return c.receive()
}

// pipeline sends all commands before it reads the first reply.
func (c *conn) pipeline(cmds [][]string) ([]value, error) {
	for _, cmd := range cmds {
		c.send(cmd...)
	}
	out := make([]value, len(cmds))
	for i := range out {
		var err error
		if out[i], err = c.receive(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// send leaves errors to the next receive: a bufio.Writer remembers them.
func (c *conn) send(args ...string) {
	fmt.Fprintf(c.w, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(c.w, "$%d\r\n%s\r\n", len(a), a)
	}
}

// receive returns the next reply or push.
func (c *conn) receive() (value, error) {
	if err := c.nc.SetDeadline(time.Now().Add(patience)); err != nil {
		return value{}, err
	}
	if err := c.w.Flush(); err != nil {
		return value{}, err
	}
	return c.read()
}

func (c *conn) read() (value, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return value{}, err
	}
	line, ok := strings.CutSuffix(line, "\r\n")
	if !ok || line == "" {
		return value{}, fmt.Errorf("malformed reply %q", line)
	}
	switch body := line[1:]; line[0] {
	case '+', ',', '#', '(':
		return value{kind: textual, text: body}, nil
	case '-':
		return value{kind: failure, text: body}, nil
	case '_':
		return value{}, nil
	case ':':
		n, err := strconv.ParseInt(body, 10, 64)
		return value{kind: integer, num: n}, err
	case '$':
		return c.readBulk(body)
	case '*', '~', '>':
		return c.readList(body, 1)
	case '%':
		return c.readList(body, 2)
	}
	return value{}, fmt.Errorf("unknown reply type in %q", line)
}

func (c *conn) readBulk(length string) (value, error) {
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 {
		return value{}, err
	}
	b := make([]byte, n+len("\r\n"))
	if _, err := io.ReadFull(c.r, b); err != nil {
		return value{}, err
	}
	if string(b[n:]) != "\r\n" {
		return value{}, errors.New("bulk string is longer than announced")
	}
	return value{kind: textual, text: string(b[:n])}, nil
}

func (c *conn) readList(length string, per int) (value, error) {
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 {
		return value{}, err
	}
	v := value{kind: list}
	for range n * per {
		e, err := c.read()
		if err != nil {
			return value{}, err
		}
		v.elems = append(v.elems, e)
	}
	return v, nil
}
