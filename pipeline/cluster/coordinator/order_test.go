package coordinator

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Of four members, two pairs of neighbors have slow links: the coordinator puts the stages into an order in which they
// are not neighbors. The bits stay.
func TestTheOrderOfMembersAvoidsSlowLinks(t *testing.T) {
	dir := t.TempDir()
	overrides := []string{"pipeline.stages=4", "pipeline.schedule=2bw", "pipeline.depth=0", "train.microbatches=4", "model.n_layers=4"}
	n := newNetwork()
	n.latency = 2 * time.Millisecond
	n.far = map[string]time.Duration{"a b": 40 * time.Millisecond, "c d": 40 * time.Millisecond}
	for _, id := range strings.Split("abcd", "") {
		n.add(t, id)
	}
	var opened *Pipeline
	open := n.remote("a", "b", "c", "d")
	remote := func(ctx context.Context, task train.RemoteTask) (train.Pipeline, error) {
		p, err := open(ctx, task)
		opened, _ = p.(*Pipeline)
		return p, err
	}
	notes := &runtest.Notes{}
	res, err := train.Run(t.Context(), traintest.Demo(t, dir, append(overrides, "run.dir="+dir+"/four")...),
		train.Options{Devices: train.DeviceOptions{Remote: remote}, Report: notes})
	require.NoError(t, err)
	order := strings.Join(opened.placement.stageMembers(), "")
	for _, slow := range []string{"ab", "ba", "cd", "dc"} {
		assert.NotContains(t, order, slow)
	}
	assert.Contains(t, strings.Join(notes.Text, "\n"), "the stages are on "+strings.Join(opened.placement.stageMembers(),
		", ")+", in this order: in the one before, the prediction would be ")
	one := run(t, traintest.Demo(t, dir, append(overrides, "run.dir="+dir+"/one", "pipeline.devices=[cpu:0/1]")...), nil)
	four := traintest.Files(t, res.Checkpoint)
	for file := range one {
		assert.True(t, one[file] == four[file], file)
	}
}

// Over links that are nearly alike the stages stay where they are.
func TestTheOrderOfMembersStays(t *testing.T) {
	n := newNetwork()
	n.links = &Links{}
	for _, id := range strings.Split("abc", "") {
		n.add(t, id)
		for _, to := range strings.Split("abc", "") {
			n.links.set(pair{id, to}, partition.Link{Latency: 5e-3 * (1 + float64(to[0])/1e5), Bandwidth: 1e8})
		}
	}
	var opened *Pipeline
	open := n.remote("a", "b", "c")
	c := traintest.Demo(t, t.TempDir(), "pipeline.stages=3", "pipeline.schedule=2bw", "train.microbatches=4", "train.steps=2")
	_, err := train.Run(t.Context(), c, train.Options{Report: &runtest.Notes{},
		Devices: train.DeviceOptions{Remote: func(ctx context.Context,
			task train.RemoteTask) (train.Pipeline, error) {
			p, err := open(ctx, task)
			opened, _ = p.(*Pipeline)
			return p, err
		}}})
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "b", "c"}, opened.placement.stageMembers())
}

func TestReorder(t *testing.T) {
	p := placement{stages: 3}
	for _, member := range strings.Split("abcdef", "") {
		p.ranks = append(p.ranks, protocol.Place{Member: member})
	}
	before := p.ranks
	p.reorder([]int{2, 0, 1})
	var all []string
	for _, place := range p.ranks {
		all = append(all, place.Member)
	}
	assert.Equal(t, "cabfde", strings.Join(all, ""))
	assert.Equal(t, "a", before[0].Member, "the host's places stay")
	assert.Len(t, placement{before[:4], 4}.pairs(), 12, "all")
}
