package discovery

import (
	"context"
	"errors"
	"fmt"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/slot"
)

// source knows one kind of backend. snapshot and close are called by one
// goroutine at a time, listen and vouch run on goroutines of their own.
type source interface {
	// snapshot asks the backend what it looks like. The nodes carry no leases.
	snapshot(ctx context.Context) (snapshot, error)
	// vouched tells whether the backend's primaries need a lease.
	vouched() bool
	// vouch renews and revokes the lease of a shard's primary until ctx is done.
	vouch(ctx context.Context, shard cluster.Shard)
	// listen hears of changes that the backend announces, until ctx is done.
	listen(ctx context.Context)
	// close ends the connections of snapshot.
	close()
}

type snapshot struct {
	shards []cluster.Shard
	spares []string // addresses of primaries without slots, ascending
	abouts []about  // of the data servers that answered
}

// fixed is one server at a fixed address: nobody can take its place, so there is
// nothing to prove.
type fixed struct {
	d    *Discovery
	link *link
}

func newFixed(d *Discovery) *fixed {
	b := d.opts.Backend
	return &fixed{d: d, link: &link{addr: b.Seeds[0], login: login{b.User, b.Password}, probe: true}}
}

func (s *fixed) snapshot(ctx context.Context) (snapshot, error) {
	_, about, err := s.d.askData(ctx, s.link)
	// What it is comes first: a Sentinel, for one, knows no databases.
	switch about.mode {
	case "cluster":
		err = fmt.Errorf("it is a node of a Redis Cluster, use redis-cluster://%s", s.link.addr)
	case "sentinel":
		err = isSentinel(s.link)
	}
	if err != nil {
		return snapshot{}, seedErrors{s.link.addr: err}
	}
	return singleShard(s.link.addr, about), nil
}

// isSentinel is the error about a Sentinel in the place of a data server.
func isSentinel(l *link) error {
	return fmt.Errorf("it is a Sentinel, use redis-sentinel://%s/NAME", l.addr)
}

func (s *fixed) vouched() bool                        { return false }
func (s *fixed) vouch(context.Context, cluster.Shard) {}
func (s *fixed) listen(context.Context)               {}
func (s *fixed) close()                               { s.link.retire() }

func singleShard(addr string, a about) snapshot {
	return snapshot{
		shards: []cluster.Shard{{
			Primary: &cluster.Node{ID: addr, Addr: addr, Version: a.version},
			Ranges:  []slot.Range{slot.All()},
		}},
		abouts: []about{a},
	}
}

// askData puts commands to a data server, and makes sure on the way that the
// database of the URL exists there.
func (d *Discovery) askData(ctx context.Context, l *link, cmds ...[]any) ([]reply, about, error) {
	cmds = append([][]any{{"SELECT", d.opts.Backend.DB}}, cmds...)
	replies, about, err := l.ask(ctx, d.opts.ConnectTimeout, cmds...)
	if errors.Is(err, errPassword) {
		err = errDataPassword
	}
	if err != nil {
		return nil, about, err
	}
	if d.opts.Backend.DB != 0 && replies[0].err != nil {
		return nil, about, fmt.Errorf("cannot use database %d: %w", d.opts.Backend.DB, replies[0].err)
	}
	return replies[1:], about, nil
}
