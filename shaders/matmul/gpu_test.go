package matmul

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
	"unsafe"

	"github.com/cogentcore/webgpu/wgpu"
	"github.com/gpupipe/gpupipe/internal/boundscheck"
	"github.com/stretchr/testify/require"
)

// gpu runs kernels on the first Vulkan adapter.
type gpu struct {
	t        testing.TB
	device   *wgpu.Device
	queue    *wgpu.Queue
	watching bool         // check the indices of kernels that are loaded from now on
	outside  *wgpu.Buffer // where checked kernels report an index outside its array
}

func openGPU(t testing.TB) *gpu {
	instance := wgpu.CreateInstance(nil) // the binding does not initialize the extras of a descriptor
	t.Cleanup(instance.Release)
	for _, a := range instance.EnumerateAdapters(nil) {
		if a.GetInfo().BackendType != wgpu.BackendTypeVulkan {
			continue
		}
		limits := a.GetLimits().Limits
		limits.MaxPushConstantSize = 0 // the binding does not initialize it
		d, err := a.RequestDevice(&wgpu.DeviceDescriptor{RequiredLimits: &wgpu.RequiredLimits{Limits: limits}})
		require.NoError(t, err)
		t.Cleanup(d.Release)
		return &gpu{t: t, device: d, queue: d.GetQueue()}
	}
	require.FailNow(t, "no Vulkan adapter; Mesa's lavapipe is one")
	return nil
}

// wait polls without blocking: the blocking poll gives up after five seconds and frees resources in use.
func (g *gpu) wait() {
	for i := 0; !g.device.Poll(false, nil); i++ {
		if i < 20 {
			runtime.Gosched()
		} else {
			time.Sleep(50 * time.Microsecond)
		}
	}
}

func (g *gpu) buffer(bytes int, data []float32) *wgpu.Buffer {
	b, err := g.device.CreateBuffer(&wgpu.BufferDescriptor{
		Size: uint64(max(bytes, 16)), Usage: wgpu.BufferUsageStorage | wgpu.BufferUsageCopySrc | wgpu.BufferUsageCopyDst})
	require.NoError(g.t, err)
	if len(data) > 0 {
		require.NoError(g.t, g.queue.WriteBuffer(b, 0, unsafe.Slice((*byte)(unsafe.Pointer(&data[0])), 4*len(data))))
	}
	return b
}

func (g *gpu) read(b *wgpu.Buffer, n int) []float32 {
	staging, err := g.device.CreateBuffer(&wgpu.BufferDescriptor{
		Size: uint64(4 * n), Usage: wgpu.BufferUsageMapRead | wgpu.BufferUsageCopyDst})
	require.NoError(g.t, err)
	defer staging.Release()
	e, err := g.device.CreateCommandEncoder(nil)
	require.NoError(g.t, err)
	defer e.Release()
	require.NoError(g.t, e.CopyBufferToBuffer(b, 0, staging, 0, uint64(4*n)))
	g.submit(e)
	g.wait()
	// The binding hands C a pointer that the collector may free before the callback.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	mapped := false
	require.NoError(g.t, staging.MapAsync(wgpu.MapModeRead, 0, uint64(4*n), func(s wgpu.BufferMapAsyncStatus) {
		mapped = s == wgpu.BufferMapAsyncStatusSuccess
	}))
	g.wait()
	require.True(g.t, mapped)
	out := make([]float32, n)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&out[0])), 4*n), staging.GetMappedRange(0, uint(4*n)))
	require.NoError(g.t, staging.Unmap())
	return out
}

func (g *gpu) submit(e *wgpu.CommandEncoder) {
	cb, err := e.Finish(nil)
	require.NoError(g.t, err)
	defer cb.Release()
	g.queue.Submit(cb)
}

// loaded is a Kernel that is compiled and bound.
type loaded struct {
	pipelines []*wgpu.ComputePipeline
	groups    []*wgpu.BindGroup
	kernel    Kernel
}

func (g *gpu) load(k Kernel, operands map[Operand]*wgpu.Buffer, extra ...*wgpu.Buffer) *loaded {
	out := &loaded{kernel: k}
	for n, p := range k.Passes {
		wgsl, last := p.WGSL, len(p.Bindings)
		if p.Epilogue {
			last += len(extra)
		}
		if g.watching {
			wgsl = boundscheck.Indices(wgsl, last)
		}
		m, err := g.device.CreateShaderModule(&wgpu.ShaderModuleDescriptor{
			Label: k.Name, WGSLDescriptor: &wgpu.ShaderModuleWGSLDescriptor{Code: wgsl}})
		require.NoError(g.t, err, fmt.Sprint(k.Name, n, "\n", wgsl))
		pipe, err := g.device.CreateComputePipeline(&wgpu.ComputePipelineDescriptor{
			Label: k.Name, Compute: wgpu.ProgrammableStageDescriptor{Module: m, EntryPoint: "main"}})
		m.Release()
		require.NoError(g.t, err, k.Name)
		var entries []wgpu.BindGroupEntry
		for i, b := range p.Bindings {
			size := uint64(wgpu.WholeSize)
			if b.Operand == Scratch {
				size = uint64(b.Size)
			}
			entries = append(entries, wgpu.BindGroupEntry{Binding: uint32(i), Buffer: operands[b.Operand], Offset: uint64(b.Offset), Size: size})
		}
		if p.Epilogue {
			for i, b := range extra {
				entries = append(entries, wgpu.BindGroupEntry{Binding: uint32(len(p.Bindings) + i), Buffer: b, Size: wgpu.WholeSize})
			}
		}
		if g.watching {
			entries = append(entries, wgpu.BindGroupEntry{Binding: uint32(last), Buffer: g.outside, Size: wgpu.WholeSize})
		}
		layout := pipe.GetBindGroupLayout(0)
		group, err := g.device.CreateBindGroup(&wgpu.BindGroupDescriptor{Layout: layout, Entries: entries})
		layout.Release()
		require.NoError(g.t, err, k.Name)
		out.pipelines, out.groups = append(out.pipelines, pipe), append(out.groups, group)
	}
	return out
}

func (l *loaded) release() {
	for i := range l.pipelines {
		l.groups[i].Release()
		l.pipelines[i].Release()
	}
}

// run runs the kernel times times and waits.
func (g *gpu) run(l *loaded, times int) {
	e, err := g.device.CreateCommandEncoder(nil)
	require.NoError(g.t, err)
	defer e.Release()
	pass := e.BeginComputePass(nil)
	for range times {
		for i, p := range l.kernel.Passes {
			pass.SetPipeline(l.pipelines[i])
			pass.SetBindGroup(0, l.groups[i], nil)
			pass.DispatchWorkgroups(uint32(p.Groups[0]), uint32(p.Groups[1]), uint32(p.Groups[2]))
		}
	}
	require.NoError(g.t, pass.End())
	pass.Release()
	g.submit(e)
	g.wait()
	if g.outside != nil {
		require.Zero(g.t, g.read(g.outside, 1)[0], "%s: an index leaves its array", l.kernel.Name)
	}
}
