package devicetest

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// RandomGraphs is the number of random graphs that Run checks.
const RandomGraphs = 200

// RandomHalfGraphs is the number of those with halves.
const RandomHalfGraphs = 16

// Run checks every case of every op on a device, and graphs that fuse.
func Run(t *testing.T, dev device.Device) {
	t.Run("loops", func(t *testing.T) { report(t, CheckLoops(dev)) })
	t.Run("halves", func(t *testing.T) { report(t, CheckHalves(dev)) })
	for _, o := range graph.Catalogue() {
		t.Run(o.Name(), func(t *testing.T) { report(t, Check(dev, Cases(o))) })
	}
	t.Run("graphs", func(t *testing.T) { report(t, Check(dev, Graphs())) })
	t.Run("chains", func(t *testing.T) { report(t, CheckOnce(dev, Chains(RandomGraphs), nil)) })
	t.Run("half chains", func(t *testing.T) { report(t, CheckOnce(dev, HalfChains(RandomHalfGraphs), nil)) })
}

func report(t *testing.T, results []Result) {
	for _, r := range results {
		if !r.OK() {
			t.Errorf("%s %s (%s): %s", r.Op, r.Case, r.Candidate, r.Failure)
		}
	}
}
