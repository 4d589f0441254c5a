// Package conf is the configuration: one typed [Config], its defaults, and the
// three ways to change them.
//
// Every option has one key, such as nearcache.max_bytes, declared once in
// table.go. The key is the path in the YAML file; the flag and the environment
// variable are derived from it:
//
//	file         nearcache:
//	               max_bytes: 64MB
//	environment  COSKY_PROXY_NEARCACHE_MAX_BYTES=64MB
//	flag         --nearcache.max-bytes 64MB
//
// Precedence: default, file, environment, flag; the last one that names a key
// wins. All of them hand plain text to the same parser, so a value means the same
// and is refused with the same words wherever it stands. A refusal is one line: the
// value, where it came from, why not, and what is allowed. Unknown keys, flags and
// COSKY_PROXY_ variables are refused too.
//
// The file conf/cosky-proxy.yaml documents every key; a test holds it equal to
// [Default].
package conf
