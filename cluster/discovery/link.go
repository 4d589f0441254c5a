package discovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"cosky-proxy/cluster/dial"
)

var (
	errBusy    = errors.New("it has not answered an earlier question yet")
	errRetired = errors.New("the connection is not wanted any more")
	errHungUp  = unreachable{errors.New("it hangs up without a word, as a port does where TLS is spoken (rediss:)")}

	errPassword         = errors.New("it needs a password")
	errDataPassword     = fmt.Errorf("%w: set upstream.password or put it into the URL", errPassword)
	errSentinelPassword = fmt.Errorf("%w: set upstream.sentinel_password", errPassword)
)

// login is how to connect to a server, and as whom.
type login struct {
	user, password string
	dialer         *dial.Dialer
}

// dataLogin is the login of the data servers.
func (d *Discovery) dataLogin() login {
	return login{d.opts.Backend.User, d.opts.Backend.Password, d.opts.Dialer}
}

// link is one connection to one server: made when first needed, dropped at the
// first I/O error, made again by the next question. Only one question is on its
// way at a time; a second one fails at once instead of waiting behind a frozen
// server. All methods may be called from any goroutine.
type link struct {
	// static
	addr  string
	login login
	probe bool // ask a new connection what the server can do

	// atomic
	retired atomic.Bool

	// guarded by mu, which is held for the whole of an exchange
	mu     sync.Mutex
	client *redis.Client
	conn   *redis.Conn
	about  about
}

// about is what a server says of itself when a link connects.
type about struct {
	version  string // redis_version
	server   string // "redis", "valkey", ...
	mode     string // redis_mode
	tracking bool   // speaks RESP3 and knows CLIENT TRACKING
	remote   string // IP address and port it was reached at
}

// reply is one command's reply; err is an error reply, never an I/O error.
type reply struct {
	val any
	err error
}

// text is a reply that has to be a string.
func (r reply) text() (string, error) {
	if r.err != nil {
		return "", r.err
	}
	s, ok := r.val.(string)
	if !ok {
		return "", fmt.Errorf("unexpected reply %.80v", r.val)
	}
	return s, nil
}

// ask sends the commands in one go and returns their replies. Connecting included,
// it takes no longer than timeout.
func (l *link) ask(ctx context.Context, timeout time.Duration, cmds ...[]any) ([]reply, about, error) {
	if !l.mu.TryLock() {
		return nil, about{}, errBusy
	}
	defer l.unlock()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if l.conn == nil {
		if err := l.connect(ctx, timeout); err != nil {
			l.drop()
			return nil, about{}, l.explain(err, timeout)
		}
	}
	replies, err := l.exchange(ctx, cmds)
	if err != nil {
		l.drop()
		return nil, about{}, l.explain(err, timeout)
	}
	return replies, l.about, nil
}

// unlock ends an exchange. It looks at retired only after unlocking: either this
// or the concurrent retire sees the other's doing and closes.
func (l *link) unlock() {
	l.mu.Unlock()
	if l.retired.Load() {
		l.closeIfIdle()
	}
}

// retire closes the link, now or when the question on its way is over.
func (l *link) retire() {
	l.retired.Store(true)
	l.closeIfIdle()
}

func (l *link) closeIfIdle() {
	if l.mu.TryLock() {
		l.drop()
		l.mu.Unlock()
	}
}

func (l *link) drop() {
	if l.client == nil {
		return
	}
	l.conn.Close()
	l.client.Close()
	l.client, l.conn = nil, nil
}

// connect dials before go-redis gets involved, which would try again, in the
// background too, and write about it.
func (l *link) connect(ctx context.Context, timeout time.Duration) error {
	if l.retired.Load() {
		return errRetired
	}
	nc, err := l.login.dialer.Dial(ctx, l.addr)
	if err != nil {
		return err
	}
	loggedIn := false
	options := clientOptions(l.addr, l.login, timeout)
	options.Dialer = handOut(nc)
	options.OnConnect = func(context.Context, *redis.Conn) error {
		loggedIn = true
		return nil
	}
	l.client = redis.NewClient(options)
	l.conn = l.client.Conn()
	replies, err := l.exchange(ctx, [][]any{{"HELLO", 3}, {"CLIENT", "TRACKING", "OFF"}, {"INFO", "server"}})
	if errors.Is(err, io.EOF) && !l.login.dialer.Encrypted() {
		return errHungUp
	}
	if err != nil {
		return err
	}
	if !loggedIn {
		return fmt.Errorf("cannot log in: %w", replies[0].err)
	}
	for _, r := range replies {
		// Without credentials nothing failed yet, but nothing will work either.
		if r.err != nil && strings.HasPrefix(r.err.Error(), "NOAUTH") {
			return errPassword
		}
	}
	if l.probe {
		l.about = readAbout(replies[0], replies[1], replies[2])
		l.about.remote = nc.RemoteAddr().String()
	}
	return nil
}

