package nearcache

import (
	"fmt"
	"math/bits"
	"sync"

	"github.com/dgraph-io/ristretto/v2"
)

// store keeps candidates by the hash of their identity, bounded by the sum of their
// costs. What get returns need not be what was set last, nor need a set entry ever
// show up: the directory decides what is valid. Neither get nor set waits.
//
// set takes an entry or, returning false, does not. For each entry taken
// the store calls its exit function exactly once, when it has let go of it: it was
// overwritten, evicted, not admitted, or the store was cleared or closed.
type store interface {
	get(hash uint64) *Entry
	set(hash uint64, e *Entry, cost int64) bool
	used() int64 // sum of costs as the store sees it, sets still queued not included
	settle()     // waits until the sets queued so far are applied
	clear()      // may be called while others get and set; waits
	close()      // no call may follow or be under way; idempotent
}

// ristrettoStore is the store in production: TinyLFU admission and sampled LFU eviction.
//
// Ristretto queues new keys (a get right after the set misses), drops a set when its
// queue is full, keeps the older of two queued sets of one key, and counts an
// overwritten entry at its old cost if the queue is full. All of that is allowed here.
type ristrettoStore struct {
	maxCost int64
	cache   *ristretto.Cache[uint64, *Entry]

	mu sync.Mutex // serialises settle, clear and close
}

// admissionCounters is how many of them a budget gets: four per entry of typical cost, rounded
// up to a power of two as the store does. (Its authors advise ten per entry. In a budget that they
// count against, these serve better as room for entries.)
func admissionCounters(maxCost int64) int64 {
	return 1 << bits.Len64(uint64(max(maxCost/typicalCost*4, minStripes)-1))
}

// counterBytes is what a counter takes: half a byte in each of four rows, and sixteen bits
// of the filter for keys seen once.
const counterBytes = 4

// newRistrettoStore returns a store bounded by maxCost. exit gets each entry that the store has let go of.
func newRistrettoStore(maxCost, counters int64, exit func(*Entry)) (*ristrettoStore, error) {
	cache, err := ristretto.NewCache(&ristretto.Config[uint64, *Entry]{
		NumCounters:        counters,
		MaxCost:            maxCost,
		BufferItems:        64,
		IgnoreInternalCost: true, // Entry.cost has it
		OnExit: func(e *Entry) {
			if e != nil { // nil: a victim that was gone already
				exit(e)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot create the cache store: %w", err)
	}
	return &ristrettoStore{maxCost: maxCost, cache: cache}, nil
}

func (s *ristrettoStore) get(hash uint64) *Entry {
	e, _ := s.cache.Get(hash)
	return e
}

func (s *ristrettoStore) set(hash uint64, e *Entry, cost int64) bool {
	return s.cache.Set(hash, e, cost)
}

func (s *ristrettoStore) used() int64 { return s.maxCost - s.cache.RemainingCost() }

func (s *ristrettoStore) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cache.Wait()
}

func (s *ristrettoStore) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cache.Clear()
}

func (s *ristrettoStore) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cache.Close()
}
