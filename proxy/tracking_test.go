package proxy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

const invalidatedKey = ">2\r\n$10\r\ninvalidate\r\n*1\r\n"

// TestTrackingArguments: the backend's words for what is wrong, and ids of the
// proxy's own.
func TestTrackingArguments(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	for _, proto := range []int{2, 3} {
		p := w.dial(t, proto)
		p.do(script("CLIENT GETREDIR", "CLIENT TRACKINGINFO", "CLIENT TRACKING", "CLIENT TRACKING x", "CLIENT TRACKING on x", "CLIENT TRACKING off x", "CLIENT TRACKING off",
			"CLIENT TRACKING on REDIRECT", "CLIENT TRACKING on REDIRECT x", "CLIENT TRACKING on REDIRECT 987654", "CLIENT TRACKING x REDIRECT 987654", "CLIENT TRACKING off REDIRECT 987654", "CLIENT TRACKING x y REDIRECT 987654",
			"CLIENT TRACKING on PREFIX a", "CLIENT TRACKING on BCAST OPTIN", "CLIENT TRACKING on OPTIN OPTOUT", "CLIENT TRACKING on BCAST PREFIX a PREFIX ab",
			"CLIENT CACHING yes", "CLIENT CACHING no", "CLIENT CACHING x", "CLIENT CACHING", "CLIENT GETREDIR",
			"CLIENT TRACKING on", "CLIENT GETREDIR", "CLIENT TRACKINGINFO", "CLIENT TRACKING on BCAST", "CLIENT CACHING yes", "CLIENT CACHING no", "CLIENT CACHING x",
			"CLIENT TRACKING off x", "CLIENT TRACKINGINFO", "CLIENT TRACKING off", "CLIENT TRACKINGINFO",
			"CLIENT TRACKING on OPTIN NOLOOP", "CLIENT CACHING yes", "CLIENT TRACKINGINFO", "CLIENT TRACKINGINFO", "CLIENT CACHING no", "CLIENT TRACKING on OPTOUT", "GET none", "CLIENT TRACKINGINFO", "CLIENT TRACKING off",
			"CLIENT TRACKING on BCAST PREFIX foo", "CLIENT TRACKING on BCAST PREFIX foo", "CLIENT TRACKING on BCAST PREFIX bar", "CLIENT TRACKING on BCAST PREFIX fo", "CLIENT TRACKINGINFO", "MULTI", "CLIENT GETREDIR", "CLIENT TRACKINGINFO", "EXEC", "RESET", "CLIENT TRACKINGINFO",
		)...)
		for c, addr := range map[*clustertest.Conn]string{p.direct: w.direct.Addr, p.behind: w.proxy} {
			target := clustertest.Dial(t, addr)
			id := idOf(target)
			if got := c.Do("CLIENT", "TRACKING", "ON", "REDIRECT", id, "NOLOOP"); got != "+OK\r\n" {
				t.Errorf("redirected: got %q", got)
			}
			if got := c.Do("CLIENT", "GETREDIR"); got != ":"+id+"\r\n" {
				t.Errorf("CLIENT GETREDIR answers %q, want %s", got, id)
			}
			if got := c.Do("CLIENT", "TRACKINGINFO"); !strings.Contains(got, "redirect\r\n:"+id+"\r\n") || !strings.Contains(got, "noloop") {
				t.Errorf("CLIENT TRACKINGINFO answers %q, want client %s", got, id)
			}
			if got := c.Do("CLIENT", "LIST", "ID", id, idOf(c)); !strings.Contains(got, " flags=t ") || !strings.Contains(got, " redir="+id+" ") {
				t.Errorf("CLIENT LIST has %q", got)
			}
		}
	}
}

