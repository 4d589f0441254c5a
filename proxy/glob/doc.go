// Package glob matches names with the glob-style patterns of Redis, with which KEYS,
// PSUBSCRIBE and the rules of users are written.
package glob
