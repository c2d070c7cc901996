package coordinator

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/train"
)

// slowlyConnected is a network whose coordinator sends one copy of a change, which members relay.
func slowlyConnected(t *testing.T, members ...string) *network {
	n := newNetwork()
	n.direct = true
	for _, id := range members {
		n.add(t, id)
	}
	return n
}

// Replicas that relay changes of the base to each other, as far as they reach each other, have the bits of one
// process.
func TestReplicasThatRelayChangesEqualOneProcess(t *testing.T) {
	type relayed struct {
		members   [][]string
		apart     []string
		overrides []string
	}
	for i, x := range tier.Divide(t, []relayed{
		{[][]string{{"a"}, {"b"}, {"c"}}, nil, []string{"pipeline.outer={wire: int4, late: 2}", "optimizer.name=muon"}},
		{[][]string{{"a"}, {"b"}, {"c"}, {"d"}}, []string{"a b", "b a", "b c", "c d"}, []string{"pipeline.outer={wire: int8, late: 1}"}},
		{[][]string{{"a", "b"}, {"c", "d"}, {"e", "f"}}, []string{"a c"}, []string{"pipeline.stages=2", "pipeline.outer={late: 3}",
			"model.tie_embeddings=true"}},
		{[][]string{{"a"}, {"b"}, {"c"}}, nil, []string{"pipeline.outer={wire: bf16, late: 1, correction: eager}"}},
		{[][]string{{"a"}, {"b"}, {"c"}}, nil, []string{"pipeline.local_steps=1", "pipeline.outer={wire: int2}"}},
	}, tier.First[relayed](2)) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			dir := t.TempDir()
			overrides := append(x.overrides, fmt.Sprint("pipeline.replicas=", len(x.members)))
			one := run(t, independent(t, dir, "one", append(overrides, "pipeline.devices=[cpu:0/1]")...), nil)
			n := slowlyConnected(t, slices.Concat(x.members...)...)
			for _, pair := range x.apart {
				n.apart[pair] = true
			}
			pieces := map[string]int{}
			n.forge = func(from, to string, h protocol.Header, _ *transport.Message) {
				if _, ok := h.(protocol.Piece); ok && from != coordinatorID {
					pieces[from+" "+to]++
				}
			}
			other := run(t, independent(t, dir, "other", overrides...), n.replicas(x.members...))
			for file := range one {
				assert.True(t, one[file] == other[file], file)
			}
			assert.Greater(t, len(pieces), 1, "each member has been the head of a chain")
			for _, pair := range x.apart {
				assert.Zero(t, pieces[pair], pair)
			}
			assert.Zero(t, n.sent["protocol.Missing"])
		})
	}
}

// A member that alters what it relays, sends nothing, or says that it is something else, costs a moment: the
// coordinator sends the change. Nobody is expelled for what another says of it.
func TestChangesThatAreNotRelayedComeFromTheCoordinator(t *testing.T) {
	overrides := []string{"pipeline.replicas=3", "pipeline.outer={wire: int4, late: 2}"}
	dir := t.TempDir()
	one := run(t, independent(t, dir, "one", append(overrides, "pipeline.devices=[cpu:0/1]")...), nil)
	type lie struct {
		reason string
		forge  func(m *transport.Message)
	}
	for i, x := range tier.Divide(t, []lie{
		{"altered", func(m *transport.Message) {
			m.Payload = [][]byte{slices.Clone(m.Payload[0])}
			m.Payload[0][3] ^= 1
		}},
		{"overdue", func(m *transport.Message) { m.Epoch = 1 }}, // it never arrives
		{"altered", func(m *transport.Message) { m.Payload = nil }},
		{"overdue", func(m *transport.Message) { m.Header = protocol.Encode(protocol.Piece{Step: 1000, Fragment: -1}) }},
		{"overdue", func(m *transport.Message) { m.Header = protocol.Encode(protocol.Write{}) }},
	}, tier.First[lie](2)) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			n := slowlyConnected(t)
			n.timeout = time.Millisecond
			for _, id := range []string{"a", "b", "c"} {
				n.add(t, id)
			}
			n.forge = func(from, _ string, h protocol.Header, m *transport.Message) {
				if _, ok := h.(protocol.Piece); ok && from == "b" {
					x.forge(m)
				}
			}
			dir := t.TempDir()
			other := run(t, independent(t, dir, "run", overrides...), n.replicas([]string{"a"}, []string{"b"}, []string{"c"}))
			for file := range one {
				assert.True(t, one[file] == other[file], file)
			}
			events, err := os.ReadFile(dir + "/run/events.jsonl")
			require.NoError(t, err)
			assert.NotContains(t, string(events), `"event":"restart"`)
			assert.Contains(t, string(events), " from b to ")
			assert.Contains(t, string(events), "is "+x.reason+"; the coordinator sends it")
			assert.Empty(t, n.expels)
		})
	}
}

