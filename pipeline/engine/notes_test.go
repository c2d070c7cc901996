//go:build unix

package engine

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/gpupipe/gpupipe/internal/units"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/shaders"
)

// Staging buffers take at most a quarter of the host's memory. Notes reports the bytes for which there is no room.
func TestStagingBuffersLeaveTheHostRoom(t *testing.T) {
	p := setup{schedule: "2bw", stages: 3, microbatches: 4, tied: true, imports: 3}
	const page = 4096
	for _, pages := range []int{1000, 9, 4, 1, 0} {
		synctest.Test(t, func(t *testing.T) {
			c := newTraffic()
			p.device = c.device(p)
			o := p.options(t)
			o.HostMemory = int64(4*page*pages + 4) // 0 would be all there is
			e, err := New(o)
			require.NoError(t, err)
			require.NoError(t, e.Load())
			buffers, wanted := 0, 0
			for _, r := range e.channels.all {
				buffers, wanted = buffers+len(r.buffers), wanted+cap(r.idle)
			}
			assert.Equal(t, min(pages, wanted), buffers)
			if buffers == wanted {
				assert.Empty(t, e.Notes())
			} else {
				assert.Equal(t, []string{fmt.Sprintf("devices share at most a quarter of the host's memory, which lacks room for %s of staging buffers: "+
					"transfers without one take the slower path through the memory of each device",
					units.Bytes(int64(page*(wanted-buffers))))}, e.Notes())
			}
			_, err = e.Train(t.Context(), zeros(o.Microbatches*o.Model.Size().SeqLen), 0, 4, ignore)
			require.NoError(t, err)
			require.NoError(t, e.Close())
		})
	}
}

// greedy chooses the kernel with the most scratch memory.
type greedy struct{}

func (greedy) Choose(_ device.Device, _ string, ks []shaders.Kernel, _ int) (int, error) {
	most := slices.MaxFunc(ks, func(a, b shaders.Kernel) int { return slices.Compare(a.Scratch, b.Scratch) })
	return slices.IndexFunc(ks, func(k shaders.Kernel) bool { return k.Name == most.Name }), nil
}

// Untuned reports kernels that do not fit, by device.
func TestUntunedKernels(t *testing.T) {
	g, err := graph.Build(func(b *graph.Builder) {
		b.Output("y", op.Sum(b.Input("x", graph.T(graph.F32, 4096, 200)), []int{1}, false))
	})
	require.NoError(t, err)
	plan := func(tune exec.Chooser, memory int64) Planned {
		p, err := Execute(tune, memory)(null.New(null.Options{}), map[string]*graph.Graph{"main": g}, nil)
		require.NoError(t, err)
		return p
	}
	static, tuned := plan(nil, 0), plan(greedy{}, 0)
	missing := tuned.Memory.Total - static.Memory.Total
	require.Positive(t, missing)
	assert.NoError(t, tuned.Untuned)
	scarce := plan(greedy{}, static.Memory.Total)
	require.Error(t, scarce.Untuned)

	large := fmt.Errorf("%w: an array", exec.ErrTooLarge)
	reasons := []error{scarce.Untuned, nil, large, &exec.Shortage{Needed: exec.Memory{Total: 7}, Available: 4}}
	p := setup{schedule: "1f1b", stages: 4, microbatches: 4, device: func(rank int) device.Device {
		return null.New(null.Options{Name: fmt.Sprint("null:", rank%3)})
	}}
	o, rank := p.options(t), 0
	o.Execute = func(dev device.Device, graphs map[string]*graph.Graph, pools map[string]exec.Pool) (Planned, error) {
		planned, err := Execute(nil, 0)(dev, graphs, pools)
		planned.Untuned = reasons[rank]
		rank++
		return planned, err
	}
	e, err := New(o)
	require.NoError(t, err)
	assert.Equal(t, []string{
		fmt.Sprintf("null:0: the fastest kernels need %s more of memory than available (stage 0, stage 3)", units.Bytes(missing)),
		"null:2: the fastest kernels do not fit: " + large.Error() + " (stage 2)"}, e.Untuned())
}
