package study

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/pipeline/runs"
)

// world is an invented loss of each run.
type world func(Run) float64

// truth has its best rate at 0.002 for adamw and 0.02 for muon, and at half of that with a delay.
func truth(r Run) float64 {
	best, gap := 0.002, 0.3
	if r.Optimizer == "muon" {
		best, gap = 0.02, 0.02
	}
	loss := 2 + 0.01*float64(r.Seed)
	if r.Mode != SyncMode {
		best /= 2
		loss += gap * (1 + 0.1*float64(r.Seed%2))
	}
	if r.Mode == "delay+error_feedback" {
		loss -= gap * (0.8 + 0.05*float64(r.Seed))
	}
	return loss + 0.1*math.Abs(math.Log2(r.LR/best))
}

// carryOut runs a grid in a world, plan by plan, and counts the runs.
func carryOut(t *testing.T, g *Study, w world) (outcomes map[Run]runs.Outcome, first, most int) {
	t.Helper()
	outcomes = map[Run]runs.Outcome{}
	needed, later := g.plan(outcomes)
	first, most = len(needed), len(needed)+later
	for len(outcomes) < len(needed) {
		for _, r := range needed {
			outcomes[r] = runs.Outcome{ValLoss: w(r)}
		}
		needed, later = g.plan(outcomes)
		assert.LessOrEqual(t, len(needed)+later, most, "the forecast is an upper bound")
		seen := map[Run]bool{}
		for _, r := range needed {
			assert.False(t, seen[r], "%s is planned twice", r)
			seen[r] = true
		}
	}
	assert.Zero(t, later)
	return outcomes, first, most
}

func threeModes(t *testing.T, more string) *Study {
	t.Helper()
	g, err := grid(t, smallBase+twoOptimizers+"dir: "+t.TempDir()+"\nset: {train.microbatches: 2}\n"+more)
	require.NoError(t, err)
	return g
}

func TestPlanSynchronous(t *testing.T) {
	g := threeModes(t, "")
	outcomes, first, most := carryOut(t, g, truth)
	assert.Equal(t, 3+2, first, "a trial of every rate, without delay")
	// Each optimizer: 2 more seeds in sync, 3 in each delayed mode.
	assert.Equal(t, 5+2*(2+3+3), most)
	assert.Len(t, outcomes, most)
	for _, c := range g.cells() {
		lr, known := g.rate(c, outcomes)
		assert.True(t, known)
		assert.Equal(t, map[string]float64{"adamw": 0.002, "muon": 0.02}[c.optimizer.Label], lr)
	}
}

func TestPlanEach(t *testing.T) {
	g := threeModes(t, "tuning: each\n")
	outcomes, first, most := carryOut(t, g, truth)
	assert.Equal(t, 3*(3+2), first)
	assert.Equal(t, 15+2*3*2, most)
	assert.Len(t, outcomes, most)
	lr, _ := g.rate(cell{optimizer: g.Optimizers[0], tuning: Each, tunedIn: delayMode}, outcomes)
	assert.Equal(t, 0.001, lr)
}

func TestPlanBoth(t *testing.T) {
	g := threeModes(t, "tuning: both\n")
	outcomes, _, most := carryOut(t, g, truth)
	// Each optimizer: 2 more seeds in sync; in each delayed mode 2 more at its own rate and 2 at sync's, where the
	// trial is there already.
	assert.Len(t, outcomes, 15+2*(2+2*4))
	assert.Equal(t, most, len(outcomes))
	same, _, _ := carryOut(t, g, func(r Run) float64 { return truth(Run{r.Optimizer, SyncMode, 1, r.LR, r.Seed}) })
	assert.Len(t, same, 15+2*(2+2*2), "the same rate is best everywhere")
	assert.Less(t, len(same), most)
}

func TestPlanStagesTuneOnce(t *testing.T) {
	g := threeModes(t, "stages: [1, 2]\nmodes: [sync, delay]\ntune_seeds: [7, 8]\nseeds: [1]\n")
	outcomes, first, most := carryOut(t, g, truth)
	assert.Equal(t, 2*5, first)
	assert.Equal(t, 10+2*2*2, most)
	for r := range outcomes {
		assert.True(t, r.Stages == 1 || r.Seed == 1, "%s", r)
	}
}

func TestRates(t *testing.T) {
	g := threeModes(t, "tune_seeds: [1, 2]\nmodes: [sync]\n")
	c := g.cells()[0]
	outcomes, _, _ := carryOut(t, g, func(r Run) float64 {
		switch {
		case r.LR == 0.001 && r.Seed == 1:
			return 0.1 // but not on the other seed
		case r.LR == 0.001:
			return 9
		}
		return 2
	})
	lr, known := g.rate(c, outcomes)
	assert.True(t, known)
	assert.Equal(t, 0.002, lr, "the smaller of equal ones")
	delete(outcomes, Run{"adamw", "sync", 1, 0.004, 2})
	_, known = g.rate(c, outcomes)
	assert.False(t, known)

	outcomes, first, most := carryOut(t, g, func(r Run) float64 {
		if r.Optimizer == "adamw" || r.LR == 0.02 && r.Seed == 2 {
			return math.Inf(1)
		}
		return 2 - r.LR
	})
	lr, known = g.rate(c, outcomes)
	assert.True(t, known)
	assert.True(t, math.IsNaN(lr), "all diverge")
	lr, _ = g.rate(g.cells()[1], outcomes)
	assert.Equal(t, 0.01, lr, "0.02 diverges on one seed")
	assert.Less(t, len(outcomes), most)
	assert.Equal(t, first+1, len(outcomes), "what diverges at every rate is not run again")
}
