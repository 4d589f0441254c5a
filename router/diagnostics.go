package router

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"cosky-proxy/proxy/resp"
)

// Merges of what servers say about themselves.

// elements are the raw elements of an aggregate, however nested.
func elements(reply []byte) [][]byte {
	kind, n, size := resp.ReadHeader(reply)
	if kind == '%' {
		n *= 2
	}
	elems := make([][]byte, 0, max(n, 0))
	for rest := reply[size:]; len(rest) > 0; {
		var sc resp.ReplyScanner
		n, _, _ := sc.Scan(rest)
		elems = append(elems, rest[:n])
		rest = rest[n:]
	}
	return elems
}

// integerAt is the integer at position i of an array, 0 if there is none.
func integerAt(array []byte, i int) int64 {
	elems := elements(array)
	if i >= len(elems) {
		return 0
	}
	_, v, _ := resp.ReadHeader(elems[i])
	return v
}

func appendElements(elems [][]byte) []byte {
	out := resp.AppendArray(nil, len(elems))
	for _, e := range elems {
		out = append(out, e...)
	}
	return out
}

// allElements joins arrays, or returns the first error.
func allElements(a *Answers) (elems [][]byte, problem []byte) {
	if e := firstError(a.Replies); e != nil {
		return nil, e
	}
	for _, r := range a.Replies {
		elems = append(elems, elements(r)...)
	}
	return elems, nil
}

// logDefault is how many entries SLOWLOG GET and ACL LOG show unless told otherwise.
const logDefault = 10

// newest shows the newest entries of all servers' logs, newest first: as many as the command asks for, -1 for all.
// when orders entries.
func newest(when func(entry []byte) int64) Merge {
	return func(a *Answers) []byte {
		if a.Replies[0][0] == '+' { // ACL LOG RESET
			return allSucceeded(a)
		}
		elems, problem := allElements(a)
		if problem != nil {
			return problem
		}
		slices.SortStableFunc(elems, func(x, y []byte) int { return cmp.Compare(when(y), when(x)) })
		limit := logDefault
		if len(a.Args) > 2 {
			limit, _ = strconv.Atoi(string(a.Args[2]))
		}
		if limit >= 0 && len(elems) > limit {
			elems = elems[:limit]
		}
		return appendElements(elems)
	}
}

// slowlogTime is the time of an entry of SLOWLOG GET.
func slowlogTime(entry []byte) int64 { return integerAt(entry, 1) }

// aclLogTime orders entries of ACL LOG by their age, which is written as seconds with a fraction.
func aclLogTime(entry []byte) int64 {
	v, _, err := resp.Parse(entry)
	if err != nil {
		return 0
	}
	for i := 0; i+1 < len(v.Elems); i += 2 {
		if string(v.Elems[i].Str) == "age-seconds" {
			age, _ := strconv.ParseFloat(string(v.Elems[i+1].Str), 64)
			return -int64(age * 1000)
		}
	}
	return 0
}

// byTime joins samples [time, value] in the order of time.
func byTime(a *Answers) []byte {
	elems, problem := allElements(a)
	if problem != nil {
		return problem
	}
	slices.SortStableFunc(elems, func(x, y []byte) int { return cmp.Compare(integerAt(x, 0), integerAt(y, 0)) })
	return appendElements(elems)
}

// latencyLatest has one line per event: the latest time and value of the server where it happened last, and the
// maximum of all, with what newer servers add summed up.
func latencyLatest(a *Answers) []byte {
	elems, problem := allElements(a)
	if problem != nil {
		return problem
	}
	var names [][]byte
	events := make(map[string][]int64)
	for _, e := range elems {
		fields := elements(e)
		name := fields[0]
		values := make([]int64, len(fields)-1)
		for i, f := range fields[1:] {
			_, values[i], _ = resp.ReadHeader(f)
		}
		have, known := events[string(name)]
		if !known {
			names = append(names, name)
			events[string(name)] = values
			continue
		}
		for i := range min(len(have), len(values)) {
			switch {
			case i == 0 && values[0] > have[0]:
				have[0], have[1] = values[0], values[1]
			case i == 2:
				have[i] = max(have[i], values[i])
			case i > 2:
				have[i] += values[i]
			}
		}
	}
	out := resp.AppendArray(nil, len(names))
	for _, name := range names {
		values := events[string(name)]
		out = append(resp.AppendArray(out, 1+len(values)), name...)
		for _, v := range values {
			out = resp.AppendInt(out, v)
		}
	}
	return out
}

// report joins texts for people: one if all say the same, else each under the name of its server. A server that
// has nothing to report (an error) is left out if others have.
func report(a *Answers) []byte {
	var texts, from [][]byte
	same := true
	for i, r := range a.Replies {
		v, _, err := resp.Parse(r)
		if err != nil || v.IsError() {
			same = false
			continue
		}
		same = same && bytes.Equal(r, a.Replies[0])
		texts, from = append(texts, v.Text()), append(from, []byte(a.From[i]))
	}
	if same || len(texts) == 0 {
		return a.Replies[0]
	}
	var all []byte
	for i, text := range texts {
		all = fmt.Appendf(all, "# %s\n%s", from[i], text)
		if !bytes.HasSuffix(text, []byte("\n")) {
			all = append(all, '\n')
		}
	}
	if a.RESP3 {
		return resp.AppendVerbatim(nil, "txt", all)
	}
	return resp.AppendBulk(nil, all)
}

// totals adds up the integers of maps, nested ones too. Of ratios, which add up to nothing, the highest counts.
func totals(a *Answers) []byte {
	parsed, problem := parseAll(a)
	if problem != nil {
		return problem
	}
	return appendValue(nil, total(parsed))
}

