package proxy_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

// TestTransactions plays whole transactions to both twins.
func TestTransactions(t *testing.T) {
	tests := []struct {
		name     string
		commands [][]string
	}{
		{"one read", [][]string{{"MULTI"}, {"SMEMBERS", "s"}, {"EXEC"}}},
		{"read and write", [][]string{{"MULTI"}, {"GET", "foo"}, {"SET", "foo", "1"}, {"EXEC"}, {"PING"}}},
		{"empty", [][]string{{"MULTI"}, {"EXEC"}, {"PING"}}},
		{"discarded", [][]string{{"MULTI"}, {"SET", "foo", "2"}, {"DISCARD"}, {"GET", "foo"}}},
		{"what the proxy answers itself", [][]string{{"MULTI"}, {"PING"}, {"PING", "x"}, {"PUBLISH", "ch", "m"}, {"ECHO", "x"}, {"HGETALL", "ns:cfg:app"}, {"CLIENT", "GETNAME"}, {"CLIENT", "SETNAME", "n"}, {"CLIENT", "GETNAME"}, {"CLUSTER", "INFO"}, {"ROLE"}, {"AUTH", "x"}, {"EXEC"}, {"CLIENT", "GETNAME"}}},
		{"unknown command", [][]string{{"MULTI"}, {"NOSUCH"}, {"SET", "foo", "3"}, {"EXEC"}, {"GET", "foo"}}},
		{"wrong arity", [][]string{{"MULTI"}, {"GET"}, {"SET", "foo", "3"}, {"EXEC"}, {"GET", "foo"}}},
		{"an error of EXEC's", [][]string{{"MULTI"}, {"SET", "foo", "x"}, {"INCR", "foo"}, {"LPUSH", "foo", "x"}, {"SET", "bar", "1"}, {"EXEC"}, {"MGET", "foo", "bar"}}},
		{"nested", [][]string{{"MULTI"}, {"MULTI"}, {"SET", "foo", "4"}, {"EXEC"}, {"GET", "foo"}}},
		{"WATCH inside", [][]string{{"MULTI"}, {"WATCH", "w"}, {"SET", "foo", "5"}, {"EXEC"}, {"GET", "foo"}}},
		{"UNWATCH inside", [][]string{{"WATCH", "w"}, {"MULTI"}, {"UNWATCH"}, {"SET", "foo", "5"}, {"EXEC"}, {"GET", "foo"}}},
		{"EXEC without MULTI", [][]string{{"EXEC"}, {"DISCARD"}, {"PING"}, {"WATCH", "w"}, {"EXEC"}, {"DISCARD"}, {"UNWATCH"}, {"PING"}}},
		{"refused commands", [][]string{{"MULTI"}, {"SAVE"}, {"EXEC"}, {"MULTI"}, {"SHUTDOWN"}, {"DISCARD"}, {"PING"}}},
		{"own write after WATCH", [][]string{{"WATCH", "w"}, {"SET", "w", "mine"}, {"MULTI"}, {"SET", "foo", "6"}, {"EXEC"}, {"GET", "foo"}, {"MULTI"}, {"GET", "foo"}, {"EXEC"}}},
		{"EXEC with an argument", [][]string{{"EXEC", "x"}, {"MULTI"}, {"SET", "foo", "lost"}, {"EXEC", "x"}, {"EXEC"}, {"WATCH", "w"}, {"MULTI"}, {"EXEC", "x"}, {"GET", "foo"}, {"DISCARD"}}},
		{"quiet WATCH", [][]string{{"WATCH", "w", "v"}, {"GET", "w"}, {"MULTI"}, {"SET", "foo", "7"}, {"EXEC"}, {"GET", "foo"}}},
		{"WATCH without keys", [][]string{{"WATCH"}, {"MULTI"}, {"EXEC"}}},
		{"WATCH, then an aborted transaction", [][]string{{"WATCH", "w"}, {"MULTI"}, {"NOSUCH"}, {"EXEC"}, {"SET", "w", "1"}, {"MULTI"}, {"EXEC"}}},
		{"blocking commands do not block", [][]string{{"MULTI"}, {"BLPOP", "empty", "0"}, {"BRPOPLPUSH", "empty", "e", "0"}, {"XREAD", "BLOCK", "0", "STREAMS", "nostream", "$"}, {"EXEC"}, {"PING"}}},
		{"scripts", [][]string{{"MULTI"}, {"EVAL", "return redis.call('INCR', KEYS[1])", "1", "n"}, {"EVAL", "return 1", "abc"}, {"EVALSHA", strings.Repeat("f", 40), "0"}, {"EXEC"}}},
		{"SELECT inside", [][]string{{"MULTI"}, {"SET", "foo", "db0"}, {"SELECT", "5"}, {"SET", "foo", "db5"}, {"SELECT", "99"}, {"GET", "foo"}, {"EXEC"}, {"GET", "foo"}, {"SELECT", "0"}, {"GET", "foo"}}},
		{"SELECT inside, discarded", [][]string{{"MULTI"}, {"SELECT", "5"}, {"DISCARD"}, {"GET", "foo"}}},
		{"SELECT inside, watched key changed", [][]string{{"WATCH", "w"}, {"SET", "w", "2"}, {"MULTI"}, {"SELECT", "5"}, {"EXEC"}, {"GET", "foo"}}},
		{"SELECT while watching", [][]string{{"WATCH", "w"}, {"SELECT", "5"}, {"SET", "w", "other database"}, {"MULTI"}, {"SET", "foo", "in 5"}, {"EXEC"}, {"GET", "foo"}, {"SELECT", "0"}, {"GET", "foo"}}},
		{"watched key changed, then SELECT", [][]string{{"WATCH", "w"}, {"SET", "w", "3"}, {"SELECT", "5"}, {"MULTI"}, {"SET", "foo", "lost"}, {"EXEC"}, {"GET", "foo"}, {"SELECT", "0"}}},
		{"RESET", [][]string{{"WATCH", "w"}, {"MULTI"}, {"SET", "foo", "8"}, {"RESET"}, {"EXEC"}, {"GET", "foo"}}},
		{"QUIT inside is refused to nobody", [][]string{{"MULTI"}, {"SET", "foo", "9"}, {"QUIT"}}},
	}
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		for _, proto := range []int{2, 3} {
			for _, tt := range tests {
				t.Run(fmt.Sprintf("%s RESP%d", tt.name, proto), func(t *testing.T) {
					w.dial(t, proto).do(tt.commands...)
					p := w.dial(t, proto) // and one by one
					for _, c := range tt.commands {
						p.do(c)
					}
				})
			}
		}
	})
}

