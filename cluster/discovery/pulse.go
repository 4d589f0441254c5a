package discovery

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cosky-proxy/cluster"
	"cosky-proxy/proxy/mono"
)

// history is what a shard's primary is known to have had when: its replication offsets. A replica whose
// own offset reaches one of them has everything that was written up to that question, if both count in the same
// replication history: a primary that was restarted begins another one, with small offsets (replication.c: replid).
type history struct {
	// static
	lag int64 // nanoseconds that samples are of use

	// guarded by mu
	mu      sync.Mutex
	samples []sample // ascending by time; the newest is always kept
	silent  bool     // the primary did not answer last
}

type sample struct {
	sent int64 // when the primary was asked (mono)
	progress
}

// progress is how much of which replication history a server has.
type progress struct {
	replid string // of the history; empty before Redis 4
	offset int64
}

// reaches reports whether who is at p has everything that q says.
func (p progress) reaches(q progress) bool { return p.replid == q.replid && p.offset >= q.offset }

// note keeps what the primary has answered.
func (h *history) note(s sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.silent = false
	h.samples = append(h.samples, s)
	old := 0
	for old < len(h.samples)-1 && h.samples[old].sent+h.lag < s.sent {
		old++
	}
	h.samples = slices.Delete(h.samples, 0, old)
}

func (h *history) miss() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.silent = true
}

// reached returns the moment up to which a replica at p, asked at sent, is proven to have everything, and the one from which its lag
// counts; ok is false when there is none. They differ while the primary does not answer: it is taken to have written nothing since it
// last did, because there is nobody else to compare with.
func (h *history) reached(p progress, sent int64) (proven, from int64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := len(h.samples) - 1
	for i := last; i >= 0; i-- {
		switch s := h.samples[i]; {
		case !p.reaches(s.progress):
		case h.silent && i == last:
			return s.sent, sent, true
		default:
			return s.sent, s.sent, true
		}
	}
	return 0, sent, h.silent && last < 0
}

// replication is a server's INFO replication, as far as it matters.
type replication struct {
	primary bool
	syncing bool // a replica that has no data set, or an old one that is being replaced
	progress
	slaves []string // addresses of a primary's replicas, ascending
}

func parseReplication(r reply) (replication, error) {
	text, err := r.text()
	if err != nil {
		return replication{}, err
	}
	rep := replication{progress: progress{offset: -1}}
	var own, applied int64 = -1, -1
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "role":
			rep.primary = value == "master"
		case "master_sync_in_progress":
			rep.syncing = value != "0"
		case "master_replid":
			rep.replid = value
		case "master_repl_offset":
			own, _ = strconv.ParseInt(value, 10, 64)
		case "slave_repl_offset":
			applied, _ = strconv.ParseInt(value, 10, 64)
		default:
			if addr := slaveAddr(name, value); addr != "" {
				rep.slaves = append(rep.slaves, addr)
			}
		}
	}
	slices.Sort(rep.slaves)
	if rep.offset = own; !rep.primary {
		rep.offset = applied
	}
	if rep.offset < 0 {
		return replication{}, errors.New("INFO replication tells no offset")
	}
	return rep, nil
}

// slaveAddr reads "slave0:ip=10.0.0.1,port=6379,state=online,…".
func slaveAddr(name, value string) string {
	n, ok := strings.CutPrefix(name, "slave")
	if _, err := strconv.Atoi(n); !ok || err != nil {
		return ""
	}
	var host, port string
	for field := range strings.SplitSeq(value, ",") {
		switch k, v, _ := strings.Cut(field, "="); k {
		case "ip":
			host = v
		case "port":
			port = v
		}
	}
	if host == "" || port == "" || port == "0" {
		return ""
	}
	return net.JoinHostPort(host, port)
}

// takePulse keeps the pulses of a shard's servers until ctx is done. Each is asked on a connection of its own,
// three times in the lag that is allowed, so a frozen one delays no other.
func (d *Discovery) takePulse(ctx context.Context, shard cluster.Shard) {
	h := &history{lag: int64(d.opts.MaxReplicaLag)}
	var wg sync.WaitGroup
	for _, n := range append([]*cluster.Node{shard.Primary}, shard.Replicas...) {
		wg.Go(func() { d.feel(ctx, shard, n, h) })
	}
	wg.Wait()
}

// feel asks one server of a shard until ctx is done.
func (d *Discovery) feel(ctx context.Context, shard cluster.Shard, n *cluster.Node, h *history) {
	primary := n == shard.Primary
	l := &link{addr: n.Addr, login: d.dataLogin()}
	defer l.retire()
	pause := max(d.opts.MaxReplicaLag/3, time.Millisecond)
	for ctx.Err() == nil {
		sent := mono.Now()
		// A frozen primary is known to be silent when the last that it said stops being of use.
		replies, _, err := l.ask(ctx, 2*pause, []any{"INFO", "replication"})
		var rep replication
		if err == nil {
			rep, err = parseReplication(replies[0])
		}
		switch {
		case err != nil || rep.primary != primary:
			if primary {
				h.miss()
			}
		case primary:
			h.note(sample{sent, rep.progress})
			n.Pulse.Renew(sent + h.lag)
			if d.opts.Backend.Mode == cluster.Standalone && !sameAddrs(shard.Replicas, rep.slaves) {
				d.Refresh("the replicas of " + n.Addr + " have changed") // nobody else tells
			}
		case !rep.syncing:
			if proven, from, ok := h.reached(rep.progress, sent); ok {
				n.Pulse.Prove(proven)
				n.Pulse.Renew(from + h.lag)
			}
		}
		if err == nil {
			n.Pulse.Beat(time.Duration(mono.Now() - sent))
		}
		if now := mono.Now(); n.Pulse.Young(now, 2*h.lag) { // its primary may have been asked a moment later
			sleep(ctx, min(pause, firstPause))
		} else {
			sleep(ctx, pause-time.Duration(now-sent))
		}
	}
}

func sameAddrs(nodes []*cluster.Node, addrs []string) bool {
	return slices.EqualFunc(nodes, addrs, func(n *cluster.Node, addr string) bool { return n.Addr == addr })
}

// firstPause is the time between two questions to a server that is not proven to be fit yet.
const firstPause = 50 * time.Millisecond

// pulseRun is the goroutine that takes a shard's pulses.
type pulseRun struct {
	replicas []*cluster.Node
	stop     context.CancelFunc
}

// feelAll takes the pulses of every shard of t, and no others.
func (d *Discovery) feelAll(ctx context.Context, t *cluster.Topology) {
	if !d.opts.Replicas {
		return
	}
	wanted := make(map[*cluster.Node]bool)
	for _, shard := range t.Shards {
		p := shard.Primary
		wanted[p] = true
		run, runs := d.pulses[p]
		if runs && slices.Equal(run.replicas, shard.Replicas) {
			continue
		}
		if runs {
			run.stop()
		}
		pulseCtx, stop := context.WithCancel(ctx)
		d.pulses[p] = pulseRun{shard.Replicas, stop}
		d.vouchWG.Go(func() { d.takePulse(pulseCtx, shard) })
	}
	for p, run := range d.pulses {
		if !wanted[p] {
			run.stop()
			delete(d.pulses, p)
		}
	}
}
