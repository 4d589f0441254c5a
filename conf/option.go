package conf

import (
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
)

// option binds one key to its field of a Config. The text forms of all sources go
// through set, which replaces the field's value or leaves it alone on error.
type option struct {
	key      string // path in the file, such as nearcache.max_bytes
	arg      string // placeholder in the help text
	allowed  string // what set accepts, in words; empty: set's errors say it
	help     string // effect, in words
	common   bool   // listed first in the help text
	list     bool   // takes several texts
	choice   bool   // takes a word that may have a value of its own, in the file also as one key with a value
	mappings bool   // which a file may write as mappings
	between  string // separates the texts of a list in an environment variable; empty: a comma

	set  func(texts []string) error // exactly one text unless list
	get  func() string              // current value as one would write it
	hide func(text string) string   // what of a refused text may be shown; nil: all
}

// flag is the option's flag without the leading dashes.
func (o *option) flag() string { return strings.ReplaceAll(o.key, "_", "-") }

// variable is the option's environment variable.
func (o *option) variable() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(o.key, ".", "_"))
}

// apply sets the option from origin, a description such as "flag --loops".
func (o *option) apply(texts []string, origin string) error {
	err := o.set(texts)
	if err == nil {
		return nil
	}
	shown := strings.Join(texts, ",")
	if o.hide != nil {
		shown = o.hide(shown)
	}
	return fmt.Errorf("cannot use %q for %s (%s): %w", shown, o.key, origin, allowing(err, o.allowed))
}

// allowing adds to an error what would have been accepted, if that is known.
func allowing(err error, allowed string) error {
	if err == nil || allowed == "" {
		return err
	}
	return fmt.Errorf("%w; allowed: %s", err, allowed)
}

// scalar makes a set function that takes exactly one text.
func scalar(set func(text string) error) func([]string) error {
	return func(texts []string) error {
		if len(texts) != 1 {
			return errors.New("not a single value")
		}
		return set(strings.TrimSpace(texts[0]))
	}
}

func number[T int | int64](key string, p *T, least, most T, help string) option {
	return option{
		key: key, arg: "N", help: help,
		allowed: fmt.Sprintf("a whole number from %d to %d", least, most),
		get:     func() string { return strconv.FormatInt(int64(*p), 10) },
		set: scalar(func(text string) error {
			n, err := parseNumber(text)
			return assign(p, T(n), least, most, err)
		}),
	}
}

func size(key string, p *Bytes, least, most Bytes, help string) option {
	return option{
		key: key, arg: "SIZE", help: help,
		allowed: fmt.Sprintf("a size such as 65536, 64KB, 1MB or 2GB, from %s to %s", least, most),
		get:     func() string { return p.String() },
		set: scalar(func(text string) error {
			n, err := parseBytes(text)
			return assign(p, n, least, most, err)
		}),
	}
}

func duration(key string, p *time.Duration, least, most time.Duration, help string) option {
	return option{
		key: key, arg: "TIME", help: help,
		allowed: fmt.Sprintf("a duration such as 500ms, 10s or 1m30s, from %s to %s", formatDuration(least), formatDuration(most)),
		get:     func() string { return formatDuration(*p) },
		set: scalar(func(text string) error {
			d, err := parseDuration(text)
			return assign(p, d, least, most, err)
		}),
	}
}

// orZero widens a duration option by 0, which switches off what would happen then.
func orZero(o option, p *time.Duration) option {
	o.allowed = "0, or " + o.allowed
	set := o.set
	o.set = func(texts []string) error {
		if len(texts) == 1 {
			if d, err := parseDuration(strings.TrimSpace(texts[0])); err == nil && d == 0 {
				*p = 0
				return nil
			}
		}
		return set(texts)
	}
	return o
}

func assign[T int | int64 | Bytes | time.Duration](p *T, v, least, most T, err error) error {
	if err != nil {
		return err
	}
	if v < least || v > most {
		return errOutOfRange
	}
	*p = v
	return nil
}

