package webgpujs

import (
	"encoding/binary"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/checktest"
)

func open(t *testing.T, budget int64) *Device {
	t.Helper()
	d, err := Open(Options{Label: "test", MemoryBudget: budget})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	return d
}

func TestRefusals(t *testing.T) {
	checktest.Run(t, func(t *testing.T, budget int64) device.Device {
		d, err := Open(Options{MemoryBudget: budget})
		require.NoError(t, err)
		return d
	})
}

func TestInfo(t *testing.T) {
	d := open(t, 0)
	assert.Equal(t, "webgpu:0", d.Info().Name)
	assert.NotEmpty(t, d.Info().Adapter)
	assert.GreaterOrEqual(t, d.Limits().MaxBindings, device.DefaultLimits().MaxBindings)
	assert.LessOrEqual(t, d.Limits().OffsetAlignment, int64(256))
	t.Logf("%+v %+v", d.Info(), d.Limits())
}

func words(data []byte) []uint32 {
	out := make([]uint32, len(data)/4)
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	return out
}

func pattern(n, seed int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i*31 + i>>8 + seed)
	}
	return data
}

// increments is a program of n dispatches that each add one to the first 64 words of b.
func increments(b device.Buffer, n int) *device.Program {
	p := &device.Program{Label: "increments", Shaders: []device.Shader{checktest.Increment(1)}}
	for range n {
		p.Commands = append(p.Commands, device.Command{Args: []device.Range{{Buffer: b, Size: 256}}, Groups: [3]int{1, 1, 1}})
	}
	return p
}

func read(t *testing.T, d *Device, b device.Buffer, offset, n int64) []byte {
	t.Helper()
	r, err := d.Read(b, offset, n)
	require.NoError(t, err)
	data, err := r.Wait()
	require.NoError(t, err)
	return data
}

// Goroutines share a device, and what each enqueues comes in its order.
func TestConcurrentUse(t *testing.T) {
	d := open(t, 0)
	var wait sync.WaitGroup
	for g := range 4 {
		wait.Go(func() {
			b, err := d.Alloc("b", 1024)
			assert.NoError(t, err)
			defer b.Release()
			l, err := d.Load(increments(b, 3))
			assert.NoError(t, err)
			defer l.Release()
			for i := range 20 {
				assert.NoError(t, d.Write(b, 0, pattern(1024, g+i)))
				assert.NoError(t, d.Run(l))
				r, err := d.Read(b, 0, 1024)
				assert.NoError(t, err)
				if i%3 == 0 {
					assert.NoError(t, d.Sync())
				}
				got, err := r.Wait()
				assert.NoError(t, err)
				want := words(pattern(1024, g+i))
				for k := range 64 {
					want[k] += 3
				}
				assert.Equal(t, want, words(got))
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
	data := pattern(half, 3)
	require.NoError(t, d.Write(a, 0, data))
	l, err := d.Load(&device.Program{Label: "copies", Commands: []device.Command{
		{Shader: device.Copy, Args: []device.Range{{Buffer: a, Size: half}, {Buffer: a, Offset: half, Size: half}}},
		{Shader: device.Copy, Args: []device.Range{{Buffer: a, Offset: half, Size: half}, {Buffer: b, Size: half}}}}})
	require.NoError(t, err)
	require.NoError(t, d.Run(l))
	assert.True(t, string(data) == string(read(t, d, b, 0, half)))
	assert.Empty(t, read(t, d, b, 0, 0))
}

// More than may be under way, and nobody waits for it.
func TestManyTransfers(t *testing.T) {
	d := open(t, 0)
	b, err := d.Alloc("b", 4<<20)
	require.NoError(t, err)
	l, err := d.Load(increments(b, 1))
	require.NoError(t, err)
	var last device.Pending
	for i := range 20 {
		require.NoError(t, d.Write(b, 0, pattern(4<<20, i)))
		require.NoError(t, d.Run(l))
		last, err = d.Read(b, 256, 4<<20-256)
		require.NoError(t, err)
		_, staging := d.Allocated()
		require.LessOrEqual(t, staging, int64(mostUnderWay))
	}
	got, err := last.Wait()
	require.NoError(t, err)
	assert.True(t, string(pattern(4<<20, 19)[256:]) == string(got))
}

func TestShaderThatDoesNotCompile(t *testing.T) {
	d := open(t, 0)
	b, err := d.Alloc("b", 256)
	require.NoError(t, err)
	p := increments(b, 1)
	p.Shaders[0].Label = "bad one"
	p.Shaders[0].WGSL += "\nfn f() -> f32 { return nothing; }\n"
	_, err = d.Load(p)
	require.ErrorIs(t, err, device.ErrValidation)
	assert.ErrorContains(t, err, `compile "bad one"`)
	assert.ErrorContains(t, err, "line 4: ")
	assert.ErrorContains(t, err, "nothing")
	require.NoError(t, d.Sync(), "the error is told once")
	_, err = d.Load(increments(b, 1))
	require.NoError(t, err)
}

// Memory that there is not, is an error and no crash of the page.
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

// What breaks a rule that only the GPU knows comes back from Sync.
func TestErrorOfEnqueuedWork(t *testing.T) {
	d := open(t, 0)
	b, err := d.Alloc("b", 256)
	require.NoError(t, err)
	l, err := d.Load(increments(b, 1))
	require.NoError(t, err)
	b.(*buffer).gpu.Call("destroy") // behind the device's back
	require.NoError(t, d.Run(l))
	require.ErrorIs(t, d.Sync(), device.ErrValidation)
	require.NoError(t, d.Sync())
}
