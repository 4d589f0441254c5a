package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"cosky-proxy/cluster"
	"cosky-proxy/cluster/slot"
	"cosky-proxy/proxy/mono"
)

// maxSentinels bounds how many sentinels are remembered; sets of more than five
// are rare.
const maxSentinels = 32

// sentinels is a master that Redis Sentinels watch and replace.
type sentinels struct {
	// static
	d     *Discovery
	login login // of the sentinels

	// atomic
	addrs atomic.Pointer[[]string] // the seeds and the sentinels they know; replaced, never changed

	// owned by the goroutine of snapshot
	links  linkSet // to the sentinels
	master linkSet // to whom they name
	addr   string  // the master that was confirmed last
	about  about   // what it said of itself
	epoch  uint64  // of its nomination
}

func newSentinels(d *Discovery) *sentinels {
	b := d.opts.Backend
	s := &sentinels{d: d, login: login{b.SentinelUser, b.SentinelPassword, d.opts.Dialer}}
	s.links = linkSet{login: s.login}
	s.master = linkSet{login: d.dataLogin(), probe: true}
	s.addrs.Store(&b.Seeds)
	return s
}

// nomination is one sentinel's answer: who the master is since which config epoch.
type nomination struct {
	addr   string
	epoch  uint64
	others []string // the other sentinels that it knows

	replicas []string // ascending; nil unless they are asked for
}

// snapshot asks all sentinels and takes the newest nomination that the nominee
// itself confirms: a sentinel may lag behind, or run ahead of a promotion. The
// master that was confirmed before is not asked again: it may be frozen, and
// waiting for it here would put off the news of its successor. The vouch
// goroutine has an eye on it.
func (s *sentinels) snapshot(ctx context.Context) (snapshot, error) {
	seeds := s.d.seeds(ctx)
	s.learn(seeds, *s.addrs.Load())
	answers, err := gather(ctx, s.links.to(*s.addrs.Load()), grace, s.nominate)
	if err != nil {
		return snapshot{}, err
	}
	var others []string
	for _, a := range answers {
		others = append(others, a.others...)
	}
	s.learn(seeds, others)
	nominees := rank(answers, s.epoch, len(s.links.links))
	if len(nominees) == 0 {
		return snapshot{}, errors.New("the sentinels that answer lag behind")
	}
	if nominees[0].addr == s.addr {
		s.epoch = nominees[0].epoch
		return singleShard(s.addr, s.about, nominees[0].replicas), nil
	}
	refused := make(seedErrors)
	for _, n := range nominees {
		l := s.master.to([]string{n.addr})[0]
		replies, about, err := s.d.askData(ctx, l, []any{"ROLE"})
		if err == nil {
			err = isMaster(replies[0])
		}
		if err == nil {
			s.addr, s.about, s.epoch = n.addr, about, n.epoch
			return singleShard(s.addr, s.about, n.replicas), nil
		}
		refused[n.addr] = err
	}
	return snapshot{}, fmt.Errorf("the sentinels name a master that cannot be used: %w", refused)
}

// rank returns one nomination per address, the newest first. Those older than
// epoch come from sentinels that lag behind; they count only if most of the asked
// ones agree on the past, which then was made anew (SENTINEL REMOVE, MONITOR).
func rank(answers []nomination, epoch uint64, asked int) []nomination {
	newest := slices.Clone(answers)
	slices.SortStableFunc(newest, func(a, b nomination) int { return cmp.Compare(b.epoch, a.epoch) })
	if len(newest) > 0 && newest[0].epoch < epoch && len(newest)*2 <= asked {
		return nil
	}
	var ranked []nomination
	for _, n := range newest {
		old := n.epoch < epoch && newest[0].epoch >= epoch
		known := slices.ContainsFunc(ranked, func(r nomination) bool { return r.addr == n.addr })
		if !old && !known {
			ranked = append(ranked, n)
		}
	}
	return ranked
}

