package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// watchFacade looks after the other proxies of the façade until ctx is done: one that
// gives no sign of life for the node timeout is failed, one that answers is not.
// Cluster-aware clients learn it when they next ask for the slots: many at once when they
// cannot reach a node, others from time to time.
func (s *Server) watchFacade(ctx context.Context) {
	timeout := s.opts.Facade.NodeTimeout
	if s.facade == nil || timeout == 0 {
		return
	}
	v := s.facade.view.Load()
	encrypted := s.shownEncrypted(v.nodes[v.self].addr)
	var watchers sync.WaitGroup
	for i, n := range v.nodes {
		if i == s.facade.self {
			continue
		}
		watchers.Go(func() {
			p := peer{addr: n.addr, encrypted: encrypted, patience: timeout / 3}
			defer p.hangUp()
			s.watchNode(ctx, i, &p, timeout)
		})
	}
	watchers.Wait()
}

// watchNode asks the proxy p, node i of the façade, three times per timeout.
func (s *Server) watchNode(ctx context.Context, i int, p *peer, timeout time.Duration) {
	heard := time.Now()
	again := time.NewTicker(p.patience)
	defer again.Stop()
	for {
		err := p.ask(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			heard = time.Now()
			if s.facade.judge(i, false) {
				s.log.Info("a proxy of cluster_facade is back", "proxy", p.addr)
			}
		case time.Since(heard) >= timeout && s.facade.judge(i, true):
			s.log.Warn("a proxy of cluster_facade does not answer: its slots are shown at the others", "proxy", p.addr, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}

// peer is a connection to another proxy, like a client's.
type peer struct {
	addr      string
	encrypted bool          // it speaks TLS
	patience  time.Duration // for one answer
	conn      net.Conn      // nil: none
	replies   *bufio.Reader
}

// ask sends a PING. Any answer is a sign of life, an error too: a proxy may want a
// password, or speak of its backend.
func (p *peer) ask(ctx context.Context) error {
	if p.conn == nil {
		d := net.Dialer{Timeout: p.patience}
		conn, err := d.DialContext(ctx, "tcp", p.addr)
		if err != nil {
			return err
		}
		if p.encrypted { // a sign of life is all that is looked for: nothing is told, nothing is believed
			conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
		}
		p.conn, p.replies = conn, bufio.NewReader(conn)
	}
	conn := p.conn
	conn.SetDeadline(time.Now().Add(p.patience)) // a connection that cannot do that fails below
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err := conn.Write([]byte("PING\r\n"))
	if err == nil {
		_, err = p.replies.ReadSlice('\n')
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" { // it wants a certificate: that is an answer, too
		p.hangUp()
		return nil
	}
	if err != nil {
		p.hangUp()
		return fmt.Errorf("cannot PING: %w", err)
	}
	return nil
}

func (p *peer) hangUp() {
	if p.conn != nil {
		p.conn.Close() // nothing is on its way that matters
		p.conn = nil
	}
}
