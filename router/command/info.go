package command

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"sync"
)

//go:embed docs.jsonl
var docsJSONL string

// docLines finds the line of docs.jsonl for a command name. The index is built
// when the first client asks for documentation.
var docLines = sync.OnceValue(func() map[string]string {
	lines := map[string]string{}
	for line := range strings.Lines(docsJSONL) {
		name, _, _ := strings.Cut(strings.TrimPrefix(line, `{"name":"`), `"`)
		lines[name] = line
	}
	return lines
})

// Doc is the documentation of one command, as COMMAND DOCS has it. A line of
// docs.jsonl is one Doc.
type Doc struct {
	Name            string      `json:"name"` // as Command.Name; must come first, docLines relies on it
	Summary         string      `json:"summary,omitempty"`
	Since           string      `json:"since,omitempty"`
	Group           string      `json:"group,omitempty"`
	Complexity      string      `json:"complexity,omitempty"`
	Module          string      `json:"module,omitempty"`
	DocFlags        []string    `json:"doc_flags,omitempty"`
	DeprecatedSince string      `json:"deprecated_since,omitempty"`
	ReplacedBy      string      `json:"replaced_by,omitempty"`
	History         [][2]string `json:"history,omitempty"` // version, change
	Arguments       []DocArg    `json:"arguments,omitempty"`
}

// DocArg is one argument of a documented command.
type DocArg struct {
	Name            string   `json:"name"`
	Type            string   `json:"type"`
	DisplayText     string   `json:"display_text,omitempty"`
	KeySpecIndex    *int     `json:"key_spec_index,omitempty"`
	Token           *string  `json:"token,omitempty"` // may be empty, but present
	Summary         string   `json:"summary,omitempty"`
	Since           string   `json:"since,omitempty"`
	DeprecatedSince string   `json:"deprecated_since,omitempty"`
	Flags           []string `json:"flags,omitempty"`
	Arguments       []DocArg `json:"arguments,omitempty"`
}

// docOf returns the documentation of c; what docs.jsonl does not have follows
// from the table.
func docOf(c *Command) Doc {
	doc := Doc{Name: c.Name, Since: c.Since, Group: c.Group}
	line, ok := docLines()[c.Name]
	if !ok {
		if c.Group == "" {
			doc.Group = "module"
		}
		return doc
	}
	if err := json.Unmarshal([]byte(line), &doc); err != nil {
		panic(fmt.Sprintf("BUG: docs.jsonl: %s: %s", c.Name, err))
	}
	return doc
}

// ParseDocs reads the reply of COMMAND DOCS, in the forms that ParseReply takes,
// into one Doc per command and subcommand.
func ParseDocs(reply any) (map[string]Doc, error) {
	docs := map[string]Doc{}
	if err := addDocs(docs, reply); err != nil {
		return nil, err
	}
	return docs, nil
}

func addDocs(docs map[string]Doc, reply any) error {
	entries, ok := mapOf(reply)
	if !ok {
		return fmt.Errorf("cannot read COMMAND DOCS reply: %T is no map", reply)
	}
	for name, v := range entries {
		m, ok := mapOf(v)
		if !ok {
			return fmt.Errorf("cannot read the documentation of %q: %T is no map", name, v)
		}
		doc := Doc{
			Name:            strings.ToLower(name),
			Summary:         text(m["summary"]),
			Since:           text(m["since"]),
			Group:           text(m["group"]),
			Complexity:      text(m["complexity"]),
			Module:          text(m["module"]),
			DocFlags:        stringsOf(m["doc_flags"]),
			DeprecatedSince: text(m["deprecated_since"]),
			ReplacedBy:      text(m["replaced_by"]),
			Arguments:       docArgsOf(m["arguments"]),
		}
		history, _ := m["history"].([]any)
		for _, e := range history {
			if pair := stringsOf(e); len(pair) == 2 {
				doc.History = append(doc.History, [2]string(pair))
			}
		}
		docs[doc.Name] = doc
		if subs, ok := m["subcommands"]; ok {
			if err := addDocs(docs, subs); err != nil {
				return err
			}
		}
	}
	return nil
}

