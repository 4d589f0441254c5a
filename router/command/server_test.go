package command

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// server is a connection to a redis-server process of the test.
type server struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

const deadline = 20 * time.Second

// startServer starts a redis-server on a free loopback port; it ends with the
// test.
func startServer(t *testing.T) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir())
	if err := cmd.Start(); err != nil {
		t.Fatalf("cannot start redis-server: %s", err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	for end := time.Now().Add(deadline); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			t.Cleanup(func() { conn.Close() })
			conn.SetDeadline(time.Now().Add(deadline))
			return &server{t, conn, bufio.NewReader(conn)}
		}
		if time.Now().After(end) {
			t.Fatalf("cannot reach redis-server: %s", err)
		}
	}
}

// do sends a command and returns its reply, decoded (an error as an error
// value) and raw.
func (s *server) do(args ...string) (any, []byte) {
	s.t.Helper()
	var b bytes.Buffer
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := s.conn.Write(b.Bytes()); err != nil {
		s.t.Fatal(err)
	}
	var raw bytes.Buffer
	reply := s.read(&raw)
	return reply, raw.Bytes()
}

// read decodes one reply; a RESP3 map becomes a map[any]any, as in go-redis.
func (s *server) read(raw *bytes.Buffer) any {
	s.t.Helper()
	line, err := s.r.ReadString('\n')
	if err != nil {
		s.t.Fatal(err)
	}
	raw.WriteString(line)
	line = strings.TrimSuffix(line, "\r\n")
	n, _ := strconv.Atoi(line[1:])
	switch line[0] {
	case '+':
		return line[1:]
	case '-':
		return fmt.Errorf("%s", line[1:])
	case ':':
		return int64(n)
	case '$':
		if n < 0 {
			return nil
		}
		b := make([]byte, n+2)
		if _, err := io.ReadFull(s.r, b); err != nil {
			s.t.Fatal(err)
		}
		raw.Write(b)
		return string(b[:n])
	case '%':
		m := map[any]any{}
		for range n {
			key := s.read(raw)
			m[key] = s.read(raw)
		}
		return m
	case '*', '~':
		list := []any{}
		for range n {
			list = append(list, s.read(raw))
		}
		return list
	}
	return nil
}

// words splits a command line at spaces; two quotes are an empty argument.
func words(line string) []string {
	args := strings.Split(line, " ")
	for i, arg := range args {
		if arg == "''" {
			args[i] = ""
		}
	}
	return args
}

func bytesOf(args []string) [][]byte {
	b := make([][]byte, len(args))
	for i, arg := range args {
		b[i] = []byte(arg)
	}
	return b
}
