package bench

import (
	"testing"

	"github.com/gpupipe/gpupipe/runtime/cpu"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The probes of a CPU compute what the count of their work says.
func TestNativeProbes(t *testing.T) {
	d, err := cpu.Open(cpu.Options{Threads: 1})
	require.NoError(t, err)
	defer func() { assert.NoError(t, d.Close()) }()
	for _, accumulators := range []int{3, 6, 12, 24} {
		m := nativeMultiply(accumulators)
		assert.InDelta(t, 2*8*16*accumulators*m.groups, m.flops, 0)
		b, err := d.Alloc("b", 4*peakSeeds+4*nativeGroups)
		require.NoError(t, err)
		c := &contender{buffers: []device.Buffer{b}}
		require.NoError(t, c.load(d, m.shader, [3]int{m.groups, 1, 1}, device.Range{Buffer: b, Size: b.Size()}))
		require.NoError(t, d.Write(b, 0, exec.F32Bytes([]float32{1, 1, 5}))) // every sum grows by 8 in each of 5 rounds
		require.NoError(t, d.Run(c.loaded))
		x := exec.ToF32(contract.Read(t, d, b, 4*peakSeeds, 4*nativeGroups))
		vectors := float32(0)
		for vectors*40+vectors*(vectors-1)/2 < x[0] { // sum i begins at the group's number and i
			vectors++
		}
		assert.Contains(t, []float32{1, 2, 4}, vectors/float32(accumulators), "64 bytes have so many vectors")
		for group, sum := range x {
			require.Equal(t, vectors*(40+float32(group))+vectors*(vectors-1)/2, sum)
		}
		c.release()
	}

	c, err := reading(d, 4*nativeBlock)
	require.NoError(t, err)
	defer c.release()
	ones := make([]float32, nativeBlock)
	for i := range ones {
		ones[i] = 1 + float32(i/(nativeBlock/4))
	}
	require.NoError(t, d.Write(c.buffers[0], 0, exec.F32Bytes(ones)))
	require.NoError(t, d.Run(c.loaded))
	const block = nativeBlock / 4
	assert.Equal(t, []float32{block, 2 * block, 3 * block, 4 * block}, exec.ToF32(contract.Read(t, d, c.buffers[1], 0, 16)))
}
