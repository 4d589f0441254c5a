package resp

import "bytes"

// A Request that grew beyond these gives its memory back at the next call, so
// that one giant command does not weigh on the process for ever.
const (
	maxKeptArgs    = 64 << 10 // arguments
	maxKeptScratch = 1 << 20  // bytes
)

// Request is one complete command. Its slices alias the buffer given to
// [Parser.Next] and the Request's own scratch memory: they die at the next call
// that is given this Request. One Request may serve any number of Parsers.
type Request struct {
	// Args are the command name and its arguments; empty for what Redis consumes
	// without an answer (an empty line, a count of zero or less).
	Args [][]byte
	// Raw is the request exactly as received.
	Raw []byte
	// Inline: the request came as a plain line. What is forwarded is
	// AppendCommandBytes of Args, never Raw.
	Inline bool

	args    [][]byte // memory behind Args
	scratch []byte   // unescaped inline arguments
}

// reset drops the previous command, and every reference to its buffer.
func (r *Request) reset() {
	clear(r.args)
	r.args = r.args[:0]
	if cap(r.args) > maxKeptArgs {
		r.args = nil
	}
	r.scratch = r.scratch[:0]
	if cap(r.scratch) > maxKeptScratch {
		r.scratch = nil
	}
	r.Args, r.Raw, r.Inline = nil, nil, false
}

// deliver publishes the collected arguments of the request that is raw.
func (r *Request) deliver(raw []byte) {
	r.Args, r.Raw = r.args, raw[:len(raw):len(raw)]
}

// collect fills args with the first n arguments of the multibulk request at the
// start of b, all of which have been parsed before: every header is a short one.
func (r *Request) collect(b []byte, n int32) {
	r.args = r.args[:0]
	_, pos := shortHeader(b)
	for range n {
		length, size := shortHeader(b[pos:])
		pos += size
		end := pos + int(length)
		r.args = append(r.args, b[pos:end:end])
		pos = end + 2
	}
}

// phase says what the next byte of a multibulk request is part of.
type phase uint8

const (
	inHeader phase = iota
	inBody
	afterCR // Skim only: the byte to skip after the \r of a header line
)

// Parser follows one client's request stream. The zero value is at the start of
// a request. It keeps its progress through an incomplete request as offsets, not
// bytes, so however the stream is cut no byte is looked at more than twice: once
// on arrival, once more in the headers to collect the arguments. (The headers of a small
// request's beginning are looked at once more, see takeSmall.)
type Parser struct {
	pos     int   // offset of the header line or body that is incomplete
	scanned int   // offset up to which the end of that line was searched; Skim: bytes of the line so far
	bulk    int64 // inBody: length of the body; Skim: its bytes to come, the final two included
	total   int32 // argument count, 0 while unknown
	left    int32 // arguments to come, the current one included

	phase   phase
	endless bool                // a NUL byte hides the end of the current line (see the package doc)
	held    [maxNumber + 1]byte // Skim: first bytes of the current header line; a longer one holds no number
}

// Next looks at buf, which starts where the last complete request ended.
//
// If n > 0 a complete request is buf[:n] and req holds it. If n == 0 and err is
// nil the request is incomplete: call again with the same bytes, wherever they
// are now, plus more. err is a *[ProtocolError]; the stream cannot be followed
// any further. Whatever req held before is gone in all three cases.
func (p *Parser) Next(buf []byte, lim *Limits, req *Request) (n int, err error) {
	if p.total == 0 {
		if n = req.takeSmall(buf, lim); n > 0 {
			if p.scanned > 0 { // its first line arrived in pieces
				*p = Parser{}
			}
			return n, nil
		}
	}
	req.reset()
	if len(buf) == 0 {
		return 0, nil
	}
	if buf[0] != '*' {
		return p.nextInline(buf, lim, req)
	}
	resumed := p.total != 0
	if !resumed {
		if more, err := p.readCount(buf, lim); more || err != nil {
			return 0, err
		}
	}
	for p.left > 0 {
		if p.phase == inHeader {
			if more, err := p.readBulk(buf, lim); more || err != nil {
				return 0, err
			}
		}
		if int64(len(buf)-p.pos)-2 < p.bulk {
			return 0, nil
		}
		end := p.pos + int(p.bulk)
		if !resumed {
			req.args = append(req.args, buf[p.pos:end:end])
		}
		p.pos, p.phase = end+2, inHeader
		p.left--
	}
	if resumed {
		req.collect(buf, p.total)
	}
	n = p.pos
	*p = Parser{}
	req.deliver(buf[:n])
	return n, nil
}

