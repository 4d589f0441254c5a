// Package lua holds the scripts of CoSky: the project's own texts, written to the
// behaviour of release 5.8, the digests of the texts that CoSky's releases send, and
// for each script what a call may read and write.
//
//	s := lua.BySHA(sha)        // nil: not a script of CoSky
//	s.Effect(keys, args, &e)   // what this call may touch
//	for _, k := range e.Writes { … }
//
// CoSky's scripts take the bare namespace as KEYS[1] and derive the keys they use from
// it and the arguments, so a proxy cannot see from a call what it touches. Effect is that
// knowledge, in the terms of package coskey: exact keys, and groups where the key
// depends on data (the version a config had, the members of a service). It is a
// superset: for all releases from 3.0 on, for any arguments, for calls that fail half-way.
//
// The texts need Redis 5 or newer and keys that are not declared: in a cluster all keys
// of a namespace must share its hash tag, as CoSky requires anyway.
package lua
