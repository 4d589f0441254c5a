// Package clustertest gives tests real Redis servers: one, a cluster, or a set
// watched by Sentinels, on free loopback ports and in the test's own temporary
// directory.
//
//	r := clustertest.StartRedis(t)             // ready when this returns
//	c := clustertest.StartCluster(t, 3, 1)     // 3 masters with 1 replica each, cluster_state:ok everywhere
//	s := clustertest.StartSentinel(t)          // a master, 2 replicas, 3 sentinels that know each other
//	conn := clustertest.Dial(t, r.Addr)        // raw RESP, byte-exact replies
//
// Servers can be killed (Stop), frozen (Freeze, Thaw), restarted and resharded.
// Whatever a test leaves running is killed when it ends; on Linux a server also
// dies with the test binary, however that ends.
//
// Everything here fails the test instead of returning an error, so tests stay a
// list of facts. To share servers between the tests of a package, start them
// on a Scope from TestMain:
//
//	func TestMain(m *testing.M) {
//		scope := clustertest.NewScope()
//		shared = clustertest.StartRedis(scope)
//		code := m.Run()
//		scope.Close()
//		os.Exit(code)
//	}
//
// The server binary is redis-server from PATH, or the one that the environment
// variable COSKY_TEST_REDIS_SERVER names. For use in tests only.
package clustertest
