// Package differential plays random commands to a Redis directly and to another
// one through the proxy: the replies must be the same bytes.
//
// The commands come out of the server's own COMMAND DOCS, so every command is called
// with every option it has; mutations then make them wrong. Everything follows from
// a seed, which a failure prints together with the shortest sequence of commands that
// still shows the difference:
//
//	go test ./test/differential                          # the seeds of CI
//	go test ./test/differential -seeds 200 -first 1000   # 200 others
//
//	classify_test.go   what is called, what is not and why
//	grammar_test.go    well-formed calls
//	random_test.go     sequences, and how they go wrong
//	compare_test.go    what may differ between two servers
//	rig_test.go        the servers, playing, shrinking
package differential
