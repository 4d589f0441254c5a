package vectors

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// slack is how far a clock value or a TTL may be off, in seconds.
const slack = 2

// matcher compares what a server answered with what a scenario expects. The
// placeholders it understands:
//
//	{"$time": true}          the server's clock, in seconds as text, at some moment of the scenario
//	{"$now_plus": n}         the clock at this step plus n, as text; an integer with "$int": true
//	{"$set": […]}            a list in any order
//	{"$hash": {…}}           a flat list of fields and values in any order, or in that of "$fields"
//	{"$b64": "…"}            bytes that are not UTF-8
//	{"error": "CODE"}        any error whose first word is CODE
type matcher struct {
	start, now time.Time // of the scenario, of the step
	anyOrder   bool      // the server sorts hashes and sets, so no order can be expected
}

// match returns nil when got is what want describes.
func (m matcher) match(want any, got value) error {
	ok := false
	switch w := want.(type) {
	case nil:
		ok = got.kind == null
	case string:
		ok = got.kind == textual && got.text == w
	case json.Number:
		ok = got.kind == integer && strconv.FormatInt(got.num, 10) == w.String()
	case []any:
		return m.matchList(w, got)
	case map[string]any:
		return m.matchPlaceholder(w, got)
	}
	if !ok {
		return mismatch(want, got)
	}
	return nil
}

func mismatch(want any, got value) error {
	text, err := json.Marshal(want)
	if err != nil {
		return err
	}
	return fmt.Errorf("got %.2000v, want %.2000s", got, text)
}

func (m matcher) matchList(want []any, got value) error {
	if got.kind != list || len(got.elems) != len(want) {
		return mismatch(want, got)
	}
	for i, w := range want {
		if err := m.match(w, got.elems[i]); err != nil {
			return fmt.Errorf("element %d: %w", i, err)
		}
	}
	return nil
}

func (m matcher) matchPlaceholder(w map[string]any, got value) error {
	if code, ok := w["error"].(string); ok {
		if first, _, _ := strings.Cut(got.text, " "); got.kind != failure || first != code {
			return mismatch(w, got)
		}
		return nil
	}
	if set, ok := w["$set"].([]any); ok {
		return m.matchSet(set, got)
	}
	if hash, ok := w["$hash"].(map[string]any); ok {
		fields, _ := w["$fields"].([]any)
		return m.matchHash(hash, fields, got)
	}
	if plus, ok := nowPlus(w); ok {
		return m.matchClock(w, got, m.now.Unix()+plus, m.now.Unix()+plus)
	}
	if w["$time"] == true {
		return m.matchClock(w, got, m.start.Unix(), m.now.Unix())
	}
	if got.kind != textual || got.text != plain(w) {
		return mismatch(w, got)
	}
	return nil
}

func (m matcher) matchSet(want []any, got value) error {
	if got.kind != list || len(got.elems) != len(want) {
		return mismatch(want, got)
	}
	rest := slices.Clone(got.elems)
	for _, w := range want {
		i := slices.IndexFunc(rest, func(v value) bool { return m.match(w, v) == nil })
		if i < 0 {
			return mismatch(want, got)
		}
		rest = slices.Delete(rest, i, i+1)
	}
	return nil
}

func (m matcher) matchHash(want map[string]any, order []any, got value) error {
	if got.kind != list || len(got.elems) != 2*len(want) {
		return mismatch(want, got)
	}
	for i := 0; i < len(got.elems); i += 2 {
		field := got.elems[i].text
		w, ok := want[field]
		if !ok {
			return fmt.Errorf("unexpected field %q: %w", field, mismatch(want, got))
		}
		if err := m.match(w, got.elems[i+1]); err != nil {
			return fmt.Errorf("field %q: %w", field, err)
		}
		if order != nil && !m.anyOrder && order[i/2] != field {
			return fmt.Errorf("field %q where %q was expected", field, order[i/2])
		}
	}
	return nil
}

// matchClock accepts seconds from first to last, as an integer where want says so.
func (m matcher) matchClock(want map[string]any, got value, first, last int64) error {
	n := got.num
	if want["$int"] != true {
		var err error
		if n, err = strconv.ParseInt(got.text, 10, 64); err != nil {
			return mismatch(want, got)
		}
	} else if got.kind != integer {
		return mismatch(want, got)
	}
	if n < first-slack || n > last+slack {
		return fmt.Errorf("got %v, which is not between %d and %d: %w", got, first, last, mismatch(want, got))
	}
	return nil
}
