package lua

import "testing"

func BenchmarkEffect(b *testing.B) {
	for _, name := range []string{"discovery_get_instances", "registry_renew", "config_set", "registry_register"} {
		b.Run(name, func(b *testing.B) {
			var e Effect
			ns, args := toBytes([]string{"cosky-{default}"}), toBytes([]string{"order", "order@http#10.0.0.1#8080", "order@http#10.0.0.1#8080"})
			s := ByName(name)
			b.ReportAllocs()
			for b.Loop() {
				s.Effect(ns, args, &e)
			}
		})
	}
}

func BenchmarkBySHA(b *testing.B) {
	sha := []byte(ByName("config_set").SHA1)
	b.ReportAllocs()
	for b.Loop() {
		BySHA(sha)
	}
}
