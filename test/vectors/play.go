package vectors

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cosky-proxy/lua"
	"cosky-proxy/nearcache/coskey"
)

// Mode is how scripts are sent.
type Mode uint8

const (
	EVALSHA Mode = iota // by digest first, with the text only after NOSCRIPT, as CoSky does
	EVAL                // always with the text
)

// Target is what a scenario is played against.
type Target struct {
	Addr     string   // where commands and scripts go, host:port
	Observe  string   // server behind it, asked directly for state and messages; empty: Addr
	Cluster  []string // instead of Observe: all primaries behind it
	RESP     int      // protocol of the connection to Addr; 0 means 2
	Mode     Mode
	Again    bool   // ask what has no effect three times: a cache may know the answer by then
	Embedded bool   // the server is miniredis: it sorts hashes and sets, and expiry times it reports waver
	Flush    func() // empties the database; nil: FLUSHALL over Addr
}

// A key that is to be seen shortly before its expiry needs a player that keeps pace:
// within pace after a PEXPIRE of up to soon. A play that fell behind and failed proves
// nothing and is repeated, up to replays times.
const (
	pace    = 350 * time.Millisecond
	soon    = 6 * time.Second
	replays = 5
)

// Play plays one scenario and reports every difference to t.
func Play(t testing.TB, s Scenario, target Target) {
	t.Helper()
	for attempt := 1; ; attempt++ {
		faults, late, err := play(s, target)
		if err != nil {
			t.Fatalf("cannot play %q: %v", s.ID, err)
		}
		if len(faults) > 0 && late && attempt < replays {
			continue
		}
		for _, f := range faults {
			t.Errorf("%s: %s", s.ID, f)
		}
		return
	}
}

// play returns the differences it found, and whether the player fell behind.
func play(s Scenario, target Target) (faults []string, late bool, err error) {
	p := &player{target: target}
	defer p.close()
	err = p.run(s)
	return p.faults, p.late, err
}

// player is one play of one scenario.
type player struct {
	target  Target
	client  *conn   // to Addr
	servers []*conn // to each server observed
	sub     *conn   // subscriber on the first of them

	start    time.Time // of the scenario
	markers  int       // barriers passed
	deadline time.Time // up to here the player keeps pace; zero: no hurry
	late     bool
	faults   []string
}

func (p *player) faultf(format string, args ...any) {
	p.faults = append(p.faults, fmt.Sprintf(format, args...))
}

func (p *player) close() {
	for _, c := range append(p.servers, p.client, p.sub) {
		if c != nil {
			c.close()
		}
	}
}

func (p *player) connect() (err error) {
	if p.client, err = dial(p.target.Addr, p.target.RESP); err != nil {
		return err
	}
	addrs := p.target.Cluster
	if len(addrs) == 0 {
		addrs = []string{p.target.Observe}
		if p.target.Observe == "" {
			addrs[0] = p.target.Addr
		}
	}
	for _, a := range addrs {
		c, err := dial(a, 2)
		if err != nil {
			return err
		}
		p.servers = append(p.servers, c)
	}
	if p.sub, err = dial(addrs[0], 2); err != nil {
		return err
	}
	_, err = p.sub.do("PSUBSCRIBE", "*")
	return err
}

