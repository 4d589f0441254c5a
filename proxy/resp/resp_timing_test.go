package resp

import (
	"strconv"
	"strings"
	"testing"
)

func benchmarkParser(b *testing.B, in []byte) {
	var p Parser
	var req Request
	b.ReportAllocs()
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		if n, err := p.Next(in, nil, &req); n != len(in) || err != nil {
			b.Fatal(n, err)
		}
	}
}

func BenchmarkParser(b *testing.B) {
	b.Run("get", func(b *testing.B) { benchmarkParser(b, AppendCommand(nil, "GET", "key:000000000042")) })
	b.Run("set64", func(b *testing.B) {
		benchmarkParser(b, AppendCommand(nil, "SET", "key:000000000042", strings.Repeat("v", 64)))
	})
	b.Run("set1k", func(b *testing.B) {
		benchmarkParser(b, AppendCommand(nil, "SET", "key:000000000042", strings.Repeat("v", 1024)))
	})
	b.Run("inline", func(b *testing.B) { benchmarkParser(b, []byte("SET key:000000000042 value\r\n")) })
}

// A request of many arguments that arrives in small pieces must cost no more than
// a constant times one that arrives at once.
func BenchmarkParserPieces(b *testing.B) {
	in := AppendCommand(nil, append([]string{"MSET"}, strings.Fields(strings.Repeat("key value ", 5000))...)...)
	for _, piece := range []int{len(in), 1000, 10} {
		b.Run("bytes="+strconv.Itoa(piece), func(b *testing.B) {
			var p Parser
			var req Request
			b.ReportAllocs()
			b.SetBytes(int64(len(in)))
			for b.Loop() {
				for end := piece; ; end += piece {
					n, err := p.Next(in[:min(end, len(in))], nil, &req)
					if err != nil {
						b.Fatal(err)
					}
					if n > 0 {
						break
					}
				}
			}
		})
	}
}

func BenchmarkLen(b *testing.B) {
	for _, in := range []string{OK, ":1\r\n", "$64\r\n" + strings.Repeat("v", 64) + "\r\n", "*10\r\n" + strings.Repeat("$5\r\nvalue\r\n", 10)} {
		b.Run(in[:1], func(b *testing.B) {
			data := []byte(in + OK)
			b.ReportAllocs()
			for b.Loop() {
				if Len(data) != len(in) {
					b.Fatal("wrong length")
				}
			}
		})
	}
}

func BenchmarkReplyScanner(b *testing.B) {
	for _, in := range []string{OK, "$64\r\n" + strings.Repeat("v", 64) + "\r\n", "*10\r\n" + strings.Repeat("$5\r\nvalue\r\n", 10)} {
		b.Run(in[:1], func(b *testing.B) {
			data := []byte(in + OK)
			var s ReplyScanner
			b.ReportAllocs()
			for b.Loop() {
				if n, done, err := s.Scan(data); n != len(in) || !done || err != nil {
					b.Fatal(n, done, err)
				}
			}
		})
	}
}