// TestTracking plays scenes with three clients: one that tracks, one that changes
// keys, and one that others redirect to.
func TestTracking(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	for _, tt := range []struct {
		name    string
		tracker int // protocol
		hearer  int
		setup   string // $ stands for the hearer's id
		before  string // by the tracker; a leading ! makes the other client do it
		after   string
		heard   int // messages that come of it to the hearer
	}{
		{"RESP3", 3, 3, "CLIENT TRACKING ON", "!MSET a 1 b 2|GET a|HGETALL ns:cfg:x", "!SET a 2|!SET b 2|!HSET ns:cfg:x f v", 0},
		{"own writes, NOLOOP", 3, 2, "CLIENT TRACKING ON NOLOOP", "GET a|GET b", "SET a 3|!SET b 3", 0},
		{"redirected to RESP2", 2, 2, "CLIENT TRACKING ON REDIRECT $", "GET a", "!SET a 4|!FLUSHALL", 2},
		{"redirected to RESP3", 2, 3, "CLIENT TRACKING ON REDIRECT $", "GET a", "!SET a 4|!FLUSHDB", 2},
		{"from RESP3", 3, 2, "CLIENT TRACKING ON REDIRECT $", "MGET a b", "!SET a 4|!SET b 4|!FLUSHALL", 3},
		{"prefixes", 3, 3, "CLIENT TRACKING ON BCAST PREFIX a: PREFIX b:", "GET c:1", "!SET a:1 1|!SET c:1 1|!SET b:1 1", 0},
		{"prefixes, redirected", 2, 2, "CLIENT TRACKING ON BCAST REDIRECT $ PREFIX a:", "GET c:1", "!SET a:1 1|!SET c:1 1", 1},
		{"OPTIN", 3, 3, "CLIENT TRACKING ON OPTIN", "GET a|CLIENT CACHING yes|GET b|GET c", "!SET a 1|!SET c 1|!SET b 1", 0},
		{"OPTIN, a transaction", 3, 3, "CLIENT TRACKING ON OPTIN", "CLIENT CACHING yes|MULTI|GET a|GET b|EXEC|GET c", "!SET c 1|!SET a 1|!SET b 1", 0},
		{"OPTOUT", 3, 3, "CLIENT TRACKING ON OPTOUT", "CLIENT CACHING no|GET a|GET b", "!SET a 1|!SET b 1", 0},
		{"scripts", 3, 3, "CLIENT TRACKING ON", "EVAL return(redis.call('get',KEYS[1])) 1 a", "!SET a 1", 0},
		{"SELECT and WATCH", 3, 3, "CLIENT TRACKING ON", "SELECT 4|WATCH a|GET a|SELECT 0|GET b", "!SET b 1|MULTI|GET c|EXEC|!SET c 2", 0},
		{"watching before", 3, 3, "WATCH w|CLIENT TRACKING ON", "GET a", "!SET w 1|MULTI|GET w|EXEC|!SET a 3", 0},
		{"blocking", 3, 3, "CLIENT TRACKING ON", "LRANGE l 0 -1|!RPUSH l x|BLPOP l 0", "", 0},
		{"turned off", 3, 3, "CLIENT TRACKING ON", "GET a|CLIENT TRACKING OFF|CLIENT TRACKING ON|GET b", "!SET b 1", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w.direct.Do("FLUSHALL")
			w.behind.Do("FLUSHALL")
			var got []string
			for _, addr := range []string{w.direct.Addr, w.proxy} {
				tracker, hearer, other := dialAs(t, addr, tt.tracker), dialAs(t, addr, tt.hearer), dialAs(t, addr, 2)
				id := idOf(hearer)
				hearer.Do("SUBSCRIBE", "__redis__:invalidate")
				var all []string
				play := func(lines string) {
					for _, line := range strings.Split(lines, "|") {
						rest, others := strings.CutPrefix(line, "!")
						switch args := strings.Fields(strings.ReplaceAll(rest, "$", id)); {
						case len(args) == 0:
						case others:
							other.Do(args...)
						default:
							tracker.Cmd(args...)
							for {
								frame := tracker.ReadReply()
								all = append(all, frame)
								if frame[0] != '>' {
									break
								}
							}
						}
					}
				}
				for _, line := range []string{tt.setup, tt.before, tt.after} {
					play(line)
				}
				// Pushes come before the answer to what is sent after their cause.
				tracker.Cmd("EVAL", "return 'end'", "0")
				for len(all) == 0 || all[len(all)-1] != bulkOf("end") {
					all = append(all, tracker.ReadReply())
				}
				for range tt.heard {
					all = append(all, hearer.ReadReply())
				}
				got = append(got, pushesLast(all))
			}
			if got[0] != got[1] {
				t.Errorf("got %q, a direct connection gets %q", got[1], got[0])
			}
		})
	}
}

// pushesLast joins frames, those first that answer something: the order among
// replies, and among pushes, is what a client can rely on.
func pushesLast(frames []string) string {
	var replies, pushes strings.Builder
	for _, f := range frames {
		if f[0] == '>' {
			pushes.WriteString(f)
		} else {
			replies.WriteString(f)
		}
	}
	return replies.String() + pushes.String()
}