// A member that dies while it relays a change: its replica is away, and the others have the change.
func TestMemberDiesWhileRelaying(t *testing.T) {
	n := slowlyConnected(t, "a", "b", "c")
	dying := false
	n.forge = func(from, _ string, h protocol.Header, m *transport.Message) {
		if _, ok := h.(protocol.Piece); ok && from == "b" {
			m.Epoch = 1 // it does not arrive
			if !dying {
				dying, n.cut["b"] = true, true
				go n.host.Lost("b", errors.New("test"))
			}
		}
	}
	dir := t.TempDir()
	o := train.Options{Devices: train.DeviceOptions{Open: testdevice.Open, Remote: n.replicas([]string{"a"}, []string{"b"},
		[]string{"c"})}, Report: &runtest.Notes{}}
	res, err := train.Run(t.Context(), independent(t, dir, "run", "pipeline.replicas=3", "pipeline.outer={wire: int4, late: 2}"), o)
	require.NoError(t, err)
	assert.Equal(t, 9, res.Step)
	events, err := os.ReadFile(dir + "/run/events.jsonl")
	require.NoError(t, err)
	assert.Contains(t, string(events), "replica 1: b: test (")
	assert.NotContains(t, string(events), `"event":"restart"`)
	assert.NotContains(t, string(events), "overdue", "nobody waits for it")
}

// Chains have all members once, are about equally long, and follow who reaches whom.
func TestChains(t *testing.T) {
	var all []recipient
	for i := range 7 {
		all = append(all, recipient{address: address{member: fmt.Sprint(i)}})
	}
	texts := func(chains [][]recipient) (out []string) {
		for _, chain := range chains {
			text := ""
			for _, x := range chain {
				text += x.member
			}
			out = append(out, text)
		}
		return out
	}
	anyone := func(recipient, recipient) bool { return true }
	assert.Equal(t, []string{"0123456"}, texts(chainsOf(all, 0, 1, anyone)))
	assert.Equal(t, []string{"5601", "234"}, texts(chainsOf(all, 5, 2, anyone)))
	assert.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6"}, texts(chainsOf(all, 0, 7, anyone)))
	assert.Equal(t, []string{"3", "4", "5", "6", "0", "1", "2"}, texts(chainsOf(all, 3, 1, func(recipient, recipient) bool { return false })))
	odd := func(from, to recipient) bool { return (from.member[0]+to.member[0])%2 == 1 }
	assert.Equal(t, []string{"0123456"}, texts(chainsOf(all, 0, 1, odd)))
	even := func(from, to recipient) bool { return (from.member[0]+to.member[0])%2 == 0 }
	assert.Equal(t, []string{"0246", "135"}, texts(chainsOf(all, 0, 1, even)))
	all[2].pieces = protocol.Cut([][]byte{{1}})
	assert.Equal(t, []string{"013456", "2"}, texts(chainsOf(all, 0, 1, anyone)))
}

// The first of a chain that the coordinator's pieces do not reach requests the change, too. Nobody is blamed.
func TestHeadsRequestChanges(t *testing.T) {
	overrides := []string{"pipeline.replicas=3", "pipeline.outer={wire: int4, late: 2}"}
	dir := t.TempDir()
	one := run(t, independent(t, dir, "one", append(overrides, "pipeline.devices=[cpu:0/1]")...), nil)
	n := slowlyConnected(t)
	n.timeout = time.Millisecond
	for _, id := range []string{"a", "b", "c"} {
		n.add(t, id)
	}
	n.forge = func(from, _ string, h protocol.Header, m *transport.Message) {
		if _, ok := h.(protocol.Piece); ok && from == coordinatorID {
			m.Epoch = 1 // it does not arrive
		}
	}
	other := run(t, independent(t, dir, "run", overrides...), n.replicas([]string{"a"}, []string{"b"}, []string{"c"}))
	for file := range one {
		assert.True(t, one[file] == other[file], file)
	}
	assert.Positive(t, n.sent["protocol.Missing"])
	assert.Empty(t, n.expels)
}

// linked is a node with given links.
type linked struct {
	Node
	links []transport.Link
}

func (n linked) Links() []transport.Link { return n.links }

// A replica on the coordinator and a remote one are no neighbors: what is on its way to the remote one counts all the
// same, or all pieces of a change go out at once.
func TestBytesToMembersWithoutNeighborsCount(t *testing.T) {
	n := linked{links: []transport.Link{{Peer: "a", Class: transport.Bulk, Unacknowledged: 5}, {Peer: "a", Class: transport.Hot,
		Unacknowledged: 7}}}
	s := &slot{pipeline: &Pipeline{group: &group{node: n, members: []string{"a"}}}}
	r := newRelay(nil, nil, func() []*slot { return []*slot{s} }, nil, nil)
	assert.Equal(t, map[string]int64{"a": 5}, r.unacknowledged())
}

// Faults are forgotten when their pairs have been in chains again for long: members come and go.
func TestFaultsOfThePastAreForgotten(t *testing.T) {
	r := newRelay(nil, nil, nil, nil, nil)
	r.faults[pair{"a", "b"}] = &fault{3, time.Now().Add(-2 * maxExclusion)}
	r.faults[pair{"b", "c"}] = &fault{1, time.Now().Add(-maxExclusion / 2)}
	assert.Equal(t, 2*minExclusion, r.exclude(pair{"b", "c"}))
	assert.NotContains(t, r.faults, pair{"a", "b"})
	assert.Equal(t, minExclusion, r.exclude(pair{"a", "b"}))
}
