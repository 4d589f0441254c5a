// Package slot maps keys to the 16384 hash slots of a Redis Cluster.
//
// A key's slot is the CRC16 (XMODEM: polynomial 0x1021, initial value 0) of the
// key modulo 16384. Keys with a hash tag are hashed by the tag alone, so that
// they share a slot. The rules are those of the Redis Cluster specification,
// "Key distribution model" and "Hash tags".
package slot

import "bytes"

// Count is the number of hash slots of a cluster.
const Count = 16384

// Of returns the slot of key, below Count.
func Of(key []byte) uint16 { return crc16(Tag(key)) % Count }

// Tag returns the bytes of key that decide its slot: what stands between the
// first '{' and the first '}' after it, or the whole key when there is no such
// pair or nothing between it. The result aliases key.
func Tag(key []byte) []byte {
	open := bytes.IndexByte(key, '{')
	if open < 0 {
		return key
	}
	tag := key[open+1:]
	if n := bytes.IndexByte(tag, '}'); n > 0 {
		return tag[:n]
	}
	return key
}
