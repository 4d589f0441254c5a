package coskey

import "testing"

var sink int

func BenchmarkClassify(b *testing.B) {
	for _, key := range []string{"foo", "key:000000012", "cosky-{default}:cfg:app.yaml", "cosky-{default}:svc_itc:order@http#10.0.0.1#8080"} {
		b.Run(key, func(b *testing.B) {
			k := []byte(key)
			b.ReportAllocs()
			for b.Loop() {
				class, n := Classify(k)
				sink += int(class) + n
			}
		})
	}
}

func BenchmarkGroupOf(b *testing.B) {
	for _, key := range []string{"key:000000012", "cosky-{default}:cfg:app.yaml", "cosky-{default}:svc_itc:order@http#10.0.0.1#8080"} {
		b.Run(key, func(b *testing.B) {
			k := []byte(key)
			b.ReportAllocs()
			for b.Loop() {
				sink += len(GroupOf(k))
			}
		})
	}
}
