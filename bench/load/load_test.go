package load

import (
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"
)

func TestPipelinesEncodeTheCommands(t *testing.T) {
	spec := Spec{Depth: 3, Keys: 1, Commands: [][]string{{"GET", "key:" + Placeholder}, {"SET", "a" + Placeholder, "b" + Placeholder}}}
	const get, set = "*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000000\r\n", "*3\r\n$3\r\nSET\r\n$13\r\na000000000000\r\n$13\r\nb000000000000\r\n"
	pipelines := spec.pipelines([]int{70, 5})
	if len(pipelines) < variants {
		t.Fatalf("got %d pipelines, want at least %d", len(pipelines), variants)
	}
	want := []pipeline{{[]byte(get + set + get), 145}, {[]byte(set + get + set), 80}}
	for i, got := range pipelines {
		if w := want[i%2]; string(got.request) != string(w.request) || got.reply != w.reply {
			t.Fatalf("pipeline %d is %q with replies of %d bytes, want %q with %d", i, got.request, got.reply, w.request, w.reply)
		}
	}
}

// Each command gets its share, whatever the depth.
func TestPipelinesAreWholeCycles(t *testing.T) {
	nine := Spec{Depth: 1, Keys: 1}
	for range 9 {
		nine.Commands = append(nine.Commands, []string{"GET"})
	}
	nine.Commands = append(nine.Commands, []string{"SET"})
	total := 0
	pipelines := nine.pipelines([]int{0, 0, 0, 0, 0, 0, 0, 0, 0, 1})
	for _, p := range pipelines {
		total += p.reply
	}
	if 10*total != len(pipelines) {
		t.Errorf("%d of %d are the tenth command", total, len(pipelines))
	}
}

func TestPipelinesDifferAndRepeatWithTheSeed(t *testing.T) {
	spec := Spec{Depth: 4, Keys: 1_000_000, Commands: [][]string{{"MGET", Placeholder, Placeholder}}, Seed: 7}
	first, again := spec.pipelines([]int{1}), spec.pipelines([]int{1})
	distinct := map[string]bool{}
	for i := range first {
		if string(first[i].request) != string(again[i].request) {
			t.Fatalf("pipeline %d differs between two runs with one seed", i)
		}
		for word := range strings.FieldsSeq(string(first[i].request)) {
			distinct[word] = true
		}
	}
	if len(distinct) < 4*variants { // of the 8 keys in each
		t.Errorf("got %d distinct words in %d pipelines, want most keys to differ", len(distinct), len(first))
	}
}

func TestLargePipelinesAreFew(t *testing.T) {
	spec := Spec{Depth: 1, Keys: 1, Commands: [][]string{{"SET", "k", strings.Repeat("x", maxEncoded/4)}}}
	if n := len(spec.pipelines([]int{5})); n != 4 {
		t.Errorf("got %d pipelines of a quarter of the limit, want 4", n)
	}
}

// Each of two PINGs may be answered by itself.
func TestLengthOfReplies(t *testing.T) {
	for _, segments := range [][]string{{"+PONG\r\n", "+PONG\r\n"}, {"+PONG\r\n+PONG\r\n"}, {"+PO", "NG\r\n+PO", "NG\r\n"}} {
		client, server := net.Pipe()
		go func() {
			defer server.Close()
			_, err := server.Read(make([]byte, 100))
			for _, s := range segments {
				if err == nil {
					_, err = server.Write([]byte(s))
				}
			}
		}()
		if n, err := ask(client, []byte("*1\r\n$4\r\nPING\r\n"), 10*time.Second); n != len("+PONG\r\n") || err != nil {
			t.Errorf("in segments %q the reply has %d bytes, %v", segments, n, err)
		}
		client.Close()
	}
}

func TestSpecRefusesEmptyCounts(t *testing.T) {
	good := Spec{Clients: 1, Depth: 1, Requests: 1, Keys: 1, Commands: [][]string{{"PING"}}}
	if err := good.validate(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Spec){
		"clients":  func(s *Spec) { s.Clients = 0 },
		"depth":    func(s *Spec) { s.Depth = 0 },
		"requests": func(s *Spec) { s.Requests = -1 },
		"keys":     func(s *Spec) { s.Keys = 0 },
		"commands": func(s *Spec) { s.Commands = nil },
	} {
		bad := good
		spoil(&bad)
		if bad.validate() == nil {
			t.Errorf("%s: a count that is not positive was accepted", name)
		}
	}
}

func TestBucketsAreContiguousAndNarrow(t *testing.T) {
	for bucket := range 900 {
		start, next := bucketStart(bucket), bucketStart(bucket+1)
		if bucketOf(start) != bucket || bucketOf(next-1) != bucket {
			t.Fatalf("bucket %d covers [%d, %d), but bucketOf gives %d and %d",
				bucket, start, next, bucketOf(start), bucketOf(next-1))
		}
		if width := next - start; width > max(1, start/subBuckets) {
			t.Fatalf("bucket %d is %d wide at %d, want at most a sixteenth", bucket, width, start)
		}
	}
}

func TestQuantiles(t *testing.T) {
	var h histogram
	if got := h.quantile(0.5); got != 0 {
		t.Errorf("median of nothing is %v, want 0", got)
	}
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(1000) {
		h.add(time.Duration(i+1) * time.Microsecond)
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Microsecond, 0.99: 990 * time.Microsecond} {
		if got := h.quantile(q); got > want*17/16 || got < want*15/16 {
			t.Errorf("quantile %.2f is %v, want %v within a sixteenth", q, got, want)
		}
	}
}
