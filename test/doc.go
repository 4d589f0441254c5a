// Package test drives the built binary from outside, with the tools and client
// libraries that its users have: redis-cli, redis-benchmark, go-redis, redis-py,
// ioredis, node-redis. What it proves, in the files it is proved in:
//
//	vectors_test.go    CoSky's recorded scenarios come out the same
//	tools_test.go      redis-cli and redis-benchmark work
//	clients_test.go    client libraries work with their default settings
//	memory_test.go     no client makes the proxy's memory grow
//	program_test.go    command line, exit codes, signals, admin pages
//
// It needs what test/install.sh installs, Go, and Node.js with npm for
// clients/node. Folder vectors plays the scenarios,
// differential compares with a Redis at random, coherence tries to make the near-cache
// lie, harness runs the binary.
package test
