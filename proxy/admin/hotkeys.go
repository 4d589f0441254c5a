package admin

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"cosky-proxy/proxy/stats"
)

// shownHotKeys is how many keys /metrics and, unless told otherwise, /hotkeys show. It bounds the
// label values of a scrape; which keys they are changes.
const shownHotKeys = 20

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

func newHotKeyMetric() metric[stats.HotKey] {
	return metric[stats.HotKey]{
		describe("hot_key_reads_per_second", "Reads of the keys that are read most, at present.", "key", "db"),
		prometheus.GaugeValue, func(k *stats.HotKey) float64 { return k.Reads },
	}
}
