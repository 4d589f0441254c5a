package info

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Aggregate makes one text of texts, the answers of several masters to the same INFO.
// facts are the values of fields that do not depend on them.
func Aggregate(texts []string, facts map[string]string) string {
	var titles []string
	parts := make(map[string][]section) // by title, one per master that has it
	for _, text := range texts {
		for _, s := range parse(text) {
			if parts[s.title] == nil {
				titles = append(titles, s.title)
			}
			parts[s.title] = append(parts[s.title], s)
		}
	}
	var sections []section
	for _, title := range titles {
		s := combine(parts[title])
		for i, f := range s.fields {
			if value, given := facts[f.name]; given {
				s.fields[i].value = value
			}
		}
		sections = append(sections, s)
	}
	return format(sections)
}

// combine makes one section of the masters' sections with the same title.
func combine(parts []section) section {
	kind := strings.ToLower(parts[0].title)
	out := section{title: parts[0].title}
	if kind == "modules" { // every line has the same name
		out.fields = parts[0].fields
		return out
	}
	values := make(map[string][]string) // by field
	slaves := 0
	for _, p := range parts {
		for _, f := range p.fields {
			if kind == "replication" && isSlave(f.name) {
				f.name = fmt.Sprintf("slave%d", slaves)
				slaves++
			}
			if values[f.name] == nil {
				out.fields = append(out.fields, field{name: f.name})
			}
			values[f.name] = append(values[f.name], f.value)
		}
	}
	for i := range out.fields {
		f := &out.fields[i]
		f.value = ruleOf(kind, f.name)(values[f.name])
	}
	if kind == "replication" {
		out.fields = slavesTogether(out.fields)
	}
	if kind == "memory" {
		deriveMemory(out.fields)
	}
	return out
}

// isSlave reports whether a field is "slave0" or the like.
func isSlave(name string) bool {
	n, is := strings.CutPrefix(name, "slave")
	_, err := strconv.Atoi(n)
	return is && err == nil
}

// slavesTogether puts the replicas of all masters where the first one's are, or else
// behind their number.
func slavesTogether(fields []field) []field {
	var slaves, rest []field
	at := 0
	for _, f := range fields {
		if isSlave(f.name) {
			slaves = append(slaves, f)
			continue
		}
		rest = append(rest, f)
		if f.name == "connected_slaves" || f.name == "min_slaves_good_slaves" {
			at = len(rest)
		}
	}
	return slices.Insert(rest, at, slaves...)
}

// rule makes one value of those of several masters; there is at least one.
type rule func(values []string) string

// ruleOf chooses by the kind of figure that a field is. Fields of unknown sections are the
// first master's, those of known sections are treated like their neighbours.
func ruleOf(section, name string) rule {
	switch section {
	case "server":
		if strings.HasPrefix(name, "uptime_in_") {
			return smallest
		}
	case "clients":
		if strings.HasPrefix(name, "client_recent_max_") {
			return largest
		}
		return total
	case "memory":
		switch name {
		case "used_memory_peak_time", "active_defrag_running",
			"number_of_cached_scripts", "number_of_functions", "number_of_libraries": // every master has the same ones
			return largest
		case "maxmemory":
			return limit
		}
		return total
	case "persistence":
		return persistence(name)
	case "stats":
		switch name {
		case "latest_fork_usec", "expired_stale_perc", "current_eviction_exceeded_time", "current_active_defrag_time",
			"instantaneous_eventloop_duration_usec":
			return largest
		}
		return total
	case "replication":
		switch name {
		case "connected_slaves":
			return total
		case "min_slaves_good_slaves":
			return smallest
		}
	case "cpu":
		return total
	case "threads", "errorstats", "keysizes":
		return totals
	case "commandstats":
		return calls
	case "latencystats":
		return slowest
	case "keyspace":
		return keyspace
	}
	return first
}

func persistence(name string) rule {
	switch {
	case strings.HasSuffix(name, "_status"):
		return worst
	case name == "rdb_last_save_time":
		return smallest
	case strings.HasSuffix(name, "_size"), strings.HasPrefix(name, "rdb_last_load_keys"),
		name == "rdb_changes_since_last_save", name == "rdb_saves", name == "aof_rewrites":
		return total
	case strings.HasPrefix(name, "loading_"): // of one that is loading
		return first
	}
	return largest
}

func first(values []string) string { return values[0] }

// worst is the first value that is not "ok".
func worst(values []string) string {
	for _, v := range values {
		if v != "ok" {
			return v
		}
	}
	return values[0]
}

