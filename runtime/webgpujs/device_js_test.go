package webgpujs

import (
	"sync"
	"testing"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func open(t *testing.T, budget int64) *Device {
	t.Helper()
	d, err := Open(Options{Label: "test", MemoryBudget: budget})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	return d
}

func TestRefusals(t *testing.T) {
	contract.Run(t, func(t *testing.T, budget int64) device.Device {
		d, err := Open(Options{MemoryBudget: budget})
		require.NoError(t, err)
		return d
	})
}

func TestInfo(t *testing.T) {
	d := open(t, 0)
	assert.Equal(t, "webgpu:0", d.Info().Name)
	assert.NotEmpty(t, d.Info().Adapter)
	assert.GreaterOrEqual(t, d.Limits().MaxBindings, target.DefaultLimits().MaxBindings)
	assert.LessOrEqual(t, d.Limits().OffsetAlignment, int64(256))
	t.Logf("%+v %+v", d.Info(), d.Limits())
}

// Goroutines share a device, and the work of each runs in its order.
func TestConcurrentUse(t *testing.T) {
	d := open(t, 0)
	var wait sync.WaitGroup
	for g := range 4 {
		wait.Go(func() {
			b, err := d.Alloc("b", 1024)
			assert.NoError(t, err)
			defer b.Release()
			l, err := d.Load(contract.Increments(b, 3))
			assert.NoError(t, err)
			defer l.Release()
			for i := range 20 {
				assert.NoError(t, d.Write(b, 0, contract.Pattern(1024, g+i)))
				assert.NoError(t, d.Run(l))
				r, err := d.Read(b, 0, 1024)
				assert.NoError(t, err)
				if i%3 == 0 {
					assert.NoError(t, d.Sync())
				}
				got, err := r.Wait()
				assert.NoError(t, err)
				want := contract.Words(contract.Pattern(1024, g+i))
				for k := range 64 {
					want[k] += 3
				}
				assert.Equal(t, want, contract.Words(got))
			}
		})
	}
	wait.Wait()
	used, staging := d.Allocated()
	assert.Zero(t, used+staging)
}

func TestCopies(t *testing.T) {
	d := open(t, 0)
	const half = 3<<19 + 256 // more than the scratch memory holds
	a, err := d.Alloc("a", 2*half)
	require.NoError(t, err)
	b, err := d.Alloc("b", half)
	require.NoError(t, err)
	data := contract.Pattern(half, 3)
	require.NoError(t, d.Write(a, 0, data))
	l, err := d.Load(&device.Program{Label: "copies", Commands: []device.Command{
		{Shader: device.Copy, Args: []device.Range{{Buffer: a, Size: half}, {Buffer: a, Offset: half, Size: half}}},
		{Shader: device.Copy, Args: []device.Range{{Buffer: a, Offset: half, Size: half}, {Buffer: b, Size: half}}}}})
	require.NoError(t, err)
	require.NoError(t, d.Run(l))
	assert.True(t, string(data) == string(contract.Read(t, d, b, 0, half)))
	assert.Empty(t, contract.Read(t, d, b, 0, 0))
}

// More reads than may be in transit, without Wait.
func TestManyTransfers(t *testing.T) {
	d := open(t, 0)
	b, err := d.Alloc("b", 4<<20)
	require.NoError(t, err)
	l, err := d.Load(contract.Increments(b, 1))
	require.NoError(t, err)
	var last device.Pending
	for i := range 20 {
		require.NoError(t, d.Write(b, 0, contract.Pattern(4<<20, i)))
		require.NoError(t, d.Run(l))
		last, err = d.Read(b, 256, 4<<20-256)
		require.NoError(t, err)
		_, staging := d.Allocated()
		require.LessOrEqual(t, staging, int64(maxInTransit))
	}
	got, err := last.Wait()
	require.NoError(t, err)
	assert.True(t, string(contract.Pattern(4<<20, 19)[256:]) == string(got))
}

func TestShaderThatDoesNotCompile(t *testing.T) {
	d := open(t, 0)
	b, err := d.Alloc("b", 256)
	require.NoError(t, err)
	p := contract.Increments(b, 1)
	p.Shaders[0].Label = "bad one"
	p.Shaders[0].Source += "\nfn f() -> f32 { return nothing; }\n"
	_, err = d.Load(p)
	require.ErrorIs(t, err, device.ErrValidation)
	assert.ErrorContains(t, err, `compile "bad one"`)
	assert.ErrorContains(t, err, "line 4: ")
	assert.ErrorContains(t, err, "nothing")
	require.NoError(t, d.Sync(), "the error is reported once")
	_, err = d.Load(contract.Increments(b, 1))
	require.NoError(t, err)
}

// An allocation beyond the memory is an error, and the page does not crash.
func TestOutOfMemory(t *testing.T) {
	d := open(t, 0)
	for range 4096 {
		b, err := d.Alloc("huge", d.Limits().MaxBufferSize)
		if err != nil {
			require.ErrorIs(t, err, device.ErrOutOfMemory)
			return
		}
		defer b.Release()
	}
	t.Log("the adapter promises any amount")
}

// A violation that only the GPU process finds is returned by Sync.
func TestErrorOfEnqueuedWork(t *testing.T) {
	d := open(t, 0)
	b, err := d.Alloc("b", 256)
	require.NoError(t, err)
	l, err := d.Load(contract.Increments(b, 1))
	require.NoError(t, err)
	b.(*buffer).gpu.Call("destroy") // behind the device's back
	require.NoError(t, d.Run(l))
	require.ErrorIs(t, d.Sync(), device.ErrValidation)
	require.NoError(t, d.Sync())
}
