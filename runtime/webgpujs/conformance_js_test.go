package webgpujs

import (
	"slices"
	"syscall/js"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/compute"
)

// What runs here is small, since browsers without a GPU compute very slowly: tasks of at most so many elements, and so
// many random graphs. A software adapter makes the first run of each claim and kernel variant of an op. The browser's
// compiler takes the other kernels in TestKernelsAreValid, and the native backend runs them.
const (
	maxElements  = 2000
	randomGraphs = 12
)

func small(tasks []compute.Task) []compute.Task {
	return slices.DeleteFunc(tasks, func(t compute.Task) bool {
		n := 0
		for _, m := range []map[string]*graph.Tensor{t.Inputs, t.Variables} {
			for _, x := range m {
				n += len(x.Data)
			}
		}
		return n > maxElements
	})
}

func TestConformance(t *testing.T) {
	d := open(t, 0)
	claims := compute.Claims(d)
	check := func(name string, tasks []compute.Task) {
		t.Run(name, func(t *testing.T) {
			if len(tasks) == 0 {
				t.Error("no task is small enough")
			}
			for _, r := range claims(tasks) {
				if !r.OK() {
					t.Errorf("%s %s (%s): %s", r.Op, r.Case, r.Candidate, r.Failure)
				}
			}
		})
	}
	for _, o := range op.Catalogue() {
		if cases := compute.Cases(o); len(cases) > 0 { // sources have none
			check(o.Name(), small(cases))
		}
	}
	check("graphs", small(compute.Graphs()))
	check("chains", small(compute.Chains(randomGraphs)))
}

// hardware reports a software adapter as a GPU.
type hardware struct{ device.Device }

func (d hardware) Info() device.Info {
	info := d.Device.Info()
	info.Kind = device.Discrete
	return info
}

func (d hardware) Limits() target.Limits {
	l := d.Device.Limits()
	l.Software = false
	return l
}

// The browser's compiler, which is stricter than naga about barriers, takes every kernel, and those that are for GPUs.
// Of kernels that differ in numbers only, it takes one.
func TestKernelsAreValid(t *testing.T) {
	d := open(t, 0)
	tasks := slices.Concat(compute.Graphs(), compute.Chains(randomGraphs))
	for _, o := range op.Catalogue() {
		tasks = append(tasks, compute.Cases(o)...)
	}
	texts, modules := map[string]string{}, map[string]js.Value{}
	invalid := d.scoped(func() {
		for _, dev := range []device.Device{d, hardware{d}} {
			for key, text := range compute.Texts(dev, tasks) {
				if _, ok := texts[key]; !ok {
					texts[key], modules[key] = text, d.gpu.Call("createShaderModule", object{"code": text})
				}
			}
		}
	})
	if len(texts) < 1000 {
		t.Errorf("there are only %d kernels", len(texts))
	}
	err := invalid()
	if err == nil {
		return
	}
	t.Error(err)
	for key, module := range modules {
		if c := complaint(module); c != "" {
			t.Errorf("%s\n%s", c, texts[key])
		}
	}
}

// The browser's compiler, which is stricter than naga about barriers, and another software adapter take the kernels
// that are for GPUs.
func TestKernelsForGPUs(t *testing.T) {
	d := hardware{open(t, 0)}
	f32 := func(shape ...int) graph.Type { return graph.T(graph.F32, shape...) }
	tasks := []compute.Task{
		compute.Case(graph.Case{Op: new(op.MatMulOp), Inputs: []graph.Type{f32(32, 20), f32(20, 36)}}),
		compute.Case(graph.Case{Op: new(op.MatMulOp), Inputs: []graph.Type{f32(2, 300), f32(300, 35)}, Tolerance: 1e-5}),
		compute.Case(graph.Case{Op: &op.MatMulOp{TransB: true}, Inputs: []graph.Type{f32(2, 70), f32(35, 70)}, Tolerance: 1e-5}),
	}
	for _, o := range []graph.Op{new(op.AttentionOp), new(op.AttentionGradOp)} {
		segmented := slices.IndexFunc(o.Cases(), func(c graph.Case) bool {
			last := c.Inputs[len(c.Inputs)-1]
			return last.Equal(graph.T(graph.U32, 2, 33))
		})
		tasks = append(tasks, compute.Case(o.Cases()[segmented+1])) // of several documents
	}
	found := map[string]bool{}
	for _, r := range compute.Check(d, tasks) {
		found[r.Candidate] = true
		if !r.OK() {
			t.Errorf("%s %s (%s): %s", r.Op, r.Case, r.Candidate, r.Failure)
		}
	}
	for _, name := range []string{"tile 32x32x16/64", "tile 32x32x16/64 split 2", "vector 4x16", "vector 64x1", "rows", "tiles"} {
		if !found[name] {
			t.Errorf("there is no kernel %q among %v", name, found)
		}
	}
}
