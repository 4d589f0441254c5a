package router

import (
	"math/rand/v2"

	"cosky-proxy/proxy/resp"
	"cosky-proxy/router/command"
)

// Answers are the servers' replies to one command.
type Answers struct {
	Args    [][]byte // the command's; nil when each got a share of its own
	Replies [][]byte
	Parts   *Parts   // which keys each reply is about; nil: all
	Out     []byte   // a buffer that the merged reply may be put into, and is found in again
	From    []string // addresses of the servers, by reply
	RESP3   bool
}

// Merge makes one reply of several. An error of any server is the answer: a partial
// figure would be a wrong one.
type Merge func(a *Answers) []byte

// MergeFor returns how cmd's replies become one, by the response policy that
// Redis publishes in the command's tips, or nil when nothing sensible is known.
func MergeFor(cmd *command.Command) Merge {
	switch cmd.Name {
	case "mget":
		return scatterArray
	case "randomkey":
		return anyKey
	case "latency|reset": // whatever 7.0 publishes, it answers a number
		return fold(func(a, b int64) int64 { return a + b })
	case "lastsave":
		return fold(func(a, b int64) int64 { return min(a, b) }) // everything up to then is saved
	case "save", "bgsave", "bgrewriteaof", "acl|load", "module|load", "module|loadex", "module|unload":
		return allSucceeded
	case "slowlog|get":
		return newest(slowlogTime)
	case "acl|log":
		return newest(aclLogTime)
	case "latency|latest":
		return latencyLatest
	case "latency|history":
		return byTime
	case "latency|histogram":
		return histograms
	case "latency|doctor", "latency|graph", "memory|doctor", "memory|malloc-stats":
		return report
	case "memory|stats":
		return totals
	case "function|stats":
		return functionStats
	case "script|kill", "function|kill":
		return killed
	}
	switch cmd.Response {
	case command.ResponseOneSucceeded:
		return oneSucceeded
	case command.ResponseAllSucceeded:
		return allSucceeded
	case command.ResponseAggSum:
		return fold(func(a, b int64) int64 { return a + b })
	case command.ResponseAggMin:
		return fold(func(a, b int64) int64 { return min(a, b) })
	case command.ResponseAggMax:
		return fold(func(a, b int64) int64 { return max(a, b) })
	case command.ResponseAggLogicalAnd:
		return fold(func(a, b int64) int64 { return a & b })
	case command.ResponseAggLogicalOr:
		return fold(func(a, b int64) int64 { return a | b })
	case command.ResponseDefault:
		return concat
	default:
		return nil
	}
}

// firstError returns the first error reply, nil if there is none.
func firstError(replies [][]byte) []byte {
	for _, r := range replies {
		if r[0] == '-' {
			return r
		}
	}
	return nil
}

func allSucceeded(a *Answers) []byte {
	replies := a.Replies
	if e := firstError(replies); e != nil {
		return e
	}
	return replies[0]
}

func oneSucceeded(a *Answers) []byte {
	replies := a.Replies
	for _, r := range replies {
		if r[0] != '-' {
			return r
		}
	}
	return replies[0]
}

// fold combines integers, or arrays of integers element by element.
func fold(f func(a, b int64) int64) Merge {
	return func(a *Answers) []byte {
		replies := a.Replies
		if e := firstError(replies); e != nil {
			return e
		}
		kind, n, size := resp.ReadHeader(replies[0])
		if kind == ':' {
			acc := n
			for _, r := range replies[1:] {
				_, v, _ := resp.ReadHeader(r)
				acc = f(acc, v)
			}
			a.Out = resp.AppendInt(a.Out[:0], acc)
			return a.Out
		}
		if kind != '*' {
			return replies[0]
		}
		acc := integers(replies[0][size:], n)
		for _, r := range replies[1:] {
			_, m, sz := resp.ReadHeader(r)
			for i, v := range integers(r[sz:], min(m, n)) {
				acc[i] = f(acc[i], v)
			}
		}
		out := resp.AppendArray(nil, len(acc))
		for _, v := range acc {
			out = resp.AppendInt(out, v)
		}
		return out
	}
}

func integers(b []byte, n int64) []int64 {
	out := make([]int64, 0, n)
	for range n {
		_, v, size := resp.ReadHeader(b)
		out = append(out, v)
		b = b[size:]
	}
	return out
}

// concat joins arrays, as KEYS needs it.
func concat(a *Answers) []byte {
	replies := a.Replies
	if e := firstError(replies); e != nil {
		return e
	}
	total, bytes := int64(0), 0
	for _, r := range replies {
		kind, n, _ := resp.ReadHeader(r)
		if kind != '*' && kind != '~' {
			return replies[0]
		}
		total += n
		bytes += len(r)
	}
	out := resp.AppendArray(make([]byte, 0, bytes+16), int(total))
	for _, r := range replies {
		_, _, size := resp.ReadHeader(r)
		out = append(out, r[size:]...)
	}
	return out
}

// scatterArray puts each share's elements back at the places of its keys. It uses up the replies.
func scatterArray(a *Answers) []byte {
	if e := firstError(a.Replies); e != nil {
		return e
	}
	for i, r := range a.Replies {
		_, _, size := resp.ReadHeader(r)
		a.Replies[i] = r[size:]
	}
	a.Out = resp.AppendArray(a.Out[:0], a.Parts.Keys())
	for _, i := range a.Parts.of {
		rest := a.Replies[i]
		n := resp.Len(rest)
		a.Out = append(a.Out, rest[:n]...)
		a.Replies[i] = rest[n:]
	}
	return a.Out
}

// anyKey picks one of the keys that the shards named; a shard without keys
// answers null.
func anyKey(a *Answers) []byte {
	replies := a.Replies
	if e := firstError(replies); e != nil {
		return e
	}
	var named [][]byte
	for _, r := range replies {
		if _, n, _ := resp.ReadHeader(r); n >= 0 && r[0] == '$' {
			named = append(named, r)
		}
	}
	if len(named) == 0 {
		return replies[0]
	}
	return named[rand.IntN(len(named))]
}