// TestProtocolSwitchWhileWatching: what is watched stays watched.
func TestProtocolSwitchWhileWatching(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	p := w.dial(t, 2)
	p.do([]string{"WATCH", "w"})
	p.direct.Do("HELLO", "3")
	p.behind.Do("HELLO", "3")
	p.do([]string{"HSET", "h", "f", "v"}, []string{"HGETALL", "h"}, []string{"SET", "w", "1"}, []string{"MULTI"}, []string{"GET", "w"}, []string{"EXEC"}, []string{"HGETALL", "h"}, []string{"GET", "none"})
}

// TestWatch: somebody else's write makes EXEC answer a null and execute nothing,
// through the proxy or beside it.
func TestWatch(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		for _, proto := range []int{2, 3} {
			p, other := w.dial(t, proto), w.dial(t, 2)
			for _, write := range []func(){
				func() { other.do([]string{"SET", "w", "1"}) },
				func() { w.direct.Do("SET", "w", "2"); w.behind.Do("SET", "w", "2") },
			} {
				p.do([]string{"WATCH", "w"})
				write()
				p.do([]string{"MULTI"}, []string{"SADD", "s", "a"}, []string{"SET", "x", "1"}, []string{"EXEC"}, []string{"PING"}, []string{"EXISTS", "s", "x"})
			}
			p.do([]string{"WATCH", "w"})
			other.do([]string{"SET", "w", "3"})
			p.do([]string{"UNWATCH"}, []string{"MULTI"}, []string{"GET", "w"}, []string{"EXEC"})
		}
	})
}

