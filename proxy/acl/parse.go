package acl

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// ruleError is why Redis does not accept a rule, in its own words.
type ruleError string

func (e ruleError) Error() string { return string(e) }

// The reasons of acl.c, ACLSetUserStringError.
const (
	errUnknown      = ruleError("Unknown command or category name in ACL")
	errSyntax       = ruleError("Syntax error")
	errAllKeys      = ruleError("Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. Try 'resetkeys' to start with an empty list of patterns")
	errAllChannels  = ruleError("Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any effect. Try 'resetchannels' to start with an empty list of channels")
	errNoPassword   = ruleError("The password you are trying to remove from the user does not exist")
	errPasswordHash = ruleError("The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters")
	errFirstArg     = ruleError("Allowing first-arg of a subcommand is not supported")
)

// Parse reads users, one a line: "[user] name rule…", empty lines are skipped. source is
// where the lines come from, for the errors: "source:number: …" in Redis' words, all of
// them in one. Errors show no rule that may hold a password. quoted says that rules may
// be in quotes, as in redis.conf; an ACL file has none.
//
// A default user that is not among them may do everything without a password, as in Redis.
func Parse(source string, lines []string, quoted bool) (*Users, error) {
	us := &Users{byName: make(map[string]*User)}
	var problems []error
	for i, line := range lines {
		words, err := split(line, quoted)
		if err != nil || len(words) == 0 {
			problems = append(problems, locate(source, i, err))
			continue
		}
		name := words[0]
		switch {
		case hasSpaces(name):
			err = fmt.Errorf("username '%s' contains invalid characters", name)
		case us.byName[name] != nil:
			err = ruleError("Duplicate user '" + name + "' found")
		default:
			if us.byName[name], err = newUser(name, words[1:]); err != nil {
				err = fmt.Errorf("user '%s': %w", name, err)
			}
		}
		problems = append(problems, locate(source, i, err))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if us.byName[DefaultName] == nil {
		us.byName[DefaultName], _ = newUser(DefaultName, []string{"on", "nopass", "~*", "&*", "+@all"})
	}
	for _, name := range slices.Sorted(maps.Keys(us.byName)) {
		us.sorted = append(us.sorted, us.byName[name])
	}
	return us, nil
}

func locate(source string, i int, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s:%d: %w", source, i+1, err)
}

// split cuts a line into words, without the keyword in front.
func split(line string, quoted bool) ([]string, error) {
	line = strings.Trim(line, " \t\r\n")
	if line == "" {
		return nil, nil
	}
	if !strings.HasPrefix(line, "user ") {
		line = "user " + line
	}
	if !quoted {
		return strings.Split(line, " ")[1:], nil
	}
	var p resp.Parser
	var req resp.Request
	n, err := p.Next([]byte(line+"\n"), &resp.Limits{MaxInline: len(line) + 2}, &req)
	if err != nil || n != len(line)+1 {
		return nil, errors.New("unbalanced quotes in acl line")
	}
	var words []string
	for _, arg := range req.Args[1:] {
		words = append(words, string(arg))
	}
	return words, nil
}

func hasSpaces(s string) bool { return strings.ContainsAny(s, " \t\n\v\f\r\x00") }

// newUser makes the user that ACL SETUSER makes of rules.
func newUser(name string, rules []string) (*User, error) {
	u := &User{Name: name, selectors: []*selector{newSelector()}}
	rules, err := mergeSelectors(rules)
	if err != nil {
		return u, err
	}
	for _, rule := range rules {
		err := u.apply(strings.Trim(rule, "\t\r\n"))
		switch {
		case errors.Is(err, errUnknown): // such a rule holds no password
			return u, ruleError("Error in applying operation '" + rule + "': " + err.Error())
		case err != nil:
			return u, err
		}
	}
	return u, nil
}

// mergeSelectors joins selectors that are spread over several words.
func mergeSelectors(words []string) ([]string, error) {
	var merged []string
	open := -1
	for i, w := range words {
		switch {
		case open < 0 && strings.HasPrefix(w, "(") && !strings.HasSuffix(w, ")"):
			open = i
		case open < 0:
			merged = append(merged, w)
		case strings.HasSuffix(w, ")"):
			merged = append(merged, strings.Join(words[open:i+1], " "))
			open = -1
		}
	}
	if open >= 0 {
		return nil, ruleError("Unmatched parenthesis in acl selector starting at '" + words[open] + "'.")
	}
	return merged, nil
}

// apply changes the user by one rule (acl.c, ACLSetUser).
func (u *User) apply(rule string) error {
	switch strings.ToLower(rule) {
	case "":
	case "on", "off":
		u.enabled = strings.EqualFold(rule, "on")
	case "sanitize-payload":
		u.sanitize = "sanitize-payload"
	case "skip-sanitize-payload":
		u.sanitize = "skip-sanitize-payload"
	case "nopass", "resetpass":
		u.noPass, u.passwords = strings.EqualFold(rule, "nopass"), nil
	case "clearselectors":
		u.selectors = u.selectors[:1]
	case "reset":
		*u = User{Name: u.Name, selectors: []*selector{newSelector()}, sanitize: "sanitize-payload"}
	default:
		return u.applyOther(rule)
	}
	return nil
}

func (u *User) applyOther(rule string) error {
	switch rule[0] {
	case '>', '#', '<', '!':
		return u.applyPassword(rule[0], rule[1:])
	case '(':
		if rule[len(rule)-1] != ')' || len(rule) < 2 {
			break
		}
		s := newSelector()
		for _, r := range strings.Fields(rule[1 : len(rule)-1]) {
			if err := s.apply(r); err != nil {
				return err
			}
		}
		u.selectors = append(u.selectors, s)
		return nil
	}
	return u.selectors[0].apply(rule)
}

func (u *User) applyPassword(op byte, text string) error {
	sum := sha256.Sum256([]byte(text))
	if op == '#' || op == '!' {
		digest, err := hex.DecodeString(text)
		if err != nil || len(digest) != sha256.Size || text != strings.ToLower(text) {
			return errPasswordHash
		}
		sum = [sha256.Size]byte(digest)
	}
	at := slices.Index(u.passwords, sum)
	switch {
	case op == '<' || op == '!':
		if at < 0 {
			return errNoPassword
		}
		u.passwords = slices.Delete(u.passwords, at, at+1)
		return nil
	case at < 0:
		u.passwords = append(u.passwords, sum)
	}
	u.noPass = false
	return nil
}

// newSelector allows nothing.
func newSelector() *selector {
	return &selector{allowed: make([]uint64, (command.Count()+63)/64)}
}

// apply changes the selector by one rule (acl.c, ACLSetSelector).
func (s *selector) apply(rule string) error {
	switch strings.ToLower(rule) {
	case "allkeys", "~*", "resetkeys":
		s.allKeys, s.keys = !strings.EqualFold(rule, "resetkeys"), nil
		return nil
	case "allchannels", "&*", "resetchannels":
		s.allChannels, s.channels = !strings.EqualFold(rule, "resetchannels"), nil
		return nil
	case "allcommands", "+@all":
		s.everything(true)
		return nil
	case "nocommands", "-@all":
		s.everything(false)
		return nil
	}
	switch rule[0] {
	case '~', '%':
		return s.addKeys(rule)
	case '&':
		return s.addChannels(rule[1:])
	case '+', '-':
		return s.applyCommands(rule[0] == '+', rule[1:])
	}
	return errSyntax
}

func (s *selector) everything(allow bool) {
	s.allCommands, s.future, s.firstArgs, s.named, s.rules = allow, allow, nil, nil, nil
	for i := range s.allowed {
		s.allowed[i] = 0
		if allow {
			s.allowed[i] = ^uint64(0)
		}
	}
}

func (s *selector) addKeys(rule string) error {
	if s.allKeys {
		return errAllKeys
	}
	k := keyPattern{pattern: rule[1:], read: true, write: true}
	if rule[0] == '%' {
		var flags string
		flags, k.pattern, _ = strings.Cut(rule[1:], "~")
		k.read, k.write = false, false
		for _, f := range strings.ToUpper(flags) {
			switch {
			case f == 'R' && !k.read:
				k.read = true
			case f == 'W' && !k.write:
				k.write = true
			default:
				return errSyntax
			}
		}
	}
	if hasSpaces(k.pattern) || !k.read && !k.write {
		return errSyntax
	}
	for i := range s.keys {
		if old := &s.keys[i]; old.pattern == k.pattern {
			old.read, old.write = old.read || k.read, old.write || k.write
			return nil
		}
	}
	s.keys = append(s.keys, k)
	return nil
}

func (s *selector) addChannels(pattern string) error {
	switch {
	case s.allChannels:
		return errAllChannels
	case hasSpaces(pattern):
		return errSyntax
	case !slices.Contains(s.channels, pattern):
		s.channels = append(s.channels, pattern)
	}
	return nil
}

// applyCommands allows or forbids what name says: a command, a command with a
// subcommand or first argument, or a category.
func (s *selector) applyCommands(allow bool, name string) error {
	name = strings.ToLower(name)
	if category, ok := strings.CutPrefix(name, "@"); ok {
		return s.applyCategory(allow, category)
	}
	if c := command.LookupFull([]byte(name)); c != nil {
		s.set(c, allow)
		s.note(allow, name)
		return nil
	}
	if strings.Contains(name, ".") { // as modules name their commands; which there are, the backend tells later
		if s.named == nil {
			s.named = make(map[string]bool)
		}
		s.named[name] = allow
		s.allCommands = s.allCommands && allow
		s.note(allow, name)
		return nil
	}
	i := strings.LastIndexByte(name, '|')
	if !allow || i < 0 {
		return errUnknown
	}
	switch c := command.LookupFull([]byte(name[:i])); {
	case c == nil:
		return errUnknown
	case c.Parent != nil:
		return errFirstArg
	case name[i+1:] == "":
		return errSyntax
	case len(c.Subs) > 0:
		return errUnknown
	default:
		if !slices.Contains(s.firstArgs[c.ID], name[i+1:]) {
			if s.firstArgs == nil {
				s.firstArgs = make(map[command.ID][]string)
			}
			s.firstArgs[c.ID] = append(s.firstArgs[c.ID], name[i+1:])
		}
		s.note(allow, name)
		return nil
	}
}

func (s *selector) applyCategory(allow bool, name string) error {
	category := command.Category(name)
	if category == 0 {
		return errUnknown
	}
	for _, c := range command.All() {
		if c.Categories&category != 0 && !c.Has(command.Module) {
			s.set(c, allow)
		}
	}
	s.note(allow, "@"+name)
	return nil
}

// set allows or forbids a command and what it contains.
func (s *selector) set(c *command.Command, allow bool) {
	s.setBit(c.ID, allow)
	delete(s.firstArgs, c.ID)
	for _, sub := range c.Subs {
		s.setBit(sub.ID, allow)
	}
}

func (s *selector) setBit(id command.ID, allow bool) {
	if allow {
		s.allowed[id/64] |= 1 << (id % 64)
		return
	}
	s.allowed[id/64] &^= 1 << (id % 64)
	s.allCommands = false
}

// note remembers a rule as Redis 7.2 and later do: the latest of several about the same
// thing stays, and a rule about a command replaces those about its subcommands. Redis
// 7.0 works the shortest rules out of the result, which depends on its table of commands.
func (s *selector) note(allow bool, name string) {
	s.rules = slices.DeleteFunc(s.rules, func(r string) bool {
		return r[1:] == name || strings.HasPrefix(r[1:], name+"|")
	})
	if allow {
		s.rules = append(s.rules, "+"+name)
	} else {
		s.rules = append(s.rules, "-"+name)
	}
}

// ParseFile reads the content of an ACL file.
func ParseFile(name string, content []byte) (*Users, error) {
	lines := strings.Split(string(bytes.TrimRight(content, "\n")), "\n")
	for i, line := range lines {
		if line = strings.Trim(line, " \t\r\n"); line != "" && !strings.HasPrefix(line, "user ") {
			return nil, fmt.Errorf("%s:%d should start with user keyword followed by the username", name, i+1)
		}
	}
	return Parse(name, lines, false)
}
