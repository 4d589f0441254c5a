package proxy

// Clients, and the connections to the backend that they have for themselves, share the descriptors that
// ClientOptions.Files allows them. The rest is in reserve for what serves everybody: were clients to take the last one, a shared
// connection that breaks could not be opened again, and clients that behave would be served no more. So whoever
// comes when these are used up is turned away, as Redis does, which takes fewer clients than maxclients then.

// fileLeft reports whether clients may take one more descriptor. Several may ask at once, and all
// get the last one: the reserve bears that.
func (s *Server) fileLeft() bool {
	most := s.opts.Clients.Files
	if most == 0 {
		return true
	}
	used := s.clients.Load() + s.refused.Load() + s.pins.Load()
	for _, l := range s.loops {
		used += l.nl.Lingering()
	}
	return used < most
}

const errNoFiles = "ERR cosky-proxy has no file descriptor left for a private backend connection: too many open files (ulimit -n)"
