package slot

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"cosky-proxy/cluster/clustertest"
)

func TestOf(t *testing.T) {
	tests := []struct {
		key string
		tag string
		of  uint16
	}{
		{"123456789", "123456789", 0x31c3}, // the check value of CRC16/XMODEM
		{"", "", 0},
		{"foo", "foo", 12182},
		{"{}", "{}", 15257},
		{"foo{}", "foo{}", 5542},
		{"foo{}{bar}", "foo{}{bar}", 8363},
		{"key:{}:{1}", "key:{}:{1}", 13147},
		{"foo{{bar}}zap", "{bar", 4015},
		{"foo{bar}{zap}", "bar", 5061},
		{"{user1000}.following", "user1000", 3443},
		{"{user1000}.followers", "user1000", 3443},
		{"}{a}", "a", 15495},
		{"a{b", "a{b", 13340},
		{"a}b{c}", "c", 7365},
		{"{", "{", 4092},
		{"cosky-{system}:cfg_idx", "system", 10803},
	}
	for _, tt := range tests {
		if got := string(Tag([]byte(tt.key))); got != tt.tag {
			t.Errorf("Tag(%q) = %q, want %q", tt.key, got, tt.tag)
		}
		if got := Of([]byte(tt.key)); got != tt.of {
			t.Errorf("Of(%q) = %d, want %d", tt.key, got, tt.of)
		}
	}
}

// TestOfAgreesWithRedis compares random keys, short ones over an alphabet that
// is full of braces and long arbitrary ones, with CLUSTER KEYSLOT.
func TestOfAgreesWithRedis(t *testing.T) {
	server := clustertest.StartRedis(t, "--cluster-enabled", "yes")
	rng := rand.New(rand.NewPCG(1, 2))
	keys := make([]string, 0, 12000)
	for range 10000 {
		key := make([]byte, rng.IntN(12))
		for i := range key {
			key[i] = "ab{}"[rng.IntN(4)]
		}
		keys = append(keys, string(key))
	}
	for range 2000 {
		key := make([]byte, rng.IntN(100))
		for i := range key {
			key[i] = byte(rng.Uint32())
		}
		keys = append(keys, string(key))
	}

	cmds, err := server.Client().Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		for _, key := range keys {
			pipe.ClusterKeySlot(t.Context(), key)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, key := range keys {
		want := cmds[i].(*redis.IntCmd).Val()
		if got := Of([]byte(key)); int64(got) != want {
			t.Errorf("Of(%q) = %d, Redis says %d", key, got, want)
		}
	}
}

func TestOfAllocatesNothing(t *testing.T) {
	key := []byte("cosky-{system}:cfg:some-configuration-name")
	if n := testing.AllocsPerRun(100, func() { sink += Of(key) }); n != 0 {
		t.Errorf("Of allocates %v times", n)
	}
}

// FuzzOf holds Tag against a naive reading of the rule and the sliced CRC
// against the bitwise one.
func FuzzOf(f *testing.F) {
	for _, seed := range []string{"", "foo", "{}", "a{b}c", "{{a}}", "}{", "0123456789abcdef{x"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, key []byte) {
		if got, want := Of(key), bitwiseCRC16(naiveTag(key))%Count; got != want {
			t.Errorf("Of(%q) = %d, want %d", key, got, want)
		}
	})
}

func naiveTag(key []byte) []byte {
	for i := range key {
		if key[i] != '{' {
			continue
		}
		for j := i + 1; j < len(key); j++ {
			if key[j] == '}' && j > i+1 {
				return key[i+1 : j]
			}
			if key[j] == '}' {
				return key
			}
		}
		return key
	}
	return key
}

func bitwiseCRC16(p []byte) (crc uint16) {
	for _, b := range p {
		for bit := 7; bit >= 0; bit-- {
			in := uint16(b>>bit) & 1
			out := crc >> 15
			crc <<= 1
			if in != out {
				crc ^= 0x1021
			}
		}
	}
	return crc
}

var sink uint16

func BenchmarkOf(b *testing.B) {
	for _, size := range []int{4, 12, 32, 64} {
		key := make([]byte, size)
		for i := range key {
			key[i] = byte('a' + i%26)
		}
		b.Run("bytes="+strconv.Itoa(size), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				sink += Of(key)
			}
		})
	}
}
