package discovery

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

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

// fixed is one server. At an IP address nobody can take its place, so there is nothing to prove. A name
// may come to stand for another server: the topology has the address that it led to last, and
// the lease of that one ends when it does not any more.
type fixed struct {
	// static
	d     *Discovery
	named bool

	// owned by the goroutine of snapshot
	link *link
	at   string // where link leads, of a named one
}

func newFixed(d *Discovery) *fixed {
	seed := d.opts.Backend.Seeds[0]
	s := &fixed{d: d, named: isName(d.opts.Dialer.Target(seed))}
	s.link = s.newLink()
	return s
}

func (s *fixed) newLink() *link {
	return &link{addr: s.d.opts.Backend.Seeds[0], login: s.d.dataLogin(), probe: true}
}

func (s *fixed) snapshot(ctx context.Context) (snapshot, error) {
	if s.named && s.at != "" && s.movedAway(ctx) {
		s.d.opts.Logger.Info("the backend's name leads elsewhere", "name", s.link.addr, "before", s.at)
		s.link.retire()
		s.link = s.newLink()
	}
	replies, about, err := s.d.askData(ctx, s.link, s.d.aboutReplicas()...)
	// What it is comes first: a Sentinel, for one, knows no databases.
	switch about.mode {
	case "cluster":
		err = fmt.Errorf("it is a node of a Redis Cluster, use %s://%s", s.d.opts.Backend.scheme(cluster.Cluster), s.link.addr)
	case "sentinel":
		err = s.d.isSentinel(s.link)
	}
	if err != nil {
		return snapshot{}, seedErrors{s.link.addr: err}
	}
	addr := s.link.addr
	if s.named {
		s.at = about.remote
		addr = s.at
	}
	return singleShard(addr, about, replicasOf(replies)), nil
}

// movedAway reports whether the name certainly does not stand for the server any more.
func (s *fixed) movedAway(ctx context.Context) bool {
	now := s.d.lookUp(ctx, s.d.opts.Dialer.Target(s.link.addr))
	return len(now) > 0 && !slices.Contains(now, s.at)
}

// isSentinel is the error about a Sentinel in the place of a data server.
func (d *Discovery) isSentinel(l *link) error {
	return fmt.Errorf("it is a Sentinel, use %s://%s/NAME", d.opts.Backend.scheme(cluster.Sentinel), l.addr)
}

func (s *fixed) vouched() bool { return s.named }

// vouch: a server is what its name stands for until a snapshot finds another one.
func (s *fixed) vouch(_ context.Context, shard cluster.Shard) {
	shard.Primary.Vouch.Renew(math.MaxInt64)
}

func (s *fixed) listen(context.Context) {}
func (s *fixed) close()                 { s.link.retire() }

// singleShard is what a server looks like that owns every slot.
func singleShard(addr string, a about, replicas []string) snapshot {
	shard := cluster.Shard{
		Primary: &cluster.Node{ID: addr, Addr: addr, Version: a.version},
		Ranges:  []slot.Range{slot.All()},
	}
	for _, r := range replicas {
		if r != addr {
			shard.Replicas = append(shard.Replicas, &cluster.Node{ID: r, Addr: r})
		}
	}
	return snapshot{shards: []cluster.Shard{shard}, abouts: []about{a}}
}

// aboutReplicas asks a data server for its replicas, if anybody is interested.
func (d *Discovery) aboutReplicas() [][]any {
	if !d.opts.Replicas {
		return nil
	}
	return [][]any{{"INFO", "replication"}}
}

// replicasOf reads the answer. One that makes no sense is none: then there are only no replicas.
func replicasOf(replies []reply) []string {
	if len(replies) == 0 {
		return nil
	}
	rep, err := parseReplication(replies[0])
	if err != nil || !rep.primary {
		return nil
	}
	return rep.slaves
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
