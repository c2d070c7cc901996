//go:build unix

package engine

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/faulty"
)

// traffic counts the operations that move activations and gradients between ranks, by rank and kind of operation.
type traffic struct {
	mu      sync.Mutex
	counts  map[string]int
	imports int
	refuse  func(imports int) error
}

// device is one whose operations are counted.
func (c *traffic) device(p setup) func(rank int) device.Device {
	devices := idle(time.Millisecond, p.imports)
	return func(rank int) device.Device {
		return &faulty.Device{Device: devices(rank), Before: func(op faulty.Op, object string) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			if op == faulty.Import {
				c.imports++
				return c.refuse(c.imports)
			}
			for _, name := range []string{"act/in", "act/out", "grad/in", "grad/out"} {
				if strings.Contains(object, name) && (op == faulty.Read || op == faulty.Write || op == faulty.Transfer) {
					c.counts[fmt.Sprintf("%d %s", rank, op)]++
				}
			}
			return nil
		}}
	}
}

func (c *traffic) reset() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := c.counts
	c.counts = map[string]int{}
	return counts
}

func newTraffic() *traffic {
	return &traffic{counts: map[string]int{}, refuse: func(int) error { return nil }}
}

// Between devices that import memory, and only there, messages pass through staging buffers. The initial ones suffice,
// and all are free in the end.
func TestStagingBuffersCarryMessages(t *testing.T) {
	for _, p := range setups() {
		t.Run(p.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTraffic()
				p.device = c.device(p)
				e, data := p.load(t)
				imports, buffers := c.imports, 0
				var all []*stagingBuffer
				for key, c := range e.channels.all {
					assert.Less(t, max(key.from, key.to), p.imports)
					buffers += cap(c.idle)
					all = append(all, c.buffers...)
				}
				assert.Len(t, all, buffers)
				assert.Equal(t, 2*buffers, imports)
				c.reset()
				for batch := range 3 {
					_, err := e.Train(t.Context(), data, 4*batch, 4*batch+4, ignore)
					require.NoError(t, err)
					p.carried(t, c.reset())
					for key, c := range e.channels.all {
						assert.Len(t, c.idle, cap(c.idle), key)
					}
					require.NoError(t, e.Evaluate(t.Context(), zeros(e.options.Model.Size().SeqLen), 40, ignore))
					c.reset()
				}
				assert.Equal(t, imports, c.imports, "none is made during training")
				shared := int64(0)
				for i, l := range e.Ranks() {
					shared += l.Shared
					assert.Equal(t, i < p.imports && p.virtualStages() > 1, l.Shared > 0, l.Name)
				}
				assert.Equal(t, int64(buffers*4096), shared)
				require.NoError(t, e.Close())
				for _, b := range all {
					assert.Zero(t, b.users.Load())
				}
			})
		})
	}
}

func (s setup) virtualStages() int { return s.stages * max(s.chunks, 1) }

// carried checks that four batches moved by transfers between ranks that import memory, and through the host between
// the others.
func (s setup) carried(t *testing.T, counts map[string]int) {
	t.Helper()
	want := map[string]int{}
	for v := range s.virtualStages() - 1 {
		for r := range max(s.replicas, 1) {
			from, to := r*s.stages+v%s.stages, r*s.stages+(v+1)%s.stages
			n := 4 * s.microbatches
			if max(from, to) < s.imports {
				want[fmt.Sprintf("%d transfer", from)] += 2 * n // there, and a gradient back
				want[fmt.Sprintf("%d transfer", to)] += 2 * n
				continue
			}
			for _, rank := range []int{from, to} {
				want[fmt.Sprintf("%d read", rank)] += n
				want[fmt.Sprintf("%d write", rank)] += n
			}
		}
	}
	assert.Equal(t, want, counts)
}

// Messages without a staging buffer, because the driver refused the import, pass through the host. A lost device is an
// error.
func TestRefusedImports(t *testing.T) {
	p := setup{schedule: "2bw", stages: 3, microbatches: 4, tied: true, imports: 3}
	train := func(t *testing.T, refuse func(int) error) (buffers int, err error) {
		synctest.Test(t, func(t *testing.T) {
			c := newTraffic()
			c.refuse = refuse
			p.device = c.device(p)
			o := p.options(t)
			e, fault := New(o)
			require.NoError(t, fault)
			if err = e.Load(); err == nil {
				for _, c := range e.channels.all {
					buffers += len(c.buffers)
				}
				_, err = e.Train(t.Context(), zeros(o.Microbatches*o.Model.Size().SeqLen), 0, 4, ignore)
			}
			require.NoError(t, e.Close())
		})
		return buffers, err
	}
	all, err := train(t, func(int) error { return nil })
	require.NoError(t, err)
	for n := 0; n < 2*all; n += 3 {
		buffers, err := train(t, func(imports int) error {
			if imports > n {
				return device.ErrOutOfMemory
			}
			return nil
		})
		require.NoError(t, err)
		assert.Equal(t, n/2, buffers)
		if n%2 == 0 {
			_, err = train(t, func(imports int) error {
				if imports > n {
					return device.ErrLost
				}
				return nil
			})
			require.ErrorIs(t, err, device.ErrLost)
		}
	}
}