// readCount consumes the count line at the start of buf. more: it is incomplete.
func (p *Parser) readCount(buf []byte, lim *Limits) (more bool, err error) {
	n, size := shortHeader(buf)
	ok := true
	if size == 0 {
		end, err := p.findCR(buf, lim, errLongArgs)
		if end < 0 {
			return true, err
		}
		n, ok = parseInt(buf[1:end])
		size = end + 2
	}
	p.pos = size
	return false, p.setCount(n, ok, lim)
}

// readBulk consumes the length line at p.pos. more: it is incomplete.
func (p *Parser) readBulk(buf []byte, lim *Limits) (more bool, err error) {
	line := buf[p.pos:]
	n, size := shortHeader(line)
	ok := true
	if size == 0 {
		end, err := p.findCR(buf, lim, errLongBulk)
		if end < 0 {
			return true, err
		}
		size = end + 2 - p.pos
		n, ok = parseInt(line[min(1, size-2) : size-2])
	}
	p.pos += size
	return false, p.setBulk(line[0], n, ok, lim)
}

// setCount starts the arguments, or ends the request if there are none.
func (p *Parser) setCount(n int64, ok bool, lim *Limits) error {
	if err := lim.checkArgs(n, ok); err != nil {
		return err
	}
	p.scanned = 0
	p.total = int32(max(n, 0))
	p.left = p.total
	return nil
}

// setBulk starts the body announced by a line whose first byte is kind.
func (p *Parser) setBulk(kind byte, n int64, ok bool, lim *Limits) error {
	if kind != '$' {
		return errNoBulk(kind)
	}
	if err := lim.checkBulk(n, ok); err != nil {
		return err
	}
	p.scanned = 0
	p.bulk, p.phase = n, inBody
	return nil
}

// findCR returns the offset in buf of the \r that ends the header line at p.pos,
// or -1 if the line or the byte after it has not arrived.
func (p *Parser) findCR(buf []byte, lim *Limits, tooLong error) (int, error) {
	end, err := p.find('\r', buf, lim, tooLong)
	if end == len(buf)-1 {
		p.scanned = end
		return -1, nil
	}
	return end, err
}

// find returns the offset in buf of the first delim at or after p.pos, or -1. It
// looks only at bytes no earlier call has seen.
func (p *Parser) find(delim byte, buf []byte, lim *Limits, tooLong error) (int, error) {
	longest := lim.maxInline()
	if !p.endless {
		from := max(p.pos, p.scanned)
		fresh := buf[from:min(len(buf), p.pos+longest+1)]
		end := bytes.IndexByte(fresh, delim)
		if end >= 0 {
			fresh = fresh[:end]
		}
		p.endless = bytes.IndexByte(fresh, 0) >= 0
		if end >= 0 && !p.endless {
			return from + end, nil
		}
		p.scanned = from + len(fresh)
	}
	if len(buf)-p.pos > longest {
		return -1, tooLong
	}
	return -1, nil
}

// Partial fills req.Args with the arguments that are complete in buf, after Next
// returned 0 for the same buf. declared is the argument count the client
// announced; 0 if the request is inline or its count is not known yet. It serves
// to route a huge request before it has fully arrived.
func (p *Parser) Partial(buf []byte, req *Request) (declared int) {
	req.reset()
	if p.total == 0 {
		return 0
	}
	req.collect(buf, p.total-p.left)
	req.Args = req.args
	return int(p.total)
}

