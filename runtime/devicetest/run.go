package devicetest

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// RandomGraphs is the number of random graphs that Run checks.
const RandomGraphs = 100

// RandomMixedGraphs is the number of random graphs with 16-bit floats that Run checks.
const RandomMixedGraphs = 16

// Run checks loops, conversions, every case of every op, and graphs that fuse on a device. Backends that compile the same
// text divide random graphs among them: seed is that of the first.
func Run(t *testing.T, dev device.Device, seed uint64) {
	t.Run("loops", func(t *testing.T) { report(t, CheckLoops(dev)) })
	t.Run("conversions", func(t *testing.T) { report(t, CheckConversions(dev)) })
	for _, o := range graph.Catalogue() {
		t.Run(o.Name(), func(t *testing.T) { report(t, Check(dev, Cases(o))) })
	}
	t.Run("graphs", func(t *testing.T) { report(t, Check(dev, Graphs())) })
	t.Run("chains", func(t *testing.T) { report(t, CheckOnce(dev, ChainsFrom(seed, RandomGraphs), nil)) })
	t.Run("mixed chains", func(t *testing.T) { report(t, CheckOnce(dev, MixedChains(RandomMixedGraphs), nil)) })
}

func report(t *testing.T, results []Result) {
	for _, r := range results {
		if !r.OK() {
			t.Errorf("%s %s (%s): %s", r.Op, r.Case, r.Candidate, r.Failure)
		}
	}
}