// powerOfTwo narrows a number option to 0 and powers of two.
func powerOfTwo(o option, p *int) option {
	o.allowed = "0 or a power of two, " + o.allowed
	set := o.set
	o.set = func(texts []string) error {
		old := *p
		if err := set(texts); err != nil {
			return err
		}
		if bits.OnesCount(uint(*p)) > 1 {
			*p = old
			return errors.New("not a power of two")
		}
		return nil
	}
	return o
}

func choice(key string, p *string, choices []string, help string) option {
	return option{
		key: key, arg: "WORD", help: help,
		allowed: strings.Join(choices, ", "),
		get:     func() string { return *p },
		set: scalar(func(text string) error {
			if !slices.Contains(choices, text) {
				return errors.New("unknown word")
			}
			*p = text
			return nil
		}),
	}
}

func level(key string, p *slog.Level, help string) option {
	words := []string{"debug", "info", "warn", "error"}
	return option{
		key: key, arg: "LEVEL", help: help,
		allowed: strings.Join(words, ", "),
		get:     func() string { return strings.ToLower(p.String()) },
		set: scalar(func(text string) error {
			if !slices.Contains(words, strings.ToLower(text)) {
				return errors.New("unknown level")
			}
			return p.UnmarshalText([]byte(text))
		}),
	}
}

func addresses(key string, p *[]string, help string) option {
	return option{
		key: key, arg: "ADDR", help: help, list: true,
		allowed: "one or more different addresses, each " + allowedAddress,
		get:     func() string { return strings.Join(*p, ",") },
		set: func(texts []string) error {
			list := make([]string, 0, len(texts))
			for _, text := range texts {
				text = strings.TrimSpace(text)
				if err := checkAddress(text); err != nil {
					return err
				}
				if slices.Contains(list, text) && !strings.HasSuffix(text, ":0") {
					return fmt.Errorf("%q is named twice", text)
				}
				list = append(list, text)
			}
			if len(list) == 0 {
				return errors.New("no address")
			}
			*p = list
			return nil
		},
	}
}

// optionalAddress takes host:port, or "off" or nothing for none.
func optionalAddress(key string, p *string, help string) option {
	return option{
		key: key, arg: "HOST:PORT", help: help,
		allowed: "host:port, or off",
		get: func() string {
			if *p == "" {
				return "off"
			}
			return *p
		},
		set: scalar(func(text string) error {
			if text == "off" || text == "" {
				*p = ""
				return nil
			}
			if strings.HasPrefix(text, "unix:") {
				return errors.New("admin pages need a TCP address")
			}
			if err := checkHostPort(text); err != nil {
				return err
			}
			*p = text
			return nil
		}),
	}
}

// listOrOff takes texts, at most so many (0: any number), or "off" or nothing for none; parse makes an element of
// one, and sees those before it.
func listOrOff(key string, p *[]string, arg, help, allowed string, most int, parse func(before []string, text string) (string, error)) option {
	return option{
		key: key, arg: arg, help: help, list: true, allowed: allowed,
		get: func() string {
			if len(*p) == 0 {
				return "off"
			}
			return strings.Join(*p, ",")
		},
		set: func(texts []string) error {
			if len(texts) == 1 && isOff(texts[0]) {
				texts = nil
			}
			var list []string
			for _, text := range texts {
				e, err := parse(list, text)
				if err != nil {
					return err
				}
				list = append(list, e)
			}
			if most > 0 && len(list) > most {
				return errOutOfRange
			}
			*p = list
			return nil
		},
	}
}

// reachableAddresses takes the addresses at which others reach servers, or "off" or
// nothing for none.
func reachableAddresses(key string, p *[]string, help string) option {
	allowed := fmt.Sprintf("up to %d different addresses, each host:port; or off", maxFacade)
	return listOrOff(key, p, "HOST:PORT", help, allowed, maxFacade, func(before []string, text string) (string, error) {
		text = strings.TrimSpace(text)
		if err := checkReachable(text); err != nil {
			return "", err
		}
		if slices.Contains(before, text) {
			return "", fmt.Errorf("%q is named twice", text)
		}
		return text, nil
	})
}

