package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"cosky-proxy/test/harness"
)

// Client libraries connect with their default settings: what they send at connect time
// (HELLO, CLIENT SETINFO, INFO, …) differs, and is where proxies fail them.

// onServers runs f in front of a real Redis and of a real cluster. The embedded server does
// not know all that libraries use.
func onServers(t *testing.T, f func(t *testing.T, p *harness.Proxy)) {
	for name, start := range map[string]func(testing.TB) backend{"standalone": standalone, "cluster": clustered} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, binary.Start(t, "--backend", start(t).url))
		})
	}
}

func TestRedisPy(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, p *harness.Proxy) {
		// The system's Python, because that is the one which packages of the system extend.
		runClient(t, exec.Command("/usr/bin/python3", "clients/python/client.py", p.Addr))
	})
}

func TestNodeClients(t *testing.T) {
	t.Parallel()
	installNodeModules(t)
	for name, argv := range map[string][]string{
		"ioredis":          {"ioredis.mjs"},
		"node-redis RESP2": {"node-redis.mjs", "2"},
		"node-redis RESP3": {"node-redis.mjs", "3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onServers(t, func(t *testing.T, p *harness.Proxy) {
				args := append([]string{filepath.Join("clients/node", argv[0]), p.Addr}, argv[1:]...)
				runClient(t, exec.Command("node", args...))
			})
		})
	}
}

// runClient runs a script that proves everything itself and says so at the end.
func runClient(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	watchdog := time.AfterFunc(2*harness.Deadline, func() { cmd.Process.Kill() })
	defer watchdog.Stop()
	if out := output(t, cmd); !strings.HasSuffix(out, "all passed\n") {
		t.Errorf("%q says %q", cmd.Args, tail([]byte(out)))
	}
}

