package clustertest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// SentinelSet is a master with two replicas and the three sentinels that watch it.
type SentinelSet struct {
	Name      string   // the master's name, "mymaster"
	Nodes     []*Redis // Nodes[0] is the first master
	Sentinels []*Redis

	t TB
}

// StartSentinel starts a set and waits until the sentinels know each other and
// both replicas. They call the master down after 700 ms of silence, two of them
// must agree. args go to the three data servers.
func StartSentinel(t TB, args ...string) *SentinelSet {
	t.Helper()
	s := &SentinelSet{Name: "mymaster", t: t}
	s.Nodes = append(s.Nodes, s.launchServer(nil, args))
	master := s.Nodes[0]
	for range 2 {
		s.Nodes = append(s.Nodes, s.launchServer(master, args))
	}
	for _, r := range s.Nodes {
		r.awaitReady()
	}
	// Sentinels read the replicas out of the master's INFO, and read that rarely.
	Await(t, "the replicas", func() error {
		for _, r := range s.Nodes[1:] {
			if r.InfoField("replication", "master_link_status") != "up" {
				return fmt.Errorf("%s is not linked", r.Addr)
			}
		}
		return nil
	})
	for range 3 {
		s.Sentinels = append(s.Sentinels, s.launchSentinel(master))
	}
	for _, r := range s.Sentinels {
		r.awaitReady()
		s.hurry(r)
	}
	s.AwaitOK()
	return s
}

// hurry makes a sentinel do in tenths of seconds what it usually takes seconds for. It forgets that with a restart.
func (s *SentinelSet) hurry(r *Redis) {
	r.DoErr("SENTINEL", "DEBUG", "publish-period", 200, "info-period", 500, "ask-period", 200, "ping-period", 200, "tilt-period", 1000)
}

// Patience sets after how much silence the sentinels that run call the master down.
func (s *SentinelSet) Patience(d time.Duration) {
	s.t.Helper()
	for _, r := range s.Sentinels {
		if r.Running() {
			r.Do("SENTINEL", "SET", s.Name, "down-after-milliseconds", d.Milliseconds())
		}
	}
}

// RestartSentinel starts a sentinel again, with what it knew, and waits until it agrees with the others.
func (s *SentinelSet) RestartSentinel(r *Redis) {
	s.t.Helper()
	r.Restart()
	s.hurry(r)
	s.AwaitOK()
}

// launchServer starts a data server, of which master it is a replica (nil: of none) stands in a file, which sentinels have it
// rewrite: so it comes back from a restart as what it was.
func (s *SentinelSet) launchServer(master *Redis, args []string) *Redis {
	s.t.Helper()
	return launchIn(s.t, s.t.TempDir(), func(dir string, port int) []string {
		conf, text := filepath.Join(dir, "redis.conf"), ""
		if master != nil {
			text = fmt.Sprintf("replicaof 127.0.0.1 %d\n", master.Port)
		}
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			s.t.Fatalf("cannot write the server's configuration: %v", err)
		}
		return append(append([]string{conf}, baseArgs(dir, port)...), args...)
	})
}

func (s *SentinelSet) launchSentinel(master *Redis) *Redis {
	s.t.Helper()
	return launchIn(s.t, s.t.TempDir(), func(dir string, port int) []string {
		lines := []string{
			"port " + strconv.Itoa(port),
			"bind 127.0.0.1",
			"protected-mode no",
			"dir " + dir,
			"logfile " + filepath.Join(dir, "redis.log"),
			fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 2", s.Name, master.Port),
			fmt.Sprintf("sentinel down-after-milliseconds %s 700", s.Name),
			fmt.Sprintf("sentinel failover-timeout %s 3000", s.Name),
			fmt.Sprintf("sentinel parallel-syncs %s 2", s.Name),
		}
		if password := master.arg("--requirepass"); password != "" {
			lines = append(lines, fmt.Sprintf("sentinel auth-pass %s %s", s.Name, password))
		}
		conf := filepath.Join(dir, "sentinel.conf")
		if err := os.WriteFile(conf, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			s.t.Fatalf("cannot write the sentinel's configuration: %v", err)
		}
		return []string{conf, "--sentinel"}
	})
}

