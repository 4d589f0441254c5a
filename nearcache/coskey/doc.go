// Package coskey is the grammar of CoSky's keys and channels: which part of the
// registry a key holds, which messages announce its changes, and what a message
// says has changed. It knows names only; it holds no state and does no I/O.
//
// Every key of a namespace ns is ns, a colon and a family (ids are opaque):
//
//	CI  ns:cfg_idx              set    the C keys of the namespace
//	C   ns:cfg:<config>         hash   the current version of a config
//	HI  ns:cfg_htr_idx:<config> zset   the H keys of a config by version
//	H   ns:cfg_htr:<config>:<v> hash   a replaced version; v follows the last colon
//	S   ns:svc_idx              set    service ids
//	T   ns:svc_stat             hash   service id to number of instances
//	X   ns:svc_itc_idx:<svc>    set    instance ids of a service
//	I   ns:svc_itc:<instance>   hash   an instance, with a TTL if it is ephemeral
//	TI  ns:topology_idx         hash   consumers
//	TD  ns:topology:<consumer>  hash   producers of a consumer
//
// Scripts publish on the names of C, S and I. Three things follow from that:
//
//   - Classify and Class.Covered say whether a key may be cached on the word of
//     those channels alone, and Subscription which channels a namespace has.
//   - Event turns a message into the keys it concerns. A config message names the
//     config but not the version that was replaced; an instance message names the
//     instance, whose service can only be guessed from the id. Such open sets are
//     told as a group.
//   - A group is the common prefix of all keys of an open set: every H of one
//     config, every X, I or TD of one namespace. GroupOf finds the group of a key
//     without knowing where its namespace ends, so a cache that checks a key's own
//     mark and its group's mark notices both kinds of change.
//
// A namespace may contain colons as far as the scripts are concerned, so that
// "a:cfg:cfg_idx" is a config of "a" or the index of "a:cfg". Keys that two
// namespaces can claim belong to no class: the channels of one do not speak for the other.
package coskey