func dialAs(t *testing.T, addr string, proto int) *clustertest.Conn {
	t.Helper()
	c := clustertest.Dial(t, addr)
	if proto == 3 {
		c.Do("HELLO", "3")
	}
	return c
}

// TestBrokenRedirection: who redirects to a client that has gone is told, with the
// id that it knows; whoever's own stream of invalidations breaks is disconnected.
func TestBrokenRedirection(t *testing.T) {
	w := startTwins(t, netloop.DefaultTransport)
	for _, proto := range []int{2, 3} {
		tracker, hearer := dialAs(t, w.proxy, 3), dialAs(t, w.proxy, proto)
		other := dialAs(t, w.proxy, 2)
		id := idOf(hearer)
		tracker.Do("CLIENT", "TRACKING", "ON", "REDIRECT", id)
		tracker.Do("GET", "a")
		if got := hearer.Do("QUIT"); got != "+OK\r\n" {
			t.Errorf("QUIT answers %q", got)
		}
		other.Do("SET", "a", "1")
		tracker.Expect(fmt.Sprintf(">2\r\n$21\r\ntracking-redir-broken\r\n:%s\r\n", id))
		if got := tracker.Do("CLIENT", "TRACKINGINFO"); !strings.Contains(got, "broken_redirect") || !strings.Contains(got, ":"+id+"\r\n") {
			t.Errorf("CLIENT TRACKINGINFO answers %q", got)
		}
		// The backend closes an ear: what it missed nobody knows.
		hearer = dialAs(t, w.proxy, proto)
		tracker.Do("CLIENT", "TRACKING", "ON", "REDIRECT", idOf(hearer))
		direct := clustertest.Dial(t, w.behind.Addr)
		home := fieldsOf(direct.Do("CLIENT", "LIST"), "flags=t")
		direct.Do("CLIENT", "KILL", "ID", home["redir"])
		hearer.ExpectClosed()
		direct.Do("CLIENT", "KILL", "ID", home["id"])
		tracker.ExpectClosed()
	}
}

// fieldsOf are those of the line of a CLIENT LIST that has a certain field.
func fieldsOf(list, field string) map[string]string {
	fields := map[string]string{}
	for _, line := range strings.Split(list, "\n") {
		if strings.Contains(line, " "+field+" ") {
			for _, f := range strings.Fields(line) {
				name, value, _ := strings.Cut(f, "=")
				fields[name] = value
			}
		}
	}
	return fields
}

// testClusterTracking: keys of every shard are tracked, for this client and for others.
func testClusterTracking(t *testing.T, _ *shared, p *proxytest.Discovered) {
	other := clustertest.Dial(t, p.Addr)
	for _, setup := range []string{"CLIENT TRACKING ON", "CLIENT TRACKING ON BCAST PREFIX t", "CLIENT TRACKING ON OPTIN", "CLIENT TRACKING ON REDIRECT $"} {
		tracker, hearer := dialAs(t, p.Addr, 3), dialAs(t, p.Addr, 3)
		if got := tracker.Do(strings.Fields(strings.ReplaceAll(setup, "$", idOf(hearer)))...); got != "+OK\r\n" {
			t.Fatalf("%s answers %q", setup, got)
		}
		var keys []string
		for i := range 3 {
			keys = append(keys, keyOf("t", i))
		}
		if strings.HasSuffix(setup, "OPTIN") {
			tracker.Do("CLIENT", "CACHING", "yes")
		}
		tracker.Do(append([]string{"MGET"}, keys...)...)
		from := tracker
		if strings.Contains(setup, "$") {
			from = hearer
		}
		for _, key := range keys {
			other.Do("SET", key, "1")
			from.Expect(invalidatedKey + bulkOf(key))
		}
	}
}

// TestTrackingOfDeadBackend: a client whose invalidations come no more is
// disconnected, also when nothing announces it.
func TestTrackingOfDeadBackend(t *testing.T) {
	backend := clustertest.StartRedis(t)
	o := strict(t, backend, netloop.DefaultTransport)
	o.Upstream.Timeout = 500 * time.Millisecond
	_, addr := proxytest.Start(t, o)
	c := dialAs(t, addr, 3)
	c.Do("CLIENT", "TRACKING", "ON", "BCAST")
	backend.Freeze()
	defer backend.Thaw()
	c.ExpectClosed()
}
