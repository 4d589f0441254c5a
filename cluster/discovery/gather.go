package discovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// grace is how long slower servers are waited for once one has answered: enough
// for healthy ones, while frozen ones hold nothing up.
const grace = 250 * time.Millisecond

// seedErrors says why each of several servers could not help. It prints one
// cause after the other, each with its address.
type seedErrors map[string]error

func (e seedErrors) Error() string {
	var lines []string
	for addr, err := range e {
		lines = append(lines, fmt.Sprintf("%s: %v", addr, err))
	}
	slices.Sort(lines)
	return strings.Join(lines, "; ")
}

// Unwrap gives errors.Is the causes.
func (e seedErrors) Unwrap() []error {
	var errs []error
	for _, err := range e {
		errs = append(errs, err)
	}
	return errs
}

// gather puts a question to all links at once and returns the answers that
// arrived when all had answered or failed, or patience had passed since the first
// answer. Links that were not waited for finish on their own. No answer at all
// is an error of type seedErrors.
func gather[T any](ctx context.Context, links []*link, patience time.Duration, ask func(context.Context, *link) (T, error)) ([]T, error) {
	type result struct {
		addr   string
		answer T
		err    error
	}
	results := make(chan result, len(links))
	for _, l := range links {
		go func() {
			answer, err := ask(ctx, l)
			results <- result{l.addr, answer, err}
		}()
	}
	var answers []T
	failed := make(seedErrors)
	var enough <-chan time.Time
	for range links {
		select {
		case r := <-results:
			if r.err != nil {
				failed[r.addr] = r.err
				continue
			}
			answers = append(answers, r.answer)
			if patience == 0 {
				return answers, nil
			}
			if enough == nil {
				enough = time.After(patience)
			}
		case <-enough:
			return answers, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if len(answers) == 0 {
		if len(links) == 0 {
			return nil, errors.New("there is nobody to ask")
		}
		return nil, failed
	}
	return answers, nil
}

// linkSet holds one link per address, for one goroutine.
type linkSet struct {
	login login
	probe bool
	links map[string]*link
}

// to returns the links to addrs, retiring all others.
func (s *linkSet) to(addrs []string) []*link {
	if s.links == nil {
		s.links = make(map[string]*link)
	}
	for addr, l := range s.links {
		if !slices.Contains(addrs, addr) {
			l.retire()
			delete(s.links, addr)
		}
	}
	var links []*link
	for _, addr := range addrs {
		l := s.links[addr]
		if l == nil {
			l = &link{addr: addr, login: s.login, probe: s.probe}
			s.links[addr] = l
		}
		if !slices.Contains(links, l) {
			links = append(links, l)
		}
	}
	return links
}

func (s *linkSet) close() { s.to(nil) }
