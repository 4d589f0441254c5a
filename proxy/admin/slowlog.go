package admin

import (
	"net/http"
	"time"

	"cosky-proxy/proxy/stats"
)

// slowCommand is an element of the list that /slowlog returns.
type slowCommand struct {
	ID         int64   `json:"id"`
	Time       string  `json:"time"` // when it was answered, RFC 3339
	DurationUS int64   `json:"duration_us"`
	Command    string  `json:"command"`
	Key        *string `json:"key,omitempty"`       // the first one, escaped, see printable; none: it has none
	Raw        []byte  `json:"raw,omitempty"`       // the key itself (base64), if it had to be escaped
	KeyBytes   int     `json:"key_bytes,omitempty"` // of the whole key, if it had to be cut
	Arguments  int     `json:"arguments"`
	Bytes      int     `json:"bytes"` // of the request
	DB         int     `json:"db"`
	Client     string  `json:"client"`
	Name       string  `json:"name"`
	User       string  `json:"user"`
	AnsweredBy string  `json:"answered_by"`
	Retries    int     `json:"retries"`
	Error      string  `json:"error,omitempty"`
}

func slowLog(w http.ResponseWriter, r *http.Request, get func(n int) []stats.SlowCommand) {
	n, ok := wanted(w, r, -1)
	if !ok {
		return
	}
	list := []slowCommand{}
	for _, c := range get(n) {
		s := slowCommand{
			ID: c.ID, Time: c.At.UTC().Format(time.RFC3339Nano), DurationUS: c.Took.Microseconds(), Command: c.Command,
			Arguments: c.Args, Bytes: c.Size, DB: c.DB, Client: c.Addr, Name: c.Name, User: c.User,
			AnsweredBy: c.From, Retries: c.Retries, Error: c.Error,
		}
		if c.Keyed {
			key := printable(c.Key)
			s.Key = &key
			if key != c.Key {
				s.Raw = []byte(c.Key)
			}
			if c.KeySize > len(c.Key) {
				s.KeyBytes = c.KeySize
			}
		}
		list = append(list, s)
	}
	writeJSON(w, list)
}
