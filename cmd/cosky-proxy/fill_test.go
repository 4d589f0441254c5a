package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"cosky-proxy/conf"
	"cosky-proxy/nearcache"
)

// fillVariable makes this test program fill a near-cache and say what that took.
const fillVariable = "COSKY_TEST_FILL"

// mostOfThem is how many entries have to be held in the end.
const mostOfThem = million * 95 / 100

// million entries of a hundred bytes with keys of instances take more than half a gigabyte. Every other one answers a
// question about a part of its key, as rules keep them. What replies of scripts take besides is measured in package proxy.
const (
	million    = 1_000_000
	fillBudget = "608MB"
)

// fillAndReport fills a near-cache under the program's own memory settings, then overwrites a part of it,
// and prints by how much the process has grown.
func fillAndReport() {
	cfg, _, err := conf.Load([]string{"--nearcache.max-bytes", fillBudget}, nil)
	if err != nil {
		panic(err)
	}
	limitMemory(context.Background(), cfg, nil)
	before := resident()
	n := &cfg.NearCache
	c, err := nearcache.New(nearcache.Options{MaxBytes: int64(n.MaxBytes), MaxEntry: int(n.MaxEntry), Stripes: n.Stripes})
	if err != nil {
		panic(err)
	}
	reply := fmt.Appendf(nil, "%%1\r\n$4\r\ndata\r\n$100\r\n%0100d\r\n", 0)
	for i := 0; i < million+million/5 || i < 10*million && c.Stats().Entries < mostOfThem; i++ { // a store that has much to do drops some
		var rest []byte
		if i%2 == 1 {
			rest = nearcache.AppendRest(nil, [][]byte{[]byte("field")})
		}
		q := c.Ask(0, 1, fmt.Appendf(nil, "bench-{x}:svc_itc:order@http#10.0.0.1#%07d", i%million), rest)
		var f nearcache.Fetch
		c.StartFetch(&f, &q)
		e, err := nearcache.NewEntry(&q, nearcache.Map, reply, 1<<62)
		if err != nil {
			panic(err)
		}
		c.Fill(&f, e)
	}
	fmt.Println(resident()-before, n.MaxBytes, c.Stats().Entries)
}

// resident is the memory of this process in bytes.
func resident() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		panic(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	if err != nil {
		panic(err)
	}
	return pages * int64(os.Getpagesize())
}
