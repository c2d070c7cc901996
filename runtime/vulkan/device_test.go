//go:build linux

package vulkan

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	vk "github.com/vulkan-go/vulkan"
)

// cacheDir is shared by the tests, so that the translator is compiled once.
var cacheDir string

func TestMain(m *testing.M) {
	if os.Getenv(mistakes) != "" {
		if err := makeMistakes(); err != nil {
			panic(err)
		}
		return
	}
	var err error
	if cacheDir, err = os.MkdirTemp("", "gpupipe-vulkan"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(cacheDir)
	os.Exit(code)
}

func opened(t *testing.T, budget int64) device.Device {
	t.Helper()
	d, err := Open(0, Options{CacheDir: cacheDir, MemoryBudget: budget})
	require.NoError(t, err, "these tests need an adapter: a GPU, or Mesa's lavapipe")
	return d
}

func open(t testing.TB, o Options) *Device {
	t.Helper()
	d, err := Open(0, o)
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

func TestRefusals(t *testing.T) { contract.Run(t, opened) }

func TestExecution(t *testing.T) { contract.Execute(t, opened) }

func TestTimer(t *testing.T) {
	tier.Rest(t)
	contract.Timer(t, opened)
}

func TestAdapters(t *testing.T) {
	found, err := Adapters()
	require.NoError(t, err)
	require.NotEmpty(t, found, "these tests need an adapter: a GPU, or Mesa's lavapipe")
	last := 0
	for i, a := range found {
		t.Logf("%+v", a)
		assert.Equal(t, fmt.Sprintf("vulkan:%d", i), a.Name)
		assert.NotEmpty(t, a.Adapter)
		assert.NotEmpty(t, a.Driver)
		assert.GreaterOrEqual(t, a.Kind.Order(), last, "hardware comes first")
		last = a.Kind.Order()
		least := target.DefaultLimits()
		assert.GreaterOrEqual(t, a.Limits.MaxBindings, least.MaxBindings)
		assert.GreaterOrEqual(t, a.Limits.MaxBindingSize, least.MaxBindingSize-4) // Vulkan promises a byte less
		assert.GreaterOrEqual(t, a.Limits.MaxWorkgroupMemory, least.MaxWorkgroupMemory)
		assert.LessOrEqual(t, a.Limits.OffsetAlignment, least.OffsetAlignment)
		assert.GreaterOrEqual(t, a.Limits.MaxDispatchDimension, 65535)
		assert.Positive(t, a.Subgroup[0])
		assert.GreaterOrEqual(t, a.Subgroup[1], a.Subgroup[0])
		if a.Subgroup[0] == a.Subgroup[1] {
			assert.Equal(t, a.Subgroup[0], a.Limits.SubgroupSize)
		}
		for _, m := range a.Limits.Cooperative {
			assert.Positive(t, a.Limits.SubgroupSize)
			assert.Contains(t, a.Matrices, Matrix{M: m.M, N: m.N, K: m.K, A: m.Input, B: m.Input, C: "f32", Result: m.Result,
				Scope: "subgroup"})
		}
		for _, f := range a.Limits.Flexible {
			assert.Contains(t, a.Flexible, Flexible{Matrix{M: f.M, N: f.N, K: f.K, A: f.Input, B: f.Input, C: "f32", Result: f.Result,
				Scope: "workgroup"}, f.Invocations})
			assert.Positive(t, min(f.M, f.N, f.K, f.Invocations))
		}
		require.NotEmpty(t, a.Heaps)
		for _, h := range a.Heaps {
			assert.Positive(t, h.Bytes)
			assert.NotEmpty(t, h.Types)
		}
	}
	for _, index := range []int{-1, len(found)} {
		_, err = Open(index, Options{})
		require.ErrorContains(t, err, fmt.Sprintf("vulkan:%d: no such adapter; there are: vulkan:0 (%s)", index, found[0].Adapter))
	}
	assert.ErrorContains(t, unknownAdapter("vulkan:0", nil), "no GPU with Vulkan 1.2 was found")
}

func TestNoDriver(t *testing.T) {
	for _, name := range []string{"VK_DRIVER_FILES", "VK_ICD_FILENAMES"} {
		t.Setenv(name, filepath.Join(t.TempDir(), "none.json"))
	}
	found, err := Adapters()
	require.NoError(t, err)
	assert.Empty(t, found)
	_, err = Open(0, Options{})
	assert.ErrorContains(t, err, "vulkan:0: the Vulkan loader finds no driver")
}

func TestDamagedManifest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cut.json")
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	for _, name := range []string{"VK_DRIVER_FILES", "VK_ICD_FILENAMES"} {
		t.Setenv(name, path)
	}
	_, err := Adapters()
	if err == nil { // a newer loader passes over it
		_, err = Open(0, Options{})
		require.ErrorContains(t, err, "the Vulkan loader finds no driver")
		return
	}
	assert.ErrorContains(t, err, "a driver's manifest may be damaged")
}

func TestFailuresAreErrors(t *testing.T) {
	assert.NoError(t, failure(vk.Success))
	assert.NoError(t, failure(vk.Incomplete))
	assert.ErrorIs(t, failure(vk.ErrorOutOfDeviceMemory), device.ErrOutOfMemory)
	assert.ErrorIs(t, failure(vk.ErrorOutOfHostMemory), device.ErrOutOfMemory)
	assert.ErrorIs(t, failure(vk.ErrorDeviceLost), device.ErrLost)
	assert.ErrorContains(t, failure(vk.ErrorIncompatibleDriver), "incompatible driver")
	assert.ErrorContains(t, failure(-1000), "unknown -1000")
}

func TestSourcesAreCompiledOnce(t *testing.T) {
	d := open(t, Options{CacheDir: cacheDir})
	b := alloc(t, d, 256)
	for range 2 {
		contract.Load(t, d, contract.Increments(b, 3))
	}
	assert.Len(t, d.kernels.pipelines, 1)
	assert.Len(t, d.kernels.layouts, 1)
}

// An allocation that the driver refuses returns the same error as the budget, and the device still works.
func TestOutOfMemory(t *testing.T) {
	d := open(t, Options{CacheDir: cacheDir, MemoryBudget: 1 << 62})
	limits := d.Limits()
	limits.MaxBufferSize = 1 << 60
	d.owner.Describe(d.Info(), limits, 1<<62)
	_, err := d.Alloc("huge", 1<<50)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
	require.ErrorContains(t, err, `vulkan:0: alloc "huge": out of device memory`)
	b := alloc(t, d, 256)
	require.NoError(t, d.Run(contract.Load(t, d, contract.Increments(b, 1))))
	assert.EqualValues(t, 1, contract.Words(contract.Read(t, d, b, 0, 4))[0])
}

// There is a barrier where a command depends on another, and nowhere else.
func TestHazards(t *testing.T) {
	a, b := &buffer{}, &buffer{}
	r := func(x *buffer, offset, size int64, writes bool) access {
		return access{device.Range{Buffer: x, Offset: offset, Size: size}, writes}
	}
	var h hazards
	assert.False(t, h.add(r(a, 0, 64, true), r(b, 0, 64, false)))
	assert.False(t, h.add(r(a, 64, 64, true), r(b, 32, 64, false)), "two reads, and writes side by side")
	assert.True(t, h.add(r(b, 0, 4, true)), "written after it was read")
	assert.False(t, h.add(r(a, 0, 64, false)), "the barrier before was for this one too")
	assert.True(t, h.add(r(b, 0, 4, false)), "read after it was written")
	assert.False(t, h.add(r(a, 60, 8, true), r(a, 0, 4, false)))
	assert.True(t, h.add(r(a, 64, 4, true)), "written twice")
}

// Commands that read one range and write others need no barrier. Commands that depend on them do.
func TestBarriersFollowTheCode(t *testing.T) {
	d := open(t, Options{CacheDir: cacheDir})
	b := alloc(t, d, 4096)
	s := device.Shader{Label: "copy", Workgroup: [3]int{64, 1, 1}, Bindings: make([]device.Access, 2), Source: `
@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(local_invocation_index) l: u32) { y[l] = x[l] + 1u; }`}
	p, err := d.kernels.compile(&s)
	require.NoError(t, err)
	assert.Equal(t, []use{read, written}, p.use)
	at := func(i int64) device.Range { return device.Range{Buffer: b, Offset: i * 256, Size: 256} }
	program := &device.Program{Label: "chain", Shaders: []device.Shader{s}}
	for i := range int64(15) { // each needs the one before
		program.Commands = append(program.Commands, device.Command{Args: []device.Range{at(i), at(i + 1)}, Groups: [3]int{1, 1, 1}})
	}
	require.NoError(t, d.Run(contract.Load(t, d, program)))
	assert.EqualValues(t, 15, contract.Words(contract.Read(t, d, b, 15*256, 256))[63])
}

func TestBlocksAreShared(t *testing.T) {
	d := open(t, Options{CacheDir: cacheDir})
	var all []device.Buffer
	for range 1000 {
		all = append(all, alloc(t, d, 4096+256))
	}
	assert.Len(t, d.heap.blocks, 1)
	large := alloc(t, d, alone)
	assert.Len(t, d.heap.blocks, 2)
	large.Release()
	for i := range all { // every other one first
		all[(2*i)%1000+(2*i)/1000].Release()
	}
	require.NoError(t, d.Sync())
	d.mu.Lock()
	d.queue.look()
	require.Len(t, d.heap.blocks, 1, "one is kept")
	assert.True(t, d.heap.blocks[0].empty())
	assert.Equal(t, []hole{{0, blockSize}}, d.heap.blocks[0].holes)
	d.mu.Unlock()
}

// lose is what the driver's report of a lost device leads to.
func lose(d *Device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = d.lose(device.ErrLost)
}

func TestLoss(t *testing.T) {
	d := open(t, Options{CacheDir: cacheDir})
	b := alloc(t, d, 16<<20)
	l := contract.Load(t, d, contract.Increments(b, 1))
	require.NoError(t, d.Run(l))
	r, err := d.Read(b, 0, 8<<20)
	require.NoError(t, err)
	lose(d)
	if _, err = r.Wait(); err != nil { // it may have completed before
		assert.ErrorIs(t, err, device.ErrLost)
	}
	contract.Lost(t, d, b, l, `vulkan:0: run "increments": device lost`)
}

// The bindings keep lists of structs with finalizers, which may free them while the driver reads them.
func TestLoadingSurvivesTheCollector(t *testing.T) {
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case <-done:
				return
			default:
				runtime.GC()
			}
		}
	}()
	for range 3 {
		d := open(t, Options{CacheDir: cacheDir})
		b := alloc(t, d, 256)
		want := 0
		for i := range 40 {
			s := contract.Increment(1)
			s.Source = strings.Replace(s.Source, "1u", fmt.Sprint(i, "u"), 1)
			p := contract.Increments(b, 2)
			p.Shaders[0] = s
			require.NoError(t, d.Run(contract.Load(t, d, p)))
			want += 2 * i
		}
		assert.EqualValues(t, want, contract.Words(contract.Read(t, d, b, 0, 4))[0])
	}
}

