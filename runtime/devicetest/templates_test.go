// Package devicetest_test runs every candidate of every hand-written kernel on a device: what tuning never picks here
// may be picked elsewhere.
package devicetest_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
)

// TestTemplateCandidates compares every candidate with the reference.
func TestTemplateCandidates(t *testing.T) {
	d, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer d.Close()
	seen := map[string]bool{}
	for _, o := range graph.Catalogue() {
		for n, c := range o.Cases() {
			node := nodeOf(t, c)
			template, ok := c.Op.Kernel(node).(graph.Template)
			if !ok {
				continue
			}
			seen[o.Name()] = true
			inputs, want := reference(c, node)
			for _, software := range []bool{false, true} {
				limits := graph.TemplateLimits{MaxInvocations: 256, MaxWorkgroupMemory: 16384, Software: software}
				for i, candidate := range template.Candidates(limits) {
					if software && i == 0 {
						continue // the naive one again
					}
					t.Run(fmt.Sprintf("%s/%d/%s/software=%v", o.Name(), n, candidate.Name, software), func(t *testing.T) {
						x := newTemplateRun(t, d, node, inputs)
						defer x.release()
						x.run(candidate)
						x.compare(want, c.Tolerance)
					})
				}
			}
		}
	}
	require.Contains(t, seen, "attention")
}

func nodeOf(t *testing.T, c graph.Case) (n *graph.Node) {
	_, err := graph.Build(func(b *graph.Builder) {
		var in []*graph.Value
		for i, typ := range c.Inputs {
			in = append(in, b.Input(fmt.Sprint(i), typ))
		}
		n = b.Apply(c.Op, in...)[0].Node
	})
	require.NoError(t, err)
	return n
}

// reference makes the inputs, rounded to f32, and the results that the op's reference gives.
func reference(c graph.Case, n *graph.Node) (in, out []*graph.Tensor) {
	fill := c.Fill
	if fill == nil {
		random := uint32(1)
		fill = func(i, _ int) float64 {
			random = random*1664525 + 1013904223
			if c.Inputs[i].DType.Float() {
				return float64(random)/(1<<30) - 2
			}
			return float64(random >> 30)
		}
	}
	for i, t := range c.Inputs {
		in = append(in, graph.NewTensor(t))
		for j := range in[i].Data {
			in[i].Data[j] = float64(float32(fill(i, j)))
		}
	}
	for _, v := range n.Outputs {
		out = append(out, graph.NewTensor(v.Type))
	}
	c.Op.Eval(in, out)
	return in, out
}

// templateRun holds the buffers of an op's arrays by name.
type templateRun struct {
	t       testing.TB
	d       device.Device
	n       *graph.Node
	buffers map[string]device.Buffer
	types   map[string]graph.Type
}

func newTemplateRun(t testing.TB, d device.Device, n *graph.Node, inputs []*graph.Tensor) *templateRun {
	x := &templateRun{t: t, d: d, n: n, buffers: map[string]device.Buffer{}, types: map[string]graph.Type{}}
	for i, in := range inputs {
		x.alloc(fmt.Sprint("in", i), in.Type, bits(in))
	}
	for i, v := range n.Outputs {
		// What is not written must show.
		x.alloc(fmt.Sprint("out", i), v.Type, slices.Repeat([]byte{0xff, 0xff, 0xff, 0x7f}, v.Shape.Len()))
	}
	return x
}

func (x *templateRun) alloc(name string, t graph.Type, data []byte) {
	b, err := x.d.Alloc(name, t.Bytes())
	require.NoError(x.t, err)
	require.NoError(x.t, x.d.Write(b, 0, data))
	x.buffers[name], x.types[name] = b, t
}

func (x *templateRun) release() {
	for _, b := range x.buffers {
		b.Release()
	}
}

// bits is a tensor as the device holds it.
func bits(t *graph.Tensor) []byte {
	var b []byte
	for _, v := range t.Data {
		u := uint32(v)
		if t.DType == graph.F32 {
			u = math.Float32bits(float32(v))
		}
		b = binary.LittleEndian.AppendUint32(b, u)
	}
	return b
}

// load compiles a candidate into a program.
func (x *templateRun) load(c graph.Candidate) device.Loaded {
	for i, t := range c.Scratch {
		x.alloc(fmt.Sprint("tmp", i), t, slices.Repeat([]byte{0xff}, int(t.Bytes())))
	}
	p := &device.Program{Label: c.Name}
	for _, pass := range c.Passes {
		groups := [3]int{min(pass.Groups, 65535), (pass.Groups + 65534) / 65535, 1}
		command := device.Command{Shader: len(p.Shaders), Groups: groups}
		for _, name := range pass.Uses {
			b := x.buffers[name]
			require.NotNil(x.t, b, name)
			command.Args = append(command.Args, device.Range{Buffer: b, Size: b.Size()})
		}
		p.Shaders = append(p.Shaders, device.Shader{
			Label: c.Name, WGSL: x.wgsl(pass, groups[0]), Bindings: make([]device.Access, len(pass.Uses)),
			Workgroup: [3]int{pass.Workgroup, 1, 1}, WorkgroupMemory: pass.WorkgroupMemory,
		})
		p.Commands = append(p.Commands, command)
	}
	l, err := x.d.Load(p)
	require.NoError(x.t, err)
	return l
}

