package compute

import (
	"fmt"
	"maps"
	"math"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Task is a graph with its inputs. The device runs it Runs times, and the outputs and variables are compared with the
// reference.
type Task struct {
	Op, Name  string
	Claim     string // what only tasks with this op and claim show, whatever their kernels: see coverage
	Graph     *graph.Graph
	Inputs    map[string]*graph.Tensor
	Variables map[string]*graph.Tensor // names must differ between tasks
	Runs      int
	Tolerance float64 // relative to the largest magnitude of the reference, or to Floor if that is larger
	Floor     float64
}

// Result is the outcome of one task with one set of kernel variants.
type Result struct {
	Op        string  `json:"op"`
	Case      string  `json:"case"` // the inputs' types, or the name of a graph
	Candidate string  `json:"candidate"`
	Error     float64 `json:"error"` // largest, relative to the reference's largest magnitude
	Tolerance float64 `json:"tolerance"`
	Failure   string  `json:"failure,omitempty"`
}

// OK reports whether the task passed.
func (r Result) OK() bool { return r.Failure == "" }

// The tasks that share a plan, and the bytes of their inputs and variables. One compilation and one upload are cheaper
// than many, but memory is finite.
const batchTasks, batchBytes = 32, 64 << 20

// batches groups tasks that run together.
func batches(tasks []Task) [][]Task {
	var out [][]Task
	var bytes int64
	for _, t := range tasks {
		var n int64
		for _, v := range t.tensors() {
			n += v.Type.Bytes()
		}
		if last := len(out) - 1; last >= 0 && len(out[last]) < batchTasks && bytes+n <= batchBytes {
			out[last], bytes = append(out[last], t), bytes+n
		} else {
			out, bytes = append(out, []Task{t}), n
		}
	}
	return out
}

func (t *Task) tensors() []*graph.Tensor {
	return slices.Concat(slices.Collect(maps.Values(t.Inputs)), slices.Collect(maps.Values(t.Variables)))
}

// run executes tasks as programs of one plan and returns a result for each. If the plan as a whole fails, each task is
// tried alone, so that the result names the one at fault.
func run(dev device.Device, tasks []Task, choose func(Task) exec.Chooser) []Result {
	if len(tasks) > 1 {
		if results, err := attempt(dev, tasks, choose(tasks[0])); err == nil {
			return results
		}
		var results []Result
		for _, t := range tasks {
			results = append(results, run(dev, []Task{t}, choose)...)
		}
		return results
	}
	results, err := attempt(dev, tasks, choose(tasks[0]))
	if err != nil {
		t := tasks[0]
		return []Result{{Op: t.Op, Case: t.Name, Tolerance: t.Tolerance, Failure: err.Error()}}
	}
	return results
}

func attempt(dev device.Device, tasks []Task, choose exec.Chooser) (results []Result, err error) {
	defer caught(&err)
	graphs := map[string]*graph.Graph{}
	for i, t := range tasks {
		graphs[program(i)] = t.Graph
	}
	plan, err := exec.NewPlan(dev, graphs, exec.Options{Tune: choose})
	if err != nil {
		return nil, err
	}
	s, err := plan.Load()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	reads := make([]map[string]device.Pending, len(tasks))
	for i, t := range tasks {
		if reads[i], err = start(s, program(i), t); err != nil {
			return nil, err
		}
	}
	for i, t := range tasks {
		kernels := plan.Kernels(program(i))
		r := Result{Op: t.Op, Case: t.Name, Tolerance: t.Tolerance, Candidate: candidate(kernels)}
		for _, k := range kernels {
			r.Tolerance = max(r.Tolerance, k.Tolerance)
		}
		if err := r.check(t, reads[i]); err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	return results, nil
}

// caught turns a panic, which is a broken invariant, into a failure of the task.
func caught(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
	}
}

func program(i int) string { return fmt.Sprintf("task%03d", i) }

// candidate names the chosen kernels.
func candidate(ks []exec.KernelInfo) string {
	var names []string
	for _, k := range ks {
		if !slices.Contains(names, k.Candidate) {
			names = append(names, k.Candidate)
		}
	}
	return strings.Join(names, " ")
}

// live returns the nodes that an output or a variable depends on. A device does not keep the other sources.
func live(g *graph.Graph) map[*graph.Node]bool {
	found := map[*graph.Node]bool{}
	var visit func(n *graph.Node)
	visit = func(n *graph.Node) {
		if !found[n] {
			found[n] = true
			for _, in := range n.Inputs {
				visit(in.Node)
			}
		}
	}
	for _, o := range g.Outputs {
		visit(o.Value.Node)
	}
	for _, a := range g.Assigns {
		visit(a.Value.Node)
		visit(a.Variable.Node)
	}
	return found
}

// start uploads, runs, and enqueues the reads by name: "output y0", "variable w".
func start(s *exec.Session, program string, t Task) (map[string]device.Pending, error) {
	reads := map[string]device.Pending{}
	needed := live(t.Graph)
	for _, v := range t.Graph.Sources("variable") {
		name := v.Node.Op.(graph.Source).Label()
		if !needed[v.Node] {
			continue
		}
		if err := s.WriteVariable(name, exec.Encode(v.DType, t.Variables[name].Data)); err != nil {
			return nil, err
		}
		reads["variable "+name] = nil
	}
	for _, v := range t.Graph.Sources("input") {
		name := v.Node.Op.(graph.Source).Label()
		if !needed[v.Node] {
			continue
		}
		if err := s.SetInput(program, name, exec.Encode(v.DType, t.Inputs[name].Data)); err != nil {
			return nil, err
		}
	}
	for range t.Runs {
		if err := s.Run(program); err != nil {
			return nil, err
		}
	}
	for _, o := range t.Graph.Outputs {
		reads["output "+o.Name] = nil
	}
	for what := range reads {
		var err error
		if name, ok := strings.CutPrefix(what, "output "); ok {
			reads[what], err = s.Output(program, name)
		} else {
			reads[what], err = s.ReadVariable(strings.TrimPrefix(what, "variable "))
		}
		if err != nil {
			return nil, err
		}
	}
	return reads, nil
}

// check waits for the device's results and compares them with the reference.
func (r *Result) check(t Task, reads map[string]device.Pending) error {
	variables := maps.Clone(t.Variables)
	var outputs map[string]*graph.Tensor
	for range t.Runs {
		var err error
		if outputs, err = eval.Run(t.Graph, t.Inputs, variables); err != nil {
			return err
		}
	}
	for _, what := range slices.Sorted(maps.Keys(reads)) {
		b, err := reads[what].Wait()
		if err != nil {
			return err
		}
		want := variables[strings.TrimPrefix(what, "variable ")]
		if name, ok := strings.CutPrefix(what, "output "); ok {
			want = outputs[name]
		}
		r.compare(what, decoded(want.Type, b), want, t.Floor)
	}
	return nil
}

// decoded is exec.Decode without the padding of an odd number of 16-bit floats, which must be zero.
func decoded(t graph.Type, b []byte) []float64 {
	data, n := exec.Decode(t.DType, b), t.Shape.Len()
	if len(data) == n+1 && t.DType.Float16() && data[n] == 0 {
		data = data[:n]
	}
	return data
}

// compare records the largest error. Integers must be equal.
func (r *Result) compare(what string, got []float64, want *graph.Tensor, floor float64) {
	if r.Failure != "" {
		return
	}
	scale := max(floor, 1e-30)
	for _, x := range want.Data {
		if !math.IsInf(x, 0) && !math.IsNaN(x) {
			scale = max(scale, math.Abs(x))
		}
	}
	if len(got) != len(want.Data) {
		r.Failure = fmt.Sprintf("%s has %d elements, expected %d", what, len(got), len(want.Data))
		return
	}
	for j, x := range want.Data {
		e := math.Abs(got[j]-x) / scale
		if got[j] == x || math.IsNaN(x) && math.IsNaN(got[j]) {
			e = 0
		}
		if !want.DType.Float() && e != 0 || math.IsNaN(e) || e > r.Tolerance {
			r.Failure = fmt.Sprintf("%s element %d is %v, expected %v (error %.3g)", what, j, got[j], x, e)
			return
		}
		r.Error = max(r.Error, e)
	}
}
