package acl

import (
	"strconv"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/router/command"
)

// rules are users of all kinds; every one of them is asked about every one of calls.
var rules = []string{
	"",
	"on nopass ~* &* +@all",
	"+@all",
	"~* +@all",
	"allkeys allchannels allcommands",
	"~a* +@all -@dangerous -@admin",
	"~a* %R~b* %W~c* %RW~d* +@all",
	"%r~a* %r~c %w~c +@all",
	"~* +@read -hgetall +config|get",
	"~* &* +@all -config +config|get -select +select|0",
	"~* +select|0 +select|1 +config -config|set",
	"~* +acl|whoami +client +client|no-evict -client|kill +object|freq",
	"~* -@all +get (~x* +set) (%R~y* +@all) (&n* +publish)",
	"~* +@all resetkeys ~z +@all nocommands +get",
	"&news* &lit?ral +@pubsub ~* +@connection",
	"&* +@all ~[a-c]x ~q[^x] ~esc\\*aped ~h?llo ~[z-x] ~open[ab",
	"~* +@scripting +@write -set +set -@string +@fast",
	"~* +@all reset +get ~a",
	"(~a* +get) (~b* +get +set) (+ping)",
	"~* +@all clearselectors (+get) clearselectors -get",
	"~a +sort +sort_ro +get", "%R~a %W~b +sort +set +bitfield +copy",
}

var calls = []string{
	"get a", "get b1", "get c", "get x1", "get y1", "set a v", "set b1 v", "set c v", "set c v GET", "set x1 v", "set d v get",
	"mget a b1 c", "mset a 1 b 2", "del a b1", "hgetall a", "smembers a", "config get x", "config set x y", "config help", "select 0", "select 1",
	"client list", "client kill x", "client no-evict on", "object freq a", "object freq zz", "object help", "ping", "quit", "auth x", "hello", "reset",
	"publish news1 m", "publish other m", "spublish news1 m", "subscribe news1 other", "subscribe news1 newsb", "psubscribe news*", "psubscribe news1", "psubscribe lit?ral",
	"unsubscribe other", "ssubscribe other", "eval return 0", "eval return 1 a", "eval return 2 a zz", "evalsha x 1 b1", "fcall f 1 a", "eval return x a", "eval return 0 a",
	"sort a", "sort a store b", "sort b store a", "sort_ro a", "sort a by x get y store b store a", "bitfield a get u8 0", "bitfield a set u8 0 1", "bitfield a", "bitfield_ro a get u8 0",
	"bitop and a b1 c", "copy a b", "copy b a", "rename a c", "migrate h 1 a 0 1", "migrate h 1 0 1 keys a zz", "xread streams a b1 0 0", "xread count 1 streams a 0", "xadd a * f v",
	"georadius a 0 0 1 m store b", "zunionstore a 2 b1 c", "zunionstore a x b1 c", "zunion 1 a", "lmpop 1 a left", "object encoding b1", "memory usage a", "getex a", "getdel c", "append b1 x",
	"lpush c x", "lrange c 0 1", "pfcount a zz", "pfmerge a b1", "strlen b1", "exists a zz", "touch a", "watch a zz", "multi", "exec", "acl whoami", "acl list", "debug object a",
	"get ax", "get bx", "get dx", "get qx", "get qy", "get esc*aped", "get escXaped", "get hello", "get hllo", "get y", "get openb", "get openc", "keys *", "scan 0", "flushall", "dbsize",
	"lcs a b1", "hset dd f v", "hset a f v", "expire c 1", "pexpire b1 1", "persist d", "dump a", "restore c 0 x", "xgroup create a g 0", "xinfo stream a", "script load x", "function list", "wait 0 1", "shutdown",
}

func TestVerdictsAreThoseOfRedis(t *testing.T) {
	r := clustertest.StartRedis(t)
	c := clustertest.Dial(t, r.Addr)
	var ck Checker
	for _, rule := range rules {
		us, err := Parse("test", []string{"u " + rule}, true)
		if err != nil {
			t.Fatalf("%q: %v", rule, err)
		}
		c.Do("ACL", "DELUSER", "u")
		if reply := c.Do(append([]string{"ACL", "SETUSER", "u"}, strings.Fields(rule)...)...); reply != "+OK\r\n" {
			t.Fatalf("Redis says %q to %q", reply, rule)
		}
		for _, call := range calls {
			args := strings.Fields(call)
			want := c.Do(append([]string{"ACL", "DRYRUN", "u"}, args...)...)
			var b [][]byte
			for _, a := range args {
				b = append(b, []byte(a))
			}
			cmd, problem := command.Builtin().Resolve(b)
			if problem != "" {
				t.Fatalf("%q: %s", call, problem)
			}
			got := "+OK\r\n"
			if v, at := ck.Check(us.Lookup([]byte("u")), cmd, b); v != Allowed {
				got = bulk(v.Forecast(cmd, b[at]))
			}
			if got != want {
				t.Errorf("user %q, command %q:\ngot  %q\nwant %q", rule, call, got, want)
			}
		}
	}
}

func bulk(s string) string { return "$" + strconv.Itoa(len(s)) + "\r\n" + s + "\r\n" }

// Redis 7.0 finds no key in a PFMERGE without sources and lets it write anywhere.
func TestPfmergeOfOneKeyIsChecked(t *testing.T) {
	us, err := Parse("test", []string{"u on nopass +@all ~a"}, true)
	if err != nil {
		t.Fatal(err)
	}
	args := [][]byte{[]byte("PFMERGE"), []byte("b")}
	cmd, _ := command.Builtin().Resolve(args)
	var ck Checker
	if v, at := ck.Check(us.Lookup([]byte("u")), cmd, args); v != DeniedKey || at != 1 {
		t.Errorf("got %v, %d", v, at)
	}
}