// nominate asks one sentinel who the master is.
func (s *sentinels) nominate(ctx context.Context, l *link) (nomination, error) {
	name := s.d.opts.Backend.MasterName
	questions := [][]any{
		{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", name},
		{"SENTINEL", "MASTER", name},
		{"SENTINEL", "SENTINELS", name},
	}
	if s.d.opts.Replicas {
		questions = append(questions, []any{"SENTINEL", "REPLICAS", name})
	}
	replies, _, err := l.ask(ctx, s.d.opts.ConnectTimeout, questions...)
	if errors.Is(err, errPassword) {
		err = errSentinelPassword
	}
	if err != nil {
		return nomination{}, err
	}
	if err := replies[0].err; err != nil && strings.HasPrefix(err.Error(), "ERR unknown command") {
		return nomination{}, fmt.Errorf("it is not a Sentinel, use %s://%s", s.d.opts.Backend.scheme(cluster.Standalone), l.addr)
	}
	if errors.Is(replies[0].err, redis.Nil) {
		return nomination{}, fmt.Errorf("it watches no master named %q", name)
	}
	for _, r := range replies {
		if r.err != nil {
			return nomination{}, r.err
		}
	}
	addr, _ := replies[0].val.([]any)
	if len(addr) != 2 {
		return nomination{}, fmt.Errorf("unexpected master address %.80v", replies[0].val)
	}
	state := stringMap(replies[1].val)
	n := nomination{addr: net.JoinHostPort(fmt.Sprint(addr[0]), fmt.Sprint(addr[1]))}
	if n.epoch, err = strconv.ParseUint(state["config-epoch"], 10, 64); err != nil {
		return nomination{}, fmt.Errorf("unexpected config-epoch %q", state["config-epoch"])
	}
	n.others = addrsOf(replies[2])
	if s.d.opts.Replicas {
		n.replicas = addrsOf(replies[3])
		slices.Sort(n.replicas)
	}
	return n, nil
}

// addrsOf reads a list of instances, as SENTINEL SENTINELS gives it.
func addrsOf(r reply) (addrs []string) {
	list, _ := r.val.([]any)
	for _, instance := range list {
		fields := stringMap(instance)
		if fields["ip"] != "" && fields["port"] != "" {
			addrs = append(addrs, net.JoinHostPort(fields["ip"], fields["port"]))
		}
	}
	return addrs
}

// learn remembers the seeds and the sentinels that the asked ones know: the seeds need not
// name them all, and a set may be replaced one by one.
func (s *sentinels) learn(seeds, others []string) {
	addrs := slices.Clone(seeds)
	for _, other := range others {
		if !slices.Contains(addrs, other) && len(addrs) < maxSentinels {
			addrs = append(addrs, other)
		}
	}
	s.addrs.Store(&addrs)
}

// errNotMaster is of a moment: Sentinels know sooner or later than the server whether it is one.
var errNotMaster = unreachable{errors.New("it does not call itself a master")}

// isMaster reads a ROLE reply.
func isMaster(r reply) error {
	if r.err != nil {
		return r.err
	}
	role, _ := r.val.([]any)
	if len(role) == 0 || role[0] != "master" {
		return errNotMaster
	}
	return nil
}

// stringMap reads a map reply whose values are strings.
func stringMap(val any) map[string]string {
	m := make(map[string]string)
	for name, v := range fieldsOf(val) {
		m[name] = fmt.Sprint(v)
	}
	return m
}

func (s *sentinels) vouched() bool { return true }

func (s *sentinels) close() {
	s.links.close()
	s.master.close()
}

// vouch asks the master for its role and, at the same time, all sentinels whom
// they name. The first sentinel that names it suffices.
func (s *sentinels) vouch(ctx context.Context, shard cluster.Shard) {
	n := shard.Primary
	l := &link{addr: n.Addr, login: s.master.login}
	defer l.retire()
	watchers := linkSet{login: s.login}
	defer watchers.close()
	k := s.d.keeper(shard)
	s.d.tick(ctx, func() {
		sent := mono.Now()
		c, err := s.testimony(ctx, l, watchers.to(*s.addrs.Load()), k.epoch)
		if err != nil {
			s.d.Refresh(fmt.Sprintf("nobody vouches for %s: %v", n.Addr, err))
			return
		}
		if reason := k.hear(c, sent, mono.Now()); reason != "" {
			s.d.Refresh(n.Addr + ": " + reason)
		}
	})
}

// testimony combines the master's word with that of the first sentinel that
// names it or, with an epoch above the one known, another master.
func (s *sentinels) testimony(ctx context.Context, master *link, sentinels []*link, epoch uint64) (claim, error) {
	ctx, cancel := context.WithTimeout(ctx, s.d.opts.MaxStaleness)
	defer cancel()
	role := make(chan error, 1)
	go func() {
		replies, _, err := master.ask(ctx, s.d.opts.MaxStaleness, []any{"ROLE"})
		if err == nil {
			err = isMaster(replies[0])
		}
		role <- err
	}()
	answers, err := gather(ctx, sentinels, 0, func(ctx context.Context, l *link) (nomination, error) {
		a, err := s.nominate(ctx, l)
		if err == nil && a.addr != master.addr && a.epoch <= epoch {
			err = fmt.Errorf("it names %s", a.addr)
		}
		return a, err
	})
	if err != nil {
		return claim{}, err
	}
	if answers[0].addr != master.addr {
		return claim{primary: false}, nil
	}
	select {
	case err = <-role:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if errors.Is(err, errNotMaster) {
		return claim{primary: false}, nil
	}
	if err != nil {
		return claim{}, err
	}
	return claim{primary: true, stateOK: true, epoch: max(epoch, answers[0].epoch), ranges: []slot.Range{slot.All()}}, nil
}

// listen follows +switch-master on every sentinel.
func (s *sentinels) listen(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	followed := make(map[string]bool)
	s.d.tick(ctx, func() {
		for _, addr := range *s.addrs.Load() {
			if len(followed) >= 4*maxSentinels || followed[addr] {
				continue
			}
			followed[addr] = true
			wg.Go(func() { s.follow(ctx, addr) })
		}
	})
}

// follow keeps one sentinel's announcements coming. A gap costs only speed: the
// vouch goroutine asks anyway.
func (s *sentinels) follow(ctx context.Context, addr string) {
	for ctx.Err() == nil {
		err := s.followOnce(ctx, addr)
		s.d.opts.Logger.Debug("lost the announcements of a sentinel", "sentinel", addr, "cause", err)
		sleep(ctx, time.Second)
	}
}

func (s *sentinels) followOnce(ctx context.Context, addr string) error {
	dialCtx, cancel := context.WithTimeout(ctx, s.d.opts.ConnectTimeout)
	defer cancel()
	nc, err := s.login.dialer.Dial(dialCtx, addr)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { nc.Close() })()
	options := clientOptions(addr, s.login, s.d.opts.ConnectTimeout)
	options.Dialer = handOut(nc)
	client := redis.NewClient(options)
	defer client.Close()
	channel := client.Subscribe(ctx, "+switch-master")
	defer channel.Close()
	// Silence is normal, but not after a PING: then the sentinel is frozen or gone.
	for pinged := false; ; {
		msg, err := channel.ReceiveTimeout(ctx, 5*time.Second)
		var timeout net.Error
		switch {
		case err == nil:
			pinged = false
			if m, ok := msg.(*redis.Message); ok {
				s.switched(m.Payload)
			}
		case errors.As(err, &timeout) && timeout.Timeout() && !pinged:
			pinged = true
			if err := channel.Ping(ctx); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// switched handles "name old-ip old-port new-ip new-port".
func (s *sentinels) switched(payload string) {
	f := strings.Fields(payload)
	if len(f) != 5 || f[0] != s.d.opts.Backend.MasterName {
		return
	}
	t := s.d.Current()
	if t == nil {
		s.d.Refresh("+switch-master before anything was reached")
		return
	}
	master := t.Shards[0].Primary
	if master.Addr == net.JoinHostPort(f[3], f[4]) {
		return
	}
	master.Vouch.Revoke()
	s.d.Refresh("+switch-master to " + net.JoinHostPort(f[3], f[4]))
}
