package proxy_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/proxytest"
)

// What shows fields is kept until the first of them expires: a fake of Redis 7.4 says when that is.
func TestFieldsThatExpire(t *testing.T) {
	const listpack, other = "$8\r\nlistpack\r\n", "$10\r\nlistpackex\r\n"
	const no, gone, over = ":-1\r\n", ":-2\r\n", ":0\r\n"
	for _, tt := range []struct {
		read, reply string
		encoding    string // "": not asked for
		expiry      string // HPTTL's; "": not asked for
		asked       string // the fields it is asked for
		kept        bool
	}{
		{"HGET r f", "$1\r\nv\r\n", "", "*1\r\n" + no, "f", true},
		{"HGET r f", "$1\r\nv\r\n", "", "*1\r\n:60000\r\n", "f", true},
		{"HGET r f", "$1\r\nv\r\n", "", "*1\r\n" + over, "f", false},
		{"HGET r f", "$1\r\nv\r\n", "", "*1\r\n" + gone, "f", false},
		{"HGET r f", "_\r\n", "", "*1\r\n" + gone, "f", true},
		{"HGET r f", "$1\r\nv\r\n", "", "-ERR unknown command\r\n", "f", false},
		{"HEXISTS r f", ":1\r\n", "", "*1\r\n" + over, "f", false},
		{"HEXISTS r f", ":0\r\n", "", "*1\r\n" + gone, "f", true},
		{"HSTRLEN r f", ":1\r\n", "", "*1\r\n" + gone, "f", false},
		{"HMGET r f g", "*2\r\n$1\r\nv\r\n_\r\n", "", "*2\r\n" + no + gone, "f g", true},
		{"HMGET r f g", "*2\r\n_\r\n$1\r\nv\r\n", "", "*2\r\n" + no + gone, "f g", false},
		{"HMGET r f g", "*2\r\n$0\r\n\r\n$1\r\nv\r\n", "", "*2\r\n" + gone + no, "f g", false},
		{"HLEN r", ":2\r\n", "", "", "", true},
		{"HGETALL r", "%1\r\n$1\r\nf\r\n$1\r\nv\r\n", listpack, "", "", true},
		{"HGETALL r", "%0\r\n", "_\r\n", "", "", true},
		{"HGETALL r", "%2\r\n$1\r\nf\r\n$1\r\nv\r\n$1\r\ng\r\n$1\r\nw\r\n", other, "*2\r\n" + no + no, "f g", true},
		{"HGETALL r", "%2\r\n$1\r\nf\r\n$1\r\nv\r\n$1\r\ng\r\n$1\r\nw\r\n", other, "*2\r\n" + no + over, "f g", false},
		{"HGETALL r", "%1\r\n$1\r\nf\r\n$1\r\nv\r\n", other, "*1\r\n" + gone, "f", false},
		{"HKEYS r", "*1\r\n$1\r\nf\r\n", other, "*1\r\n:60000\r\n", "f", true},
		{"HKEYS r", "*1\r\n$1\r\nf\r\n", other, "*1\r\n" + over, "f", false},
		{"HVALS r", "*1\r\n$1\r\nv\r\n", other, "*1\r\n:60000\r\n", "h", true},
		{"HVALS r", "*1\r\n$1\r\nv\r\n", other, "*1\r\n" + over, "h", false},
		{"HVALS r", "*2\r\n$1\r\nv\r\n$1\r\nw\r\n", other, "", "", false}, // HKEYS shows one field less
	} {
		name := fmt.Sprintf("%s %q %q %q", tt.read, tt.reply, tt.encoding, tt.expiry)
		verb, _, _ := strings.Cut(tt.read, " ")
		unexpected := make(chan string, 100)
		f := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
			switch args[0] {
			case verb:
				return tt.reply
			case "OBJECT":
				if tt.encoding == "" {
					unexpected <- strings.Join(args, " ")
				}
				return tt.encoding
			case "HKEYS":
				return "*1\r\n$1\r\nh\r\n"
			case "HPTTL":
				if got := strings.Join(args[4:], " "); tt.expiry == "" || got != tt.asked || args[3] != fmt.Sprint(len(args)-4) {
					unexpected <- strings.Join(args, " ")
				}
				return tt.expiry
			}
			return ""
		})
		s, addr := proxytest.Start(t, func() proxy.Options {
			o := proxytest.Options(t, proxytest.Single(f.Addr))
			keepAll(&o)
			o.Loops, o.Backend.Version = 1, "7.4.0"
			return o
		}())
		c := clustertest.Dial(t, addr)
		c.Do("HELLO", "3")
		kept := func() error {
			before := s.Stats().Hits
			if got := c.Do(words(tt.read)...); got != tt.reply {
				t.Fatalf("%s: got %q", name, got)
			}
			if s.Stats().Hits == before {
				return errors.New("not answered from memory")
			}
			return nil
		}
		if tt.kept {
			clustertest.Await(t, "a hit for "+name, kept)
		} else {
			clustertest.Await(t, "a fetch for "+name, func() error {
				if kept() == nil {
					t.Fatalf("%s: served from memory", name)
				}
				if s.Stats().Misses < 3 && !strings.HasPrefix(tt.expiry, "-") {
					return errors.New("not fetched")
				}
				return nil
			})
		}
		select {
		case cmd := <-unexpected:
			t.Errorf("%s: the server was asked %q", name, cmd)
		default:
		}
	}
}