func docArgsOf(v any) []DocArg {
	list, _ := v.([]any)
	var args []DocArg
	for _, e := range list {
		m, _ := mapOf(e)
		arg := DocArg{
			Name:            text(m["name"]),
			Type:            text(m["type"]),
			DisplayText:     text(m["display_text"]),
			Summary:         text(m["summary"]),
			Since:           text(m["since"]),
			DeprecatedSince: text(m["deprecated_since"]),
			Flags:           stringsOf(m["flags"]),
			Arguments:       docArgsOf(m["arguments"]),
		}
		if _, ok := m["key_spec_index"]; ok {
			i := integer(m["key_spec_index"])
			arg.KeySpecIndex = &i
		}
		if token, ok := m["token"].(string); ok {
			arg.Token = &token
		}
		args = append(args, arg)
	}
	return args
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// AppendInfo appends the RESP element that COMMAND INFO gives for c, a null for
// nil.
func AppendInfo(b []byte, c *Command, resp3 bool) []byte {
	w := respWriter{b, resp3}
	w.info(c)
	return w.b
}

// AppendKeyFlags appends the set of flags that COMMAND GETKEYSANDFLAGS gives for a key.
func AppendKeyFlags(b []byte, flags KeyFlags, resp3 bool) []byte {
	w := respWriter{b, resp3}
	w.bits("", uint64(flags), keyFlagNames[:])
	return w.b
}

// AppendDocs appends the name and the documentation of c, one key and one value
// in the map that COMMAND DOCS answers with.
func AppendDocs(b []byte, c *Command, resp3 bool) []byte {
	w := respWriter{b, resp3}
	w.docs(c, docOf)
	return w.b
}

// AppendMapHeader appends the header of a map of n pairs: COMMAND DOCS for n
// commands begins with it.
func AppendMapHeader(b []byte, n int, resp3 bool) []byte {
	w := respWriter{b, resp3}
	w.mapLen(n)
	return w.b
}

// respWriter writes RESP2 or RESP3. This is no data path; the writers of
// proxy/resp are out of reach from this layer.
type respWriter struct {
	b     []byte
	resp3 bool
}

func (w *respWriter) header(kind byte, n int) {
	w.b = append(strconv.AppendInt(append(w.b, kind), int64(n), 10), "\r\n"...)
}

func (w *respWriter) array(n int) { w.header('*', n) }
func (w *respWriter) int(n int)   { w.header(':', n) }

func (w *respWriter) mapLen(n int) {
	if w.resp3 {
		w.header('%', n)
	} else {
		w.header('*', 2*n)
	}
}

func (w *respWriter) set(n int) {
	if w.resp3 {
		w.header('~', n)
	} else {
		w.header('*', n)
	}
}

func (w *respWriter) null() {
	if w.resp3 {
		w.b = append(w.b, "_\r\n"...)
	} else {
		w.b = append(w.b, "$-1\r\n"...)
	}
}

func (w *respWriter) bulk(s string) {
	w.header('$', len(s))
	w.b = append(append(w.b, s...), "\r\n"...)
}

func (w *respWriter) status(s string) {
	w.b = append(append(append(w.b, '+'), s...), "\r\n"...)
}

// statuses writes a set of names, each after prefix.
func (w *respWriter) statuses(prefix string, names []string) {
	w.set(len(names))
	for _, name := range names {
		w.status(prefix + name)
	}
}

// bits writes the set of the names of the bits that are set.
func (w *respWriter) bits(prefix string, set uint64, names []string) {
	set &= 1<<len(names) - 1
	w.set(bits.OnesCount64(set))
	for ; set != 0; set &= set - 1 {
		w.status(prefix + names[bits.TrailingZeros64(set)])
	}
}

// field writes a pair of a map.
func (w *respWriter) field(key, value string) {
	w.bulk(key)
	w.bulk(value)
}

func (w *respWriter) intField(key string, n int) {
	w.bulk(key)
	w.int(n)
}

func (w *respWriter) info(c *Command) {
	if c == nil {
		w.null()
		return
	}
	w.array(entryFull)
	w.bulk(c.Name)
	w.int(c.Arity)
	w.bits("", uint64(c.Flags), flagNames[:])
	w.int(c.FirstKey)
	w.int(c.LastKey)
	w.int(c.Step)
	w.bits("@", uint64(c.Categories), categoryNames[:])
	w.set(len(c.Tips))
	for _, tip := range c.Tips {
		w.bulk(tip)
	}
	w.set(len(c.KeySpecs))
	for i := range c.KeySpecs {
		w.keySpec(&c.KeySpecs[i])
	}
	if len(c.Subs) == 0 {
		w.set(0)
		return
	}
	w.array(len(c.Subs))
	for _, sub := range c.Subs {
		w.info(sub)
	}
}

func (w *respWriter) keySpec(s *KeySpec) {
	if s.Notes != "" {
		w.mapLen(4)
		w.field("notes", s.Notes)
	} else {
		w.mapLen(3)
	}
	w.bulk("flags")
	w.bits("", uint64(s.Flags), keyFlagNames[:])

	w.bulk("begin_search")
	switch s.Begin {
	case BeginIndex:
		w.search("index", 1)
		w.intField("index", s.Index)
	case BeginKeyword:
		w.search("keyword", 2)
		w.field("keyword", s.Keyword)
		w.intField("startfrom", s.StartFrom)
	default:
		w.search("unknown", 0)
	}

	w.bulk("find_keys")
	switch s.Find {
	case FindRange:
		w.search("range", 3)
		w.intField("lastkey", s.LastKey)
		w.intField("keystep", s.KeyStep)
		w.intField("limit", s.Limit)
	case FindKeyNum:
		w.search("keynum", 3)
		w.intField("keynumidx", s.KeyNumIdx)
		w.intField("firstkey", s.FirstKey)
		w.intField("keystep", s.KeyStep)
	default:
		w.search("unknown", 0)
	}
}

// search begins the map {type, spec}; the spec has n fields.
func (w *respWriter) search(kind string, n int) {
	w.mapLen(2)
	w.field("type", kind)
	w.bulk("spec")
	w.mapLen(n)
}

// mapWriter writes a map whose length is known only at its end: each add is one
// pair.
type mapWriter struct {
	respWriter
	n int
}

func (m *mapWriter) text(key, value string) {
	if value != "" {
		m.field(key, value)
		m.n++
	}
}

func (m *mapWriter) list(key string, names []string) {
	if len(names) > 0 {
		m.bulk(key)
		m.statuses("", names)
		m.n++
	}
}

func (m *mapWriter) args(args []DocArg) {
	m.bulk("arguments")
	m.array(len(args))
	for i := range args {
		m.arg(&args[i])
	}
	m.n++
}

// end appends the map to w.
func (m *mapWriter) end(w *respWriter) {
	w.mapLen(m.n)
	w.b = append(w.b, m.b...)
}

// docs writes name and documentation of c; find gives the Doc of a command.
func (w *respWriter) docs(c *Command, find func(*Command) Doc) {
	doc := find(c)
	w.bulk(c.Name)
	m := mapWriter{respWriter: respWriter{resp3: w.resp3}}
	m.text("summary", doc.Summary)
	m.text("since", doc.Since)
	m.text("group", doc.Group)
	m.text("complexity", doc.Complexity)
	m.text("module", doc.Module)
	m.list("doc_flags", doc.DocFlags)
	m.text("deprecated_since", doc.DeprecatedSince)
	m.text("replaced_by", doc.ReplacedBy)
	if len(doc.History) > 0 {
		m.bulk("history")
		m.set(len(doc.History))
		for _, change := range doc.History {
			m.array(2)
			m.bulk(change[0])
			m.bulk(change[1])
		}
		m.n++
	}
	if len(doc.Arguments) > 0 {
		m.args(doc.Arguments)
	}
	if len(c.Subs) > 0 {
		m.bulk("subcommands")
		m.mapLen(len(c.Subs))
		for _, sub := range c.Subs {
			m.respWriter.docs(sub, find)
		}
		m.n++
	}
	m.end(w)
}

func (w *respWriter) arg(a *DocArg) {
	m := mapWriter{respWriter: respWriter{resp3: w.resp3}}
	m.text("name", a.Name)
	m.text("type", a.Type)
	m.text("display_text", a.DisplayText)
	if a.KeySpecIndex != nil {
		m.intField("key_spec_index", *a.KeySpecIndex)
		m.n++
	}
	if a.Token != nil {
		m.field("token", *a.Token)
		m.n++
	}
	m.text("summary", a.Summary)
	m.text("since", a.Since)
	m.text("deprecated_since", a.DeprecatedSince)
	m.list("flags", a.Flags)
	if a.Type == "oneof" || a.Type == "block" {
		m.args(a.Arguments)
	}
	m.end(w)
}
