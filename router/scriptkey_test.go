package router

import (
	"testing"

	"cosky-proxy/router/command"
)

func TestKeyOfScript(t *testing.T) {
	for _, tt := range []struct{ script, want string }{
		{"return 1", ""},
		{"return redis.call('get', 'foo')", "foo"},
		{`return redis.pcall("GET","foo")`, "foo"},
		{"redis.call('ping') redis.call( 'set' , ARGV[2], 1)", "second"},
		{"redis.call('publish', 'channel', 'm') redis.call('hget', 'h', 'f')", "h"},
		{"redis.call('get', 'user:' .. ARGV[1]) redis.call('get', ARGV[1]..'x')", ""},
		{"redis.call('get', ARGV[9])", ""},
		{"redis.call('get', KEYS[1])", ""},
		{"redis.call('get', 'a\\'b')", ""},
		{"redis.call('nosuch', 'a') redis.call('object', 'encoding', 'k')", ""},
		{"myredis.call('get', 'a')", ""},
		{"server.call('get', '')", ""},
	} {
		key := KeyOfScript([]byte(tt.script), command.LookupFull)
		if got := string(key.Of([][]byte{[]byte("first"), []byte("second")})); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.script, got, tt.want)
		}
	}
}
