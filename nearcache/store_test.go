package nearcache

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// mapStore is the model of a store: everything is visible at once, the oldest
// entries leave first.
type mapStore struct {
	maxCost int64
	exit    func(*Entry)
	blind   bool // used sees nothing

	mu    sync.Mutex // guards the rest
	items map[uint64]*Entry
	order []uint64
	cost  int64
}

func newMapStore(maxCost int64, exit func(*Entry)) *mapStore {
	return &mapStore{maxCost: maxCost, exit: exit, items: map[uint64]*Entry{}}
}

func (s *mapStore) get(hash uint64) *Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.items[hash]
}

func (s *mapStore) set(hash uint64, e *Entry, cost int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cost > s.maxCost {
		return false
	}
	s.removeLocked(hash)
	s.items[hash] = e
	s.order = append(s.order, hash)
	s.cost += cost
	for s.cost > s.maxCost {
		s.removeLocked(s.order[0])
		s.order = s.order[1:]
	}
	return true
}

func (s *mapStore) removeLocked(hash uint64) {
	if e := s.items[hash]; e != nil {
		delete(s.items, hash)
		s.cost -= e.cost()
		s.exit(e)
	}
}

func (s *mapStore) evict(hash uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLocked(hash)
}

func (s *mapStore) used() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blind {
		return 0
	}
	return s.cost
}

func (s *mapStore) settle() {}

func (s *mapStore) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for hash := range s.items {
		s.removeLocked(hash)
	}
}

func (s *mapStore) close() { s.clear() }

// TestStoreContract is what the cache relies on, for the store in production and its model.
func TestStoreContract(t *testing.T) {
	const budget = 256 << 10
	stores := map[string]func(exit func(*Entry)) store{
		"model": func(exit func(*Entry)) store { return newMapStore(budget, exit) },
		"ristretto": func(exit func(*Entry)) store {
			s, err := newRistrettoStore(budget, admissionCounters(budget), exit)
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
	}
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			exits := map[*Entry]int{}
			s := open(func(e *Entry) {
				mu.Lock()
				defer mu.Unlock()
				exits[e]++
			})
			left := func(e *Entry) int {
				mu.Lock()
				defer mu.Unlock()
				return exits[e]
			}
			taken := map[*Entry]bool{}
			set := func(hash uint64, size int) *Entry {
				e := mustEntry(t, fmt.Sprint("key", hash), value(strings.Repeat("x", size)), forever)
				if s.set(hash, e, e.cost()) {
					taken[e] = true
				}
				return e
			}

			if s.get(1) != nil {
				t.Error("an empty store holds something")
			}
			first := set(1, 10)
			s.settle()
			if s.get(1) != first {
				t.Error("the entry set first is not found")
			}
			second := set(1, 5000)
			if s.get(1) != second {
				t.Error("an overwritten entry is found")
			}
			s.settle()
			if left(first) != 1 || left(second) != 0 {
				t.Errorf("exits after overwriting: %d and %d, want 1 and 0", left(first), left(second))
			}
			if u := s.used(); u != second.cost() {
				t.Errorf("used %d, want the cost of the second entry, %d", u, second.cost())
			}

			huge := set(2, budget)
			s.settle()
			if s.get(2) != nil || taken[huge] && left(huge) != 1 {
				t.Error("an entry larger than the budget is kept")
			}
			for i := range uint64(2000) {
				set(10+i, int(i)%2000)
			}
			s.settle()
			held, n := int64(0), 0
			for e := range taken {
				switch left(e) {
				case 0:
					held += e.cost()
					n++
				case 1:
				default:
					t.Error("an entry left more than once")
				}
			}
			if held > budget || held != s.used() || n == 0 {
				t.Errorf("%d entries of %d bytes held, %d used, the budget is %d", n, held, s.used(), budget)
			}

			s.clear()
			if s.used() != 0 {
				t.Errorf("%d used after clear", s.used())
			}
			set(5, 10)
			s.close()
			s.close()
			for e := range taken {
				if left(e) != 1 {
					t.Errorf("an entry left %d times", left(e))
				}
			}
		})
	}
}
