package proxy_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/proxy"
	"cosky-proxy/proxy/acl"
	"cosky-proxy/proxy/netloop"
	"cosky-proxy/proxy/proxytest"
)

// people are users of all kinds, the default one last: setting it ends what an
// unauthenticated connection may do.
var people = []string{
	"app on >secret ~app:* %R~cfg:* &app* +@all -@dangerous +acl|whoami",
	`odd on ">p@ss:w/rd#1 %20\"'" ~* &* +@all`,
	"zero on nopass ~* -@all +select|0 +get +ping +hgetall +client|setname",
	"off off >secret ~* +@all",
	"default on >pw ~* &* +@all",
}

// setPeople gives a Redis these users.
func setPeople(t *testing.T, r *clustertest.Redis, users []string) {
	t.Helper()
	c := clustertest.Dial(t, r.Addr)
	defer c.Close()
	for _, u := range users {
		c.Send("ACL SETUSER " + u + "\r\n")
		if reply := c.ReadReply(); reply != "+OK\r\n" {
			t.Fatalf("cannot set user %q: %s", u, reply)
		}
	}
}

// startAuthTwins starts a Redis with users, and a proxy that has the same users or
// leaves it to the Redis behind it to have them.
func startAuthTwins(t *testing.T, mode proxy.AuthMode, users []string) *twins {
	t.Helper()
	w := &twins{direct: clustertest.StartRedis(t), behind: clustertest.StartRedis(t)}
	o := strict(t, w.behind, netloop.DefaultTransport)
	o.Auth = authOptions(t, mode, users)
	if mode == proxy.AuthPassthrough {
		setPeople(t, w.behind, append([]string{"proxy on >own ~* &* +@all"}, users...))
		o.Backend.User, o.Backend.Password = "proxy", "own"
	}
	_, w.proxy = proxytest.Start(t, o)
	setPeople(t, w.direct, users)
	return w
}

