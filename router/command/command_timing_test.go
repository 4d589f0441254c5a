package command

import (
	"strings"
	"testing"
)

func BenchmarkLookup(b *testing.B) {
	for _, name := range []string{"GET", "HGETALL", "ZREVRANGEBYSCORE", "NOSUCH"} {
		b.Run(name, func(b *testing.B) {
			key := []byte(name)
			b.ReportAllocs()
			for b.Loop() {
				sinkCommand = Lookup(key)
			}
		})
	}
}

func BenchmarkResolve(b *testing.B) {
	for _, line := range []string{"GET a", "CONFIG GET a", "CLIENT NO-TOUCH ON"} {
		b.Run(strings.ReplaceAll(line, " ", "_"), func(b *testing.B) {
			args := bytesOf(words(line))
			b.ReportAllocs()
			for b.Loop() {
				sinkCommand, _ = builtin.Resolve(args)
			}
		})
	}
}

func BenchmarkKeys(b *testing.B) {
	for _, line := range []string{"GET a", "MGET a b c d", "EVAL s 2 a b c", "SORT a STORE b", "XREAD COUNT 1 STREAMS a 0"} {
		b.Run(strings.ReplaceAll(line, " ", "_"), func(b *testing.B) {
			args := bytesOf(words(line))
			c := Lookup(args[0])
			pos := make([]int, 0, 8)
			b.ReportAllocs()
			for b.Loop() {
				sinkPos, _ = c.Keys(args, pos)
			}
		})
	}
}

// BenchmarkBuiltin is what importing the package costs at start.
func BenchmarkBuiltin(b *testing.B) {
	for b.Loop() {
		mustBuiltin()
	}
}

var (
	sinkCommand *Command
	sinkPos     []int
)
