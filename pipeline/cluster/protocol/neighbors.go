package protocol

// Neighbor is a member of another replica. It is an element of the payload of Neighbors.
type Neighbor struct {
	Peer
	Epoch uint64 `json:"epoch"` // of the link
}

// Reason is why a change is missing.
type Reason string

// The reasons. Of Gone, nobody is at fault.
const (
	Gone    Reason = "gone"    // the member has no link with the one that was to relay it
	Overdue Reason = "overdue" // the replica waits for it
	Altered Reason = "altered" // what has come is something else
)
