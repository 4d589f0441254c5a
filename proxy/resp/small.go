package resp

// A small request has up to so many arguments of up to so many bytes each.
const (
	smallArgs = 9    // one digit
	smallBulk = 9999 // four digits
)

// takeSmall reads the request at the start of b if it is a small multibulk one that has arrived whole
// and is written as every client writes it. 0 says nothing: whatever is missing, large or
// wrong is for the Parser to find out, which looks again, and keeps its progress.
func (r *Request) takeSmall(b []byte, lim *Limits) (n int) {
	if len(b) < 4 || b[0] != '*' || b[2] != '\r' || cap(r.args) > maxKeptArgs || cap(r.scratch) > maxKeptScratch {
		return 0
	}
	count := int(b[1] - '0')
	if count < 1 || count > smallArgs || !lim.allowSmall() {
		return 0
	}
	old, args, pos := len(r.args), r.args[:0], 4
	for range count {
		start, length := smallBulkAt(b, pos)
		end := start + length
		if start == 0 || end+2 > len(b) {
			r.args = args[:max(old, len(args))] // reset drops what they refer to
			return 0
		}
		args = append(args, b[start:end:end])
		pos = end + 2
	}
	if old > count {
		clear(args[count:old])
	}
	r.args, r.scratch, r.Inline = args, r.scratch[:0], false
	r.deliver(b[:pos])
	return pos
}

// smallBulkAt reads the header line of a bulk at pos: where its body begins, and how long that is.
// start is 0 when there is no such line.
func smallBulkAt(b []byte, pos int) (start, length int) {
	if pos+4 > len(b) || b[pos] != '$' {
		return 0, 0
	}
	length = int(b[pos+1] - '0')
	if length > 9 {
		return 0, 0
	}
	for i := pos + 2; i < len(b)-1; i++ {
		d := int(b[i] - '0')
		switch {
		case b[i] == '\r':
			return i + 2, length
		case d > 9, length == 0, length > smallBulk/10:
			return 0, 0
		}
		length = length*10 + d
	}
	return 0, 0
}

// allowSmall reports whether the limits allow every small request.
func (l *Limits) allowSmall() bool {
	return l == nil || (l.MaxArgs == 0 || l.MaxArgs >= smallArgs) && (l.MaxBulk == 0 || l.MaxBulk >= smallBulk)
}
