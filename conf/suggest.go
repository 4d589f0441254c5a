package conf

import "strings"

// suggest tells someone who wrote name which of the known names may be meant.
func (l *loader) suggest(name string, known []string) string {
	best, distance := "", 4
	for _, k := range known {
		// Well below the length of what may be misspelt, or anything resembles anything.
		if d := editDistance(name, k); d < distance && 2*d < len(name)-commonWords(name, k) {
			best, distance = k, d
		}
	}
	if best != "" {
		return "did you mean " + best + "?"
	}
	section, _, dotted := strings.Cut(name, ".")
	var siblings []string
	for _, k := range known {
		if s, rest, ok := strings.Cut(k, "."); ok && dotted && s == section {
			siblings = append(siblings, rest)
		}
	}
	if siblings != nil {
		return "allowed in " + section + ": " + strings.Join(siblings, ", ")
	}
	return "--help lists what is allowed"
}

// commonWords is the length of the words, with the separator after each, with which
// both names begin.
func commonWords(a, b string) int {
	n := 0
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			break
		}
		if strings.IndexByte(".-_", a[i]) >= 0 {
			n = i + 1
		}
	}
	return n
}

// editDistance counts the insertions, deletions and replacements of bytes that
// turn a into b (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