// maxFacade is the largest Redis Cluster that Redis recommends.
const maxFacade = 1000

// reachableAddress takes one such address, or "off" or nothing for none.
func reachableAddress(key string, p *string, help string) option {
	return option{
		key: key, arg: "HOST:PORT", help: help,
		allowed: "host:port, or off",
		get: func() string {
			if *p == "" {
				return "off"
			}
			return *p
		},
		set: scalar(func(text string) error {
			if isOff(text) {
				*p = ""
				return nil
			}
			if err := checkReachable(text); err != nil {
				return err
			}
			*p = text
			return nil
		}),
	}
}

func isOff(text string) bool {
	text = strings.TrimSpace(text)
	return text == "" || text == "off"
}

func backend(key string, p *Backend, help string) option {
	return option{
		key: key, arg: "URL", help: help,
		get:  func() string { return p.String() },
		hide: redactURL,
		set: scalar(func(text string) error {
			b, err := ParseBackend(text)
			if err != nil {
				return err
			}
			*p = b
			return nil
		}),
	}
}

func text[T string | Secret](key string, p *T, arg, help string) option {
	return option{
		key: key, arg: arg, help: help,
		allowed: "any text",
		get:     func() string { return fmt.Sprint(*p) },
		hide:    func(string) string { return "***" },
		set: func(texts []string) error {
			if len(texts) != 1 {
				return errors.New("not a single value")
			}
			*p = T(texts[0]) // verbatim: spaces may belong to a password
			return nil
		},
	}
}

// secretLines takes texts that may hold anything but the end of a line.
func secretLines(key string, p *[]Secret, arg, help string) option {
	return option{
		key: key, arg: arg, help: help, list: true, between: "\n",
		allowed: "lines of text",
		get:     func() string { return strings.Repeat("***\n", len(*p)) },
		hide:    func(string) string { return "***" },
		set: func(texts []string) error {
			var list []Secret
			for _, text := range texts {
				if strings.TrimSpace(text) != "" {
					list = append(list, Secret(text))
				}
			}
			*p = list
			return nil
		},
	}
}

// serveStale is the form of nearcache.on_backend_loss that has a duration behind it.
const serveStale = "serve_stale"

// onBackendLoss takes "bypass", which is 0, or serve_stale with a duration.
func onBackendLoss(key string, p *time.Duration, help string) option {
	const least, most = 100 * time.Millisecond, 24 * time.Hour
	return option{
		key: key, arg: "bypass|serve_stale:TIME", help: help, choice: true,
		allowed: fmt.Sprintf("bypass, or serve_stale and a duration from %s to %s, as in serve_stale:30s", formatDuration(least), formatDuration(most)),
		get: func() string {
			if *p == 0 {
				return "bypass"
			}
			return serveStale + ":" + formatDuration(*p)
		},
		set: scalar(func(text string) error {
			if text == "bypass" {
				*p = 0
				return nil
			}
			word, text, found := strings.Cut(text, ":")
			if !found || word != serveStale {
				return errors.New("unknown word")
			}
			d, err := parseDuration(strings.TrimSpace(text))
			return assign(p, d, least, most, err)
		}),
	}
}

// names takes different texts that are not empty, or "off" or nothing for none.
func names(key string, p *[]string, arg, help string) option {
	return listOrOff(key, p, arg, help, "different names; or off", 0, func(before []string, text string) (string, error) {
		text = strings.TrimSpace(text)
		switch {
		case text == "":
			return "", errors.New("a name is empty")
		case slices.Contains(before, text):
			return "", fmt.Errorf("%q is named twice", text)
		}
		return text, nil
	})
}