// AwaitOK waits until every sentinel that runs names the same master and knows
// the other sentinels and both other data servers, and the data servers that run
// have taken their roles. A frozen one has not.
func (s *SentinelSet) AwaitOK() {
	s.t.Helper()
	Await(s.t, "the sentinels to agree", func() error {
		var master string
		for _, r := range s.Sentinels {
			if !r.Running() {
				continue
			}
			state, err := s.stateAt(r)
			if err != nil {
				return err
			}
			addr := net.JoinHostPort(state["ip"], state["port"])
			if master == "" {
				master = addr
			}
			switch {
			case addr != master:
				return fmt.Errorf("sentinels name %s and %s", master, addr)
			case state["flags"] != "master":
				return fmt.Errorf("the master's flags are %q", state["flags"])
			case state["num-slaves"] != strconv.Itoa(len(s.Nodes)-1):
				return fmt.Errorf("%s knows %s replicas", r.Addr, state["num-slaves"])
			case state["num-other-sentinels"] != strconv.Itoa(len(s.Sentinels)-1):
				return fmt.Errorf("%s knows %s other sentinels", r.Addr, state["num-other-sentinels"])
			}
		}
		return s.rolesTaken(master)
	})
}

// rolesTaken checks that every data server that runs is what the sentinels want
// it to be: the master, or a replica in sync.
func (s *SentinelSet) rolesTaken(master string) error {
	found := false
	for _, r := range s.Nodes {
		want, field := "up", "master_link_status"
		if r.Addr == master {
			want, field, found = "master", "role", true
		}
		if got := r.InfoField("replication", field); r.Running() && got != want {
			return fmt.Errorf("%s has %s:%s, want %s", r.Addr, field, got, want)
		}
	}
	if !found {
		return fmt.Errorf("sentinels name %q", master)
	}
	return nil
}

// stateAt returns a sentinel's fields for the master.
func (s *SentinelSet) stateAt(r *Redis) (map[string]string, error) {
	reply, err := r.DoErr("SENTINEL", "MASTER", s.Name)
	if err != nil {
		return nil, err
	}
	state := map[string]string{}
	switch reply := reply.(type) {
	case map[any]any:
		for k, v := range reply {
			state[fmt.Sprint(k)] = fmt.Sprint(v)
		}
	case []any:
		for i := 0; i+1 < len(reply); i += 2 {
			state[fmt.Sprint(reply[i])] = fmt.Sprint(reply[i+1])
		}
	}
	return state, nil
}

// Addrs returns the addresses of the sentinels.
func (s *SentinelSet) Addrs() []string {
	var addrs []string
	for _, r := range s.Sentinels {
		addrs = append(addrs, r.Addr)
	}
	return addrs
}

// Master returns the server that the first running sentinel names.
func (s *SentinelSet) Master() *Redis {
	s.t.Helper()
	for _, sentinel := range s.Sentinels {
		if !sentinel.Running() {
			continue
		}
		state, err := s.stateAt(sentinel)
		if err != nil {
			continue
		}
		for _, r := range s.Nodes {
			if strconv.Itoa(r.Port) == state["port"] {
				return r
			}
		}
	}
	s.t.Fatalf("no sentinel names a master")
	return nil
}

// Replicas returns the running data servers that are not the master.
func (s *SentinelSet) Replicas() []*Redis {
	s.t.Helper()
	master := s.Master()
	var replicas []*Redis
	for _, r := range s.Nodes {
		if r != master && r.Running() {
			replicas = append(replicas, r)
		}
	}
	return replicas
}

// Failover makes a sentinel promote a replica, and waits until all agree.
func (s *SentinelSet) Failover() {
	s.t.Helper()
	old := s.Master()
	// One that takes longer than failover-timeout, on a busy machine, is given up: then it is asked for again.
	var asked time.Time
	Await(s.t, "SENTINEL FAILOVER to be done", func() error {
		if time.Since(asked) > 6*time.Second {
			if _, err := s.Sentinels[0].DoErr("SENTINEL", "FAILOVER", s.Name); err != nil {
				return err
			}
			asked = time.Now()
		}
		if s.Master() == old {
			return fmt.Errorf("the master is still %s", old.Addr)
		}
		return nil
	})
	s.AwaitOK()
}

// AwaitFailover waits until the sentinels name another master than old, which
// may be dead, and returns it.
func (s *SentinelSet) AwaitFailover(old *Redis) *Redis {
	s.t.Helper()
	Await(s.t, "another master", func() error {
		if s.Master() == old {
			return fmt.Errorf("it is still %s", old.Addr)
		}
		return nil
	})
	return s.Master()
}
