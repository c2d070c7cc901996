package compute

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/shaders"
)

// RandomGraphs is the number of random graphs that Run checks.
const RandomGraphs = 60

// RandomMixedGraphs is the number of random graphs with 16-bit floats that Run checks.
const RandomMixedGraphs = 16

// Run checks loops, conversions, every case of every op, and graphs that fuse on a device. Backends have different
// shares: each has its own random graphs. Shares 0 and 1 are of the backends that run on software adapters, where they
// divide the suite: see coverage. The core of the tests makes the first run of each claim and kernel variant, and once
// it has run, the others are made.
func Run(t *testing.T, dev device.Device, share uint32) { RunWith(t, dev, nil, share) }

// RunWith is Run on a device, and on another one, which compiles with less effort: that one makes the runs of ops whose
// kernels differ from earlier ones in numbers only. There may be none.
func RunWith(t *testing.T, dev, quick device.Device, share uint32) {
	var other *alternative
	if quick != nil {
		novel := &coverage{share: shares, seen: map[string]bool{}}
		other = &alternative{quick, func(t Task, ks []shaders.Kernel) bool { return !novel.takes(t, ks) }}
	}
	c := &tiers{suite: newCoverage(dev, share)}
	if !tier.All() || tier.CoreHasRun() {
		c.core = &coverage{share: claimsOnly, seen: map[string]bool{}}
	}
	t.Run("loops", func(t *testing.T) { report(t, CheckLoops(dev)) })
	t.Run("conversions", func(t *testing.T) { report(t, CheckConversions(dev)) })
	for _, o := range op.Catalogue() {
		t.Run(o.Name(), func(t *testing.T) { report(t, check(dev, Cases(o), c.takes, other)) })
	}
	graphs := c.takes
	if dev.Info().Kind == device.Software {
		graphs = c.takesInAll
	}
	t.Run("graphs", func(t *testing.T) { report(t, check(dev, Graphs(), graphs, nil)) })
	first := uint64(share) * RandomGraphs
	t.Run("chains", func(t *testing.T) { report(t, checkOnce(dev, ChainsFrom(first, RandomGraphs), graphs)) })
	t.Run("mixed chains", func(t *testing.T) { report(t, checkOnce(dev, MixedChains(RandomMixedGraphs), c.takes)) })
	tier.Count(t, c.ran, c.all)
}

// tiers counts the runs of a suite, and which of them the core makes.
type tiers struct {
	suite, core *coverage // core is nil if all run at once
	ran, all    int
}

func (c *tiers) takes(t Task, ks []shaders.Kernel) bool {
	if !c.suite.takes(t, ks) {
		return false
	}
	c.all++
	needed := c.core.takes(t, ks)
	if c.core != nil && tier.CoreHasRun() {
		c.ran++
		return !needed
	}
	if needed {
		c.ran++
	}
	return needed
}

// takesInAll is takes for runs that the core omits: of graphs on software adapters, whose drivers take long to
// compile them. They check fusion and memory, and so do the runs on native code.
func (c *tiers) takesInAll(t Task, ks []shaders.Kernel) bool {
	if !c.suite.takes(t, ks) {
		return false
	}
	if c.all++; tier.All() {
		c.ran++
	}
	return tier.All()
}

func report(t *testing.T, results []Result) {
	for _, r := range results {
		if !r.OK() {
			t.Errorf("%s %s (%s): %s", r.Op, r.Case, r.Candidate, r.Failure)
		}
	}
}
