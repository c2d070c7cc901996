// Package compute is the conformance suite of a device that computes. It runs every case of every op with every
// kernel variant, and graphs that fuse, and compares the results with the float64 reference. Tests call Run; gpupipe
// selftest calls Check on the user's device.
package compute

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
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
	t := Task{Op: c.Op.Name(), Name: fmt.Sprintf("%v %s", c.Inputs, attributes), Inputs: map[string]*graph.Tensor{}, Runs: 1,
		Tolerance: c.Tolerance}
	if t.Tolerance == 0 {
		t.Tolerance = DefaultTolerance
	}
	t.Graph, err = graph.Build(func(b *graph.Builder) {
		args := make([]*graph.Value, len(c.Inputs))
		for i, x := range c.Values(1) {
			name := fmt.Sprint("x", i)
			t.Inputs[name] = x
			args[i] = b.Input(name, x.Type)
			t.Claim += x.DType.String() + " "
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
func Check(dev device.Device, tasks []Task) []Result { return check(dev, tasks, everyRun, nil) }

// takes reports whether a run of a task with kernels is made, given the runs that were asked for before.
type takes func(t Task, ks []shaders.Kernel) bool

func everyRun(Task, []shaders.Kernel) bool { return true }

// alternative is a device, and the runs that it makes in place of another one.
type alternative struct {
	device.Device
	takes takes
}

// check makes those runs of Check, some on the alternative device if there is one.
func check(dev device.Device, tasks []Task, takes takes, other *alternative) []Result {
	type round struct {
		n     int
		other bool
	}
	var order []round
	runs := map[round][]Task{}
	for _, t := range tasks {
		for i, ks := range rounds(dev, t) {
			if !takes(t, ks) {
				continue
			}
			r := round{i, other != nil && other.takes(t, ks)}
			if runs[r] == nil {
				order = append(order, r)
			}
			runs[r] = append(runs[r], t)
		}
	}
	var results []Result
	for _, r := range order {
		on, choose := dev, func(Task) exec.Chooser { return &nth{n: r.n} }
		if r.other {
			on = other.Device
		}
		for _, batch := range batches(runs[r]) {
			results = append(results, run(on, batch, choose)...)
		}
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

// Claims returns CheckOnce with the static choice for a device that runs few of many tasks. A software adapter makes
// the first run of each claim and kernel variant of an op.
func Claims(dev device.Device) func([]Task) []Result {
	c := newCoverage(dev, claimsOnly)
	return func(tasks []Task) []Result { return checkOnce(dev, tasks, c.takes) }
}

// Texts returns the texts of the kernels that Check runs for the tasks. The keys are the texts without numbers: it
// leaves out kernels that differ from others in numbers only.
func Texts(dev device.Device, tasks []Task) map[string]string {
	texts := map[string]string{}
	for _, t := range tasks {
		for _, ks := range rounds(dev, t) {
			for _, k := range ks {
				for _, p := range k.Passes {
					if key := withoutNumbers(p.Source); texts[key] == "" {
						texts[key] = p.Source
					}
				}
			}
		}
	}
	return texts
}

// Novel returns the tasks with a kernel, of any variant, that has a statement which no kernel before it has. It ignores
// numbers. Tasks that cannot be lowered stay.
func Novel(dev device.Device, tasks []Task) (novel []Task) {
	seen := &coverage{seen: map[string]bool{}}
	for _, t := range tasks {
		needed := false
		for _, ks := range rounds(dev, t) {
			needed = len(ks) == 0 || seen.adds(ks) || needed
		}
		if needed {
			novel = append(novel, t)
		}
	}
	return novel
}

// checkOnce makes those runs with the static choice.
func checkOnce(dev device.Device, tasks []Task, takes takes) []Result {
	tasks = slices.DeleteFunc(tasks, func(t Task) bool {
		ks, err := kernels(dev, t, nil)
		return err == nil && !takes(t, ks)
	})
	return CheckOnce(dev, tasks, nil)
}

// nth chooses the n-th variant of each kernel that has so many.
type nth struct {
	n       int
	several [][]shaders.Kernel // the variants that it chose among
}

func (c *nth) Choose(_ device.Device, _ string, ks []shaders.Kernel, _ int) (int, error) {
	c.several = append(c.several, ks)
	return min(c.n, len(ks)-1), nil
}

// most returns the largest number of variants of a kernel.
func (c *nth) most() int {
	n := 1
	for _, ks := range c.several {
		n = max(n, len(ks))
	}
	return n
}
