package webgpu

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/cogentcore/webgpu/wgpu"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func open(t testing.TB, budget int64) *Device {
	t.Helper()
	d, err := Open(0, Options{Label: "test", MemoryBudget: budget})
	require.NoError(t, err, "these tests need an adapter: a GPU, or Mesa's lavapipe")
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	return d
}

func alloc(t testing.TB, d *Device, size int64) device.Buffer {
	t.Helper()
	b, err := d.Alloc("b", size)
	require.NoError(t, err)
	return b
}

func TestRefusals(t *testing.T) {
	contract.Run(t, func(t *testing.T, budget int64) device.Device {
		d, err := Open(0, Options{MemoryBudget: budget})
		require.NoError(t, err)
		return d
	})
}

func TestExecution(t *testing.T) {
	contract.Execute(t, func(t *testing.T, budget int64) device.Device {
		d, err := Open(0, Options{MemoryBudget: budget})
		require.NoError(t, err, "these tests need an adapter: a GPU, or Mesa's lavapipe")
		return d
	})
}

func TestTimer(t *testing.T) {
	tier.Rest(t)
	contract.Timer(t, func(t *testing.T, budget int64) device.Device {
		d, err := Open(0, Options{MemoryBudget: budget})
		require.NoError(t, err, "these tests need an adapter: a GPU, or Mesa's lavapipe")
		return d
	})
}

func TestLeaving(t *testing.T) { contract.Leaving(t, open(t, 0)) }

func TestSourcesAreCompiledOnce(t *testing.T) {
	d := open(t, 0)
	b := alloc(t, d, 256)
	for range 2 {
		contract.Load(t, d, contract.Increments(b, 3))
	}
	assert.Len(t, d.kernels.pipelines, 1)
}

func TestAdapters(t *testing.T) {
	infos, err := Adapters()
	require.NoError(t, err)
	require.NotEmpty(t, infos, "these tests need an adapter: a GPU, or Mesa's lavapipe")
	last := 0
	for i, info := range infos {
		assert.Equal(t, fmt.Sprintf("webgpu:%d", i), info.Name)
		assert.NotEmpty(t, info.Adapter)
		assert.Contains(t, []string{"vulkan", "metal", "dx12"}, info.API)
		assert.GreaterOrEqual(t, info.Kind.Order(), last, "hardware comes first")
		last = info.Kind.Order()
	}
	for _, index := range []int{-1, len(infos)} {
		_, err = Open(index, Options{})
		require.ErrorContains(t, err, fmt.Sprintf("webgpu:%d: no such adapter; there are: webgpu:0 (%s)", index, infos[0].Adapter))
	}
	assert.ErrorContains(t, unknownAdapter(0, nil), "no adapter found")
}

func TestKinds(t *testing.T) {
	for _, c := range []struct {
		t    wgpu.AdapterType
		name string
		want device.Kind
	}{
		{wgpu.AdapterTypeCPU, "llvmpipe (LLVM 15.0.6, 256 bits)", device.Software},
		{wgpu.AdapterTypeCPU, "SwiftShader Device (LLVM 10.0.0)", device.Software},
		{wgpu.AdapterTypeDiscreteGPU, "Microsoft Basic Render Driver", device.Software},
		{wgpu.AdapterTypeCPU, "Virtio-GPU Venus (NVIDIA)", device.Virtual},
		{wgpu.AdapterTypeDiscreteGPU, "NVIDIA H200", device.Discrete},
		{wgpu.AdapterTypeIntegratedGPU, "Apple M3", device.Integrated},
		{wgpu.AdapterTypeUnknown, "?", device.Virtual},
	} {
		assert.Equal(t, c.want, kindOf(c.t, c.name), c.name)
	}
}

// Mirrors of the bindings' private structs have the same layout.
func TestLayoutOfBindings(t *testing.T) {
	for _, v := range []any{wgpu.Instance{}, wgpu.Adapter{}, wgpu.Device{}, wgpu.ComputePipeline{}, wgpu.BindGroup{}} {
		typ := reflect.TypeOf(v)
		require.Equal(t, 1, typ.NumField(), typ)
		assert.Equal(t, "ref", typ.Field(0).Name, typ)
	}
	typ := reflect.TypeOf(wgpu.Buffer{})
	require.Equal(t, 2, typ.NumField())
	assert.Equal(t, "deviceRef", typ.Field(0).Name)
	assert.Equal(t, "ref", typ.Field(1).Name)
}

func TestSoftwareAdapterHasABudget(t *testing.T) {
	d := open(t, 0)
	if d.Info().Kind != device.Software {
		assert.Zero(t, d.Budget())
		return
	}
	require.Positive(t, d.Budget())
	held := int64(0)
	for ; held+d.Limits().MaxBufferSize <= d.Budget(); held += d.Limits().MaxBufferSize {
		b, err := d.Alloc("huge", d.Limits().MaxBufferSize) // untouched, so the system holds none of it
		require.NoError(t, err)
		defer b.Release()
	}
	_, err := d.Alloc("straw", d.Limits().MaxBufferSize)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
}

// lose makes the library's report of a lost device.
func lose(d *Device) {
	d.requests <- func() {
		d.native.lost = 1
		d.native.lost_msg[0] = 'X'
		d.checkLost()
	}
}

func TestLoss(t *testing.T) {
	d := open(t, 0)
	b := alloc(t, d, 16<<20)
	l := contract.Load(t, d, contract.Increments(b, 1))
	require.NoError(t, d.Run(l))
	r, err := d.Read(b, 0, 16<<20)
	require.NoError(t, err)
	lose(d)
	if _, err = r.Wait(); err != nil { // it may have completed before
		assert.ErrorIs(t, err, device.ErrLost)
	}
	contract.Lost(t, d, b, l, `webgpu:0: run "increments": device lost: X`)
}

func TestLossReleasesWaiters(t *testing.T) {
	d := open(t, 0)
	b := alloc(t, d, 4096)
	r := &pending{Read: base.NewRead("b"), d: d}
	data := r.Expect(4, 1)
	synced := make(chan error, 1)
	d.requests <- func() { // lost before the owner can poll
		assert.NoError(t, d.download(b.(*buffer), 0, data, r))
		d.queue.syncs = append(d.queue.syncs, syncWaiter{uint64(d.native.submitted), synced})
		d.native.lost = 1
		d.checkLost()
	}
	assert.ErrorIs(t, <-synced, device.ErrLost)
	_, err := r.Wait()
	assert.ErrorIs(t, err, device.ErrLost)
}

// An error outside every scope belongs to no call. Sync returns it, once.
func TestUncapturedError(t *testing.T) {
	d := open(t, 0)
	b := alloc(t, d, 256)
	d.requests <- func() {
		d.native.uncaptured._type = 1
		d.native.uncaptured.msg[0] = 'X'
	}
	require.NoError(t, d.Run(contract.Load(t, d, contract.Increments(b, 1))))
	err := d.Sync()
	require.ErrorIs(t, err, device.ErrValidation)
	require.EqualError(t, err, `webgpu:0: sync "": validation failed: X`)
	require.NoError(t, d.Sync())
}
