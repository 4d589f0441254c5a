package heat

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

const second = int64(1e9)

func (s *Sketch) read(key string, db int32, kind uint16) {
	if s.Due() {
		s.Count([]byte(key), db, kind)
	}
}

func names(keys []Key) (list []string) {
	for _, k := range keys {
		list = append(list, k.Name)
	}
	return list
}

// One in a few reads is counted, and the hottest keys are found among many more than
// there are ways, with about their rates.
func TestHottestKeysAreFound(t *testing.T) {
	for _, sample := range []int{1, 8} {
		rng := rand.New(rand.NewPCG(1, uint64(sample)))
		zipf := rand.NewZipf(rng, 1.1, 1, 100_000)
		s := New(sample, 10*second, 0)
		reads := make(map[string]int)
		const total = 500_000
		for range total {
			key := fmt.Sprintf("key:%d", zipf.Uint64())
			reads[key]++
			s.read(key, 0, 1)
		}
		top := Merge([][]Key{s.Keys(5 * second)}, 10)
		if len(top) != 10 {
			t.Fatalf("sample %d: %d keys", sample, len(top))
		}
		for i, k := range top {
			want := float64(reads[k.Name]) / 5
			if math.Abs(k.Rate-want) > want/4 {
				t.Errorf("sample %d: %s is read %.0f times a second, shown %.0f", sample, k.Name, want, k.Rate)
			}
			if i < 3 && k.Name != fmt.Sprintf("key:%d", i) {
				t.Errorf("sample %d: place %d has %s", sample, i, k.Name)
			}
		}
	}
}

// A rhythm of the reads does not decide which of them are counted.
func TestSamplingHasNoRhythm(t *testing.T) {
	s := New(8, 10*second, 0)
	for range 100_000 {
		for i := range 8 {
			s.read(fmt.Sprint(i), 0, 1)
		}
	}
	for _, k := range s.Keys(10 * second) {
		if math.Abs(k.Rate-10_000) > 1_000 {
			t.Errorf("%s: %.0f reads a second instead of 10000", k.Name, k.Rate)
		}
	}
}

// Counts are never too high: a stream of ever new keys makes none of them hot.
func TestNewKeysAreNotHot(t *testing.T) {
	s := New(1, 10*second, 0)
	for i := range 100_000 {
		s.read(fmt.Sprint(i), 0, 1)
	}
	for _, k := range s.Keys(10 * second) {
		if k.Rate > 0.1 { // one read in ten seconds
			t.Errorf("%s: %f", k.Name, k.Rate)
		}
	}
}

func TestCountsFade(t *testing.T) {
	s := New(1, 10*second, 0)
	now := int64(0)
	run := func(key string, seconds int) {
		for range seconds {
			for range 100 {
				s.read(key, 0, 1)
			}
			now += second
			s.Tick(now)
		}
	}
	run("a", 60)
	for _, k := range s.Keys(now) {
		if math.Abs(k.Rate-100) > 1 {
			t.Errorf("at a steady 100 reads a second: %f", k.Rate)
		}
	}
	run("b", 20)
	if top := Merge([][]Key{s.Keys(now)}, 2); !slices.Equal(names(top), []string{"b", "a"}) || top[1].Rate > 30 {
		t.Errorf("20 seconds after a was read last: %v", top)
	}
	run("b", 200)
	if got := names(s.Keys(now)); !slices.Equal(got, []string{"b"}) {
		t.Errorf("after a long time: %q", got)
	}
}

func TestFirstReadIsNoRate(t *testing.T) {
	s := New(1, 10*second, 0)
	s.read("a", 0, 1)
	if keys := s.Keys(1000); len(keys) != 1 || keys[0].Rate != 1 {
		t.Errorf("%v", keys)
	}
}

func TestKeysAreToldApart(t *testing.T) {
	s := New(1, 10*second, 0)
	long := strings.Repeat("x", MaxKey)
	for range 2 {
		s.read("a", 0, 1)
		s.read("a", 1, 2)
		s.read("", 0, 3)
		s.read(long, 0, 4)
		s.read(long+"y", 0, 5) // not counted
	}
	s.read("a", 0, 6)
	got := Merge([][]Key{s.Keys(second)}, 100)
	want := []Key{{"a", 0, 6, 3}, {"", 0, 3, 2}, {"a", 1, 2, 2}, {long, 0, 4, 2}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestMerge(t *testing.T) {
	got := Merge([][]Key{
		{{"a", 0, 1, 5}, {"b", 0, 1, 7}},
		nil,
		{{"a", 0, 2, 6}, {"a", 1, 2, 1}, {"c", 0, 2, 7}},
	}, 3)
	if want := []Key{{"a", 0, 2, 11}, {"b", 0, 1, 7}, {"c", 0, 2, 7}}; !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestCountingDoesNotAllocate(t *testing.T) {
	s := New(1, 10*second, 0)
	key := []byte("key:0000")
	i := 0
	if n := testing.AllocsPerRun(1000, func() {
		i++
		key[7] = byte(i)
		key[6] = byte(i >> 8)
		if s.Due() {
			s.Count(key, 0, 1)
		}
		s.Tick(int64(i) * second)
	}); n > 0 {
		t.Errorf("%f allocations per read", n)
	}
}
