package protocol

import (
	"encoding/json"
	"fmt"
)

// Neighbor is a member of another replica. It is an element of the payload of Neighbors.
type Neighbor struct {
	Peer
	Epoch uint64 `json:"epoch"` // of the link
}

// Reason is why a change is missing.
type Reason string

// The reasons. Of Gone, nobody is at fault.
const (
	Gone    Reason = "gone"    // the member has no link with the one that was to forward it
	Overdue Reason = "overdue" // the replica waits for it
	Altered Reason = "altered" // what has come is something else
)

// EncodeNeighbors returns the payload of Neighbors.
func EncodeNeighbors(all []Neighbor) [][]byte {
	text, err := json.Marshal(all)
	if err != nil {
		panic(err) // plain structs always marshal
	}
	return [][]byte{text}
}

// DecodeNeighbors returns the neighbors of a member.
func DecodeNeighbors(payload [][]byte) (all []Neighbor, err error) {
	if len(payload) != 1 {
		return nil, fmt.Errorf("a list of neighbors in %d tensors, expected 1", len(payload))
	}
	if err := json.Unmarshal(payload[0], &all); err != nil {
		return nil, fmt.Errorf("a list of neighbors: %w", err)
	}
	return all, nil
}
