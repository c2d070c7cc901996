package webgpujs

import (
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/runtime/devicetest"
)

// What runs here is small, since browsers without a GPU compute very slowly: tasks of at most so many elements, and so many random graphs. The
// native backend runs all of the suite.
const (
	mostElements = 2000
	randomGraphs = 12
)

func small(tasks []devicetest.Task) []devicetest.Task {
	return slices.DeleteFunc(tasks, func(t devicetest.Task) bool {
		n := 0
		for _, m := range []map[string]*graph.Tensor{t.Inputs, t.Variables} {
			for _, x := range m {
				n += len(x.Data)
			}
		}
		return n > mostElements
	})
}

func TestConformance(t *testing.T) {
	d := open(t, 0)
	check := func(name string, tasks []devicetest.Task) {
		t.Run(name, func(t *testing.T) {
			if len(tasks) == 0 {
				t.Error("no task is small enough")
			}
			for _, r := range devicetest.CheckOnce(d, tasks, nil) {
				if !r.OK() {
					t.Errorf("%s %s (%s): %s", r.Op, r.Case, r.Candidate, r.Failure)
				}
			}
		})
	}
	for _, o := range graph.Catalogue() {
		if cases := devicetest.Cases(o); len(cases) > 0 { // sources have none
			check(o.Name(), small(cases))
		}
	}
	check("graphs", small(devicetest.Graphs()))
	check("chains", small(devicetest.Chains(randomGraphs)))
}
