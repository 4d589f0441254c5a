// Goredis drives go-redis through proxies: goredis NAME=single|cluster@HOST:PORT[,HOST:PORT]...
// It prints one line per target, protocol and feature that works; what does not is
// printed with its error. Everything but address and protocol is the library's default.
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// limit is longer than any step takes: one that is not over by then never will be.
const limit = 30 * time.Second

func main() {
	for _, target := range os.Args[1:] {
		name, where, _ := strings.Cut(target, "=")
		kind, addrs, _ := strings.Cut(where, "@")
		for _, protocol := range []int{2, 3} {
			run(fmt.Sprintf("%s RESP%d ", name, protocol), open(name, kind == "cluster", strings.Split(addrs, ","), protocol))
		}
	}
}

// session is a client on one target, with keys that nobody else uses.
type session struct {
	redis.UniversalClient
	ctx     context.Context
	cluster bool
	p       string // prefix of all keys and channels
	tag     string // the same, as one hash tag
}

func open(name string, cluster bool, addrs []string, protocol int) *session {
	s := &session{cluster: cluster, p: fmt.Sprintf("go:%s:%d:", name, protocol)}
	s.tag = "{" + s.p + "}"
	if cluster {
		s.UniversalClient = redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, Protocol: protocol})
	} else {
		s.UniversalClient = redis.NewClient(&redis.Options{Addr: addrs[0], Protocol: protocol})
	}
	return s
}

func run(prefix string, s *session) {
	defer s.Close()
	for _, feature := range []struct {
		name string
		run  func() error
	}{
		{"strings", s.strings}, {"hashes", s.hashes}, {"pipeline", s.pipeline}, {"transaction", s.transaction}, {"watch", s.watch},
		{"blocking", s.blocking}, {"pubsub", s.pubsub}, {"scripts", s.scripts}, {"scan", s.scan},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		s.ctx = ctx
		if err := feature.run(); err != nil {
			fmt.Printf("%s%s: %v\n", prefix, feature.name, err)
		} else {
			fmt.Println(prefix + feature.name)
		}
		cancel()
	}
}

// expect compares the result of a command.
func expect[T any](cmd interface{ Result() (T, error) }, want T) error {
	if got, err := cmd.Result(); err != nil || !reflect.DeepEqual(got, want) {
		return fmt.Errorf("%.100v: got %.100v, error %v, want %.100v", cmd, got, err, want)
	}
	return nil
}

// refused compares a command's error, of which word is the first word.
func refused(cmd redis.Cmder, word string) error {
	if err := cmd.Err(); err == nil || !strings.HasPrefix(err.Error(), word+" ") {
		return fmt.Errorf("%v: error %v, want %s", cmd, err, word)
	}
	return nil
}

func (s *session) strings() error {
	big := strings.Repeat("0123456789", 300_000)
	many := s.p
	if s.cluster { // a cluster client itself refuses keys of several slots
		many = s.tag
	}
	if err := s.Get(s.ctx, s.p+"none").Err(); !errors.Is(err, redis.Nil) {
		return fmt.Errorf("GET of nothing: %v", err)
	}
	return errors.Join(
		expect(s.Set(s.ctx, s.p+"s", "v", time.Minute), "OK"),
		expect(s.Get(s.ctx, s.p+"s"), "v"),
		expect(s.MSet(s.ctx, many+"a", 1, many+"b", 2, many+"c", 3), "OK"),
		expect(s.MGet(s.ctx, many+"a", many+"none", many+"c"), []any{"1", nil, "3"}),
		expect(s.Del(s.ctx, many+"a", many+"b", many+"c"), 3),
		expect(s.Set(s.ctx, s.p+"big", big, 0), "OK"),
		expect(s.Get(s.ctx, s.p+"big"), big),
	)
}

func (s *session) hashes() error {
	key := s.tag + ":cfg:c" // CoSky's form: read from the near-cache
	for version := range 3 {
		s.HSet(s.ctx, key, "data", "d", "version", version)
		for range 3 {
			if err := expect(s.HGetAll(s.ctx, key), map[string]string{"data": "d", "version": fmt.Sprint(version)}); err != nil {
				return err
			}
		}
	}
	return errors.Join(
		refused(s.LPush(s.ctx, key, "x"), "WRONGTYPE"),
		expect(s.ZAdd(s.ctx, s.p+"z", redis.Z{Score: -2.25e10, Member: "m"}), 1),
		expect(s.ZScore(s.ctx, s.p+"z", "m"), -2.25e10), // a type of its own in RESP3
	)
}