// installNodeModules installs what the lock file names, unless that has been done.
func installNodeModules(t *testing.T) {
	t.Helper()
	const dir = "clients/node"
	lock, err := os.ReadFile(filepath.Join(dir, "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	stamp := filepath.Join(dir, "node_modules", ".installed")
	if done, err := os.ReadFile(stamp); err == nil && bytes.Equal(done, lock) {
		return
	}
	npm := exec.Command("npm", "ci", "--no-audit", "--no-fund")
	npm.Dir = dir
	output(t, npm)
	if err := os.WriteFile(stamp, lock, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestGoRedis(t *testing.T) {
	t.Parallel()
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			t.Parallel()
			onServers(t, func(t *testing.T, p *harness.Proxy) {
				g := goRedis{t, redis.NewClient(&redis.Options{Addr: p.Addr, Protocol: protocol}), context.Background()}
				defer g.client.Close()
				g.strings()
				g.hashes()
				g.pipeline()
				g.transaction()
				g.pubSub()
				g.script()
				g.blocking()
				g.scanOneKey()
				g.concurrent()
			})
		})
	}
}

// goRedis is a client and the test it serves.
type goRedis struct {
	t      *testing.T
	client *redis.Client
	ctx    context.Context
}

// want compares the result of a command; a redis.Nil counts as the value nil.
func want[T comparable](g goRedis, what string, cmd interface{ Result() (T, error) }, want T) {
	g.t.Helper()
	if got, err := cmd.Result(); err != nil || got != want {
		g.t.Errorf("%s: got %v, error %v, want %v", what, got, err, want)
	}
}

func (g goRedis) strings() {
	c := g.client
	want(g, "PING", c.Ping(g.ctx), "PONG")
	want(g, "SET", c.Set(g.ctx, "go:s", "v", time.Minute), "OK")
	want(g, "GET", c.Get(g.ctx, "go:s"), "v")
	if err := c.Get(g.ctx, "go:none").Err(); !errors.Is(err, redis.Nil) {
		g.t.Errorf("GET of nothing: %v", err)
	}
	want(g, "MSET", c.MSet(g.ctx, "go:a", 1, "go:b", 2, "go:c", 3), "OK")
	if got, err := c.MGet(g.ctx, "go:a", "go:none", "go:c").Result(); err != nil || fmt.Sprint(got) != "[1 <nil> 3]" {
		g.t.Errorf("MGET: got %v, error %v", got, err)
	}
	want(g, "DEL", c.Del(g.ctx, "go:a", "go:b", "go:c"), 3)
	big := strings.Repeat("0123456789", 300_000)
	want(g, "SET of 3 MB", c.Set(g.ctx, "go:big", big, 0), "OK")
	if got, err := c.Get(g.ctx, "go:big").Result(); err != nil || got != big {
		g.t.Errorf("GET of 3 MB: %d bytes, error %v", len(got), err)
	}
}

func (g goRedis) hashes() {
	const key = "go-{h}:cfg:c" // in CoSky's form: read from the near-cache
	for version := range 3 {
		g.client.HSet(g.ctx, key, "data", "d", "version", version)
		for range 3 {
			got, err := g.client.HGetAll(g.ctx, key).Result()
			if err != nil || !maps.Equal(got, map[string]string{"data": "d", "version": fmt.Sprint(version)}) {
				g.t.Errorf("HGETALL of version %d: got %v, error %v", version, got, err)
			}
		}
	}
	if err := g.client.LPush(g.ctx, key, "x").Err(); err == nil || !strings.HasPrefix(err.Error(), "WRONGTYPE ") {
		g.t.Errorf("LPUSH on a hash: %v", err)
	}
	want(g, "ZADD", g.client.ZAdd(g.ctx, "go:z", redis.Z{Score: 1.5, Member: "m"}), 1)
	want(g, "ZSCORE", g.client.ZScore(g.ctx, "go:z", "m"), 1.5)
}

func (g goRedis) pipeline() {
	const count = 1000
	sets, err := g.client.Pipelined(g.ctx, func(p redis.Pipeliner) error {
		for i := range count {
			p.Set(g.ctx, fmt.Sprintf("go:p%d", i), i, 0)
			p.Get(g.ctx, fmt.Sprintf("go:p%d", i))
		}
		return nil
	})
	if err != nil {
		g.t.Fatalf("pipeline: %v", err)
	}
	for i := range count {
		want(g, "GET in a pipeline", sets[2*i+1].(*redis.StringCmd), fmt.Sprint(i))
	}
}

func (g goRedis) transaction() {
	const key = "{go}t"
	_, err := g.client.TxPipelined(g.ctx, func(p redis.Pipeliner) error {
		p.Set(g.ctx, key, 1, 0)
		p.Incr(g.ctx, key)
		return nil
	})
	if err != nil {
		g.t.Errorf("transaction: %v", err)
	}
	want(g, "GET after a transaction", g.client.Get(g.ctx, key), "2")
	err = g.client.Watch(g.ctx, func(tx *redis.Tx) error {
		g.client.Set(g.ctx, key, 9, 0) // from another connection
		_, err := tx.TxPipelined(g.ctx, func(p redis.Pipeliner) error { return p.Incr(g.ctx, key).Err() })
		return err
	}, key)
	if !errors.Is(err, redis.TxFailedErr) {
		g.t.Errorf("a transaction on a changed key: %v", err)
	}
	want(g, "GET after a failed transaction", g.client.Get(g.ctx, key), "9")
}

func (g goRedis) pubSub() {
	sub := g.client.Subscribe(g.ctx, "go:channel")
	defer sub.Close()
	for range 2 { // confirmations
		if _, err := sub.ReceiveTimeout(g.ctx, harness.Deadline); err != nil {
			g.t.Fatalf("SUBSCRIBE: %v", err)
		}
		if err := sub.PSubscribe(g.ctx, "go:p*"); err != nil {
			g.t.Fatalf("PSUBSCRIBE: %v", err)
		}
	}
	for _, m := range []redis.Message{
		{Channel: "go:channel", Payload: "one"},
		{Channel: "go:pattern", Pattern: "go:p*", Payload: "two"},
	} {
		if err := g.client.Publish(g.ctx, m.Channel, m.Payload).Err(); err != nil {
			g.t.Errorf("PUBLISH: %v", err)
		}
		got, err := sub.ReceiveMessage(g.ctx)
		if err != nil || got.Channel != m.Channel || got.Pattern != m.Pattern || got.Payload != m.Payload {
			g.t.Errorf("got message %v, error %v, want %v", got, err, m)
		}
	}
}

func (g goRedis) script() {
	add := redis.NewScript("return redis.call('INCRBY', KEYS[1], ARGV[1])")
	for by, total := range map[int]int64{2: 2} {
		if got, err := add.Run(g.ctx, g.client, []string{"go:script"}, by).Int64(); err != nil || got != total {
			g.t.Errorf("script: got %d, error %v", got, err)
		}
	}
	if got, err := add.EvalSha(g.ctx, g.client, []string{"go:script"}, 3).Int64(); err != nil || got != 5 {
		g.t.Errorf("script by digest: got %d, error %v", got, err)
	}
}

func (g goRedis) blocking() {
	popped := make(chan string, 1)
	go func() {
		got, err := g.client.BLPop(g.ctx, harness.Deadline, "go:queue").Result()
		popped <- fmt.Sprint(got, err)
	}()
	want(g, "LPUSH", g.client.LPush(g.ctx, "go:queue", "job"), 1)
	if got := <-popped; got != "[go:queue job] <nil>" {
		g.t.Errorf("BLPOP: got %s", got)
	}
}

func (g goRedis) scanOneKey() {
	for i := range 1000 {
		g.client.SAdd(g.ctx, "go:set", i)
	}
	seen := map[string]bool{}
	it := g.client.SScan(g.ctx, "go:set", 0, "", 100).Iterator()
	for it.Next(g.ctx) {
		seen[it.Val()] = true
	}
	if it.Err() != nil || len(seen) != 1000 {
		g.t.Errorf("SSCAN: %d members, error %v", len(seen), it.Err())
	}
}

// concurrent: nobody gets an answer that was meant for somebody else.
func (g goRedis) concurrent() {
	var wg sync.WaitGroup
	for worker := range 20 {
		wg.Go(func() {
			for i := range 100 {
				text := fmt.Sprintf("%d of %d", i, worker)
				want(g, "ECHO", g.client.Echo(g.ctx, text), text)
			}
		})
	}
	wg.Wait()
}
