// Package acl knows users and what they may do, in the language of Redis' ACL
// (https://redis.io/docs/latest/operate/oss_and_stack/management/security/acl/): the
// grammar, the texts and the decisions are those of Redis 7.0 (acl.c).
//
// [Parse] reads users, [User.Authenticate] checks a password and [Checker.Check]
// decides on a command. Everything but a Checker is immutable once it has been parsed,
// so that all event loops can share it.
package acl
