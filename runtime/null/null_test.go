package null

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/checktest"
)

func TestRefusals(t *testing.T) {
	limits := device.DefaultLimits()
	limits.MaxBindings, limits.OffsetAlignment, limits.MaxBindingSize = 4, 32, 1<<20
	for name, o := range map[string]Options{"default": {}, "given": {Limits: &limits}} {
		t.Run(name, func(t *testing.T) {
			checktest.Run(t, func(t *testing.T, budget int64) device.Device {
				o.MemoryBudget = budget
				return New(o)
			})
		})
	}
}

func TestCounts(t *testing.T) {
	d := New(Options{Name: "null:7"})
	assert.Equal(t, device.Info{Name: "null:7", Adapter: "none", Kind: device.Null}, d.Info())
	assert.Equal(t, device.DefaultLimits(), d.Limits())
	b, err := d.Alloc("b", 1024)
	require.NoError(t, err)
	l, err := d.Load(&device.Program{Shaders: []device.Shader{checktest.Increment(1)}, Commands: []device.Command{
		{Args: []device.Range{{Buffer: b, Size: 256}}, Groups: [3]int{1, 1, 1}},
		{Args: []device.Range{{Buffer: b, Offset: 256, Size: 256}}, Groups: [3]int{1, 1, 1}},
		{Shader: device.Copy, Args: []device.Range{{Buffer: b, Size: 512}, {Buffer: b, Offset: 512, Size: 512}}},
	}})
	require.NoError(t, err)
	var wait sync.WaitGroup
	for range 10 {
		wait.Go(func() {
			assert.NoError(t, d.Run(l))
			assert.NoError(t, d.Write(b, 4, []byte{1, 2, 3, 4}))
			r, err := d.Read(b, 0, 8)
			assert.NoError(t, err)
			data, err := r.Wait()
			assert.NoError(t, err)
			assert.Equal(t, make([]byte, 8), data)
			assert.NoError(t, d.Sync())
		})
	}
	wait.Wait()
	assert.Equal(t, Counts{Programs: 10, Dispatches: 20, Copies: 10, Reads: 10, Writes: 10,
		BytesCopied: 5120, BytesRead: 80, BytesWritten: 40}, d.Counts())
}
