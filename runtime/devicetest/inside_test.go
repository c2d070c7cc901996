package devicetest_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/shaders/watch"
)

// watching has the kernels that are said to keep inside their arrays tell when they do not.
type watching struct {
	device.Device
	outside device.Buffer
	kernels *int // that were loaded
}

// watched opens a device, and checks in the end that no index left its array.
func watched(t *testing.T, d device.Device) watching {
	outside, err := d.Alloc("outside", 16)
	require.NoError(t, err)
	w := watching{d, outside, new(int)}
	t.Cleanup(func() {
		assert.Positive(t, *w.kernels)
		p, err := d.Read(outside, 0, 4)
		require.NoError(t, err)
		word, err := p.Wait()
		require.NoError(t, err)
		assert.Equal(t, make([]byte, 4), word, "an index leaves its array")
		outside.Release()
	})
	return w
}

func (d watching) Load(p *device.Program) (device.Loaded, error) {
	other := *p
	other.Shaders, other.Commands = slices.Clone(p.Shaders), slices.Clone(p.Commands)
	for i, s := range p.Shaders {
		if s.Inside {
			*d.kernels++
			other.Shaders[i].WGSL = watch.Indices(s.WGSL, len(s.Bindings))
			other.Shaders[i].Bindings = append(slices.Clone(s.Bindings), device.ReadWrite)
		}
	}
	for i, c := range p.Commands {
		if c.Shader >= 0 && p.Shaders[c.Shader].Inside {
			other.Commands[i].Args = append(slices.Clone(c.Args), device.Range{Buffer: d.outside, Size: 16})
		}
	}
	return d.Device.Load(&other)
}
