package proxy

import (
	"cmp"
	"fmt"

	"cosky-proxy/cluster"
	"cosky-proxy/nearcache"
	"cosky-proxy/router/command"
)

// abilities are what depends on the backend's kind and version. They are immutable.
// A proxy that starts before its backend does has none until AdoptBackend.
type abilities struct {
	sources
	version      string // "" until the backend has been reached; of several masters the lowest
	tracking     bool   // RESP3 and CLIENT TRACKING
	fieldsExpire bool   // hash fields may expire by themselves (Redis 7.4 and later)
	repliesFirst bool   // who publishes to itself gets the reply before the message (Redis 7.2 and later)
}

func newAbilities(src sources, version string, tracking bool) *abilities {
	return &abilities{
		sources: src, version: version, tracking: tracking,
		fieldsExpire: atLeast(version, 7, 4), repliesFirst: atLeast(version, 7, 2),
	}
}

// AdoptBackend tells what the backend is, when it has been reached for the first time
// after the start. It comes before the first topology does. The error says why nothing
// can be cached in front of this backend; everything else works.
func (s *Server) AdoptBackend(version string, tracking bool) error {
	o := s.opts
	o.Backend.Tracking = tracking
	src, err := chooseSources(&o)
	if src.pubsub && s.events == nil {
		panic("BUG: no source of events was made")
	}
	s.abilities.Store(newAbilities(src, version, tracking))
	return cmp.Or(err, s.keeps.checkSources(src))
}

// follow takes over what follows from the versions of t's masters: a backend may come back
// as another one. What was cached when fields did not expire may live too long when they do.
func (s *Server) follow(t *cluster.Topology) {
	old := s.abilities.Load()
	now := *old
	for i := range t.Shards {
		v := cmp.Or(t.Shards[i].Primary.Version, old.version)
		if i == 0 {
			now.version, now.fieldsExpire = v, atLeast(v, 7, 4)
			continue
		}
		if older(v, now.version) {
			now.version = v
		}
		now.fieldsExpire = now.fieldsExpire || atLeast(v, 7, 4)
	}
	now.repliesFirst = atLeast(now.version, 7, 2)
	if now == *old {
		return
	}
	s.abilities.Store(&now)
	if s.opts.Cache.Cache != nil && now.fieldsExpire && !old.fieldsExpire {
		s.opts.Cache.Cache.Bump(nearcache.All)
	}
}

// mayListen reports whether CoSky's events may become a source once the backend is known.
func mayListen(o *Options) bool {
	return o.Cache.Cache != nil && o.Cache.Invalidation != InvalidationTracking
}

func (s *Server) tracks() bool  { return s.abilities.Load().sources.tracking }
func (s *Server) listens() bool { return s.abilities.Load().pubsub }

// version is the backend's redis_version.
func (s *Server) version() string { return s.abilities.Load().version }

// errNoBackend is the answer to everything that a loading Redis refuses, too, until the
// backend has been found. Clients that know the word try again.
const errNoBackend = "LOADING cosky-proxy has not reached its backend yet; its log says why"

// homeless reports whether cmd needs a backend while none has been found yet.
func (l *loop) homeless(cmd *command.Command) bool {
	return len(l.shards) == 0 && !cmd.Has(command.Loading)
}

// chooseSources resolves auto by what the backend can do.
func chooseSources(o *Options) (sources, error) {
	if o.Cache.Cache == nil {
		return sources{}, nil
	}
	can := o.Backend.Tracking
	switch o.Cache.Invalidation {
	case InvalidationAuto:
		return sources{tracking: can, pubsub: !can}, nil
	case InvalidationPubSub:
		return sources{pubsub: true}, nil
	case InvalidationTracking, InvalidationBoth:
		if !can {
			return sources{}, fmt.Errorf("nearcache.invalidation is %q, but the backend offers no client tracking (RESP3 and CLIENT TRACKING, Redis 6 or later)", o.Cache.Invalidation)
		}
		return sources{tracking: true, pubsub: o.Cache.Invalidation == InvalidationBoth}, nil
	}
	return sources{}, fmt.Errorf("nearcache.invalidation is %q: must be auto, pubsub, tracking, both or off", o.Cache.Invalidation)
}
