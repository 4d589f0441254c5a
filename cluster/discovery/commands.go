package discovery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"cosky-proxy/router/command"
)

// catalog finds out which commands the backend has. It asks again when the server
// was replaced or restarted, or its commands or modules changed; it has a goroutine of its own
// so that a server that is slow to list them delays no snapshot.
type catalog struct {
	// static
	d    *Discovery
	wake chan struct{} // after every attempt at a snapshot; one slot

	// owned by Start, then by the goroutine of run
	links linkSet
	seen  string        // fingerprint of what was listed last
	pause time.Duration // until the next attempt; 0: the last one did not fail
}

// catalogPause is the time until the commands are asked for again when that failed; it
// doubles up to the interval between snapshots.
const catalogPause = time.Second

func newCatalog(d *Discovery) *catalog {
	return &catalog{d: d, wake: make(chan struct{}, 1), links: linkSet{login: d.dataLogin()}}
}

func (c *catalog) run(ctx context.Context) {
	defer c.links.close()
	for {
		var retry <-chan time.Time
		if c.pause > 0 {
			retry = time.After(c.pause)
		}
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-retry:
		}
		c.refresh(ctx)
	}
}

// poke has run look whether anything has changed.
func (c *catalog) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// refresh lists the commands if they may have changed. A failure is logged once and
// leaves everything as it was: what is known already is right for nearly every client.
func (c *catalog) refresh(ctx context.Context) {
	cmds, err := c.ask(ctx)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		if c.pause == 0 {
			c.d.opts.Logger.Warn("cannot list the backend's commands, going on with those known so far", "cause", err)
		}
		c.pause = min(max(2*c.pause, catalogPause), c.d.opts.RefreshInterval)
		return
	case len(cmds) > 0:
		c.d.publishCommands(cmds)
	}
	c.pause = 0
}

// ask takes the first primary that answers. No commands: they are those of the last time.
func (c *catalog) ask(ctx context.Context) (cmds []command.Command, err error) {
	failed := make(seedErrors)
	for _, shard := range c.d.Current().Shards {
		n := shard.Primary
		if n.Blocked {
			continue
		}
		if cmds, err = c.list(ctx, c.links.to([]string{n.Addr})[0]); err == nil {
			return cmds, nil
		}
		failed[n.Addr] = err
	}
	if len(failed) == 0 {
		return nil, errors.New("there is nobody to ask")
	}
	return nil, failed
}

func (c *catalog) list(ctx context.Context, l *link) ([]command.Command, error) {
	replies, _, err := l.ask(ctx, c.d.opts.ConnectTimeout, []any{"INFO", "server"}, []any{"COMMAND", "COUNT"}, []any{"MODULE", "LIST"})
	if err != nil {
		return nil, err
	}
	seen := fingerprint(replies)
	if seen == c.seen {
		return nil, nil
	}
	if replies, _, err = l.ask(ctx, c.d.opts.ConnectTimeout, []any{"COMMAND"}); err != nil {
		return nil, err
	}
	cmds, err := commandsOf(replies[0])
	if err != nil {
		return nil, err
	}
	// COMMAND lists what rename-command has renamed under its own name, by which it
	// cannot be called; COMMAND INFO tells.
	question := []any{"COMMAND", "INFO"}
	for _, cmd := range cmds {
		if !strings.Contains(cmd.Name, "|") {
			question = append(question, cmd.Name)
		}
	}
	if replies, _, err = l.ask(ctx, c.d.opts.ConnectTimeout, question); err != nil {
		return nil, err
	}
	if cmds, err = commandsOf(replies[0]); err != nil {
		return nil, err
	}
	c.seen = seen
	return cmds, nil
}

func commandsOf(r reply) ([]command.Command, error) {
	if r.err != nil {
		return nil, r.err
	}
	cmds, err := command.ParseReply(r.val)
	if err == nil && len(cmds) == 0 {
		err = errors.New("it lists no commands")
	}
	return cmds, err
}

// fingerprint differs when the commands of a server may differ: another process,
// another number of them, another module.
func fingerprint(replies []reply) string {
	var b strings.Builder
	info, _ := replies[0].text()
	for line := range strings.Lines(info) {
		if strings.HasPrefix(line, "run_id:") || strings.HasPrefix(line, "redis_version:") {
			b.WriteString(line)
		}
	}
	for _, r := range replies[1:] {
		fmt.Fprintln(&b, r.val, r.err)
	}
	return b.String()
}

// Commands is what the backend listed last, in the form of command.ParseReply;
// empty when it could not be asked yet.
func (d *Discovery) Commands() []command.Command {
	if list := d.commands.Load(); list != nil {
		return *list
	}
	return nil
}

// SubscribeCommands has f called with every further list, on a goroutine of Run: it
// must not block.
func (d *Discovery) SubscribeCommands(f func([]command.Command)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.learners = append(d.learners, f)
}

func (d *Discovery) publishCommands(cmds []command.Command) {
	d.commands.Store(&cmds)
	d.opts.Logger.Debug("the backend has listed its commands", "commands", len(cmds))
	d.mu.Lock()
	learners := d.learners
	d.mu.Unlock()
	for _, f := range learners {
		f(cmds)
	}
}