func TestRefusedRulesAreThoseOfRedis(t *testing.T) {
	r := clustertest.StartRedis(t)
	c := clustertest.Dial(t, r.Addr)
	for _, rule := range []string{
		"nosuchword", "+nosuch", "-nosuch", "+@nosuch", "-@nosuch", "+config|nosuch", "-config|nosuch", "+select|", "-select|0", "+config|get|x", "+", "-", "+@", "+get|",
		"~* ~a", "allkeys %R~x", "&* &a", "allchannels &x", "%~a", "%X~a", "%RR~a", "%R", "%", "#abc", "#" + strings.Repeat("A", 64), "!" + strings.Repeat("a", 64), "<pw", "!x",
		"()", "(", "(+get", "(+nosuch)", "(nopass)", "(>x)", ")", "(%Q~a)", "on(", "~", "&", "resetkeys ~a ~b allkeys", ">pw <pw", "RESET ON NOPASS", "+GET +Config|Get +@READ",
	} {
		reply := c.Do(append([]string{"ACL", "SETUSER", "u"}, strings.Fields(rule)...)...)
		_, err := Parse("test", []string{"u " + rule}, true)
		if (err == nil) != (reply[0] == '+') {
			t.Errorf("%q: got %v, Redis says %q", rule, err, reply)
			continue
		}
		if err == nil {
			continue
		}
		_, theirs, found := strings.Cut(strings.TrimSpace(reply), "': ")
		if !found {
			theirs = strings.TrimPrefix(strings.TrimSpace(reply), "-ERR ")
		}
		if !strings.HasPrefix(err.Error(), "test:1: ") || !strings.HasSuffix(err.Error(), theirs) {
			t.Errorf("%q: got %q, Redis says %q", rule, err, reply)
		}
	}
}

func TestUsersAreShownAsRedisShowsThem(t *testing.T) {
	r := clustertest.StartRedis(t)
	c := clustertest.Dial(t, r.Addr)
	lines := []string{
		"user a off", "user b on nopass ~* &* +@all", "user c on >x >y ~a %R~b %W~c &d resetchannels &e +get",
		"user d reset on #" + strings.Repeat("ab", 32) + " (~x +get) (%R~y &z -@all) +select|0", "user e on skip-sanitize-payload allkeys -@all +get",
	}
	us, err := Parse("test", lines, true)
	if err != nil {
		t.Fatal(err)
	}
	want := ""
	for _, line := range lines {
		if reply := c.Do(append([]string{"ACL", "SETUSER"}, strings.Fields(line)[1:]...)...); reply != "+OK\r\n" {
			t.Fatalf("%q: Redis says %q", line, reply)
		}
	}
	want = c.Do("ACL", "LIST")
	got := "*" + strconv.Itoa(len(us.All())) + "\r\n"
	for _, u := range us.All() {
		got += bulk(u.String())
	}
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	again, err := Parse("test", strings.Split(us.Lookup([]byte("d")).String(), "\n"), false)
	if err != nil || again.Lookup([]byte("d")).String() != us.Lookup([]byte("d")).String() {
		t.Errorf("a shown user cannot be read again: %v", err)
	}
}

func TestErrorsNameEveryLineAndNoPassword(t *testing.T) {
	_, err := Parse("auth.users", []string{"a on >hunter2 %Z~x", "", "b +nosuch", "user c on", "c off", "d >hunter2\"", "on (x"}, true)
	const want = "auth.users:1: user 'a': Syntax error; auth.users:3: user 'b': Error in applying operation '+nosuch': Unknown command or category name in ACL; " +
		"auth.users:5: Duplicate user 'c' found; auth.users:6: unbalanced quotes in acl line; auth.users:7: user 'on': Unmatched parenthesis in acl selector starting at '(x'."
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	for content, want := range map[string]string{
		"user a on\n\n# comment\n": "f:3 should start with user keyword followed by the username",
		"user a on  +get\n":        "",
	} {
		_, err := ParseFile("f", []byte(content))
		if (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%q: got %v, want %q", content, err, want)
		}
	}
}

func TestPasswords(t *testing.T) {
	us, err := Parse("test", []string{
		`a on >one ">p@ss:w/rd#1 %20\"'" #` + "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae", // foo
		"off >one", "any on nopass", "none on",
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		user, password string
		want           bool
	}{
		{"a", "one", true}, {"a", `p@ss:w/rd#1 %20"'`, true}, {"a", "foo", true}, {"a", "", false}, {"a", "One", false},
		{"off", "one", false}, {"any", "x", true}, {"none", "", false}, {"default", "x", true},
	} {
		if got := us.Lookup([]byte(c.user)).Authenticate([]byte(c.password)); got != c.want {
			t.Errorf("%s with %q: got %v", c.user, c.password, got)
		}
	}
	if us.Lookup([]byte("b")) != nil || !us.Default().NoPass() {
		t.Error("a user that is not there exists, or the default user has a password")
	}
}

func TestCheckDoesNotAllocate(t *testing.T) {
	us, err := Parse("test", []string{"u on nopass ~a* %R~b* +@read +@write (~c +get)"}, true)
	if err != nil {
		t.Fatal(err)
	}
	u := us.Lookup([]byte("u"))
	args := [][]byte{[]byte("MGET"), []byte("a1"), []byte("b1"), []byte("a2")}
	cmd, _ := command.Builtin().Resolve(args)
	var ck Checker
	if n := testing.AllocsPerRun(100, func() {
		if v, _ := ck.Check(u, cmd, args); v != Allowed {
			t.Fatal(v)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
