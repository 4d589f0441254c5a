package acl

// Match reports whether s matches the glob-style pattern, with every detail of Redis'
// stringmatchlen (util.c): an empty s is matched by an empty pattern only, and a class
// without its end reaches to the end of the pattern.
func Match(pattern string, s []byte) bool {
	if len(s) == 0 {
		return pattern == ""
	}
	p, i := 0, 0
	star, from := -1, 0 // where to go on after a mismatch: behind the last '*', and in s
	for i < len(s) {
		if p < len(pattern) && pattern[p] == '*' {
			for p < len(pattern) && pattern[p] == '*' {
				p++
			}
			if p == len(pattern) {
				return true
			}
			star, from = p, i
			continue
		}
		if next, ok := matchOne(pattern, p, s[i]); ok {
			p, i = next, i+1
			continue
		}
		if star < 0 {
			return false
		}
		from++
		p, i = star, from
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// matchOne matches c with the element of the pattern at p, and returns where the next
// element begins.
func matchOne(pattern string, p int, c byte) (next int, ok bool) {
	if p >= len(pattern) {
		return p, false
	}
	switch pattern[p] {
	case '?':
		return p + 1, true
	case '[':
		return matchClass(pattern, p+1, c)
	case '\\':
		if p+1 < len(pattern) {
			p++
		}
	}
	return p + 1, pattern[p] == c
}

// matchClass matches c with a class whose '[' stands before p.
func matchClass(pattern string, p int, c byte) (next int, ok bool) {
	negated := p < len(pattern) && pattern[p] == '^'
	if negated {
		p++
	}
	found := false
	for ; p < len(pattern) && pattern[p] != ']'; p++ {
		switch {
		case pattern[p] == '\\' && p+1 < len(pattern):
			p++
			found = found || pattern[p] == c
		case p+2 < len(pattern) && pattern[p+1] == '-':
			low, high := pattern[p], pattern[p+2]
			if low > high {
				low, high = high, low
			}
			p += 2
			found = found || low <= c && c <= high
		default:
			found = found || pattern[p] == c
		}
	}
	return min(p+1, len(pattern)), found != negated
}
