package conf

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxHotKeys bounds the hot keys, chosen and pinned: what a command sent before they were
// chosen may have done to them is looked at one by one.
const maxHotKeys = 100

// keys takes names of keys, which may hold anything but the end of a line.
func keys(key string, p *[]string, help string) option {
	return option{
		key: key, arg: "KEY", help: help, list: true, between: "\n",
		allowed: fmt.Sprintf("up to %d different keys", maxHotKeys),
		get:     func() string { return strings.Join(*p, "\n") },
		set: func(texts []string) error {
			var list []string
			for _, text := range texts {
				switch {
				case text == "":
					continue
				case slices.Contains(list, text):
					return fmt.Errorf("%q is named twice", text)
				}
				list = append(list, text)
			}
			if len(list) > maxHotKeys {
				return errOutOfRange
			}
			*p = list
			return nil
		},
	}
}

// commands takes commands whose replies can be cached, or "off" or nothing for no choice.
func commands(key string, p *[]string, help string) option {
	return option{
		key: key, arg: "COMMAND", help: help, list: true,
		get: func() string {
			if len(*p) == 0 {
				return "off"
			}
			return strings.ToUpper(strings.Join(*p, ","))
		},
		set: func(texts []string) (err error) {
			if len(texts) == 1 && isOff(texts[0]) {
				texts = nil
			}
			*p, err = parseCommands(texts)
			return err
		},
	}
}

// checkHot: keys that cannot be cached as asked for are a mistake; those that are cached by default are not.
func (l *loader) checkHot() error {
	h := &l.config.NearCache.Hot
	_, asked := l.origins["nearcache.hot.keys"]
	invalidation := l.config.NearCache.Invalidation
	switch {
	case asked && h.Keys > 0 && h.Sample == 0:
		return errors.New("nearcache.hot.keys needs counts: nearcache.hot.sample is 0")
	case invalidation != "pubsub" && invalidation != "off":
	case asked && h.Keys > 0:
		return fmt.Errorf("%s needs client tracking, %s has none", l.described("nearcache.hot.keys"), l.described("nearcache.invalidation"))
	case len(h.Pinned) > 0:
		return fmt.Errorf("nearcache.hot.pinned needs client tracking, %s has none", l.described("nearcache.invalidation"))
	}
	return nil
}
