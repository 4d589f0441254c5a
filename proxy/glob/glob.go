package glob

// Match reports whether name matches a pattern of Redis' (util.c: stringmatchlen):
// * any bytes, ? one byte, [a-z] one of a class, [^a-z] one not of it, \x just x.
func Match[T string | []byte](pattern string, name T) bool {
	if len(name) == 0 {
		return pattern == "" // not even a star matches it there
	}
	retry, from := -1, 0 // where to go on when the last star takes one byte more
	p, n := 0, 0
	for n < len(name) {
		if p < len(pattern) && pattern[p] == '*' {
			p++
			retry, from = p, n
			continue
		}
		if p < len(pattern) {
			if size, ok := matchOne(pattern[p:], name[n]); ok {
				p += size
				n++
				continue
			}
		}
		if retry < 0 {
			return false
		}
		from++
		p, n = retry, from
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// CanStart reports whether the pattern can match something that starts with prefix.
func CanStart(pattern, prefix string) bool {
	p := 0
	for i := range len(prefix) {
		if p == len(pattern) {
			return false
		}
		if pattern[p] == '*' {
			return true
		}
		size, ok := matchOne(pattern[p:], prefix[i])
		if !ok {
			return false
		}
		p += size
	}
	return true
}

// matchOne matches c with the element at the start of pattern, which is size long and
// not a star.
func matchOne(pattern string, c byte) (size int, ok bool) {
	switch {
	case pattern[0] == '?':
		return 1, true
	case pattern[0] == '[':
		return matchClass(pattern, c)
	case pattern[0] == '\\' && len(pattern) > 1:
		return 2, pattern[1] == c
	}
	return 1, pattern[0] == c
}

// matchClass matches c with a class. One that is not closed ends with the pattern.
func matchClass(pattern string, c byte) (size int, ok bool) {
	i := 1
	negated := i < len(pattern) && pattern[i] == '^'
	if negated {
		i++
	}
	for i < len(pattern) && pattern[i] != ']' {
		switch {
		case pattern[i] == '\\' && i+1 < len(pattern):
			i++
			ok = ok || pattern[i] == c
			i++
		case i+2 < len(pattern) && pattern[i+1] == '-':
			low, high := min(pattern[i], pattern[i+2]), max(pattern[i], pattern[i+2])
			ok = ok || low <= c && c <= high
			i += 3
		default:
			ok = ok || pattern[i] == c
			i++
		}
	}
	return min(i+1, len(pattern)), ok != negated
}
