package conf

import (
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// mappings takes texts that are YAML mappings, at most so many; parse makes an element of one, and sees those
// before it. String of an element writes it as it can be read again.
func mappings[T fmt.Stringer](key string, p *[]T, arg, help, noun string, most int, parse func(before []T, text string) (T, error)) option {
	return option{
		key: key, arg: arg, help: help, list: true, between: "\n", mappings: true,
		get: func() string {
			texts := make([]string, len(*p))
			for i, e := range *p {
				texts[i] = e.String()
			}
			return strings.Join(texts, "\n")
		},
		set: func(texts []string) error {
			var list []T
			for _, text := range texts {
				if strings.TrimSpace(text) == "" {
					continue
				}
				e, err := parse(list, text)
				if err != nil {
					return err
				}
				list = append(list, e)
			}
			if len(list) > most {
				return fmt.Errorf("%d %s, at most %d are allowed", len(list), noun, most)
			}
			*p = list
			return nil
		},
	}
}

// eachPair calls set with the keys and values of a text that is one YAML mapping. what it describes and what it
// may look like are for errors.
func eachPair(text, what, example string, set func(key string, texts []string) error) error {
	pairs, ok := mapping(text)
	if !ok {
		return fmt.Errorf("%s is a mapping such as %s", what, example)
	}
	for _, pair := range pairs {
		key := pair.Key.GetToken().Value
		texts, err := values(pair.Value)
		if err == nil {
			err = set(key, texts)
		}
		if err != nil {
			return fmt.Errorf("%s of %s: %w", key, what, err)
		}
	}
	return nil
}

// mapping is the pairs of a text that is one YAML mapping.
func mapping(text string) (pairs []*ast.MappingValueNode, ok bool) {
	file, err := parser.ParseBytes([]byte(text), 0)
	if err != nil || len(file.Docs) != 1 {
		return nil, false
	}
	switch n := file.Docs[0].Body.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}