// Nothing shows a field after it has expired, nor after a reply without it.
func TestFieldsExpireInMemoryToo(t *testing.T) {
	r := startNear(t, keepAll, func(o *proxy.Options) { o.Backend.Version = "7.4.0" })
	r.direct.Do("HSET", "rh", "f", "1", "g", "2")
	if got := r.front[0].Do("HPEXPIRE", "rh", "60000", "FIELDS", "1", "f"); strings.HasPrefix(got, "-ERR unknown command") {
		return // before Redis 7.4
	}
	r.direct.Do("DEBUG", "SET-ACTIVE-EXPIRE", "0") // nothing is announced
	reads := []string{"HGETALL rh", "HVALS rh", "HKEYS rh", "HMGET rh g f", "HEXISTS rh f", "HSTRLEN rh f", "HGET rh f"}
	for _, read := range reads {
		r.warm(words(read)...)
	}
	r.front[0].Do("HPEXPIRE", "rh", "50", "FIELDS", "1", "f")
	before := r.server.Stats()
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		for _, c := range r.front {
			shown := true
			for i, read := range reads {
				got := c.Do(words(read)...)
				shows := strings.Contains(got, "1\r\nf\r\n") || strings.Contains(got, "1\r\n1\r\n") || got == ":1\r\n"
				if shows && !shown {
					t.Fatalf("%s shows a field that %s has not shown: %q", read, reads[i-1], got)
				}
				shown = shows
			}
			if shown {
				continue
			}
			if r.server.Stats().Hits == before.Hits {
				t.Error("nothing was served from memory")
			}
			return
		}
	}
	t.Error("the field does not expire")
}

// TestJoinedAfterTheExpiry: who asks when the key has expired is not answered by a read that was executed before, although
// it is still on its way.
func TestJoinedAfterTheExpiry(t *testing.T) {
	for _, loops := range []int{1, 2} {
		var gets atomic.Int32
		read, release := make(chan struct{}), make(chan struct{})
		f := proxytest.StartFake(t, func(_ *proxytest.FakeConn, args []string) string {
			switch {
			case args[0] == "GET" && args[1] == "rs" && gets.Add(1) == 1:
				close(read)
				<-release
				return "$1\r\nv\r\n"
			case args[0] == "GET":
				return "_\r\n"
			case args[0] == "PTTL" && args[1] == "rs" && gets.Load() == 1:
				return ":1\r\n"
			case args[0] == "PTTL":
				return ":-2\r\n"
			}
			return ""
		})
		s, addr := proxytest.Start(t, func() proxy.Options {
			o := proxytest.Options(t, proxytest.Single(f.Addr))
			keepAll(&o)
			o.Loops, o.Cache.MaxStaleness = loops, 10*time.Second
			return o
		}())
		early, late := clustertest.Dial(t, addr), clustertest.Dial(t, addr)
		for _, c := range []*clustertest.Conn{early, late} {
			c.Do("HELLO", "3")
			clustertest.Await(t, "a fetch connection", func() error {
				before := s.Stats().Misses
				if c.Do("GET", "rother"); s.Stats().Misses == before && s.Stats().Hits == 0 {
					return errors.New("there is none yet")
				}
				return nil
			})
		}
		early.Cmd("GET", "rs")
		<-read
		joined, misses := s.Stats().Joined, s.Stats().Misses
		late.Cmd("GET", "rs")
		clustertest.Await(t, "the second read", func() error {
			if s.Stats().Misses == misses || loops == 1 && s.Stats().Joined == joined {
				return errors.New("it has not come")
			}
			return nil
		})
		close(release)
		early.Expect("$1\r\nv\r\n")
		late.Expect("_\r\n")
	}
}
