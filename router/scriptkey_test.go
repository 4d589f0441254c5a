package router

import (
	"testing"

	"cosky-proxy/router/command"
)

func TestOnlyFunction(t *testing.T) {
	for library, want := range map[string]string{
		"#!lua name=l\nredis.register_function('f', function() end)":                                         "f",
		"#!lua name=l\nredis.register_function{function_name=\"f\", callback=f}":                             "f",
		"#!lua name=l\nredis.register_function('f', f) redis.register_function('g', g)":                      "",
		"#!lua name=l\nlocal function f() end\nredis.register_function { function_name = 'f', callback = f}": "f",
		"#!lua name=l\n": "",
	} {
		if got := string(OnlyFunction([]byte(library))); got != want {
			t.Errorf("%s: got %q, want %q", library, got, want)
		}
	}
}

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
		{"#!lua name=l\nredis.register_function('f', function(keys, args) return redis.call('get', args[1]) end)", "first"},
	} {
		key := KeyOfScript([]byte(tt.script), command.LookupFull)
		if got := string(key.Of([][]byte{[]byte("first"), []byte("second")})); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.script, got, tt.want)
		}
	}
}
