package coordinator

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
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

// A replica stays where it was, but no member has ranks of two, wherever ranks were before.
func TestGroupPlaces(t *testing.T) {
	at := func(places ...string) (all []protocol.Place) {
		for _, p := range places {
			all = append(all, protocol.Place{Member: p[:1], Device: "cpu:" + p[1:]})
		}
		return all
	}
	offers := at("a0", "a1", "b0", "c0", "d0")
	near := func(string, string) bool { return false }
	assert.Equal(t, [][]protocol.Place{at("b0"), at("a0"), at("c0")}, groupPlaces(at("b0", "a0"), offers, 1, 3, near))
	assert.Equal(t, [][]protocol.Place{at("a0"), at("c0"), at("b0")}, groupPlaces(at("a0", "a1", "b0"), offers, 1, 3, near))
	assert.Equal(t, [][]protocol.Place{at("b0", "c0"), at("a0", "a1")}, groupPlaces(at("b0", "c0", "c0", "d0"), offers, 2, 2, near))
	assert.Equal(t, [][]protocol.Place{at("a0", "a1"), at("b0", "c0"), nil}, groupPlaces(nil, offers, 2, 3, near))
	links := &Links{}
	links.fail(pair{"c", "b"})
	assert.Equal(t, [][]protocol.Place{at("a0", "a1"), at("b0", "d0")}, groupPlaces(at("a0", "a1", "b0", "c0"), offers, 2, 2, links.apart))
	assert.Equal(t, [][]protocol.Place{at("b0", "c0")}, groupPlaces(nil, at("b0", "c0"), 2, 1, links.apart), "there is no other")
	links.set(pair{"c", "b"}, partition.Link{})
	assert.Equal(t, [][]protocol.Place{at("a0", "a1"), at("b0", "c0")}, groupPlaces(nil, offers, 2, 2, links.apart))
}
