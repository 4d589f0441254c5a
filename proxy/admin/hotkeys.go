package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"cosky-proxy/proxy/stats"
)

// shownHotKeys is how many keys /metrics and, unless told otherwise, /hotkeys show. It bounds the
// label values of a scrape; which keys they are changes.
const shownHotKeys = 20

// maxWanted is the most that /hotkeys?n= and /slowlog?n= may ask for.
const maxWanted = 1000

// hotKey is an element of the list that /hotkeys returns.
type hotKey struct {
	Key            string  `json:"key"`           // escaped, see printable
	Raw            []byte  `json:"raw,omitempty"` // the key itself (base64), if it had to be escaped
	DB             int     `json:"db"`
	Command        string  `json:"command"`
	ReadsPerSecond float64 `json:"reads_per_second"`
	Cached         string  `json:"cached"` // cosky, rule, hot or no
}

func hotKeys(w http.ResponseWriter, r *http.Request, get func(n int) []stats.HotKey) {
	n, ok := wanted(w, r, shownHotKeys)
	if !ok {
		return
	}
	list := make([]hotKey, 0, n)
	for _, k := range get(n) {
		h := hotKey{Key: printable(k.Key), DB: k.DB, Command: k.Command, ReadsPerSecond: k.Reads, Cached: k.Cached}
		if h.Key != k.Key {
			h.Raw = []byte(k.Key)
		}
		list = append(list, h)
	}
	writeJSON(w, list)
}

// wanted is the number that ?n= asks for. False: it makes no sense, and the request is answered.
func wanted(w http.ResponseWriter, r *http.Request, unlessTold int) (n int, ok bool) {
	text := r.URL.Query().Get("n")
	if text == "" {
		return unlessTold, true
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxWanted {
		http.Error(w, fmt.Sprintf("n must be a number from 1 to %d", maxWanted), http.StatusBadRequest)
		return 0, false
	}
	return n, true
}

func writeJSON(w http.ResponseWriter, list any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.Encode(list) // a client that has gone hears of no error either
}

// printable is key with backslashes and what cannot be printed written as Go would in a string.
// Different keys stay different.
func printable(key string) string {
	var b strings.Builder
	for len(key) > 0 {
		r, size := utf8.DecodeRuneInString(key)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, key[0])
		case r == '\\':
			b.WriteString(`\\`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			text := strconv.QuoteRuneToASCII(r)
			b.WriteString(text[1 : len(text)-1])
		}
		key = key[size:]
	}
	return b.String()
}

func newHotKeyMetric() metric[stats.HotKey] {
	return metric[stats.HotKey]{
		describe("hot_key_reads_per_second", "Reads of the keys that are read most, at present.", "key", "db"),
		prometheus.GaugeValue, func(k *stats.HotKey) float64 { return k.Reads },
	}
}