func (l *link) exchange(ctx context.Context, cmds [][]any) ([]reply, error) {
	sent, err := l.conn.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, cmd := range cmds {
			pipe.Do(ctx, cmd...)
		}
		return nil
	})
	replies := make([]reply, len(sent))
	for i, cmd := range sent {
		replies[i].val, replies[i].err = cmd.(*redis.Cmd).Result()
		var refusal redis.Error
		switch {
		case errors.As(replies[i].err, &refusal):
			err = nil // it is the first one's, and no I/O error
		case replies[i].err != nil:
			return nil, replies[i].err
		}
	}
	if err != nil {
		return nil, err // nothing was sent: dialling or logging in failed
	}
	return replies, nil
}

// explain turns an I/O error into what a person wants to read after the address.
func (l *link) explain(err error, timeout time.Duration) error {
	var op *net.OpError
	var timedOut net.Error
	var refusal redis.Error
	var handshake *dial.HandshakeError
	switch {
	case errors.As(err, &handshake):
		if handshake.Timeout() {
			return unreachable{handshake}
		}
		return handshake
	case errors.As(err, &op) && op.Op == "remote error": // what TLS 1.3 says after the handshake: a certificate is wanted, perhaps
		return &dial.HandshakeError{Err: err}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.As(err, &timedOut) && timedOut.Timeout():
		return unreachable{fmt.Errorf("no answer within %v", timeout)}
	case errors.As(err, &op) && op.Op == "dial":
		var syscallErr *os.SyscallError
		if errors.As(op.Err, &syscallErr) {
			return unreachable{syscallErr.Err}
		}
		return unreachable{op.Err}
	case errors.As(err, &op), errors.Is(err, io.EOF), errors.As(err, &refusal) && loading(refusal.Error()):
		return unreachable{err}
	}
	return err
}

// loading reports whether a server refuses because it has not started yet.
func loading(line string) bool { return strings.HasPrefix(line, "LOADING ") }

// unreachable is the failure of a server that does not serve at the moment, as opposed to
// one that serves something else or somebody else.
type unreachable struct{ error }

func (e unreachable) Unwrap() error { return e.error }

// Unreachable reports whether err, from Start, may go away by itself: none of the servers
// that were asked could be reached, or serves yet. If it is false, the configuration is wrong.
func Unreachable(err error) bool {
	var e unreachable
	var seeds seedErrors
	if !errors.As(err, &seeds) {
		return errors.As(err, &e)
	}
	for _, cause := range seeds {
		if !errors.As(cause, &e) {
			return false
		}
	}
	return len(seeds) > 0
}

func readAbout(hello, tracking, info reply) about {
	var a about
	fields, _ := hello.val.(map[any]any)
	a.server, _ = fields["server"].(string)
	a.version, _ = fields["version"].(string)
	a.mode, _ = fields["mode"].(string)
	a.tracking = hello.err == nil && tracking.err == nil
	text, _ := info.text()
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "redis_version":
			a.version = value
		case "redis_mode":
			a.mode = value
		case "server_name": // Valkey, which may call itself redis in HELLO
			a.server = value
		}
	}
	if a.server == "" {
		a.server = "redis"
	}
	return a
}

// handOut gives go-redis the connection once; a client of ours never reconnects.
func handOut(nc net.Conn) func(context.Context, string, string) (net.Conn, error) {
	var given atomic.Bool
	return func(context.Context, string, string) (net.Conn, error) {
		if given.Swap(true) {
			return nil, net.ErrClosed
		}
		return nc, nil
	}
}

func clientOptions(addr string, login login, timeout time.Duration) *redis.Options {
	return &redis.Options{
		Addr:                     addr,
		Username:                 login.user,
		Password:                 login.password,
		Protocol:                 3,
		PoolSize:                 1,
		MaxRetries:               -1,
		DialerRetries:            1,
		DialTimeout:              timeout,
		ReadTimeout:              timeout,
		WriteTimeout:             timeout,
		ContextTimeoutEnabled:    true,
		ConnMaxIdleTime:          -1,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}
