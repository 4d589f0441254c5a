package discovery

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"cosky-proxy/cluster"
)

func TestParseBackend(t *testing.T) {
	tests := []struct {
		url    string
		want   Backend
		prints string
	}{
		{"embedded:", Backend{Mode: cluster.Embedded}, "embedded:"},
		{"redis://h", Backend{Mode: cluster.Standalone, Seeds: []string{"h:6379"}}, "redis://h:6379"},
		{"redis://h:1/", Backend{Mode: cluster.Standalone, Seeds: []string{"h:1"}}, "redis://h:1"},
		{"redis://:p@h:1/15", Backend{Mode: cluster.Standalone, Seeds: []string{"h:1"}, Password: "p", DB: 15}, "redis://:***@h:1/15"},
		{"redis://u:p%40%3a%2f%3F@[::1]/2", Backend{Mode: cluster.Standalone, Seeds: []string{"[::1]:6379"}, User: "u", Password: "p@:/?", DB: 2}, "redis://u:***@[::1]:6379/2"},
		{"redis://u:a:b/c@d@h:1", Backend{Mode: cluster.Standalone, Seeds: []string{"h:1"}, User: "u", Password: "a:b/c@d"}, "redis://u:***@h:1"},
		{"redis-cluster://a,b:7001,[fe80::1]:7002", Backend{Mode: cluster.Cluster, Seeds: []string{"a:6379", "b:7001", "[fe80::1]:7002"}}, "redis-cluster://a:6379,b:7001,[fe80::1]:7002"},
		{"redis-cluster://:s@a/0", Backend{Mode: cluster.Cluster, Seeds: []string{"a:6379"}, Password: "s"}, "redis-cluster://:***@a:6379"},
		{"redis-sentinel://a,b:1/mymaster", Backend{Mode: cluster.Sentinel, Seeds: []string{"a:26379", "b:1"}, MasterName: "mymaster"}, "redis-sentinel://a:26379,b:1/mymaster"},
		{"redis-sentinel://u:p@a/m%20x/3?sentinel_user=s&sentinel_password=q%26", Backend{
			Mode: cluster.Sentinel, Seeds: []string{"a:26379"}, MasterName: "m x", DB: 3,
			User: "u", Password: "p", SentinelUser: "s", SentinelPassword: "q&",
		}, "redis-sentinel://u:***@a:26379/m%20x/3"},
	}
	for _, tt := range tests {
		got, err := ParseBackend(tt.url)
		if err != nil {
			t.Errorf("ParseBackend(%q): %v", tt.url, err)
			continue
		}
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("ParseBackend(%q) = %#v, want %#v", tt.url, got, tt.want)
		}
		if got.String() != tt.prints {
			t.Errorf("ParseBackend(%q) prints as %q, want %q", tt.url, got, tt.prints)
		}
	}
}

func TestParseBackendRejects(t *testing.T) {
	tests := []struct{ url, want string }{
		{"", "no scheme"},
		{"localhost", "no scheme"},
		{"http://h", `unknown scheme "http"`},
		{"rediss://h", "TLS to the backend is not supported yet"},
		{"rediss-cluster://h", "TLS to the backend is not supported yet"},
		{"rediss-sentinel://h/m", "TLS to the backend is not supported yet"},
		{"embedded:x", "nothing may follow"},
		{"redis:h", "lacks //"},
		{"redis://", "a host is empty"},
		{"redis://a,b", "several hosts"},
		{"redis://h:0", `port of host "h"`},
		{"redis://h:99999", `port of host "h"`},
		{"redis://h:x", `port of host "h"`},
		{"redis://:6379", "without a host"},
		{"redis://::1", `begins with ""`},
		{"redis://fe80::1", `begins with "fe80"`},
		{"redis://h/x", `database "x"`},
		{"redis://h/-1", `database "-1"`},
		{"redis://u@h", "user without a password"},
		{"redis://u:%zz-secret@h", "password is not valid"},
		{"redis://%zz:secret@h", "user is not valid"},
		{"redis://h?x=1", `unknown parameter "x"`},
		{"redis-cluster://h/1", "only database 0"},
		{"redis-cluster://h,,i", "a host is empty"},
		{"redis-sentinel://h", "name is missing"},
		{"redis-sentinel://h/m/x", `database "x"`},
		{"redis-sentinel://h/m?sentinel_pass=secret", `unknown parameter "sentinel_pass"`},
	}
	for _, tt := range tests {
		_, err := ParseBackend(tt.url)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("ParseBackend(%q): error %v, want one about %q", tt.url, err, tt.want)
			continue
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("ParseBackend(%q) tells the password: %v", tt.url, err)
		}
	}
}

func TestBackendNeverPrintsPasswords(t *testing.T) {
	b := Backend{Mode: cluster.Sentinel, Seeds: []string{"h:1"}, MasterName: "m", User: "u", Password: "secret", SentinelUser: "v", SentinelPassword: "secret"}
	js, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{fmt.Sprint(b), fmt.Sprintf("%+v", b), fmt.Sprintf("%#v", b), fmt.Sprintf("%s", &b), string(js)} {
		if strings.Contains(s, "secret") {
			t.Errorf("the backend prints as %s", s)
		}
	}
}

func FuzzParseBackend(f *testing.F) {
	for _, seed := range []string{"embedded:", "redis://u:p@h:1/2", "redis-cluster://a,[::1]:2", "redis-sentinel://a/m/1?sentinel_user=x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := ParseBackend(s)
		if err != nil || b.Mode == cluster.Embedded {
			return
		}
		if len(b.Seeds) == 0 || b.DB < 0 || b.DB != 0 && b.Mode == cluster.Cluster {
			t.Errorf("ParseBackend(%q) = %#v", s, b)
		}
		if b.Password != "" {
			return
		}
		again, err := ParseBackend(b.String())
		if err != nil || !reflect.DeepEqual(again.Seeds, b.Seeds) || again.MasterName != b.MasterName || again.DB != b.DB {
			t.Errorf("ParseBackend(%q) = %#v prints as %q, which parses to %#v, %v", s, b, b.String(), again, err)
		}
	})
}
