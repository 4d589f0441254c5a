package conf

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Action is what a command line asks for.
type Action int

// The actions.
const (
	Run         Action = iota // start the proxy
	ShowHelp                  // print Usage and stop
	ShowVersion               // print the version and stop
)

const envPrefix = "COSKY_PROXY_"

// Load builds the configuration from a command line (without the program's name)
// and an environment (as os.Environ returns it). The configuration is nil unless
// the action is Run. An error is one line for the user and mentions no password.
func Load(args, environ []string) (*Config, Action, error) {
	l := newLoader()
	flags := pflag.NewFlagSet("cosky-proxy", pflag.ContinueOnError)
	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	file := flags.String("config", "", "")
	help := flags.BoolP("help", "h", false, "")
	version := flags.Bool("version", false, "")
	given := make(map[string]*occurrences)
	for i := range l.options {
		o := &l.options[i]
		given[o.key] = &occurrences{}
		flags.Var(given[o.key], o.flag(), "")
	}

	if err := flags.Parse(args); err != nil {
		return nil, Run, l.flagError(err)
	}
	switch {
	case *help:
		return nil, ShowHelp, nil
	case *version:
		return nil, ShowVersion, nil
	case flags.NArg() > 0:
		return nil, Run, fmt.Errorf("cannot use argument %q: every option starts with --; see --help", flags.Arg(0))
	}

	if !flags.Changed("config") {
		*file = lookup(environ, envPrefix+"CONFIG")
	}
	if *file != "" {
		if err := l.applyFile(*file); err != nil {
			return nil, Run, err
		}
	}
	if err := l.applyEnvironment(environ); err != nil {
		return nil, Run, err
	}
	for i := range l.options {
		o := &l.options[i]
		if texts := *given[o.key]; len(texts) > 0 {
			if err := l.apply(o, o.flagTexts(texts), "flag --"+o.flag()); err != nil {
				return nil, Run, err
			}
		}
	}
	if err := l.finish(); err != nil {
		return nil, Run, err
	}
	return l.config, Run, nil
}

// occurrences is a flag that remembers its texts, because flags are parsed before
// the file they name but applied after it.
type occurrences []string

func (o *occurrences) Set(text string) error { *o = append(*o, text); return nil }
func (o *occurrences) String() string        { return strings.Join(*o, ",") }
func (o *occurrences) Type() string          { return "text" }

// flagTexts: of a repeated flag the last one wins, unless it is a list.
func (o *option) flagTexts(texts []string) []string {
	switch {
	case !o.list:
		return texts[len(texts)-1:]
	case o.between != "": // a rule or a user that is given by a flag is one, whatever is in it
		return texts
	}
	return strings.Split(strings.Join(texts, ","), ",")
}

type loader struct {
	config  *Config
	options []option
	origins map[string]string // key → where its value came from; none: the default
}

func newLoader() *loader {
	c := Default()
	return &loader{config: c, options: options(c), origins: map[string]string{}}
}

func (l *loader) option(key string) *option {
	i := slices.IndexFunc(l.options, func(o option) bool { return o.key == key })
	if i < 0 {
		return nil
	}
	return &l.options[i]
}

func (l *loader) apply(o *option, texts []string, origin string) error {
	l.origins[o.key] = origin
	return o.apply(texts, origin)
}

