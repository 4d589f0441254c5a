package resp

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// startRedis runs a redis-server for the length of the test and returns its
// unix socket: a port can be taken away between asking for it and using it.
func startRedis(t *testing.T, args ...string) (socket string) {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("this test compares with a real redis-server: %v", err)
	}
	dir := t.TempDir()
	socket = filepath.Join(dir, "s")
	args = append([]string{"--port", "0", "--unixsocket", socket, "--dir", dir, "--save", "", "--appendonly", "no"}, args...)
	cmd := exec.Command(path, args...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatalf("cannot start %q: %v", path, err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
			return socket
		}
		if time.Now().After(deadline) {
			cmd.Process.Kill()
			cmd.Wait()
			t.Fatalf("redis-server does not listen: %v\n%s", err, log.String())
		}
	}
}

func dialRedis(t *testing.T, socket string) *net.UnixConn {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.UnixConn)
}

// redisAnswer sends in, then nothing more, and returns all that Redis answers.
func redisAnswer(t *testing.T, socket, in string) string {
	t.Helper()
	conn := dialRedis(t, socket)
	defer conn.Close()
	// Redis may have closed the connection before it has seen all of in.
	_, _ = io.WriteString(conn, in)
	_ = conn.CloseWrite()
	out, err := io.ReadAll(conn)
	if err != nil && !strings.Contains(err.Error(), "connection reset") {
		t.Fatalf("reading the answer to %.80q: %v", in, err)
	}
	return string(out)
}

// redisReply runs one well-formed command and returns its reply.
func redisReply(t *testing.T, conn net.Conn, args [][]byte) string {
	t.Helper()
	if _, err := conn.Write(AppendCommandBytes(nil, args)); err != nil {
		t.Fatal(err)
	}
	var s ReplyScanner
	var out, buf []byte
	for {
		chunk := make([]byte, 4096)
		n, err := conn.Read(chunk)
		if err != nil {
			t.Fatalf("reading the reply to %q: %v", args, err)
		}
		buf = append(buf, chunk[:n]...)
		used, done, err := s.Scan(buf)
		if err != nil {
			t.Fatalf("reply %q to %q: %v", buf, args, err)
		}
		out = append(out, buf[:used]...)
		buf = buf[used:]
		if done {
			return string(out)
		}
	}
}

// ourAnswer is what Redis must answer to in if the Parser reads it as Redis does:
// each request is sent on its own, well-formed, over conn.
func ourAnswer(t *testing.T, conn net.Conn, in string, lim *Limits) string {
	t.Helper()
	var p Parser
	var req Request
	var out strings.Builder
	for pos := 0; ; {
		n, err := p.Next([]byte(in[pos:]), lim, &req)
		if err != nil {
			out.WriteString("-ERR " + err.Error() + "\r\n")
			return out.String()
		}
		if n == 0 {
			return out.String()
		}
		pos += n
		if len(req.Args) > 0 {
			out.WriteString(redisReply(t, conn, req.Args))
		}
	}
}

func TestParserAgreesWithRedis(t *testing.T) {
	socket := startRedis(t)
	conn := dialRedis(t, socket)
	compare := func(in string) {
		t.Helper()
		if got, want := ourAnswer(t, conn, in, nil), redisAnswer(t, socket, in); got != want {
			t.Errorf("%.200q\nRedis answers %q\nwe answer    %q", in, want, got)
		}
	}
	for _, tt := range requestTests {
		if tt.lim == nil {
			compare(tt.in)
		}
	}
	// Exactly one byte too many: Redis then has read all it was sent when it closes.
	compare("*" + long(DefaultMaxInline))
	compare("*1\r\n$" + long(DefaultMaxInline))
	compare(long(DefaultMaxInline + 1))
	compare("\x00\n" + long(DefaultMaxInline-1))
	compare(long(DefaultMaxInline))
	compare("ECHO " + long(DefaultMaxInline-5) + "\n")

	tokens := []string{
		"*", "$", "*1\r\n", "*2\r\n", "*3\r\n", "*0\r\n", "*-1\r\n", "$4\r\n", "$1\r\n", "$0\r\n", "ECHO", "PING", "ECHO x\r\n", "ECHO \"",
		"\r\n", "\r", "\n", "\r\n", "x", " ", "'", "\"", "\\", "\\x4", "1", "0", "-", "+", "\v", "\x00", "\xff", "*2\r\n$4\r\nECHO\r\n", "$1\r\nx\r\n", "$3\r\na\r\n\r\n",
	}
	rnd := rand.New(rand.NewPCG(7, 7))
	for range 600 {
		var in strings.Builder
		for range 1 + rnd.IntN(10) {
			in.WriteString(tokens[rnd.IntN(len(tokens))])
		}
		compare(in.String())
	}
}

func TestUnauthenticatedLimitsAgreeWithRedis(t *testing.T) {
	socket := startRedis(t, "--requirepass", "secret")
	conn := dialRedis(t, socket)
	for _, in := range []string{
		"*10\r\n" + strings.Repeat("$1\r\nx\r\n", 10),
		"*11\r\n" + strings.Repeat("$1\r\nx\r\n", 11),
		"*2147483648\r\n",
		"*2\r\n$3\r\nGET\r\n$16384\r\n" + long(16384) + "\r\n",
		"*2\r\n$3\r\nGET\r\n$16385\r\n",
		"*2\r\n$3\r\nGET\r\n$536870912\r\n",
		"*2\r\n$3\r\nGET\r\n$536870913\r\n",
	} {
		if got, want := ourAnswer(t, conn, in, &Unauthenticated), redisAnswer(t, socket, in); got != want {
			t.Errorf("%.80q\nRedis answers %q\nwe answer    %q", in, want, got)
		}
	}
}
