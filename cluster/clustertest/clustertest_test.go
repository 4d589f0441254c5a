package clustertest

import (
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

func TestRedisStopsFreezesAndRestarts(t *testing.T) {
	r := StartRedis(t, "--maxmemory-policy", "allkeys-lru")
	r.Do("SET", "k", "v")
	if got := r.Text("GET", "k"); got != "v" {
		t.Fatalf("GET k = %q, want v", got)
	}
	if got := r.Do("GET", "absent"); got != nil {
		t.Fatalf("GET absent = %v, want nil", got)
	}

	conn := Dial(t, r.Addr)
	conn.Cmd("PING")
	conn.Expect("+PONG\r\n")
	r.Freeze()
	conn.Cmd("PING")
	if reply, err := conn.TryReply(20 * time.Millisecond); err == nil {
		t.Fatalf("a frozen server answered %q", reply)
	}
	r.Thaw()
	conn.Expect("+PONG\r\n")

	pid := r.Pid()
	r.Restart()
	if r.Pid() == pid {
		t.Fatal("Restart kept the process")
	}
	conn.ExpectClosed()
	if got := r.Do("GET", "k"); got != nil {
		t.Fatalf("GET k after Restart = %v, want nil", got)
	}

	r.Stop()
	if nc, err := net.Dial("tcp", r.Addr); err == nil {
		nc.Close()
		t.Fatal("a stopped server accepts connections")
	}
	if r.Running() {
		t.Fatal("a stopped server is running")
	}
}

func TestRedisWithPassword(t *testing.T) {
	r := StartRedis(t, "--requirepass", "secret")
	if got := r.Text("PING"); got != "PONG" {
		t.Fatalf("PING = %q", got)
	}
	got := Dial(t, r.Addr).Do("GET", "k")
	if !strings.HasPrefix(got, "-NOAUTH ") {
		t.Fatalf("GET without AUTH = %q, want -NOAUTH", got)
	}
}

func TestScopeUndoesEverything(t *testing.T) {
	scope := NewScope()
	r := StartRedis(scope)
	if got := r.Text("PING"); got != "PONG" {
		t.Fatalf("PING = %q", got)
	}
	scope.Close()
	if r.Running() {
		t.Fatal("the server outlived its scope")
	}
	if _, err := os.Stat(r.Dir); !os.IsNotExist(err) {
		t.Fatalf("the server's directory is still there: %v", err)
	}
}

func TestConnFindsTheEndOfEveryReply(t *testing.T) {
	replies := []string{
		"+OK\r\n", "-ERR no\r\n", ":-1\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n", "$0\r\n\r\n", "$4\r\na\r\nb\r\n",
		"*2\r\n$1\r\na\r\n*1\r\n:1\r\n", "%1\r\n+k\r\n*2\r\n_\r\n#t\r\n", "~1\r\n,1.5\r\n",
		">2\r\n+invalidate\r\n_\r\n", "|1\r\n+ttl\r\n:3\r\n$1\r\nx\r\n", "=7\r\ntxt:abc\r\n", "!5\r\nERR x\r\n", "(123\r\n",
	}
	client, server := net.Pipe()
	t.Cleanup(func() { client.Close() })
	go func() {
		io.WriteString(server, strings.Join(replies, ""))
		server.Close()
	}()
	conn := NewConn(t, client)
	for _, want := range replies {
		conn.Expect(want)
	}
	conn.ExpectClosed()
}

func TestClusterMovesSlotsAndFailsOver(t *testing.T) {
	start := time.Now()
	c := StartCluster(t, 3, 1)
	t.Logf("6 nodes after %v", time.Since(start))

	const key = "foo" // slot 12182, the third master's
	owner := c.OwnerOf(key)
	if owner != c.Nodes[2] {
		t.Fatalf("%s owns %q, want %s", owner.Addr, key, c.Nodes[2].Addr)
	}
	owner.Do("SET", key, "v")
	slot := c.SlotOf(key)
	if slot != 12182 {
		t.Fatalf("slot of foo = %d, want 12182", slot)
	}

	c.BeginMigrate(slot, c.Nodes[0])
	if n := c.MigrateKeys(slot, c.Nodes[0], 0); n != 1 {
		t.Fatalf("%d keys moved, want 1", n)
	}
	if _, err := owner.DoErr("GET", key); err == nil || !strings.HasPrefix(err.Error(), "ASK ") {
		t.Fatalf("GET during the migration: %v, want ASK", err)
	}
	c.FinishMigrate(slot, c.Nodes[0])
	if got := c.OwnerOf(key); got != c.Nodes[0] {
		t.Fatalf("%s owns %q after the move, want %s", got.Addr, key, c.Nodes[0].Addr)
	}
	if got := c.Nodes[0].Text("GET", key); got != "v" {
		t.Fatalf("GET at the new owner = %q, want v", got)
	}

	replicas := c.ReplicasOf(c.Nodes[1])
	if len(replicas) != 1 || replicas[0] != c.Nodes[4] {
		t.Fatalf("replicas of the second master: %v", replicas)
	}
	c.Failover(replicas[0])
	if got := c.OwnerOfSlot(8000); got != c.Nodes[4] {
		t.Fatalf("%s owns slot 8000 after the failover, want %s", got.Addr, c.Nodes[4].Addr)
	}

	fourth := c.AddNode()
	c.MoveSlot(slot, fourth)
	if got := c.OwnerOf(key); got != fourth {
		t.Fatalf("%s owns %q, want the new node %s", got.Addr, key, fourth.Addr)
	}
	c.AwaitOK()
}

func TestSentinelFailsOver(t *testing.T) {
	start := time.Now()
	s := StartSentinel(t)
	t.Logf("set ready after %v", time.Since(start))

	first := s.Master()
	if first != s.Nodes[0] || len(s.Replicas()) != 2 {
		t.Fatalf("master %s, replicas %v", first.Addr, s.Replicas())
	}
	s.Failover()
	second := s.Master()
	if second == first {
		t.Fatal("the master did not change")
	}
	second.Do("SET", "k", "v")

	second.Stop()
	third := s.AwaitFailover(second)
	Await(t, "the third master to accept writes", func() error {
		_, err := third.DoErr("SET", "k", "w")
		return err
	})
}
