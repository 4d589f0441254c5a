// Package defect names what can be taken out of a near-cache, for tests that show that somebody
// would notice. It is internal so that nothing outside nearcache can say these
// names; package nearcachetest says them on behalf of tests.
package defect

// Defect is one mechanism that a cache does without.
type Defect uint8

// The defects.
const (
	Epochs    Defect = 1 + iota // nobody looks whether something has changed
	Pending                     // nobody looks whether writes are in flight
	Leases                      // entries are served although nobody would announce their changes
	Expiry                      // entries outlive their keys
	Directory                   // entries are served although newer ones have been delivered
)

func (d Defect) String() string {
	return [...]string{"none", "epochs", "pending writes", "leases", "expiry", "directory"}[d]
}
