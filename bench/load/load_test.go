package load

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func TestPipelinesEncodeTheCommand(t *testing.T) {
	spec := Spec{Clients: 1, Depth: 2, Requests: 1, Keys: 1, Command: []string{"GET", "key:" + Placeholder}}
	want := strings.Repeat("*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000000\r\n", 2)
	pipelines := spec.pipelines()
	if len(pipelines) != variants {
		t.Fatalf("got %d pipelines, want %d", len(pipelines), variants)
	}
	for _, got := range pipelines {
		if string(got) != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

func TestPipelinesDifferAndRepeatWithTheSeed(t *testing.T) {
	spec := Spec{Depth: 4, Keys: 1_000_000, Command: []string{"GET", Placeholder}, Seed: 7}
	first, again := spec.pipelines(), spec.pipelines()
	distinct := map[string]bool{}
	for i := range first {
		if string(first[i]) != string(again[i]) {
			t.Fatalf("pipeline %d differs between two runs with one seed", i)
		}
		distinct[string(first[i])] = true
	}
	if len(distinct) < variants/2 {
		t.Errorf("got %d distinct pipelines of %d, want most to differ", len(distinct), variants)
	}
}

func TestSpecRefusesEmptyCounts(t *testing.T) {
	good := Spec{Clients: 1, Depth: 1, Requests: 1, Keys: 1, Command: []string{"PING"}}
	if err := good.validate(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Spec){
		"clients":  func(s *Spec) { s.Clients = 0 },
		"depth":    func(s *Spec) { s.Depth = 0 },
		"requests": func(s *Spec) { s.Requests = -1 },
		"keys":     func(s *Spec) { s.Keys = 0 },
		"command":  func(s *Spec) { s.Command = nil },
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
