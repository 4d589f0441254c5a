package resp

// nextInline is Next for a request that does not start with '*'.
func (p *Parser) nextInline(buf []byte, lim *Limits, req *Request) (n int, err error) {
	end, err := p.find('\n', buf, lim, errLongInline)
	if end < 0 {
		return 0, err
	}
	*p = Parser{}
	line := buf[:end]
	if end > 0 && line[end-1] == '\r' {
		line = line[:end-1]
	}
	if !req.split(line) {
		return 0, errQuotes
	}
	req.deliver(buf[:end+1])
	req.Inline = true
	return end + 1, nil
}

// split collects the arguments of an inline command, by the rules of Redis'
// sdssplitargs. It reports false when a quote is not closed, or is closed in the
// middle of a word. Plain words alias line; words with quotes go to scratch.
func (r *Request) split(line []byte) bool {
	for i := 0; ; {
		for i < len(line) && isSpace(line[i]) {
			i++
		}
		if i == len(line) {
			return true
		}
		start := i
		for i < len(line) && !endsWord(line[i]) && line[i] != '"' && line[i] != '\'' {
			i++
		}
		if i == len(line) || endsWord(line[i]) {
			r.args = append(r.args, line[start:i:i])
			continue
		}
		from := len(r.scratch)
		r.scratch = append(r.scratch, line[start:i]...)
		size := r.unquote(line[i:])
		if size == 0 {
			return false
		}
		i += size
		if i < len(line) && !isSpace(line[i]) {
			return false
		}
		to := len(r.scratch)
		r.args = append(r.args, r.scratch[from:to:to])
	}
}

// unquote appends the content of the quoted text at the start of b to scratch and
// returns its length, both quotes included; 0 if it is not closed.
func (r *Request) unquote(b []byte) (size int) {
	quote := b[0]
	for i := 1; i < len(b); i++ {
		c := b[i]
		switch {
		case c == quote:
			return i + 1
		case c != '\\' || i+1 == len(b):
		case quote == '\'':
			if b[i+1] == '\'' {
				c = '\''
				i++
			}
		case i+3 < len(b) && b[i+1] == 'x' && isHex(b[i+2]) && isHex(b[i+3]):
			c = unhex(b[i+2])<<4 | unhex(b[i+3])
			i += 3
		default:
			i++
			c = unescape(b[i])
		}
		r.scratch = append(r.scratch, c)
	}
	return 0
}

// isSpace is C's isspace in the POSIX locale.
func isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

// endsWord is narrower than isSpace: Redis keeps \v and \f inside a word.
func endsWord(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func isHex(c byte) bool {
	return c-'0' <= 9 || c|0x20 >= 'a' && c|0x20 <= 'f'
}

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

func unescape(c byte) byte {
	switch c {
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	case 'b':
		return '\b'
	case 'a':
		return '\a'
	}
	return c
}
