package acl

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"slices"
	"strings"

	"cosky-proxy/router/command"
)

// DefaultName is the user that a client is before it has logged in.
const DefaultName = "default"

// Users are all users there are. The default user always exists.
type Users struct {
	byName map[string]*User
	sorted []*User // by name
}

// Lookup returns the user called name, nil if there is none.
func (us *Users) Lookup(name []byte) *User { return us.byName[string(name)] }

// Default is the user of clients that have not logged in.
func (us *Users) Default() *User { return us.byName[DefaultName] }

// All returns the users by name. The caller must not change the slice.
func (us *Users) All() []*User { return us.sorted }

// User is one user with its passwords and permissions.
type User struct {
	Name      string
	enabled   bool
	noPass    bool
	sanitize  string // what was said about it: kept to be shown, the backend sanitizes as it is configured to
	passwords [][sha256.Size]byte
	selectors []*selector // the first one is what stands outside of parentheses
}

// selector is one set of permissions: a command needs a selector that allows all of it.
type selector struct {
	allKeys     bool
	allChannels bool
	allCommands bool                    // no bit of allowed needs to be looked at
	future      bool                    // commands that are not in the built-in table are allowed
	allowed     []uint64                // a bit per command of the built-in table
	named       map[string]bool         // commands of modules, which are not in it
	firstArgs   map[command.ID][]string // of commands that are allowed with these only
	rules       []string                // what made allowed, to be shown
	keys        []keyPattern
	channels    []string
}

// keyPattern allows reading, writing or both.
type keyPattern struct {
	pattern     string
	read, write bool
}

// NoPass reports whether any password will do.
func (u *User) NoPass() bool { return u.noPass }

// Enabled reports whether the user may log in.
func (u *User) Enabled() bool { return u.enabled }

// Authenticate reports whether the user may log in with password. The time it takes
// tells nothing about how much of the password is right.
func (u *User) Authenticate(password []byte) bool {
	if !u.enabled || u.noPass {
		return u.enabled
	}
	sum := sha256.Sum256(password)
	found := 0
	for i := range u.passwords {
		found |= subtle.ConstantTimeCompare(sum[:], u.passwords[i][:])
	}
	return found == 1
}

// Flags are the user's flags, as ACL GETUSER lists them.
func (u *User) Flags() []string {
	flags := []string{"off"}
	if u.enabled {
		flags[0] = "on"
	}
	if u.noPass {
		flags = append(flags, "nopass")
	}
	if u.sanitize != "" {
		flags = append(flags, u.sanitize)
	}
	return flags
}

// Passwords are the SHA-256 digests of the passwords in hexadecimal.
func (u *User) Passwords() []string {
	var list []string
	for i := range u.passwords {
		list = append(list, hex.EncodeToString(u.passwords[i][:]))
	}
	return list
}

// Permissions describe one selector in the form in which it can be configured.
type Permissions struct{ Commands, Keys, Channels string }

// Root are the permissions outside of parentheses.
func (u *User) Root() Permissions { return u.selectors[0].describe() }

// Selectors are the permissions in parentheses.
func (u *User) Selectors() []Permissions {
	var list []Permissions
	for _, s := range u.selectors[1:] {
		list = append(list, s.describe())
	}
	return list
}

// String is the user's line in an ACL file, as ACL LIST shows it.
func (u *User) String() string {
	words := append([]string{"user", u.Name}, u.Flags()...)
	for _, p := range u.Passwords() {
		words = append(words, "#"+p)
	}
	words = append(words, u.selectors[0].line())
	for _, s := range u.selectors[1:] {
		words = append(words, "("+s.line()+")")
	}
	return strings.Join(words, " ")
}

func (s *selector) describe() Permissions {
	p := Permissions{Commands: "-@all", Keys: "~*", Channels: "&*"}
	if s.future {
		p.Commands = "+@all"
	}
	p.Commands = strings.Join(append([]string{p.Commands}, s.rules...), " ")
	if !s.allKeys {
		var list []string
		for _, k := range s.keys {
			list = append(list, k.String())
		}
		p.Keys = strings.Join(list, " ")
	}
	if !s.allChannels {
		var list []string
		for _, c := range s.channels {
			list = append(list, "&"+c)
		}
		p.Channels = strings.Join(list, " ")
	}
	return p
}

// line is the selector as it stands in ACL LIST.
func (s *selector) line() string {
	p := s.describe()
	if !s.allChannels {
		p.Channels = strings.TrimSuffix("resetchannels "+p.Channels, " ")
	}
	words := []string{p.Keys, p.Channels, p.Commands}
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " ")
}

func (k keyPattern) String() string {
	switch {
	case k.read && k.write:
		return "~" + k.pattern
	case k.read:
		return "%R~" + k.pattern
	}
	return "%W~" + k.pattern
}
