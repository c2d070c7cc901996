package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/pipeline/train"
)

// Over slow links the coordinator chooses a depth. A run that is resumed keeps as many stale microbatches. In one
// process it gives the same bits.
func TestDepthForSlowLinks(t *testing.T) {
	dir := t.TempDir()
	overrides := []string{"pipeline.stages=2", "pipeline.schedule=2bw", "train.microbatches=4", "run.dir=" + dir + "/slow"}
	n := newNetwork()
	n.latency = 20 * time.Millisecond
	n.add(t, "a")
	n.add(t, "b")
	notes := &runtest.Notes{}
	res, err := train.Run(t.Context(), traintest.Demo(t, dir, overrides...),
		train.Options{Devices: train.DeviceOptions{Remote: n.remote("a", "b")}, Report: notes,
			StopAfter: 4})
	require.NoError(t, err)
	assert.True(t, res.Interrupted)
	assert.Contains(t, strings.Join(notes.Text, "\n"), "pipeline.depth: 2, the least within 1 % of the fastest; with 0 it would be ")
	c, err := config.Load(dir+"/slow/config.yaml", nil)
	require.NoError(t, err)
	assert.Equal(t, 3, c.Stale(), "stages − 1 and the depth")
	assert.Equal(t, config.DepthAuto, c.Pipeline.Depth)

	resumed := run(t, traintest.Demo(t, dir, append(overrides, "pipeline.devices=[cpu:0/1]")...), nil)
	whole := run(t, traintest.Demo(t, dir, append(overrides, "run.dir="+dir+"/whole", "pipeline.stale_microbatches=3",
		"pipeline.devices=[cpu:0/1]")...), nil)
	for file := range whole {
		assert.True(t, whole[file] == resumed[file], file)
	}
}

// Over fast links a run has the depth and the bits of one process.
func TestNoDepthForFastLinks(t *testing.T) {
	n := newNetwork()
	n.latency = time.Microsecond
	n.add(t, "a")
	n.add(t, "b")
	notes, dir := &runtest.Notes{}, t.TempDir()
	c := traintest.Demo(t, dir, "pipeline.stages=2", "pipeline.schedule=2bw", "train.microbatches=4", "train.steps=2")
	_, err := train.Run(t.Context(), c, train.Options{Devices: train.DeviceOptions{Remote: n.remote("a", "b")}, Report: notes})
	require.NoError(t, err)
	assert.Contains(t, strings.Join(notes.Text, "\n"), "; pipeline.depth: 0")
}

func TestNeighbors(t *testing.T) {
	p := placement{stages: 3}
	for _, member := range []string{"a", "b", "b", "c", "d", "a"} {
		p.ranks = append(p.ranks, protocol.Place{Member: member})
	}
	var all []string
	for _, x := range p.neighbors() {
		all = append(all, x.from+x.to)
	}
	assert.ElementsMatch(t, strings.Fields("ab ba ac ca bd db cd dc da ad"), all)
}

// Two members are unreachable if one has not reached the other, not if a probe has failed otherwise, until a probe of
// either direction succeeds.
func TestMembersAreUnreachableWithoutAConnectionAlone(t *testing.T) {
	n := newNetwork()
	for _, id := range []string{"a", "b", "c", "d"} {
		n.add(t, id)
	}
	links, places := &Links{}, []protocol.Place{{Member: "a"}, {Member: "b"}, {Member: "c"}, {Member: "d"}}
	o := Options{Control: node{n, coordinatorID}, Node: node{n, coordinatorID}, Places: places, Links: links}
	measure := func(failure error, between ...string) (probes []string, err error) {
		o.Epoch += 2
		n.asked = func(_ context.Context, id, name string) error {
			if name == protocol.Probe && slices.Contains(between, id) {
				return failure
			}
			return nil
		}
		p := &Pipeline{group: newGroup(o), placement: placement{places, 4}}
		err = p.measureLinks(t.Context(), o, func(from, link string) {
			probes = append(probes, from+" "+strings.TrimPrefix(link, "the link to "))
		})
		return probes, err
	}
	_, err := measure(errors.New("busy"), "a")
	require.ErrorContains(t, err, "busy")
	assert.False(t, links.unreachable("a", "b"))
	_, err = measure(fmt.Errorf("%w: refused", transport.ErrUnreachable), "a")
	require.ErrorIs(t, err, transport.ErrUnreachable)
	assert.True(t, links.unreachable("a", "b"))
	assert.True(t, links.unreachable("b", "a"))
	probes, err := measure(nil)
	require.NoError(t, err)
	assert.Len(t, probes, 12)
	assert.False(t, links.unreachable("a", "b"))

	// Members that are no neighbors need not reach each other, and are not tried again soon.
	links = &Links{}
	o.Links = links
	for _, x := range []string{"ab", "ad", "ba", "bc", "cb", "cd", "dc", "da", "bd", "db"} {
		links.set(pair{x[:1], x[1:]}, partition.Link{Latency: 1e-3, Bandwidth: 1e9})
	}
	probes, err = measure(fmt.Errorf("%w: refused", transport.ErrUnreachable), "a", "c")
	require.NoError(t, err)
	assert.Equal(t, []string{"a c"}, probes)
	link, ok := links.get(pair{"c", "a"})
	assert.True(t, ok)
	assert.Equal(t, noLink, link)
	assert.False(t, links.unreachable("a", "c"), "they may belong to one replica")
	probes, err = measure(nil)
	require.NoError(t, err)
	assert.Empty(t, probes)
	links.forget("c")
	probes, err = measure(nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"a c", "c a"}, probes)

	// Nor does it matter if their probe fails otherwise.
	links.known[pair{"a", "c"}] = noLink
	links.forget("a")
	probes, err = measure(errors.New("busy"), "a")
	require.NoError(t, err)
	assert.Equal(t, []string{"a c"}, probes)
	_, ok = links.get(pair{"a", "c"})
	assert.False(t, ok)
}
