package command

import "strings"

// Help are the lines of a container's HELP, which was called by name: each subcommand
// with its arguments, below it what it does.
func Help(container *Command, name string) []string {
	lines := []string{strings.ToUpper(name) + " <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"}
	for _, c := range container.Subs {
		if c.sub == "help" {
			continue
		}
		doc := docOf(c)
		lines = append(lines, strings.Join(append([]string{strings.ToUpper(c.sub)}, syntaxes(doc.Arguments)...), " "))
		if doc.Summary != "" {
			lines = append(lines, "    "+doc.Summary)
		}
	}
	return append(lines, "HELP", "    Prints this help.")
}

func syntaxes(args []DocArg) []string {
	var words []string
	for i := range args {
		words = append(words, args[i].syntax())
	}
	return words
}

// syntax is how an argument is written in a manual: <name>, TOKEN, [optional], a|b.
func (a *DocArg) syntax() string {
	var s string
	switch a.Type {
	case "pure-token":
	case "oneof":
		s = strings.Join(syntaxes(a.Arguments), "|")
	case "block":
		s = strings.Join(syntaxes(a.Arguments), " ")
	default:
		s = "<" + a.Name + ">"
	}
	if a.Token != nil && *a.Token != "" {
		s = strings.TrimSpace(*a.Token + " " + s)
	}
	for _, flag := range a.Flags {
		if flag == "multiple" {
			s += " [" + s + " ...]"
		}
	}
	for _, flag := range a.Flags {
		if flag == "optional" {
			s = "[" + s + "]"
		}
	}
	return s
}