// Least returns how long the request will at least be for which Next returned 0, as far as
// its headers tell.
func (p *Parser) Least() int64 {
	if p.phase != inBody {
		return int64(p.pos)
	}
	return int64(p.pos) + p.bulk + 2
}

// BeginSkim switches to streaming through the rest of the current multibulk
// request, for which Next has just returned 0 given buf: all of buf belongs to
// it and may be forgotten. Skim takes what follows.
func (p *Parser) BeginSkim(buf []byte) {
	if len(buf) == 0 || buf[0] != '*' {
		panic("BUG: skimming something other than a multibulk request")
	}
	rest := buf[p.pos:]
	p.pos, p.scanned = 0, 0
	if p.phase == inBody {
		p.bulk += 2 - int64(len(rest))
		return
	}
	if n := len(rest); n > 0 && rest[n-1] == '\r' && !p.endless {
		p.phase = afterCR
		rest = rest[:n-1]
	}
	copy(p.held[:], rest)
	p.scanned = len(rest)
}

// Skim consumes the next bytes of the request without keeping any. n bytes of
// chunk belong to it; done means that it ended there and that the Parser is ready
// for Next. Otherwise n == len(chunk). err is as in Next.
func (p *Parser) Skim(chunk []byte, lim *Limits) (n int, done bool, err error) {
	for n < len(chunk) {
		if p.phase != inBody {
			size, err := p.skimHeader(chunk[n:], lim)
			n += size
			if err != nil {
				return n, false, err
			}
			if p.total == 0 && p.scanned == 0 { // the count was zero or less
				*p = Parser{}
				return n, true, nil
			}
			continue
		}
		size := min(p.bulk, int64(len(chunk)-n))
		n += int(size)
		p.bulk -= size
		if p.bulk > 0 {
			break
		}
		p.phase = inHeader
		p.left--
		if p.left == 0 {
			*p = Parser{}
			return n, true, nil
		}
	}
	return n, false, nil
}

// skimHeader consumes bytes of a header line and, if it ends in b, acts on it.
func (p *Parser) skimHeader(b []byte, lim *Limits) (size int, err error) {
	if p.scanned == 0 && p.phase == inHeader {
		if n, size := shortHeader(b); size > 0 {
			return size, p.skimLine(b[0], n, true, lim)
		}
	}
	for i, c := range b {
		switch {
		case p.phase == afterCR:
			return i + 1, p.skimHeld(lim)
		case c == '\r' && !p.endless:
			p.phase = afterCR
		default:
			if p.scanned < len(p.held) {
				p.held[p.scanned] = c
			}
			p.endless = p.endless || c == 0
			p.scanned++
			if p.scanned > lim.maxInline() {
				return i + 1, p.errLongLine()
			}
		}
	}
	return len(b), nil
}

// skimHeld acts on the header line that was gathered in held.
func (p *Parser) skimHeld(lim *Limits) error {
	kind := byte('\r') // what stands at the start of an empty line
	var n int64
	var ok bool
	if p.scanned > 0 {
		kind = p.held[0]
	}
	if p.scanned > 0 && p.scanned <= len(p.held) {
		n, ok = parseInt(p.held[1:p.scanned])
	}
	return p.skimLine(kind, n, ok, lim)
}

// skimLine acts on a complete header line of the skimmed request.
func (p *Parser) skimLine(kind byte, n int64, ok bool, lim *Limits) error {
	p.phase = inHeader
	if p.total == 0 {
		return p.setCount(n, ok, lim)
	}
	if err := p.setBulk(kind, n, ok, lim); err != nil {
		return err
	}
	p.bulk += 2
	return nil
}

func (p *Parser) errLongLine() error {
	if p.total == 0 {
		return errLongArgs
	}
	return errLongBulk
}
