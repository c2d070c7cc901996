package compute_test

import (
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/boundscheck"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// watching instruments every third kernel that promises in-bounds indices, so that it reports a broken promise.
// Compilers take long for such kernels.
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
		assert.Greater(t, *w.kernels, 2)
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
	watched := map[int]bool{}
	for i, s := range p.Shaders {
		if !s.Inside {
			continue
		}
		if *d.kernels++; *d.kernels%3 == 0 {
			watched[i] = true
			other.Shaders[i].Source = boundscheck.Indices(s.Source, len(s.Bindings))
			other.Shaders[i].Bindings = append(slices.Clone(s.Bindings), device.ReadWrite)
		}
	}
	for i, c := range p.Commands {
		if watched[c.Shader] {
			other.Commands[i].Args = append(slices.Clone(c.Args), device.Range{Buffer: d.outside, Size: 16})
		}
	}
	return d.Device.Load(&other)
}
