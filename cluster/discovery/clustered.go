package discovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/proxy/mono"
)

// clustered is a Redis Cluster.
type clustered struct {
	// static
	d *Discovery

	// owned by the goroutine of snapshot
	members []member // of the last snapshot: whom to ask, and what was known
	known   linkSet  // to the members
	seeds   linkSet  // to the seeds, while no member answers
}

func newClustered(d *Discovery) *clustered {
	login := d.dataLogin()
	return &clustered{d: d, known: linkSet{login: login, probe: true}, seeds: linkSet{login: login, probe: true}}
}

func (s *clustered) snapshot(ctx context.Context) (snapshot, error) {
	views, err := s.askMembers(ctx, s.members)
	before := s.members
	if err != nil {
		before = nil // what a seed says decides, nothing known before counts
		if views, err = s.askSeeds(ctx); err != nil {
			return snapshot{}, err
		}
	}
	members := merge(views, before)
	snap := snapshot{shards: shardsOf(members), spares: sparesOf(members)}
	if len(snap.shards) == 0 { // it was the last moment of a slot
		return snapshot{}, errNoSlots
	}
	for _, v := range views {
		snap.abouts = append(snap.abouts, v.about)
	}
	s.members = members
	return snap, nil
}

// errNoSlots: a node that was not made part of a cluster yet, or was reset, says so, and
// so do all nodes of a cluster that is being created. None of that is a mistake in the configuration, and
// nothing of it is worth more than what was known before.
var errNoSlots = unreachable{errors.New("no node of its cluster owns any slot (yet)")}

// askMembers returns the views of those members that answer as themselves: another node may have their
// address by now, even one of another cluster. None of them knowing anybody who owns slots is as good as no answer.
func (s *clustered) askMembers(ctx context.Context, members []member) ([]view, error) {
	ids := make(map[string]string)
	for _, m := range members {
		ids[m.addr] = m.id
	}
	links := s.known.to(slices.Sorted(maps.Keys(ids)))
	views, err := gather(ctx, links, grace, func(ctx context.Context, l *link) (view, error) {
		v, err := s.d.askView(ctx, l, s.d.opts.ConnectTimeout)
		if err == nil && v.self().id != ids[l.addr] {
			err = errors.New("another node has this address now")
		}
		return v, err
	})
	if err == nil && !slices.ContainsFunc(views, view.ownsSlots) {
		err = errNoSlots
	}
	return views, err
}

// askSeeds starts over from the first seed that answers, and knows of a cluster: what it says decides who
// is asked next.
func (s *clustered) askSeeds(ctx context.Context) ([]view, error) {
	defer s.seeds.close()
	first, err := gather(ctx, s.seeds.to(s.d.seeds(ctx)), 0, func(ctx context.Context, l *link) (view, error) {
		v, err := s.d.askView(ctx, l, s.d.opts.ConnectTimeout)
		if err == nil && !v.ownsSlots() {
			err = errNoSlots
		}
		return v, err
	})
	if err != nil {
		return nil, err
	}
	views, err := s.askMembers(ctx, merge(first, nil))
	if err != nil {
		return nil, fmt.Errorf("a seed answers, but no node under the address that it announces (cluster-announce-ip): %w", err)
	}
	return views, nil
}

// askView asks one node for its view of the cluster.
func (d *Discovery) askView(ctx context.Context, l *link, timeout time.Duration) (view, error) {
	replies, about, err := l.ask(ctx, timeout,
		[]any{"CLUSTER", "NODES"}, []any{"CLUSTER", "INFO"}, []any{"CLUSTER", "SHARDS"})
	if errors.Is(err, errPassword) {
		err = errDataPassword
	}
	if err == nil && about.mode == "sentinel" {
		err = d.isSentinel(l)
	}
	if err != nil {
		return view{}, err
	}
	nodes, err := replies[0].text()
	if err != nil {
		if strings.Contains(err.Error(), "cluster support disabled") {
			err = fmt.Errorf("it is not a node of a Redis Cluster, use %s://%s", d.opts.Backend.scheme(cluster.Standalone), l.addr)
		}
		return view{}, err
	}
	host, _, err := net.SplitHostPort(l.addr)
	if err != nil {
		return view{}, err
	}
	v := view{about: about}
	if v.members, err = parseNodes(nodes, host); err != nil {
		return view{}, err
	}
	info, _ := replies[1].text()
	v.stateOK = strings.Contains(info, "cluster_state:ok")
	addrs, err := d.endpoints(ctx, l, replies[2], host, timeout)
	if err != nil {
		return view{}, err
	}
	for i := range v.members {
		if addr := addrs[v.members[i].id]; addr != "" {
			v.members[i].addr = addr
		}
	}
	return v, nil
}

// endpoints are the addresses, by node ID, that the cluster wants its clients to use, out of a CLUSTER SHARDS
// reply. Servers before 7.0 do not have that, and are asked for CLUSTER SLOTS, which tells the same of
// fewer nodes.
func (d *Discovery) endpoints(ctx context.Context, l *link, shards reply, host string, timeout time.Duration) (map[string]string, error) {
	if shards.err == nil {
		return shardEndpoints(shards.val, host, d.opts.Dialer.Encrypted()), nil
	}
	replies, _, err := l.ask(ctx, timeout, []any{"CLUSTER", "SLOTS"})
	if err != nil {
		return nil, err
	}
	return slotEndpoints(replies[0].val, host), nil
}

func (s *clustered) vouched() bool          { return true }
func (s *clustered) listen(context.Context) {}

func (s *clustered) close() {
	s.known.close()
	s.seeds.close()
}

// vouch asks the primary for its own view. A question is worth waiting for only
// as long as its answer could prove something.
func (s *clustered) vouch(ctx context.Context, shard cluster.Shard) {
	n := shard.Primary
	l := &link{addr: n.Addr, login: s.known.login}
	defer l.retire()
	k := s.d.keeper(shard)
	s.d.tick(ctx, func() {
		sent := mono.Now()
		replies, _, err := l.ask(ctx, s.d.opts.MaxStaleness, []any{"CLUSTER", "NODES"}, []any{"CLUSTER", "INFO"})
		var c claim
		if err == nil {
			c, err = claimOf(replies[0], replies[1], n.ID)
		}
		if err != nil {
			s.d.Refresh(fmt.Sprintf("%s does not vouch for itself: %v", n.Addr, err))
			return
		}
		if reason := k.hear(c, sent, mono.Now()); reason != "" {
			s.d.Refresh(n.Addr + ": " + reason)
		}
	})
}

// claimOf reads what the node with that ID says of itself. It parses no other
// line: in a large cluster this is the most frequent work of the control plane.
func claimOf(nodes, info reply, id string) (claim, error) {
	text, err := nodes.text()
	if err != nil {
		return claim{}, err
	}
	at := strings.Index(text, " myself,")
	if at < 0 {
		return claim{}, errors.New("the node is not in its own CLUSTER NODES reply")
	}
	line := text[strings.LastIndexByte(text[:at], '\n')+1:]
	line, _, _ = strings.Cut(line, "\n")
	members, err := parseNodes(line, "myself")
	if err != nil {
		return claim{}, err
	}
	m := members[0]
	if m.id != id {
		return claim{}, errors.New("another node has this address now")
	}
	state, err := info.text()
	if err != nil {
		return claim{}, err
	}
	return claim{
		primary: m.primary, failed: m.failed, migrating: m.migrating, epoch: m.epoch, ranges: m.ranges,
		stateOK: strings.Contains(state, "cluster_state:ok"),
	}, nil
}
