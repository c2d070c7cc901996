package compute_test

import (
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/compute"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/vulkan"
	"github.com/gpupipe/gpupipe/shaders"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// shuffled gives the work of each invocation of a workgroup to another. Software adapters run subgroups one after the
// other and the lanes of one in step, from barrier to barrier: where a barrier is missing, what is read too early
// depends on who does it.
type shuffled struct{ hardware }

// order is Source: the invocation that takes the place of at. Many a later one comes first, and neighbours are in
// subgroups far apart.
func order(lanes string) string { return fmt.Sprintf("(at * 37u + 11u) %% (%s)", lanes) }

var (
	flatHead = regexp.MustCompile(`(@workgroup_size\((\d+)\) fn main\(.*@builtin\(local_invocation_index\)) lane: u32\) \{\n`)
	gridHead = regexp.MustCompile(`(@workgroup_size\((\d+), (\d+)\)\nfn main\(.*@builtin\(local_invocation_id\)) l: vec3<u32>\) \{\n`)
)

// text rewrites a kernel whose invocations share memory; others are independent of each other.
func (d shuffled) text(wgsl string) string {
	if !strings.Contains(wgsl, "Barrier()") {
		return wgsl
	}
	if m := flatHead.FindStringSubmatch(wgsl); m != nil {
		return flatHead.ReplaceAllString(wgsl, "$1 at: u32) {\n  let lane = "+order(m[2]+"u")+";\n")
	}
	m := gridHead.FindStringSubmatch(wgsl)
	lanes := fmt.Sprintf("(%su * %su)", m[2], m[3])
	return gridHead.ReplaceAllString(wgsl, fmt.Sprintf("$1 grid: vec3<u32>) {\nlet at = grid.y * %[1]su + grid.x; let shuffled = %[2]s; let l = vec3<u32>(shuffled %% %[1]su, shuffled / %[1]su, 0u);\n", m[2], order(lanes)))
}

func (d shuffled) Load(p *device.Program) (device.Loaded, error) {
	other := *p
	other.Shaders = slices.Clone(p.Shaders)
	for i, s := range other.Shaders {
		other.Shaders[i].Source = d.text(s.Source)
	}
	return d.hardware.Load(&other)
}

// numbered chooses candidates by number, and notes how many there are.
type numbered struct {
	i    int
	most *int
}

func (c numbered) Choose(_ device.Device, _ string, ks []shaders.Kernel, _ int) (int, error) {
	*c.most = max(*c.most, len(ks))
	return min(c.i, len(ks)-1), nil
}

// unzeroed is a device that leaves workgroup memory as it was, as WebGPU does not.
func unzeroed(t *testing.T) device.Device {
	if runtime.GOOS != "linux" {
		t.Skip("Vulkan is used on Linux only")
	}
	d, err := vulkan.Open(0, vulkan.Options{CacheDir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	return d
}

// TestKernelsMissNoBarrier runs every kind of kernel whose invocations share memory with its invocations in another
// order, which may change no bit. It needs a driver: translated into C, invocations also wait where a loop around a
// barrier begins and ends. So it compares with the reference, too.
func TestKernelsMissNoBarrier(t *testing.T) {
	tier.Rest(t)
	d := unzeroed(t)
	f32 := func(shape ...int) graph.Type { return graph.T(graph.F32, shape...) }
	apply := func(o graph.Op) func(b *graph.Builder, in []*graph.Value) []*graph.Value {
		return func(b *graph.Builder, in []*graph.Value) []*graph.Value { return b.Apply(o, in...) }
	}
	for _, c := range []struct {
		name   string
		inputs []graph.Type
		build  func(*graph.Builder, []*graph.Value) []*graph.Value
		want   []string // of kernels that share memory
	}{
		{"softmax", []graph.Type{f32(3, 300)}, apply(new(op.SoftmaxOp)), []string{"workgroup32", "workgroup256"}},
		{"long rows", []graph.Type{f32(2, 5000)}, sumOver(1), []string{"spread4"}},
		{"long columns", []graph.Type{f32(2000, 3)}, sumOver(0), []string{"spread125"}},
		{"products", []graph.Type{f32(70, 40), f32(40, 68)}, apply(new(op.MatMulOp)),
			[]string{"tile 32x32x16/64", "tile 64x64x16/256", "tile 128x64x16/128", "tile 128x128x8/256"}},
		{"vectors", []graph.Type{f32(2, 300), f32(300, 70)}, apply(new(op.MatMulOp)), []string{"vector 4x16", "vector 8x32"}},
		{"columns", []graph.Type{f32(2, 300), f32(70, 300)}, apply(&op.MatMulOp{TransB: true}),
			[]string{"vector 64x1", "vector 32x8", "vector 16x4"}},
		{"attention", []graph.Type{f32(1, 70, 2, 4), f32(1, 70, 1, 4), f32(1, 70, 1, 4), graph.T(graph.U32, 1, 70)},
			attentionWithGradients, []string{"rows", "tiles"}},
		{"attention of many lanes", []graph.Type{f32(1, 48, 2, 44), f32(1, 48, 1, 44), f32(1, 48, 1, 44), graph.T(graph.U32, 1, 48)},
			attentionWithGradients, []string{"rows", "tiles"}},
		{"attention of a cache", []graph.Type{f32(1, 2, 2, 8), f32(1, 2100, 1, 8), f32(1, 2100, 1, 8)}, attentionOfACache,
			[]string{"keys"}},
		{"qr", []graph.Type{f32(2, 70, 65)}, apply(new(op.QROp)), []string{"householder"}},
		{"eigh", []graph.Type{f32(2, 70, 70)}, apply(new(op.EighOp)), []string{"householder_ql"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, err := graph.Build(func(b *graph.Builder) {
				in := inputs(b, c.inputs)
				for i, y := range c.build(b, in) {
					b.Output(fmt.Sprint("y", i), y)
				}
			})
			require.NoError(t, err)
			inOrders(t, d, g, graph.Case{Inputs: c.inputs}.Values(3), c.want)
		})
	}
}

func sumOver(axis int) func(*graph.Builder, []*graph.Value) []*graph.Value {
	return func(_ *graph.Builder, in []*graph.Value) []*graph.Value {
		return []*graph.Value{op.Sum(in[0], []int{axis}, false)}
	}
}

func attentionWithGradients(_ *graph.Builder, in []*graph.Value) []*graph.Value {
	y := op.SegmentedAttention(in[0], in[1], in[2], in[3])
	return append(autodiff.Gradients(op.Sum(op.Square(y), nil, false), nil, in[:3]...), y)
}

func attentionOfACache(b *graph.Builder, in []*graph.Value) []*graph.Value {
	return b.Apply(&op.AttentionOp{Form: op.FromPosition}, in[0], in[1], in[2], op.Full(b, graph.U32, 2000, 1))
}

// inOrders computes a graph by each of the named candidates, which share memory, in both orders.
func inOrders(t *testing.T, d device.Device, g *graph.Graph, inputs []*graph.Tensor, want []string) {
	t.Helper()
	most := 1
	var seen []string
	for i := 0; i < most && len(seen) < len(want); i++ {
		choose := numbered{i, &most}
		names := slices.DeleteFunc(sharing(t, d, g, choose), func(name string) bool { return !slices.Contains(want, name) })
		if len(names) > 0 {
			assert.Equal(t, computed(t, hardware{d}, g, inputs, choose), computed(t, shuffled{hardware{d}}, g, inputs, choose), "%v", names)
			task := compute.Task{Op: fmt.Sprint(names), Graph: g, Inputs: map[string]*graph.Tensor{}, Runs: 1, Tolerance: 1e-4}
			for i, x := range inputs {
				task.Inputs[fmt.Sprint("x", i)] = x
			}
			for _, r := range compute.CheckOnce(hardware{d}, []compute.Task{task}, choose) {
				assert.True(t, r.OK(), "%v: %s", r.Candidate, r.Failure)
			}
		}
		seen = append(seen, names...)
	}
	assert.ElementsMatch(t, want, seen)
}

// sharing are the chosen kernels with invocations that share memory.
func sharing(t *testing.T, d device.Device, g *graph.Graph, choose exec.Chooser) (names []string) {
	t.Helper()
	g, err := graph.Expand(g)
	require.NoError(t, err)
	p, err := exec.NewPlan(hardware{d}, map[string]*graph.Graph{"g": g}, exec.Options{Tune: choose})
	require.NoError(t, err)
	chosen, err := p.Chosen("g")
	require.NoError(t, err)
	for _, k := range chosen {
		if slices.ContainsFunc(k.Passes, func(p shaders.Pass) bool { return strings.Contains(p.Source, "Barrier()") }) &&
			!slices.Contains(names, k.Name) {
			names = append(names, k.Name)
		}
	}
	return names
}

// careless leaves out the first barrier of a kernel.
type careless struct{ device.Device }

func (d careless) Load(p *device.Program) (device.Loaded, error) {
	other := *p
	other.Shaders = slices.Clone(p.Shaders)
	for i, s := range other.Shaders {
		other.Shaders[i].Source = strings.Replace(s.Source, "workgroupBarrier();", "", 1)
	}
	return d.Device.Load(&other)
}

// Without its first barrier, a sum over a workgroup depends on the order of its invocations.
func TestAnotherOrderFindsAMissingBarrier(t *testing.T) {
	tier.Rest(t)
	d := unzeroed(t)
	x := graph.Case{Inputs: []graph.Type{graph.T(graph.F32, 3, 300)}}
	g, err := graph.Build(func(b *graph.Builder) { b.Output("y", op.Mean(b.Input("x0", x.Inputs[0]), []int{1}, false)) })
	require.NoError(t, err)
	run := func(d device.Device) map[string][]byte { return computed(t, d, g, x.Values(3), named("workgroup256")) }
	right := run(hardware{d})
	assert.Equal(t, right, run(shuffled{hardware{d}}))
	assert.NotEqual(t, right, run(shuffled{hardware{careless{d}}}))
}