func (p *player) run(s Scenario) error {
	if err := p.connect(); err != nil {
		return err
	}
	if err := p.flush(); err != nil {
		return err
	}
	p.start = time.Now()
	if _, err := p.published(); err != nil { // what the flush set off
		return err
	}
	before, err := snapshot(p.servers)
	if err != nil {
		return err
	}
	for i, step := range s.Steps {
		if before, err = p.step(i, step, before); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	p.checkState(s.State, before)
	return nil
}

func (p *player) flush() error {
	if p.target.Flush != nil {
		p.target.Flush()
		return nil
	}
	v, err := p.client.do("FLUSHALL")
	if err == nil && v.kind == failure {
		err = fmt.Errorf("FLUSHALL: %s", v.text)
	}
	return err
}

// step takes one step and returns the snapshot after it.
func (p *player) step(n int, step Step, before map[string]content) (map[string]content, error) {
	if step.SleepMS > 0 {
		time.Sleep(time.Duration(step.SleepMS) * time.Millisecond)
		return snapshot(p.servers)
	}
	awaitClock(step)
	m := matcher{start: p.start, now: time.Now(), anyOrder: p.target.Embedded}
	keys, args := arguments(step.Keys, m.now), arguments(step.Args, m.now)
	reply, err := p.call(step, keys, args, m.now)
	if err != nil {
		return nil, err
	}
	if err := m.match(step.Reply, reply); err != nil {
		p.faultf("step %d: reply: %v", n, err)
	}
	if p.target.Again && step.asks() {
		for range 2 {
			if reply, err = p.call(step, keys, args, m.now); err != nil {
				return nil, err
			}
			if err := m.match(step.Reply, reply); err != nil {
				p.faultf("step %d: reply when asked again: %v", n, err)
			}
		}
	}
	messages, err := p.published()
	if err != nil {
		return nil, err
	}
	if err := m.match(step.Published, value{kind: list, elems: messages}); err != nil {
		p.faultf("step %d: published: %v", n, err)
	}
	after, err := snapshot(p.servers)
	if err != nil {
		return nil, err
	}
	p.keepPace(step, m.now)
	changed, want := changes(before, after), step.Changed
	if p.target.Embedded {
		changed, want = withoutTTL(changed), withoutTTL(want)
	}
	ttl := expiry(step)
	wavers := p.target.Embedded && ttl < 100*time.Millisecond
	if ttl == 0 || !wavers && time.Since(m.now) < ttl { // else it may have expired before anyone looked
		if !maps.Equal(changed, want) {
			p.faultf("step %d: changed: got %v, want %v", n, changed, want)
		}
	}
	if step.Script != "" {
		p.checkEffect(n, step, keys, args, changed)
		if reply.kind != failure { // a failing script need not announce what it did
			p.checkEvents(n, changed, messages)
		}
	}
	return after, nil
}

// asks reports whether the step has neither an effect nor an error.
func (s *Step) asks() bool {
	return s.Script != "" && lua.ByName(s.Script).Answer != lua.NoAnswer && len(s.Changed) == 0
}

// awaitClock makes a TTL set again for the same number of seconds differ from the one
// before: the server counts in milliseconds.
func awaitClock(step Step) {
	for _, what := range step.Changed {
		if strings.Contains(what, "ttl") {
			time.Sleep(2 * time.Millisecond)
			return
		}
	}
}

func (p *player) call(step Step, keys, args []string, now time.Time) (value, error) {
	if step.Script == "" {
		return p.client.do(arguments(step.Cmd, now)...)
	}
	script := lua.ByName(step.Script)
	if script == nil {
		return value{}, fmt.Errorf("no script %q", step.Script)
	}
	operands := slices.Concat([]string{strconv.Itoa(len(keys))}, keys, args)
	if p.target.Mode == EVALSHA {
		v, err := p.client.do(append([]string{"EVALSHA", script.SHA1}, operands...)...)
		if err != nil || v.kind != failure || !strings.HasPrefix(v.text, "NOSCRIPT") {
			return v, err
		}
	}
	return p.client.do(append([]string{"EVAL", script.Text}, operands...)...)
}

// published returns the messages since the last call, as [channel, payload] each. Each
// server sends a marker after them; messages of one server keep their order.
func (p *player) published() ([]value, error) {
	const channel = "test/vectors:barrier"
	p.markers++
	marker := strconv.Itoa(p.markers)
	for _, c := range p.servers {
		if _, err := c.do("PUBLISH", channel, marker); err != nil {
			return nil, err
		}
	}
	var out []value
	for seen := 0; seen < len(p.servers); {
		push, err := p.sub.receive()
		if err != nil {
			return nil, fmt.Errorf("cannot read messages: %w", err)
		}
		if len(push.elems) != 4 || push.elems[0].text != "pmessage" {
			return nil, fmt.Errorf("unexpected message %v", push)
		}
		if push.elems[2].text != channel {
			out = append(out, value{kind: list, elems: push.elems[2:]})
		} else if push.elems[3].text == marker {
			seen++
		}
	}
	return out, nil
}

// keepPace notes when a scenario about a TTL was played too slowly to count.
func (p *player) keepPace(step Step, sent time.Time) {
	if ttl := expiry(step); ttl > 0 {
		p.deadline = time.Time{}
		if ttl <= soon {
			p.deadline = sent.Add(pace)
		}
		return
	}
	if !p.deadline.IsZero() && time.Now().After(p.deadline) {
		p.late = true
	}
}

// expiry returns the TTL that a PEXPIRE sets, 0 for other steps.
func expiry(step Step) time.Duration {
	if len(step.Cmd) < 3 || step.Cmd[0] != "PEXPIRE" {
		return 0
	}
	ms, err := strconv.Atoi(plain(step.Cmd[2]))
	if err != nil {
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

// withoutTTL leaves out what is known from expiry times only.
func withoutTTL(changed map[string]string) map[string]string {
	out := make(map[string]string)
	for key, what := range changed {
		if what = strings.TrimSuffix(what, "+ttl"); what != "ttl" {
			out[key] = what
		}
	}
	return out
}

// checkEffect: a script changes nothing that lua did not expect of the call.
func (p *player) checkEffect(n int, step Step, keys, args []string, changed map[string]string) {
	var e lua.Effect
	lua.ByName(step.Script).Effect(toBytes(keys), toBytes(args), &e)
	if e.All {
		return
	}
	for key := range changed {
		if !contains(e.Writes, key) && !contains(e.WriteGroups, string(coskey.GroupOf([]byte(key)))) {
			p.faultf("step %d: %q is not among what %s may write: %q, %q", n, key, step.Script, e.Writes, e.WriteGroups)
		}
	}
}

// checkEvents: messages concern every change of a key that they are said to cover.
func (p *player) checkEvents(n int, changed map[string]string, messages []value) {
	told := make(touched)
	for _, m := range messages {
		coskey.Event([]byte(m.elems[0].text), []byte(m.elems[1].text), told)
	}
	for key, what := range changed {
		class, _ := coskey.Classify([]byte(key))
		if class.Covered() != coskey.Complete || what == "ttl" {
			continue
		}
		if !told[key] && !told[string(coskey.GroupOf([]byte(key)))] {
			p.faultf("step %d: no message told of %q (%s)", n, key, what)
		}
	}
}

func (p *player) checkState(want map[string]Final, got map[string]content) {
	m := matcher{start: p.start, now: time.Now(), anyOrder: p.target.Embedded}
	for key, w := range want {
		g, ok := got[key]
		if !ok {
			p.faultf("state: %q is missing", key)
			continue
		}
		if err := m.matchFinal(w, g); err != nil {
			p.faultf("state: %q: %v", key, err)
		}
	}
	for key := range got {
		if _, ok := want[key]; !ok {
			p.faultf("state: unexpected %q", key)
		}
	}
}

// touched collects what messages concern.
type touched map[string]bool

func (t touched) Key(key []byte)     { t[string(key)] = true }
func (t touched) Group(group []byte) { t[string(group)] = true }

func contains(keys [][]byte, key string) bool {
	return slices.ContainsFunc(keys, func(k []byte) bool { return string(k) == key })
}

func toBytes(in []string) [][]byte {
	out := make([][]byte, len(in))
	for i, s := range in {
		out[i] = []byte(s)
	}
	return out
}
