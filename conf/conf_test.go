package conf

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func mustLoad(t *testing.T, args, environ []string) *Config {
	t.Helper()
	c, action, err := Load(args, environ)
	if err != nil || action != Run {
		t.Fatalf("Load(%q, %q): action %d, error %v", args, environ, action, err)
	}
	return c
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestNothingGivenIsDefault(t *testing.T) {
	if c := mustLoad(t, nil, nil); !reflect.DeepEqual(c, Default()) {
		t.Errorf("got %+v", c)
	}
}

func TestDefaultsAreAllowed(t *testing.T) {
	c := Default()
	for _, o := range options(c) {
		if err := o.set([]string{o.get()}); err != nil {
			t.Errorf("%s: its default %q is refused: %v", o.key, o.get(), err)
		}
	}
	if !reflect.DeepEqual(c, Default()) {
		t.Errorf("setting every default changed something: %+v", c)
	}
}

// Every leaf of Config must have a key: change each field through reflection and
// look whether some option sees it.
func TestEveryFieldHasAKey(t *testing.T) {
	c := Default()
	texts := func() string {
		var all []string
		for _, o := range options(c) {
			all = append(all, o.key+"="+o.get())
		}
		return strings.Join(all, "\n")
	}
	var visit func(path string, v reflect.Value)
	visit = func(path string, v reflect.Value) {
		if _, ok := v.Addr().Interface().(*Backend); !ok && v.Kind() == reflect.Struct {
			for i := range v.NumField() {
				visit(path+"."+v.Type().Field(i).Name, v.Field(i))
			}
			return
		}
		before := texts()
		switch p := v.Addr().Interface().(type) {
		case *Backend:
			p.Kind, p.Addrs = Standalone, []string{"x:1"}
		case *[]string:
			*p = []string{"x:1"}
		case *[]Secret:
			*p = []Secret{"x"}
		case *[]CacheRule:
			*p = []CacheRule{{Match: "x"}}
		case *[]LimitRule:
			*p = []LimitRule{{Per: "x"}}
		case *[]CacheScript:
			*p = []CacheScript{{SHA: "x"}}
		default:
			if v.Kind() == reflect.Bool {
				v.SetBool(!v.Bool())
			} else if v.CanInt() {
				v.SetInt(v.Int() + 1)
			} else {
				v.SetString(v.String() + "x")
			}
		}
		if texts() == before {
			t.Errorf("%s has no key", path)
		}
	}
	visit("Config", reflect.ValueOf(c).Elem())
}

func TestDocumentedFileIsTheDefault(t *testing.T) {
	c := mustLoad(t, []string{"--config", "cosky-proxy.yaml"}, nil)
	if !reflect.DeepEqual(c, Default()) {
		t.Errorf("got  %+v\nwant %+v", c, Default())
	}
	settings, err := readFile("cosky-proxy.yaml", newLoader().isSection, newLoader().isChoice)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, s := range settings {
		keys = append(keys, s.key)
	}
	if want := newLoader().keys(); !slices.Equal(keys, want) {
		t.Errorf("keys in the file, in order: %q\nwant %q", keys, want)
	}
}

func TestFlagsAndVariablesAreUnambiguous(t *testing.T) {
	l := newLoader()
	for _, names := range [][]string{l.keys(), l.flags(), l.variables()} {
		slices.Sort(names)
		if len(slices.Compact(slices.Clone(names))) != len(names) {
			t.Errorf("a name occurs twice: %q", names)
		}
	}
	for _, v := range l.variables() {
		if serviceVariable.MatchString(v) {
			t.Errorf("%s would be ignored as a variable of Kubernetes", v)
		}
	}
}

func TestPrecedence(t *testing.T) {
	file := writeFile(t, "loops: 1\nclients: {max: 1, max_in_flight: 1}\nnearcache:\n  ttl: 1s\n")
	env := []string{"COSKY_PROXY_CLIENTS_MAX=2", "COSKY_PROXY_NEARCACHE_TTL=2s", "PATH=/bin"}
	c := mustLoad(t, []string{"--config", file, "--nearcache.ttl=3s"}, env)
	got := []any{c.Loops, c.Clients.MaxInFlight, c.Clients.Max, c.NearCache.TTL, c.Upstream.MaxPins}
	if want := []any{1, 1, 2, 3 * time.Second, 10000}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestEverySourceReachesEveryKey(t *testing.T) {
	table := options(Default())
	for i := range table {
		o := &table[i]
		value := other(t, o)
		key, file := o.key, ""
		if section, rest, ok := strings.Cut(key, "."); ok {
			file = fmt.Sprintf("%s:\n  %s: %q\n", section, rest, value)
		} else {
			file = fmt.Sprintf("%s: %q\n", key, value)
		}
		for _, c := range []*Config{
			mustLoad(t, []string{"--config", writeFile(t, file)}, companion(o)),
			mustLoad(t, nil, append(companion(o), o.variable()+"="+value)),
			mustLoad(t, []string{"--" + o.flag(), value}, companion(o)),
		} {
			loaded := options(c)
			if got := loaded[i].get(); got == table[i].get() {
				t.Errorf("%s: %q did not arrive, got %q", key, value, got)
			}
		}
	}
}

// companion is the environment without which o may not be set.
func companion(o *option) []string {
	switch o.key {
	case "upstream.sentinel_user":
		return []string{"COSKY_PROXY_UPSTREAM_SENTINEL_PASSWORD=pw"}
	case "auth.mode":
		return []string{"COSKY_PROXY_AUTH_USERS=default off"}
	case "auth.users", "auth.file":
		return []string{"COSKY_PROXY_AUTH_MODE=proxy"}
	case "tls.cert", "tls.key", "tls.ca", "tls.client_auth":
		env := []string{"COSKY_PROXY_LISTEN=tls:localhost:1"}
		for _, key := range []string{"tls.cert", "tls.key", "tls.ca"} {
			if key != o.key {
				env = append(env, envPrefix+strings.ToUpper(strings.ReplaceAll(key, ".", "_"))+"=f")
			}
		}
		if o.key != "tls.client_auth" {
			env = append(env, envPrefix+"TLS_CLIENT_AUTH=optional")
		}
		return env
	case "upstream.tls.cert":
		return []string{"COSKY_PROXY_BACKEND=rediss://h", "COSKY_PROXY_UPSTREAM_TLS_KEY=f"}
	case "upstream.tls.key":
		return []string{"COSKY_PROXY_BACKEND=rediss://h", "COSKY_PROXY_UPSTREAM_TLS_CERT=f"}
	}
	if strings.HasPrefix(o.key, "upstream.tls.") {
		return []string{"COSKY_PROXY_BACKEND=rediss://h"}
	}
	if o.key == "cluster_announce" {
		return []string{"COSKY_PROXY_CLUSTER_FACADE=localhost:1"}
	}
	return nil
}

// other is an allowed value of o that is not its default.
func other(t *testing.T, o *option) string {
	t.Helper()
	for _, v := range []string{"localhost:1", "redis://me:pw@localhost:1", "3", "128KB", "128MB", "700ms", "2048", "json", "warn", "epoll", "off", "text", "proxy", "1.3", "true", "required", "a:1=b:2", "replica", "get=nearest", "disconnect", "serve_stale:1m", "{match: x, commands: [GET], ttl: 1ms, max_value: 1KB}", "GET", "{sha: " + someSHA + ", effect: registry_renew}", "{per: user, rate: 2}"} {
		d := Default()
		table := options(d)
		for i := range table {
			if table[i].key != o.key {
				continue
			}
			was := table[i].get()
			if table[i].set([]string{v}) != nil || table[i].get() == was {
				continue
			}
			if _, _, err := Load([]string{"--" + o.flag(), v}, companion(o)); err == nil {
				return v
			}
		}
	}
	t.Fatalf("no other value found for %s", o.key)
	return ""
}

func TestLists(t *testing.T) {
	want := []string{"127.0.0.1:1", "unix:/run/p.sock", "[::1]:0"}
	for name, c := range map[string]*Config{
		"flags":    mustLoad(t, []string{"--listen", want[0], "--listen=" + want[1], "--listen", want[2]}, nil),
		"variable": mustLoad(t, nil, []string{"COSKY_PROXY_LISTEN=" + strings.Join(want, ", ")}),
		"file":     mustLoad(t, []string{"--config", writeFile(t, "listen: ['127.0.0.1:1', 'unix:/run/p.sock', '[::1]:0']")}, nil),
	} {
		if !reflect.DeepEqual(c.Listen, want) {
			t.Errorf("%s: got %q", name, c.Listen)
		}
	}
	proxies := []string{"10.0.0.1:6380", "[::1]:6380", "proxy-c:6380"}
	for name, c := range map[string]*Config{
		"flags":    mustLoad(t, []string{"--cluster-facade", proxies[0], "--cluster-facade=" + proxies[1] + "," + proxies[2]}, nil),
		"variable": mustLoad(t, nil, []string{"COSKY_PROXY_CLUSTER_FACADE=" + strings.Join(proxies, ", ")}),
		"file":     mustLoad(t, []string{"--config", writeFile(t, "cluster_facade: ['10.0.0.1:6380', '[::1]:6380', 'proxy-c:6380']")}, nil),
	} {
		if !reflect.DeepEqual(c.ClusterFacade, proxies) {
			t.Errorf("%s: got %q", name, c.ClusterFacade)
		}
	}
	for _, none := range []string{"cluster_facade: off\n", "cluster_facade: []\n", "cluster_facade: ''\n"} {
		if c := mustLoad(t, []string{"--config", writeFile(t, none)}, nil); c.ClusterFacade != nil {
			t.Errorf("%q: got %q", none, c.ClusterFacade)
		}
	}
	if c := mustLoad(t, []string{"--config", writeFile(t, "listen: :7\n")}, nil); !reflect.DeepEqual(c.Listen, []string{":7"}) {
		t.Errorf("one address without a list: got %q", c.Listen)
	}
}

func TestUsers(t *testing.T) {
	want := []Secret{`default on >p@ss:w/rd#1,%20"' ~* +@all`, "app on nopass"}
	for name, c := range map[string]*Config{
		"flags":    mustLoad(t, []string{"--auth.mode=proxy", "--auth.users", string(want[0]), "--auth.users=" + string(want[1])}, nil),
		"variable": mustLoad(t, []string{"--auth.mode=proxy"}, []string{"COSKY_PROXY_AUTH_USERS=" + string(want[0]) + "\n" + string(want[1]) + "\n"}),
		"file":     mustLoad(t, []string{"--config", writeFile(t, "auth:\n  mode: proxy\n  users:\n  - 'default on >p@ss:w/rd#1,%20\"'' ~* +@all' #quoted\n  - app on nopass # not quoted\n")}, nil),
	} {
		if !reflect.DeepEqual(c.Auth.Users, want) {
			t.Errorf("%s: got %d users, %q", name, len(c.Auth.Users), []string{string(c.Auth.Users[0])})
		}
		if text := fmt.Sprintf("%v %+v %#v", c.Auth, c.Auth, c.Auth); strings.Contains(text, "p@ss") {
			t.Errorf("%s: a password is shown: %s", name, text)
		}
	}
}

func TestActions(t *testing.T) {
	for _, c := range []struct {
		arg  string
		want Action
	}{{"--help", ShowHelp}, {"-h", ShowHelp}, {"--version", ShowVersion}} {
		if conf, action, err := Load([]string{c.arg}, nil); conf != nil || action != c.want || err != nil {
			t.Errorf("%s: %v, %v, %v", c.arg, conf, action, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		args []string
		env  string
		file string
		want []string // all of these in the message
	}{
		{args: []string{"--loops", "x"}, want: []string{`cannot use "x" for loops (flag --loops): not a whole number`, "allowed: a whole number from 0 to 1024"}},
		{args: []string{"--loops", "-1"}, want: []string{"out of range"}},
		{args: []string{"--loops", "99999999999999999999"}, want: []string{"out of range"}},
		{args: []string{"--loops"}, want: []string{"flag --loops needs a value"}},
		{args: []string{"--lopps", "1"}, want: []string{"unknown flag --lopps: did you mean --loops?"}},
		{args: []string{"--frobnicate"}, want: []string{"unknown flag --frobnicate: --help lists"}},
		{args: []string{"--foo"}, want: []string{"unknown flag --foo: --help lists"}},
		{args: []string{"-x"}, want: []string{"unknown flag -x: --help lists"}},
		{args: []string{"-loops=4"}, want: []string{"unknown flag -loops: did you mean --loops?"}},
		{args: []string{"--admin", "unix:/run/a.sock"}, want: []string{`"unix:/run/a.sock" for admin (flag --admin): admin pages need a TCP address; allowed: host:port, or off`}},
		{args: []string{"start"}, want: []string{`cannot use argument "start"`}},
		{args: []string{"--listen", "6380"}, want: []string{"listen", "not host:port", "unix:/path"}},
		{args: []string{"--listen", "h:70000"}, want: []string{"0 to 65535"}},
		{args: []string{"--listen", "unix:x"}, want: []string{"not absolute"}},
		{args: []string{"--listen", "h:1", "--listen", "h:1"}, want: []string{`"h:1" is named twice`}},
		{args: []string{"--cluster-facade", "h:1", "--cluster-facade", "h:1"}, want: []string{`"h:1" is named twice`}},
		{args: []string{"--cluster-facade", "h"}, want: []string{"not host:port"}},
		{args: []string{"--cluster-facade", ":6380"}, want: []string{"name a host"}},
		{args: []string{"--cluster-facade", "[::]:6380"}, want: []string{"name a host"}},
		{args: []string{"--cluster-facade", "h:0"}, want: []string{"nobody can connect to port 0"}},
		{args: []string{"--cluster-facade", "h:1;i:1"}, want: []string{"not host:port"}},
		{args: []string{"--cluster-facade", "h:1", "--cluster-announce", "h:2"}, want: []string{"cluster_announce h:2 (flag --cluster-announce) must be one of cluster_facade h:1 (flag --cluster-facade)"}},
		{args: []string{"--cluster-announce", "h:2"}, want: []string{"needs cluster_facade, which is off"}},
		{args: []string{"--cluster-node-timeout", "1ms"}, want: []string{"out of range; allowed: 0, or a duration", "from 100ms to 1h"}},
		{args: []string{"--cluster-node-timeout", "soon"}, want: []string{"not a duration with a unit"}},
		{file: "auth:\n  mode: proxy\n  users:\n    - a on\n    - b on #hunter2 ~x\n", want: []string{"cannot use the value of auth.users", ":3): YAML takes what follows", "quotes"}},
		{file: "upstream:\n  password: hunter2 #hunter2\n", want: []string{"cannot use the value of upstream.password"}},
		{args: []string{"--backend", "rediss:h:1"}, want: []string{"rediss: must be followed by //host"}},
		{args: []string{"--listen", "tls:h:1"}, want: []string{"listen tls:h:1 (flag --listen) needs a certificate: set tls.cert and tls.key"}},
		{args: []string{"--listen", "tls:h:1", "--tls.cert", "f"}, want: []string{"needs a certificate"}},
		{args: []string{"--listen", "tls:h:1", "--tls.cert", "f", "--tls.key", "f", "--tls.client-auth", "required"}, want: []string{"tls.client_auth required (flag --tls.client-auth) needs tls.ca"}},
		{args: []string{"--tls.client-auth", "required"}, want: []string{"tls.client_auth required (flag --tls.client-auth) needs an address for clients that begins with tls:"}},
		{file: "auth: {mode: proxy, users: [app on #abc ~*]}\n", want: []string{`to YAML " #" begins a comment`}},
		{args: []string{"--listen", "tls:h:1", "--tls.cert", "f", "--tls.key", "f", "--tls.ca", "f"}, want: []string{"tls.ca has no effect"}},
		{args: []string{"--listen", "tls:unix:/x"}, want: []string{"the port is not a number"}},
		{args: []string{"--tls.cert", "f"}, want: []string{"need an address for clients that begins with tls:"}},
		{args: []string{"--upstream.tls.ca", "f"}, want: []string{"upstream.tls needs a backend whose URL begins with rediss:"}},
		{args: []string{"--backend", "rediss://h", "--upstream.tls.cert", "f"}, want: []string{"need each other"}},
		{args: []string{"--backend", "rediss://h", "--upstream.tls.ca", "f", "--upstream.tls.insecure-skip-verify", "true"}, want: []string{"have no effect"}},
		{args: []string{"--upstream.tls.insecure-skip-verify", "yes"}, want: []string{"allowed: true, false"}},
		{args: []string{"--upstream.read-from", "slave"}, want: []string{"unknown word; allowed: master, master_preferred, replica"}},
		{args: []string{"--upstream.read-from-commands", "get"}, want: []string{`"get" is not NAME=POLICY`}},
		{args: []string{"--upstream.read-from-commands", "get=x"}, want: []string{"unknown policy; allowed: pairs of a command"}},
		{args: []string{"--upstream.address-map", "a:1"}, want: []string{`there is no = in "a:1"`}},
		{args: []string{"--upstream.address-map", "a:1=b"}, want: []string{`"b": `, "not host:port"}},
		{args: []string{"--upstream.address-map", "a=b", "--upstream.address-map", "a=c"}, want: []string{`"a" is named twice`}},
		{args: []string{"--backend", "mysql://u:hunter2@h:1"}, want: []string{"unknown kind of backend; allowed: embedded:, redis://", "redis-cluster://", "mysql://***@h:1"}},
		{args: []string{"--backend", "redis://user@h"}, want: []string{"user without a password: write user:password@ (:password@ for a password alone), or set upstream.user and upstream.password instead"}},
		{args: []string{"--backend", "redis://u:hunter2@h:x"}, want: []string{"redis://***@h:x", "port"}},
		{args: []string{"--backend", "redis://u:hunter2@h:1?x=1"}, want: []string{"keys under upstream"}},
		{args: []string{"--upstream.user", "u"}, want: []string{"upstream.user u (flag --upstream.user) needs a password"}, file: "backend: redis://h:1\n"},
		{args: []string{"--upstream.sentinel_user", "u"}, want: []string{"upstream.sentinel_user u (flag --upstream.sentinel-user) needs a password"}},
		{args: []string{"--auth.mode", "acl"}, want: []string{"auth.mode", "allowed: off, proxy, passthrough"}},
		{args: []string{"--auth.users", "a on >hunter2"}, want: []string{"auth.users needs auth.mode proxy, it is off"}},
		{args: []string{"--auth.file", "/f", "--auth.mode", "passthrough"}, want: []string{"auth.file needs auth.mode proxy, it is passthrough"}},
		{args: []string{"--auth.mode", "proxy"}, want: []string{"auth.mode proxy needs users: set auth.users or auth.file"}},
		{args: []string{"--auth.mode", "proxy", "--auth.file", "/f", "--auth.users", "a"}, want: []string{"auth.users and auth.file cannot be used together"}},
		{args: []string{"--auth.mode", "passthrough"}, want: []string{"auth.mode passthrough needs a Redis with users"}},
		{args: []string{"--slowlog.slower-than", "-1s"}, want: []string{"slowlog.slower_than (flag --slowlog.slower-than): out of range; allowed: 0, or a duration", "from 1µs to 24h"}},
		{args: []string{"--slowlog.max-len", "0"}, want: []string{"slowlog.max_len (flag --slowlog.max-len): out of range; allowed: a whole number from 1 to 100000"}},
		{args: []string{"--nearcache.stripes", "1500"}, want: []string{"not a power of two"}},
		{args: []string{"--nearcache.max-entry", "17MB"}, want: []string{"nearcache.max_entry 17MB (flag --nearcache.max-entry) must not be greater than a quarter of nearcache.max_bytes 64MB (default)"}},
		{args: []string{"--nearcache.max-bytes", "1MB"}, want: []string{"nearcache.max_entry 1MB (default) must not be greater than a quarter of nearcache.max_bytes 1MB (flag --nearcache.max-bytes)"}},
		{args: []string{"--config", "/nonexistent/x.yaml"}, want: []string{"cannot read the configuration", "/nonexistent/x.yaml"}},
		{env: "COSKY_PROXY_LOG_LEVEL=loud", want: []string{`cannot use "loud" for log_level (environment variable COSKY_PROXY_LOG_LEVEL)`, "debug, info, warn, error"}},
		{env: "COSKY_PROXY_LOGLEVEL=info", want: []string{"unknown environment variable COSKY_PROXY_LOGLEVEL: did you mean COSKY_PROXY_LOG_LEVEL?"}},
		{env: "COSKY_PROXY_CONFIG=/nonexistent/y.yaml", want: []string{"/nonexistent/y.yaml"}},
		{file: "loops: 1\nclients:\n  maxx: 5\n", want: []string{`unknown key "clients.maxx" (`, "c.yaml:3): did you mean clients.max?"}},
		{file: "clients: {frobnication: 5}", want: []string{"allowed in clients: max, output_limit"}},
		{file: "frobnicate: 5", want: []string{"c.yaml:1): --help lists"}},
		{file: "frobnicate: {a: 1}", want: []string{`unknown key "frobnicate" (`}},
		{file: "nearcahce:\n  ttl: 1s\n", want: []string{`unknown key "nearcahce" (`, "did you mean nearcache?"}},
		{file: "clients: {foo: 1}", want: []string{`unknown key "clients.foo" (`, "allowed in clients: max, "}},
		{file: "loops: 1\nloops: 2\n", want: []string{"c.yaml:2", "loops"}},
		{file: "clients.max: 1\nclients: {max: 2}\n", want: []string{"c.yaml:2): it is already set in line 1"}},
		{file: "clients: 5\n", want: []string{"c.yaml:1: clients holds keys"}},
		{file: "loops: {a: 1}\n", want: []string{`"loops"`, "c.yaml:1): it needs a plain value"}},
		{file: "nearcache: {on_backend_loss: {serve_stale: [1s]}}\n", want: []string{`"nearcache.on_backend_loss"`, "it needs a plain value"}},
		{file: "nearcache: {on_backend_loss: {serve_stale: 1s, bypass: 1s}}\n", want: []string{`"nearcache.on_backend_loss"`, "it needs a plain value"}},
		{file: "nearcache: {on_backend_loss: {stale: 1s}}\n", want: []string{`cannot use "stale: 1s" for nearcache.on_backend_loss (`, "unknown word; allowed: bypass, or serve_stale and a duration from 100ms to 24h, as in serve_stale:30s"}},
		{args: []string{"--nearcache.on-backend-loss=serve_stale"}, want: []string{`cannot use "serve_stale" for nearcache.on_backend_loss (flag --nearcache.on-backend-loss): unknown word`}},
		{args: []string{"--nearcache.on-backend-loss=serve_stale:1"}, want: []string{"not a duration with a unit"}},
		{args: []string{"--nearcache.on-backend-loss=serve_stale:25h"}, want: []string{"out of range"}},
		{args: []string{"--nearcache.on-backend-loss=serve_stale:500ms"}, want: []string{"nearcache.on_backend_loss serve_stale:500ms (flag --nearcache.on-backend-loss) must not be shorter than nearcache.max_staleness 1s (default)"}},
		{file: "loops: [1, 2]\n", want: []string{"not a single value"}},
		{file: "listen: []\n", want: []string{"no address"}},
		{file: "listen: [{a: 1}]\n", want: []string{"it needs a plain value"}},
		{file: "loops:\n", want: []string{"c.yaml:1): it has no value"}},
		{file: "- a\n", want: []string{"the file holds keys"}},
		{file: "a: 1\n---\nb: 2\n", want: []string{"more than one YAML document"}},
		{file: "loops: 1\nbackend: embedded:\n", want: []string{"c.yaml:2", `; a value that contains ": " or ends in ":" needs quotes`}},
		{file: "log_format: a: b\n", want: []string{"c.yaml:1", `; a value that contains ": " or ends in ":" needs quotes`}},
		{file: "loops: 'x\n", want: []string{"c.yaml:1"}},
		{file: "drain_timeout: 10\n", want: []string{`"10" for drain_timeout`, "not a duration with a unit"}},
		{file: "clients: {output_limit: 5 parsec}\n", want: []string{"not a size", "64KB"}},
	} {
		args, environ := c.args, []string(nil)
		if c.file != "" {
			args = append([]string{"--config", writeFile(t, c.file)}, args...)
		}
		if c.env != "" {
			environ = []string{c.env}
		}
		conf, _, err := Load(args, environ)
		if err == nil || conf != nil {
			t.Errorf("%+v: accepted", c)
			continue
		}
		message := err.Error()
		for _, want := range c.want {
			if !strings.Contains(message, want) {
				t.Errorf("%+v:\n got %s\nwant %s", c, message, want)
			}
		}
		if strings.ContainsAny(message, "\n\r") || strings.Contains(message, "hunter2") {
			t.Errorf("%+v: more than one line, or a password: %s", c, message)
		}
	}
}

// Only who names no known kind of backend is told all of them.
func TestBackendMistakesAreShort(t *testing.T) {
	for _, url := range []string{"redis:h", "redis://", "redis://user@h", "redis://h:x", "redis://h/x", "redis-cluster://h/1", "redis-sentinel://h", "rediss://h/x"} {
		_, _, err := Load([]string{"--backend", url}, nil)
		if err == nil || strings.Contains(err.Error(), "allowed") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestLevelsInAnyCase(t *testing.T) {
	for _, level := range []string{"debug", "DEBUG", "Debug"} {
		if c := mustLoad(t, []string{"--log-level", level}, nil); c.LogLevel != slog.LevelDebug {
			t.Errorf("%s: got %v", level, c.LogLevel)
		}
	}
}

func TestAdminOff(t *testing.T) {
	for _, text := range []string{"off", ""} {
		if c := mustLoad(t, []string{"--admin", text}, nil); c.Admin != "" {
			t.Errorf("%q: got %q", text, c.Admin)
		}
	}
}

func TestForeignVariablesAreLeftAlone(t *testing.T) {
	mustLoad(t, nil, []string{
		"COSKY_PROXY_SERVICE_HOST=10.0.0.1", "COSKY_PROXY_SERVICE_PORT=6380", "COSKY_PROXY_SERVICE_PORT_REDIS=6380",
		"COSKY_PROXY_PORT=tcp://10.0.0.1:6380", "COSKY_PROXY_PORT_6380_TCP=tcp://10.0.0.1:6380",
		"COSKY_PROXY_PORT_6380_TCP_PROTO=tcp", "COSKY_PROXY_PORT_6380_TCP_PORT=6380", "COSKY_PROXY_PORT_6380_TCP_ADDR=10.0.0.1",
		"COSKY_HOME=/x",
	})
}

func TestCredentials(t *testing.T) {
	c := mustLoad(t, []string{"--backend", "redis://u:p@h:1", "--upstream.password", "other"}, nil)
	if c.Backend.User != "u" || c.Backend.Password != "other" {
		t.Errorf("got %q %q", c.Backend.User, string(c.Backend.Password))
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		if s := fmt.Sprintf(verb, *c); strings.Contains(s, "other") {
			t.Errorf("%s prints the password: %s", verb, s)
		}
	}
}

func TestParseBackend(t *testing.T) {
	for _, c := range []struct {
		url  string
		want Backend
	}{
		{"embedded:", Backend{Kind: Embedded}},
		{"embedded", Backend{Kind: Embedded}},
		{"redis://h:1", Backend{Kind: Standalone, Addrs: []string{"h:1"}}},
		{"redis://h", Backend{Kind: Standalone, Addrs: []string{"h:6379"}}},
		{"redis://[::1]", Backend{Kind: Standalone, Addrs: []string{"[::1]:6379"}}},
		{"redis://[::1]:7/", Backend{Kind: Standalone, Addrs: []string{"[::1]:7"}}},
		{"redis://:p%40/w@h:1/3", Backend{Kind: Standalone, Addrs: []string{"h:1"}, DB: 3, Password: "p@/w"}},
		{"redis://u:p:q@h:1", Backend{Kind: Standalone, Addrs: []string{"h:1"}, User: "u", Password: "p:q"}},
		{"rediss://h", Backend{Kind: Standalone, TLS: true, Addrs: []string{"h:6379"}}},
		{"rediss-cluster://a:1,b", Backend{Kind: Cluster, TLS: true, Addrs: []string{"a:1", "b:6379"}}},
		{"rediss-sentinel://a:1,b/main", Backend{Kind: Sentinel, TLS: true, Addrs: []string{"a:1", "b:26379"}, Master: "main"}},
		{"redis-cluster://a:1,b,[::1]:3", Backend{Kind: Cluster, Addrs: []string{"a:1", "b:6379", "[::1]:3"}}},
		{"redis-cluster://u:p@a,b:2", Backend{Kind: Cluster, Addrs: []string{"a:6379", "b:2"}, User: "u", Password: "p"}},
		{"redis-sentinel://a:1,b/main", Backend{Kind: Sentinel, Addrs: []string{"a:1", "b:26379"}, Master: "main"}},
		{"redis-sentinel://u:p@a:1/main/2", Backend{Kind: Sentinel, Addrs: []string{"a:1"}, Master: "main", DB: 2, User: "u", Password: "p"}},
	} {
		got, err := ParseBackend(c.url)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, %v", c.url, got, err)
			continue
		}
		if c.want.Password != "" {
			continue
		}
		if again, err := ParseBackend(got.String()); err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("%s: as text %s: %+v, %v", c.url, got, again, err)
		}
	}
	for _, url := range []string{
		"", ":", "redis", "redis:", "redis://", "redis:h:1", "redis://a:1,b:2", "redis://h:0", "redis://h:1/x", "redis://h:1/-1", "redis://u@h:1",
		"redis://u:%zz@h:1", "redis://%zz:p@h:1", "redis://h:1#x", "redis-cluster://a:1/1", "redis-cluster://a:1,,b:1", "redis-sentinel://a:1",
		"redis-sentinel://a:1/", "rediss:", "redisss://h:1", "rediss-embedded:", "embedded:x", "redis://a:b:c",
	} {
		if b, err := ParseBackend(url); err == nil {
			t.Errorf("%q accepted: %+v", url, b)
		}
	}
}

func TestSizesAndDurations(t *testing.T) {
	for text, want := range map[string]Bytes{
		"0": 0, "17": 17, "17B": 17, "64kb": 64 * KB, "64KiB": 64 * KB, "1MB": MB, "1 MiB": MB, "2gb": 2 * GB, "1025": 1025,
	} {
		got, err := parseBytes(text)
		if err != nil || got != want {
			t.Errorf("parseBytes(%q) = %d, %v", text, got, err)
		}
		if again, err := parseBytes(got.String()); err != nil || again != got {
			t.Errorf("%d as text: %s", got, got)
		}
	}
	for _, text := range []string{"", "MB", "-1", "1k", "1TB", "1.5MB", "9999999999GB", "99999999999999999999"} {
		if got, err := parseBytes(text); err == nil {
			t.Errorf("parseBytes(%q) = %d", text, got)
		}
	}
	for d, want := range map[time.Duration]string{0: "0", time.Second: "1s", time.Minute: "1m", time.Hour: "1h", 90 * time.Second: "1m30s", 24 * time.Hour: "24h", time.Hour + time.Second: "1h0m1s"} {
		if got := formatDuration(d); got != want {
			t.Errorf("formatDuration(%d) = %s, want %s", d, got, want)
		}
	}
}

func TestUsageNamesEverything(t *testing.T) {
	usage := Usage()
	for _, flag := range newLoader().flags() {
		if !strings.Contains(usage, "\n  "+flag+" ") && !strings.Contains(usage, "\n  "+flag+",") && !strings.Contains(usage, "\n  "+flag+"\n") {
			t.Errorf("%s is missing", flag)
		}
	}
}

func FuzzParseBackend(f *testing.F) {
	for _, url := range []string{"redis://u:p@h:1/2", "redis-cluster://a:1,[::1]:2", "redis-sentinel://a/m/1", "embedded:", "redis://[::1", "redis://]"} {
		f.Add(url)
	}
	f.Fuzz(func(t *testing.T, url string) {
		b, err := ParseBackend(url)
		if err != nil || b.Password != "" {
			return
		}
		if again, err := ParseBackend(b.String()); err != nil || !reflect.DeepEqual(again, b) {
			t.Errorf("%q: as text %q: %+v, %v", url, b, again, err)
		}
	})
}

func FuzzFile(f *testing.F) {
	f.Add("loops: 1\nclients: {max: 5}\nlisten: [a:1]\n")
	f.Add("a: &x 1\nb: *x\n<<: {c: 1}\n? q\n: r\n")
	f.Fuzz(func(t *testing.T, text string) {
		_, _, err := Load([]string{"--config", writeFile(t, text)}, nil)
		if err != nil && strings.ContainsAny(err.Error(), "\n") {
			t.Errorf("%q: more than one line: %q", text, err)
		}
	})
}

// TestOnBackendLoss: the file has the form of the documentation, a flag its text.
func TestOnBackendLoss(t *testing.T) {
	for _, c := range []struct {
		file, flag string
		want       time.Duration
	}{
		{"nearcache:\n  on_backend_loss: bypass\n", "", 0},
		{"nearcache:\n  on_backend_loss:\n    serve_stale: 30s\n", "", 30 * time.Second},
		{"nearcache: {on_backend_loss: {serve_stale: 30s}}\n", "", 30 * time.Second},
		{"nearcache:\n  on_backend_loss: 'serve_stale: 30s'\n", "", 30 * time.Second},
		{"nearcache.on_backend_loss: {serve_stale: 30s}\n", "serve_stale:1m", time.Minute},
		{"nearcache.on_backend_loss: {serve_stale: 30s}\n", "bypass", 0},
	} {
		args := []string{"--config", writeFile(t, c.file)}
		if c.flag != "" {
			args = append(args, "--nearcache.on-backend-loss", c.flag)
		}
		if got := mustLoad(t, args, nil).NearCache.StaleFor; got != c.want {
			t.Errorf("%q %q: got %v, want %v", c.file, c.flag, got, c.want)
		}
	}
}
