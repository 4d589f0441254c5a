package conf

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// setting is one key of a file with its value as text.
type setting struct {
	key   string
	texts []string
	err   error // the value has no text; matters only if the key is known
	cut   bool  // YAML took a # that begins a word of the value for a comment, or so it looks
	line  int
}

// readFile returns the settings of a YAML file in order. Sections may be nested or
// written with dots. isSection tells the keys that only hold other keys.
// isChoice tells those whose value may be a word with a value of its own.
func readFile(name string, isSection, isChoice func(key string) bool) ([]setting, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		// The error says verb, name and cause itself.
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, syntaxError(name, data, err)
	}
	w := walker{file: name, isSection: isSection, isChoice: isChoice}
	for i, doc := range file.Docs {
		if i > 0 && doc.Body != nil {
			return nil, fmt.Errorf("cannot use %s: it holds more than one YAML document", name)
		}
		if err := w.walk("", doc.Body); err != nil {
			return nil, err
		}
	}
	return w.settings, nil
}

// syntaxError is the parser's message on one line, without its source excerpt.
func syntaxError(name string, data []byte, err error) error {
	var y yaml.Error
	if !errors.As(err, &y) || y.GetToken() == nil {
		return fmt.Errorf("cannot parse %s: %s", name, strings.ReplaceAll(err.Error(), "\n", " "))
	}
	line := y.GetToken().Position.Line
	return fmt.Errorf("cannot parse %s:%d: %s%s", name, line, y.GetMessage(), quotesAdvice(data, line))
}

// quotesAdvice explains the commonest mistake, a value without quotes that YAML takes
// for another key: "backend: embedded:".
func quotesAdvice(data []byte, line int) string {
	lines := strings.Split(string(data), "\n")
	if line < 1 || line > len(lines) {
		return ""
	}
	if strings.Contains(lines[line-1], " #") {
		return `; to YAML " #" begins a comment, a value that contains it needs quotes`
	}
	_, value, _ := strings.Cut(lines[line-1], ": ")
	value = strings.TrimSpace(value)
	if value == "" || strings.ContainsAny(value[:1], `"'{[`) || !strings.Contains(value+" ", ": ") {
		return ""
	}
	return `; a value that contains ": " or ends in ":" needs quotes`
}

type walker struct {
	file      string
	isSection func(key string) bool
	isChoice  func(key string) bool
	settings  []setting
}

func (w *walker) walk(prefix string, n ast.Node) error {
	switch n := n.(type) {
	case nil, *ast.NullNode, *ast.CommentGroupNode: // an empty file or section
		return nil
	case *ast.MappingNode:
		for _, v := range n.Values {
			if err := w.pair(prefix, v); err != nil {
				return err
			}
		}
		return nil
	case *ast.MappingValueNode:
		return w.pair(prefix, n)
	}
	where := "the file"
	if prefix != "" {
		where = strings.TrimSuffix(prefix, ".")
	}
	// The value is not quoted: it may be a misplaced password.
	return fmt.Errorf("cannot use the value in %s:%d: %s holds keys, each with a value", w.file, line(n), where)
}

func (w *walker) pair(prefix string, v *ast.MappingValueNode) error {
	key := prefix + v.Key.GetToken().Value
	if w.isSection(key) {
		return w.walk(key+".", v.Value)
	}
	s := setting{key: key, line: line(v.Key)}
	if i := slices.IndexFunc(w.settings, func(o setting) bool { return o.key == key }); i >= 0 {
		return fmt.Errorf("cannot use %q (%s:%d): it is already set in line %d", key, w.file, s.line, w.settings[i].line)
	}
	if w.isChoice(key) {
		v.Value = choiceText(v.Value)
	}
	s.texts, s.err = values(v.Value)
	s.cut = isCut(v.Value)
	w.settings = append(w.settings, s)
	return nil
}

// errMappings comes with the texts of a list in which there are mappings, or of one that stands for such a list.
var errMappings = errors.New("it needs a plain value")

// choiceText makes one text of a word that has a value of its own, "serve_stale: 30s" of
// {serve_stale: 30s}. Anything else stays as it is.
func choiceText(n ast.Node) ast.Node {
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) == 1 {
		n = m.Values[0]
	}
	v, ok := n.(*ast.MappingValueNode)
	if !ok {
		return n
	}
	text, ok := scalarText(v.Value)
	if !ok {
		return n
	}
	return &ast.StringNode{BaseNode: &ast.BaseNode{}, Token: v.Key.GetToken(), Value: v.Key.GetToken().Value + ": " + text}
}

// values is a scalar's text as it is written (without quotes), or a list's texts.
func values(n ast.Node) ([]string, error) {
	switch n := n.(type) {
	case *ast.SequenceNode:
		var texts []string
		var err error
		for _, v := range n.Values {
			t, ok := scalarText(v)
			if !ok {
				t, err = v.String(), errMappings
			}
			texts = append(texts, t)
		}
		return texts, err
	case *ast.NullNode:
		return nil, errors.New("it has no value")
	}
	t, ok := scalarText(n)
	if !ok { // a list of one, perhaps
		return []string{n.String()}, errMappings
	}
	return []string{t}, nil
}

func scalarText(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// isCut reports whether a text without quotes is followed by a comment in whose place the
// text may have been meant to go on: one without a space behind the #.
func isCut(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.SequenceNode:
		return slices.ContainsFunc(n.Values, isCut)
	case *ast.StringNode:
		next := n.GetToken().Next
		return n.GetToken().Type == token.StringType && next != nil && next.Type == token.CommentType &&
			next.Position.Line == line(n) && !strings.HasPrefix(next.Value, " ")
	}
	return false
}

func line(n ast.Node) int { return n.GetToken().Position.Line }
