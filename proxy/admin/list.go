package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxWanted is the most that a page which lists something may be asked for.
const maxWanted = 1000

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