// TestTransactionPublishesAtExec: a queued PUBLISH is not sent before EXEC.
func TestTransactionPublishesAtExec(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	sub := clustertest.Dial(t, w.behind.Addr)
	sub.Do("SUBSCRIBE", "ch")
	c := clustertest.Dial(t, w.proxy)
	c.Send(encodeAll([]string{"MULTI"}, []string{"PUBLISH", "ch", "inside"}))
	c.Expect("+OK\r\n")
	c.Expect("+QUEUED\r\n")
	w.behind.Do("PUBLISH", "ch", "outside")
	sub.Expect("*3\r\n$7\r\nmessage\r\n$2\r\nch\r\n$7\r\noutside\r\n")
	c.Cmd("EXEC")
	c.Expect("*1\r\n:1\r\n")
	sub.Expect("*3\r\n$7\r\nmessage\r\n$2\r\nch\r\n$6\r\ninside\r\n")
}

// TestTransactionsDoNotMix: each EXEC holds its own replies, plain commands of
// others are never queued, and transactions need no connections of their own.
func TestTransactionsDoNotMix(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		const clients, rounds = 30, 60
		var all sync.WaitGroup
		failures := make(chan string, clients)
		for i := range clients {
			c := clustertest.Dial(t, w.proxy)
			all.Go(func() {
				for n := 1; n <= rounds; n++ {
					key, want := fmt.Sprint("own", i), ""
					switch i % 3 {
					case 0:
						c.Send(encodeAll([]string{"MULTI"}, []string{"INCR", key}, []string{"GET", key}, []string{"EXEC"}))
						want = fmt.Sprintf("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:%d\r\n$%d\r\n%d\r\n", n, len(strconv.Itoa(n)), n)
					case 1:
						c.Send(encodeAll([]string{"WATCH", key}, []string{"MULTI"}, []string{"INCR", key}, []string{"EXEC"}))
						want = fmt.Sprintf("+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n:%d\r\n", n)
					case 2:
						c.Send(encodeAll([]string{"INCR", key}))
						want = fmt.Sprintf(":%d\r\n", n)
					}
					var got strings.Builder
					for got.Len() < len(want) {
						reply, err := c.TryReply(clustertest.Deadline)
						got.WriteString(reply)
						if err != nil {
							break
						}
					}
					if got.String() != want {
						failures <- fmt.Sprintf("client %d, round %d: got %q, want %q", i, n, got.String(), want)
						return
					}
				}
			})
		}
		all.Wait()
		close(failures)
		for f := range failures {
			t.Error(f)
		}
		// Two loops, each with one lane, one for fetches, and at most 8 idle pins kept.
		if n, err := strconv.Atoi(w.behind.InfoField("clients", "connected_clients")); err != nil || n > 2*(2+8)+1 {
			t.Errorf("the backend has %d connections (%v) after %d clients", n, err, clients)
		}
	})
}

// TestBlocking: blocking commands hold up nobody else, keep their own time rather
// than the proxy's, and keep their place in the pipeline.
func TestBlocking(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := &twins{direct: clustertest.StartRedis(t), behind: clustertest.StartRedis(t)}
		o := strict(t, w.behind, transport)
		o.Upstream.Timeout = 300 * time.Millisecond
		_, w.proxy = proxytest.Start(t, o)

		var blocked []*clustertest.Conn
		for i := range 10 {
			c := clustertest.Dial(t, w.proxy)
			c.Cmd("BLPOP", fmt.Sprint("empty", i), "1.2")
			blocked = append(blocked, c)
		}
		forever := clustertest.Dial(t, w.proxy)
		forever.Cmd("BLPOP", "q", "0")
		other := w.dial(t, 2)
		for i := range 200 {
			other.do([]string{"SET", "k", fmt.Sprint(i)}, []string{"GET", "k"})
		}
		for _, c := range blocked {
			c.Expect("*-1\r\n")
			c.Cmd("PING")
			c.Expect("+PONG\r\n")
		}
		other.behind.Do("RPUSH", "q", "late")
		forever.Expect("*2\r\n$1\r\nq\r\n$4\r\nlate\r\n")

		for _, proto := range []int{2, 3} {
			p := w.dial(t, proto)
			p.do([]string{"BLPOP", "q", "0.6"}, []string{"PING"}, []string{"GET", "k"}, []string{"HGETALL", "ns:cfg:app"})
			p.do([]string{"XREAD", "BLOCK", "400", "STREAMS", "s", "$"}, []string{"RPUSH", "l", "a", "b"}, []string{"BLPOP", "none", "l", "0"}, []string{"BLMOVE", "l", "m", "LEFT", "RIGHT", "0"}, []string{"BLMPOP", "0.1", "2", "l", "m", "LEFT", "COUNT", "2"},
				[]string{"BZPOPMIN", "z", "0.05"}, []string{"BZMPOP", "0.05", "1", "z", "MIN"}, []string{"BRPOPLPUSH", "l", "m", "0.05"}, []string{"PING"})
			p.do([]string{"BLPOP", "l", "-1"}, []string{"BLPOP", "l", "x"}, []string{"BLPOP", "l"}, []string{"SET", "str", "v"}, []string{"BLPOP", "str", "0"}, []string{"XREAD", "BLOCK", "x", "STREAMS", "s", "0"}, []string{"BLMPOP", "0", "x", "l", "LEFT"}, []string{"PING"}, []string{"DEL", "str"})
			p.do([]string{"WATCH", "w"}, []string{"BLPOP", "l", "0.05"}, []string{"MULTI"}, []string{"PING"}, []string{"EXEC"})
		}
	})
}