func parseAll(a *Answers) (values []resp.Value, problem []byte) {
	if e := firstError(a.Replies); e != nil {
		return nil, e
	}
	for _, r := range a.Replies {
		v, _, err := resp.Parse(r)
		if err != nil {
			return nil, []byte("-ERR cosky-proxy cannot read a reply of the cluster\r\n")
		}
		values = append(values, v)
	}
	return values, nil
}

func total(maps []resp.Value) resp.Value {
	sum := resp.Value{Kind: maps[0].Kind}
	var keys []string
	values := make(map[string][]resp.Value)
	for _, m := range maps {
		for i := 0; i+1 < len(m.Elems); i += 2 {
			key := string(m.Elems[i].Str)
			if values[key] == nil {
				keys = append(keys, key)
			}
			values[key] = append(values[key], m.Elems[i+1])
		}
	}
	for _, key := range keys {
		sum.Elems = append(sum.Elems, resp.Value{Kind: '$', Str: []byte(key)}, combine(key, values[key]))
	}
	return sum
}

// combine makes one figure of those of several servers.
func combine(key string, vs []resp.Value) resp.Value {
	best := vs[0]
	switch best.Kind {
	case '*', '%':
		return total(vs)
	case ':':
		for _, v := range vs[1:] {
			if key == "keys.bytes-per-key" { // a ratio in the guise of an integer
				best.Int = max(best.Int, v.Int)
				continue
			}
			best.Int += v.Int
		}
		return best
	}
	number := func(v resp.Value) float64 {
		f, _ := strconv.ParseFloat(string(v.Str), 64)
		return f
	}
	for _, v := range vs[1:] {
		if number(v) > number(best) {
			best = v
		}
	}
	return best
}

func appendValue(b []byte, v resp.Value) []byte {
	if v.Null && v.Kind != '_' {
		return resp.AppendNull(b)
	}
	switch v.Kind {
	case '*', '~':
		b = append(strconv.AppendInt(append(b, v.Kind), int64(len(v.Elems)), 10), "\r\n"...)
	case '%':
		b = resp.AppendMap(b, len(v.Elems)/2)
	case ':':
		return resp.AppendInt(b, v.Int)
	case '$':
		return resp.AppendBulk(b, v.Str)
	default:
		return append(append(append(b, v.Kind), v.Str...), "\r\n"...)
	}
	for _, e := range v.Elems {
		b = appendValue(b, e)
	}
	return b
}

// histograms adds up LATENCY HISTOGRAM: per command its calls and, per bucket, how many calls took no longer. A server
// leaves out the buckets in which nothing happened, so its figure there is that of the bucket before.
func histograms(a *Answers) []byte {
	parsed, problem := parseAll(a)
	if problem != nil {
		return problem
	}
	var names []string
	perCommand := make(map[string][]resp.Value)
	for _, reply := range parsed {
		for i := 0; i+1 < len(reply.Elems); i += 2 {
			name := string(reply.Elems[i].Str)
			if perCommand[name] == nil {
				names = append(names, name)
			}
			perCommand[name] = append(perCommand[name], reply.Elems[i+1])
		}
	}
	out := resp.Value{Kind: parsed[0].Kind}
	for _, name := range names {
		out.Elems = append(out.Elems, resp.Value{Kind: '$', Str: []byte(name)}, addHistograms(perCommand[name]))
	}
	return appendValue(nil, out)
}

func addHistograms(vs []resp.Value) resp.Value {
	field := func(v resp.Value, name string) resp.Value {
		for i := 0; i+1 < len(v.Elems); i += 2 {
			if string(v.Elems[i].Str) == name {
				return v.Elems[i+1]
			}
		}
		return resp.Value{}
	}
	calls, kind := int64(0), byte('*')
	var buckets []int64
	for _, v := range vs {
		calls += field(v, "calls").Int
		usec := field(v, "histogram_usec")
		kind = usec.Kind
		for i := 0; i+1 < len(usec.Elems); i += 2 {
			buckets = append(buckets, usec.Elems[i].Int)
		}
	}
	slices.Sort(buckets)
	buckets = slices.Compact(buckets)
	sum := resp.Value{Kind: kind}
	for _, bucket := range buckets {
		n := int64(0)
		for _, v := range vs {
			usec, upTo := field(v, "histogram_usec"), int64(0)
			for i := 0; i+1 < len(usec.Elems) && usec.Elems[i].Int <= bucket; i += 2 {
				upTo = usec.Elems[i+1].Int
			}
			n += upTo
		}
		sum.Elems = append(sum.Elems, resp.Value{Kind: ':', Int: bucket}, resp.Value{Kind: ':', Int: n})
	}
	text := func(s string) resp.Value { return resp.Value{Kind: '$', Str: []byte(s)} }
	return resp.Value{Kind: vs[0].Kind, Elems: []resp.Value{text("calls"), {Kind: ':', Int: calls}, text("histogram_usec"), sum}}
}

// functionStats shows the server that runs a function, if one does.
func functionStats(a *Answers) []byte {
	parsed, problem := parseAll(a)
	if problem != nil {
		return problem
	}
	for i, v := range parsed {
		if len(v.Elems) > 1 && !v.Elems[1].Null {
			return a.Replies[i]
		}
	}
	return a.Replies[0]
}

// killed: one server that runs something is enough; of refusals the one counts that is not "nothing runs here".
func killed(a *Answers) []byte {
	answer := a.Replies[0]
	for _, r := range a.Replies {
		switch {
		case r[0] != '-':
			return r
		case !bytes.HasPrefix(r, []byte("-NOTBUSY ")):
			answer = r
		}
	}
	return answer
}