func authOptions(t *testing.T, mode proxy.AuthMode, users []string) proxy.AuthOptions {
	t.Helper()
	o := proxy.AuthOptions{Mode: mode, LogLength: 128, MaxCredentials: 100, IdleTimeout: clustertest.Deadline}
	if mode == proxy.AuthProxy {
		var err error
		if o.Users, err = acl.Parse("test", users, true); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

// authScripts are whole connections.
var authScripts = []struct{ name, script string }{
	{"nothing without a login", "PING|GET k|NOSUCH|GET|SELECT 1|MULTI|EXEC|SUBSCRIBE c|CLIENT ID|CLIENT SETNAME x|ECHO x|HGETALL ns:cfg:a|EVAL 'return 1' 0|WATCH k|DISCARD|CONFIG GET x|ACL WHOAMI|COMMAND COUNT|QUIT"},
	{"the forms of AUTH", "AUTH x|AUTH pw x y|AUTH default x|AUTH bob x|AUTH off secret|PING|AUTH pw|PING|AUTH default pw|AUTH wrong|PING|AUTH|ACL WHOAMI"},
	{"an odd password", `AUTH odd "p@ss:w/rd#1 %20\"'"|ACL WHOAMI|SET k v|GET k|AUTH odd x|ACL WHOAMI`},
	{"change of user", "AUTH pw|ACL WHOAMI|SET app:k v|AUTH app secret|ACL WHOAMI|GET app:k|GET other|AUTH zero anything|ACL WHOAMI|GET app:k|SET app:k w"},
	{"RESET forgets the login", "AUTH app secret|SET app:k v|RESET|GET app:k|AUTH app secret|GET app:k"},
	{"keys", "AUTH app secret|SET app:k v|GET app:k|SET k v|GET k|MGET app:k k|MGET app:k cfg:a|SET cfg:a v|GET cfg:a|COPY cfg:a app:b|COPY app:b cfg:a|DEL app:k app:b|DEL app:k x|SET app:k v GET|EVAL 'return 1' 1 app:k|EVAL 'return 1' 1 k|EVAL 'return 1' 0|XREAD STREAMS k 0|SORT app:l|SORT app:l BY w_*|SORT app:l BY nosort GET o_*|SORT app:l STORE x"},
	{"commands", "AUTH app secret|KEYS *|FLUSHALL|CONFIG GET x|ACL LIST|ACL WHOAMI|CONFIG NOSUCH|CONFIG|DEBUG SLEEP 0|SHUTDOWN"},
	{"first arguments", "AUTH zero x|SELECT 0|SELECT 1|SELECT|PING|GET k|ECHO x|CLIENT SETNAME me|CLIENT GETNAME|SET k v|AUTH app secret|SELECT 1|GET app:k"},
	{"cached reads", "AUTH pw|HSET app:cfg:a f v|HGETALL app:cfg:a|HGETALL app:cfg:a|HGETALL x:cfg:a|AUTH app secret|HGETALL app:cfg:a|HGETALL x:cfg:a|SMEMBERS x:cfg_idx|HGETALL app:cfg:a"},
	{"transactions", "AUTH app secret|MULTI|SET app:k v|GET k|EXEC|MULTI|SET app:k v|EXEC|MULTI|KEYS *|DISCARD|MULTI|NOSUCH|EXEC|WATCH k|WATCH app:k|MULTI|GET app:k|EXEC"},
	{"transactions of somebody who may not have any", "AUTH zero x|MULTI|GET k|EXEC|DISCARD"},
	{"EXEC without a login", "EXEC|MULTI|EXEC"},
	{"publishing", "AUTH app secret|PUBLISH app1 m|PUBLISH other m|SPUBLISH app1 m|SPUBLISH other m"},
	{"HELLO", "HELLO|HELLO 2|HELLO 3|HELLO 3 AUTH default wrong|PING|HELLO 3 AUTH off secret|HELLO 4 AUTH default pw|PING|HELLO 3 SETNAME x|HELLO 3 AUTH default pw NOSUCH|PING|GET k"},
	{"HELLO with a name", "HELLO 3 AUTH app secret SETNAME me|GET app:k|CLIENT GETNAME|ACL WHOAMI|GET k|HELLO 2|GET app:k|HELLO 3 AUTH app wrong|GET app:k"},
	{"HELLO with several logins", "HELLO 3 AUTH app secret AUTH default pw|ACL WHOAMI|HELLO 2 AUTH app secret AUTH default wrong|ACL WHOAMI|HELLO 3 AUTH default pw AUTH app secret AUTH default pw SETNAME n|ACL WHOAMI"},
	{"HELLO of a stranger to RESP3", "HELLO 3 AUTH zero x|GET k|ECHO x|PING|HELLO 3"},
	{"HELLO in the wrong order", "HELLO 3 SETNAME me AUTH default pw|CLIENT GETNAME|HELLO 3 AUTH default|HELLO x|HELLO 2 AUTH default pw"},
	{"subscribing", "AUTH app secret|SUBSCRIBE other|SUBSCRIBE app1 other|PSUBSCRIBE app1|PSUBSCRIBE a*|SUBSCRIBE app1|GET app:k|PSUBSCRIBE app*|PSUBSCRIBE *|UNSUBSCRIBE other|PING"},
	{"watching across a login", "AUTH pw|SET app:w 1|WATCH app:w|AUTH app secret|MULTI|GET app:w|GET w|DISCARD|WATCH app:w|MULTI|GET app:w|EXEC"},
}

// runScript sends a script to one side and returns all replies, without what differs
// between two servers.
func runScript(t *testing.T, addr, script string) string {
	t.Helper()
	c := clustertest.Dial(t, addr)
	defer c.Close()
	var all strings.Builder
	for line := range strings.SplitSeq(script, "|") {
		c.Send(line + "\r\n")
		reply := c.ReadReply()
		if strings.HasPrefix(line, "HELLO") && reply[0] != '-' {
			before, rest, _ := strings.Cut(reply, "$2\r\nid\r\n:")
			_, after, _ := strings.Cut(rest, "\r\n")
			reply = before + after
		}
		all.WriteString(line + ": " + reply)
	}
	return all.String()
}

func TestAuthIsThatOfRedis(t *testing.T) {
	for _, mode := range []proxy.AuthMode{proxy.AuthProxy, proxy.AuthPassthrough} {
		t.Run(string(mode), func(t *testing.T) {
			w := startAuthTwins(t, mode, people)
			for _, s := range authScripts {
				want, got := runScript(t, w.direct.Addr, s.script), runScript(t, w.proxy, s.script)
				if got != want {
					t.Errorf("%s:\ngot\n%s\nwant\n%s", s.name, got, want)
				}
			}
		})
	}
}

// TestStrangersMaySendLittle: before the login a request is small, and so is what an
// attacker can make the proxy hold.
func TestStrangersMaySendLittle(t *testing.T) {
	eleven := "*11\r\n" + strings.Repeat("$1\r\nx\r\n", 11)
	big := "*2\r\n$4\r\nECHO\r\n$16385\r\n" + strings.Repeat("x", 16385) + "\r\n"
	login := encodeAll([]string{"AUTH", "pw"})
	for _, mode := range []proxy.AuthMode{proxy.AuthProxy, proxy.AuthPassthrough} {
		w := startAuthTwins(t, mode, people)
		for _, raw := range []string{
			eleven, big, "ECHO x\r\n" + big, "PING\r\n" + eleven, "PING\r\n" + big, "PING\r\n*10\r\n" + strings.Repeat("$1\r\nx\r\n", 10), "PING\r\n*2\r\n$3\r\nGET\r\n$99999999999\r\n",
			"PING\r\n" + login + eleven, login + big, "PING\r\n" + login + "RESET\r\nPING\r\n" + eleven, "PING\r\nPOST / HTTP/1.1\r\nHost: x\r\n\r\n",
			"AUTH pw\r\nSET k 180\r\nGET k\r\n", "AUTH \"pw\"\r\nSET k 180\r\nGET k\r\n",
		} {
			// Redis closes with input unread, which may take the last bytes of its reply with it.
			got := talk(t, w.proxy, raw)
			clustertest.Await(t, fmt.Sprintf("%s: the same answer to %.60q", mode, raw), func() error {
				if want := talk(t, w.direct.Addr, raw); got != want {
					return fmt.Errorf("got %.200q, want %.200q", got, want)
				}
				return nil
			})
		}
	}
}

// TestNobodyIsAStranger: where the backend wants no login, the very first request may be large.
func TestNobodyIsAStranger(t *testing.T) {
	g := startGuarded(t, ownUser)
	g.admin.Do("ACL", "SETUSER", "default", "nopass")
	value := strings.Repeat("x", 100<<10)
	for range 3 {
		c := clustertest.Dial(t, g.addr)
		if got := c.Do("SET", "k", value); got != "+OK\r\n" {
			t.Errorf("got %q", got)
		}
	}
}

// TestACLCommands: the proxy shows its users as Redis shows the same ones.
func TestACLCommands(t *testing.T) {
	w := startAuthTwins(t, proxy.AuthProxy, []string{
		"app on >secret ~app:* %R~cfg:* &app* -@all +get (~x %W~y +set) (&c -@all)", "bare", "any on nopass allkeys allchannels +@all", "default on nopass ~* &* +@all",
	})
	for _, script := range []string{
		"ACL LIST|ACL USERS|ACL GETUSER app|ACL GETUSER bare|ACL GETUSER any|ACL GETUSER nosuch|ACL WHOAMI|AUTH any x|ACL WHOAMI",
		"HELLO 3|ACL GETUSER app|ACL GETUSER nosuch|ACL LIST|ACL WHOAMI",
		"ACL CAT|ACL CAT nosuch|ACL CAT a b|ACL|ACL NOSUCH|ACL GETUSER|ACL WHOAMI x|ACL GENPASS 0|ACL GENPASS x|ACL GENPASS 4097|ACL GENPASS 1 2|ACL LOG x|ACL LOG RESET|ACL LOG|ACL LOG 1 2",
		"ACL DRYRUN app get app:x|ACL DRYRUN app get x|ACL DRYRUN app set x v|ACL DRYRUN app set y v|ACL DRYRUN app keys *|ACL DRYRUN nosuch get x|ACL DRYRUN app nosuch|ACL DRYRUN app get|ACL DRYRUN any publish c m|ACL DRYRUN app config get x|ACL DRYRUN app config nosuch",
		"MULTI|ACL WHOAMI|AUTH app secret|GET app:k|EXEC|GET k|ACL WHOAMI|AUTH nosuch x",
	} {
		if want, got := runScript(t, w.direct.Addr, script), runScript(t, w.proxy, script); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	c := clustertest.Dial(t, w.proxy)
	for _, change := range []string{"ACL SETUSER x on", "ACL DELUSER app", "ACL LOAD", "ACL SAVE"} {
		c.Send(change + "\r\n")
		name := strings.ToLower(strings.Join(strings.Fields(change)[:2], "|"))
		c.Expect("-ERR '" + name + "' cannot be done here: the users are those of cosky-proxy's configuration (auth.users, auth.file)\r\n")
	}
	if pass := c.Do("ACL", "GENPASS", "5"); len(pass) != len("$2\r\nxx\r\n") {
		t.Errorf("GENPASS 5: %q", pass)
	}
	if cat := c.Do("ACL", "CAT", "scripting"); !strings.Contains(cat, "$4\r\neval\r\n") || !strings.Contains(cat, "$11\r\nscript|load\r\n") {
		t.Errorf("CAT scripting: %q", cat)
	}
}

var volatile = regexp.MustCompile(`age-seconds\r\n(\$\d+\r\n|,)[^\r]*|\$\d+\r\nid=[^\r]*`)

// TestDenialsAreLogged: ACL LOG groups and shows denials as Redis does.
func TestDenialsAreLogged(t *testing.T) {
	w := startAuthTwins(t, proxy.AuthProxy, people)
	const script = "AUTH app wrong|AUTH app wrong|AUTH default pw|ACL LOG RESET|AUTH nosuch x|HELLO 2 AUTH off secret|AUTH app secret|GET k|GET k|GET other|KEYS *|CONFIG GET x|MULTI|GET k|DISCARD|PUBLISH other m|AUTH pw|ACL LOG 2|ACL LOG|HELLO 3|ACL LOG 1|ACL LOG 0|ACL LOG -1"
	want := volatile.ReplaceAllString(runScript(t, w.direct.Addr, script), "")
	if got := volatile.ReplaceAllString(runScript(t, w.proxy, script), ""); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestDenialsAreShort: what is remembered of a denial does not grow with the request.
func TestDenialsAreShort(t *testing.T) {
	w := startAuthTwins(t, proxy.AuthProxy, people)
	c := clustertest.Dial(t, w.proxy)
	c.Do("AUTH", "app", "secret")
	if got := c.Do("GET", strings.Repeat("k", 100<<10)); got != noPerm {
		t.Errorf("got %q", got)
	}
	c.Do("AUTH", "pw")
	if got := c.Do("ACL", "LOG", "1"); len(got) > 5<<10 || !strings.Contains(got, "kkk") {
		t.Errorf("an entry of %d bytes: %.300q", len(got), got)
	}
}

// TestUploadsObeyRules: a request that is passed on while it arrives is judged by what
// is there of it, or waits until all of it is.
func TestUploadsObeyRules(t *testing.T) {
	r := clustertest.StartRedis(t)
	o := strict(t, r, netloop.DefaultTransport)
	o.Clients.RequestBuffer = 64 << 10
	o.Auth = authOptions(t, proxy.AuthProxy, []string{"app on nopass ~app:* %W~w:* +@all", "default off"})
	_, addr := proxytest.Start(t, o)
	c := clustertest.Dial(t, addr)
	c.Do("AUTH", "app", "x")
	value := strings.Repeat("v", 300<<10)
	const denied = "-NOPERM this user has no permissions to access one of the keys used as arguments\r\n"
	for _, call := range []struct {
		args []string
		want string
	}{
		{[]string{"SET", "app:k", value}, "+OK\r\n"},
		{[]string{"SET", "k", value}, denied},
		{[]string{"SET", "w:k", value}, "+OK\r\n"},
		{[]string{"SET", "w:k", value, "GET"}, denied},
		{[]string{"MSET", "app:k", value, "k", "v"}, denied},
		{[]string{"GET", "k"}, denied},
		{[]string{"STRLEN", "app:k"}, ":307200\r\n"},
	} {
		if got := c.Do(call.args...); got != call.want {
			t.Errorf("%.40q: got %.100q", call.args, got)
		}
	}
	if n := r.Do("EXISTS", "k"); n != int64(0) {
		t.Errorf("a denied value was written")
	}
}

// TestOwnLoginFails: whoever has logged in here cannot do anything about the proxy's own
// password, and is not told to log in again.
func TestOwnLoginFails(t *testing.T) {
	for _, own := range []string{"", "wrong"} {
		r := clustertest.StartRedis(t, "--requirepass", "right")
		o := strict(t, r, netloop.DefaultTransport)
		o.Auth = authOptions(t, proxy.AuthProxy, people)
		o.Backend.Password = own
		_, addr := proxytest.Start(t, o)
		c := clustertest.Dial(t, addr)
		c.Do("AUTH", "pw")
		if got := c.Do("GET", "k"); !strings.HasPrefix(got, "-ERR cosky-proxy ") || !strings.Contains(got, r.Addr) {
			t.Errorf("with %q: got %q", own, got)
		}
	}
}