func (x *templateRun) run(c graph.Candidate) {
	l := x.load(c)
	defer l.Release()
	require.NoError(x.t, x.d.Run(l))
	require.NoError(x.t, x.d.Sync())
}

// wgsl wraps a pass as its documentation says.
func (x *templateRun) wgsl(p graph.Pass, groupsX int) string {
	var b strings.Builder
	for i, name := range p.Uses {
		element := x.types[name].DType.String()
		if slices.Contains(p.Vec4, name) {
			element = "vec4<" + element + ">"
		}
		fmt.Fprintf(&b, "@group(0) @binding(%d) var<storage, read_write> %s: array<%s>;\n", i, name, element)
	}
	fmt.Fprintf(&b, `%s
@compute @workgroup_size(%d)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
let group = workgroup.x + workgroup.y * %du;
if (group >= %du) { return; }
%s}
`, p.Declarations, p.Workgroup, groupsX, p.Groups, p.Body)
	return b.String()
}

// compare checks every result against the reference, relative to the result's largest magnitude.
func (x *templateRun) compare(want []*graph.Tensor, tolerance float64) {
	if tolerance == 0 {
		tolerance = 2e-6
	}
	for i, w := range want {
		name := fmt.Sprint("out", i)
		pending, err := x.d.Read(x.buffers[name], 0, x.buffers[name].Size())
		require.NoError(x.t, err)
		raw, err := pending.Wait()
		require.NoError(x.t, err)
		largest := 0.0
		for _, v := range w.Data {
			largest = max(largest, math.Abs(v))
		}
		for j, v := range w.Data {
			u := binary.LittleEndian.Uint32(raw[4*j:])
			got := float64(u)
			if w.DType == graph.F32 {
				got = float64(math.Float32frombits(u))
			}
			require.LessOrEqual(x.t, math.Abs(got-v), tolerance*max(largest, 1e-6), "%s[%d] is %v, expected %v", name, j, got, v)
		}
	}
}

// BenchmarkAttention reports GFLOP/s of each candidate, forward and backward, of the causal half.
func BenchmarkAttention(b *testing.B) {
	d, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(b, err)
	defer d.Close()
	limits := graph.TemplateLimits{MaxInvocations: 256, MaxWorkgroupMemory: 16384, Software: d.Info().Kind == device.Software}
	for _, s := range [][4]int{{16, 128, 4, 32}, {8, 256, 6, 64}} {
		batch, length, heads, dim := s[0], s[1], s[2], s[3]
		q, lse := graph.T(graph.F32, batch, length, heads, dim), graph.T(graph.F32, batch, heads, length)
		flops := 2 * float64(batch*length*length*heads*dim)
		for _, c := range []struct {
			graph.Case
			flops float64
		}{
			{graph.Case{Op: new(op.AttentionOp), Inputs: []graph.Type{q, q, q}}, flops},
			{graph.Case{Op: new(op.AttentionGradOp), Inputs: []graph.Type{q, q, q, q, lse, q}}, 2.5 * flops},
		} {
			var n *graph.Node
			_, err := graph.Build(func(b *graph.Builder) {
				var in []*graph.Value
				for i, typ := range c.Inputs {
					in = append(in, b.Input(fmt.Sprint(i), typ))
				}
				n = b.Apply(c.Op, in...)[0].Node
			})
			require.NoError(b, err)
			var in []*graph.Tensor
			for _, t := range c.Inputs {
				in = append(in, graph.NewTensor(t))
			}
			for _, candidate := range c.Op.Kernel(n).(graph.Template).Candidates(limits) {
				b.Run(fmt.Sprintf("%s/%d/%s", c.Op.Name(), dim, candidate.Name), func(b *testing.B) {
					benchmark(b, d, n, in, candidate, c.flops)
				})
			}
		}
	}
}

func benchmark(b *testing.B, d device.Device, n *graph.Node, in []*graph.Tensor, c graph.Candidate, flops float64) {
	x := newTemplateRun(b, d, n, in)
	defer x.release()
	start := time.Now()
	l := x.load(c)
	require.NoError(b, d.Run(l))
	require.NoError(b, d.Sync())
	compile := time.Since(start).Seconds()
	defer l.Release()
	best := time.Hour
	cpu := time.Hour
	for b.Loop() {
		start := time.Now()
		c0 := cpuTime()
		require.NoError(b, d.Run(l))
		require.NoError(b, d.Sync())
		best = min(best, time.Since(start))
		cpu = min(cpu, cpuTime()-c0)
	}
	b.ReportMetric(float64(cpu.Microseconds())/2000, "halfcpu-ms")
	b.ReportMetric(float64(best.Microseconds())/1000, "best-ms")
	b.ReportMetric(compile, "compile-s")
	b.ReportMetric(flops/best.Seconds()/1e9, "GFLOP/s")
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(0, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
