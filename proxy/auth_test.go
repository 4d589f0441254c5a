package proxy_test

import (
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
	{"HELLO of a stranger to RESP3", "HELLO 3 AUTH zero x|GET k|ECHO x|PING|HELLO 3"},
	{"HELLO in the wrong order", "HELLO 3 SETNAME me AUTH default pw|CLIENT GETNAME|HELLO 3 AUTH default|HELLO x|HELLO 2 AUTH default pw"},
	{"inline", "*INLINE|AUTH pw|SET k 180|GET k"},
}

// runScript sends a script to one side and returns all replies, without what differs
// between two servers.
func runScript(t *testing.T, addr, script string) string {
	t.Helper()
	c := clustertest.Dial(t, addr)
	defer c.Close()
	var all strings.Builder
	for line := range strings.SplitSeq(strings.TrimPrefix(script, "*INLINE|"), "|") {
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
