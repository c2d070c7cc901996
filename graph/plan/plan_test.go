package plan_test

import (
	"fmt"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/graph/plan"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var limits = target.Limits{MaxBindingSize: 128 << 20, MaxBufferSize: 256 << 20, OffsetAlignment: 256}

func fused(t *testing.T, g *graph.Graph) *fuse.Result {
	t.Helper()
	r, err := fuse.Run(g, fuse.Options{MaxBindings: 8, OffsetAlignment: limits.OffsetAlignment})
	require.NoError(t, err)
	return r
}

func noScratch(*fuse.Group) []int64 { return nil }

// Every value that a kernel loads still holds what was stored: no kernel in between writes any byte of it.
func TestNothingIsOverwrittenWhileItIsNeeded(t *testing.T) {
	c, err := model.Preset("tiny")
	require.NoError(t, err)
	g, err := c.Grad(2, 1, false)
	require.NoError(t, err)
	r := fused(t, g)
	scratch := func(g *fuse.Group) []int64 { return []int64{4096, int64(len(g.Nodes) * 1000)} }
	p, err := plan.Run(r, scratch, limits)
	require.NoError(t, err)
	type chunkByte struct {
		chunk int
		word  int64
	}
	owner := map[chunkByte]string{} // of each 256-byte block of the arena
	mark := func(s plan.Storage, who string) {
		for at := s.Offset / 256; s.Space == plan.Arena && at*256 < s.Offset+s.Size; at++ {
			owner[chunkByte{s.Chunk, at}] = who
		}
	}
	for _, k := range r.Groups {
		for _, v := range k.Loads {
			s := p.Storage[v]
			for at := s.Offset / 256; s.Space == plan.Arena && at*256 < s.Offset+s.Size; at++ {
				require.Equal(t, v.String(), owner[chunkByte{s.Chunk, at}], "%v is read by %v", v, k.Nodes[0].Op.Name())
			}
		}
		for i, s := range p.Scratch[k] {
			mark(s, fmt.Sprint("scratch ", i))
		}
		for _, v := range k.Stores {
			mark(p.Storage[v], v.String())
		}
	}
}

func TestAChainNeedsTwoBlocks(t *testing.T) {
	g, err := graph.Build(func(b *graph.Builder) {
		x := b.Input("x", graph.T(graph.F32, 64, 64))
		for i := range 10 {
			x = op.MatMul(x, b.Variable(fmt.Sprint("w", i), graph.T(graph.F32, 64, 64)), false, false)
		}
		b.Output("y", x)
	})
	require.NoError(t, err)
	p, err := plan.Run(fused(t, g), noScratch, limits)
	require.NoError(t, err)
	assert.Equal(t, []int64{2 * 64 * 64 * 4}, p.Chunks)
}

func TestAnElementwiseKernelMayOverwriteItsInput(t *testing.T) {
	g, err := graph.Build(func(b *graph.Builder) {
		x := b.Input("x", graph.T(graph.F32, 4096))
		for i := range 5 {
			b.Scope(fmt.Sprint(i), func() { x = op.Exp(x) })
		}
		b.Output("y", x)
	})
	require.NoError(t, err)
	p, err := plan.Run(fused(t, g), noScratch, limits)
	require.NoError(t, err)
	assert.Equal(t, []int64{4096 * 4}, p.Chunks)
}

func TestTheArenaIsSplitWhereABufferEnds(t *testing.T) {
	g, err := graph.Build(func(b *graph.Builder) {
		for i := range 3 {
			x := b.Input(fmt.Sprint("x", i), graph.T(graph.F32, 1024))
			b.Output(fmt.Sprint("y", i), op.Exp(x))
		}
	})
	require.NoError(t, err)
	small := target.Limits{MaxBindingSize: 4096, MaxBufferSize: 10000, OffsetAlignment: 256}
	p, err := plan.Run(fused(t, g), noScratch, small)
	require.NoError(t, err)
	assert.Equal(t, []int64{8192, 4096}, p.Chunks)

	small.MaxBindingSize = 4000
	_, err = plan.Run(fused(t, g), noScratch, small)
	assert.ErrorIs(t, err, plan.ErrTooLarge)
	assert.ErrorContains(t, err, "needs 4096 bytes in one piece, the device binds at most 4000")
}

func TestVariablesMayExchangeContents(t *testing.T) {
	g, err := graph.Build(func(b *graph.Builder) {
		x, y := b.Variable("x", graph.T(graph.F32, 8)), b.Variable("y", graph.T(graph.F32, 8))
		b.Assign(x, y)
		b.Assign(y, x)
	})
	require.NoError(t, err)
	p, err := plan.Run(fused(t, g), noScratch, limits)
	require.NoError(t, err)
	require.Len(t, p.Copies, 4)
	for i, c := range p.Copies {
		assert.Equal(t, i < 2, c.From.Space == plan.Variable, "both are read before either is written")
	}
}

// Sections lie in the memory of their variable, where the device can bind them.
func TestSections(t *testing.T) {
	build := func(rows int) (*plan.Plan, error) {
		g, err := graph.Build(func(b *graph.Builder) {
			x := b.Section("w", graph.T(graph.F32, 2*rows, 16), rows, 2*rows)
			b.Assign(x, op.Scale(x, 2))
		})
		require.NoError(t, err)
		return plan.Run(fused(t, g), noScratch, limits)
	}
	p, err := build(8)
	require.NoError(t, err)
	assert.Empty(t, p.Chunks)
	assert.Empty(t, p.Copies)
	for _, s := range p.Storage {
		assert.Equal(t, plan.Storage{Space: plan.Variable, Name: "w", Offset: 512, Size: 512}, s)
	}
	_, err = build(7)
	assert.ErrorContains(t, err, `section "w[7:14]" f32[7,16] begins at byte 448 of its variable, the device binds at multiples of 256`)
}