// Compiled shaders are there for the next process. Damaged files are compiled again. The translator, which takes
// longest, is damaged once: the tests of codecache, which checks its files, have other damage.
func TestCaches(t *testing.T) {
	tier.Rest(t)
	dir := filepath.Join(t.TempDir(), "cache")
	run := func() int {
		d, err := Open(0, Options{CacheDir: dir})
		require.NoError(t, err)
		b := alloc(t, d, 256)
		require.NoError(t, d.Run(contract.Load(t, d, contract.Increments(b, 2))))
		assert.EqualValues(t, 2, contract.Words(contract.Read(t, d, b, 0, 4))[0])
		defer func() { require.NoError(t, d.Close()) }()
		return d.kernels.compiler.Translated()
	}
	assert.Equal(t, 1, run())
	assert.Zero(t, run())
	pipelines, err := filepath.Glob(filepath.Join(dir, "pipelines-*"))
	require.NoError(t, err)
	require.Len(t, pipelines, 1)
	for i, damage := range [][]byte{[]byte("short"), nil, make([]byte, 5000)} {
		require.NoError(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
			if i > 0 && e != nil && e.Name() == "naga" {
				return filepath.SkipDir
			}
			if err == nil && !e.IsDir() {
				err = os.WriteFile(path, damage, 0o600)
			}
			return err
		}))
		assert.Equal(t, 1, run())
		assert.Zero(t, run())
	}
}

