package info

import "strings"

// section is a part of an INFO text.
type section struct {
	title  string // as in "# Title"
	fields []field
}

// field is a line. A line without colon has no value and is copied.
type field struct{ name, value string }

// parse reads an INFO text.
func parse(text string) []section {
	var sections []section
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			continue
		}
		if title, is := strings.CutPrefix(line, "# "); is {
			sections = append(sections, section{title: title})
			continue
		}
		if len(sections) == 0 {
			sections = append(sections, section{})
		}
		s := &sections[len(sections)-1]
		name, value, _ := strings.Cut(line, ":")
		s.fields = append(s.fields, field{name, value})
	}
	return sections
}

// format writes an INFO text.
func format(sections []section) string {
	var b strings.Builder
	for i, s := range sections {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString("# " + s.title + "\r\n")
		for _, f := range s.fields {
			b.WriteString(f.name + ":" + f.value + "\r\n")
		}
	}
	return b.String()
}

// pairs reads "a=1,b=2".
func pairs(value string) []field {
	var list []field
	for part := range strings.SplitSeq(value, ",") {
		name, v, _ := strings.Cut(part, "=")
		list = append(list, field{name, v})
	}
	return list
}

func joinPairs(list []field) string {
	var parts []string
	for _, f := range list {
		parts = append(parts, f.name+"="+f.value)
	}
	return strings.Join(parts, ",")
}
