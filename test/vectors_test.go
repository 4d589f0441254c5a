package test

import (
	"slices"
	"testing"

	"cosky-proxy/test/vectors"
)

// styles are the two ways in which clients talk CoSky's scripts.
var styles = map[string]vectors.Target{
	"RESP2 EVALSHA": {RESP: 2, Mode: vectors.EVALSHA},
	"RESP3 EVAL":    {RESP: 3, Mode: vectors.EVAL},
}

func TestVectorsStandalone(t *testing.T) {
	t.Parallel()
	for name, target := range styles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := standalone(t)
			target.Addr, target.Observe = binary.Start(t, "--backend", b.url).Addr, b.servers[0]
			target.Again = true
			play(t, target, nil)
		})
	}
}

// untagged are the scenarios that no Redis Cluster can run, with or without a proxy: a
// script may touch the keys of one slot only, and these namespaces have no hash tag
// that would put their keys there, or name a second key of another namespace.
var untagged = []string{"config-plain-namespace", "config-extra-arguments", "namespace-with-colon", "namespace-empty"}

func TestVectorsCluster(t *testing.T) {
	t.Parallel()
	for name, target := range styles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := clustered(t)
			target.Addr, target.Cluster = binary.Start(t, "--backend", b.url).Addr, b.servers
			target.Again = true
			play(t, target, func(s vectors.Scenario) bool {
				leftOut := slices.Contains(untagged, s.ID)
				if leftOut == s.Tagged() {
					t.Errorf("%s: left out is %v, but its keys share a slot is %v", s.ID, leftOut, s.Tagged())
				}
				return leftOut
			})
		})
	}
}

// wrongTypes are scenarios that the embedded server answers differently: every error
// inside a script has the code ERR there.
var wrongTypes = []string{"config-wrong-type", "config-index-wrong-type", "deregister-wrong-type", "discovery-wrong-type"}

func TestVectorsEmbedded(t *testing.T) {
	t.Parallel()
	for name, target := range styles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target.Addr, target.Embedded = binary.Start(t, "--backend", embedded.url).Addr, true
			play(t, target, func(s vectors.Scenario) bool { return slices.Contains(wrongTypes, s.ID) })
		})
	}
}

// play plays all scenarios but those to leave out.
func play(t *testing.T, target vectors.Target, leaveOut func(vectors.Scenario) bool) {
	t.Helper()
	played := 0
	for _, s := range append(vectors.Recorded(t), vectors.Failing(t)...) {
		if leaveOut == nil || !leaveOut(s) {
			played++
			vectors.Play(t, s, target)
		}
	}
	if played == 0 {
		t.Error("no scenario was played")
	}
	t.Logf("%d scenarios", played)
}
