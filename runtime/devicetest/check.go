// Package devicetest is the conformance suite of a device that computes. It runs every case of every op with every
// kernel variant, and graphs that fuse, and compares the results with the float64 reference. Tests call Run; gpupipe
// selftest calls Check on the user's device.
package devicetest

import (
	"encoding/json"
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	_ "github.com/gpupipe/gpupipe/graph/op" // the catalogue
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/shaders"
)

// DefaultTolerance is the error that f32 results may have, relative to the reference's largest magnitude.
const DefaultTolerance = 2e-6

// Case returns the task of computing one case of an op alone.
func Case(c graph.Case) Task {
	attributes, err := json.Marshal(c.Op)
	if err != nil {
		panic(fmt.Sprintf("devicetest: %s: %v", c.Op.Name(), err))
	}
	t := Task{Op: c.Op.Name(), Name: fmt.Sprintf("%v %s", c.Inputs, attributes), Inputs: map[string]*graph.Tensor{}, Runs: 1, Tolerance: c.Tolerance}
	if t.Tolerance == 0 {
		t.Tolerance = DefaultTolerance
	}
	t.Graph, err = graph.Build(func(b *graph.Builder) {
		args := make([]*graph.Value, len(c.Inputs))
		for i, x := range c.Values(1) {
			name := fmt.Sprint("x", i)
			t.Inputs[name] = x
			args[i] = b.Input(name, x.Type)
		}
		for i, y := range b.Apply(c.Op, args...) {
			b.Output(fmt.Sprint("y", i), y)
		}
	})
	if err != nil {
		panic(fmt.Sprintf("devicetest: case of %s: %v", t.Op, err))
	}
	return t
}

// Cases returns the tasks of all cases of an op.
func Cases(o graph.Op) []Task {
	var ts []Task
	for _, c := range o.Cases() {
		ts = append(ts, Case(c))
	}
	return ts
}

// Check runs tasks on the device, once with each kernel variant, and compares with the reference. If a task has several
// kernels, the n-th run uses the n-th variant of each kernel that has so many.
func Check(dev device.Device, tasks []Task) []Result {
	var results []Result
	rounds := map[*graph.Graph]int{}
	for _, t := range tasks {
		rounds[t.Graph] = variants(dev, t)
	}
	left := tasks
	for i := 0; len(left) > 0; i++ {
		choose := func(Task) exec.Chooser { return &nth{n: i} }
		for _, batch := range batches(left) {
			results = append(results, run(dev, batch, choose)...)
		}
		var more []Task
		for _, t := range left {
			if rounds[t.Graph] > i+1 {
				more = append(more, t)
			}
		}
		left = more
	}
	return results
}

// CheckOnce runs tasks with the kernels that the chooser selects; nil is the static choice.
func CheckOnce(dev device.Device, tasks []Task, choose exec.Chooser) []Result {
	var results []Result
	for _, batch := range batches(tasks) {
		results = append(results, run(dev, batch, func(Task) exec.Chooser { return choose })...)
	}
	return results
}

// variants returns the largest number of variants of a task's kernels; zero for a task that cannot be lowered, which
// was reported when it ran.
func variants(dev device.Device, t Task) int {
	choose := &nth{}
	plan := func() (err error) {
		defer caught(&err)
		_, err = exec.NewPlan(dev, map[string]*graph.Graph{"task": t.Graph}, exec.Options{Tune: choose})
		return err
	}
	if plan() != nil {
		return 0
	}
	return choose.most
}

// nth chooses the n-th variant of each kernel that has so many.
type nth struct{ n, most int }

func (c *nth) Choose(_ device.Device, _ string, ks []shaders.Kernel, _ int) (int, error) {
	c.most = max(c.most, len(ks))
	return min(c.n, len(ks)-1), nil
}
