package proxy

// Hold stops an event loop until release is called, so that a test knows what has arrived when
// it goes on.
func (s *Server) Hold(loop int) (release func()) {
	held, goOn := make(chan struct{}), make(chan struct{})
	s.loops[loop].nl.Post(func() { close(held); <-goOn })
	<-held
	return func() { close(goOn) }
}
