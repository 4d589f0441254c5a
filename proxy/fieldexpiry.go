package proxy

import (
	"math"
	"strconv"

	"cosky-proxy/proxy/resp"
)

// Since Redis 7.4 a field of a hash may expire by itself (HEXPIRE), and is not shown any more from that
// moment on. That is announced only when Redis comes round to removing it (t_hash.c), so who shows fields has to know
// when they end. A fetch asks in the same breath:
//
//   - fields that the read names: HPTTL of these;
//   - others: OBJECT ENCODING. A hash with a field that expires is never stored as a plain listpack. If it is
//     stored in another way, HPTTL of all of its fields follows.
//
// To give a field an expiry, or another one, is a change like any other: an invalidation between the read's
// reply and that of HPTTL voids the fetch.

// fields says which fields of a hash a read shows.
type fields uint8

const (
	noFields        fields = iota
	fieldsNamed            // those among its arguments
	fieldsAndValues        // all, with values
	fieldsAlone            // all
	valuesAlone            // all of their values
)

// fieldExpiry is what a fetch finds out about when the fields end that it shows.
type fieldExpiry struct {
	until   int64 // when the first of them does (mono nanoseconds); 0: none of them
	sentAt  int64 // when it was asked (mono)
	over    bool  // one has expired since the read
	unknown bool  // the backend does not say
}

// ends is when the first of them does, in mono nanoseconds.
func (x *fieldExpiry) ends() int64 {
	switch {
	case x.over:
		return 0
	case x.until == 0:
		return math.MaxInt64
	}
	return x.until
}

// fieldsExpire reports whether the node's hashes may have fields that expire by themselves.
func (n *node) fieldsExpire() bool {
	return n.loop.srv.abilities.Load().fieldsExpire && (n.info == nil || atLeast(n.info.Version, 7, 4))
}

// askOfFields asks what has to be known about fields besides the read itself.
func (f *fetch) askOfFields(l *loop) {
	if f.read.fields == noFields || !f.lane.node.fieldsExpire() {
		return
	}
	if f.read.fields == fieldsNamed {
		args := l.parse(f.raw)
		f.askExpiry(l, args[2:])
		return
	}
	l.enc = appendObjectEncoding(l.enc[:0], f.question.Key)
	f.send(l, fetchEncoding, l.enc, 0)
}

// askExpiry asks when these fields end.
func (f *fetch) askExpiry(l *loop, names [][]byte) {
	f.fields.sentAt = l.now()
	l.enc = resp.AppendArray(l.enc[:0], 4+len(names))
	l.enc = resp.AppendBulkString(l.enc, "HPTTL")
	l.enc = resp.AppendBulk(l.enc, f.question.Key)
	l.enc = resp.AppendBulkString(l.enc, "FIELDS")
	l.enc = resp.AppendBulkString(l.enc, strconv.Itoa(len(names)))
	for _, name := range names {
		l.enc = resp.AppendBulk(l.enc, name)
	}
	f.send(l, fetchExpiry, l.enc, 0)
}

// learnOfFields takes a reply about fields, and asks on as long as something is not known.
func (f *fetch) learnOfFields(l *loop, r *request, reply []byte) {
	switch r.index {
	case fetchEncoding:
		if lasts(reply) {
			return
		}
		if f.read.fields == valuesAlone {
			f.askNames(l)
			return
		}
		f.askExpiryOf(l, f.body)
	case fetchNames:
		// What has expired since the values were read is not among the names.
		_, values, _ := resp.ReadHeader(f.body)
		if _, names, _ := resp.ReadHeader(reply); names != values || r.overrun {
			f.fields.over = true
			return
		}
		f.askExpiryOf(l, reply)
	case fetchExpiry:
		f.learnExpiry(reply)
	}
}

// askNames asks for the names of all fields.
func (f *fetch) askNames(l *loop) {
	if f.lane.closed {
		f.failed = true
		return
	}
	l.enc = resp.AppendBulkString(resp.AppendArray(l.enc[:0], 2), "HKEYS")
	l.enc = resp.AppendBulk(l.enc, f.question.Key)
	f.send(l, fetchNames, l.enc, l.srv.opts.Cache.MaxEntry)
}

// askExpiryOf asks when the fields end that are in a reply.
func (f *fetch) askExpiryOf(l *loop, reply []byte) {
	names, ok := namesIn(reply, f.read.fields == fieldsAndValues)
	switch {
	case !ok, f.lane.closed:
		f.failed = true
	case len(names) > 0:
		f.askExpiry(l, names)
	}
}

// namesIn lists the fields in a reply of HKEYS or, paired with values, HGETALL.
func namesIn(reply []byte, paired bool) (names [][]byte, ok bool) {
	kind, n, size := resp.ReadHeader(reply)
	if kind == '%' {
		n *= 2
	}
	reply = reply[size:]
	for i := range n {
		name, size := resp.ReadBulk(reply)
		if size == 0 {
			return nil, false
		}
		reply = reply[size:]
		if !paired || i%2 == 0 {
			names = append(names, name)
		}
	}
	return names, true
}

// learnExpiry notes when the first field ends. -1 has no end; -2 is not there, which was so before if the read did not
// show it either.
func (f *fetch) learnExpiry(reply []byte) {
	kind, n, size := resp.ReadHeader(reply)
	if kind != '*' || size == 0 { // unless the connection is lost, it will say the same next time
		f.failed, f.fields.unknown = true, !f.lane.closed
		return
	}
	x, rest := &f.fields, reply[size:]
	shown := f.shown()
	for ; n > 0; n-- {
		_, ms, size := resp.ReadHeader(rest)
		rest = rest[size:]
		shows := shown()
		switch {
		case ms >= 0:
			if end := endOf(x.sentAt, ms); x.until == 0 || end < x.until {
				x.until = end
			}
		case ms == -2 && shows:
			x.over = true
		}
	}
}

// shown returns a function that tells of one field after the other whether the read showed it.
func (f *fetch) shown() func() bool {
	if f.read.absent != absentEach {
		shows := f.read.fields != fieldsNamed || !f.read.showsAbsence(f.body)
		return func() bool { return shows }
	}
	_, _, size := resp.ReadHeader(f.body)
	rest := f.body[size:]
	return func() bool {
		value, size := resp.ReadBulk(rest)
		rest = rest[size:]
		return value != nil
	}
}

// appendObjectEncoding asks how a hash is stored. Fields that expire by themselves do so without an
// invalidation, but a hash that has any is never stored as a plain listpack (Redis: t_hash.c), and
// the command that gives a field an expiry is a change as any other.
func appendObjectEncoding(b []byte, key []byte) []byte {
	b = resp.AppendBulkString(resp.AppendArray(b, 3), "OBJECT")
	return resp.AppendBulk(resp.AppendBulkString(b, "ENCODING"), key)
}

// lasts reports whether a reply to that proves that no field expires by itself. A key that is not
// there has none.
func lasts(encoding []byte) bool {
	return string(encoding) == "$8\r\nlistpack\r\n" || isNull(encoding)
}
