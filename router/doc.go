// Package router divides a command among shards and makes one reply of theirs.
//
// It is pure: it neither knows connections nor waits for anything. The data
// plane asks which command goes where (router/command knows key positions,
// cluster/slot hashes them), splits multi-key commands by slot with Split, and
// hands all replies to the Merge of the command when the last one is there.
//
// What may be split is a short list (see command.Command.Split): commands whose
// effect on one key does not depend on another. Atomicity across shards is lost, as with
// every proxy; commands that promise atomicity (MSETNX, SINTERSTORE, …) are not split.
package router