func TestLeaving(t *testing.T) { contract.Leaving(t, opened(t, 0)) }

// On a GPU, a kernel that promises in-bounds indices is compiled without checks, apart from the same text with checks.
func TestTrusted(t *testing.T) {
	d, err := Open(0, Options{CacheDir: cacheDir})
	require.NoError(t, err)
	defer d.Close()
	require.True(t, d.adapter.trusts, "Mesa's drivers have VK_EXT_pipeline_robustness")
	for _, kind := range []device.Kind{device.Software, device.Discrete} {
		info := d.Info()
		info.Kind = kind
		d.owner.Describe(info, d.Limits(), d.Budget())
		s := device.Shader{Label: "indices", Workgroup: [3]int{4, 1, 1}, Bindings: make([]device.Access, 1),
			WorkgroupMemory: 16, Inside: true, Source: `
@group(0) @binding(0) var<storage, read_write> x: array<u32>;
var<workgroup> w: array<u32, 4>;
@compute @workgroup_size(4) fn main(@builtin(local_invocation_index) i: u32) {
  w[i] = x[i] + 1u;
  workgroupBarrier();
  x[i] = w[3u - i];
}`}
		b, err := d.Alloc("x", 16)
		require.NoError(t, err)
		require.NoError(t, d.Write(b, 0, []byte{1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0}))
		l, err := d.Load(&device.Program{Label: "p", Shaders: []device.Shader{s}, Commands: []device.Command{
			{Args: []device.Range{{Buffer: b, Size: 16}}, Groups: [3]int{1, 1, 1}}}})
		require.NoError(t, err)
		require.NoError(t, d.Run(l))
		p, err := d.Read(b, 0, 16)
		require.NoError(t, err)
		got, err := p.Wait()
		require.NoError(t, err)
		assert.Equal(t, []byte{5, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0}, got, kind)
		l.Release()
	}
	assert.Len(t, d.kernels.pipelines, 2)
}