// pipeline, and nobody gets an answer that was meant for somebody else.
func (s *session) pipeline() error {
	const count = 1000
	replies, err := s.Pipelined(s.ctx, func(p redis.Pipeliner) error {
		for i := range count {
			p.Set(s.ctx, fmt.Sprint(s.p, "p", i), i, 0)
			p.Get(s.ctx, fmt.Sprint(s.p, "p", i))
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range count {
		if err := expect(replies[2*i+1].(*redis.StringCmd), fmt.Sprint(i)); err != nil {
			return err
		}
	}
	var workers sync.WaitGroup
	mixed := make(chan error, 20)
	for worker := range 20 {
		workers.Go(func() {
			for i := range 50 {
				key := fmt.Sprintf("%sp%d", s.p, (worker*50+i)%count)
				if err := expect(s.Get(s.ctx, key), fmt.Sprint((worker*50+i)%count)); err != nil {
					mixed <- err
					return
				}
			}
		})
	}
	workers.Wait()
	close(mixed)
	return <-mixed
}

func (s *session) transaction() error {
	replies, err := s.TxPipelined(s.ctx, func(p redis.Pipeliner) error {
		p.Set(s.ctx, s.tag+"t", 1, 0)
		p.Incr(s.ctx, s.tag+"t")
		return nil
	})
	if err != nil {
		return err
	}
	return errors.Join(expect(replies[1].(*redis.IntCmd), 2), expect(s.Get(s.ctx, s.tag+"t"), "2"))
}

func (s *session) watch() error {
	key := s.tag + "w"
	err := s.Watch(s.ctx, func(tx *redis.Tx) error {
		s.Set(s.ctx, key, 9, 0) // on another connection
		_, err := tx.TxPipelined(s.ctx, func(p redis.Pipeliner) error { return p.Incr(s.ctx, key).Err() })
		return err
	}, key)
	if !errors.Is(err, redis.TxFailedErr) {
		return fmt.Errorf("a transaction on a changed key: %v", err)
	}
	return expect(s.Get(s.ctx, key), "9")
}

func (s *session) blocking() error {
	popped := make(chan error, 1)
	go func() { popped <- expect(s.BLPop(s.ctx, limit, s.p+"queue"), []string{s.p + "queue", "job"}) }()
	return errors.Join(expect(s.LPush(s.ctx, s.p+"queue", "job"), 1), <-popped)
}

func (s *session) pubsub() error {
	sub := s.Subscribe(s.ctx, s.p+"channel")
	defer sub.Close()
	for range 2 { // confirmations
		if _, err := sub.ReceiveTimeout(s.ctx, limit); err != nil {
			return err
		}
		if err := sub.PSubscribe(s.ctx, s.p+"p*"); err != nil {
			return err
		}
	}
	for _, m := range []redis.Message{
		{Channel: s.p + "channel", Payload: "one"},
		{Channel: s.p + "pattern", Pattern: s.p + "p*", Payload: "two"},
	} {
		if err := s.Publish(s.ctx, m.Channel, m.Payload).Err(); err != nil {
			return err
		}
		if got, err := sub.ReceiveMessage(s.ctx); err != nil || !reflect.DeepEqual(*got, m) {
			return fmt.Errorf("got message %v, error %v, want %v", got, err, m)
		}
	}
	return nil
}

func (s *session) scripts() error {
	add := redis.NewScript("return redis.call('INCRBY', KEYS[1], ARGV[1])")
	keys := []string{s.p + "script"}
	return errors.Join(
		refused(s.EvalSha(s.ctx, strings.Repeat("0", 40), keys), "NOSCRIPT"),
		expect(add.Run(s.ctx, s, keys, 2), any(int64(2))), // EVALSHA, then EVAL
		expect(add.EvalSha(s.ctx, s, keys, 3), any(int64(5))),
	)
}

func (s *session) scan() error {
	members, keys := map[string]bool{}, map[string]bool{}
	fill, err := s.Pipelined(s.ctx, func(p redis.Pipeliner) error {
		for i := range 1000 {
			members[fmt.Sprint(i)] = true
			p.SAdd(s.ctx, s.p+"set", i)
		}
		for i := range 100 {
			key := fmt.Sprint(s.p, "scan:", i)
			keys[key] = true
			p.Set(s.ctx, key, "", 0)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot fill: %w (%d commands)", err, len(fill))
	}
	found := map[string]bool{}
	if err := collect(s.ctx, found, s.SScan(s.ctx, s.p+"set", 0, "", 100)); err != nil || !maps.Equal(found, members) {
		return fmt.Errorf("SSCAN: %d members, error %v", len(found), err)
	}
	clear(found)
	every := func(ctx context.Context, c *redis.Client) error {
		return collect(ctx, found, c.Scan(ctx, 0, s.p+"scan:*", 100))
	}
	if c, ok := s.UniversalClient.(*redis.ClusterClient); ok {
		var one sync.Mutex // masters are asked at the same time
		err = c.ForEachMaster(s.ctx, func(ctx context.Context, c *redis.Client) error {
			one.Lock()
			defer one.Unlock()
			return every(ctx, c)
		})
	} else {
		err = every(s.ctx, s.UniversalClient.(*redis.Client))
	}
	if err != nil || !maps.Equal(found, keys) {
		return fmt.Errorf("SCAN: %d keys, error %v", len(found), err)
	}
	return nil
}

func collect(ctx context.Context, into map[string]bool, scan *redis.ScanCmd) error {
	it := scan.Iterator()
	for it.Next(ctx) {
		into[it.Val()] = true
	}
	return it.Err()
}