func (l *loader) applyFile(name string) error {
	settings, err := readFile(name, l.isSection, l.isChoice)
	if err != nil {
		return err
	}
	for _, s := range settings {
		origin := fmt.Sprintf("%s:%d", name, s.line)
		o := l.option(s.key)
		if o == nil {
			return fmt.Errorf("unknown key %q (%s): %s", s.key, origin, l.suggest(s.key, append(l.keys(), l.sections()...)))
		}
		if s.err != nil && !(o.mappings && errors.Is(s.err, errMappings)) {
			return fmt.Errorf("cannot use %q (%s): %w", s.key, origin, s.err)
		}
		if s.cut && o.hide != nil { // free text, half of which would be lost without a word
			return fmt.Errorf("cannot use the value of %s (%s): YAML takes what follows \" #\" for a comment, so put all of it in quotes, or a space behind the # of a comment", s.key, origin)
		}
		if err := l.apply(o, s.texts, origin); err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) isSection(key string) bool {
	return slices.ContainsFunc(l.options, func(o option) bool { return strings.HasPrefix(o.key, key+".") })
}

func (l *loader) isChoice(key string) bool {
	o := l.option(key)
	return o != nil && o.choice
}

// serviceVariable matches what Kubernetes and Docker links put into the environment
// for a service that is called cosky-proxy. Those are not ours to judge.
var serviceVariable = regexp.MustCompile(`^COSKY_PROXY_(NAME|SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

func (l *loader) applyEnvironment(environ []string) error {
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, envPrefix) || name == envPrefix+"CONFIG" || serviceVariable.MatchString(name) {
			continue
		}
		i := slices.IndexFunc(l.options, func(o option) bool { return o.variable() == name })
		if i < 0 {
			return fmt.Errorf("unknown environment variable %s: %s", name, l.suggest(name, l.variables()))
		}
		o := &l.options[i]
		texts := []string{value}
		if o.list {
			texts = strings.Split(value, cmp.Or(o.between, ","))
		}
		if err := l.apply(o, texts, "environment variable "+name); err != nil {
			return err
		}
	}
	return nil
}

func lookup(environ []string, name string) string {
	for _, entry := range environ {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// flagError words the flag parser's errors like ours.
func (l *loader) flagError(err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		name := unknown.GetSpecifiedName()
		written := "--" + name
		if short := unknown.GetSpecifiedShortnames(); short != "" { // perhaps a long one with a dash too few
			name, _, _ = strings.Cut(short, "=")
			written = "-" + name
		}
		return fmt.Errorf("unknown flag %s: %s", written, l.suggest("--"+name, l.flags()))
	}
	var missing *pflag.ValueRequiredError
	if errors.As(err, &missing) {
		return fmt.Errorf("flag --%s needs a value; see --help", missing.GetSpecifiedName())
	}
	return fmt.Errorf("cannot parse the command line: %w; see --help", err)
}

func (l *loader) names(name func(*option) string) []string {
	list := make([]string, len(l.options))
	for i := range l.options {
		list[i] = name(&l.options[i])
	}
	return list
}

// sections are the keys that hold other keys.
func (l *loader) sections() []string {
	var list []string
	for _, key := range l.keys() {
		if section, _, ok := strings.Cut(key, "."); ok && !slices.Contains(list, section) {
			list = append(list, section)
		}
	}
	return list
}

func (l *loader) keys() []string { return l.names(func(o *option) string { return o.key }) }
func (l *loader) variables() []string {
	return append(l.names((*option).variable), envPrefix+"CONFIG")
}
func (l *loader) flags() []string {
	return append(l.names(func(o *option) string { return "--" + o.flag() }), "--config", "--help", "--version")
}

// finish checks what no single option can and settles the credentials.
func (l *loader) finish() error {
	c := l.config
	// Like the near-cache itself: a few entries must not fill it.
	if c.NearCache.MaxEntry > c.NearCache.MaxBytes/4 {
		return fmt.Errorf("%s must not be greater than a quarter of %s", l.described("nearcache.max_entry"), l.described("nearcache.max_bytes"))
	}
	if s := c.NearCache.StaleFor; s > 0 && s < c.NearCache.MaxStaleness {
		return fmt.Errorf("%s must not be shorter than %s", l.described("nearcache.on_backend_loss"), l.described("nearcache.max_staleness"))
	}
	for _, r := range []struct {
		small, large string
		ok           bool
	}{
		{"upstream.reconnect_backoff_min", "upstream.reconnect_backoff_max", c.Upstream.ReconnectBackoffMin <= c.Upstream.ReconnectBackoffMax},
		{"clients.output_limit", "clients.buffer_memory", c.Clients.OutputLimit <= c.Clients.BufferMemory},
		{"clients.request_buffer", "clients.max_request", c.Clients.RequestBuffer <= c.Clients.MaxRequest},
		{"clients.request_buffer", "clients.buffer_memory", c.Clients.RequestBuffer <= c.Clients.BufferMemory},
	} {
		if !r.ok {
			return fmt.Errorf("%s must not be greater than %s", l.described(r.small), l.described(r.large))
		}
	}
	if err := l.checkHot(); err != nil {
		return err
	}
	if err := l.checkTLS(); err != nil {
		return err
	}
	if err := l.checkAuth(); err != nil {
		return err
	}
	if err := l.finishRules(); err != nil {
		return err
	}
	if c.ClusterAnnounce != "" && len(c.ClusterFacade) == 0 {
		return fmt.Errorf("%s needs cluster_facade, which is off", l.described("cluster_announce"))
	}
	if c.ClusterAnnounce != "" && !slices.Contains(c.ClusterFacade, c.ClusterAnnounce) {
		return fmt.Errorf("%s must be one of %s", l.described("cluster_announce"), l.described("cluster_facade"))
	}
	if c.Upstream.User != "" {
		c.Backend.User = c.Upstream.User
	}
	if c.Upstream.Password != "" {
		c.Backend.Password = c.Upstream.Password
	}
	if c.Backend.Kind == Embedded {
		c.Backend.User, c.Backend.Password = "", ""
	}
	if c.Backend.User != "" && c.Backend.Password == "" {
		return fmt.Errorf("%s needs a password: set upstream.password", l.described("upstream.user"))
	}
	if c.Upstream.SentinelUser != "" && c.Upstream.SentinelPassword == "" {
		return fmt.Errorf("%s needs a password: set upstream.sentinel_password", l.described("upstream.sentinel_user"))
	}
	return nil
}

// checkAuth: rules that would not be enforced, or an open door where none was meant,
// are mistakes.
func (l *loader) checkAuth() error {
	a := &l.config.Auth
	switch {
	case len(a.Users) > 0 && a.File != "":
		return errors.New("auth.users and auth.file cannot be used together")
	case a.Mode != "proxy" && len(a.Users) > 0:
		return fmt.Errorf("auth.users needs auth.mode proxy, it is %s", a.Mode)
	case a.Mode != "proxy" && a.File != "":
		return fmt.Errorf("auth.file needs auth.mode proxy, it is %s", a.Mode)
	case a.Mode == "proxy" && len(a.Users) == 0 && a.File == "":
		return errors.New("auth.mode proxy needs users: set auth.users or auth.file")
	case a.Mode == "passthrough" && l.config.Backend.Kind == Embedded:
		return errors.New("auth.mode passthrough needs a Redis with users, the embedded backend has none")
	}
	return nil
}

// described is a key with its value and origin.
func (l *loader) described(key string) string {
	origin, ok := l.origins[key]
	if !ok {
		origin = "default"
	}
	return fmt.Sprintf("%s %s (%s)", key, l.option(key).get(), origin)
}
