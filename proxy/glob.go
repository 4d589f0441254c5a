package proxy

import "cosky-proxy/proxy/glob"

// globMatch reports whether name matches a pattern of Redis'.
func globMatch(pattern, name string) bool { return glob.Match(pattern, name) }

// globCanStart reports whether the pattern can match something that starts with prefix.
func globCanStart(pattern, prefix string) bool { return glob.CanStart(pattern, prefix) }
