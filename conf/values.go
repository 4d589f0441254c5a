package conf

import (
	"errors"
	"math"
	"net"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Bytes is a size. As in redis.conf, KB, MB and GB are powers of 1024; KiB, MiB
// and GiB mean the same.
type Bytes int64

// Units of [Bytes].
const (
	KB Bytes = 1 << 10
	MB Bytes = 1 << 20
	GB Bytes = 1 << 30
)

// String writes the size with the largest unit that divides it.
func (b Bytes) String() string {
	switch {
	case b == 0:
		return "0"
	case b%GB == 0:
		return strconv.FormatInt(int64(b/GB), 10) + "GB"
	case b%MB == 0:
		return strconv.FormatInt(int64(b/MB), 10) + "MB"
	case b%KB == 0:
		return strconv.FormatInt(int64(b/KB), 10) + "KB"
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

// Secret is text that no formatting verb prints.
type Secret string

// String hides the secret; it tells only whether there is one.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "***"
}

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// MarshalText hides the secret from JSON and from logs.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

var (
	errNotNumber   = errors.New("not a whole number")
	errNotSize     = errors.New("not a size")
	errNotDuration = errors.New("not a duration with a unit")
	errOutOfRange  = errors.New("out of range")
)

func parseNumber(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return 0, errOutOfRange
	}
	if err != nil {
		return 0, errNotNumber
	}
	return n, nil
}

func parseBytes(text string) (Bytes, error) {
	digits := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
	var unit Bytes
	switch strings.ToLower(strings.TrimSpace(text[len(digits):])) {
	case "", "b":
		unit = 1
	case "kb", "kib":
		unit = KB
	case "mb", "mib":
		unit = MB
	case "gb", "gib":
		unit = GB
	default:
		return 0, errNotSize
	}
	n, err := parseNumber(digits)
	if errors.Is(err, errOutOfRange) || n > math.MaxInt64/int64(unit) {
		return 0, errOutOfRange
	}
	if err != nil || n < 0 {
		return 0, errNotSize
	}
	return Bytes(n) * unit, nil
}

func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, errNotDuration
	}
	return d, nil
}

// formatDuration writes 1m0s as 1m and 0s as 0.
func formatDuration(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

const allowedAddress = "host:port, tls:host:port or unix:/path"

// checkAddress accepts what a server can listen on; port 0 asks the kernel for one.
func checkAddress(text string) error {
	if path, ok := strings.CutPrefix(text, "unix:"); ok {
		return checkSocketPath(path)
	}
	return checkHostPort(strings.TrimPrefix(text, tlsListener))
}

func checkSocketPath(path string) error {
	if !strings.HasPrefix(path, "/") {
		return errors.New("the socket's path is not absolute")
	}
	// sockaddr_un.sun_path holds 108 bytes on Linux and 104 on BSD, with the final NUL.
	if len(path) > 103 {
		return errors.New("the socket's path is longer than 103 bytes")
	}
	return nil
}

// checkReachable accepts what others can connect to.
func checkReachable(text string) error {
	if err := checkHostPort(text); err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(text) // checked above
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return errors.New("nobody can connect to every interface: name a host")
	}
	if n, _ := strconv.Atoi(port); n == 0 {
		return errors.New("nobody can connect to port 0")
	}
	if strings.ContainsFunc(host, unicode.IsSpace) {
		return errors.New("the host has a space in it")
	}
	return nil
}

func checkHostPort(text string) error {
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return errors.New("not host:port")
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return errors.New("the port is not a number from 0 to 65535")
	}
	return nil
}
