package coordinator

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
)

// Ranks stay where they were; a lost rank goes to a spare.
func TestPlace(t *testing.T) {
	at := func(members ...string) (all []protocol.Place) {
		for _, m := range members {
			all = append(all, protocol.Place{Member: m, Device: "cpu:0"})
		}
		return all
	}
	assert.Equal(t, at("a", "b", "c"), place(nil, at("a", "b", "c", "d"), 3))
	assert.Equal(t, at("a", "d", "c"), place(at("a", "b", "c"), at("a", "c", "d"), 3))
	assert.Equal(t, at("a", "c"), place(at("a", "b", "c"), at("a", "c"), 2), "another cut")
	assert.Equal(t, at("a", "a", "b"), place(at("a", "a"), at("a", "a", "b"), 3), "two devices of one name")
	assert.Nil(t, place(nil, at("a"), 2))
}