// TestLeavingBlockedClient: an element pushed after a blocked client has gone
// stays in the list.
func TestLeavingBlockedClient(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		w := startTwins(t, transport)
		for _, leave := range []struct {
			name string
			how  func(c *clustertest.Conn)
		}{
			{"FIN", func(c *clustertest.Conn) { c.Close() }},
			{"RST", func(c *clustertest.Conn) { setLinger0(c); c.Close() }},
			{"FIN behind further commands", func(c *clustertest.Conn) { c.Send(encodeAll([]string{"PING"})); c.Close() }},
		} {
			t.Run(leave.name, func(t *testing.T) {
				c := clustertest.Dial(t, w.proxy)
				c.Cmd("BLPOP", "q", "0")
				awaitBlocked(t, w.behind, "1")
				leave.how(c)
				awaitBlocked(t, w.behind, "0")
				b := clustertest.Dial(t, w.proxy)
				b.Send(encodeAll([]string{"RPUSH", "q", "e"}, []string{"LLEN", "q"}, []string{"DEL", "q"}))
				b.Expect(":1\r\n")
				b.Expect(":1\r\n")
				b.Expect(":1\r\n")
			})
		}
	})
}

func awaitBlocked(t *testing.T, r *clustertest.Redis, want string) {
	t.Helper()
	clustertest.Await(t, want+" blocked clients", func() error {
		if got := r.InfoField("clients", "blocked_clients"); got != want {
			return fmt.Errorf("there are %s", got)
		}
		return nil
	})
}

// TestScriptInsideMultiIsHealed: a script that went through the proxy is known to
// EXEC although the backend has been restarted meanwhile.
func TestScriptInsideMultiIsHealed(t *testing.T) {
	onTransports(t, func(t *testing.T, transport netloop.Transport) {
		behind := clustertest.StartRedis(t)
		_, addr := proxytest.Start(t, strict(t, behind, transport))
		c := clustertest.Dial(t, addr)
		sha := strings.TrimSpace(strings.SplitN(c.Do("SCRIPT", "LOAD", "return ARGV[1]"), "\n", 2)[1])
		behind.Stop()
		behind.Restart()
		clustertest.Await(t, "the proxy to reach the backend again", func() error {
			if got := c.Do("GET", "k"); got != "$-1\r\n" {
				return fmt.Errorf("it answers %q", got)
			}
			return nil
		})
		for _, tt := range []struct{ args, want string }{
			{"MULTI", "+OK\r\n"}, {"EVALSHA " + sha + " 0 x", "+QUEUED\r\n"}, {"EXEC", "*1\r\n$1\r\nx\r\n"},
		} {
			if got := c.Do(strings.Fields(tt.args)...); got != tt.want {
				t.Errorf("%s: got %q, want %q", tt.args, got, tt.want)
			}
		}
	})
}
