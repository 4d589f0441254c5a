//go:build !race

// The race detector multiplies what memory is taken.

package proxy_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"cosky-proxy/cluster/clustertest"
	"cosky-proxy/nearcache"
	"cosky-proxy/proxy"
)

// TestEntriesAreChargedForWhatTheyTake: replies of scripts, with all that is kept to bring them up to date, and
// those that rules keep take hardly more of the heap than nearcache.max_bytes is charged.
func TestEntriesAreChargedForWhatTheyTake(t *testing.T) {
	const services, instances, fields = 100, 50, 20_000
	for name, fill := range map[string]func(r *nearRig) (reads [][]string){
		"scripts": func(r *nearRig) (reads [][]string) {
			r.load()
			var register strings.Builder
			for s := range services {
				service := fmt.Sprintf("service-%03d", s)
				for i := range instances {
					register.WriteString(clustertest.Encode(registration(fmt.Sprintf("%s@http#10.0.%d.%d#8080", service, s, i), 600, service)...))
				}
				reads = append(reads, scriptCall("discovery_get_instances", service))
			}
			r.direct.Send(register.String())
			for range services * instances {
				r.direct.Expect(":1\r\n")
			}
			return reads
		},
		"rules": func(r *nearRig) (reads [][]string) {
			var set strings.Builder
			for i := range fields {
				key, field := fmt.Sprintf("item:%d", i/10), fmt.Sprintf("field-%d", i%10)
				set.WriteString(clustertest.Encode("HSET", key, field, fmt.Sprintf("%064d", i)))
				reads = append(reads, []string{"HGET", key, field})
			}
			r.direct.Send(set.String())
			for range fields {
				r.direct.Expect(":1\r\n")
			}
			return reads
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startNear(t, patientLeases, func(o *proxy.Options) {
				cache, err := nearcache.New(nearcache.Options{MaxBytes: 256 << 20})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(cache.Close)
				o.Cache.Cache, o.Cache.RefreshIdle = cache, 0
				o.Cache.Rules = []proxy.Rule{{Match: "item:*", Commands: []string{"hget"}, TTL: time.Minute, MaxValue: 1 << 10}}
			})
			reads := fill(r)
			r.warm("HGETALL", hashKey) // whatever is made once is there
			before, charged := heap(), r.server.CacheStats().Bytes
			for len(reads) > 0 { // in bites, or they would be lost in the store's queue
				n := min(len(reads), 100)
				r.front[0].Send(oneWrite(reads[:n]...))
				for range n {
					if got := r.front[0].ReadReply(); got[0] == '-' {
						t.Fatalf("got %q", got)
					}
				}
				reads = reads[n:]
			}
			grown, taken := heap()-before, r.server.CacheStats().Bytes-charged
			t.Logf("the heap has grown by %d KiB, %d are charged: %.2f", grown>>10, taken>>10, float64(grown)/float64(taken))
			if float64(grown) > 1.15*float64(taken) {
				t.Error("that is dishonest")
			}
			if entries := r.server.CacheStats().Entries; entries < 90 {
				t.Errorf("only %d entries", entries)
			}
		})
	}
}

// heap is what is in use of it, in bytes.
func heap() int64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
