// Package vectors plays recorded scenarios against anything that speaks the Redis
// protocol: a server, an embedded one, or the proxy in front of either.
//
//	for _, s := range vectors.Recorded(t) {
//		t.Run(s.ID, func(t *testing.T) { vectors.Play(t, s, vectors.Target{Addr: addr}) })
//	}
//
// A scenario is a line of testdata/cosky-vectors.jsonl, which was recorded with CoSky's own
// scripts, or of testdata/script-errors.jsonl, which adds the calls that fail. It starts on
// an empty database and gives, step by step, the reply, the messages published and
// the keys changed, and at the end all that is stored. Scripts are given by name; the player
// runs this project's texts (package lua).
//
// While it plays, it holds every script call against what the proxy believes of it:
// the keys that changed must be among those lua's Effect announces, and the messages
// must concern them (coskey.Event) where coskey calls the channels complete.
//
// One target plays one scenario at a time, because its subscriber hears everything
// that is published on the server, whatever the database.
package vectors