// total adds numbers up; whatever is no number is the first one's.
func total(values []string) string {
	return foldNumbers(values, func(a, b float64) float64 { return a + b })
}

func largest(values []string) string {
	return foldNumbers(values, func(a, b float64) float64 { return max(a, b) })
}

func smallest(values []string) string {
	return foldNumbers(values, func(a, b float64) float64 { return min(a, b) })
}

// limit is the sum of limits, 0 (unlimited) if one of them is.
func limit(values []string) string {
	if slices.Contains(values, "0") {
		return "0"
	}
	return total(values)
}

// foldNumbers keeps as many decimals as the first value has. Integers up to 2^53 are exact.
func foldNumbers(values []string, f func(a, b float64) float64) string {
	acc, err := strconv.ParseFloat(values[0], 64)
	for _, v := range values[1:] {
		n, problem := strconv.ParseFloat(v, 64)
		if err != nil || problem != nil {
			return values[0]
		}
		acc = f(acc, n)
	}
	if err != nil {
		return values[0]
	}
	_, fraction, _ := strings.Cut(values[0], ".")
	return strconv.FormatFloat(acc, 'f', len(fraction), 64)
}

// foldPairs combines values of the form "a=1,b=2" pair by pair.
func foldPairs(values []string, f rule) []field {
	var list []field
	all := make(map[string][]string)
	for _, v := range values {
		for _, p := range pairs(v) {
			if all[p.name] == nil {
				list = append(list, field{name: p.name})
			}
			all[p.name] = append(all[p.name], p.value)
		}
	}
	for i := range list {
		list[i].value = f(all[list[i].name])
	}
	return list
}

func totals(values []string) string { return joinPairs(foldPairs(values, total)) }

func slowest(values []string) string { return joinPairs(foldPairs(values, largest)) }

// calls is a line of Commandstats: usec_per_call follows from the totals.
func calls(values []string) string {
	list := foldPairs(values, total)
	number := numbers(list)
	for i := range list {
		if list[i].name == "usec_per_call" {
			list[i].value = fmt.Sprintf("%.2f", ratio(number("usec"), number("calls")))
		}
	}
	return joinPairs(list)
}

// keyspace is the line of a database: the average of the time to live is over the keys
// that have one.
func keyspace(values []string) string {
	list := foldPairs(values, total)
	weighted := 0.0
	for _, v := range values {
		number := numbers(pairs(v))
		weighted += number("avg_ttl") * number("expires")
	}
	for i := range list {
		if list[i].name == "avg_ttl" {
			list[i].value = fmt.Sprintf("%.0f", ratio(weighted, numbers(list)("expires")))
		}
	}
	return joinPairs(list)
}

// deriveMemory makes the figures again that follow from others.
func deriveMemory(fields []field) {
	number := numbers(fields)
	percent := func(part, whole float64) string { return fmt.Sprintf("%.2f%%", 100*ratio(part, whole)) }
	for i := range fields {
		f := &fields[i]
		if of, human := strings.CutSuffix(f.name, "_human"); human {
			f.value = humanBytes(number(of))
			continue
		}
		switch f.name {
		case "used_memory_peak_perc":
			f.value = percent(number("used_memory"), number("used_memory_peak"))
		case "used_memory_dataset_perc":
			f.value = percent(number("used_memory_dataset"), number("used_memory")-number("used_memory_startup"))
		case "allocator_frag_ratio":
			f.value = fmt.Sprintf("%.2f", ratio(number("allocator_active"), number("allocator_allocated")))
		case "allocator_rss_ratio":
			f.value = fmt.Sprintf("%.2f", ratio(number("allocator_resident"), number("allocator_active")))
		case "rss_overhead_ratio":
			f.value = fmt.Sprintf("%.2f", ratio(number("used_memory_rss"), number("allocator_resident")))
		case "mem_fragmentation_ratio":
			f.value = fmt.Sprintf("%.2f", ratio(number("used_memory_rss"), number("used_memory")))
		}
	}
}

// numbers finds a field's value, 0 when there is none.
func numbers(fields []field) func(name string) float64 {
	return func(name string) float64 {
		for _, f := range fields {
			if f.name == name {
				n, _ := strconv.ParseFloat(f.value, 64)
				return n
			}
		}
		return 0
	}
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// humanBytes is Redis' bytesToHuman.
func humanBytes(n float64) string {
	if n < 1024 {
		return fmt.Sprintf("%.0fB", n)
	}
	units := "KMGTP"
	for n /= 1024; n >= 1024 && len(units) > 1; units = units[1:] {
		n /= 1024
	}
	return fmt.Sprintf("%.2f%c", n, units[0])
}
