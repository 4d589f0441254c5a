package nearcache

import (
	"bytes"

	"github.com/cespare/xxhash/v2"
)

// Kind is a command whose replies are kept. The cache only tells kinds apart; its user
// numbers them.
type Kind uint16

// Question is what was asked of a database: with the database it is the identity of
// an entry. Make one with Cache.Ask.
//
// A question without Rest asks for the whole value of its key, as GET and HGETALL
// do. Since a key has one type, such questions about it do not get into each other's way,
// and their entry has its place in the key's own stripe. Any other question has a
// place of its own, so that a thousand fields of one hash can be cached as well.
type Question struct {
	Key  []byte // whose changes void the reply
	Rest []byte // what else was asked (AppendRest); empty: the key's whole value
	DB   int32
	Kind Kind

	hash uint64 // of Key
	id   uint64 // of everything: where to look
}

// Ask returns a question, which aliases key and rest.
func (c *Cache) Ask(db int32, kind Kind, key, rest []byte) Question {
	q := Question{Key: key, Rest: rest, DB: db, Kind: kind}
	q.identify(c)
	return q
}

// identify is apart from Ask so that Ask is inlined: the question is then made where its caller
// wants it, not copied there.
func (q *Question) identify(c *Cache) {
	q.hash = c.Hash(q.Key)
	q.id = q.hash ^ (uint64(q.DB)<<16|uint64(q.Kind))*0x9e3779b97f4a7c15
	if len(q.Rest) > 0 {
		q.id = (q.id ^ xxhash.Sum64(q.Rest)) * 0xff51afd7ed558ccd
	}
}

// Hash is the hash of the question's key.
func (q *Question) Hash() uint64 { return q.hash }

// Same reports whether both ask the same.
func (q *Question) Same(o *Question) bool {
	return q.id == o.id && q.Kind == o.Kind && q.DB == o.DB && string(q.Key) == string(o.Key) && string(q.Rest) == string(o.Rest)
}

// Clone returns the question with bytes of its own.
func (q *Question) Clone() Question {
	o := *q
	b := append(append(make([]byte, 0, len(q.Key)+len(q.Rest)), q.Key...), q.Rest...)
	o.Key, o.Rest = b[:len(q.Key):len(q.Key)], b[len(q.Key):]
	return o
}

// AppendRest appends what the arguments behind the key add to a question about a part
// of it, such that different arguments differ. It is never empty, even without arguments.
func AppendRest(dst []byte, args [][]byte) []byte {
	dst = appendLength(dst, len(args))
	for _, a := range args {
		dst = append(appendLength(dst, len(a)), a...)
	}
	return dst
}

// appendLength appends n in groups of seven bits, the last one marked.
func appendLength(dst []byte, n int) []byte {
	for n >= 1<<7 {
		dst = append(dst, byte(n&(1<<7-1)))
		n >>= 7
	}
	return append(dst, byte(n)|1<<7)
}

// home is the stripe whose directory has the question's place.
func (c *Cache) home(q *Question) Stripe {
	if len(q.Rest) == 0 {
		return c.StripeOf(q.hash)
	}
	return c.StripeOf(q.id)
}

// restArgs returns the arguments that AppendRest was given.
func restArgs(rest []byte) (args [][]byte) {
	if len(rest) == 0 {
		return nil
	}
	count, rest := readLength(rest)
	for range count {
		var n int
		n, rest = readLength(rest)
		args = append(args, bytes.Clone(rest[:n]))
		rest = rest[n:]
	}
	return args
}

func readLength(b []byte) (n int, rest []byte) {
	for i, c := range b {
		n |= int(c&(1<<7-1)) << (7 * i)
		if c>>7 != 0 {
			return n, b[i+1:]
		}
	}
	panic("BUG: nearcache: a question that nobody has made")
}
