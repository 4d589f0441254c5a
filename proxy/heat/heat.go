// Package heat finds the keys that are read most, in fixed memory.
//
// Every event loop owns one [Sketch] and shows it each read: one in a few is counted. The
// sketch is a set-associative version of Space-Saving: a key's hash says which set of ways may
// count it, and a key that has no way yet takes over the one that has counted least, with that
// count as its possible error. So a count is never too low by more than the sampling makes it,
// and count minus error never too high: that is what is shown. Of S sampled reads every
// key that has more than about S/1024 keeps a way.
//
// Counts fade: they are halved at each interval, and the time they stand for with
// them. What is shown is a rate over about the last two intervals.
package heat

import (
	"cmp"
	"hash/maphash"
	"slices"
)

// MaxKey is the longest key in bytes that is counted. It bounds the memory: a Sketch takes
// about 290 KiB.
const MaxKey = 256

const (
	sets = 128
	ways = 8
)

// Sketch counts the reads of one event loop, which alone may use it.
type Sketch struct {
	// static
	seed     maphash.Seed
	sample   uint32 // one in so many reads is counted, on average
	interval int64  // nanoseconds between halvings

	// loop-owned
	skip   int32  // reads still to be left out
	random uint64 // xorshift
	since  int64  // the last halving (mono)
	kept   int64  // nanoseconds that the counts stand for, up to since
	sets   [sets]set
	keys   [sets * ways][MaxKey]byte
}

// set is where keys of some hashes are counted. Hashes come first: with the counts they
// are all that a read looks at.
type set struct {
	hash  [ways]uint64
	count [ways]uint32 // sampled reads; 0: the way is free
	err   [ways]uint32 // of them, those that may have been other keys'
	about [ways]about
}

type about struct {
	db   int32
	kind uint16
	size uint16
}

// New returns a sketch that counts one in sample reads and halves its counts every interval
// nanoseconds. now is the time (mono nanoseconds).
func New(sample int, interval, now int64) *Sketch {
	return &Sketch{seed: maphash.MakeSeed(), sample: uint32(sample), interval: interval, since: now, random: uint64(now)*2 + 1}
}

// Due reports whether the present read is one of those to be counted. It is to be called once per
// read; which ones are chosen is random, because clients' pipelines have a rhythm.
func (s *Sketch) Due() bool {
	s.skip--
	return s.skip < 0
}

// Count counts a read of key in database db by a command of that kind, and draws how many reads to
// leave out until the next one.
func (s *Sketch) Count(key []byte, db int32, kind uint16) {
	s.skip = int32(s.draw() % (2*s.sample - 1))
	if len(key) > MaxKey {
		return
	}
	h := maphash.Bytes(s.seed, key) + uint64(db)*0x9e3779b97f4a7c15
	at := h % sets
	t := &s.sets[at]
	least := 0
	for i := range ways {
		if t.hash[i] == h && t.count[i] > 0 && t.about[i].db == db && string(s.key(int(at), i)) == string(key) {
			t.count[i]++
			t.about[i].kind = kind
			return
		}
		if t.count[i] < t.count[least] {
			least = i
		}
	}
	t.err[least] = t.count[least]
	t.count[least]++
	t.hash[least] = h
	t.about[least] = about{db, kind, uint16(len(key))}
	copy(s.keys[int(at)*ways+least][:], key)
}

func (s *Sketch) key(at, way int) []byte {
	return s.keys[at*ways+way][:s.sets[at].about[way].size]
}

func (s *Sketch) draw() uint32 {
	s.random ^= s.random << 13
	s.random ^= s.random >> 7
	s.random ^= s.random << 17
	return uint32(s.random >> 32)
}

// Tick halves the counts if it is time to. The loop calls it now and then.
func (s *Sketch) Tick(now int64) {
	if now-s.since < s.interval {
		return
	}
	s.kept = (s.kept + now - s.since) / 2
	s.since = now
	for i := range s.sets {
		t := &s.sets[i]
		for w := range ways {
			t.count[w] /= 2
			t.err[w] /= 2
		}
	}
}

// Key is how much a key is read.
type Key struct {
	Name string
	DB   int32
	Kind uint16  // of the read counted last
	Rate float64 // reads per second, at least
}

// shortest is the time that counts are taken to stand for at least: a first read is not a rate.
const shortest = int64(1e9)

// Keys returns every key of which it is certain that it was read lately, in no order.
func (s *Sketch) Keys(now int64) []Key {
	seconds := float64(max(s.kept+now-s.since, shortest)) / 1e9
	var keys []Key
	for i := range s.sets {
		t := &s.sets[i]
		for w := range ways {
			if n := t.count[w] - t.err[w]; n > 0 {
				keys = append(keys, Key{
					Name: string(s.key(i, w)), DB: t.about[w].db, Kind: t.about[w].kind,
					Rate: float64(n) * float64(s.sample) / seconds,
				})
			}
		}
	}
	return keys
}

// Merge adds up what several sketches found and returns the n keys that are read most, the
// hottest first; keys that are equally hot are sorted by name.
func Merge(parts [][]Key, n int) []Key {
	type id struct {
		name string
		db   int32
	}
	at := make(map[id]int)
	var sum []Key
	for _, part := range parts {
		for _, k := range part {
			i, known := at[id{k.Name, k.DB}]
			if !known {
				at[id{k.Name, k.DB}] = len(sum)
				sum = append(sum, k)
				continue
			}
			if k.Rate > sum[i].Rate {
				sum[i].Kind = k.Kind
			}
			sum[i].Rate += k.Rate
		}
	}
	slices.SortFunc(sum, func(a, b Key) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Name, b.Name), cmp.Compare(a.DB, b.DB))
	})
	return sum[:min(n, len(sum))]
}
