package coordinator

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/pipeline/cluster/control"
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
	near, all := func(string, string) bool { return false }, func(int) bool { return true }
	assert.Equal(t, [][]protocol.Place{at("b0"), at("a0"), at("c0")}, groupPlaces(at("b0", "a0"), offers, 1, 3, all, near))
	assert.Equal(t, [][]protocol.Place{at("a0"), at("c0"), at("b0")}, groupPlaces(at("a0", "a1", "b0"), offers, 1, 3, all, near))
	assert.Equal(t, [][]protocol.Place{at("b0", "c0"), at("a0", "a1")}, groupPlaces(at("b0", "c0", "c0", "d0"), offers, 2, 2, all, near))
	assert.Equal(t, [][]protocol.Place{at("a0", "a1"), at("b0", "c0"), nil}, groupPlaces(nil, offers, 2, 3, all, near))
	links := &Links{}
	links.setUnreachable(pair{"c", "b"})
	assert.Equal(t, [][]protocol.Place{at("a0", "a1"), at("b0", "d0")}, groupPlaces(at("a0", "a1", "b0", "c0"), offers, 2, 2, all, links.unreachable))
	assert.Equal(t, [][]protocol.Place{nil}, groupPlaces(at("b0", "c0"), at("b0", "c0"), 2, 1, all, links.unreachable), "no others are here")
	links.setUnreachable(pair{"b", "d"})
	four := at("a0", "b0", "c0", "d0")
	assert.Equal(t, [][]protocol.Place{nil}, groupPlaces(nil, four, 4, 1, all, links.unreachable))
	assert.Equal(t, [][]protocol.Place{at("b0", "a0", "d0", "e0")}, groupPlaces(at("b0", "a0", "d0", "e0"), append(four, at("e0")...), 4, 1, all,
		links.unreachable), "stages that are no neighbors need no link")
	links.set(pair{"b", "c"}, partition.Link{})
	assert.Equal(t, [][]protocol.Place{at("a0", "a1"), at("b0", "c0")}, groupPlaces(nil, offers, 2, 2, all, links.unreachable), "in either direction")
}

// Replicas that are not away keep their devices, whatever becomes known of these.
func TestGroupPlacesOfReplicasThatTrain(t *testing.T) {
	at := func(members ...string) (all []protocol.Place) {
		for _, m := range members {
			all = append(all, protocol.Place{Member: m, Device: "cpu:0"})
		}
		return all
	}
	links := &Links{}
	links.setUnreachable(pair{"a", "b"})
	second := func(i int) bool { return i == 1 }
	placed := at("a", "b", "c", "d")
	assert.Equal(t, [][]protocol.Place{at("a", "b"), at("e", "f")}, groupPlaces(placed, at("a", "b", "e", "f"), 2, 2, second, links.unreachable),
		"two members had no connection when one was tried")
	assert.Equal(t, [][]protocol.Place{at("a", "b"), at("e", "f")}, groupPlaces(placed, at("b", "e", "f"), 2, 2, second, links.unreachable),
		"a member does not answer for a moment")
	assert.Equal(t, [][]protocol.Place{at("a", "b"), nil}, groupPlaces(at("a", "b", "b", "c"), at("a", "b", "c"), 2, 2, second, links.unreachable))
}

// hostOf is a host with members that have a device each.
func hostOf(members ...string) *Host {
	h := &Host{options: HostOptions{Rejoin: defaultRejoin}}
	h.roster = &roster{changed: make(chan struct{}), note: func(string, ...any) {}, announce: func() {}, measured: &h.links,
		expelled: func(string) bool { return false }, known: func(string) bool { return true }}
	for _, id := range members {
		h.roster.memberChanged(joinedAs(id))
	}
	return h
}

// joinedAs is what the roster learns of a member that joins.
func joinedAs(id string) control.MemberChange {
	info := protocol.Info{Devices: []protocol.Device{{Name: "cpu:0"}}}
	return control.MemberChange{Change: control.Joined, Member: control.Member{ID: id, Info: info.Encode()}}
}

// Members that do not reach each other are no replica that is here, unless there is no other: a run that begins waits
// for others.
func TestAwaitReplicasWithUnreachableMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, began := hostOf("a", "b", "c", "d"), time.Now()
		h.links.setUnreachable(pair{"c", "d"})
		here, err := h.awaitReplicas(t.Context(), 2, 2)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 1, here)
		assert.Equal(t, defaultRejoin, time.Since(began))
		time.AfterFunc(time.Second, func() { h.roster.memberChanged(joinedAs("e")) })
		here, err = h.awaitReplicas(t.Context(), 2, 2)
		require.NoError(t, err)
		assert.Equal(t, 2, here)
		assert.Equal(t, defaultRejoin+time.Second, time.Since(began))

		h = hostOf("c", "d")
		h.links.setUnreachable(pair{"c", "d"})
		here, err = h.awaitReplicas(t.Context(), 2, 1)
		require.NoError(t, err, "they may reach each other by now")
		assert.Equal(t, 1, here)
		h = hostOf("c")
		here, err = h.awaitReplicas(t.Context(), 2, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Zero(t, here)

		h, began = hostOf("a", "b", "c", "d"), time.Now()
		h.roster.placeGroups(4, 1, func(int) bool { return true })
		h.links.setUnreachable(pair{"a", "c"})
		here, err = h.awaitReplicas(t.Context(), 4, 1)
		require.NoError(t, err)
		assert.Equal(t, 1, here)
		assert.Equal(t, began, time.Now(), "a replica may return to stages that are no neighbors")
	})
}

// Members that did not reach each other are offered again when one of them answers again, and after a time.
func TestMembersThatWereApartAreOfferedAgain(t *testing.T) {
	for member, after := range map[string]time.Duration{"a": time.Minute + unreachableLasts, "c": time.Minute, "d": time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			h, began := hostOf("a", "b", "c", "d"), time.Now()
			h.roster.placeGroups(2, 2, func(int) bool { return true })
			h.links.setUnreachable(pair{"c", "d"})
			time.AfterFunc(time.Minute, func() {
				h.roster.memberChanged(control.MemberChange{Change: control.Returned, Member: control.Member{ID: member}})
			})
			replica, err := h.offerTo(2, 2)(t.Context(), []int{1})
			require.NoError(t, err)
			assert.Equal(t, 1, replica)
			assert.Equal(t, after, time.Since(began), member)
		})
	}
}
